/* threads MEGABYTES SECONDS: eight threads share every page, each with words of its own. */
#include "check.h"
#include <time.h>

enum { THREADS = 8, OWN = PAGE / 8 / THREADS };
static char *p;
static size_t pages;
static unsigned char *version;
static time_t end;

static u64 value(size_t page, int t, unsigned v, int k) { return v ? mix(page * 64 + t * 8 + v * 1000003 + k) : 0; }

static void *work(void *arg) {
  int t = (int)(intptr_t)arg;
  u64 rng = t + 1, n = 0;
  size_t at = 0;
  int walk = 0;
  while (n++ % 256 || time(0) < end) {
    /* Jumps, and walks of a few hundred pages. */
    if (walk == 0) at = next(&rng) % pages, walk = next(&rng) % 16 ? 1 : 700;
    walk--;
    at = (at + 1) % pages;
    u64 *w = (u64 *)(p + at * PAGE) + t * OWN;
    unsigned char *v = &version[at * THREADS + t];
    for (int k = 0; k < OWN; k++)
      if (w[k] != value(at, t, *v, k)) STOP("thread %d: page %zu word %d of version %d is %llx", t, at, k, *v, (unsigned long long)w[k]);
    if (next(&rng) % 2) {
      ++*v;
      for (int k = 0; k < OWN; k++) w[k] = value(at, t, *v, k);
    }
  }
  return 0;
}

int main(int argc, char **argv) {
  MUST(argc == 3);
  pages = strtoul(argv[1], 0, 0) * (MB / PAGE);
  end = time(0) + atoi(argv[2]);
  p = map_rw(pages * PAGE);
  version = calloc(pages, THREADS);
  for (size_t i = 0; i < pages; i++)
    for (int t = 0; t < THREADS; t++) {
      version[i * THREADS + t] = 1;
      for (int k = 0; k < OWN; k++) ((u64 *)(p + i * PAGE))[t * OWN + k] = value(i, t, 1, k);
    }
  pthread_t th[THREADS];
  for (int t = 0; t < THREADS; t++) MUST(pthread_create(&th[t], 0, work, (void *)(intptr_t)t) == 0);
  for (int t = 0; t < THREADS; t++) pthread_join(th[t], 0);
  for (size_t i = 0; i < pages; i++)
    for (int t = 0; t < THREADS; t++)
      for (int k = 0; k < OWN; k++)
        if (((u64 *)(p + i * PAGE))[t * OWN + k] != value(i, t, version[i * THREADS + t], k)) STOP("page %zu at the end", i);
  say("ok\n");
  return 0;
}
