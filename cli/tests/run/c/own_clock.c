/* What a user preloads to have another time: it needs memory to tell it, and reads a file. */
#include "check.h"
#include <dlfcn.h>
#include <time.h>

static __thread char *last;

int clock_gettime(clockid_t clock, struct timespec *to) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  free(last);
  last = malloc(300000);
  memset(last, 1, 300000);
  FILE *f = fopen("/proc/self/comm", "r");
  if (f) fclose(f);
  int said = real(clock, to);
  if (clock != CLOCK_MONOTONIC) to->tv_sec -= 400000000;
  return said;
}
