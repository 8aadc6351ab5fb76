/* A child that has given up its rights takes what its engine has, and says to the supervisor what no engine says. Another
   process of the run must have its memory, its forks and its end all the same. Arguments:
   which attack, and the layout of packets. */
#include "check.h"
#include <grp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { MOST = 64 };

/* Descriptors of the engine's handler: what has that number in its table. */
static int engines[MOST], count;

static void take_descriptors(void) {
  char entries[8192], path[64], name[32];
  struct entry {
    u64 inode, next;
    unsigned short length;
    char type, name[];
  };
  int d = open("/proc/self/task", O_RDONLY | O_DIRECTORY);
  MUST(d >= 0);
  long len = syscall(SYS_getdents64, d, entries, sizeof entries);
  close(d);
  for (long at = 0; at < len && count == 0;) {
    struct entry *e = (struct entry *)(entries + at);
    at += e->length;
    int tid = atoi(e->name);
    if (tid == 0 || tid == getpid()) continue;
    snprintf(path, sizeof path, "/proc/self/task/%d/comm", tid);
    FILE *f = fopen(path, "r");
    MUST(f);
    int kernels = fgets(name, sizeof name, f) && !strncmp(name, "iou-", 4);
    fclose(f);
    if (kernels) continue;
    int thread = syscall(SYS_pidfd_open, tid, O_EXCL);
    MUST(thread >= 0);
    for (int n = 0; n < MOST; n++) {
      int fd = syscall(SYS_pidfd_getfd, thread, n, 0);
      if (fd >= 0) engines[count++] = fd;
    }
    close(thread);
  }
  MUST(count > 3);
}

/* The connection with the supervisor. */
static int connection(void) {
  for (int i = 0; i < count; i++) {
    int type = 0;
    socklen_t len = sizeof type;
    if (getsockopt(engines[i], SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_SEQPACKET) return engines[i];
  }
  STOP("no connection");
}

/* The process's own page: the larger of the memory files that can be written. */
static volatile u64 *own_page(size_t *words) {
  for (int i = 0; i < count; i++) {
    struct stat s;
    char path[64], name[64] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", engines[i]);
    if (readlink(path, name, sizeof name - 1) < 0 || !strstr(name, "hugeswap-process") || fstat(engines[i], &s)) continue;
    void *p = mmap(0, s.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, engines[i], 0);
    if (p == MAP_FAILED) continue;
    *words = s.st_size / 8;
    return p;
  }
  STOP("no page");
}

static void send_packet(int fd, u64 *packet, int with) {
  struct iovec piece = {packet, 32};
  struct {
    struct cmsghdr head;
    int fd;
  } control = {{CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}, with};
  struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1};
  if (with >= 0) header.msg_control = &control, header.msg_controllen = CMSG_SPACE(sizeof(int));
  sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void say_packet(int fd, u64 kind, int with) {
  u64 packet[4] = {kind, 0, 0, 0};
  send_packet(fd, packet, with);
}

enum { FORK = 3, FAULTS = 6 };

static int is_stopped(pid_t pid) {
  char path[64], line[512], state = 0;
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *f = fopen(path, "r");
  MUST(f && fgets(line, sizeof line, f));
  fclose(f);
  MUST(sscanf(strrchr(line, ')') + 1, " %c", &state) == 1);
  return state == 'T';
}

/* A child goes on with the connection; its parent, which would read the answers, stands still. */
static int connection_alone(void) {
  int fd = connection();
  pid_t pid = fork();
  MUST(pid >= 0);
  if (pid > 0) {
    for (;;) raise(SIGSTOP);
  }
  while (!is_stopped(getppid())) usleep(1000);
  return fd;
}

/* Asks for places, and reads no answer. */
static void asks(void) {
  int fd = connection_alone();
  for (;;) {
    for (int i = 0; i < 100; i++) say_packet(fd, FORK, -1);
    usleep(1000);
  }
}

/* Two sockets that another process has made, and the layout of packets. */
static int others[2];
static u64 layout;

/* Comes as that other process. */
static void comes_as_another(void) {
  int fd = connection_alone(), door[2], passed = others[0];
  u64 place[4], welcome[4];
  MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, door) == 0);
  say_packet(fd, FORK, door[0]);
  MUST(recv(fd, place, sizeof place, 0) == sizeof place && place[0] == 2);
  u64 one[4] = {1, 0, 0, 0}, hello[4] = {2, layout, place[1], place[2]};
  send_packet(door[1], one, passed);
  send_packet(others[1], hello, -1);
  close(passed);
  ssize_t n = recv(others[1], welcome, sizeof welcome, 0);
  if (n == sizeof welcome && welcome[0] == 1) {
    say("let in\n");
    kill(getpid(), SIGKILL);
  }
  for (;;) pause();
}

/* A pipe for a userfaultfd, of which somebody else reads too; then the engine ends. */
static void lies_of_faults(void) {
  int two[2], fd = connection();
  MUST(pipe(two) == 0);
  say_packet(fd, FAULTS, two[0]);
  usleep(100000);
  if (fork() == 0) {
    char byte;
    MUST(fcntl(two[0], F_SETFL, O_NONBLOCK) == 0);
    for (;;) {
      MUST(fcntl(two[0], F_SETFL, 0) == 0);
      MUST(write(two[1], "x", 1) == 1);
      MUST(fcntl(two[0], F_SETFL, O_NONBLOCK) == 0);
      if (read(two[0], &byte, 1) < 0) usleep(10);
    }
  }
  shutdown(fd, SHUT_RDWR);
  _exit(0);
}

/* Doors by which nobody comes. */
static void opens_doors(void) {
  int fd = connection();
  for (;;) {
    int two[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, two)) {
      usleep(1000);
      continue;
    }
    say_packet(fd, FORK, two[0]);
    close(two[0]);
    char answer[64];
    while (recv(fd, answer, sizeof answer, MSG_DONTWAIT) > 0) {
    }
  }
}

/* Anything at all in its own page. */
static void scribbles(void) {
  size_t words;
  volatile u64 *page = own_page(&words);
  u64 state = getpid();
  for (int turn = 0;; turn++) {
    for (size_t i = 0; i < words; i++) {
      u64 random = next(&state);
      page[i] = turn % 4 == 0 ? ~0ull : turn % 4 == 1 ? ~0ull >> 1 : turn % 4 == 2 ? random : random & 0xffff;
    }
    if (turn % 16 == 0) usleep(1000);
  }
}

int main(int argc, char **argv) {
  static const struct { const char *name; void (*f)(void); } all[] = {
    {"asks", asks}, {"faults", lies_of_faults}, {"doors", opens_doors}, {"scribbles", scribbles}, {"comes as another", comes_as_another},
  };
  const size_t n = 96 * MB;
  MUST(argc == 3 && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, others) == 0);
  layout = strtoull(argv[2], 0, 10);
  int ready[2];
  MUST(pipe(ready) == 0);
  pid_t hostile = fork();
  if (hostile == 0) {
    MUST(setpgid(0, 0) == 0);
    MUST(setgroups(0, 0) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
    take_descriptors();
    MUST(write(ready[1], "x", 1) == 1);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
      if (!strcmp(argv[1], all[i].name)) all[i].f();
    STOP("no such attack");
  }
  char byte;
  MUST(read(ready[0], &byte, 1) == 1);
  char *p = map_rw(n);
  for (int round = 1; round <= 4; round++) {
    fill(p, n, round);
    pid_t pid = fork();
    if (pid == 0) {
      verify(p, n, round, "child");
      fill(p, n / 2, round + 9);
      verify(p, n / 2, round + 9, "child");
      _exit(0);
    }
    verify(p, n, round, "parent");
    wait_ok(pid, "child");
  }
  kill(-hostile, SIGKILL);
  waitpid(hostile, 0, 0);
  say("ok\n");
  return 0;
}
