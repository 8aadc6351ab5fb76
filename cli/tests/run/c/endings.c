/* Threads that end, or jump, where a call of theirs may be in the middle of ours. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>

static volatile int running;
static volatile long left;
static sigjmp_buf back;

static void map_a_little(void) {
  char *q = mmap(0, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (q != MAP_FAILED) munmap(q, 3 * PAGE);
}

static void *map_for_ever(void *asynchronous) {
  if (asynchronous) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0);
  for (running = 1;; syscall(SYS_getppid)) map_a_little();
  return 0;
}

static void leave(int s) {
  (void)s;
  pthread_exit(0);
}

/* Ends `n` threads, each a little later than the one before. */
static void end_threads(int n, int cancel) {
  char *p = map_rw(16 * MB);
  fill(p, 16 * MB, 1);
  signal(SIGUSR1, leave);
  for (int i = 0; i < n; i++) {
    pthread_t t;
    running = 0;
    MUST(pthread_create(&t, 0, map_for_ever, cancel ? p : 0) == 0);
    while (!running) sched_yield();
    for (volatile int k = 0; k < i % 100 * 100; k++) {
    }
    if (cancel) pthread_cancel(t);
    else pthread_kill(t, SIGUSR1);
    MUST(pthread_join(t, 0) == 0);
  }
  verify(p, 16 * MB, 1, "after the threads");
  MUST(munmap(p, 16 * MB) == 0);
}

static void jump(int s) {
  (void)s;
  left++;
  siglongjmp(back, 1);
}

static void forbid(int nr, int also) {
  struct sock_filter f[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, also, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog prog = {sizeof f / sizeof *f, f};
  MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0);
}

/* Out of calls that another thread of ours makes for this one: more often than it has places. */
static void jumps(int also_masks) {
  struct sigaction sa = {.sa_handler = jump, .sa_flags = SA_NODEFER};
  MUST(sigaction(SIGALRM, &sa, 0) == 0);
  forbid(SYS_mprotect, also_masks ? SYS_rt_sigprocmask : SYS_mprotect);
  struct itimerval it = {{0, 500}, {0, 500}}, none = {{0, 0}, {0, 0}};
  /* Masks are not saved where that is forbidden. */
  sigsetjmp(back, 0);
  if (left == 0) MUST(setitimer(ITIMER_REAL, &it, 0) == 0);
  while (left < 600) map_a_little();
  MUST(setitimer(ITIMER_REAL, &none, 0) == 0);
  map_a_little();
}

/* The first thread ends, the others go on. */
static void *go_on(void *first) {
  MUST(pthread_join(*(pthread_t *)first, 0) == 0);
  const size_t n = 96 * MB;
  char *p = map_rw(n);
  fill(p, n, 1);
  char *q = mremap(p, n, 2 * n, MREMAP_MAYMOVE);
  MUST(q != MAP_FAILED);
  verify(q, n, 1, "moved");
  long args[11] = {[4] = SIGCHLD};
  pid_t pid = syscall(SYS_clone3, args, sizeof args);
  if (pid == 0) {
    verify(q, n, 1, "child");
    _exit(0);
  }
  wait_ok(pid, "child");
  MUST(mlock(q, MB) == 0 && munlock(q, MB) == 0);
  say("ok\n");
  _exit(0);
}

static void *ends_by_the_call(void *arg) {
  (void)arg;
  usleep(100000);
  syscall(SYS_exit, 0);
  return 0;
}

int main(int argc, char **argv) {
  MUST(argc == 2);
  if (!strcmp(argv[1], "in_handlers")) {
    end_threads(400, 0);
  } else if (!strcmp(argv[1], "cancelled")) {
    end_threads(400, 1);
  } else if (!strcmp(argv[1], "jumps")) {
    jumps(0);
  } else if (!strcmp(argv[1], "jumps_without_masks")) {
    jumps(1);
  } else if (!strcmp(argv[1], "first_thread")) {
    static pthread_t first;
    pthread_t t;
    first = pthread_self();
    MUST(pthread_create(&t, 0, go_on, &first) == 0);
    pthread_exit(0);
  } else if (!strcmp(argv[1], "one_by_one_without_descriptors")) {
    /* By the call, so that the C library does not end the process with the last of them. */
    struct rlimit none = {0, 0};
    pthread_t t;
    say("ok\n");
    MUST(setrlimit(RLIMIT_NOFILE, &none) == 0);
    MUST(pthread_create(&t, 0, ends_by_the_call, 0) == 0);
    syscall(SYS_exit, 0);
  } else if (!strncmp(argv[1], "strict", 6)) {
    char *p = map_rw(96 * MB);
    fill(p, 96 * MB, 1);
    if (argv[1][6]) MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, 0) == 0);
    else MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
    verify(p, 96 * MB, 1, "in the strict mode");
    say("ok\n");
    if (argv[1][6]) getppid();
    syscall(SYS_exit, 3);
  } else {
    STOP("unknown: %s", argv[1]);
  }
  say("ok\n");
  return 0;
}
