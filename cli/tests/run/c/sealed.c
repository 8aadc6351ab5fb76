/* sealed MIB: does what it is told on standard input, a letter at a time, and says so.
 *   0-9  writes every page, in this version
 *   r    reads every page: how many were lost (SIGBUS), and whether any was wrong, which ends it
 *   w    the same, and what was lost is dropped and written anew
 *   k    forks: the child writes every other page in a version of its own, and reads; then its parent does
 *   u    the same, and the child reads only
 *   s    has the kernel read every page: EFAULT is a lost one
 *   m    moves them all to other addresses
 *   a    dies of SIGABRT
 */
#include "check.h"
#include <setjmp.h>

static char *data;
static size_t pages, lost;
static char version;
static sigjmp_buf back;

static void on_bus(int sig) {
  (void)sig;
  siglongjmp(back, 1);
}

static u64 word(size_t page, size_t i, char v) { return mix((page * 512 + i) * 8 + v * 0x100000001ull); }

static void write_page(size_t page, char v) {
  u64 *w = (u64 *)(data + page * PAGE);
  for (size_t i = 2; i < 512; i++) w[i] = word(page, i, v);
  memcpy(w, "sealed plaintext", 16);
}

static void read_all(int again, int step, char other) {
  lost = 0;
  for (volatile size_t page = 0; page < pages; page++) {
    char v = step && page % step == 0 ? other : version;
    if (sigsetjmp(back, 1)) {
      lost++;
      if (again) {
        MUST(madvise(data + page * PAGE, PAGE, MADV_DONTNEED) == 0);
        write_page(page, v);
      }
      continue;
    }
    const u64 *w = (const u64 *)(data + page * PAGE);
    if (memcmp(w, "sealed plaintext", 16)) STOP("page %zu has another's beginning", page);
    for (size_t i = 2; i < 512; i++)
      if (w[i] != word(page, i, v)) STOP("page %zu is wrong at %zu", page, i);
  }
}

static void write_all(void) {
  int ends[2];
  static u64 w[PAGE / 8];
  MUST(pipe(ends) == 0);
  lost = 0;
  for (size_t page = 0; page < pages; page++) {
    ssize_t n = write(ends[1], data + page * PAGE, PAGE);
    if (n < 0) {
      MUST(errno == EFAULT);
      lost++;
      continue;
    }
    MUST(n == PAGE && read(ends[0], w, PAGE) == PAGE);
    for (size_t i = 2; i < 512; i++)
      if (w[i] != word(page, i, version)) STOP("page %zu is written wrong at %zu", page, i);
  }
  close(ends[0]);
  close(ends[1]);
}

static void move_all(void) {
  char *to = map_rw(pages * PAGE + MB) + 3 * PAGE;
  MUST(mremap(data, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
  data = to;
}

static void told(const char *who, char c) {
  static int n;
  char text[100];
  snprintf(text, sizeof text, "%s %d %c lost=%zu\n", who, ++n, c, lost);
  say(text);
}

static void forked(char c) {
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    if (c == 'k')
      for (size_t page = 0; page < pages; page += 2) write_page(page, 'c');
    read_all(0, c == 'k' ? 2 : 0, 'c');
    told("child", c);
    _exit(0);
  }
  wait_ok(child, "child");
  read_all(0, 0, 0);
}

int main(int argc, char **argv) {
  MUST(argc == 2);
  pages = atol(argv[1]) * MB / PAGE;
  data = map_rw(pages * PAGE);
  struct sigaction sa = {.sa_handler = on_bus, .sa_flags = SA_NODEFER};
  MUST(sigaction(SIGBUS, &sa, 0) == 0);
  char c;
  while (read(0, &c, 1) == 1) {
    if (c == 'a') abort();
    if (c == 'k' || c == 'u') forked(c);
    if (c == 'r' || c == 'w') read_all(c == 'w', 0, 0);
    if (c == 's') write_all();
    if (c == 'm') move_all();
    if (c >= '0' && c <= '9') {
      version = c;
      for (size_t page = 0; page < pages; page++) write_page(page, c);
    }
    told("done", c);
  }
  return 0;
}
