/* full_error: nobody reads standard error for now, and it is full. full_error writes: a thread writes there, from memory that
   is in swap. In both cases swap fills up, and there is something to be said of it. */
#include "check.h"

static const size_t bytes = 96 * MB;
static char *p;
static int ends;

static void *writes(void *arg) {
  for (size_t at = 0; !__atomic_load_n(&ends, __ATOMIC_ACQUIRE); at = (at + 8 * MB) % bytes)
    MUST(pwrite(2, p + at, 8 * MB, 0) > 0);
  return arg;
}

int main(int argc, char **argv) {
  (void)argv;
  pthread_t t;
  if (argc == 1) {
    static char text[PAGE];
    memset(text, 'x', sizeof text);
    int flags = fcntl(2, F_GETFL);
    MUST(fcntl(2, F_SETFL, flags | O_NONBLOCK) == 0);
    for (size_t n = sizeof text; n; n /= 2)
      while (write(2, text, n) > 0) {
      }
    MUST(fcntl(2, F_SETFL, flags) == 0);
  }
  p = map_rw(bytes);
  fill(p, bytes, 1);
  if (argc > 1) MUST(pthread_create(&t, 0, writes, 0) == 0);
  for (int i = 0; i < 6; i++) {
    char *q = map_rw(16 * MB);
    fill(q, 16 * MB, i);
    verify(q, 16 * MB, i, "more than there is");
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    wait_ok(pid, "a child");
  }
  __atomic_store_n(&ends, 1, __ATOMIC_RELEASE);
  if (argc > 1) MUST(pthread_join(t, 0) == 0);
  verify(p, bytes, 1, "all else");
  say("ok\n");
  return 0;
}
