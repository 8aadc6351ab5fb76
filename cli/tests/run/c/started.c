/* How the program was started: what is closed, blocked and ignored; and that it stays so. */
#include "check.h"

int main(void) {
  const size_t n = 96 * MB;
  char *p = map_rw(n);
  fill(p, n, 1);
  pid_t pid = fork();
  if (pid == 0) {
    verify(p, n, 1, "child");
    for (int fd = 0; fd < 3; fd++) MUST(fcntl(fd, F_GETFD) == -1 || fcntl(fd, F_GETFL) != -1);
    _exit(0);
  }
  int status = 0;
  /* Where ended children are not waited for there is nothing to be had. */
  MUST(waitpid(pid, &status, 0) == pid ? status == 0 : errno == ECHILD);
  int open_ones = 0;
  for (int fd = 0; fd < 3; fd++) open_ones |= (fcntl(fd, F_GETFD) != -1) << fd;
  sigset_t mask;
  struct sigaction pipe, child;
  MUST(sigprocmask(SIG_BLOCK, 0, &mask) == 0 && sigaction(SIGPIPE, 0, &pipe) == 0 && sigaction(SIGCHLD, 0, &child) == 0);
  return open_ones | sigismember(&mask, SIGUSR1) << 3 | sigismember(&mask, SIGINT) << 4 | (pipe.sa_handler == SIG_IGN) << 5 |
         (child.sa_handler == SIG_IGN) << 6;
}
