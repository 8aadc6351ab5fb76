/* Lies over functions of the C library, as MPI's transports do, and in front of others. Only the first thread may call them. */
#include "check.h"
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static long call(long nr, long a, long b, long c, long d, long e, long f) {
  register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
  long said;
  __asm__ volatile("syscall" : "=a"(said) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
  return said;
}

static void only_first(void) {
  static const char text[] = "called by another thread\n";
  if (call(SYS_gettid, 0, 0, 0, 0, 0, 0) == call(SYS_getpid, 0, 0, 0, 0, 0, 0)) return;
  call(SYS_write, 2, (long)text, sizeof text - 1, 0, 0, 0);
  call(SYS_exit_group, 3, 0, 0, 0, 0, 0);
}

static void *my_mmap(void *at, size_t len, int prot, int flags, int fd, long offset) {
  only_first();
  return (void *)call(SYS_mmap, (long)at, len, prot, flags, fd, offset);
}

static int my_munmap(void *at, size_t len) {
  only_first();
  return call(SYS_munmap, (long)at, len, 0, 0, 0, 0);
}

static int my_madvise(void *at, size_t len, int advice) {
  only_first();
  return call(SYS_madvise, (long)at, len, advice, 0, 0, 0);
}

int close(int fd) {
  only_first();
  return call(SYS_close, fd, 0, 0, 0, 0, 0);
}

ssize_t read(int fd, void *to, size_t len) {
  only_first();
  return call(SYS_read, fd, (long)to, len, 0, 0, 0);
}

static void lay(const char *name, void *to) {
  char *at = dlsym(RTLD_NEXT, name), jump[12] = "\x48\xb8........\xff\xe0";
  char *page = (char *)((long)at & -4096);
  memcpy(jump + 2, &to, 8);
  MUST(!mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC));
  memcpy(at, jump, sizeof jump);
  MUST(!mprotect(page, 8192, PROT_READ | PROT_EXEC));
}

__attribute__((constructor)) static void begin(void) {
  lay("mmap", my_mmap);
  lay("munmap", my_munmap);
  lay("madvise", my_madvise);
}
