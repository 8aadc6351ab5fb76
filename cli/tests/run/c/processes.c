/* fork, exec and their relatives with memory that is swapped out. */
#include "check.h"
#include <dirent.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>

extern char **environ;
static char *p;
static size_t bytes;

static void both_sides(void) {
  pid_t pid = fork();
  MUST(pid >= 0);
  verify(p, bytes, 1, pid ? "parent after fork" : "child after fork");
  fill(p, bytes, pid ? 2 : 3);
  verify(p, bytes, pid ? 2 : 3, pid ? "parent's own" : "child's own");
  if (!pid) _exit(0);
  wait_ok(pid, "child");
  verify(p, bytes, 2, "parent after the child");
}

/* Each generation changes a part and sees the changes of those before. */
static void generation(int n) {
  size_t part = bytes / 8;
  for (int i = 0; i < 8; i++)
    verify_from(p + i * part, i < n ? 0 : i * part, part, i < n ? 100 + i : 1, "generation");
  if (n == 4) return;
  pid_t pid = fork();
  MUST(pid >= 0);
  if (pid == 0) {
    fill(p + n * part, part, 100 + n);
    generation(n + 1);
    _exit(0);
  }
  wait_ok(pid, "generation");
  verify_from(p + n * part, n * part, part, 1, "after the next generation");
}

static void grandchildren(void) { generation(0); }

/* Several children at a time, each with its own changes. */
static void siblings(void) {
  pid_t pids[4];
  for (int i = 0; i < 4; i++) {
    pids[i] = fork();
    MUST(pids[i] >= 0);
    if (pids[i] == 0) {
      size_t part = bytes / 4;
      verify_from(p + i * part, i * part, part, 1, "sibling");
      fill(p + i * part, part, 10 + i);
      verify(p + i * part, part, 10 + i, "sibling's own");
      if (i) verify(p, part, 1, "sibling, the first part");
      _exit(0);
    }
  }
  for (int i = 0; i < 4; i++) wait_ok(pids[i], "sibling");
  verify(p, bytes, 1, "after siblings");
}

/* The parent writes and frees while the child still needs the old contents. */
static void parent_changes(void) {
  int go[2];
  MUST(pipe(go) == 0);
  pid_t pid = fork();
  if (pid == 0) {
    char c;
    MUST(read(go[0], &c, 1) == 1);
    verify(p, bytes, 1, "child after the parent's changes");
    _exit(0);
  }
  fill(p, bytes / 2, 7);
  MUST(madvise(p + bytes / 2, bytes / 4, MADV_DONTNEED) == 0);
  MUST(munmap(p + bytes / 4 * 3, bytes / 4) == 0);
  char *q = map_rw(bytes / 2);
  fill(q, bytes / 2, 8);
  MUST(write(go[1], "x", 1) == 1);
  verify(p, bytes / 2, 7, "parent");
  verify_zero(p + bytes / 2, bytes / 4, "parent, dropped");
  verify(q, bytes / 2, 8, "parent, new");
  wait_ok(pid, "child");
}

/* The child outlives the parent, as daemons do. The one who is left says so. */
static void orphan(void) {
  int gone[2];
  MUST(pipe(gone) == 0);
  pid_t pid = fork();
  if (pid) _exit(0);
  close(gone[1]);
  char c;
  MUST(read(gone[0], &c, 1) == 0);
  usleep(300000);
  verify(p, bytes, 1, "orphan");
  fill(p, bytes, 2);
  verify(p, bytes, 2, "orphan's own");
  say("orphan ok\n");
}

static void as_daemon(void) {
  MUST(daemon(1, 1) == 0);
  verify(p, bytes, 1, "daemon");
  fill(p, bytes, 2);
  verify(p, bytes, 2, "daemon's own");
  say("daemon ok\n");
}

static volatile int stop;

static void *writer(void *arg) {
  char *mine = arg;
  size_t part = bytes / 8;
  u64 round = 0;
  while (!stop) {
    fill(mine, part, 1000 + round);
    verify(mine, part, 1000 + round++, "writer");
  }
  return 0;
}

/* Threads write while one forks; memory that nobody writes is right in the child. */
static void threads(void) {
  pthread_t t[3];
  for (int i = 0; i < 3; i++) MUST(pthread_create(&t[i], 0, writer, p + i * (bytes / 8)) == 0);
  for (int i = 0; i < 4; i++) {
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
      size_t from = bytes / 2;
      verify_from(p + from, from, bytes - from, 1, "child of threads");
      fill(p, bytes / 4, 5);
      verify(p, bytes / 4, 5, "child of threads, own");
      char *s = malloc(MB);
      memset(s, 1, MB);
      free(s);
      _exit(0);
    }
    wait_ok(pid, "child of threads");
  }
  stop = 1;
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
}

static void spawning(void) {
  pid_t pid;
  char *argv[] = {"sh", "-c", "exit 7", 0};
  int status;
  for (int i = 0; i < 20; i++) {
    MUST(posix_spawn(&pid, "/bin/sh", 0, 0, argv, environ) == 0);
    MUST(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 7);
    pid = vfork();
    if (pid == 0) {
      execv("/bin/true", argv);
      _exit(1);
    }
    wait_ok(pid, "vfork");
    MUST(WEXITSTATUS(system("exit 5")) == 5);
    char line[64];
    FILE *f = popen("echo hello", "r");
    MUST(f && fgets(line, sizeof line, f) && !strcmp(line, "hello\n") && pclose(f) == 0);
  }
  verify(p, bytes, 1, "after spawning");
}

/* Arguments and environment of exec that are swapped out. */
static void exec_from_swap(void) {
  char **argv = (char **)p;
  char *text = p + 8 * MB;
  strcpy(text, "sh");
  strcpy(text + PAGE, "-c");
  strcpy(text + 2 * PAGE, "echo exec $WORD; exit 0");
  strcpy(text + 3 * PAGE, "WORD=ok");
  argv[0] = text, argv[1] = text + PAGE, argv[2] = text + 2 * PAGE, argv[3] = 0;
  argv[512] = text + 3 * PAGE, argv[513] = 0;
  for (size_t i = 16 * MB; i < bytes; i += PAGE) p[i]++;
  for (size_t i = 16 * MB; i < bytes; i += PAGE) p[i]++;
  execve("/bin/sh", argv, argv + 512);
  STOP("exec: %s", strerror(errno));
}

/* A child that execs itself is managed too, and neither keeps anything of the other. */
static void exec_self(char **argv) {
  pid_t pid = fork();
  if (pid == 0) {
    argv[1] = "both_sides";
    execv("/proc/self/exe", argv);
    _exit(1);
  }
  wait_ok(pid, "exec of itself");
  verify(p, bytes, 1, "after a child's exec");
  argv[1] = "siblings";
  execv("/proc/self/exe", argv);
  STOP("exec: %s", strerror(errno));
}

/* Many short children: nothing piles up. */
static void many(void) {
  for (int i = 0; i < 150; i++) {
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
      u64 at = mix(i) % (bytes / PAGE) * PAGE;
      verify_from(p + at, at, PAGE, 1, "one of many");
      p[at]++;
      _exit(0);
    }
    wait_ok(pid, "one of many");
  }
  verify(p, bytes, 1, "after many");
}

/* What a process has, engine included. */
struct has {
  unsigned descriptors, threads, mappings, kilobytes;
};

static unsigned entries(const char *dir) {
  unsigned n = 0;
  DIR *d = opendir(dir);
  MUST(d);
  while (readdir(d)) n++;
  closedir(d);
  return n;
}

/* But those of the kernel's that carry out requests of an io_uring, and come and go. */
static unsigned threads_here(void) {
  unsigned n = 0;
  DIR *d = opendir("/proc/self/task");
  MUST(d);
  for (struct dirent *e; (e = readdir(d));) {
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", e->d_name);
    FILE *f = fopen(path, "r");
    if (!f) continue;
    if (fgets(name, sizeof name, f) && strncmp(name, "iou-", 4)) n++;
    fclose(f);
  }
  closedir(d);
  return n;
}

static struct has look(void) {
  struct has h = {entries("/proc/self/fd"), threads_here(), 0, 0};
  char line[512];
  FILE *f = fopen("/proc/self/maps", "r");
  MUST(f);
  while (fgets(line, sizeof line, f)) h.mappings++;
  fclose(f);
  f = fopen("/proc/self/status", "r");
  MUST(f);
  while (fgets(line, sizeof line, f)) sscanf(line, "VmSize: %u", &h.kilobytes);
  fclose(f);
  return h;
}

/* The program's own mappings split and merge a little, and the engine's table of sums and slots
 * is 48 MiB of addresses (8192 ranges of 6 KiB each) when the first of a neighbourhood is needed. */
static void no_more_than(struct has now, struct has then, const char *when) {
  if (now.descriptors != then.descriptors || now.threads != then.threads || now.mappings > then.mappings + 24 ||
      now.kilobytes > then.kilobytes + 64 * 1024)
    STOP("%s: %u descriptors, %u threads, %u mappings, %u KiB; before %u, %u, %u, %u", when, now.descriptors,
         now.threads, now.mappings, now.kilobytes, then.descriptors, then.threads, then.mappings, then.kilobytes);
}

/* Children that end in all ways leave nothing behind in their parent; then everything is dropped. */
static void leaks(void) {
  int forks = atoi(getenv("FORKS"));
  struct has before = {0};
  for (int i = 0; i < forks + 20; i++) {
    if (i == 20) before = look();
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
      u64 at = mix(i) % (bytes / PAGE) * PAGE;
      verify_from(p + at, at, PAGE, 1, "one of many");
      p[at]++;
      if (i % 3 == 0) raise(SIGKILL);
      if (i % 3 == 1) execl("/bin/true", "true", (char *)0);
      _exit(0);
    }
    int status;
    MUST(waitpid(pid, &status, 0) == pid && (status == 0 || status == SIGKILL));
  }
  no_more_than(look(), before, "after forks");
  verify(p, bytes, 1, "after forks");
  MUST(munmap(p, bytes) == 0);
  say("dropped\n");
  for (;;) pause();
}

/* A child's child's child has no more than the first. */
static void generations(void) {
  struct has first = {0};
  for (int i = 0; i < 24; i++) {
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid) {
      wait_ok(pid, "generation");
      if (i) _exit(0);
      return;
    }
    u64 at = mix(i) % (bytes / PAGE) * PAGE;
    verify_from(p + at, at, PAGE, 1, "generation");
    if (i == 3) first = look();
  }
  no_more_than(look(), first, "last generation");
  _exit(0);
}

static void handler(int s) {
  (void)s;
  stop = 1;
}

/* A child that is killed in the middle does not harm the parent. */
static void killed_children(void) {
  signal(SIGUSR1, handler);
  for (int i = 0; i < 10; i++) {
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0)
      for (u64 r = 2;; r++) fill(p, bytes, r);
    usleep(20000 * (i % 4));
    kill(pid, SIGKILL);
    int status;
    MUST(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
    verify_from(p + bytes / 10 * i / PAGE * PAGE, bytes / 10 * i / PAGE * PAGE, PAGE, 1, "a page");
  }
  verify(p, bytes, 1, "after killed children");
}

/* Ends a group while one of it forks: of that group nobody is left. Everybody in it has the pipe. */
static void end_group_of_forking(useconds_t after) {
  int all[2], go[2];
  MUST(pipe(all) == 0 && pipe(go) == 0);
  pid_t leader = fork();
  MUST(leader >= 0);
  if (leader == 0) {
    MUST(setpgid(0, 0) == 0);
    fill(p, bytes, 2);
    MUST(write(go[1], "g", 1) == 1);
    fork();
    for (;;) pause();
  }
  close(all[1]);
  char c;
  MUST(read(go[0], &c, 1) == 1);
  usleep(after);
  MUST(kill(-leader, SIGTERM) == 0);
  struct pollfd ended = {.fd = all[0]};
  int n = poll(&ended, 1, 20000);
  kill(-leader, SIGKILL);
  if (n != 1) STOP("a child lives on, %d us", after);
  int status;
  MUST(waitpid(leader, &status, 0) == leader && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  close(all[0]);
  close(go[0]);
  close(go[1]);
}

static void ended_while_it_forks(void) {
  const useconds_t after[] = {0, 300, 1000, 3000, 10000, 30000};
  for (int i = 0; i < 12; i++) end_group_of_forking(after[i % 6]);
  verify(p, bytes, 1, "after groups that ended");
}

int main(int argc, char **argv) {
  const char *what = argv[1];
  bytes = (argc > 2 ? strtoul(argv[2], 0, 0) : 96) * MB;
  p = map_rw(bytes);
  fill(p, bytes, 1);
  if (!strcmp(what, "both_sides")) both_sides();
  else if (!strcmp(what, "grandchildren")) grandchildren();
  else if (!strcmp(what, "siblings")) siblings();
  else if (!strcmp(what, "parent_changes")) parent_changes();
  else if (!strcmp(what, "orphan")) orphan();
  else if (!strcmp(what, "as_daemon")) as_daemon();
  else if (!strcmp(what, "threads")) threads();
  else if (!strcmp(what, "spawning")) spawning();
  else if (!strcmp(what, "exec_from_swap")) exec_from_swap();
  else if (!strcmp(what, "exec_self")) exec_self(argv);
  else if (!strcmp(what, "many")) many();
  else if (!strcmp(what, "killed_children")) killed_children();
  else if (!strcmp(what, "ended_while_it_forks")) ended_while_it_forks();
  else if (!strcmp(what, "leaks")) leaks();
  else if (!strcmp(what, "generations")) generations();
  else STOP("unknown: %s", what);
  say("ok\n");
  return 0;
}
