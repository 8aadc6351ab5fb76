/* Addresses that are reserved first and opened piece by piece, as allocators and JVMs do: before anybody else's
   constructor has run ("early"; with contents or with advice by then: the others), or at an address that must be
   free ("there"). */
#include "check.h"
#include <sys/syscall.h>

static const size_t piece = 2 * MB;
static size_t bytes = 256 * MB;
static char *early;
static const char *how;

/* Not by the C library, which is not there yet. */
static long ask(long nr, void *at, size_t len, long third, long flags) {
  long r;
  register long r10 __asm__("r10") = flags;
  register long r8 __asm__("r8") = -1;
  register long r9 __asm__("r9") = 0;
  __asm__ volatile("syscall"
                   : "=a"(r)
                   : "a"(nr), "D"(at), "S"(len), "d"(third), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return r;
}

#define GUARD_INSTALL 102
/* Pages with contents, or guards. */
#define STEP (5 * PAGE)

static int is(const char *name) {
  size_t i = 0;
  while (how[i] && how[i] == name[i]) i++;
  return how[i] == name[i];
}

static void reserve(int argc, char **argv) {
  how = argc > 1 ? argv[1] : "";
  /* These are not managed. */
  if (is("wiped") || is("guarded")) bytes = 16 * MB;
  if (is("given_back")) {
    bytes = 12288 * MB;
    early = (char *)ask(SYS_mmap, 0, bytes, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE);
    return;
  }
  early = (char *)ask(SYS_mmap, 0, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS);
  if (is("early") || is("there")) return;
  ask(SYS_mprotect, early, bytes, PROT_READ | PROT_WRITE, 0);
  if (is("wiped")) ask(SYS_madvise, early, bytes, MADV_WIPEONFORK, 0);
  for (size_t at = 0; at < bytes; at += STEP)
    if (is("filled"))
      *(u64 *)(early + at) = mix(at);
    else if (is("guarded"))
      ask(SYS_madvise, early + at, PAGE, GUARD_INSTALL, 0);
  if (is("filled")) ask(SYS_mprotect, early, bytes, PROT_NONE, 0);
}
__attribute__((section(".preinit_array"), used)) static void (*const first)(int, char **) = reserve;

/* So much else that what there is has to leave. */
static void press(void) {
  char *p = map_rw(160 * MB);
  fill(p, 160 * MB, 3);
  verify(p, 160 * MB, 3, "else");
  MUST(munmap(p, 160 * MB) == 0);
}

static void filled(void) {
  press();
  MUST(mprotect(early, bytes, PROT_READ | PROT_WRITE) == 0);
  for (int round = 0; round < 2; round++) {
    for (size_t at = 0; at < bytes; at += PAGE)
      if (*(u64 *)(early + at) != (at % STEP ? 0 : mix(at))) STOP("filled: wrong at %zu", at);
    press();
  }
}

static void wiped(void) {
  fill(early, bytes, 1);
  press();
  pid_t pid = fork();
  if (pid == 0) {
    verify_zero(early, bytes, "wiped");
    _exit(0);
  }
  wait_ok(pid, "child");
  verify(early, bytes, 1, "parent");
}

static void guarded(void) {
  int none[2], there[2];
  MUST(pipe(none) == 0 && pipe(there) == 0);
  /* Before Linux 6.13 there are no guards. */
  if (write(none[1], early, 1) == 1) return;
  for (size_t at = 0; at < bytes; at += STEP)
    if (at + STEP <= bytes) fill(early + at + PAGE, STEP - PAGE, at);
  press();
  for (size_t at = 0; at + STEP <= bytes; at += STEP) {
    if (write(there[1], early + at, 1) >= 0) STOP("no guard at %zu", at);
    verify(early + at + PAGE, STEP - PAGE, at, "between guards");
  }
}

/* All of it but for a page at either end of each piece. */
static void use(char *p, int fixed) {
  for (size_t at = 0; at < bytes; at += piece) {
    char *from = p + at + PAGE;
    size_t len = piece - 2 * PAGE;
    if (fixed)
      MUST(mmap(from, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == from);
    else
      MUST(mprotect(from, len, PROT_READ | PROT_WRITE) == 0);
    fill(from, len, at);
  }
  for (size_t at = 0; at < bytes; at += piece) verify(p + at + PAGE, piece - 2 * PAGE, at, "opened");
}

/* A child comes back to addresses that its parent has given up. */
static void given_back(void) {
  size_t len = 160 * MB;
  char *p = map_rw(len);
  fill(p, len, 1);
  MUST(munmap(early, bytes) == 0);
  pid_t pid = fork();
  if (pid == 0) {
    char *q = mmap(early, bytes, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    MUST(q == early);
    verify(p, len, 1, "child");
    fill(p, len, 2);
    verify(p, len, 2, "child");
    _exit(0);
  }
  wait_ok(pid, "child");
  verify(p, len, 1, "parent");
}

int main(int argc, char **argv) {
  MUST(argc == 2);
  if (is("early")) {
    use(early, 0);
  } else if (is("filled")) {
    filled();
  } else if (is("wiped")) {
    wiped();
  } else if (is("guarded")) {
    guarded();
  } else if (is("given_back")) {
    given_back();
  } else {
    char *at = (char *)0xe7000000, *high = (char *)0x100000000000;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    MUST(mmap(at, bytes, PROT_NONE, flags, -1, 0) == at);
    MUST(mmap(high, bytes, PROT_NONE, flags, -1, 0) == high);
    MUST(mmap(high, bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED && errno == EEXIST);
    use(at, 1);
    use(high, 1);
  }
  say("ok\n");
  return 0;
}
