/* Linux loses a byte, without hugeswap (seen on 6.18): ./unshared-lazily-freed FILE DIR, in a memory group of 100 MiB
   without swap. FILE has 300 MiB, DIR is on a disk.

   A process writes from memory that it shares with a child, by direct I/O. The kernel copies each page before it pins
   it (FAULT_FLAG_UNSHARE), and leaves the copy clean in the page table. The next child shares the clean page. The
   parent's MADV_FREE looks at whether others map a page only if the page is dirty, so it marks this one; and reclaim,
   which finds it clean in both, takes it from both. The child has said nothing, and reads zeros. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 64
#define MUST(x) do { if (!(x)) { perror(#x); exit(2); } } while (0)

static void press(const char *file) {
  static char buffer[1 << 20];
  size_t bytes = 70 << 20;
  char *more = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MUST(more != MAP_FAILED);
  FILE *f = fopen(file, "r");
  MUST(f);
  for (size_t round = 1; round <= 4; round++) {
    for (rewind(f); fread(buffer, 1, sizeof buffer, f) > 0;);
    for (size_t i = 0; i < bytes / 4 * round; i += PAGE) more[i] = 1;
  }
}

int main(int argc, char **argv) {
  MUST(argc == 3);
  char *p = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MUST(p != MAP_FAILED);
  memset(p, 0x55, PAGES * PAGE);
  pid_t first = fork();
  MUST(first >= 0);
  if (!first) {
    pause();
    _exit(0);
  }
  MUST(chdir(argv[2]) == 0);
  int fd = open("unshared-lazily-freed.tmp", O_RDWR | O_CREAT | O_DIRECT, 0600);
  MUST(fd >= 0);
  MUST(unlink("unshared-lazily-freed.tmp") == 0);
  MUST(write(fd, p, PAGES * PAGE) == PAGES * PAGE);
  MUST(kill(first, SIGKILL) == 0);
  MUST(waitpid(first, 0, 0) == first);
  int freed[2];
  MUST(pipe(freed) == 0);
  pid_t second = fork();
  MUST(second >= 0);
  if (!second) {
    char c;
    MUST(read(freed[0], &c, 1) == 1);
    press(argv[1]);
    int wrong = 0;
    for (int i = 0; i < PAGES; i++) wrong += p[i * PAGE] != 0x55;
    printf("the second child has %d of %d pages wrong\n", wrong, PAGES);
    fflush(stdout);
    _exit(wrong > 0);
  }
  MUST(madvise(p, PAGES * PAGE, MADV_FREE) == 0);
  MUST(write(freed[1], "", 1) == 1);
  int status;
  MUST(waitpid(second, &status, 0) == second);
  return WEXITSTATUS(status);
}
