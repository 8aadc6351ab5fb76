/* compressed MIB NOISE: memory that compresses, but for each NOISEth page, touched at random, locked in
 * part, forked, moved, dropped in part and walked through; it must always be what it should be. */
#include "check.h"

static size_t pages, noise;

static u64 word(size_t page, u64 change, size_t w) {
  u64 x = (u64)page << 32 | change << 16 | w;
  if (noise == 0 || page % noise) return x;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

/* Of page `page` all words are right; `change` of it. */
static void check_page(const char *base, size_t page, u64 change, const char *when) {
  const u64 *p = (const u64 *)(base + page * PAGE);
  for (size_t w = 0; w < PAGE / 8; w++)
    if (p[w] != word(page, change, w))
      STOP("%s: word %zu of page %zu is %lx, and should be %lx", when, w, page, p[w], word(page, change, w));
}

static void write_page(char *base, size_t page, u64 change) {
  u64 *p = (u64 *)(base + page * PAGE);
  for (size_t w = 0; w < PAGE / 8; w++) p[w] = word(page, change, w);
}

int main(int argc, char **argv) {
  MUST(argc == 3);
  size_t bytes = atol(argv[1]) * MB;
  noise = atol(argv[2]);
  pages = bytes / PAGE;
  unsigned char *change = calloc(pages, 1);
  char *m = map_rw(bytes);
  for (size_t i = 0; i < pages; i++) write_page(m, i, 0);
  u64 state = 7;
  for (int i = 0; i < 40000; i++) {
    size_t page = next(&state) % pages;
    check_page(m, page, change[page], "jumps");
    if (i % 3 == 0) write_page(m, page, ++change[page]);
  }
  /* What is locked is there, whatever else is touched. */
  static unsigned char core[4 * MB / PAGE];
  MUST(mlock(m, 4 * MB) == 0);
  for (int i = 0; i < 20000; i++) {
    size_t page = next(&state) % pages;
    check_page(m, page, change[page], "locked");
  }
  MUST(mincore(m, 4 * MB, core) == 0);
  for (size_t i = 0; i < sizeof core; i++)
    if (!(core[i] & 1)) STOP("page %zu is locked and not there", i);
  MUST(munlock(m, 4 * MB) == 0);
  for (int round = 0; round < 2; round++) {
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
      for (size_t i = 0; i < pages; i += 3) {
        size_t page = next(&state) % pages;
        check_page(m, page, change[page], "child");
        write_page(m, page, ++change[page]);
      }
      for (size_t i = 0; i < pages; i++) check_page(m, i, change[i], "child's walk");
      _exit(0);
    }
    for (size_t i = 0; i < pages; i += 3) {
      size_t page = next(&state) % pages;
      check_page(m, page, change[page], "parent");
      write_page(m, page, ++change[page]);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
  }
  /* By a number of pages that is odd: ranges do not fall on ranges. */
  char *there = map_rw(bytes + MB);
  char *at = there + 13 * PAGE;
  MUST(mremap(m, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at);
  for (size_t i = 0; i < 20000; i++) {
    size_t page = next(&state) % pages;
    check_page(at, page, change[page], "moved");
  }
  for (size_t i = 0; i < pages; i += 5) MUST(madvise(at + i * PAGE, PAGE, MADV_DONTNEED) == 0);
  for (size_t i = 0; i < pages; i++) {
    if (i % 5) {
      check_page(at, i, change[i], "last walk");
      continue;
    }
    for (size_t w = 0; w < PAGE; w++)
      if (at[i * PAGE + w]) STOP("page %zu was dropped and is not zero", i);
  }
  say("ok\n");
  return 0;
}
