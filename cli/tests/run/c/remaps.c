/* mremap of memory that is swapped out, of which something was said before: it goes along. One case at a time. */
#include "check.h"
#include <linux/io_uring.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

static const size_t bytes = 100 * MB;
static char *p;

static char *elsewhere(size_t n) { return mremap(p, n, n + 2 * MB, MREMAP_MAYMOVE); }

static void blocked(void) {
  /* Nothing can grow where it is. */
  MUST(mmap(p + bytes, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == p + bytes);
}

static int signal_of(void (*f)(char *), char *at) {
  pid_t pid = fork();
  if (pid == 0) {
    signal(SIGSEGV, SIG_DFL);
    f(at);
    _exit(0);
  }
  int status;
  MUST(waitpid(pid, &status, 0) == pid);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void touch(char *at) { *(volatile char *)at; }

static void wiped(void) {
  blocked();
  MUST(madvise(p, bytes, MADV_WIPEONFORK) == 0);
  char *q = elsewhere(bytes);
  MUST(q != MAP_FAILED && q != p);
  pid_t pid = fork();
  if (pid == 0) {
    verify_zero(q, bytes, "the child's");
    _exit(0);
  }
  wait_ok(pid, "child");
  verify(q, bytes, 1, "the parent's");
}

static void not_for_children(void) {
  blocked();
  MUST(madvise(p, bytes, MADV_DONTFORK) == 0);
  char *q = elsewhere(bytes);
  MUST(q != MAP_FAILED && q != p);
  MUST(signal_of(touch, q) == SIGSEGV);
  MUST(signal_of(touch, q + bytes - PAGE) == SIGSEGV);
  verify(q, bytes, 1, "the parent's");
}

static void guarded(void) {
  blocked();
  if (madvise(p + 4 * MB, 3 * PAGE, MADV_GUARD_INSTALL)) {
    MUST(errno == EINVAL);
    return;
  }
  char *q = elsewhere(bytes);
  MUST(q != MAP_FAILED && q != p);
  MUST(signal_of(touch, q + 4 * MB + PAGE) == SIGSEGV);
  verify(q, 4 * MB, 1, "before");
  size_t behind = 4 * MB + 3 * PAGE;
  verify_from(q + behind, behind, bytes - behind, 1, "behind");
}

static void keyed(void) {
  blocked();
  int key = syscall(SYS_pkey_alloc, 0, 0);
  if (key < 0) return;
  MUST(syscall(SYS_pkey_mprotect, p, bytes, PROT_READ | PROT_WRITE, key) == 0);
  char *q = elsewhere(bytes);
  MUST(q != MAP_FAILED && q != p);
  char line[256];
  FILE *f = fopen("/proc/self/smaps", "r");
  int found = 0, ours = 0;
  while (fgets(line, sizeof line, f)) {
    unsigned long from, to;
    if (sscanf(line, "%lx-%lx ", &from, &to) == 2) ours = from <= (u64)q && (u64)q < to;
    if (ours && !strncmp(line, "ProtectionKey:", 14)) found = atoi(line + 14) == key;
  }
  fclose(f);
  MUST(found);
  verify(q, bytes, 1, "with a key");
}

static void *ring_at(int ring, size_t n, long what) {
  void *at = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, ring, what);
  MUST(at != MAP_FAILED);
  return at;
}

/* A buffer that is registered with a ring moves: what is read into it is where it is now. */
static void pinned(void) {
  blocked();
  struct io_uring_params u = {0};
  int ring = syscall(SYS_io_uring_setup, 4, &u);
  if (ring < 0) return;
  char *sq = ring_at(ring, PAGE, IORING_OFF_SQ_RING), *cq = ring_at(ring, PAGE, IORING_OFF_CQ_RING);
  struct io_uring_sqe *sqe = ring_at(ring, PAGE, IORING_OFF_SQES);
  struct iovec v = {p + 8 * MB, MB};
  MUST(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &v, 1) == 0);
  char name[] = "/var/tmp/hugeswap-remaps-XXXXXX";
  int fd = mkstemp(name);
  MUST(fd >= 0 && unlink(name) == 0);
  char *buffer = map_rw(MB), *at = p;
  for (int i = 0; i < 6; i++) {
    char *q = mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, i % 2 ? p : p + 200 * MB + 5 * PAGE);
    MUST(q != MAP_FAILED);
    at = q;
    fill(buffer, MB, 70 + i);
    MUST(pwrite(fd, buffer, MB, 0) == (ssize_t)MB);
    *sqe = (struct io_uring_sqe){.opcode = IORING_OP_READ_FIXED, .fd = fd, .addr = (u64)(p + 8 * MB), .len = MB};
    for (unsigned k = 0; k < u.sq_entries; k++) ((unsigned *)(sq + u.sq_off.array))[k] = 0;
    __atomic_add_fetch((unsigned *)(sq + u.sq_off.tail), 1, __ATOMIC_SEQ_CST);
    MUST(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) == 1);
    unsigned *head = (unsigned *)(cq + u.cq_off.head), mask = *(unsigned *)(cq + u.cq_off.ring_mask);
    struct io_uring_cqe *done = (struct io_uring_cqe *)(cq + u.cq_off.cqes) + (*head & mask);
    if (done->res != (int)MB) STOP("read: %d", done->res);
    __atomic_add_fetch(head, 1, __ATOMIC_SEQ_CST);
    verify(at + 8 * MB, MB, 70 + i, "what was read");
  }
  verify(at, 8 * MB, 1, "before it");
}

/* To all kinds of places, and back. */
static void phases(void) {
  char *room = mmap(0, 300 * MB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  MUST(room != MAP_FAILED);
  u64 seed = 3;
  char *at = p;
  for (int i = 0; i < 12; i++) {
    char *to = room + next(&seed) % (190 * MB / PAGE) * PAGE;
    if (to < at + bytes && at < to + bytes) continue;
    char *q = mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | (i % 5 == 4 ? MREMAP_DONTUNMAP : 0), to);
    MUST(q == to);
    if (i % 5 == 4) verify_zero(at, bytes, "what was left");
    at = q;
    verify_from(at + i * MB, i * MB, 2 * MB, 1, "some of it");
  }
  verify(at, bytes, 1, "all of it");
}

/* One mapping after the other, with holes between others' memory. */
static void pieces(void) {
  char *room = mmap(0, 256 * MB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  MUST(room != MAP_FAILED);
  const size_t n = 333 * PAGE;
  for (size_t k = 0; k + n <= bytes; k += n) {
    char *to = room + (k / n % 2 ? 128 * MB : 0) + k;
    MUST(mremap(p + k, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
  }
  for (size_t k = 0; k + n <= bytes; k += n)
    verify_from(room + (k / n % 2 ? 128 * MB : 0) + k, k, n, 1, "a piece");
  for (size_t k = 0; k + n <= bytes; k += n) {
    char *from = room + (k / n % 2 ? 128 * MB : 0) + k;
    MUST(mremap(from, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, p + k) == p + k);
  }
  verify(p, bytes, 1, "together again");
}

/* It grows where it is and is as before: also the part that is new is swapped. */
static void longer(void) {
  const size_t more = 60 * MB;
  char *q = mremap(p, bytes, bytes + more, 0);
  if (q == MAP_FAILED) q = mremap(p, bytes, bytes + more, MREMAP_MAYMOVE);
  MUST(q != MAP_FAILED);
  verify_zero(q + bytes, more, "new");
  fill(q + bytes, more, 5);
  verify(q, bytes, 1, "old");
  verify(q + bytes, more, 5, "new and written");
  MUST(mremap(q, bytes + more, 50 * MB, 0) == q);
  verify(q, 50 * MB, 1, "shorter");
}

/* What is cut off lies in a mapping of another kind. */
static void cut(void) {
  const size_t n = 4 * MB;
  int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED;
  MUST(mmap(p + n, n, PROT_READ | PROT_WRITE, flags, -1, 0) == p + n);
  char *to = map_rw(2 * n) + 3 * PAGE;
  MUST(mremap(p, 2 * n, n, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
  verify(to, n, 1, "what was moved");
  MUST(signal_of(touch, p) == SIGSEGV && signal_of(touch, p + 2 * n - 1) == SIGSEGV);
  fill(to, n, 10);
  verify_from(p + 2 * n, 2 * n, bytes - 2 * n, 1, "behind it");
  verify(to, n, 10, "written");
}

/* What was never touched leaves its old place behind, which is used then, and moves too. */
static void kept(void) {
  const size_t n = 4 * MB;
  const int flags = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
  char *old = map_rw(n), *new = mremap(old, n, n, flags, 0);
  MUST(new != MAP_FAILED);
  fill(old + PAGE, PAGE, 1);
  char *again = mremap(old, n, n, flags, 0);
  MUST(again != MAP_FAILED);
  /* The first fault of a range is where a huge page may come. */
  MUST(again[0] == 0 && again[2 * PAGE] == 0 && old[PAGE] == 0 && new[PAGE] == 0);
  verify(again + PAGE, PAGE, 1, "what was written");
}

/* Shared memory, where ours was, grows where it is; and what is asked for in vain takes nothing away. */
static void shared(void) {
  char *one = map_rw(PAGE), *q = map_rw(8 * MB);
  MUST(munmap(q + MB, 7 * MB) == 0);
  int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED;
  MUST(mmap(q, MB, PROT_READ | PROT_WRITE, flags, -1, 0) == q);
  fill(q, MB, 8);
  char *at = mremap(q, MB, 2 * MB, MREMAP_MAYMOVE);
  MUST(at != MAP_FAILED);
  MUST(mremap(one, PAGE, 1ul << 46, 0) == MAP_FAILED && errno == ENOMEM);
  for (int i = 0; i < 3; i++) {
    char *more = map_rw(bytes);
    fill(more, 4 * MB, 9);
    verify(at, MB, 8, "shared");
    char *moved = mremap(more, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
    MUST(moved != MAP_FAILED);
    verify(moved, 4 * MB, 9, "moved");
    MUST(munmap(moved, bytes) == 0 && munmap(more, bytes) == 0);
  }
  verify(at, MB, 8, "shared, in the end");
  verify(p, bytes, 1, "all else");
}

static char *new_at(char *at, size_t n) {
  char *q = mmap(at, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  MUST(q == at);
  verify_zero(q, n, "new");
  fill(q, n, 4);
  return q;
}

/* A segment of shared memory over ours moves, and is detached where it is then: both places are free. */
static void attached(void) {
  const size_t n = 8 * MB;
  int id = shmget(IPC_PRIVATE, n, 0600 | IPC_CREAT);
  MUST(id >= 0);
  char *one = p + 4 * MB, *two = p + 40 * MB;
  char *at = shmat(id, one, SHM_REMAP);
  MUST(at == one && shmctl(id, IPC_RMID, 0) == 0);
  fill(at, n, 7);
  MUST(mremap(at, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, two) == two);
  verify(two, n, 7, "moved segment");
  MUST(shmdt(two) == 0);
  new_at(one, n);
  new_at(two, n);
  verify(p, 4 * MB, 1, "before");
  verify_from(p + 12 * MB, 12 * MB, 28 * MB, 1, "between");
  verify_from(p + 48 * MB, 48 * MB, bytes - 48 * MB, 1, "behind");
  verify(one, n, 4, "where it was first");
}

/* In a child what was not for it is a hole, which it may use. */
static void not_there(void) {
  const size_t n = 8 * MB;
  MUST(madvise(p + n, n, MADV_DONTFORK) == 0);
  pid_t pid = fork();
  if (pid == 0) {
    unsigned char there;
    MUST(mincore(p + n, PAGE, &there) == -1 && errno == ENOMEM);
    new_at(p + n, n);
    verify_from(p + 2 * n, 2 * n, bytes - 2 * n, 1, "the child's");
    verify(p + n, n, 4, "the child's own");
    pid = fork();
    if (pid == 0) {
      verify(p + n, n, 4, "in the next child");
      _exit(0);
    }
    wait_ok(pid, "next child");
    _exit(0);
  }
  wait_ok(pid, "child");
  verify(p, bytes, 1, "the parent's");
}

/* Of several mappings, to no place in particular: refused, and nothing is gone. */
static void several(void) {
  const size_t n = 32 * PAGE;
  const int keep = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
  char *q = mmap((void *)0x40000000, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MUST(q != MAP_FAILED);
  fill(q, n, 6);
  /* Where we manage, but itself not managed; and then one half of it is. */
  char *to = p + 50 * MB + 3 * PAGE;
  MUST(mremap(q, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
  int fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  MUST(mmap(to + n / 2, n / 2, PROT_READ | PROT_WRITE, fixed, -1, 0) == to + n / 2);
  fill(to + n / 2, n / 2, 7);
  MUST(mremap(to, n, n, keep, 0) == MAP_FAILED && errno == EFAULT);
  verify(to, n / 2, 6, "one half");
  verify(to + n / 2, n / 2, 7, "the other");
  MUST(mprotect(p, 4 * MB, PROT_READ) == 0);
  MUST(mremap(p, 8 * MB, 8 * MB, keep, 0) == MAP_FAILED && errno == EFAULT);
  /* The address that is none all the same. */
  MUST(mremap(p, MB, MB, keep, 1ul) == MAP_FAILED && errno == EINVAL);
  MUST(mremap(p, MB, MB, keep, p + PAGE) == MAP_FAILED && errno == EINVAL);
  MUST(mremap(p, MB, MB, keep, -PAGE) == MAP_FAILED && errno == EINVAL);
  verify(p, 8 * MB, 1, "of two protections");
}

/* Others touch what is moved, and what it is moved to, the moment that they may. */
static char *volatile where;
static volatile int stop;
static void *reader(void *arg) {
  (void)arg;
  while (!stop) {
    char *at = where;
    if (!at) continue;
    u64 *w = (u64 *)(at + 64 * MB), want = mix(64 * MB + 1);
    if (*(volatile u64 *)w != want) STOP("read %llx", (unsigned long long)*w);
    __sync_bool_compare_and_swap(&where, at, 0);
  }
  return 0;
}
static void watched(void) {
  pthread_t t;
  MUST(pthread_create(&t, 0, reader, 0) == 0);
  blocked();
  char *at = p;
  for (int i = 0; i < 60; i++) {
    char *q = mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, i % 2 ? p : p + 200 * MB);
    MUST(q != MAP_FAILED);
    at = q;
    where = at;
    while (where) {
    }
    MUST(mremap(at, bytes, bytes + PAGE, 0) == MAP_FAILED || i % 2 == 0);
    if (i % 2 == 0) munmap(at + bytes, PAGE);
  }
  stop = 1;
  where = at;
  MUST(pthread_join(t, 0) == 0);
  verify(at, bytes, 1, "after it");
}

/* What a mapping grows over was something else's: it reads as zeros, in a child too, and the rest stays. */
static void grown_over(void) {
  size_t from = 20 * MB, len = 30 * MB, own = 2 * MB + PAGE;
  char *q = map_rw(own);
  fill(q, own, 2);
  MUST(mremap(q, own, len, MREMAP_MAYMOVE | MREMAP_FIXED, p + from) == p + from);
  pid_t pid = fork();
  verify(p + from, own, 2, "moved");
  verify_zero(p + from + own, len - own, "grown");
  if (pid == 0) _exit(0);
  wait_ok(pid, "child");
  verify(p, from, 1, "before");
  verify_from(p + from + len, from + len, bytes - from - len, 1, "behind");
}

/* Pieces that lie side by side, each moved by a thread of its own, at the same time and by the same distance. */
enum { MOVERS = 4 };
static const size_t piece = 12 * MB;
static pthread_barrier_t together;
static char *other_place;
static void *mover(void *arg) {
  size_t from = 20 * MB + (size_t)arg * piece;
  char *at = p + from, *to = other_place + (size_t)arg * piece;
  for (int i = 0; i < 60; i++) {
    pthread_barrier_wait(&together);
    MUST(mremap(at, piece, piece, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    char *was = at;
    at = to;
    to = was;
    pthread_barrier_wait(&together);
    if (i % 10 == 9) verify_from(at, from, piece, 1, "a piece");
  }
  return 0;
}
static void side_by_side(void) {
  pthread_t t[MOVERS];
  other_place = map_rw(MOVERS * piece);
  MUST(pthread_barrier_init(&together, 0, MOVERS) == 0);
  for (size_t i = 0; i < MOVERS; i++) MUST(pthread_create(&t[i], 0, mover, (void *)i) == 0);
  for (size_t i = 0; i < MOVERS; i++) MUST(pthread_join(t[i], 0) == 0);
  verify(p, bytes, 1, "after it");
}

/* The C library makes this call itself. What was advised must not join what is moved with what is around it. */
static void advised(void) {
  MUST(posix_madvise(p, bytes, POSIX_MADV_SEQUENTIAL) == 0);
  errno = 5;
  MUST(posix_madvise(p, bytes, 77) == EINVAL && posix_madvise(p + 1, PAGE, POSIX_MADV_NORMAL) == EINVAL && errno == 5);
  MUST(posix_madvise(p, bytes, POSIX_MADV_DONTNEED) == 0);
  char *q = map_rw(16 * MB), *r = map_rw(64 * MB);
  MUST(mremap(p + 32 * MB, 16 * MB, 16 * MB, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q);
  fill(r, 64 * MB, 3);
  MUST(mremap(q, 16 * MB, 16 * MB, MREMAP_MAYMOVE | MREMAP_FIXED, p + 32 * MB) == p + 32 * MB);
  verify(p, bytes, 1, "moved out and back");
  verify(r, 64 * MB, 3, "others");
}

/* Behind the mapping that moves is nothing: what lies where that would come to stays (Linux 6.17). */
static void hole_behind(void) {
  const size_t n = 10 * PAGE, all = 2 * MB;
  int fd = memfd_create("hole", 0);
  MUST(fd != -1 && ftruncate(fd, n) == 0);
  for (size_t kind = 0; kind < 4; kind++) {
    const int anon = MAP_PRIVATE | MAP_ANONYMOUS, rw = PROT_READ | PROT_WRITE;
    char *hole = mmap(0, 4 * MB, PROT_NONE, anon, -1, 0), *at = hole + MB, *d = p + (8 + 8 * kind) * MB;
    MUST(hole != MAP_FAILED && munmap(hole, 4 * MB) == 0);
    int flags = (kind == 0 ? MAP_SHARED : kind == 1 ? MAP_PRIVATE : anon) | MAP_FIXED;
    MUST(mmap(at, n, kind == 2 ? rw | PROT_EXEC : rw, flags, kind < 2 ? fd : -1, 0) == at);
    memset(at, 's', n);
    char *got = mremap(at, all, all, MREMAP_MAYMOVE | MREMAP_FIXED, d);
    if (got == MAP_FAILED) {
      MUST(errno == EFAULT);
      return;
    }
    MUST(got == d && d[0] == 's' && d[n - 1] == 's');
    verify_from(d + n, d + n - p, all - n, 1, "over the hole");
    verify_from(d - 6 * MB, d - 6 * MB - p, 6 * MB, 1, "before it");
  }
}

/* An old size of 0: shared memory once more, where the program had something before. */
static void mirrored(void) {
  const size_t n = 8 * MB;
  char *r = map_rw(9 * n), *others[20];
  fill(r, 9 * n, 3);
  MUST(munmap(r, 9 * n) == 0);
  for (int i = 0; i < 70; i++) MUST(munmap(map_rw(3 * PAGE), 3 * PAGE) == 0);
  int fd = memfd_create("mirrored", 0);
  MUST(fd != -1 && ftruncate(fd, n) == 0);
  char *m = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  MUST(m != MAP_FAILED);
  fill(m, n, 7);
  MUST(mremap(m, 0, n, MREMAP_MAYMOVE | MREMAP_FIXED, r + n) == r + n);
  MUST(mremap(m, 0, n, MREMAP_MAYMOVE | MREMAP_FIXED, p + n) == p + n);
  MUST(mremap(p, 0, n, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
  for (int i = 0; i < 20; i++) {
    others[i] = map_rw(4 * MB);
    verify_zero(others[i], 4 * MB, "new");
    fill(others[i], 4 * MB, 100 + i);
  }
  verify(m, n, 7, "shared");
  verify(r + n, n, 7, "mirrored");
  verify(p + n, n, 7, "mirrored over something");
  MUST(madvise(p + n, n, MADV_FREE) == -1 && errno == EINVAL);
  for (int i = 0; i < 20; i++) verify(others[i], 4 * MB, 100 + i, "others");
  verify(p, n, 1, "before");
  verify_from(p + 2 * n, 2 * n, bytes - 2 * n, 1, "behind");
}

int main(int argc, char **argv) {
  MUST(argc == 2);
  p = map_rw(bytes);
  fill(p, bytes, 1);
  struct {
    const char *name;
    void (*run)(void);
  } cases[] = {{"wiped", wiped},   {"not_for_children", not_for_children}, {"guarded", guarded}, {"keyed", keyed},
               {"pinned", pinned}, {"phases", phases},                     {"pieces", pieces},   {"longer", longer},
               {"several", several}, {"shared", shared}, {"cut", cut}, {"kept", kept}, {"attached", attached}, {"not_there", not_there}, {"watched", watched}, {"grown_over", grown_over},
               {"side_by_side", side_by_side}, {"advised", advised}, {"hole_behind", hole_behind}, {"mirrored", mirrored}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    if (!strcmp(argv[1], cases[i].name)) {
      cases[i].run();
      say("ok\n");
      return 0;
    }
  STOP("no case %s", argv[1]);
}
