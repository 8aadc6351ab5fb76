/* One thread asks for changes of its memory, another opens and closes descriptors: each new one has the lowest number that
   is free, and nobody else reads from it. */
#include "check.h"

static const size_t bytes = 96 * MB;
static char *p;
static int ends;

/* Nothing here opens a file. */
static void *asks(void *arg) {
  for (u64 i = 0; !__atomic_load_n(&ends, __ATOMIC_ACQUIRE); i++) {
    size_t len = (i % 5 + 1) * MB;
    char *q = map_rw(len);
    fill(q, PAGE, i);
    MUST(mlock(q, PAGE) == 0 && munlock(q, PAGE) == 0);
    MUST(mprotect(q + MB / 2, PAGE, PROT_NONE) == 0 && mprotect(q, len, PROT_READ | PROT_WRITE) == 0);
    char *moved = mremap(q, len, 2 * len, MREMAP_MAYMOVE);
    MUST(moved != MAP_FAILED);
    verify(moved, PAGE, i, "moved");
    MUST(munmap(moved + PAGE, PAGE) == 0);
    /* A hole ends it. */
    MUST(mprotect(moved, 2 * len, PROT_READ) == -1 && errno == ENOMEM);
    MUST(madvise(moved, 2 * len, MADV_DONTNEED) == -1 && errno == ENOMEM);
    MUST(munmap(moved, 2 * len) == 0);
  }
  return arg;
}

int main(void) {
  p = map_rw(bytes);
  fill(p, bytes, 1);
  int pipes[2];
  pthread_t t;
  MUST(pipe(pipes) == 0);
  int lowest = dup(0);
  MUST(lowest >= 0);
  MUST(pthread_create(&t, 0, asks, 0) == 0);
  for (int i = 0; i < 100000; i++) {
    MUST(close(lowest) == 0);
    for (int k = 0; k < i % 64; k++) __asm__ volatile("pause");
    int got = i % 2 ? dup(pipes[0]) : dup2(pipes[0], lowest);
    if (got != lowest) STOP("%d in place of %d", got, lowest);
    char c = i;
    MUST(write(pipes[1], &c, 1) == 1);
    c = ~c;
    MUST(read(lowest, &c, 1) == 1 && c == (char)i);
  }
  __atomic_store_n(&ends, 1, __ATOMIC_RELEASE);
  MUST(pthread_join(t, 0) == 0);
  verify(p, bytes, 1, "all else");
  say("ok\n");
  return 0;
}
