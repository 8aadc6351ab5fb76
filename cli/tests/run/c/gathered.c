/* gathered MEGABYTES JUMPS ROUNDS: writes pages here and there, and then walks through all of its memory
 * and compares every word, several rounds. */
#include "check.h"

int main(int argc, char **argv) {
  MUST(argc == 4);
  size_t pages = strtoul(argv[1], 0, 0) * MB / PAGE;
  u64 jumps = strtoul(argv[2], 0, 0), rounds = strtoul(argv[3], 0, 0), state = 7;
  char *p = map_rw(pages * PAGE);
  u64 *seed = calloc(pages, 8);
  for (size_t i = 0; i < pages; i++) fill(p + i * PAGE, PAGE, seed[i] = i + 1);
  for (u64 round = 1; round <= rounds; round++) {
    for (u64 jump = 0; jump < jumps; jump++) {
      size_t i = next(&state) % pages;
      verify(p + i * PAGE, PAGE, seed[i], "a page somewhere");
      fill(p + i * PAGE, PAGE, seed[i] = round << 32 | jump);
    }
    for (size_t i = 0; i < pages; i++) {
      verify(p + i * PAGE, PAGE, seed[i], "a page of the walk");
      fill(p + i * PAGE, PAGE, ++seed[i]);
    }
  }
  say("ok\n");
  return 0;
}
