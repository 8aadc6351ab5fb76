/* What a program may say of its memory: hints ADVICE ACTION. */
#include "check.h"
#include <time.h>

#define PAGES (96 * MB / PAGE)
static char *p;

static int named(const char *name) {
  static const struct {
    const char *name;
    int advice;
  } all[] = {{"none", -1},       {"sequential", MADV_SEQUENTIAL}, {"random", MADV_RANDOM},
             {"huge", MADV_HUGEPAGE}, {"nohuge", MADV_NOHUGEPAGE}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (!strcmp(all[i].name, name)) return all[i].advice;
  STOP("unknown: %s", name);
}

static void check_page(size_t i) { verify_from(p + i * PAGE, i * PAGE, PAGE, 1, "a page"); }

static void walk(void) {
  for (int round = 0; round < 2; round++)
    for (size_t i = 0; i < PAGES; i++) check_page(i);
}

/* Each range for the first time where nothing has led there: every third one, and one page of it. */
static void visit(void) {
  for (size_t range = 0; range < PAGES / 512; range += 3) check_page(range * 512 + 100 + range);
}

/* Every `step`th page, up and then down, and again from one further. */
static void stride(size_t step) {
  for (size_t start = 0; start < 4; start++) {
    for (size_t i = start; i < PAGES; i += step) check_page(i);
    for (size_t i = start; i < PAGES; i += step) check_page(PAGES - 1 - i);
  }
}

static void jump(void) {
  u64 state = 7;
  for (int i = 0; i < 3000; i++) check_page(next(&state) % PAGES);
}

/* At random in a quarter of it, and then in another. */
static void hot(void) {
  u64 state = 7;
  for (size_t part = 0; part < 4; part++)
    for (int i = 0; i < 20000; i++) check_page(part * PAGES / 4 + next(&state) % (PAGES / 4));
}

static size_t resident(char *at, size_t bytes) {
  unsigned char there[512];
  size_t n = 0;
  for (size_t from = 0; from < bytes; from += 2 * MB) {
    MUST(mincore(at + from, 2 * MB, there) == 0);
    for (int i = 0; i < 512; i++) n += there[i] & 1;
  }
  return n;
}

static const struct timespec moment = {0, 10000000};

static void page_out(size_t bytes) {
  MUST(madvise(p, bytes, MADV_PAGEOUT) == 0);
  for (int i = 0; resident(p, bytes) > 0 && i < 500; i++) nanosleep(&moment, 0);
  MUST(resident(p, bytes) == 0);
}

/* A walk through what is there in part, here and there a page. */
static void patches(void) {
  size_t bytes = 32 * MB;
  u64 state = 7;
  page_out(bytes);
  for (int i = 0; i < 64; i++) check_page(next(&state) % (bytes / PAGE));
  for (size_t i = 0; i < bytes / PAGE; i++) check_page(i);
}

/* What is out comes in without being touched. */
static void will_need(void) {
  page_out(8 * MB);
  MUST(madvise(p, 8 * MB, MADV_WILLNEED) == 0);
  for (int i = 0; i < 30; i++) nanosleep(&moment, 0);
  for (size_t i = 0; i < 8 * MB / PAGE; i++) check_page(i);
}

/* More is asked for than is kept ready, and none of it touched meanwhile. */
static void ask(void) {
  page_out(PAGES * PAGE);
  for (size_t at = 0; at < PAGES * PAGE; at += 2 * MB) MUST(madvise(p + at, 2 * MB, MADV_WILLNEED) == 0);
  for (size_t i = 0; i < PAGES; i++) check_page(i);
}

/* Of what was written last, what is called cold leaves first. */
static void cold(void) {
  char *old = map_rw(16 * MB), *new = map_rw(16 * MB), *more = map_rw(32 * MB);
  fill(old, 16 * MB, 2);
  fill(new, 16 * MB, 3);
  MUST(madvise(new, 16 * MB, MADV_COLD) == 0);
  fill(more, 32 * MB, 4);
  size_t of_old = resident(old, 16 * MB), of_new = resident(new, 16 * MB);
  if (of_old <= of_new) STOP("resident: %zu of the old, %zu of the cold", of_old, of_new);
  verify(old, 16 * MB, 2, "old");
  verify(new, 16 * MB, 3, "cold");
}

/* A few huge pages are taken apart; those beside them stay whole, however often they come and go. */
static void stay(void) {
  for (size_t range = 0; range < PAGES / 512; range += 8) {
    char *hole = p + (range * 512 + 77) * PAGE;
    MUST(madvise(hole, PAGE, MADV_DONTNEED) == 0);
    fill(hole, PAGE, 1 + (range * 512 + 77) * PAGE);
  }
  walk();
  walk();
  size_t huge = 0, all = 0, lazy = 0, n;
  unsigned long from = 0, to = 0;
  char line[512];
  FILE *f = fopen("/proc/self/smaps", "r");
  MUST(f);
  while (fgets(line, sizeof line, f)) {
    if (sscanf(line, "%lx-%lx ", &from, &to) == 2) continue;
    if (to <= (unsigned long)p || from >= (unsigned long)p + PAGES * PAGE) continue;
    if (sscanf(line, "Rss: %zu", &n) == 1) all += n;
    if (sscanf(line, "AnonHugePages: %zu", &n) == 1) huge += n;
    if (sscanf(line, "LazyFree: %zu", &n) == 1) lazy += n;
  }
  fclose(f);
  /* What has left and stays in its place until the kernel takes it is none of them. */
  all -= lazy;
  if (huge * 10 < all * 8) STOP("%zu of %zu KiB in huge pages", huge, all);
}

int main(int argc, char **argv) {
  MUST(argc == 3);
  const char *what = argv[2];
  int advice = named(argv[1]);
  if (!strcmp(what, "cold")) {
    cold();
  } else {
    p = map_rw(PAGES * PAGE);
    if (advice >= 0) MUST(madvise(p, PAGES * PAGE, advice) == 0);
    fill(p, PAGES * PAGE, 1);
    if (!strcmp(what, "walk")) walk();
    else if (!strcmp(what, "visit")) visit();
    else if (!strcmp(what, "stay")) stay();
    else if (!strcmp(what, "jump")) jump();
    else if (!strcmp(what, "hot")) hot();
    else if (!strcmp(what, "stride")) stride(40);
    else if (!strcmp(what, "narrow")) stride(5);
    else if (!strcmp(what, "rows")) stride(512);
    else if (!strcmp(what, "patches")) patches();
    else if (!strcmp(what, "will-need")) will_need();
    else if (!strcmp(what, "ask")) ask();
    else STOP("unknown: %s", what);
  }
  say("ok\n");
  return 0;
}
