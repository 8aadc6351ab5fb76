/* Asks the kernel for all kinds of changes of all kinds of stretches, most of which it refuses or carries out in part,
   and prints what it answered and what every page is afterwards. The same with and without us. */
#include "check.h"
#include <linux/capability.h>
#include <sys/ipc.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#define PAGES 640ul
#define ROOM (8 * MB)

/* The pages leave, where there is somebody who takes them: without us they stay. */
static void push_out(char *from, size_t pages) {
  unsigned char there[1];
  static int in_vain;
  if (in_vain || !getenv("HUGESWAP_RUN")) return;
  for (int tries = 0; tries < 2000; tries++) {
    madvise(from, pages * PAGE, MADV_PAGEOUT);
    size_t n = 0;
    /* Page by page: there may be holes. */
    for (size_t k = 0; k < pages; k++) n += !syscall(SYS_mincore, from + k * PAGE, PAGE, there) && there[0] & 1;
    if (n < pages / 8) return;
    usleep(100);
  }
  in_vain = 1;
}

/* What a page is: its own contents, another's, zeros, something else; small letters for what can't be written to. */
static char page_is(char *at, char *region) {
  char bytes[PAGE];
  struct iovec here = {bytes, PAGE}, there = {at, PAGE};
  if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != PAGE) return '-';
  struct iovec one = {bytes, 1}, back = {at, 1};
  int locked = process_vm_writev(getpid(), &one, 1, &back, 1, 0) != 1;
  u64 *w = (u64 *)bytes, zero = 0;
  for (size_t i = 0; i < 512; i++) zero |= w[i];
  if (!zero) return locked ? 'z' : 'Z';
  u64 first = (w[0] >> 16) * PAGE;
  char what = first == (u64)(at - region) ? 'O' : 'M';
  for (size_t i = 0; i < 512; i++)
    if (w[i] != ((w[0] >> 16) << 16 | i)) what = 'X';
  return locked ? what + 32 : what;
}

static void show(char *from, size_t pages, char *region) {
  char last = 0;
  size_t run = 0;
  for (size_t k = 0; k <= pages; k++) {
    char c = k < pages ? page_is(from + k * PAGE, region) : 0;
    if (c == last) {
      run++;
      continue;
    }
    if (last) printf(" %zu%c", run, last);
    last = c;
    run = 1;
  }
  printf("\n");
}

/* Pages 0-127 plain, 128-191 read only, 192-255 plain, 256-259 not there, 260-383 plain, 384 locked, 385-511 plain,
   512-527 inaccessible, 528-639 plain. On both sides nothing may be touched. */
static char *set_up(int sealed) {
  char *room = mmap(0, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  MUST(room != MAP_FAILED);
  char *r = (char *)(((u64)room + 2 * MB + 2 * MB - 1) & -(2 * MB)) + 7 * PAGE;
  MUST(mprotect(r, PAGES * PAGE, PROT_READ | PROT_WRITE) == 0);
  for (size_t k = 0; k < PAGES; k++)
    for (size_t i = 0; i < 512; i++) ((u64 *)(r + k * PAGE))[i] = k << 16 | i;
  MUST(mprotect(r + 128 * PAGE, 64 * PAGE, PROT_READ) == 0);
  MUST(munmap(r + 256 * PAGE, 4 * PAGE) == 0);
  MUST(mlock(r + 384 * PAGE, PAGE) == 0);
  MUST(mprotect(r + 512 * PAGE, 16 * PAGE, PROT_NONE) == 0);
  if (sealed) MUST(syscall(SYS_mseal, r + 560 * PAGE, 4 * PAGE, 0) == 0);
  /* Out with it, but for some pages. */
  push_out(r, 128);
  push_out(r + 192 * PAGE, 64);
  push_out(r + 260 * PAGE, 124);
  push_out(r + 385 * PAGE, 127);
  push_out(r + 528 * PAGE, PAGES - 528);
  for (size_t k = 0; k < PAGES; k += 37)
    if (k < 128 || k >= 260) {
      struct iovec here = {&(char){0}, 1}, there = {r + k * PAGE, 1};
      process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    }
  return r;
}

struct stretch {
  const char *name;
  long from, pages;
};

static const struct stretch stretches[] = {
    {"plain", 10, 100},  {"writable and read only", 100, 100}, {"a hole", 230, 60},   {"a locked page", 340, 100},
    {"inaccessible", 500, 80}, {"all", 0, PAGES},             {"behind the end", 600, 60}, {"sealed", 540, 60},
};

enum kind { UNMAP, MAP, NOREPLACE, BAD_FD, WRONG_FD, HUGETLB, PROTECT, ADVISE, LOCK, UNLOCK, REMAP, SELF, ATTACH };
struct call {
  const char *name;
  enum kind kind;
  int how;
};

static const struct call calls[] = {
    {"munmap", UNMAP, 0},
    {"mmap fixed", MAP, PROT_READ | PROT_WRITE},
    {"mmap fixed, none", MAP, PROT_NONE},
    {"mmap noreplace", NOREPLACE, 0},
    {"mmap without a file", BAD_FD, 0},
    {"mmap of a file that can't be", WRONG_FD, 0},
    {"mprotect none", PROTECT, PROT_NONE},
    {"mprotect read", PROTECT, PROT_READ},
    {"mprotect both", PROTECT, PROT_READ | PROT_WRITE},
    {"mprotect nonsense", PROTECT, 0x100000},
    {"dontneed", ADVISE, 4},
    {"dontneed locked", ADVISE, 24},
    {"willneed", ADVISE, 3},
    {"random", ADVISE, 1},
    {"cold", ADVISE, 20},
    {"pageout", ADVISE, 21},
    {"nohugepage", ADVISE, 15},
    {"dontfork", ADVISE, 10},
    {"dofork", ADVISE, 11},
    {"wipeonfork", ADVISE, 18},
    {"remove", ADVISE, 9},
    {"populate write", ADVISE, 23},
    {"guard", ADVISE, 102},
    {"nonsense", ADVISE, 12345},
    {"mlock", LOCK, 0},
    {"mlock above the limit", LOCK, 1},
    {"munlock", UNLOCK, 0},
    {"mremap, shorter", REMAP, 0},
    {"mremap, longer", REMAP, 1},
    {"mremap, longer elsewhere", REMAP, 2},
    {"mremap to a place", REMAP, 3},
    {"mremap to another phase", REMAP, 4},
    {"mremap with dontunmap", REMAP, 5},
    {"mremap, dontunmap alone", REMAP, 6},
    {"mremap, unknown flag", REMAP, 7},
    {"mremap onto itself", REMAP, 8},
    {"mremap to nothing", REMAP, 9},
    {"process_madvise", SELF, 4},
    {"shmat", ATTACH, 0},
    {"shmat over it", ATTACH, 1},
};

/* CAP_IPC_LOCK is without limit. */
static void may_lock(int all) {
  struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2];
  MUST(syscall(SYS_capget, &head, data) == 0);
  if (all)
    data[0].effective |= 1u << CAP_IPC_LOCK;
  else
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
  MUST(syscall(SYS_capset, &head, data) == 0);
}

static long ask(const struct call *c, char *r, char *at, size_t n, char **moved) {
  char *place = r + 1024 * PAGE;
  int flags = MREMAP_MAYMOVE;
  long result = -1;
  int fd;
  switch (c->kind) {
  case UNMAP: return munmap(at, n);
  case MAP: return (long)mmap(at, n, c->how, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (long)at ? 0 : -1;
  case NOREPLACE:
    return (long)mmap(at, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == (long)at ? 0 : -1;
  case BAD_FD: return (long)mmap(at, n, PROT_READ, MAP_PRIVATE | MAP_FIXED, -1, 0);
  case HUGETLB:
    return (long)mmap(at, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_HUGETLB, -1, 0);
  case WRONG_FD:
    fd = open("/dev/null", O_WRONLY);
    result = (long)mmap(at, n, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
    close(fd);
    return result;
  case PROTECT: return mprotect(at, n, c->how);
  case ADVISE: return madvise(at, n, c->how);
  case LOCK: {
    struct rlimit was, low = {16 * PAGE, 16 * PAGE};
    getrlimit(RLIMIT_MEMLOCK, &was);
    low.rlim_max = was.rlim_max;
    if (c->how) {
      MUST(setrlimit(RLIMIT_MEMLOCK, &low) == 0);
      may_lock(0);
    }
    result = mlock(at, n);
    int e = errno;
    if (c->how) {
      may_lock(1);
      MUST(setrlimit(RLIMIT_MEMLOCK, &was) == 0);
    }
    errno = e;
    return result;
  }
  case UNLOCK: return munlock(at, n);
  case REMAP: {
    size_t to = n;
    switch (c->how) {
    case 0: to = PAGE, flags = 0; break;
    case 1: to = n + 32 * PAGE, flags = 0; break;
    case 2: to = n + 32 * PAGE; break;
    case 3: flags |= MREMAP_FIXED; break;
    case 4: flags |= MREMAP_FIXED, place += 77 * PAGE; break;
    case 5: flags |= MREMAP_FIXED | MREMAP_DONTUNMAP; break;
    case 6: flags = MREMAP_DONTUNMAP; break;
    case 7: flags |= 64; break;
    case 8: flags |= MREMAP_FIXED, place = at + PAGE; break;
    case 9: to = 0; break;
    }
    void *got = mremap(at, n, to, flags, place);
    if (got == MAP_FAILED) return -1;
    if (got != at) *moved = got;
    return 0;
  }
  case SELF: {
    struct iovec v[3] = {{at, PAGE}, {at + PAGE, n - 2 * PAGE}, {at + n - PAGE, PAGE}};
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    result = syscall(SYS_process_madvise, self, v, 3, c->how, 0);
    int e = errno;
    close(self);
    errno = e;
    return result;
  }
  case ATTACH: {
    int id = shmget(IPC_PRIVATE, n, IPC_CREAT | 0600);
    void *got = shmat(id, at, c->how ? SHM_REMAP : 0);
    int e = errno;
    shmctl(id, IPC_RMID, 0);
    if (got != (void *)-1) MUST(shmdt(got) == 0);
    errno = e;
    return got == (void *)-1 ? -1 : 0;
  }
  }
  return -1;
}

/* The heap: what it refuses changes nothing. */
static void heap(void) {
  char *start = sbrk(0);
  size_t n = 4 * MB;
  MUST(brk(start + n) == 0);
  for (size_t k = 0; k < n; k += 8) *(u64 *)(start + k) = k;
  push_out(start, 1024);
  struct rlimit was, low;
  getrlimit(RLIMIT_DATA, &was);
  low = was;
  low.rlim_cur = 8 * MB;
  MUST(setrlimit(RLIMIT_DATA, &low) == 0);
  int r = brk(start + 1024 * MB);
  printf("brk above the limit: %d %d, %d\n", r, r ? errno : 0, (char *)sbrk(0) == start + n);
  MUST(setrlimit(RLIMIT_DATA, &was) == 0);
  r = brk(start + n / 2);
  MUST(brk(start + n) == 0);
  size_t kept = 0, zero = 0;
  for (size_t k = 0; k < n; k += 8) kept += *(u64 *)(start + k) == k, zero += *(u64 *)(start + k) == 0;
  printf("brk down and up: %d, %zu kept, %zu zero\n", r, kept, zero);
}

int main(void) {
  static char out[1 << 16];
  setvbuf(stdout, out, _IOFBF, sizeof out);
  int can_seal = syscall(SYS_mseal, 0, 0, 0) == 0;
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    for (size_t k = 0; k < sizeof stretches / sizeof *stretches; k++) {
      const struct call *c = &calls[i];
      const struct stretch *s = &stretches[k];
      int sealed = can_seal && !strcmp(s->name, "sealed");
      char *r = set_up(sealed), *at = r + s->from * PAGE, *moved = 0;
      errno = 0;
      long result = ask(c, r, at, s->pages * PAGE, &moved);
      int e = result < 0 ? errno : 0;
      printf("%s, %s: %ld %s:", c->name, s->name, result, e ? strerrorname_np(e) : "ok");
      show(r, PAGES, r);
      if (moved) {
        printf("  there:");
        show(moved, s->pages, r);
        munmap(moved, s->pages * PAGE + 32 * PAGE);
      }
      /* Again usable, and empty. */
      if (!sealed) {
        MUST(munmap(r - PAGE, PAGES * PAGE + 2 * PAGE) == 0);
        char *again = mmap(r, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        MUST(again == r);
        for (size_t j = 0; j < 64 * PAGE; j++) MUST(!again[j]);
        again[0] = 1;
      }
    }
  }
  heap();
  fflush(stdout);
  return 0;
}
