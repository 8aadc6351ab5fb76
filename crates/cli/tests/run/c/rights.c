/* Who gives up rights has no thread in his process that keeps them, whatever is in swap meanwhile. */
#include "check.h"
#include <dirent.h>
#include <grp.h>
#include <linux/capability.h>
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

static void all_the_same(const char *what) {
  char mine[1024], theirs[1024], task[300];
  rights_of("/proc/thread-self", mine, sizeof mine);
  DIR *d = opendir("/proc/self/task");
  MUST(d);
  for (struct dirent *e; (e = readdir(d));) {
    if (e->d_name[0] == '.') continue;
    snprintf(task, sizeof task, "/proc/self/task/%s", e->d_name);
    rights_of(task, theirs, sizeof theirs);
    if (strcmp(mine, theirs)) STOP("%s: a thread has\n%sand not\n%s", what, theirs, mine);
  }
  closedir(d);
}

static void are_given_up(const char *what) {
  all_the_same(what);
  works(p, n, what);
}

static void by_setuid(void) {
  MUST(setgroups(0, 0) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
  are_given_up("setuid");
}

static void by_three(void) {
  MUST(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
  are_given_up("setresuid");
}

static void by_number(void) {
  MUST(syscall(SYS_setresgid, 65534, 65534, 65534) == 0 && syscall(SYS_setuid, 65534) == 0);
  are_given_up("syscall(2)");
}

static void capabilities(void) {
  struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct none[2] = {0};
  MUST(syscall(SYS_capset, &head, none) == 0);
  are_given_up("capset");
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
    _exit(0);
  }
  wait_ok(pid, "forked child");
  all_the_same("who has kept his rights");
  works(p, n, "who has kept his rights");
}

int main(void) {
  static const struct test_case all[] = {
    {"setuid", by_setuid}, {"setresuid", by_three}, {"syscall(2)", by_number}, {"capset", capabilities},
    {"for a while", for_a_while}, {"a forked child", in_a_forked_child},
  };
  p = map_rw(n);
  fill(p, n, 1);
  each_in_a_child(all, sizeof all / sizeof *all);
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
  say("ok\n");
  return 0;
}
