/* User and time namespaces are entered by processes of one thread only. */
#include "check.h"
#include <dirent.h>
#include <sched.h>
#include <sys/syscall.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif
static char *p;
static const size_t n = 96 * MB;

static int open_files(void) {
  int count = 0;
  DIR *d = opendir("/proc/self/fd");
  MUST(d);
  while (readdir(d)) count++;
  closedir(d);
  return count;
}

static int enter(const char *path, int kind) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  MUST(fd >= 0);
  int r = setns(fd, kind), e = errno;
  close(fd);
  errno = e;
  return r;
}

static void user(void) {
  int files = open_files();
  MUST(unshare(CLONE_NEWUSER) == 0);
  MUST(open_files() == files);
  works(p, n, "user namespace");
}

static void all_kinds(void) {
  MUST(unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC) == 0);
  verify(p, n, 1, "several namespaces");
  pid_t pid = fork();
  if (pid == 0) {
    MUST(getpid() == 1);
    works(p, n, "first of its namespace");
    _exit(0);
  }
  /* Without its first process there are no more in that namespace. */
  wait_ok(pid, "several namespaces");
  verify(p, n, 1, "several namespaces");
}

/* With the /proc of another pid namespace, which knows our threads by other numbers. */
static void first(void) {
  u64 args[8] = {CLONE_NEWPID, 0, 0, 0, SIGCHLD};
  pid_t pid = syscall(SYS_clone3, args, sizeof args);
  if (pid == 0) {
    MUST(getpid() == 1 && unshare(CLONE_NEWUSER) == 0);
    works(p, n, "first of a pid namespace");
    _exit(0);
  }
  wait_ok(pid, "first of a pid namespace");
}

/* No thread can be made any more: refused, and nothing is lost. */
static void too_late(void) {
  MUST(unshare(CLONE_NEWPID) == 0);
  int made = unshare(CLONE_NEWUSER);
  MUST(made == 0 || errno == EINVAL);
  works(p, n, "after a pid namespace");
}

static void its_own_clock(void) {
  MUST(unshare(CLONE_NEWUSER) == 0 && unshare(CLONE_NEWTIME) == 0);
  int fd = open("/proc/self/timens_offsets", O_WRONLY);
  const char back[] = "monotonic -1 0\n";
  MUST(fd >= 0 && write(fd, back, sizeof back - 1) == sizeof back - 1 && close(fd) == 0);
  for (int i = 0; i < 5; i++) {
    MUST(enter("/proc/self/ns/time_for_children", i & 1 ? CLONE_NEWTIME : 0) == 0);
    works(p, n, "time namespace");
  }
}

static void anothers(void) {
  int to[2], from[2];
  char c;
  MUST(pipe(to) == 0 && pipe(from) == 0);
  pid_t pid = fork();
  if (pid == 0) {
    MUST(unshare(CLONE_NEWUSER) == 0 && write(from[1], "x", 1) == 1);
    close(to[1]);
    MUST(read(to[0], &c, 1) == 0);
    verify(p, n, 1, "who is entered");
    _exit(0);
  }
  MUST(read(from[0], &c, 1) == 1);
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
  MUST(enter(path, CLONE_NEWUSER) == 0);
  works(p, n, "another's user namespace");
  close(to[1]);
  wait_ok(pid, "another's user namespace");
}

static void by_number(void) {
  MUST(syscall(SYS_unshare, CLONE_NEWUSER) == 0);
  MUST(syscall(SYS_unshare, CLONE_VM | CLONE_SIGHAND | CLONE_THREAD) == 0);
  works(p, n, "by number");
}

static void *wait_for(void *fd) {
  char c;
  MUST(read(*(int *)fd, &c, 1) == 0);
  return 0;
}

static void two_threads(void) {
  int pipes[2];
  pthread_t t;
  MUST(pipe(pipes) == 0 && pthread_create(&t, 0, wait_for, &pipes[0]) == 0);
  MUST(unshare(CLONE_NEWUSER) == -1 && errno == EINVAL);
  MUST(unshare(1) == -1 && errno == EINVAL);
  works(p, n, "two threads");
  close(pipes[1]);
  MUST(pthread_join(t, 0) == 0);
  /* It counts until the kernel is done with it. */
  for (int i = 0; unshare(CLONE_NEWUSER) != 0; i++) {
    MUST(errno == EINVAL && i < 1000);
    usleep(10000);
  }
  works(p, n, "one thread again");
}

int main(void) {
  static const struct test_case all[] = {
    {"user", user}, {"all_kinds", all_kinds}, {"first", first}, {"too_late", too_late}, {"its_own_clock", its_own_clock},
    {"anothers", anothers}, {"by_number", by_number}, {"two_threads", two_threads},
  };
  p = map_rw(n);
  fill(p, n, 1);
  each_in_a_child(all, sizeof all / sizeof *all);
  user();
  say("ok\n");
  return 0;
}
