/* As LuaJIT does: asks for memory within 2 GiB of its code, in which it makes code of its own. */
#include "check.h"

static long number(void) { return 7; }

int main(void) {
  const size_t n = 96 * MB, small = 64 << 10;
  char *p = map_rw(n);
  fill(p, n, 1);
  uintptr_t near = (uintptr_t)number & ~(small - 1);
  for (long i = 1; i <= 3; i++) {
    char *want = (char *)(near + i * (64 << 20));
    char *at = mmap(want, small, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(at == want);
    /* mov eax, 40 + i; ret */
    memcpy(at, (char[]){(char)0xb8, (char)(40 + i), 0, 0, 0, (char)0xc3}, 6);
    verify(p, n, 1, "the rest");
    MUST(mprotect(at, small, PROT_READ | PROT_EXEC) == 0);
    MUST(((long (*)(void))(void *)at)() == 40 + i);
    MUST(i != 2 || munmap(at, small) == 0);
  }
  say("ok\n");
}
