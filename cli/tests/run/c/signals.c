/* Says each signal that comes, what it came with and from whom, until SIGTERM. */
#include "check.h"

int main(void) {
  sigset_t all;
  sigfillset(&all);
  MUST(sigprocmask(SIG_BLOCK, &all, 0) == 0);
  say("ready\n");
  for (;;) {
    siginfo_t info;
    int signal = sigwaitinfo(&all, &info);
    if (signal < 0) continue;
    char line[99];
    snprintf(line, sizeof line, info.si_code == SI_QUEUE ? "%d: %d from %d\n" : "%d\n", signal, info.si_value.sival_int, info.si_pid);
    say(line);
    if (signal == SIGTERM) return 0;
  }
}
