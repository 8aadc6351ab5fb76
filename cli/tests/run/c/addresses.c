/* Where memory lies, and who has it. One case at a time. */
#include "check.h"
#include <sched.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static char *map_at(char *at, size_t n, int flags) {
  return mmap(at, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

/* Two must never have the same. */
static void own(char *p, u64 mark) {
  for (int i = 0; i < 4; i++) *(volatile u64 *)(p + i * PAGE) = mark + i;
  sched_yield();
  for (int i = 0; i < 4; i++) MUST(*(volatile u64 *)(p + i * PAGE) == mark + i);
}

static volatile int stop;
static void *others(void *arg) {
  (void)arg;
  while (!stop) {
    char *p = map_at(0, 4 * PAGE, 0);
    MUST(p != MAP_FAILED);
    own(p, (u64)p);
    MUST(munmap(p, 4 * PAGE) == 0);
  }
  return 0;
}

static void noreplace(void) {
  pthread_t t[3];
  for (int i = 0; i < 3; i++) MUST(pthread_create(t + i, 0, others, 0) == 0);
  for (int i = 0; i < 10000; i++) {
    char *base = map_at(0, 4 * PAGE, 0), *p = map_at(base + 4 * PAGE, 4 * PAGE, MAP_FIXED_NOREPLACE);
    MUST(base != MAP_FAILED);
    if (p != MAP_FAILED) {
      own(p, ~(u64)p);
      MUST(munmap(p, 4 * PAGE) == 0);
    } else
      MUST(errno == EEXIST);
    MUST(munmap(base, 4 * PAGE) == 0);
  }
  stop = 1;
  for (int i = 0; i < 3; i++) MUST(pthread_join(t[i], 0) == 0);
}

/* As Boehm's collector does: each mapping hints at the end of the one before, most are small, some large. */
static void one_behind_the_other(void) {
  char *hint = 0, *large[8], *small[8][8];
  const size_t little = 16 * PAGE;
  for (int i = 0; i < 8; i++) {
    MUST((large[i] = map_at(hint, 8 * MB, 0)) != MAP_FAILED);
    hint = large[i] + 8 * MB;
    for (int k = 0; k < 8; k++) {
      MUST((small[i][k] = map_at(hint, little, 0)) != MAP_FAILED);
      hint = small[i][k] + little;
      fill(small[i][k], little, 100 + 8 * i + k);
    }
    fill(large[i], 8 * MB, i);
  }
  for (int i = 0; i < 8; i++) {
    verify(large[i], 8 * MB, i, "large");
    for (int k = 0; k < 8; k++) verify(small[i][k], little, 100 + 8 * i + k, "small");
  }
  /* What was given back is had again by a hint. */
  MUST(munmap(large[3], 8 * MB) == 0);
  MUST(map_at(large[3], 8 * MB, 0) == large[3]);
  verify(large[4], 8 * MB, 4, "the next");
}

/* Addresses that were once the program's are so again by MAP_FIXED, whatever happened between. */
static void again(void) {
  const size_t n = 256 * MB;
  char *was = mmap(0, n, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  MUST(was != MAP_FAILED && munmap(was, n) == 0);
  char *large = map_at(0, 40ul << 30, MAP_NORESERVE);
  MUST(large != MAP_FAILED);
  for (size_t k = 0; k < 40; k++) large[k << 30] = 1;
  fill(large + (20ul << 30) + 2 * MB, 100 * MB, 3);
  char *now = mmap(was, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  MUST(now == was);
  memset(now, 0, n / 8);
  verify(large + (20ul << 30) + 2 * MB, 100 * MB, 3, "memory");
}

/* No more mappings can be made; memory that was mapped before is touched for the first time, and forks work. */
static void no_more(void) {
  const size_t gib = 1ul << 30;
  char *wide = map_at(0, 200 * gib, MAP_NORESERVE), *p = map_at(0, 100 * MB, 0), *many = map_rw(200000 * PAGE);
  MUST(wide != MAP_FAILED && p != MAP_FAILED);
  for (size_t i = 0; i < 100000; i++)
    if (mprotect(many + 2 * i * PAGE, PAGE, PROT_READ)) break;
  for (u64 k = 0; k < 100000; k++)
    if (mmap((void *)(0x10000000000 + k * 2 * MB), PAGE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) break;
  for (size_t g = 0; g < 200; g += 8) wide[g * gib + 12345] = (char)g;
  fill(p, 100 * MB, 5);
  pid_t pid = fork();
  MUST(pid >= 0);
  if (pid == 0) {
    verify(p, 100 * MB, 5, "the child's");
    _exit(0);
  }
  wait_ok(pid, "child");
  verify(p, 100 * MB, 5, "memory");
  for (size_t g = 0; g < 200; g += 8) MUST(wide[g * gib + 12345] == (char)g);
}

/* Under mlockall(MCL_FUTURE) the heap that grows is locked. */
static void locked_heap(void) {
  char *w = map_rw(100 * MB);
  MUST(mlockall(MCL_FUTURE) == 0);
  const size_t n = 4 * MB;
  char *heap = sbrk(n);
  MUST(heap != (void *)-1);
  fill(heap, n, 2);
  fill(w, 100 * MB, 1);
  static unsigned char there[4 * MB / PAGE + 1];
  char *first = (char *)(((u64)heap + PAGE - 1) & -PAGE);
  MUST(syscall(SYS_mincore, first, n - PAGE, there) == 0);
  for (size_t k = 0; k < n / PAGE - 1; k++) MUST(there[k] & 1);
  /* And no more than may be locked can be had. */
  struct rlimit low = {n + 2 * MB, n + 2 * MB};
  MUST(setrlimit(RLIMIT_MEMLOCK, &low) == 0 && setuid(65534) == 0);
  MUST(map_at(0, 8 * MB, 0) == MAP_FAILED && errno == EAGAIN);
  verify(heap, n, 2, "heap");
}

/* A mapping costs what is in it. Seconds each would take longer than the test may. */
static void terabytes(void) {
  char *p = map_rw(100 * MB);
  fill(p, 100 * MB, 1);
  for (int i = 0; i < 30; i++) {
    char *q = map_at(i % 2 ? (char *)0x100000000000 : 0, 2ul << 40, MAP_NORESERVE);
    MUST(q != MAP_FAILED);
    q[1ul << 40] = 1;
    MUST(munmap(q, 2ul << 40) == 0);
  }
  verify(p, 100 * MB, 1, "memory");
}

/* Where processors have five levels of page tables a hint beyond 47 bits leads there. */
static void far_up(void) {
  const size_t n = 128 * MB;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char *p = mmap((void *)(1ul << 50), n, PROT_READ | PROT_WRITE, flags, -1, 0);
  MUST(p != MAP_FAILED);
  char *q = map_rw(n);
  fill(p, n, 1);
  fill(q, n, 2);
  verify(p, n, 1, "hinted");
  char *there = mremap(q, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)(1ul << 51));
  if (there != MAP_FAILED) q = there;
  verify(q, n, 2, "not hinted");
  pid_t pid = fork();
  if (pid == 0) {
    verify(p, n, 1, "hinted, in a child");
    _exit(0);
  }
  wait_ok(pid, "child");
  MUST(munmap(p, n) == 0 && munmap(q, n) == 0);
}

/* What of the engine's own memory the program can see in its list of mappings: all that is between programs and the window. */
static size_t engines(u64 (*at)[2], size_t most) {
  FILE *f = fopen("/proc/self/maps", "r");
  MUST(f);
  size_t n = 0;
  char line[512];
  while (n < most && fgets(line, sizeof line, f)) {
    u64 from, to;
    MUST(sscanf(line, "%lx-%lx", &from, &to) == 2);
    if (from >= 0x5c0000000000 && to <= 0x600000000000) at[n][0] = from, at[n++][1] = to;
  }
  fclose(f);
  return n;
}

#define SAYS(call, wrong) MUST((long)(call) == -1 && errno == (wrong))

/* To the program nothing is mapped there, by function and by number, and nothing can be. */
static void not_there(char *at, size_t n, char *mine) {
  const int rw = PROT_READ | PROT_WRITE, anon = MAP_PRIVATE | MAP_ANONYMOUS, to = MREMAP_MAYMOVE | MREMAP_FIXED;
  static unsigned char there[1 << 20];
  if (n / PAGE <= sizeof there) SAYS(mincore(at, n, there), ENOMEM);
  SAYS(mmap(at, n, rw, anon | MAP_FIXED, -1, 0), ENOMEM);
  SAYS(mmap(at, n, rw, anon | MAP_FIXED_NOREPLACE, -1, 0), EEXIST);
  SAYS(syscall(SYS_mmap, at, n, rw, anon | MAP_FIXED, -1, 0), ENOMEM);
  SAYS(mremap(mine, PAGE, n, to, at), ENOMEM);
  SAYS(syscall(SYS_mremap, mine, PAGE, PAGE, to, at), ENOMEM);
  SAYS(mremap(at, n, n, MREMAP_MAYMOVE), EFAULT);
  SAYS(mremap(at, n, PAGE, 0), EFAULT);
  SAYS(mprotect(at, n, PROT_NONE), ENOMEM);
  SAYS(syscall(SYS_mprotect, at, n, PROT_READ), ENOMEM);
  SAYS(syscall(SYS_pkey_mprotect, at, n, PROT_READ, -1), ENOMEM);
  SAYS(madvise(at, n, MADV_DONTNEED), ENOMEM);
  SAYS(syscall(SYS_madvise, at, n, MADV_DONTFORK), ENOMEM);
  struct iovec v = {at, n};
  SAYS(syscall(SYS_process_madvise, syscall(SYS_pidfd_open, getpid(), 0), &v, 1, MADV_DONTNEED, 0), ENOMEM);
  SAYS(mlock(at, n), ENOMEM);
  SAYS(munlock(at, n), ENOMEM);
  MUST(munmap(at, n) == 0);
  MUST(syscall(SYS_munmap, at, n) == 0);
}

/* The memory of the engine's is not the program's, whatever it calls. What lies beside it is. */
static void engines_own(void) {
  static u64 own[256][2];
  size_t n = engines(own, 256);
  char *p = map_rw(100 * MB), *mine = map_rw(PAGE);
  fill(p, 100 * MB, 1);
  *mine = 1;
  int segment = shmget(IPC_PRIVATE, PAGE, 0600);
  for (size_t i = 0; i < n; i++) {
    char *from = (char *)own[i][0], *to = (char *)own[i][1];
    not_there(from, to - from, mine);
    not_there(to - PAGE, PAGE, mine);
    SAYS(shmat(segment, from, SHM_REMAP), EINVAL);
    SAYS(syscall(SYS_shmat, segment, from, 0), EINVAL);
  }
  MUST(n > 0 && shmctl(segment, IPC_RMID, 0) == 0 && *mine == 1);
  works(p, 100 * MB, "memory");
  char *low = (char *)own[0][0], *high = (char *)own[n - 1][1];
  const int rw = PROT_READ | PROT_WRITE, anon = MAP_PRIVATE | MAP_ANONYMOUS;
  for (char *beside = low - 2 * PAGE; beside; beside = beside < low ? high : 0) {
    MUST(mmap(beside, 2 * PAGE, rw, anon | MAP_FIXED, -1, 0) == beside);
    beside[0] = beside[PAGE] = 1;
  }
  SAYS(madvise(low - PAGE, high - low + 2 * PAGE, MADV_DONTNEED), ENOMEM);
  MUST(low[-2 * (long)PAGE] == 1 && low[-(long)PAGE] == 0 && high[0] == 0 && high[PAGE] == 1);
  SAYS(mprotect(low - 2 * PAGE, high - low + 4 * PAGE, PROT_READ), ENOMEM);
  MUST(munmap(low - 2 * PAGE, high - low + 4 * PAGE) == 0);
  MUST(mmap(high, PAGE, rw, anon | MAP_FIXED_NOREPLACE, -1, 0) == high && *high == 0);
  works(p, 100 * MB, "memory");
}

int main(int argc, char **argv) {
  MUST(argc == 2);
  if (!strcmp(argv[1], "noreplace")) noreplace();
  if (!strcmp(argv[1], "one_behind_the_other")) one_behind_the_other();
  if (!strcmp(argv[1], "again")) again();
  if (!strcmp(argv[1], "no_more")) no_more();
  if (!strcmp(argv[1], "locked_heap")) locked_heap();
  if (!strcmp(argv[1], "terabytes")) terabytes();
  if (!strcmp(argv[1], "far_up")) far_up();
  if (!strcmp(argv[1], "engines_own")) engines_own();
  say("ok\n");
  return 0;
}
