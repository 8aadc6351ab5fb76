/* Memory of a program with two threads, and of a child that it forked when most was swapped out, used
 * until a file appears; every word is compared. With `lost`, it is left alone until then, and pages
 * that can't be read are counted.
 *
 *     swapoff MEGABYTES FILE [lost] */
#include "check.h"
#include <setjmp.h>

static char *p;
static size_t bytes;
static const char *end;

static void write_page(size_t page, u64 round) {
  u64 *w = (u64 *)(p + page * PAGE);
  for (size_t i = 0; i < PAGE / 8; i++) w[i] = mix(page * PAGE + i * 8 + round);
}

/* The round of a page, which its first word tells, must be that of all its words. */
static void look_at_page(size_t page, u64 rounds) {
  for (u64 r = 1; r <= rounds; r++)
    if (*(u64 *)(p + page * PAGE) == mix(page * PAGE + r))
      return verify_from(p + page * PAGE, page * PAGE, PAGE, r, "a page");
  STOP("page %zu: %llx", page, *(unsigned long long *)(p + page * PAGE));
}

struct part {
  size_t from, to;
  u64 seed;
};

/* Each thread has pages of its own. */
static void *use(void *arg) {
  struct part *part = arg;
  u64 state = part->seed;
  size_t n = part->to - part->from;
  while (access(end, F_OK) != 0) {
    for (int i = 0; i < 200; i++) {
      size_t page = part->from + next(&state) % n;
      look_at_page(page, 3);
      if (i % 4 == 0) write_page(page, 2 + i % 8 / 4);
    }
    size_t at = part->from + next(&state) % (n - 256);
    for (size_t i = at; i < at + 256; i++) look_at_page(i, 3);
  }
  for (size_t i = part->from; i < part->to; i++) look_at_page(i, 3);
  return 0;
}

static sigjmp_buf lost;

static void bus(int signal) {
  (void)signal;
  siglongjmp(lost, 1);
}

static int count_lost(size_t pages) {
  volatile int n = 0;
  MUST(signal(SIGBUS, bus) != SIG_ERR);
  for (volatile size_t page = 0; page < pages; page++)
    if (sigsetjmp(lost, 1) == 0)
      look_at_page(page, 1);
    else
      n++;
  return n;
}

int main(int argc, char **argv) {
  MUST(argc >= 3);
  bytes = atol(argv[1]) * MB;
  end = argv[2];
  p = map_rw(bytes);
  size_t pages = bytes / PAGE;
  for (size_t i = 0; i < pages; i++) write_page(i, 1);
  if (argc > 3) {
    say("ready\n");
    while (access(end, F_OK) != 0) usleep(10000);
    printf("lost %d\n", count_lost(pages));
    return 0;
  }
  pid_t child = fork();
  MUST(child >= 0);
  if (child) say("ready\n");
  struct part parts[2] = {{0, pages / 2, 1 + !child}, {pages / 2, pages, 3 + !child}};
  pthread_t thread;
  MUST(pthread_create(&thread, 0, use, &parts[0]) == 0);
  use(&parts[1]);
  MUST(pthread_join(thread, 0) == 0);
  if (!child) _exit(0);
  wait_ok(child, "the child");
  say("ok\n");
  return 0;
}
