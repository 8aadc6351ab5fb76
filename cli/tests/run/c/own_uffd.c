/* own_uffd: serves missing pages itself, on memory that is managed without that. */
#include "check.h"
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

static int uffd;
static char *fresh;
static unsigned served;

/* Page i of what was registered is full of i + 1. */
static void *serve(void *base) {
  static char page[PAGE];
  for (;;) {
    struct uffd_msg m;
    if (read(uffd, &m, sizeof m) != sizeof m) continue;
    MUST(m.event == UFFD_EVENT_PAGEFAULT);
    u64 at = m.arg.pagefault.address & ~(PAGE - 1);
    memset(page, (int)((at - (u64)base) / PAGE % 255 + 1), PAGE);
    struct uffdio_copy c = {.dst = at, .src = (u64)page, .len = PAGE};
    /* Counted before the program goes on. */
    __atomic_fetch_add(&served, 1, __ATOMIC_RELAXED);
    MUST(ioctl(uffd, UFFDIO_COPY, &c) == 0);
  }
}

static void verify_served(const char *base, size_t from, size_t to) {
  for (size_t i = from / PAGE; i < to / PAGE; i++)
    for (size_t j = 0; j < PAGE; j += 8)
      if (base[i * PAGE + j] != (char)(i % 255 + 1)) STOP("page %zu is wrong", i);
}

int main(void) {
  size_t bytes = 192 * MB, some = 8 * MB;
  char *p = map_rw(bytes);
  fill(p, bytes, 1);
  uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
  MUST(uffd >= 0);
  struct uffdio_api api = {.api = UFFD_API};
  MUST(ioctl(uffd, UFFDIO_API, &api) == 0);
  /* What is refused changes nothing: such memory goes on being swapped. */
  struct uffdio_register bad = {{(u64)p, bytes}, 1 << 20, 0};
  MUST(ioctl(uffd, UFFDIO_REGISTER, &bad) == -1 && errno == EINVAL);
  fill(p, bytes, 3);
  fill(p, bytes, 1);
  /* Fresh memory. */
  fresh = map_rw(some);
  struct uffdio_register r = {{(u64)fresh, some}, UFFDIO_REGISTER_MODE_MISSING, 0};
  MUST(ioctl(uffd, UFFDIO_REGISTER, &r) == 0);
  pthread_t t;
  MUST(pthread_create(&t, 0, serve, fresh) == 0);
  verify_served(fresh, 0, some);
  MUST(served == some / PAGE);
  /* Memory with contents, some of which is in swap: they stay until they are dropped. */
  char *mid = fresh + (u64)(p + 64 * MB - fresh) / (255 * PAGE) * (255 * PAGE);
  size_t before = mid - p;
  r.range.start = (u64)mid;
  MUST(syscall(SYS_ioctl, uffd, UFFDIO_REGISTER, &r) == 0);
  verify(p, bytes, 1, "registered");
  fill(p, bytes, 2);
  verify(p, bytes, 2, "written");
  MUST(madvise(mid, 2 * MB, MADV_DONTNEED) == 0);
  verify_served(mid, 0, 2 * MB);
  MUST(served == (some + 2 * MB) / PAGE);
  verify(p, before, 2, "below");
  verify_from(mid + 2 * MB, before + 2 * MB, bytes - before - 2 * MB, 2, "above");
  /* What is unmapped can be had again, managed. */
  MUST(munmap(fresh, some) == 0 && munmap(p, bytes) == 0);
  p = map_rw(bytes);
  fill(p, bytes, 3);
  verify(p, bytes, 3, "again");
  say("ok\n");
  return 0;
}
