/* What the kernel itself reads and writes when processes and threads begin and end, on pages that are in swap. */
#include "check.h"
#include <linux/futex.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

static const size_t bytes = 128 * MB;
static char *p;
static volatile int go;

static void push_out(void) {
  madvise(p, bytes, MADV_PAGEOUT);
  for (int i = 0; i < 3; i++) {
    char *q = map_rw(40 * MB);
    fill(q, 40 * MB, 9);
    MUST(munmap(q, 40 * MB) == 0);
  }
}

/* All but `len` bytes at `at`, which the kernel or the program has changed. */
static void verify_all_but(char *at, size_t len, const char *what) {
  u64 *w = (u64 *)p;
  for (size_t i = 0; i < bytes / 8; i++)
    if (p + i * 8 + 8 <= at || p + i * 8 >= at + len)
      if (w[i] != mix(i * 8 + 1)) STOP("%s: wrong at %zu: %llx", what, i * 8, (unsigned long long)w[i]);
}

static void in_parent(const char *what, long pid, int *word, int want) {
  MUST(pid > 0);
  if (want && *word != want) STOP("%s: %d, not %d", what, *word, want);
  wait_ok(pid, what);
}

static void words_of_clone(void) {
  int *word = (int *)(p + 9 * MB + 8);
  for (int in_child = 0; in_child < 2; in_child++) {
    push_out();
    long pid = syscall(SYS_clone, SIGCHLD | (in_child ? CLONE_CHILD_SETTID : CLONE_PARENT_SETTID), 0, word, word, 0);
    if (pid == 0) {
      if (in_child && *word != getpid()) STOP("the child's number is %d", *word);
      verify_all_but((char *)word, in_child ? 8 : 0, "child");
      _exit(0);
    }
    in_parent("word", pid, word, in_child ? 0 : pid);
    *(u64 *)word = mix((char *)word - p + 1);
  }
  push_out();
  long pid = syscall(SYS_clone, SIGCHLD | CLONE_PIDFD, 0, word, 0, 0);
  if (pid == 0) _exit(0);
  MUST(pid > 0 && fcntl(*word, F_GETFD) == FD_CLOEXEC && close(*word) == 0);
  wait_ok(pid, "pidfd");
  *(u64 *)word = mix((char *)word - p + 1);
  verify(p, bytes, 1, "parent");
}

static void words_of_clone3(void) {
  struct clone_args *a = (void *)(p + 20 * MB);
  int *pidfd = (int *)(p + 30 * MB), *parent = pidfd + MB, *child = pidfd + 2 * MB;
  memset(a, 0, sizeof *a);
  a->flags = CLONE_PIDFD | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
  a->pidfd = (u64)pidfd, a->parent_tid = (u64)parent, a->child_tid = (u64)child;
  a->exit_signal = SIGCHLD;
  push_out();
  long pid = syscall(SYS_clone3, a, sizeof *a);
  if (pid == 0) {
    MUST(*child == getpid() && *parent != getpid());
    verify((char *)child + 8 - 8 * MB, 8 * MB - 8, 1 + (38 - 8) * MB + 8, "before the child's word");
    _exit(0);
  }
  MUST(fcntl(*pidfd, F_GETFD) == FD_CLOEXEC && close(*pidfd) == 0);
  MUST(*child != pid);
  in_parent("clone3", pid, parent, pid);
  /* As the kernel refuses it: nowhere, too short, not writable. */
  MUST(syscall(SYS_clone3, 0, 0) == -1 && errno == EINVAL);
  MUST(syscall(SYS_clone3, 0, sizeof *a) == -1 && errno == EFAULT);
  MUST(syscall(SYS_clone3, a, 8) == -1 && errno == EINVAL);
  MUST(syscall(SYS_clone, SIGCHLD | CLONE_PIDFD, 0, 8, 0, 0) == -1 && errno == EFAULT);
  a->pidfd = (u64)words_of_clone3;
  MUST(syscall(SYS_clone3, a, sizeof *a) == -1 && errno == EFAULT);
}

static void until_zero(int *word, const char *what) {
  struct timespec t = {20, 0};
  for (int now; (now = *(volatile int *)word);)
    if (syscall(SYS_futex, word, FUTEX_WAIT, now, &t, 0, 0) == -1 && errno == ETIMEDOUT) STOP("%s: nobody woke us", what);
}

static int wait_to_go(void *arg) {
  (void)arg;
  while (!go) sched_yield();
  return 0;
}

static void *with_address(void *word) {
  MUST(syscall(SYS_set_tid_address, word) == syscall(SYS_gettid));
  go = 1;
  while (go != 2) sched_yield();
  return 0;
}

static void cleared_words(void) {
  int *word = (int *)(p + 9 * MB);
  char *stack = map_rw(MB);
  *word = 1;
  push_out();
  int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
  MUST(clone(wait_to_go, stack + MB, flags | CLONE_CHILD_CLEARTID, 0, 0, 0, word) > 0);
  push_out();
  go = 1;
  until_zero(word, "clone");
  verify_all_but((char *)word, 8, "clone");
  go = 0, *word = 1;
  pthread_attr_t a;
  pthread_t t;
  MUST(pthread_attr_init(&a) == 0 && pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED) == 0);
  MUST(pthread_create(&t, &a, with_address, word) == 0);
  while (!go) sched_yield();
  push_out();
  go = 2;
  until_zero(word, "set_tid_address");
  verify_all_but((char *)word, 8, "set_tid_address");
}

struct entry {
  struct entry *next;
  int word;
};
static struct entry *entries[3];

static void *with_list(void *last_call) {
  struct {
    struct entry *first;
    long offset;
    struct entry *pending;
  } *head = (void *)(p + 9 * MB);
  head->first = entries[0], head->offset = offsetof(struct entry, word), head->pending = entries[2];
  entries[0]->next = entries[1], entries[1]->next = (void *)head;
  MUST(syscall(SYS_set_robust_list, head, sizeof *head) == 0);
  for (int i = 0; i < 3; i++) entries[i]->word = syscall(SYS_gettid);
  go = 1;
  while (go != 2) sched_yield();
  if (last_call) syscall(SYS_exit, 0);
  return 0;
}

static void robust_lists(void) {
  for (int i = 0; i < 3; i++) entries[i] = (void *)(p + (20 + 10 * i) * MB + 100 * PAGE);
  for (long by_call = 0; by_call < 2; by_call++) {
    pthread_t t;
    go = 0;
    MUST(pthread_create(&t, 0, with_list, (void *)by_call) == 0);
    while (!go) sched_yield();
    push_out();
    go = 2;
    MUST(pthread_join(t, 0) == 0);
    for (int i = 0; i < 3; i++)
      if (!(entries[i]->word & FUTEX_OWNER_DIED)) STOP("futex %d: %x", i, entries[i]->word);
  }
}

/* Its page leaves while the first thread runs, whose own sleeps would bring it back. */
static void *push_out_page(void *page) {
  unsigned char in;
  for (;;) {
    while (go != 1) sched_yield();
    for (int i = 0; i < 50; i++) {
      MUST(madvise((char *)page - MB, 2 * MB, MADV_PAGEOUT) == 0 && mincore(page, PAGE, &in) == 0);
      if (!(in & 1)) break;
      usleep(1000);
    }
    go = 2;
  }
  return 0;
}

static void rseq_area(void) {
  const unsigned sign = 0x53053053;
  char *tp;
  __asm__("mov %%fs:0x10, %0" : "=r"(tp));
  struct rseq *mine = (struct rseq *)(p + 9 * MB);
  MUST(__rseq_size != 0);
  MUST(syscall(SYS_rseq, tp + __rseq_offset, 32, RSEQ_FLAG_UNREGISTER, sign) == 0);
  memset(mine, 0, 32);
  mine->cpu_id = RSEQ_CPU_ID_UNINITIALIZED;
  MUST(syscall(SYS_rseq, mine, 32, 0, sign) == 0);
  push_out();
  pthread_t t;
  MUST(pthread_create(&t, 0, push_out_page, mine) == 0);
  for (int i = 0; i < 20; i++) {
    for (go = 1; go == 1;) {
    }
    pid_t pid = fork();
    if (pid == 0) {
      if (i == 19) verify_all_but((char *)mine, 32, "child");
      MUST((int)mine->cpu_id >= 0);
      _exit(0);
    }
    wait_ok(pid, "child");
  }
  verify_all_but((char *)mine, 32, "parent");
}

int main(int argc, char **argv) {
  MUST(argc == 2);
  p = map_rw(bytes);
  fill(p, bytes, 1);
  if (!strcmp(argv[1], "words_of_clone")) words_of_clone();
  else if (!strcmp(argv[1], "words_of_clone3")) words_of_clone3();
  else if (!strcmp(argv[1], "cleared_words")) cleared_words();
  else if (!strcmp(argv[1], "robust_lists")) robust_lists();
  else if (!strcmp(argv[1], "rseq_area")) rseq_area();
  else STOP("unknown: %s", argv[1]);
  say("ok\n");
  return 0;
}
