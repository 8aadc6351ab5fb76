/* Calls that wait for the program itself: its userfaultfd is told of what is unmapped, dropped and forked. */
#include "check.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

enum { WAITERS = 100 };
static int uffd;
static char *base;
static volatile int asking;

static void *drop(void *k) {
  char *at = base + (size_t)k * 16 * PAGE;
  __atomic_fetch_add(&asking, 1, __ATOMIC_SEQ_CST);
  if ((size_t)k % 2) MUST(munmap(at, 16 * PAGE) == 0);
  else MUST(madvise(at, 16 * PAGE, MADV_DONTNEED) == 0);
  return 0;
}


static void *reader(void *count) {
  struct uffd_msg m;
  while (read(uffd, &m, sizeof m) == sizeof m) {
    if (m.event == UFFD_EVENT_FORK) close(m.arg.fork.ufd);
    ++*(int *)count;
  }
  return 0;
}

int main(void) {
  const size_t n = 96 * MB;
  char *p = map_rw(n);
  fill(p, n, 1);
  uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
  struct uffdio_api api = {UFFD_API, UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_FORK, 0};
  MUST(uffd >= 0 && ioctl(uffd, UFFDIO_API, &api) == 0);
  base = map_rw(WAITERS * 16 * PAGE);
  struct uffdio_register r = {{(u64)base, WAITERS * 16 * PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
  MUST(ioctl(uffd, UFFDIO_REGISTER, &r) == 0);
  pthread_t t[WAITERS], reading;
  for (size_t i = 0; i < WAITERS; i++) MUST(pthread_create(&t[i], 0, drop, (void *)i) == 0);
  while (asking < WAITERS) sched_yield();
  /* They wait until somebody reads, and meanwhile the program goes on. */
  for (int i = 0; i < 200; i++) {
    char *q = map_rw(MB);
    fill(q, MB, i);
    verify(q, MB, i, "while they wait");
    MUST(munmap(q, MB) == 0);
  }
  static int events;
  MUST(pthread_create(&reading, 0, reader, &events) == 0);
  for (int i = 0; i < 10; i++) {
    pid_t pid = fork();
    if (pid == 0) {
      verify(p, n, 1, "child");
      _exit(0);
    }
    wait_ok(pid, "child");
  }
  for (size_t i = 0; i < WAITERS; i++) MUST(pthread_join(t[i], 0) == 0);
  MUST(events >= WAITERS + 10);
  verify(p, n, 1, "at the end");
  say("ok\n");
  return 0;
}
