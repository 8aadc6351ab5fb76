/* sparse MEGABYTES PAGES SEED: touches so many pages of each 2 MiB, and no others. Then reads and
 * rewrites them in several orders, and says how that went. */
#include "check.h"

static char *p;
static size_t ranges, per_range;
static u64 *round_of;

static char *place(size_t i) {
  size_t range = i / per_range, k = i % per_range;
  return p + range * 2 * MB + mix(range * 512 + k) % (512 / per_range) * PAGE + k * (512 / per_range) * PAGE;
}

static void write_one(size_t i, u64 round) {
  round_of[i] = round;
  fill(place(i), PAGE, i * 1000 + round);
}

static void check_one(size_t i) { verify(place(i), PAGE, i * 1000 + round_of[i], "touched page"); }

int main(int argc, char **argv) {
  MUST(argc == 4);
  sigset_t told;
  sigemptyset(&told);
  sigaddset(&told, SIGUSR1);
  MUST(sigprocmask(SIG_BLOCK, &told, 0) == 0);
  ranges = strtoul(argv[1], 0, 0) / 2;
  per_range = strtoul(argv[2], 0, 0);
  u64 rng = strtoul(argv[3], 0, 0);
  p = map_rw(ranges * 2 * MB);
  size_t n = ranges * per_range;
  round_of = mmap(0, n * 8, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  MUST(round_of != MAP_FAILED);
  for (size_t i = 0; i < n; i++) write_one(i, 1);
  for (size_t i = 0; i < n; i++) check_one(i);
  for (size_t k = 0; k < n; k++) {
    size_t i = next(&rng) % n;
    check_one(i);
    if (k % 3 == 0) write_one(i, k + 2);
  }
  for (size_t i = n; i-- > 0;) check_one(i);
  pid_t pid = fork();
  MUST(pid >= 0);
  if (pid == 0) {
    for (size_t i = 0; i < n; i += 3) check_one(i);
    _exit(0);
  }
  for (size_t i = 0; i < n; i += 5) check_one(i);
  wait_ok(pid, "child");
  verify_zero(p, 64 * PAGE < 2 * MB && place(0) >= p + 64 * PAGE ? 64 * PAGE : 0, "untouched");
  say("read\n");
  MUST(munmap(p, ranges * 2 * MB) == 0);
  say("unmapped\n");
  /* Until the statistics have been looked at. */
  int signal;
  MUST(sigwait(&told, &signal) == 0);
  say("ok\n");
  return 0;
}
