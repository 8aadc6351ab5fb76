/* walk MEGABYTES ROUNDS CHANGES: reads all of its memory from begin to end, several rounds, and in
 * each changes so many pages of every 2 MiB. */
#include "check.h"
#include <time.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
  MUST(argc == 4);
  size_t pages = strtoul(argv[1], 0, 0) * MB / PAGE;
  u64 rounds = strtoul(argv[2], 0, 0), changes = strtoul(argv[3], 0, 0);
  char *p = map_rw(pages * PAGE);
  u64 *seed = calloc(pages, 8);
  for (size_t i = 0; i < pages; i++) fill(p + i * PAGE, PAGE, seed[i] = i + 1);
  double start = now();
  for (u64 round = 1; round <= rounds; round++) {
    for (size_t i = 0; i < pages; i++) {
      verify(p + i * PAGE, PAGE, seed[i], "page");
      for (u64 k = 0; k < changes; k++)
        if (i % 512 == mix(round * 512 + k + i / 512) % 512) fill(p + i * PAGE, PAGE, seed[i] = round * pages + i);
    }
  }
  printf("%.3f GB/s\nok\n", rounds * pages * PAGE / 1e9 / (now() - start));
  return 0;
}
