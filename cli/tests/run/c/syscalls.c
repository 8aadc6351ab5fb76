/* System calls on memory that is swapped out. */
#include "check.h"
#include <linux/futex.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>

static char *p, *q;
static size_t bytes = 96 * MB;
static const char *dir;

/* So that what was touched last is out as well. */
static void push_out(void) {
  char *r = map_rw(96 * MB);
  for (size_t i = 0; i < 96 * MB; i += PAGE) r[i] = 1;
  MUST(munmap(r, 96 * MB) == 0);
}

static int scratch(int flags) {
  char name[512];
  snprintf(name, sizeof name, "%s/scratch", dir);
  int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | flags, 0600);
  MUST(fd >= 0);
  return fd;
}

static void all(ssize_t (*io)(int, void *, size_t), int fd, char *at, size_t n, size_t piece) {
  while (n) {
    ssize_t done = io(fd, at, n < piece ? n : piece);
    if (done <= 0) STOP("%zd: %s", done, strerror(errno));
    at += done, n -= done;
  }
}

static ssize_t do_read(int fd, void *at, size_t n) { return read(fd, at, n); }
static ssize_t do_write(int fd, void *at, size_t n) { return write(fd, at, n); }

static void file(int flags, size_t piece) {
  int fd = scratch(flags);
  all(do_write, fd, p, bytes, piece);
  verify(p, bytes, 1, "written memory");
  memset(q, 0x55, bytes);
  MUST(lseek(fd, 0, SEEK_SET) == 0);
  all(do_read, fd, q, bytes, piece);
  verify(q, bytes, 1, "read from the file");
  close(fd);
}

static void plain(void) {
  file(0, 1 * MB);
  file(0, 100003);
}

static void direct(void) { file(O_DIRECT, 1 * MB); }

/* Many small pieces, all over the place. */
static void vectors(void) {
  enum { N = 512 };
  static struct iovec v[N];
  int fd = scratch(0);
  for (int round = 0; round < 16; round++) {
    size_t total = 0;
    for (int i = 0; i < N; i++) {
      size_t at = mix(round * N + i) % (bytes - 5000);
      v[i] = (struct iovec){p + at, 1 + mix(i) % 5000};
      total += v[i].iov_len;
    }
    MUST(pwritev(fd, v, N, 0) == (ssize_t)total);
    char *out = q + round * 4 * MB + 123;
    MUST(pread(fd, out, total, 0) == (ssize_t)total);
    for (int i = 0; i < N; i++) {
      if (memcmp(out, v[i].iov_base, v[i].iov_len)) STOP("piece %d of round %d", i, round);
      out += v[i].iov_len;
    }
    /* And scattered on reading. */
    for (int i = 0; i < N; i++) v[i].iov_base = q + (size_t)i * (bytes / N) + round;
    MUST(preadv(fd, v, N, 0) == (ssize_t)total);
    for (int i = 0; i < N; i++) {
      size_t at = mix(round * N + i) % (bytes - 5000);
      if (memcmp(v[i].iov_base, p + at, v[i].iov_len)) STOP("scattered piece %d of round %d", i, round);
    }
  }
  close(fd);
}

struct end {
  int fd;
  ssize_t (*io)(int, void *, size_t);
};

static void *send_all(void *arg) {
  struct end *e = arg;
  all(e->io, e->fd, p, bytes, 333333);
  return 0;
}

static ssize_t do_send(int fd, void *at, size_t n) { return send(fd, at, n, 0); }
static ssize_t do_recv(int fd, void *at, size_t n) { return recv(fd, at, n, 0); }

static void through(int from, int to, ssize_t (*out)(int, void *, size_t), ssize_t (*in)(int, void *, size_t)) {
  memset(q, 0x55, bytes);
  struct end e = {to, out};
  pthread_t t;
  MUST(pthread_create(&t, 0, send_all, &e) == 0);
  all(in, from, q, bytes, 200000);
  pthread_join(t, 0);
  verify(q, bytes, 1, "received");
}

static void pipes(void) {
  int fd[2];
  MUST(pipe(fd) == 0);
  through(fd[0], fd[1], do_write, do_read);
}

static void sockets(void) {
  int fd[2];
  MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0);
  through(fd[0], fd[1], do_send, do_recv);
}

/* vmsplice leaves the pages themselves in the pipe: they must not be overwritten when the memory
 * is evicted before they are read. */
static void spliced(void) {
  for (int round = 0; round < 24; round++) {
    int fd[2];
    MUST(pipe(fd) == 0);
    MUST(fcntl(fd[0], F_SETPIPE_SZ, 1 * MB) > 0);
    size_t from = round * 4 * MB;
    verify_from(p + from, from, 1 * MB, 1, "before vmsplice");
    struct iovec v = {p + from, 1 * MB};
    ssize_t n = vmsplice(fd[1], &v, 1, 0);
    MUST(n > 0);
    push_out();
    all(do_read, fd[0], q, n, MB);
    verify_from(q, from, n, 1, "spliced");
    close(fd[0]), close(fd[1]);
  }
}

static pthread_mutex_t *mutex;
static pthread_cond_t *cond;
static unsigned *word;

static void *waiter(void *arg) {
  (void)arg;
  for (int i = 0; i < 30; i++) {
    pthread_mutex_lock(mutex);
    while (*word % 2 == 0) pthread_cond_wait(cond, mutex);
    ++*word;
    pthread_cond_broadcast(cond);
    pthread_mutex_unlock(mutex);
  }
  return 0;
}

/* Locks in swapped memory, of each kind. */
static void locks(void) {
  static const struct { int protocol, robust; } kinds[] = {
      {PTHREAD_PRIO_NONE, PTHREAD_MUTEX_STALLED},
      {PTHREAD_PRIO_INHERIT, PTHREAD_MUTEX_STALLED},
      {PTHREAD_PRIO_NONE, PTHREAD_MUTEX_ROBUST},
  };
  for (int k = 0; k < 3; k++) {
    mutex = (pthread_mutex_t *)(p + k * 10 * MB);
    cond = (pthread_cond_t *)(p + k * 10 * MB + 2 * MB);
    word = (unsigned *)(p + k * 10 * MB + 4 * MB);
    *word = 0;
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    MUST(pthread_mutexattr_setprotocol(&a, kinds[k].protocol) == 0);
    MUST(pthread_mutexattr_setrobust(&a, kinds[k].robust) == 0);
    MUST(pthread_mutex_init(mutex, &a) == 0);
    MUST(pthread_cond_init(cond, 0) == 0);
    pthread_t t;
    MUST(pthread_create(&t, 0, waiter, 0) == 0);
    for (int i = 0; i < 30; i++) {
      if (i % 8 == 0) push_out();
      int e = pthread_mutex_lock(mutex);
      if (e) STOP("kind %d: lock: %s", k, strerror(e));
      while (*word % 2) pthread_cond_wait(cond, mutex);
      ++*word;
      pthread_cond_broadcast(cond);
      e = pthread_mutex_unlock(mutex);
      if (e) STOP("kind %d: unlock: %s", k, strerror(e));
    }
    pthread_join(t, 0);
    MUST(*word == 60);
  }
}

static void *wake_later(void *arg) {
  (void)arg;
  push_out();
  *word = 1;
  MUST(syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0) >= 0);
  return 0;
}

static void futexes(void) {
  word = (unsigned *)(p + 33 * MB);
  for (int i = 0; i < 6; i++) {
    *word = 0;
    pthread_t t;
    MUST(pthread_create(&t, 0, wake_later, 0) == 0);
    while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == 0) syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0);
    pthread_join(t, 0);
  }
}

static volatile uintptr_t on_signal_stack;

static void handler(int s) {
  char here[60000];
  (void)s;
  memset(here, 7, sizeof here);
  on_signal_stack = (uintptr_t)here;
}

/* Results of all kinds that the kernel writes into swapped memory, and names that it reads. */
static void results(void) {
  push_out();
  char *at = p + 20 * MB;
  MUST(clock_gettime(CLOCK_REALTIME, (struct timespec *)at) == 0 && *(u64 *)at > 1);
  MUST(gettimeofday((struct timeval *)(at + 2 * MB), 0) == 0);
  strcpy(at + 4 * MB, "/proc/self/stat");
  push_out();
  MUST(stat(at + 4 * MB, (struct stat *)(at + 6 * MB)) == 0);
  MUST(getcwd(at + 8 * MB, PAGE));
  int fd[2];
  MUST(pipe2((int *)(at + 10 * MB), 0) == 0);
  memcpy(fd, at + 10 * MB, sizeof fd);
  struct epoll_event *ev = (struct epoll_event *)(at + 12 * MB);
  int ep = epoll_create1(0);
  ev->events = EPOLLIN, ev->data.u64 = 42;
  push_out();
  MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd[0], ev) == 0);
  MUST(write(fd[1], "x", 1) == 1);
  ev[1000].data.u64 = 0;
  push_out();
  MUST(epoll_wait(ep, ev + 1000, 1, 1000) == 1 && ev[1000].data.u64 == 42);
  struct pollfd *pf = (struct pollfd *)(at + 14 * MB);
  pf->fd = fd[0], pf->events = POLLIN;
  push_out();
  MUST(poll(pf, 1, 1000) == 1 && pf->revents == POLLIN);
  stack_t st = {.ss_sp = p + 50 * MB, .ss_size = 128 << 10};
  MUST(sigaltstack(&st, 0) == 0);
  struct sigaction sa = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
  MUST(sigaction(SIGUSR1, &sa, 0) == 0);
  for (int i = 0; i < 4; i++) {
    push_out();
    MUST(raise(SIGUSR1) == 0);
    MUST(on_signal_stack > (uintptr_t)p + 50 * MB && on_signal_stack < (uintptr_t)p + 51 * MB);
  }
  struct iovec local = {q, MB}, remote = {p + 70 * MB, MB};
  push_out();
  MUST(process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)MB);
  verify_from(q, 70 * MB, MB, 1, "process_vm_readv");
  MUST(mlock(p + 80 * MB, MB) == 0);
  push_out();
  verify_from(p + 80 * MB, 80 * MB, MB, 1, "locked");
  MUST(munlock(p + 80 * MB, MB) == 0);
}

/* A thread's stack in swapped memory. */
static void *deep(void *arg) {
  char here[200000];
  fill(here, sizeof here / 8 * 8, 3);
  push_out();
  verify(here, sizeof here / 8 * 8, 3, "stack");
  return arg;
}

static void stacks(void) {
  pthread_attr_t a;
  pthread_attr_init(&a);
  MUST(pthread_attr_setstack(&a, p + 16 * MB, 4 * MB) == 0);
  for (int i = 0; i < 4; i++) {
    pthread_t t;
    MUST(pthread_create(&t, &a, deep, 0) == 0);
    pthread_join(t, 0);
  }
}

int main(int argc, char **argv) {
  MUST(argc == 3);
  const char *what = argv[1];
  dir = argv[2];
  p = map_rw(bytes);
  q = map_rw(bytes);
  fill(p, bytes, 1);
  fill(q, bytes, 2);
  if (!strcmp(what, "plain")) plain();
  else if (!strcmp(what, "direct")) direct();
  else if (!strcmp(what, "vectors")) vectors();
  else if (!strcmp(what, "pipes")) pipes();
  else if (!strcmp(what, "sockets")) sockets();
  else if (!strcmp(what, "spliced")) spliced();
  else if (!strcmp(what, "locks")) locks();
  else if (!strcmp(what, "futexes")) futexes();
  else if (!strcmp(what, "results")) results();
  else if (!strcmp(what, "stacks")) stacks();
  else STOP("unknown: %s", what);
  say("ok\n");
  return 0;
}
