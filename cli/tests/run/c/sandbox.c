/* sandbox KIND: forbids itself most system calls, then works on swapped memory. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>

static const size_t bytes = 128 * MB;
static char *p;

/* Everything but these few answers as `otherwise` says. A plain program makes no more than the first of
 * them; the last four are what hooks make besides. */
static const int allowed[] = {SYS_read,       SYS_write,    SYS_exit,         SYS_exit_group,    SYS_futex,
                              SYS_mmap,       SYS_munmap,   SYS_brk,          SYS_rt_sigreturn,  SYS_execve,
                              SYS_mprotect,   SYS_madvise,  SYS_rt_sigprocmask, SYS_getrlimit};
enum { ALL = sizeof allowed / sizeof *allowed, PROGRAMS = ALL - 4 };

static struct sock_fprog filter(int calls, u64 otherwise) {
  static struct sock_filter f[2 * ALL + 2];
  int n = 0;
  f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (int i = 0; i < calls; i++) {
    f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }
  f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, otherwise);
  return (struct sock_fprog){n, f};
}

static void touch(u64 seed) {
  verify(p, bytes, seed, "under the filter");
  fill(p, bytes, seed + 1);
  verify(p, bytes, seed + 1, "written under the filter");
}

static void work(u64 seed) {
  touch(seed);
  for (int i = 0; i < 200; i++) {
    size_t len = (i % 7 + 1) * MB + i * PAGE;
    char *q = map_rw(len);
    fill(q, len, i);
    char *h = malloc(100000 + i * 1000);
    memset(h, i, 100000);
    verify(q, len, i, "a mapping");
    MUST(munmap(q, len) == 0);
    if (i % 3) free(h);
  }
  /* By the break, and a mapping that takes the place of another. */
  char *h = sbrk(3 * MB);
  MUST(h != (char *)-1);
  fill(h, 3 * MB, 5);
  verify(h, 3 * MB, 5, "the heap");
  MUST(mmap(p + 4 * MB, MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + 4 * MB);
  verify_zero(p + 4 * MB, MB, "replaced");
  verify_from(p + 5 * MB, 5 * MB, bytes - 5 * MB, seed + 1, "behind what was replaced");
  verify(p, 4 * MB, seed + 1, "before what was replaced");
}

/* In the middle of whatever `work` does. */
static volatile unsigned alarms;
static void on_alarm(int signal) {
  char *q = map_rw(MB);
  fill(q, MB, alarms);
  verify(q, MB, alarms, "of a signal's handler");
  MUST(munmap(q, MB) == 0);
  volatile char *at = p + 8 * MB + mix(alarms++ + signal) % (bytes - 8 * MB);
  (void)*at;
}

/* A child that has this process's memory, and its filter to itself. */
static void of_vfork_child(void) {
  static struct sock_fprog f;
  f = filter(PROGRAMS, SECCOMP_RET_KILL_PROCESS);
  pid_t pid = vfork();
  MUST(pid >= 0);
  if (pid == 0) {
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &f)) _exit(2);
    _exit(0);
  }
  wait_ok(pid, "the child");
  pid = vfork();
  MUST(pid >= 0);
  if (pid == 0) {
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) _exit(3);
    syscall(SYS_exit, 0);
  }
  wait_ok(pid, "the strict child");
}

static int go;
static void *other(void *arg) {
  while (!__atomic_load_n(&go, __ATOMIC_ACQUIRE)) usleep(1000);
  for (int i = 0; i < 100; i++) {
    char *q = map_rw(2 * MB);
    fill(q, 2 * MB, i);
    verify(q, 2 * MB, i, "of the other thread");
    MUST(munmap(q, 2 * MB) == 0);
  }
  return arg;
}

static void *last(void *arg) {
  usleep(300000);
  say("ok\n");
  syscall(SYS_exit, 7);
  return arg;
}

int main(int argc, char **argv) {
  MUST(argc == 2);
  const char *what = argv[1];
  struct sock_fprog f;
  pthread_t t;
  p = map_rw(bytes);
  fill(p, bytes, 1);
  /* The first call asks the kernel for random numbers. */
  void *volatile first = malloc(1);
  free(first);
  MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  if (!strcmp(what, "touches_only")) {
    f = filter(PROGRAMS, SECCOMP_RET_KILL_PROCESS);
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &f) == 0);
    touch(1);
  } else if (!strcmp(what, "maps_too")) {
    f = filter(ALL, SECCOMP_RET_KILL_PROCESS);
    MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &f) == 0);
    work(1);
  } else if (!strcmp(what, "plain_program")) {
    f = filter(PROGRAMS, SECCOMP_RET_KILL_PROCESS);
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &f) == 0);
    work(1);
  } else if (!strcmp(what, "starts_nothing")) {
    /* What is to be started is not there, and its environment has another library in the place of hugeswap's. */
    char *const none[] = {"nothing", NULL};
    setenv("LD_PRELOAD", "/nowhere/other.so", 1);
    f = filter(PROGRAMS, SECCOMP_RET_KILL_PROCESS);
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &f) == 0);
    MUST(execve("/nowhere/nothing", none, environ) == -1 && errno == ENOENT);
    touch(1);
  } else if (!strcmp(what, "plain_without_descriptors")) {
    struct rlimit none = {0, 4096};
    MUST(setrlimit(RLIMIT_NOFILE, &none) == 0);
    f = filter(PROGRAMS, SECCOMP_RET_KILL_PROCESS);
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &f) == 0);
    work(1);
  } else if (!strcmp(what, "plain_of_two")) {
    /* The other thread is under no filter; what this one may not do it is still refused. */
    MUST(pthread_create(&t, 0, other, 0) == 0);
    f = filter(PROGRAMS, SECCOMP_RET_ERRNO | EPERM);
    MUST(syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &f) == 0);
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    work(1);
    MUST(mprotect(p, PAGE, PROT_NONE) == -1 && errno == EPERM);
    MUST(madvise(p, bytes, MADV_DONTNEED) == -1 && errno == EPERM);
    MUST(mremap(p, bytes, 2 * bytes, MREMAP_MAYMOVE) == MAP_FAILED && errno == EPERM);
    verify(p, 4 * MB, 2, "what was to be dropped");
    MUST(pthread_join(t, 0) == 0);
  } else if (!strcmp(what, "plain_with_signals")) {
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval often = {{0, 3000}, {0, 3000}};
    MUST(sigaction(SIGALRM, &action, 0) == 0);
    f = filter(PROGRAMS, SECCOMP_RET_KILL_PROCESS);
    MUST(setitimer(ITIMER_REAL, &often, 0) == 0);
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &f) == 0);
    work(1);
    MUST(alarms > 10);
  } else if (!strcmp(what, "no_mappings")) {
    /* Not even mmap: what there is can be used. */
    f = filter(5, SECCOMP_RET_ERRNO | EPERM);
    MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &f) == 0);
    touch(1);
    MUST(mmap(0, MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EPERM);
    MUST(munmap(p, MB) == -1 && errno == EPERM);
    touch(2);
  } else if (!strcmp(what, "one_of_two")) {
    MUST(pthread_create(&t, 0, other, 0) == 0);
    f = filter(ALL, SECCOMP_RET_KILL_THREAD);
    MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &f) == 0);
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    work(1);
    MUST(pthread_join(t, 0) == 0);
  } else if (!strcmp(what, "for_all_threads")) {
    /* As libraries do it that do not know which threads there are. */
    f = filter(ALL, SECCOMP_RET_KILL_PROCESS);
    MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &f) == 0);
    work(1);
  } else if (!strcmp(what, "for_all_of_two")) {
    /* Managed, this fails, as it does where one of them has a filter of its own. */
    MUST(pthread_create(&t, 0, other, 0) == 0);
    f = filter(ALL, SECCOMP_RET_KILL_PROCESS);
    MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &f) > 0);
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    MUST(pthread_join(t, 0) == 0);
    work(1);
  } else if (!strcmp(what, "killed_thread")) {
    /* The only one: with it the process ends. */
    f = filter(PROGRAMS, SECCOMP_RET_KILL_THREAD);
    MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &f) == 0);
    MUST(write(1, "ok\n", 3) == 3);
    madvise(p, bytes, MADV_COLD);
    STOP("not killed");
  } else if (!strcmp(what, "asks_only")) {
    /* Whether there are filters: afterwards there is none, and all goes on as before. */
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0) == -1 && errno == EFAULT);
    MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, 0) == -1 && errno == EFAULT);
    MUST(unshare(CLONE_NEWUSER) == 0);
    work(1);
  } else if (!strcmp(what, "of_vfork_child")) {
    of_vfork_child();
    MUST(unshare(CLONE_NEWUSER) == 0);
    work(1);
  } else if (!strcmp(what, "refused")) {
    struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    f = (struct sock_fprog){1, &all};
    MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0x8000, &f) == -1 && errno == EINVAL);
    struct sock_filter wrong[2] = {all, BPF_STMT(0xffff, 0)};
    f = (struct sock_fprog){2, wrong};
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &f) == -1 && errno == EINVAL);
    MUST(unshare(CLONE_NEWUSER) == 0);
    work(1);
  } else if (!strcmp(what, "one_by_one")) {
    MUST(pthread_create(&t, 0, last, 0) == 0);
    syscall(SYS_exit, 7);
  } else {
    STOP("unknown: %s", what);
  }
  say("ok\n");
  return 0;
}
