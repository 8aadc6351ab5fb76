/* brim MIB MORE: so much that becomes half as large, of which every second page is dropped, and then as much more; all is
 * what it should be. */
#include "check.h"

#define NOISE 1900ul

static void fill_half(char *m, size_t bytes, u64 seed) {
  for (size_t at = 0; at < bytes; at += PAGE) fill(m + at, NOISE, at + seed);
}

static void verify_half(const char *page, size_t at, u64 seed, const char *what) {
  verify(page, NOISE / 8 * 8, at + seed, what);
  verify_zero(page + NOISE, PAGE - NOISE, what);
}

int main(int argc, char **argv) {
  MUST(argc == 3);
  size_t bytes = atol(argv[1]) * MB, more = atol(argv[2]) * MB;
  char *m = map_rw(bytes), *n = map_rw(more);
  fill_half(m, bytes, 1);
  for (size_t at = 0; at < bytes; at += 2 * PAGE) MUST(madvise(m + at, PAGE, MADV_DONTNEED) == 0);
  fill_half(n, more, 2);
  for (size_t at = 0; at < bytes; at += 2 * PAGE) {
    verify_zero(m + at, PAGE, "dropped");
    verify_half(m + at + PAGE, at + PAGE, 1, "kept");
  }
  for (size_t at = 0; at < more; at += PAGE) verify_half(n + at, at, 2, "more");
  say("ok\n");
  return 0;
}
