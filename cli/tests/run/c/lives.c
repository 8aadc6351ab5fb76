/* Lives and deaths: namespaces, kills between clone and the first instruction, roots without /proc. */
#include "check.h"
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define BYTES (96 * MB)
static const char *dir;

/* Says that something was reached, and waits until another has said so. */
static void tell(const char *name) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  MUST(close(open(path, O_CREAT | O_WRONLY, 0600)) == 0);
}

static void wait_for(const char *name) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  while (access(path, F_OK)) usleep(1000);
}

/* Process 1 of a namespace: what it wrote is there after the other one did the same. */
static void one(const char *mine, const char *theirs) {
  MUST(getpid() == 1);
  char *p = map_rw(BYTES);
  fill(p, BYTES, mine[0]);
  tell(mine);
  wait_for(theirs);
  verify(p, BYTES, mine[0], "process 1");
  fill(p, BYTES, mine[0] + 1);
  verify(p, BYTES, mine[0] + 1, "process 1 again");
}

/* A program of its own, as a run has them: by exec. */
static pid_t start(const char *self, const char *what) {
  pid_t pid = fork();
  MUST(pid >= 0);
  if (pid == 0) {
    execl(self, self, what, dir, (char *)0);
    _exit(98);
  }
  return pid;
}

static void in_namespace(const char *self, const char *what) {
  MUST(unshare(CLONE_NEWPID) == 0);
  wait_ok(start(self, what), what);
}

static void namespaces(const char *self) {
  pid_t a = start(self, "outer_a"), b = start(self, "outer_b");
  wait_ok(a, "a");
  wait_ok(b, "b");
}

/* The parent is killed when clone has returned to nobody yet; the child has its memory all the same,
   whatever others do with swap meanwhile. */
static void killed_at_clone(const char *self) {
  int said[2], go[2], status;
  unsigned long child = 0;
  MUST(pipe(said) == 0 && pipe(go) == 0);
  pid_t parent = fork();
  MUST(parent >= 0);
  if (parent == 0) {
    char *p = map_rw(BYTES), c;
    fill(p, BYTES, 1);
    MUST(read(go[0], &c, 1) == 1);
    if (fork() == 0) {
      verify(p, BYTES, 1, "orphan");
      MUST(write(said[1], "k", 1) == 1);
    }
    _exit(0);
  }
  MUST(ptrace(PTRACE_SEIZE, parent, 0, PTRACE_O_TRACEFORK) == 0);
  MUST(write(go[1], "g", 1) == 1);
  MUST(waitpid(parent, &status, __WALL) == parent);
  MUST(WIFSTOPPED(status) && status >> 16 == PTRACE_EVENT_FORK);
  MUST(ptrace(PTRACE_GETEVENTMSG, parent, 0, &child) == 0);
  kill(parent, SIGKILL);
  MUST(waitpid(parent, &status, __WALL) == parent && WIFSIGNALED(status));
  close(said[1]);
  /* The supervisor finds the parent dead, and another fills what would be its swap. */
  wait_ok(start(self, "other"), "other");
  MUST(waitpid(child, &status, __WALL) == (pid_t)child && WIFSTOPPED(status));
  MUST(ptrace(PTRACE_DETACH, child, 0, 0) == 0);
  char c = 0;
  MUST(read(said[0], &c, 1) == 1 && c == 'k');
}

static void other(void) {
  char *p = map_rw(BYTES);
  fill(p, BYTES, 9);
  verify(p, BYTES, 9, "other");
}

/* Neither /proc nor anything else is there, and rights are given up: children have their memory. */
static void empty_root(void) {
  char *p = map_rw(BYTES), path[512];
  fill(p, BYTES, 1);
  snprintf(path, sizeof path, "%s/empty", dir);
  MUST(mkdir(path, 0755) == 0 && chroot(path) == 0 && chdir("/") == 0);
  MUST(setgid(65534) == 0 && setuid(65534) == 0);
  pid_t pid = fork();
  MUST(pid >= 0);
  if (pid == 0) {
    verify(p, BYTES, 1, "child");
    fill(p, BYTES, 2);
    pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
      verify(p, BYTES, 2, "grandchild");
      _exit(0);
    }
    wait_ok(pid, "grandchild");
    _exit(0);
  }
  wait_ok(pid, "child");
  verify(p, BYTES, 1, "parent");
}

/* A thread that takes numbers with dup2 loses none of them to a fork, and no child reads by them. */
static volatile int done;

static void *taker(void *file) {
  for (int n = 3; !done; n = n < 40 ? n + 1 : 3) {
    struct stat s, t;
    MUST(dup2(*(int *)file, n) == n);
    MUST(fstat(*(int *)file, &s) == 0);
    MUST(fstat(n, &t) == 0 && s.st_ino == t.st_ino);
    MUST(close(n) == 0);
  }
  return 0;
}

static void numbers(void) {
  char *p = map_rw(BYTES);
  fill(p, BYTES, 1);
  int file = fcntl(open("/dev/zero", O_RDWR), F_DUPFD, 100);
  pthread_t t;
  MUST(pthread_create(&t, 0, taker, &file) == 0);
  for (int i = 0; i < 20; i++) {
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
      verify(p, 8 * MB, 1, "child");
      _exit(0);
    }
    wait_ok(pid, "child");
  }
  done = 1;
  pthread_join(t, 0);
}

/* Children whose lives overlap, each with nothing but its place, of a parent that writes on: swap holds
   what is there, and not what has been. One lives all the time. */
static void overlapping(void) {
  size_t bytes = 80 * MB;
  char *p = map_rw(bytes);
  pid_t first = 0, old = 0;
  for (int i = 0; i < 12; i++) {
    fill(p, bytes, i);
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
      munmap(p, bytes);
      for (;;) pause();
    }
    if (!first) {
      first = pid;
      continue;
    }
    if (old) {
      kill(old, SIGKILL);
      waitpid(old, 0, 0);
    }
    old = pid;
  }
  verify(p, bytes, 11, "parent");
  kill(old, SIGKILL);
  kill(first, SIGKILL);
}

/* Its writes are on their way when it ends, and another takes what would be its swap. */
static void write_for_ever(void) {
  char *p = map_rw(128 * MB);
  for (u64 i = 0;; i++) {
    fill(p, 128 * MB, i);
    tell("writes");
  }
}

static void *writing_thread(void *unused) {
  (void)unused;
  write_for_ever();
  return 0;
}

static void late(void) {
  size_t bytes = 144 * MB;
  tell("gone");
  wait_for("go");
  char *p = map_rw(bytes);
  fill(p, bytes, 7);
  tell("filled");
  wait_for("carried out");
  verify(p, bytes, 7, "who came later");
}

static void in_flight_at_kill(const char *self) {
  pid_t pid = start(self, "writer");
  wait_for("caught");
  kill(pid, SIGKILL);
  MUST(waitpid(pid, 0, 0) == pid);
  wait_ok(start(self, "late"), "who came later");
}

static void in_flight_at_exec(const char *self) {
  wait_ok(start(self, "writer_execs"), "who came later");
}

static void writer_execs(const char *self) {
  pthread_t t;
  MUST(pthread_create(&t, 0, writing_thread, 0) == 0);
  wait_for("caught");
  execl(self, self, "late", dir, (char *)0);
  _exit(98);
}

/* Somebody lives and keeps what it has while the supervisor can find out nothing. */
static void keeps(const char *self) {
  char *p = map_rw(BYTES);
  fill(p, BYTES, 1);
  pid_t pid = fork();
  MUST(pid >= 0);
  if (pid == 0) {
    tell("filled");
    wait_for("go");
    execl(self, self, "other", dir, (char *)0);
    _exit(98);
  }
  wait_ok(pid, "other");
  verify(p, BYTES, 1, "who was there before");
}

/* Nobody gives swap meanwhile. */
static void wants(void) {
  char *p = map_rw(2 * BYTES);
  fill(p, 16 * MB, 1);
  tell("began");
  wait_for("go");
  fill(p, 2 * BYTES, 1);
  verify(p, 2 * BYTES, 1, "who waited");
}

/* What all processes of the run read, none can write. */
static void control_page(void) {
  char line[1024], name[128];
  int found = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  MUST(maps);
  while (fgets(line, sizeof line, maps)) {
    unsigned long start, end;
    char perms[5];
    if (!strstr(line, "hugeswap-control")) continue;
    MUST(sscanf(line, "%lx-%lx %4s", &start, &end, perms) == 3);
    if (strcmp(perms, "r--s")) STOP("mapped %s", perms);
    found++;
    MUST(mprotect((void *)start, end - start, PROT_READ | PROT_WRITE) == -1);
    snprintf(name, sizeof name, "/proc/self/map_files/%lx-%lx", start, end);
    int fd = open(name, O_RDWR);
    MUST(fd >= 0);
    MUST(write(fd, "x", 1) == -1 && errno == EPERM);
    MUST(mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EPERM);
    MUST(ftruncate(fd, 0) == -1 && errno == EPERM);
    close(fd);
  }
  fclose(maps);
  MUST(found == 1);
}

/* Nobody else may look at it. */
static void hidden(const char *self) {
  MUST(prctl(PR_SET_DUMPABLE, 0) == 0);
  char *p = map_rw(BYTES);
  for (int i = 0; i < 3; i++) {
    fill(p, BYTES, i);
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
      verify(p, BYTES, i, "child");
      _exit(0);
    }
    wait_ok(pid, "child");
    wait_ok(start(self, "other"), "other");
    verify(p, BYTES, i, "parent");
  }
}

/* A child that shares its parent's memory outlives it: it may be killed, and finds no other bytes. */
static char *shared;
static int told[2], goes[2];

static int sharer(void *unused) {
  (void)unused;
  char c = 'k';
  if (read(goes[0], &c, 1) != 1) _exit(97);
  for (size_t i = 0; i < BYTES; i += PAGE)
    if (*(volatile u64 *)(shared + i) != mix(i + 1)) {
      c = 'w';
      break;
    }
  if (write(told[1], &c, 1) != 1) _exit(97);
  _exit(0);
}

static void shares_memory(void) {
  static char stack[64 << 10] __attribute__((aligned(16)));
  int ready[2], status;
  char c;
  MUST(pipe(told) == 0 && pipe(goes) == 0 && pipe(ready) == 0);
  MUST(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
  pid_t parent = fork();
  MUST(parent >= 0);
  if (parent == 0) {
    shared = map_rw(BYTES);
    fill(shared, BYTES, 1);
    MUST(clone(sharer, stack + sizeof stack, CLONE_VM | SIGCHLD, 0) > 0);
    MUST(write(ready[1], "r", 1) == 1);
    for (;;) pause();
  }
  MUST(read(ready[0], &c, 1) == 1);
  kill(parent, SIGKILL);
  MUST(waitpid(parent, &status, 0) == parent && WIFSIGNALED(status));
  close(told[1]);
  MUST(write(goes[1], "g", 1) == 1);
  ssize_t n = read(told[0], &c, 1);
  MUST(wait(&status) > 0);
  if (n == 1 && c == 'w') STOP("it read other bytes");
  if (n == 0 && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS)) STOP("ended with %x", status);
}

int main(int argc, char **argv) {
  MUST(argc == 3);
  const char *what = argv[1];
  dir = argv[2];
  if (!strcmp(what, "one_a")) one("a", "b");
  else if (!strcmp(what, "one_b")) one("b", "a");
  else if (!strcmp(what, "outer_a")) in_namespace(argv[0], "one_a");
  else if (!strcmp(what, "outer_b")) in_namespace(argv[0], "one_b");
  else if (!strcmp(what, "other")) other();
  else if (!strcmp(what, "writer")) write_for_ever();
  else if (!strcmp(what, "writer_execs")) writer_execs(argv[0]);
  else if (!strcmp(what, "late")) late();
  else {
    if (!strcmp(what, "namespaces")) namespaces(argv[0]);
    else if (!strcmp(what, "killed_at_clone")) killed_at_clone(argv[0]);
    else if (!strcmp(what, "empty_root")) empty_root();
    else if (!strcmp(what, "numbers")) numbers();
    else if (!strcmp(what, "overlapping")) overlapping();
    else if (!strcmp(what, "in_flight_at_kill")) in_flight_at_kill(argv[0]);
    else if (!strcmp(what, "in_flight_at_exec")) in_flight_at_exec(argv[0]);
    else if (!strcmp(what, "keeps")) keeps(argv[0]);
    else if (!strcmp(what, "wants")) wants();
    else if (!strcmp(what, "control_page")) control_page();
    else if (!strcmp(what, "hidden")) hidden(argv[0]);
    else if (!strcmp(what, "shares_memory")) shares_memory();
    else STOP("what is %s?", what);
    say("ok\n");
  }
  return 0;
}
