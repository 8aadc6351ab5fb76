/* zeros MEGABYTES ROUNDS SEED [PART]: pages that are zero and pages that are not, changed at random
 * and compared with what they should be, also by children and after mremap. PART is "zero": all is
 * written, and then all is cleared. */
#include "check.h"

static char *p;
static size_t pages;
/* What a page was filled with; 0 for zeros. */
static u64 *want;
static u64 rng;

static u64 rnd(u64 n) { return next(&rng) % n; }

static void write_page(size_t i, u64 seed) {
  want[i] = seed;
  if (seed)
    fill(p + i * PAGE, PAGE, seed);
  else
    memset(p + i * PAGE, 0, PAGE);
}

static void check_page(size_t i) {
  if (want[i])
    verify(p + i * PAGE, PAGE, want[i], "page");
  else
    verify_zero(p + i * PAGE, PAGE, "page of zeros");
}

static void check_all(void) {
  for (size_t i = 0; i < pages; i++) check_page(i);
}

/* A run of pages: short ones, long ones, whole ranges. */
static void run(size_t *from, size_t *to) {
  size_t n = 1 + rnd(rnd(2) ? 5 : rnd(2) ? 100 : 2000);
  *from = rnd(pages);
  if (rnd(4) == 0) *from &= ~511ul, n = 512;
  *to = *from + n < pages ? *from + n : pages;
}

static void change(void) {
  size_t from, to;
  run(&from, &to);
  u64 what = rnd(5);
  if (what == 0) {
    MUST(madvise(p + from * PAGE, (to - from) * PAGE, MADV_DONTNEED) == 0);
    for (size_t i = from; i < to; i++) want[i] = 0;
    return;
  }
  /* Zeros, data, both mixed, or one word behind zeros. */
  for (size_t i = from; i < to; i++) {
    if (what == 4) {
      write_page(i, 0);
      if (rnd(2)) continue;
      ((u64 *)(p + i * PAGE))[rnd(512)] = 1;
      write_page(i, 1 + rnd(1 << 20));
    } else {
      write_page(i, what == 1 || (what == 3 && rnd(3)) ? 0 : 1 + rnd(1 << 20));
    }
  }
}

int main(int argc, char **argv) {
  MUST(argc >= 4);
  pages = strtoul(argv[1], 0, 0) * MB / PAGE;
  rng = strtoul(argv[3], 0, 0);
  p = map_rw(pages * PAGE);
  want = mmap(0, pages * 8, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  MUST(want != MAP_FAILED);
  if (argc > 4) {
    for (size_t i = 0; i < pages; i++) write_page(i, i + 1);
    check_all();
    for (size_t i = 0; i < pages; i++) write_page(i, 0);
    say("cleared\n");
    for (int i = 0; i < 3; i++) check_all(), usleep(700000);
    say("ok\n");
    return 0;
  }
  for (u64 round = strtoul(argv[2], 0, 0); round; round--) {
    for (int i = 0; i < 100; i++) change();
    size_t from, to;
    run(&from, &to);
    for (size_t i = from; i < to; i++) check_page(i);
    if (round % 4 == 0) check_all();
    if (round % 5 == 0) {
      pid_t pid = fork();
      MUST(pid >= 0);
      if (pid == 0) {
        /* The expectation is shared with the parent: one's own is needed from here on. */
        u64 *own = mmap(0, pages * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(own != MAP_FAILED);
        memcpy(own, want, pages * 8);
        want = own;
        rng = round;
        check_all();
        for (int i = 0; i < 100; i++) change();
        check_all();
        _exit(0);
      }
      /* Waits, since it may not change what the child copies; checks, as that swaps. */
      for (size_t i = 0; i < pages; i += 7) check_page(i);
      wait_ok(pid, "child");
    }
    if (round % 3 == 0) {
      char *q = mremap(p, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, map_rw(pages * PAGE));
      MUST(q != MAP_FAILED);
      p = q;
    }
  }
  check_all();
  say("ok\n");
  return 0;
}
