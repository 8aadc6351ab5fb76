/* Calls that once did something else than without us, one at a time. */
#include "check.h"
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

static const size_t bytes = 128 * MB;
static char *p;

/* All of it is swapped out, or nearly. */
static void push_out(void) {
  madvise(p, bytes, MADV_PAGEOUT);
  for (int i = 0; i < 3; i++) {
    char *q = map_rw(40 * MB);
    fill(q, 40 * MB, 9);
    MUST(munmap(q, 40 * MB) == 0);
  }
}

/* What lies behind a locked page is still there after a call that ends at it. */
static void partly_locked(void) {
  MUST(mlock(p + 4 * MB, PAGE) == 0);
  push_out();
  MUST(madvise(p, 8 * MB, MADV_DONTNEED) == -1 && errno == EINVAL);
  verify_zero(p, 4 * MB, "before the locked page");
  verify_from(p + 4 * MB, 4 * MB, bytes - 4 * MB, 1, "from the locked page on");
  MUST(madvise(p, 8 * MB, MADV_FREE) == -1 && errno == EINVAL);
  MUST(madvise(p, 8 * MB, MADV_DONTNEED_LOCKED) == 0);
  verify_zero(p, 8 * MB, "dropped although locked");
  MUST(munlock(p, bytes) == 0);
  verify_from(p + 8 * MB, 8 * MB, bytes - 8 * MB, 1, "the rest");
}

static void everything_locked(void) {
  MUST(mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0);
  char *q = map_rw(MB);
  fill(q, MB, 2);
  MUST(madvise(q, MB, MADV_DONTNEED) == -1 && errno == EINVAL);
  verify(q, MB, 2, "locked from the start");
  pid_t pid = fork();
  if (pid == 0) {
    MUST(madvise(q, MB, MADV_DONTNEED) == 0);
    verify_zero(q, MB, "in the child nothing is locked");
    _exit(0);
  }
  wait_ok(pid, "child");
  MUST(munlockall() == 0);
  push_out();
  verify(p, bytes, 1, "after munlockall");
}

/* The heap gives pages back, and what was said of them with them. */
static void heap(void) {
  MUST(sbrk(-(intptr_t)sbrk(0) & (PAGE - 1)) != (void *)-1);
  char *h = sbrk(4 * MB);
  MUST(madvise(h, 4 * MB, MADV_WIPEONFORK) == 0 && mlock(h + MB, PAGE) == 0);
  MUST(sbrk(-4 * (intptr_t)MB) != (void *)-1 && sbrk(4 * MB) == h);
  fill(h, 4 * MB, 3);
  push_out();
  pid_t pid = fork();
  if (pid == 0) {
    verify(h, 4 * MB, 3, "the heap in the child");
    _exit(0);
  }
  wait_ok(pid, "child");
}

static int body(void *arg) {
  verify(p, bytes, 1, "in a clone");
  fill(p, MB, 5);
  return *(int *)arg;
}

/* Children that are made by hand. */
static void clones(void) {
  push_out();
  char *stack = map_rw(MB);
  int seven = 7, status;
  pid_t pid = clone(body, stack + MB, SIGCHLD, &seven);
  MUST(pid > 0 && waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 7);
  pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) _exit(body(&seven) - 7);
  wait_ok(pid, "syscall(SYS_clone)");
  pid = syscall(SYS_fork);
  if (pid == 0) _exit(body(&seven) - 7);
  wait_ok(pid, "syscall(SYS_fork)");
  u64 args[11] = {[4] = SIGCHLD};
  pid = syscall(SYS_clone3, args, sizeof args);
  if (pid == 0) _exit(body(&seven) - 7);
  wait_ok(pid, "syscall(SYS_clone3)");
  errno = 0;
  MUST(syscall(SYS_clone3, 0, 0) == -1 && errno == EINVAL);
  MUST(syscall(SYS_clone3, 16, sizeof args) == -1 && errno == EFAULT);
  verify(p, bytes, 1, "after clones");
  char *q = (char *)syscall(SYS_mmap, 0, 8 * MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  fill(q, 8 * MB, 4);
  push_out();
  MUST(syscall(SYS_madvise, q, 4 * MB, MADV_DONTNEED) == 0);
  verify_zero(q, 4 * MB, "dropped by syscall(2)");
  MUST(syscall(SYS_munmap, q, 8 * MB) == 0);
}

static void *leave_locked(void *m) {
  MUST(pthread_mutex_lock(m) == 0);
  return 0;
}

/* Mutexes that the kernel reads, with everything around them swapped out. */
static void mutexes(void) {
  for (int robust = 0; robust < 2; robust++) {
    pthread_mutex_t *m = (pthread_mutex_t *)(p + 6 * MB + robust * MB + 512);
    pthread_mutexattr_t a;
    MUST(pthread_mutexattr_init(&a) == 0);
    if (robust) MUST(pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST) == 0);
    else MUST(pthread_mutexattr_setprotocol(&a, PTHREAD_PRIO_INHERIT) == 0);
    MUST(pthread_mutex_init(m, &a) == 0);
    for (int i = 0; i < 20; i++) {
      push_out();
      if (robust) {
        pthread_t t;
        MUST(pthread_create(&t, 0, leave_locked, m) == 0 && pthread_join(t, 0) == 0);
        push_out();
        MUST(pthread_mutex_lock(m) == EOWNERDEAD && pthread_mutex_consistent(m) == 0);
      } else {
        MUST(pthread_mutex_lock(m) == 0);
      }
      MUST(pthread_mutex_unlock(m) == 0);
      if (!robust) {
        int r = syscall(SYS_futex, m, 6 /* FUTEX_LOCK_PI */ | 128, 0, 0);
        MUST(r == 0 && syscall(SYS_futex, m, 7 /* FUTEX_UNLOCK_PI */ | 128) == 0);
      }
    }
  }
}

/* A program that looks at every page it has, ours among them, and goes on. */
static void looks_at_all(void) {
  FILE *f = fopen("/proc/self/maps", "r");
  char line[512];
  volatile char sum = 0;
  while (f && fgets(line, sizeof line, f)) {
    char *from, *to, prot[5];
    if (sscanf(line, "%p-%p %4s", (void **)&from, (void **)&to, prot) != 3) continue;
    if (strncmp(prot, "rw-p", 4) || to - from > (ptrdiff_t)MB) continue;
    for (char *at = from; at < to; at += PAGE) sum += *at;
  }
  fclose(f);
  push_out();
  for (int i = 0; i < 5; i++) {
    char *q = mmap((void *)(0x100000000000ul + i * 16 * MB), 4 * MB, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(q != MAP_FAILED);
    fill(q, 4 * MB, 2);
    pid_t pid = fork();
    if (pid == 0) {
      verify(q, 4 * MB, 2, "in the child");
      verify(p, bytes, 1, "in the child");
      _exit(0);
    }
    wait_ok(pid, "child");
  }
}

/* One thread unmaps while another maps at the very place by a hint, as malloc's arenas do. What a
 * child gets of the second mapping is what was there, not zeros. */
static char *hint;
static volatile int stop;

static void *take_and_give(void *arg) {
  while (!stop) {
    char *q = map_rw(16 * MB);
    hint = q + 8 * MB;
    munmap(q + 8 * MB, 8 * MB);
    for (volatile int i = 0; i < 2000; i++);
    munmap(q, 8 * MB);
  }
  return arg;
}

static void hinted_while_unmapped(void) {
  enum { ROUNDS = 40, EACH = 200 };
  pthread_t thread;
  MUST(pthread_create(&thread, 0, take_and_give, 0) == 0);
  for (int round = 0, found = 0; round < ROUNDS; round++) {
    char *at = 0;
    for (int i = 0; i < EACH && !at; i++) {
      char *want = hint;
      char *q = mmap(want, 4 * MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      MUST(q != MAP_FAILED);
      if (want && q == want) at = q;
      else MUST(munmap(q, 4 * MB) == 0);
    }
    if (!at) continue;
    found++;
    fill(at, 4 * MB, round);
    push_out();
    pid_t pid = fork();
    if (pid == 0) {
      verify(at, 4 * MB, round, "in the child");
      _exit(0);
    }
    wait_ok(pid, "child");
    verify(at, 4 * MB, round, "in the parent");
    MUST(munmap(at, 4 * MB) == 0);
    if (found == 8) break;
  }
  stop = 1;
  MUST(pthread_join(thread, 0) == 0);
}

/* What the program has mapped behind the break stays its own, and a hole there is none for long. */
static void mapped_behind_the_break(void) {
  char *end = sbrk(0), *at = (char *)(((u64)end + 8 * MB) & ~(u64)(PAGE - 1));
  int flags = MAP_ANONYMOUS | MAP_FIXED;
  for (int shared = 0; shared < 2; shared++) {
    MUST(mmap(at, MB, PROT_READ | PROT_WRITE, flags | (shared ? MAP_SHARED : MAP_PRIVATE), -1, 0) == at);
    fill(at, MB, 3);
    MUST(brk(at - 8) == -1 && errno == ENOMEM && sbrk(0) == end);
    MUST(brk(end + 16 * MB) == -1 && errno == ENOMEM && sbrk(0) == end);
    MUST(brk(end + 4 * MB) == 0);
    memset(end, 1, 4 * MB);
    push_out();
    MUST(brk(end) == 0);
    verify(at, MB, 3, "behind the break");
    MUST(munmap(at, MB) == 0);
    MUST(brk(end + 16 * MB) == 0);
    memset(end, 1, 16 * MB);
    push_out();
    for (size_t i = 0; i < 16 * MB; i++) MUST(end[i] == 1);
    MUST(brk(end) == 0);
  }
  /* Below the heap nothing changes. */
  MUST(brk((void *)PAGE) == 0 && sbrk(0) == end);
}

/* Unwinders ask this of addresses that may be anything. */
static void what_is_mapped(void) {
  unsigned char v[1024];
  char *q = map_rw(4 * MB);
  fill(q, 4 * MB, 5);
  MUST(munmap(q + MB, MB) == 0);
  /* What is unmapped is given to the window again now and then. */
  push_out();
  MUST(mincore(q + MB, PAGE, v) == -1 && errno == ENOMEM);
  MUST(mincore(q, 2 * MB, v) == -1 && errno == ENOMEM);
  MUST(syscall(SYS_mincore, q + MB, PAGE, v) == -1 && errno == ENOMEM);
  MUST(mincore(q, MB, v) == 0 && mincore(q + 2 * MB, MB, v) == 0);
  MUST(mincore(q + 1, PAGE, v) == -1 && errno == EINVAL);
  MUST(mincore(q, PAGE, (void *)8) == -1 && errno == EFAULT);
  verify(q, MB, 5, "in front of the hole");
}

int main(int argc, char **argv) {
  MUST(argc == 2);
  p = map_rw(bytes);
  fill(p, bytes, 1);
  if (!strcmp(argv[1], "partly_locked")) partly_locked();
  else if (!strcmp(argv[1], "everything_locked")) everything_locked();
  else if (!strcmp(argv[1], "heap")) heap();
  else if (!strcmp(argv[1], "clones")) clones();
  else if (!strcmp(argv[1], "mutexes")) mutexes();
  else if (!strcmp(argv[1], "looks_at_all")) looks_at_all();
  else if (!strcmp(argv[1], "hinted_while_unmapped")) hinted_while_unmapped();
  else if (!strcmp(argv[1], "mapped_behind_the_break")) mapped_behind_the_break();
  else if (!strcmp(argv[1], "what_is_mapped")) what_is_mapped();
  else STOP("unknown: %s", argv[1]);
  say("ok\n");
  return 0;
}
