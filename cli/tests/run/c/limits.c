/* Limits that a program sets itself, one at a time: the same with and without us. */
#include "check.h"
#include <sys/resource.h>
#include <sys/syscall.h>

static const size_t bytes = 96 * MB;
static char *p;

static void push_out(void) {
  for (int i = 0; i < 3; i++) {
    char *q = map_rw(40 * MB);
    fill(q, 40 * MB, 9);
    MUST(munmap(q, 40 * MB) == 0);
  }
}

static void limit(int what, rlim_t soft, rlim_t hard) {
  struct rlimit l = {soft, hard};
  MUST(setrlimit(what, &l) == 0);
}

static void same_limit(int what, rlim_t soft, rlim_t hard) {
  struct rlimit l;
  MUST(getrlimit(what, &l) == 0 && l.rlim_cur == soft && l.rlim_max == hard);
}

/* A child that finds everything as it was, and has a child of its own. */
static void children(int depth) {
  push_out();
  pid_t pid = fork();
  MUST(pid >= 0);
  if (pid == 0) {
    verify(p, bytes, 1, "in the child");
    if (depth) children(depth - 1);
    _exit(0);
  }
  wait_ok(pid, "child");
}

/* Mappings that are moved keep their protection. */
static void moved_read_only(void) {
  char *q = map_rw(4 * MB);
  fill(q, 4 * MB, 3);
  MUST(mprotect(q, 4 * MB, PROT_READ) == 0);
  char *to = map_rw(4 * MB);
  MUST(mremap(q, 4 * MB, 4 * MB, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
  verify(to, 4 * MB, 3, "moved");
  pid_t pid = fork();
  if (pid == 0) {
    signal(SIGSEGV, SIG_DFL);
    *(volatile char *)to = 1;
    _exit(0);
  }
  int status;
  MUST(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

/* Less than the engine itself has open. */
static void few_descriptors(void) {
  limit(RLIMIT_NOFILE, 16, 4096);
  children(2);
  moved_read_only();
  same_limit(RLIMIT_NOFILE, 16, 4096);
  limit(RLIMIT_NOFILE, 3, 4096);
  children(2);
  moved_read_only();
  same_limit(RLIMIT_NOFILE, 3, 4096);
}

/* None at all: what servers allow their workers that only compute. */
static void no_descriptors(void) {
  for (rlim_t few = 0; few < 3; few++) {
    limit(RLIMIT_NOFILE, few, 4096);
    children(1);
    moved_read_only();
    same_limit(RLIMIT_NOFILE, few, 4096);
  }
  limit(RLIMIT_NOFILE, 0, 0);
  push_out();
  verify(p, bytes, 1, "after the limit");
  fill(p, bytes, 2);
  verify(p, bytes, 2, "written after the limit");
}

/* Every descriptor is in use. */
static void all_descriptors(void) {
  limit(RLIMIT_NOFILE, 64, 64);
  while (dup(0) >= 0) {
  }
  MUST(errno == EMFILE);
  children(2);
  moved_read_only();
  MUST(mlockall(MCL_CURRENT | MCL_ONFAULT) == 0);
  MUST(madvise(p, MB, MADV_DONTNEED) == -1 && errno == EINVAL);
  MUST(munlockall() == 0);
  push_out();
  verify(p, bytes, 1, "at the end");
  MUST(dup(0) == -1 && errno == EMFILE);
}

/* No more processes than there are. */
static void few_processes(void) {
  MUST(setresuid(54321, 54321, 54321) == 0);
  limit(RLIMIT_NPROC, 2, 100);
  push_out();
  pid_t pid = fork();
  MUST(pid >= 0);
  if (pid == 0) {
    verify(p, bytes, 1, "in the child");
    same_limit(RLIMIT_NPROC, 2, 100);
    MUST(fork() == -1 && errno == EAGAIN);
    _exit(0);
  }
  wait_ok(pid, "child");
}

/* Files of this size only: what is written to swap is none of the program's files. */
static void small_files(void) {
  limit(RLIMIT_FSIZE, MB, MB);
  push_out();
  verify(p, bytes, 1, "after the limit");
  fill(p, bytes, 2);
  verify(p, bytes, 2, "written after the limit");
}

/* Less than there is already: what is there can be used, though the engine has no tables for it yet. */
static void less_memory(int what) {
  size_t much = 8192 * MB, each = 2 * MB;
  char *q = map_rw(much);
  limit(what, 100 * MB, RLIM_INFINITY);
  verify(p, bytes, 1, "after the limit");
  for (int k = 0; k < 3; k++)
    for (size_t i = 0; i < much; i += each) q[i + k * PAGE] = k + 1;
  for (int k = 0; k < 3; k++)
    for (size_t i = 0; i < much; i += each) MUST(q[i + k * PAGE] == k + 1);
  MUST(munmap(q, much) == 0);
  fill(p, bytes, 2);
  verify(p, bytes, 2, "written after the limit");
  for (int i = 0; i < 2; i++) {
    pid_t pid = fork();
    if (pid == 0) {
      verify(p, bytes, 2, "child");
      fill(p, bytes / 2, 3);
      verify(p, bytes / 2, 3, "child");
      same_limit(what, 100 * MB, RLIM_INFINITY);
      _exit(0);
    }
    MUST(pid > 0);
    wait_ok(pid, "child");
  }
  same_limit(what, 100 * MB, RLIM_INFINITY);
}

static void less_data(void) { less_memory(RLIMIT_DATA); }

static void fewer_addresses(void) { less_memory(RLIMIT_AS); }

/* Where memory is not overcommitted, what can be written counts against 1 TiB, touched or not. */
static void no_overcommit(void) {
  size_t too_much = 2048ul << 30, half = 640ul << 30;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  MUST(mmap(0, too_much, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED && errno == ENOMEM);
  MUST(mmap(0, too_much, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, -1, 0) == MAP_FAILED && errno == ENOMEM);
  MUST(sbrk(too_much) == (void *)-1 && errno == ENOMEM);
  char *q = mmap(0, too_much, PROT_NONE, flags, -1, 0);
  MUST(q != MAP_FAILED);
  MUST(mprotect(q, too_much, PROT_READ | PROT_WRITE) == -1 && errno == ENOMEM);
  MUST(mprotect(q, 32 * MB, PROT_READ | PROT_WRITE) == 0);
  fill(q, 32 * MB, 5);
  MUST(mremap(p, bytes, too_much, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM);
  push_out();
  verify(p, bytes, 1, "after a call that failed");
  verify(q, 32 * MB, 5, "opened");
  MUST(munmap(q, too_much) == 0);
  children(2);
  /* A child would count as much again. */
  q = mmap(0, half, PROT_READ | PROT_WRITE, flags, -1, 0);
  MUST(q != MAP_FAILED);
  fill(q, MB, 6);
  MUST(fork() == -1 && errno == ENOMEM);
  push_out();
  verify(q, MB, 6, "after a fork that failed");
  MUST(munmap(q, half) == 0);
  children(1);
}

static void *deep(void *arg) {
  volatile char a[32 << 10];
  for (size_t i = 0; i < sizeof a; i++) a[i] = i;
  char *q = map_rw(MB);
  fill(q, MB, 4);
  verify(q, MB, 4, "in a thread");
  MUST(munmap(q, MB) == 0);
  return arg;
}

static void small_stacks(char **argv) {
  if (!getenv("AGAIN")) {
    limit(RLIMIT_STACK, 256 << 10, RLIM_INFINITY);
    children(1);
    setenv("AGAIN", "1", 1);
    execv("/proc/self/exe", argv);
    STOP("exec");
  }
  if (!strcmp(getenv("AGAIN"), "1")) {
    same_limit(RLIMIT_STACK, 256 << 10, RLIM_INFINITY);
    pthread_t t;
    MUST(pthread_create(&t, 0, deep, 0) == 0 && pthread_join(t, 0) == 0);
    /* The old way of laying out addresses. */
    limit(RLIMIT_STACK, RLIM_INFINITY, RLIM_INFINITY);
    setenv("AGAIN", "2", 1);
    execv("/proc/self/exe", argv);
    STOP("exec");
  }
  children(1);
}

/* Threads by the thousand, each with words of its own in memory that all share. */
enum { THREADS = 2000, ROUNDS = 6 };
static pthread_barrier_t all_there;

static void *one_of_many(void *arg) {
  size_t t = (size_t)arg;
  pthread_barrier_wait(&all_there);
  u64 rng = t;
  for (int r = 0; r < ROUNDS; r++) {
    u64 *w = (u64 *)(p + (bytes / THREADS / 8 * 8) * t);
    size_t n = bytes / THREADS / 8;
    for (size_t i = 0; i < n; i++)
      if (w[i] != (r ? mix(t * 1000003 + r * 7919 + i) : mix((char *)&w[i] - p + 1)))
        STOP("thread %zu, round %d: word %zu is %llx", t, r, i, (unsigned long long)w[i]);
    for (size_t i = 0; i < n; i++) w[i] = mix(t * 1000003 + (r + 1) * 7919 + i);
    /* And each calls into the hooks. */
    size_t len = (1 + next(&rng) % 16) * PAGE;
    char *q = map_rw(len);
    fill(q, len, t);
    if (r % 2) sched_yield();
    verify(q, len, t, "a mapping of a thread");
    MUST(munmap(q, len) == 0);
    char *h = malloc(5000);
    memset(h, t, 5000);
    MUST(h[4999] == (char)t);
    free(h);
  }
  return 0;
}

static void many_threads(void) {
  static pthread_t th[THREADS];
  pthread_attr_t a;
  MUST(pthread_attr_init(&a) == 0 && pthread_attr_setstacksize(&a, 64 << 10) == 0);
  MUST(pthread_barrier_init(&all_there, 0, THREADS) == 0);
  for (size_t t = 0; t < THREADS; t++) MUST(pthread_create(&th[t], &a, one_of_many, (void *)t) == 0);
  for (size_t t = 0; t < THREADS; t++) MUST(pthread_join(th[t], 0) == 0);
}

int main(int argc, char **argv) {
  MUST(argc == 2);
  p = map_rw(bytes);
  fill(p, bytes, 1);
  if (!strcmp(argv[1], "few_descriptors")) few_descriptors();
  else if (!strcmp(argv[1], "no_descriptors")) no_descriptors();
  else if (!strcmp(argv[1], "all_descriptors")) all_descriptors();
  else if (!strcmp(argv[1], "few_processes")) few_processes();
  else if (!strcmp(argv[1], "less_data")) less_data();
  else if (!strcmp(argv[1], "fewer_addresses")) fewer_addresses();
  else if (!strcmp(argv[1], "small_files")) small_files();
  else if (!strcmp(argv[1], "no_overcommit")) no_overcommit();
  else if (!strcmp(argv[1], "small_stacks")) small_stacks(argv);
  else if (!strcmp(argv[1], "many_threads")) many_threads();
  else STOP("unknown: %s", argv[1]);
  say("ok\n");
  return 0;
}
