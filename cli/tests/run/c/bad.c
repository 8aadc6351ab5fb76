/* Addresses that must not be touched: the signal says which, and why. */
#include "check.h"
#include <setjmp.h>

static sigjmp_buf back;
static siginfo_t got;

static void caught(int s, siginfo_t *info, void *context) {
  (void)s, (void)context;
  got = *info;
  siglongjmp(back, 1);
}

static void expect(char *at, int writes, int code, const char *what) {
  got = (siginfo_t){0};
  if (sigsetjmp(back, 1) == 0) {
    if (writes) *(volatile char *)at = 1;
    else (void)*(volatile char *)at;
    STOP("%s: no signal", what);
  }
  if (got.si_signo != SIGSEGV || got.si_code != code || got.si_addr != at)
    STOP("%s: signal %d, code %d, address %p; not code %d, address %p", what, got.si_signo, got.si_code, got.si_addr, code, at);
}

static void both(char *at, int code, const char *what) {
  expect(at, 0, code, what);
  expect(at, 1, code, what);
}

static void look(char *p, size_t bytes) {
  /* A hole in the middle, one at a page only, and at both ends of it. */
  MUST(munmap(p + 10 * MB, 4 * MB) == 0 && munmap(p + 20 * MB + 5 * PAGE, PAGE) == 0);
  both(p + 10 * MB, SEGV_MAPERR, "first byte of a hole");
  both(p + 14 * MB - 1, SEGV_MAPERR, "last byte of a hole");
  both(p + 20 * MB + 5 * PAGE + 17, SEGV_MAPERR, "a page's hole");
  MUST(mprotect(p + 30 * MB + 3 * PAGE, 2 * PAGE, PROT_NONE) == 0 && mprotect(p + 40 * MB, 2 * MB, PROT_READ) == 0);
  both(p + 30 * MB + 3 * PAGE, SEGV_ACCERR, "no access");
  both(p + 30 * MB + 5 * PAGE - 1, SEGV_ACCERR, "end of no access");
  expect(p + 40 * MB + 123, 1, SEGV_ACCERR, "read only");
  expect(p + 42 * MB - 1, 1, SEGV_ACCERR, "end of read only");
  verify_from(p, 0, 10 * MB, 1, "before the hole");
  verify_from(p + 14 * MB, 14 * MB, 6 * MB, 1, "behind the hole");
  verify_from(p + 40 * MB, 40 * MB, bytes - 40 * MB, 1, "read only and behind");
  MUST(mprotect(p + 30 * MB, 2 * MB, PROT_READ | PROT_WRITE) == 0);
  verify_from(p + 30 * MB, 30 * MB, 2 * MB, 1, "accessible again");
}

int main(void) {
  struct sigaction a = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO};
  MUST(sigaction(SIGSEGV, &a, 0) == 0);
  size_t bytes = 160 * MB;
  char *p = map_rw(bytes);
  fill(p, bytes, 1);
  look(p, bytes);
  /* Nothing was there ever, and what was there is gone. */
  MUST(munmap(p, bytes) == 0);
  both(p, SEGV_MAPERR, "unmapped");
  both(p + bytes - 1, SEGV_MAPERR, "end of unmapped");
  both(0, SEGV_MAPERR, "null");
  both((char *)0x123456789000, SEGV_MAPERR, "nowhere");
  /* Not an address at all: the kernel does not know which. */
  if (sigsetjmp(back, 1) == 0) {
    *(volatile char *)0x8000000000000000ul = 1;
    STOP("no signal");
  }
  MUST(got.si_signo == SIGSEGV && got.si_code == SI_KERNEL && got.si_addr == 0);
  /* Beside small mappings. */
  char *q = map_rw(3 * PAGE);
  MUST(munmap(q + PAGE, PAGE) == 0);
  q[0] = q[2 * PAGE] = 1;
  both(q + PAGE, SEGV_MAPERR, "between small ones");
  /* And the signal that nobody catches ends the program. */
  p = map_rw(80 * MB);
  fill(p, 80 * MB, 2);
  MUST(munmap(p + 8 * MB, 2 * MB) == 0);
  pid_t pid = fork();
  if (pid == 0) {
    signal(SIGSEGV, SIG_DFL);
    *(volatile char *)(p + 9 * MB) = 1;
    _exit(0);
  }
  int status;
  MUST(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  say("ok\n");
  return 0;
}
