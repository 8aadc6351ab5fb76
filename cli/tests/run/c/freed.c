/* Memory that is advised free (MADV_FREE) and used again in part, while another thread writes beside
 * it; then more memory is needed than there is beside it. What was written after the advice is there;
 * the rest is as it was, or zeros.
 *
 *     freed MEGABYTES MORE */
#include "check.h"

static char *p;
static size_t bytes;
static volatile int over;

/* Writes pages of its own, which are never advised free, between those that are. */
static void *write_beside(void *arg) {
  (void)arg;
  for (u64 round = 1; !over || round < 4; round++)
    for (size_t at = bytes - 2 * MB; at < bytes; at += 2 * PAGE) {
      fill(p + at, PAGE, at + round);
      verify(p + at, PAGE, at + round, "a page beside");
    }
  return 0;
}

/* As it was filled at first, or zeros, but for the first `words`. */
static void verify_freed(size_t at, size_t words, const char *what) {
  u64 *w = (u64 *)(p + at);
  int zeros = w[PAGE / 8 - 1] == 0;
  for (size_t i = words; i < PAGE / 8; i++)
    if (w[i] != (zeros ? 0 : mix(at + i * 8)))
      STOP("%s at %zu: word %zu is %llx", what, at, i, (unsigned long long)w[i]);
}

int main(int argc, char **argv) {
  pthread_t thread;
  (void)argc;
  bytes = atol(argv[1]) * MB;
  p = map_rw(bytes);
  fill(p, bytes, 0);
  MUST(pthread_create(&thread, 0, write_beside, 0) == 0);
  /* All but the last, and of these every other page, a page at a time, again and again. */
  MUST(madvise(p, bytes - 2 * MB, MADV_FREE) == 0);
  for (int round = 0; round < 20; round++)
    for (size_t at = bytes - 2 * MB + PAGE; at < bytes; at += 2 * PAGE)
      MUST(madvise(p + at, PAGE, MADV_FREE) == 0);
  over = 1;
  MUST(pthread_join(thread, 0) == 0);
  /* A megabyte is used again: whole pages, and a word of a page. */
  size_t used = bytes - 4 * MB;
  for (size_t at = used; at < used + MB; at += PAGE)
    if (at / PAGE % 2)
      fill(p + at, PAGE, at + 7);
    else
      *(u64 *)(p + at) = at;
  size_t more = atol(argv[2]) * MB;
  char *q = map_rw(more);
  for (int round = 0; round < 2; round++) {
    fill(q, more, round);
    verify(q, more, round, "the rest");
  }
  MUST(munmap(q, more) == 0);
  for (size_t at = used; at < used + MB; at += PAGE)
    if (at / PAGE % 2) {
      verify(p + at, PAGE, at + 7, "written again");
    } else {
      MUST(*(u64 *)(p + at) == at);
      verify_freed(at, 1, "a word written");
    }
  for (size_t at = 0; at < bytes; at += PAGE)
    if (at < used || (at >= used + MB && at < bytes - 2 * MB) || (at >= bytes - 2 * MB && at / PAGE % 2))
      verify_freed(at, 0, "freed");
  puts("ok");
  return 0;
}
