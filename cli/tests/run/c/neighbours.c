/* neighbours SECONDS: small mappings that share 2 MiB with others. Some stay and are looked at, some
 * come and go, while a large one is walked so that all of them are swapped out again and again. */
#include "check.h"
#include <time.h>

enum { STAY = 64, GO = 64 };
struct one {
  char *at;
  size_t bytes;
  u64 seed;
};
static struct one stay[STAY], go[GO];
static u64 rng = 1;

static void make(struct one *m) {
  m->bytes = (1 + next(&rng) % 40) * PAGE;
  m->seed = next(&rng);
  m->at = map_rw(m->bytes);
  verify_zero(m->at, m->bytes, "a new mapping");
  fill(m->at, m->bytes, m->seed);
}

int main(int argc, char **argv) {
  MUST(argc == 2);
  time_t end = time(0) + atoi(argv[1]);
  for (int i = 0; i < STAY; i++) make(&stay[i]), make(&go[i]);
  size_t large = 80 * MB, at = 0;
  char *p = map_rw(large);
  fill(p, large, 5);
  for (u64 n = 1; time(0) < end; n++) {
    struct one *m = &stay[next(&rng) % STAY];
    verify(m->at, m->bytes, m->seed, "one that stays");
    if (next(&rng) % 2) fill(m->at, m->bytes, m->seed = next(&rng));
    m = &go[next(&rng) % GO];
    verify(m->at, m->bytes, m->seed, "one that goes");
    MUST(munmap(m->at, m->bytes) == 0);
    make(m);
    for (int k = 0; k < 4; k++, at = (at + MB) % large) verify_from(p + at, at, MB, 5, "the large one");
  }
  say("ok\n");
  return 0;
}
