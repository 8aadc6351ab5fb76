/* Descriptors while memory is swapped: none but the program's own, and closing every number there
 * is does no harm. */
#include "check.h"
#include <dirent.h>
#include <sys/syscall.h>

/* One bit for each open descriptor; the directory's own left out. */
static u64 open_descriptors(void) {
  u64 set = 0; /* numbers from 63 on in one bit */
  DIR *d = opendir("/proc/self/fd");
  MUST(d);
  for (struct dirent *e; (e = readdir(d));) {
    int fd = atoi(e->d_name);
    if (e->d_name[0] == '.' || fd == dirfd(d)) continue;
    set |= 1ull << (fd < 63 ? fd : 63);
  }
  closedir(d);
  return set;
}

int main(void) {
  const size_t bytes = 128 * MB;
  u64 at_start = open_descriptors();
  char *p = map_rw(bytes);
  fill(p, bytes, 1);
  if (open_descriptors() != at_start) STOP("open after swapping");
  pid_t pid = fork();
  if (pid == 0) {
    if (open_descriptors() != at_start) STOP("open in the child");
    MUST(syscall(SYS_close_range, 3, ~0u, 0) == 0);
    verify(p, bytes, 1, "child");
    if (open_descriptors() != 7) STOP("open in the child at its end");
    _exit(0);
  }
  wait_ok(pid, "child");
  MUST(syscall(SYS_close_range, 3, ~0u, 0) == 0);
  for (int fd = 3; fd < 1024; fd++) close(fd);
  verify(p, bytes, 1, "after closing all");
  fill(p, bytes, 2);
  verify(p, bytes, 2, "after closing all, again");
  pid = fork();
  if (pid == 0) {
    verify(p, bytes, 2, "child after closing all");
    _exit(0);
  }
  wait_ok(pid, "child after closing all");
  say("ok\n");
  return 0;
}
