/* hog MEGABYTES [wait]: writes memory and verifies it twice; with `wait` it says "ready" after
 * writing and goes on verifying until it is killed. */
#include "check.h"

int main(int argc, char **argv) {
  size_t bytes = strtoul(argv[1], 0, 0) * MB;
  char *p = map_rw(bytes);
  fill(p, bytes, 1);
  if (argc > 2) {
    say("ready\n");
    for (;;) verify(p, bytes, 1, "hog");
  }
  verify(p, bytes, 1, "first");
  verify(p, bytes, 1, "second");
  say("ok\n");
  return 0;
}
