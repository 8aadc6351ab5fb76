/* pkey_mprotect. -1 for a key: as mprotect, also where the processor knows no keys. */
#include "check.h"
#include <sys/syscall.h>

static int protect(void *at, size_t n, int prot, int key) { return syscall(SYS_pkey_mprotect, at, n, prot, key); }

static const int RW = PROT_READ | PROT_WRITE;

/* Memory that is opened by it can be swapped out, and what is closed by it can not be written. */
static void no_key(void) {
  const size_t n = 128 * MB;
  char *p = mmap(0, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  MUST(p != MAP_FAILED);
  MUST(protect(p, n / 2, RW, -1) == 0 && pkey_mprotect(p + n / 2, n / 2, RW, -1) == 0);
  fill(p, n, 1);
  verify(p, n, 1, "opened");
  MUST(protect(p, n, PROT_READ, -1) == 0);
  verify(p, 8 * MB, 1, "read only");
  int zero = open("/dev/zero", O_RDONLY);
  MUST(zero >= 0 && read(zero, p + n / 4, 1) == -1 && errno == EFAULT && close(zero) == 0);
  MUST(protect(p, n, RW, -1) == 0);
  fill(p, n, 2);
  verify(p, n, 2, "opened again");
  /* What is not mapped is not opened either. */
  MUST(munmap(p + MB, MB) == 0);
  MUST(protect(p, 4 * MB, RW, -1) == -1 && errno == ENOMEM);
  MUST(protect(p, 4 * MB, RW, 77) == -1 && errno == EINVAL);
  verify(p, MB, 2, "before the hole");
  MUST(munmap(p, n) == 0);
}

static void with_key(int key) {
  const size_t n = 32 * MB, others = 96 * MB;
  char *p = map_rw(n), *other = map_rw(others);
  fill(p, n, 1);
  fill(other, others, 2);
  /* Part of it is in swap now. */
  MUST(protect(p, n, RW, key) == 0);
  verify(p, n, 1, "with a key");
  fill(other, others, 3);
  verify(p, n, 1, "with a key, after others");
  fill(p, n, 4);
  fill(other, others, 5);
  verify(p, n, 4, "written with a key");
  char *q = mremap(p, n, n + 4 * MB, MREMAP_MAYMOVE);
  MUST(q != MAP_FAILED);
  verify(q, n, 4, "moved with a key");
  pid_t pid = fork();
  if (pid == 0) {
    verify(q, n, 4, "a child's");
    _exit(0);
  }
  wait_ok(pid, "child");
  MUST(protect(q, n + 4 * MB, RW, 0) == 0);
  fill(other, others, 6);
  verify(q, n, 4, "without it again");
  verify(other, others, 6, "others");
}

int main(void) {
  no_key();
  int key = syscall(SYS_pkey_alloc, 0, 0);
  if (key > 0) with_key(key);
  say("ok\n");
  return 0;
}
