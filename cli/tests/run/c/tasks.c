/* What a program sees of its own threads in /proc: as sandboxes look before they close, by the number of links
 * and by the directory itself. */
#include "check.h"
#include <dirent.h>
#include <sys/stat.h>

static unsigned listed(const char *path)
{
  DIR *d = opendir(path);
  struct dirent *e;
  unsigned n = 0;
  MUST(d);
  while ((e = readdir(d)))
    n += e->d_name[0] != '.';
  closedir(d);
  return n;
}

/* By every way there is. */
static void has_threads(int proc, unsigned n)
{
  struct stat s;
  char own[64];
  int fd;
  MUST(fstatat(proc, "self/task/", &s, 0) == 0 && s.st_nlink == 2 + n);
  MUST(fstatat(proc, "self/task", &s, AT_SYMLINK_NOFOLLOW) == 0 && s.st_nlink == 2 + n);
  snprintf(own, sizeof own, "/proc/%d/task", getpid());
  MUST(stat(own, &s) == 0 && s.st_nlink == 2 + n);
  MUST(lstat("/proc/self/task", &s) == 0 && s.st_nlink == 2 + n);
  fd = open(own, O_RDONLY | O_DIRECTORY);
  MUST(fd >= 0 && fstat(fd, &s) == 0 && s.st_nlink == 2 + n);
  close(fd);
  MUST(listed(own) == n && listed("/proc/self/task") == n);
}

static void *thread(void *proc)
{
  has_threads(*(int *)proc, 2);
  return NULL;
}

int main(void)
{
  pthread_t t;
  int proc = open("/proc", O_RDONLY | O_DIRECTORY), status;
  struct stat s;
  MUST(proc >= 0);
  has_threads(proc, 1);
  MUST(pthread_create(&t, NULL, thread, &proc) == 0);
  pthread_join(t, NULL);
  /* The kernel takes a moment to forget it. */
  while (listed("/proc/self/task") > 1)
    usleep(1000);
  has_threads(proc, 1);
  /* Other directories there are what they are. */
  MUST(stat("/proc/self", &s) == 0 && s.st_nlink > 3);
  MUST(stat("/proc/1/task", &s) == 0 && s.st_nlink >= 3);
  MUST(fstat(-100, &s) == -1 && errno == EBADF);
  MUST(fstatat(proc, "self/nothing", &s, 0) == -1 && errno == ENOENT);
  if (fork() == 0) {
    has_threads(proc, 1);
    _exit(0);
  }
  MUST(wait(&status) > 0 && status == 0);
  puts("ok");
  return 0;
}
