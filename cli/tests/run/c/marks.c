/* Wants to take away its marks of written pages, as a garbage collector does. */
#include "check.h"

int main(void) {
  char own[64];
  snprintf(own, sizeof own, "/proc/%d/clear_refs", getpid());
  MUST(open(own, O_WRONLY) == -1 && errno == EACCES);
  MUST(openat(AT_FDCWD, "/proc/self/clear_refs", O_RDWR) == -1 && errno == EACCES);
  MUST(open("/proc/self/comm", O_WRONLY) == 3);
  puts("ok");
}
