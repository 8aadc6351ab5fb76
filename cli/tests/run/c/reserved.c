/* Addresses that are reserved first and opened piece by piece, as allocators and JVMs do: before anybody else's
   constructor has run ("early"), or at an address that must be free ("there"). */
#include "check.h"
#include <sys/syscall.h>

static const size_t bytes = 256 * MB, piece = 2 * MB;
static char *early;

static void reserve(void) {
  long p;
  register long flags __asm__("r10") = MAP_PRIVATE | MAP_ANONYMOUS;
  register long fd __asm__("r8") = -1;
  register long offset __asm__("r9") = 0;
  /* The C library is not there yet. */
  __asm__ volatile("syscall"
                   : "=a"(p)
                   : "a"(SYS_mmap), "D"(0), "S"(bytes), "d"(PROT_NONE), "r"(flags), "r"(fd), "r"(offset)
                   : "rcx", "r11", "memory");
  early = (char *)p;
}
__attribute__((section(".preinit_array"), used)) static void (*const first)(void) = reserve;

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

int main(int argc, char **argv) {
  MUST(argc == 2);
  if (!strcmp(argv[1], "early")) {
    use(early, 0);
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
