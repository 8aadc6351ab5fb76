/* Memory that is locked, sealed or guarded, in ways of which the kernel has its own view: the same with and without us. */
#include "check.h"
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define GUARD_INSTALL 102
#define GUARD_REMOVE 103
#ifndef SYS_mseal
#define SYS_mseal 462
#endif

static const size_t bytes = 96 * MB;
static char *p;

static void push_out(void) {
  char *q = map_rw(160 * MB);
  for (size_t i = 0; i < 160 * MB; i += PAGE) q[i]++;
  MUST(munmap(q, 160 * MB) == 0);
}

/* What of this may leave has left, where there is somebody who takes it. */
static void push_out_first(char *from, size_t len) {
  for (int i = 0; i < 2; i++) {
    madvise(from, len, MADV_PAGEOUT);
    push_out();
  }
}

/* Whoever runs this may lock so much, and no more. */
static void may_lock(rlim_t most) {
  struct rlimit l = {most, most};
  MUST(setrlimit(RLIMIT_MEMLOCK, &l) == 0);
  if (geteuid() == 0) MUST(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
}

static void *nothing(void *arg) { return arg; }

static void has_threads(void) {
  pthread_t t;
  int failed = pthread_create(&t, 0, nothing, 0);
  if (failed) STOP("pthread_create: %s", strerror(failed));
  MUST(pthread_join(t, 0) == 0);
}

static size_t locked_kib(void) {
  char line[256];
  size_t kib = 0;
  FILE *f = fopen("/proc/self/status", "r");
  MUST(f);
  while (fgets(line, sizeof line, f)) sscanf(line, "VmLck: %zu", &kib);
  MUST(fclose(f) == 0);
  return kib;
}

/* One call over memory of two kinds. */
static void guards_go_from_all(void) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_FIXED;
  char *all = map_rw(8 * MB), *stack = all + 3 * MB;
  MUST(mmap(stack, MB / 4, PROT_READ | PROT_WRITE, flags, -1, 0) == stack);
  fill(all, 8 * MB, 5);
  for (int round = 0; round < 3; round++) {
    if (madvise(all, 8 * MB, GUARD_REMOVE) && errno != EINVAL) STOP("guards: %s", strerror(errno));
    push_out_first(all, 8 * MB);
    verify(all, 8 * MB, 5, "behind guards");
  }
}

static pthread_mutex_t *robust;
static int is_locked, is_out;

static void *leaves_it_locked(void *arg) {
  MUST(pthread_mutex_lock(robust) == 0);
  __atomic_store_n(&is_locked, 1, __ATOMIC_RELEASE);
  while (!__atomic_load_n(&is_out, __ATOMIC_ACQUIRE)) usleep(1000);
  return arg;
}

/* What the kernel reads where nobody serves a fault stays, whatever becomes of guards there. */
static void who_waits_behind_guards(void) {
  char *all = map_rw(8 * MB);
  fill(all, 8 * MB, 5);
  robust = (pthread_mutex_t *)(all + 5 * MB);
  pthread_mutexattr_t kind;
  MUST(pthread_mutexattr_init(&kind) == 0 && pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST) == 0);
  MUST(pthread_mutex_init(robust, &kind) == 0);
  madvise(all, 8 * MB, GUARD_REMOVE);
  pthread_t t;
  MUST(pthread_create(&t, 0, leaves_it_locked, 0) == 0);
  while (!__atomic_load_n(&is_locked, __ATOMIC_ACQUIRE)) usleep(1000);
  push_out_first(all, 8 * MB);
  __atomic_store_n(&is_out, 1, __ATOMIC_RELEASE);
  MUST(pthread_join(t, 0) == 0);
  struct timespec end;
  MUST(clock_gettime(CLOCK_REALTIME, &end) == 0);
  end.tv_sec += 20;
  MUST(pthread_mutex_timedlock(robust, &end) == EOWNERDEAD);
}

/* As programs of real time begin. What is inaccessible can be mapped all the same. */
static void all_that_comes(void) {
  struct rlimit most;
  MUST(getrlimit(RLIMIT_MEMLOCK, &most) == 0);
  push_out();
  if (mlockall(MCL_FUTURE)) {
    /* Somebody who may not. */
    MUST(errno == EPERM || errno == ENOMEM);
    return;
  }
  has_threads();
  MUST(mmap(0, 4 * MB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
  MUST(mmap(0, 4 * MB, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
  char *q = map_rw(2 * MB);
  fill(q, 2 * MB, 3);
  verify(q, 2 * MB, 3, "locked");
  MUST(munlockall() == 0);
}

static void all_that_comes_refused(void) {
  may_lock(0);
  MUST(mlockall(MCL_FUTURE) == -1 && errno == EPERM);
  MUST(mlockall(MCL_CURRENT) == -1 && errno == EPERM);
  char *q = map_rw(8 * MB);
  fill(q, 8 * MB, 3);
  has_threads();
}

/* More than may be locked: nothing is, now or later. */
static void all_refused(void) {
  may_lock(4 * MB);
  MUST(mlockall(MCL_CURRENT | MCL_FUTURE) == -1 && errno == ENOMEM);
  char *q = map_rw(16 * MB);
  fill(q, 16 * MB, 3);
  has_threads();
  MUST(mlock(q, 2 * MB) == 0 && munlock(q, 2 * MB) == 0);
}

static void guards_in_all(void) {
  char *q = map_rw(8 * MB);
  fill(q, 8 * MB, 3);
  if (madvise(q + 4 * MB, 2 * PAGE, GUARD_INSTALL)) return;
  struct rlimit most = {RLIM_INFINITY, RLIM_INFINITY};
  if (setrlimit(RLIMIT_MEMLOCK, &most)) return;
  MUST(munmap(p + 8 * MB, bytes - 8 * MB) == 0);
  MUST(mlockall(MCL_CURRENT) == 0);
  size_t before = locked_kib();
  MUST(munlockall() == 0 && before > 0);
  /* The rest was never there. */
  p = map_rw(bytes);
  fill(p, bytes, 1);
}

/* Lengths that are more than there is, or come to nothing. */
static void odd_stretches(void) {
  MUST(mlock(p, SIZE_MAX) == 0 && munlock(p, SIZE_MAX) == 0);
  MUST(madvise((char *)PAGE, (1ul << 47) - 2 * PAGE, MADV_NORMAL) == -1 && errno == ENOMEM);
  int said = munlock((void *)(1ul << 52), 0);
  MUST(said == 0 || errno == ENOMEM);
  said = mlock((void *)(1ul << 52), 0);
  MUST(said == 0 || errno == ENOMEM);
  /* All of a list is looked at first. */
  char *q = map_rw(2 * MB);
  fill(q, 2 * MB, 3);
  int self = syscall(SYS_pidfd_open, getpid(), 0);
  MUST(self >= 0);
  struct iovec list[2] = {{q, 2 * MB}, {(void *)(1ul << 62), PAGE}};
  MUST(syscall(SYS_process_madvise, self, list, 2ul, MADV_DONTNEED, 0ul) == -1);
  verify(q, 2 * MB, 3, "of a refused list");
}

/* A stretch with holes is refused, and what is mapped next is nobody's yet. */
static void sealed_beyond(void) {
  char *q = map_rw(2 * MB);
  MUST(syscall(SYS_mseal, q, 1ul << 32, 0) == -1);
  MUST(errno == ENOMEM || errno == ENOSYS);
  for (int i = 0; i < 200; i++) {
    char *next = map_rw(4 * MB);
    next[i] = 1;
    MUST(munmap(next, 4 * MB) == 0);
  }
}

/* Filled, and its second half sealed; null where it can't be. */
static char *half_sealed(void) {
  char *q = map_rw(16 * MB);
  fill(q, 16 * MB, 3);
  MUST(mprotect(q + 8 * MB, 8 * MB, PROT_READ) == 0);
  return syscall(SYS_mseal, q + 8 * MB, 8 * MB, 0) ? NULL : q;
}

/* What comes before a sealed mapping is dropped, wherever it is; or it is not, for some kernels look at all of it first. */
static void dropped_before_sealed(void) {
  char *out = half_sealed();
  if (!out) return;
  push_out_first(out, 8 * MB);
  char *in = half_sealed();
  MUST(madvise(in, 16 * MB, MADV_DONTNEED) == -1 && errno == EPERM);
  MUST(madvise(out, 16 * MB, MADV_DONTNEED) == -1 && errno == EPERM);
  MUST(memcmp(in, out, 16 * MB) == 0);
}

static void keys_stay_locked(void) {
  size_t before = locked_kib();
  push_out();
  MUST(munlockall() == 0);
  MUST(locked_kib() == before);
}

int main(int argc, char **argv) {
  MUST(argc == 2);
  p = map_rw(bytes);
  fill(p, bytes, 1);
  const struct test_case cases[] = {
      {"guards_go_from_all", guards_go_from_all},
      {"who_waits_behind_guards", who_waits_behind_guards},
      {"all_that_comes", all_that_comes},
      {"all_that_comes_refused", all_that_comes_refused},
      {"all_refused", all_refused},
      {"guards_in_all", guards_in_all},
      {"odd_stretches", odd_stretches},
      {"sealed_beyond", sealed_beyond},
      {"dropped_before_sealed", dropped_before_sealed},
      {"keys_stay_locked", keys_stay_locked},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    if (!strcmp(argv[1], cases[i].name)) {
      cases[i].run();
      verify(p, bytes, 1, "all else");
      say("ok\n");
      return 0;
    }
  STOP("unknown: %s", argv[1]);
}
