/* Short programs that hugeswap is not in: by vfork, fork and a descriptor. And calls that fail: nobody is to be told
 * of what did not come about. */
#include "check.h"

extern char **environ;
static char *nothing[] = {NULL};

static int run(int how) {
  char *argv[] = {"true", NULL};
  int file = open("/bin/true", O_RDONLY), status;
  pid_t pid = how == 0 ? vfork() : fork();
  MUST(file >= 0 && pid >= 0);
  if (pid == 0) {
    if (how == 2)
      fexecve(file, argv, nothing);
    else
      execve("/bin/true", argv, nothing);
    _exit(98);
  }
  close(file);
  MUST(waitpid(pid, &status, 0) == pid);
  return status;
}

int main(int argc, char **argv) {
  if (argc > 2) {
    /* It becomes another program when it has used much memory. */
    fill(map_rw(160 * MB), 160 * MB, 1);
    execv(argv[2], argv + 2);
    STOP("%s: %s", argv[2], strerror(errno));
  }
  if (argc > 1) {
    for (int how = 0; how < 3; how++) MUST(run(how) == 0);
  } else {
    /* Larger than any argument may be. */
    char *big = malloc(MB);
    char *too_big[] = {"true", big, NULL};
    memset(big, 'x', MB - 1);
    big[MB - 1] = 0;
    MUST(execve("/bin/true", too_big, nothing) == -1 && errno == E2BIG);
    usleep(700000);
    MUST(execve("/bin/true", too_big, nothing) == -1 && errno == E2BIG);
    MUST(execve("/nowhere", argv, nothing) == -1 && errno == ENOENT);
    MUST(execve("/etc/passwd", argv, nothing) == -1 && errno == EACCES);
    MUST(execve("/tmp", argv, nothing) == -1 && errno == EACCES);
    MUST(execve((char *)16, argv, nothing) == -1 && errno == EFAULT);
    MUST(execve("/bin/true", argv, (char **)16) == -1 && errno == EFAULT);
    MUST(fexecve(-1, argv, environ) == -1 && errno == EINVAL);
  }
  puts("ok");
  return 0;
}
