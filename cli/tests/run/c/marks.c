/* Wants to take away its marks of written pages, as a garbage collector does. */
#include "check.h"

int __open_2(const char *, int);
int __openat_2(int, const char *, int);

int main(void) {
  char own[64];
  snprintf(own, sizeof own, "/proc/%d/clear_refs", getpid());
  MUST(open(own, O_WRONLY) == -1 && errno == EACCES);
  MUST(openat(AT_FDCWD, "/proc/self/clear_refs", O_RDWR) == -1 && errno == EACCES);
  /* As libraries do that were built with _FORTIFY_SOURCE. */
  MUST(__open_2(own, O_WRONLY) == -1 && errno == EACCES);
  MUST(__openat_2(AT_FDCWD, own, O_WRONLY) == -1 && errno == EACCES);
  MUST(open("/proc/self/comm", O_WRONLY) == 3);
  puts("ok");
}
