/* Becomes another program with the deadlines of SCHED_DEADLINE, if it may have them. */
#include "check.h"
#include <sys/syscall.h>

int main(int n, char **words) {
  struct {
    uint32_t size, policy;
    u64 flags;
    int32_t nice;
    uint32_t priority;
    u64 runtime, deadline, period;
  } attr = {sizeof attr, 6, 0, 0, 0, 5000000, 10000000, 10000000};
  MUST(n > 1);
  (void)!syscall(SYS_sched_setattr, 0, &attr, 0);
  execvp(words[1], words + 1);
  return 9;
}
