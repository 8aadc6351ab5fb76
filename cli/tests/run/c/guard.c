/* What the run's guard must see, and what the program must not see of the guard. One case at a time. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>

static void on_alarm(int s) { (void)s; }

/* Signals without SA_RESTART: to open a file natively takes no notice of them. */
static void storm(void) {
  struct sigaction sa = {.sa_handler = on_alarm};
  sigaction(SIGALRM, &sa, 0);
  struct itimerval often = {{0, 100}, {0, 100}};
  setitimer(ITIMER_REAL, &often, 0);
  for (int i = 0; i < 20000; i++) {
    int fd = openat(AT_FDCWD, "/etc/passwd", O_RDONLY | O_DIRECT);
    if (fd < 0) STOP("open %d: %s", i, strerror(errno));
    close(fd);
  }
  struct itimerval never = {{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &never, 0);
}

/* The kernel allows one listener. */
static void listener(void) {
  struct sock_filter f[] = {{0x20, 0, 0, offsetof(struct seccomp_data, nr)},
                            {0x15, 0, 1, SYS_getppid},
                            {0x06, 0, 0, SECCOMP_RET_USER_NOTIF},
                            {0x06, 0, 0, SECCOMP_RET_ALLOW}};
  struct sock_fprog p = {4, f};
  int fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &p);
  MUST(fd >= 0);
  pid_t pid = fork();
  if (pid == 0) _exit(getppid() != 4321);
  struct seccomp_notif call = {0};
  MUST(ioctl(fd, SECCOMP_IOCTL_NOTIF_RECV, &call) == 0 && call.data.nr == SYS_getppid);
  struct seccomp_notif_resp answer = {.id = call.id, .val = 4321};
  MUST(ioctl(fd, SECCOMP_IOCTL_NOTIF_SEND, &answer) == 0);
  wait_ok(pid, "child");
  int direct = open("/etc/passwd", O_RDONLY | O_DIRECT);
  MUST(direct >= 0);
  errno = 0;
  MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &p) == -1 && errno == EBUSY);
}

static int old_vmsplice(int fd, void *iov, int n) {
  int result;
  __asm__ volatile("int $0x80" : "=a"(result) : "a"(316), "b"(fd), "c"(iov), "d"(n), "S"(0) : "memory", "r8", "r9", "r10", "r11");
  return result;
}

/* vmsplice by int 0x80, of memory below 4 GiB: what is in the pipe stays what it was. */
static void old_calls(void) {
  const size_t n = 96 * MB;
  char *low = mmap((void *)0x20000000, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MUST(low == (char *)0x20000000);
  fill(low, n, 1);
  uint32_t *iov = (uint32_t *)(low + 8 * MB);
  const size_t piped = 32768;
  int fds[40][2];
  for (int i = 0; i < 40; i++) {
    MUST(pipe(fds[i]) == 0);
    iov[0] = (uint32_t)(u64)(low + i * 2 * MB);
    iov[1] = piped;
    int got = old_vmsplice(fds[i][1], iov, 1);
    if (got == -ENOSYS) return;
    MUST(got == (int)piped);
    for (int k = 0; k < 2; k++) ((u64 *)iov)[k] = mix(8 * MB + k * 8 + 1);
  }
  char *other = map_rw(200 * MB);
  for (int r = 0; r < 2; r++) fill(other, 200 * MB, 7 + r);
  static char bytes[32768];
  for (int i = 0; i < 40; i++) {
    MUST(read(fds[i][0], bytes, piped) == (ssize_t)piped);
    if (i != 4) verify_from(bytes, i * 2 * MB, piped, 1, "piped");
  }
  verify(low, n, 1, "low");
}

int main(int argc, char **argv) {
  MUST(argc == 2);
  char *p = map_rw(100 * MB);
  fill(p, 100 * MB, 1);
  if (!strcmp(argv[1], "storm")) storm();
  if (!strcmp(argv[1], "listener")) listener();
  if (!strcmp(argv[1], "old_calls")) old_calls();
  verify(p, 100 * MB, 1, "memory");
  say("ok\n");
  return 0;
}
