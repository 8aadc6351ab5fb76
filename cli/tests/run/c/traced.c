/* Follows all tasks of a child, which runs what is said, and says how many it was given. */
#include "check.h"
#include <sys/ptrace.h>

int main(int argc, char **argv) {
  if (argc < 2) {
    /* The child: another process, and more memory than fits. */
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    wait_ok(pid, "its child");
    char *p = map_rw(80 * MB);
    fill(p, 80 * MB, 1);
    verify(p, 80 * MB, 1, "the child's");
    return 0;
  }
  pid_t pid = fork();
  if (pid == 0) {
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    raise(SIGSTOP);
    execv(argv[1], argv + 1);
    _exit(1);
  }
  int status, forks = 0, clones = 0, ends = 0;
  MUST(waitpid(pid, &status, 0) == pid);
  MUST(ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACEFORK | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL) == 0);
  MUST(ptrace(PTRACE_CONT, pid, 0, 0) == 0);
  for (pid_t one; (one = waitpid(-1, &status, __WALL)) > 0;) {
    if (!WIFSTOPPED(status)) {
      MUST(status == 0);
      ends++;
      continue;
    }
    int event = status >> 16, signal = WSTOPSIG(status);
    forks += event == PTRACE_EVENT_FORK;
    clones += event == PTRACE_EVENT_CLONE;
    ptrace(PTRACE_CONT, one, 0, event || signal == SIGSTOP || signal == SIGTRAP ? 0 : signal);
  }
  char line[99];
  snprintf(line, sizeof line, "%d forks, %d clones, %d ends\n", forks, clones, ends);
  say(line);
}
