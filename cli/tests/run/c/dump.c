/* dump WHO MIB: fills so much memory, says where it is, and dies with a core. WHO: "program"; "thread",
 * of a bad address in a second thread; "child": a forked child changes every other page and dies, and
 * then its parent; "hidden": once the memory is inaccessible; "small": memory that compresses. Every seventh page is left zero. */
#include "check.h"

static size_t bytes;
static u64 *memory;
/* Of each word: with "small" the pages compress. */
static u64 mask = ~0ul;

/* Word w of the memory, as changed: cli/tests/run/core_dumps.rs has the same. */
static u64 word(size_t w, u64 change) { return (mix(w * 8 + 1) + change) & mask; }

static void fill_pages(size_t step, u64 change) {
  for (size_t page = 0; page < bytes / PAGE; page += step)
    if (page % 7)
      for (size_t w = page * PAGE / 8; w < (page + 1) * PAGE / 8; w++) memory[w] = word(w, change);
}

static void tell(const char *who) {
  char text[100];
  snprintf(text, sizeof text, "%s %d %lx\n", who, getpid(), (u64)memory);
  say(text);
}

static void *crash(void *nowhere) {
  *(volatile int *)nowhere = 1;
  return 0;
}

int main(int argc, char **argv) {
  MUST(argc == 3);
  const char *who = argv[1];
  bytes = atol(argv[2]) * MB;
  memory = (u64 *)map_rw(bytes);
  if (!strcmp(who, "small")) mask = 0xff;
  fill_pages(1, 0);
  if (!strcmp(who, "child")) {
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
      fill_pages(2, 1);
      tell("child");
      abort();
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && WCOREDUMP(status));
  }
  if (!strcmp(who, "hidden")) MUST(mprotect(memory, bytes, PROT_NONE) == 0);
  tell("program");
  if (!strcmp(who, "thread")) {
    pthread_t t;
    MUST(pthread_create(&t, 0, crash, 0) == 0);
    pthread_join(t, 0);
  }
  abort();
}
