/* Who gives up rights has no thread in his process that keeps them, whatever is in swap meanwhile. */
#include "check.h"
#include <grp.h>
#include <sched.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static char *p;
static const size_t n = 96 * MB;

/* What each thread of the process may do, as one text. */
static void rights_of(const char *task, char *text, size_t size) {
  char path[64], line[256];
  snprintf(path, sizeof path, "%s/status", task);
  FILE *f = fopen(path, "r");
  MUST(f);
  *text = 0;
  while (fgets(line, sizeof line, f))
    if (!strncmp(line, "Uid:", 4) || !strncmp(line, "Gid:", 4) || !strncmp(line, "Groups:", 7) || !strncmp(line, "CapPrm:", 7))
      strncat(text, line, size - strlen(text) - 1);
  fclose(f);
}

/* By the system call: what the C library lists leaves the engine's threads out. */
static void all_the_same(const char *what) {
  struct entry {
    u64 inode, next;
    unsigned short length;
    char type, name[];
  };
  char mine[1024], theirs[1024], path[300], entries[8192], name[32];
  rights_of("/proc/thread-self", mine, sizeof mine);
  int d = open("/proc/self/task", O_RDONLY | O_DIRECTORY);
  MUST(d >= 0);
  long len = syscall(SYS_getdents64, d, entries, sizeof entries);
  MUST(len > 0);
  for (long at = 0; at < len;) {
    struct entry *e = (struct entry *)(entries + at);
    at += e->length;
    if (e->name[0] == '.') continue;
    /* The kernel's own, which carry out requests of a ring, run nothing of the program's. */
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->name);
    FILE *f = fopen(path, "r");
    if (!f) continue;
    int kernels = fgets(name, sizeof name, f) && !strncmp(name, "iou-", 4);
    fclose(f);
    if (kernels) continue;
    snprintf(path, sizeof path, "/proc/self/task/%s", e->name);
    rights_of(path, theirs, sizeof theirs);
    strcat(path, "/root");
    struct stat here, there;
    MUST(stat("/", &here) == 0);
    if (stat(path, &there) == 0 && (here.st_ino != there.st_ino || here.st_dev != there.st_dev))
      STOP("%s: a thread has another root", what);
    if (strcmp(mine, theirs)) STOP("%s: a thread has\n%sand not\n%s", what, theirs, mine);
  }
  close(d);
}

static void by_setuid(void) {
  MUST(setgroups(0, 0) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
}

static void by_three(void) {
  MUST(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
}

static void by_number(void) {
  MUST(syscall(SYS_setresgid, 65534, 65534, 65534) == 0 && syscall(SYS_setuid, 65534) == 0);
}

static void capabilities(void) {
  struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct none[2] = {0};
  MUST(syscall(SYS_capset, &head, none) == 0);
}

/* Most groups are left as they are. */
static void groups(void) {
  gid_t few[] = {5, 7};
  MUST(setgroups(2, few) == 0 && setresgid(0, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
}

/* By all threads, as the C library does it; meanwhile they use their memory. */
static int ended;

static void *uses(void *arg) {
  char *mine = map_rw(8 * MB);
  for (u64 i = 0; !__atomic_load_n(&ended, __ATOMIC_RELAXED); i++) {
    fill(mine, 8 * MB, i);
    verify(mine, 8 * MB, i, "a thread");
  }
  return arg;
}

static void in_several_threads(void) {
  pthread_t t[3];
  for (int i = 0; i < 3; i++) MUST(pthread_create(t + i, 0, uses, 0) == 0);
  by_setuid();
  all_the_same("several threads");
  works(p, n, "several threads");
  __atomic_store_n(&ended, 1, __ATOMIC_RELAXED);
  for (int i = 0; i < 3; i++) MUST(pthread_join(t[i], 0) == 0);
}

/* A root of its own, in which there is /proc to look at. */
static void below_a_root(void) {
  MUST(unshare(CLONE_NEWNS) == 0 && mount("none", "/", 0, MS_REC | MS_PRIVATE, 0) == 0);
  MUST(mount("none", "/mnt", "tmpfs", 0, 0) == 0 && mkdir("/mnt/proc", 0755) == 0);
  MUST(mount("proc", "/mnt/proc", "proc", 0, 0) == 0 && chroot("/mnt") == 0 && chdir("/") == 0);
  in_several_threads();
}

/* Calls of this number end as `action` says. */
static void forbid(int nr, unsigned action) {
  struct sock_filter filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, action),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void under_a_filter(void) {
  forbid(SYS_ptrace, SECCOMP_RET_KILL_PROCESS);
  by_setuid();
}

/* Hooks run in another thread of the engine's. */
static void under_a_filter_of_ours(void) {
  forbid(SYS_mincore, SECCOMP_RET_KILL_PROCESS);
  by_setuid();
}

/* It may not be asked for the rights that it has: nothing is changed, and it lives. */
static void not_asked(void) {
  forbid(SYS_getgroups, SECCOMP_RET_KILL_PROCESS);
  by_setuid();
  works(p, n, "not asked");
  _exit(0);
}

/* Nor may the engine of a child, which is under the filter, do what the filter forbids. */
static void not_done(void) {
  forbid(SYS_setresuid, SECCOMP_RET_KILL_PROCESS);
  pid_t pid = fork();
  if (pid == 0) {
    by_setuid();
    works(p, n, "not done");
    _exit(0);
  }
  wait_ok(pid, "not done");
  by_setuid();
}

/* Who may be looked at stays so: the engine's threads change nothing there. */
static void stays_dumpable(void) {
  MUST(setresuid(65534, 65534, 0) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
  MUST(setresuid(65534, 65534, 65534) == 0 && prctl(PR_GET_DUMPABLE) == 1);
}

/* For a while: they can be had back, and are. */
static void for_a_while(void) {
  for (int i = 0; i < 3; i++) {
    MUST(seteuid(65534) == 0);
    works(p, n, "for a while");
    MUST(seteuid(0) == 0);
  }
  by_setuid();
}

static void in_a_forked_child(void) {
  pid_t pid = fork();
  if (pid == 0) {
    by_setuid();
    all_the_same("forked child");
    works(p, n, "forked child");
    _exit(0);
  }
  wait_ok(pid, "forked child");
  works(p, n, "who has kept his rights");
}

int main(void) {
  static const struct test_case all[] = {
    {"setuid", by_setuid}, {"setresuid", by_three}, {"syscall(2)", by_number}, {"capset", capabilities},
    {"groups", groups}, {"several threads", in_several_threads}, {"a root", below_a_root}, {"under a filter", under_a_filter},
    {"under a filter that forbids hooks", under_a_filter_of_ours}, {"not asked", not_asked}, {"not done", not_done},
    {"dumpable", stays_dumpable}, {"for a while", for_a_while}, {"a forked child", in_a_forked_child},
  };
  p = map_rw(n);
  fill(p, n, 1);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    pid_t pid = fork();
    if (pid == 0) {
      all[i].run();
      all_the_same(all[i].name);
      works(p, n, all[i].name);
      _exit(0);
    }
    wait_ok(pid, all[i].name);
  }
  /* A child that has its parent's memory has its engine too. */
  pid_t pid = vfork();
  if (pid == 0) {
    if (syscall(SYS_setuid, 65534)) _exit(1);
    execl("/bin/true", "true", (char *)0);
    _exit(2);
  }
  wait_ok(pid, "vfork");
  works(p, n, "after vfork");
  by_setuid();
  works(p, n, "the first");
  say("ok\n");
  return 0;
}
