/* Forks where the supervisor can't be found by name. */
#include "check.h"
#include <sched.h>
#include <linux/landlock.h>
#include <sys/prctl.h>
#include <sys/mount.h>
#include <sys/syscall.h>

static char *p;
static const size_t n = 96 * MB;

/* Children, to that depth, have what their parents have. */
static void children_work(const char *what, int depth) {
  verify(p, n, 1, what);
  pid_t pid = fork();
  if (pid == 0) {
    verify(p, n, 1, what);
    fill(p, n, 2);
    verify(p, n, 2, what);
    fill(p, n, 1);
    if (depth) children_work(what, depth - 1);
    _exit(0);
  }
  wait_ok(pid, what);
  verify(p, n, 1, what);
}

static void user_and_net(void) {
  MUST(unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0);
  children_work("user and net", 1);
}

static void net_without_proc(void) {
  MUST(unshare(CLONE_NEWNS | CLONE_NEWNET) == 0);
  MUST(mount("none", "/", 0, MS_REC | MS_PRIVATE, 0) == 0 && mount("none", "/proc", "tmpfs", 0, 0) == 0);
  children_work("net without /proc", 1);
}

/* As sandboxes do it. */
static void by_clone(void) {
  u64 args[8] = {CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWNS, 0, 0, 0, SIGCHLD};
  pid_t pid = syscall(SYS_clone3, args, sizeof args);
  if (pid == 0) {
    children_work("clone", 1);
    _exit(0);
  }
  MUST(pid > 0);
  wait_ok(pid, "clone");
  /* One table of descriptors for both. */
  args[0] = CLONE_NEWUSER | CLONE_NEWNET | CLONE_FILES;
  pid = syscall(SYS_clone3, args, sizeof args);
  if (pid == 0) {
    verify(p, n, 1, "clone with our files");
    _exit(0);
  }
  MUST(pid > 0);
  wait_ok(pid, "clone with our files");
}

/* No abstract sockets from outside (Linux 6.12). */
static void landlock(void) {
  struct { u64 fs, net, scoped; } rules = {0, 0, 1};
  int domain = syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
  if (domain < 0) return;
  MUST(unshare(CLONE_NEWNS) == 0 && mount("none", "/", 0, MS_REC | MS_PRIVATE, 0) == 0);
  MUST(mount("none", "/proc", "tmpfs", 0, 0) == 0);
  MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  MUST(syscall(SYS_landlock_restrict_self, domain, 0) == 0);
  children_work("landlock", 1);
}

/* Another thread's table is another. */
static void *forks(void *what) {
  MUST(unshare(CLONE_FILES) == 0);
  for (int fd = 3; fd < 64; fd++) close(fd);
  children_work(what, 0);
  return 0;
}
static void own_files(void) {
  MUST(unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0);
  pthread_t t;
  MUST(pthread_create(&t, 0, forks, "a thread's own files") == 0 && pthread_join(t, 0) == 0);
}

int main(void) {
  static const struct test_case all[] = {
    {"user_and_net", user_and_net}, {"net_without_proc", net_without_proc}, {"by_clone", by_clone},
    {"landlock", landlock}, {"own_files", own_files},
  };
  p = map_rw(n);
  fill(p, n, 1);
  each_in_a_child(all, sizeof all / sizeof *all);
  say("ok\n");
  return 0;
}
