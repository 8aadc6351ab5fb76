/* columns MEGABYTES STEP ROUNDS VALUE: goes through one page of each STEP, again and again: reads it, and writes VALUE
 * to a place of its own in each round. */
#include "check.h"

int main(int argc, char **argv) {
  MUST(argc == 5);
  size_t pages = strtoul(argv[1], 0, 0) << 8, step = strtoul(argv[2], 0, 0);
  size_t rounds = strtoul(argv[3], 0, 0);
  char value = strtoul(argv[4], 0, 0);
  MUST(rounds <= PAGE / 64);
  char *p = map_rw(pages * PAGE);
  for (size_t round = 0; round < rounds; round++)
    for (size_t i = 0; i < pages; i += step) {
      for (size_t before = 0; before < round; before++) MUST(p[i * PAGE + before * 64] == value);
      memset(p + i * PAGE + round * 64, value, 64);
    }
  /* The others are as they were. */
  for (size_t i = 0; i < pages; i++)
    if (i % step && i % 7 == 0) verify_zero(p + i * PAGE, PAGE, "untouched");
  puts("ok");
  return 0;
}
