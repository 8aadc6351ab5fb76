/* Pages that are touched while their range is being written: writing ROUNDS read|write. */
#include "check.h"

#define RANGE (2 * MB)
#define RANGES 24
#define PAGES (RANGE / PAGE)

static char *p;
/* How often each page was changed. */
static u64 changes[RANGES * PAGES];

static int resident(char *page) {
  unsigned char there;
  MUST(mincore(page, PAGE, &there) == 0);
  return there & 1;
}

static void check(size_t i) {
  const u64 *w = (const u64 *)(p + i * PAGE);
  if (w[0] != changes[i]) STOP("page %zu: %llu changes, not %llu", i, (unsigned long long)w[0], (unsigned long long)changes[i]);
  for (size_t k = 1; k < PAGE / 8; k++)
    if (w[k] != mix((i << 9) + k)) STOP("page %zu: wrong at %zu", i, k * 8);
}

static void change(size_t i) { *(u64 *)(p + i * PAGE) = ++changes[i]; }

/* The write of a range begins soon after it was asked for; some of its pages are touched meanwhile, here
   and there or one after the other. */
static void touch(size_t range, u64 *state, int writes) {
  size_t first = range * PAGES, at = next(state) % PAGES, step = next(state) % 2;
  MUST(madvise(p + first * PAGE, RANGE, MADV_PAGEOUT) == 0);
  for (int i = 0; i < 10000 && resident(p + (first + at) * PAGE); i++);
  for (int i = 0; i < 12; i++) {
    check(first + at);
    if (writes && i % 3 == 0) change(first + at);
    at = (step ? at + 1 : next(state)) % PAGES;
  }
}

int main(int argc, char **argv) {
  MUST(argc == 3);
  int writes = !strcmp(argv[2], "write");
  u64 state = 5;
  p = map_rw(RANGES * RANGE + RANGE);
  p = (char *)(((u64)p + RANGE - 1) / RANGE * RANGE);
  for (size_t i = 0; i < RANGES * PAGES; i++)
    for (size_t k = 1; k < PAGE / 8; k++) ((u64 *)(p + i * PAGE))[k] = mix((i << 9) + k);
  for (int round = 0; round < atoi(argv[1]); round++) {
    size_t range = next(&state) % RANGES;
    touch(range, &state, writes);
    if (round % 3 == 0)
      for (size_t i = 0; i < PAGES; i++) check(range * PAGES + i);
  }
  for (size_t i = 0; i < RANGES * PAGES; i++) check(i);
  say("ok\n");
  return 0;
}
