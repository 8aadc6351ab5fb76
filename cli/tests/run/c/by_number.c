/* Children that are made by system calls of the program's own, of which the C library knows nothing. by_number WHAT. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static const size_t bytes = 160 * MB, tls_bytes = 16 * PAGE;
static char *p, *tls, *at;
static volatile int done;

/* But for what the C library uses itself: the words at the beginning. */
static void same_bytes_in(const char *whom) {
  size_t front = at - tls, own = 0x30;
  verify(tls, front, 1, whom);
  verify_from(at + own, front + own, tls_bytes - front - own, 1, whom);
  verify(p, bytes, 2, whom);
}

static int forks(void *arg) {
  long pid = syscall((long)arg, (long)arg == SYS_clone ? SIGCHLD : 0, 0, 0, 0, 0);
  if (pid == 0) {
    same_bytes_in("child");
    syscall(SYS_exit_group, 0);
  }
  int status = 1;
  while (syscall(SYS_wait4, pid, &status, 0, 0) != pid) {
  }
  if (status) STOP("the child ended with %x", status);
  same_bytes_in("parent");
  done = 1;
  syscall(SYS_exit, 0);
  return 0;
}

/* By a thread with thread-local memory of its own, nearly all of which is the program's. */
static void bytes_stay(void) {
  p = map_rw(bytes);
  fill(p, bytes, 2);
  tls = map_rw(tls_bytes);
  fill(tls, tls_bytes, 1);
  at = tls + 12 * PAGE;
  ((void **)at)[0] = ((void **)at)[2] = at;
  char *stack = mmap(0, MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  MUST(stack != MAP_FAILED);
  int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS;
  for (int i = 0; i < 2; i++) {
    done = 0;
    MUST(clone(forks, stack + MB - 64, flags, (void *)(long)(i ? SYS_clone : SYS_fork), 0, at, 0) > 0);
    while (!done) usleep(1000);
    usleep(10000);
  }
}

/* The child is under a filter then, so that a thread of ours runs its hooks. */
static void filtered(void) {
  struct sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                               BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigprocmask, 0, 1),
                               BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                               BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog filter = {sizeof code / sizeof *code, code};
  for (int i = 0; i < 2; i++) {
    pid_t pid = i ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : syscall(SYS_fork);
    if (pid == 0) {
      MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
      MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
      for (int k = 0; k < 20000; k++) {
        char *q = map_rw(MB);
        q[0] = 1;
        MUST(munmap(q, MB) == 0);
      }
      _exit(0);
    }
    wait_ok(pid, "child");
  }
}

int main(int argc, char **argv) {
  MUST(argc == 2);
  if (!strcmp(argv[1], "bytes_stay"))
    bytes_stay();
  else
    filtered();
  say("ok\n");
  return 0;
}
