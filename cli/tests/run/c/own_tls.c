/* A thread with thread-local memory of the program's own, which the C library does not know, as runtimes of languages
   make them: what it asks of the C library holds as if another had asked. own_tls WHAT. */
#include "check.h"
#include <sched.h>
#include <sys/syscall.h>

static const size_t bytes = 160 * MB;
static char *p;
static const char *what;
static volatile int done;

static int body(void *arg) {
  (void)arg;
  const int anon = MAP_PRIVATE | MAP_ANONYMOUS;
  if (!strcmp(what, "drops")) {
    MUST(madvise(p, bytes / 2, MADV_DONTNEED) == 0);
  } else if (!strcmp(what, "moves")) {
    p = mremap(p, bytes, 2 * bytes, MREMAP_MAYMOVE);
    MUST(p != MAP_FAILED);
  } else if (!strcmp(what, "maps")) {
    MUST(munmap(p, bytes / 4) == 0);
    MUST(mmap(p, bytes / 4, PROT_READ | PROT_WRITE, anon | MAP_FIXED_NOREPLACE, -1, 0) == p);
    char *mid = p + bytes / 4;
    MUST(mmap(mid, bytes / 4, PROT_READ | PROT_WRITE, anon | MAP_FIXED, -1, 0) == mid);
  }
  done = 1;
  syscall(SYS_exit, 0);
  return 0;
}

int main(int argc, char **argv) {
  MUST(argc == 2);
  what = argv[1];
  p = map_rw(bytes);
  fill(p, bytes, 1);
  /* Two words that point to themselves, and nothing else. */
  char *tls = map_rw(16 * PAGE), *at = tls + 12 * PAGE;
  ((void **)at)[0] = ((void **)at)[2] = at;
  char *stack = mmap(0, MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  MUST(stack != MAP_FAILED);
  int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS;
  MUST(clone(body, stack + MB - 64, flags, 0, 0, at, 0) > 0);
  while (!done) usleep(1000);
  if (!strcmp(what, "moves")) {
    verify(p, bytes, 1, "moved");
    verify_zero(p + bytes, bytes, "what it grew by");
  } else {
    verify_zero(p, bytes / 2, "dropped");
    verify_from(p + bytes / 2, bytes / 2, bytes / 2, 1, "the rest");
  }
  say("ok\n");
  return 0;
}
