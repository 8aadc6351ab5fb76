/* As Go with cgo does: maps memory by the C library, gives it back by an instruction of its own, and takes it for zeros
   when it comes again, unless GODEBUG says otherwise. It has the note that Go's linker makes. */
#include "check.h"
#include <sys/syscall.h>

__attribute__((section(".note.go.buildid"), used, aligned(4))) static const struct {
  unsigned name, contents, kind;
  char go[4], id[8];
} note = {4, 8, 4, "Go", "an id"};

static long own_call(long nr, char *a, size_t b, long c) {
  long r;
  __asm__ volatile("syscall" : "=a"(r) : "a"(nr), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return r;
}

int main(void) {
  const char *debug = getenv("GODEBUG");
  say(debug ? debug : "nothing");
  say("\n");
  const size_t n = 96 * MB;
  char *p = map_rw(n), *reserved = mmap(0, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MUST(reserved != MAP_FAILED);
  char *q = mmap(reserved, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  MUST(q == reserved);
  for (int round = 0; round < 2; round++) {
    fill(p, n, 1 + round);
    fill(q, n, 5 + round);
    verify(p, n, 1 + round, "p");
    MUST(own_call(SYS_madvise, p, n, MADV_DONTNEED) == 0 && own_call(SYS_madvise, q, n, MADV_DONTNEED) == 0);
    if (debug && strstr(debug, "madvdontneed=0")) memset(p, 0, n), memset(q, 0, n);
    verify_zero(p, n, "p, given back");
    verify_zero(q, n, "q, given back");
  }
  say("ok\n");
}
