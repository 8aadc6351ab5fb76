/* Lies over the C library's brk in mid-run, and asks the kernel itself, as UCX does. The heap goes on all the same. */
#include "check.h"
#include <dlfcn.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void **break_now;

static int my_brk(void *to) {
  long said;
  __asm__ volatile("syscall" : "=a"(said) : "a"((long)SYS_brk), "D"(to) : "rcx", "r11", "memory");
  *break_now = (void *)said;
  return said < (long)to ? -1 : 0;
}

int main(void) {
  enum { N = 60000, SIZE = 3000 };
  static char *all[N];
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  break_now = dlsym(RTLD_DEFAULT, "__curbrk");
  char *at = dlsym(RTLD_DEFAULT, "brk"), jump[12] = "\x48\xb8........\xff\xe0", *page = (char *)((long)at & -4096);
  void *to = my_brk, *before = sbrk(0);
  memcpy(jump + 2, &to, 8);
  MUST(!mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC));
  memcpy(at, jump, sizeof jump);
  MUST(!mprotect(page, 8192, PROT_READ | PROT_EXEC));
  for (int i = 0; i < N; i++) {
    all[i] = malloc(SIZE);
    memset(all[i], i, SIZE);
  }
  for (int i = 0; i < N; i++)
    for (int j = 0; j < SIZE; j++)
      MUST(all[i][j] == (char)i);
  MUST(sbrk(0) >= before);
  puts("ok");
}
