/* A mount namespace may be entered only by a thread whose root and working directory are its own. */
#include "check.h"
#include <sched.h>
#include <sys/mount.h>

int main(int argc, char **argv) {
  MUST(argc == 2);
  const size_t n = 96 * MB;
  char *p = map_rw(n);
  fill(p, n, 1);
  int now = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
  MUST(now >= 0 && setns(now, CLONE_NEWNS) == 0);
  verify(p, n, 1, "in the same namespace");
  MUST(unshare(CLONE_NEWNS) == 0);
  /* Nobody is left in the directory that the program has left. */
  MUST(mount("none", "/", 0, MS_REC | MS_PRIVATE, 0) == 0);
  MUST(mount("none", argv[1], "tmpfs", 0, 0) == 0 && chdir(argv[1]) == 0);
  pid_t pid = fork();
  if (pid == 0) {
    MUST(chdir("/") == 0);
    verify(p, n, 1, "child");
    _exit(0);
  }
  wait_ok(pid, "child");
  MUST(chdir("/") == 0 && umount(argv[1]) == 0);
  MUST(setns(now, CLONE_NEWNS) == 0);
  verify(p, n, 1, "back");
  say("ok\n");
  return 0;
}
