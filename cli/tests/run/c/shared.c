/* shared HOW MIB: writes to huge pages that are shared since a fork, and looks whether each process has what it wrote and
 * what was there at the fork. HOW: "up", "down": page after page, in parent and child at once; "jump": anywhere;
 * "apart": one page in each; "threads": two walk, one reads, one moves and drops memory, one forks; "direct": the device
 * writes to and reads pages in between; "alone": when the other process has ended; "die N": a core file when N folios have
 * been passed; "calls": system calls write, in the child; "filter": a filter forbids the child to move mappings; "maps": a child has
 * as many mappings as it may, or nearly, and folios in pieces. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define FOLIO (2 * MB)

static size_t bytes, words;
static u64 *memory;

static u64 word(size_t w, u64 change) { return mix(w * 8 + 1) + change; }

/* Whole huge pages, where they can be had. */
static u64 *map_folios(size_t n) {
  char *p = map_rw(n + FOLIO);
  p = (char *)(((size_t)p + FOLIO - 1) & ~(FOLIO - 1));
  madvise(p, n, MADV_HUGEPAGE);
  return (u64 *)p;
}

static void look(size_t from, size_t to, u64 change, const char *who) {
  for (size_t w = from; w < to; w++)
    if (memory[w] != word(w, change)) STOP("%s: word %zu: %lx, not %lx", who, w, memory[w], word(w, change));
}

static void up(u64 change) {
  for (size_t w = 0; w < words; w++) memory[w] = word(w, change);
}

static void down(u64 change) {
  for (size_t w = words; w-- > 0;) memory[w] = word(w, change);
}

static void ends(pid_t child) {
  int status;
  MUST(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void walk(void (*how)(u64)) {
  for (u64 round = 0; round < 3; round++) {
    pid_t child = fork();
    if (child == 0) {
      how(100 + round);
      look(0, words, 100 + round, "child");
      /* And a child of a child, which shares with both. */
      pid_t grandchild = fork();
      if (grandchild == 0) {
        how(200 + round);
        look(0, words, 200 + round, "grandchild");
        _exit(0);
      }
      look(0, words, 100 + round, "child again");
      ends(grandchild);
      _exit(0);
    }
    how(round + 1);
    look(0, words, round + 1, "parent");
    ends(child);
  }
}

static void jump(void) {
  pid_t child = fork();
  u64 at = child == 0;
  static char changed[1 << 20];
  for (int i = 0; i < 4000; i++) {
    size_t page = next(&at) % (bytes / PAGE);
    memory[page * PAGE / 8] = ~0ul;
    changed[page] = 1;
  }
  for (size_t w = 0; w < words; w++) {
    u64 want = w % (PAGE / 8) == 0 && changed[w * 8 / PAGE] ? ~0ul : word(w, 0);
    if (memory[w] != want) STOP("word %zu after jumps: %lx, not %lx", w, memory[w], want);
  }
  if (child == 0) _exit(0);
  ends(child);
}

static void apart(void) {
  pid_t child = fork();
  for (size_t w = 0; w < words; w += FOLIO / 8) memory[w]++;
  for (size_t w = 0; w < words; w++)
    if (memory[w] != word(w, w % (FOLIO / 8) == 0)) STOP("word %zu after steps: %lx", w, memory[w]);
  if (child == 0) _exit(0);
  ends(child);
}

static atomic_int stop;

static void *half(void *of) {
  size_t first = of ? words / 2 : 0;
  for (u64 change = 1; !stop; change++) {
    for (size_t w = first; w < first + words / 2; w++) memory[w] = word(w, change);
    look(first, first + words / 2, change, "a walker");
  }
  return 0;
}

static void *reads(void *x) {
  u64 at = 7;
  while (!stop) {
    size_t w = next(&at) % words;
    u64 change = *(volatile u64 *)&memory[w] - word(w, 0);
    if (change > 100000) STOP("reader: word %zu: %lx", w, memory[w]);
  }
  return x;
}

/* Beside the others, in the same mappings as far as the kernel joins them. */
static void *changes(void *x) {
  u64 at = 9;
  char *p = (char *)map_folios(16 * MB), *q = (char *)map_folios(4 * MB);
  fill(p, 16 * MB, 3);
  while (!stop) {
    size_t page = next(&at) % (8 * MB / PAGE);
    MUST(madvise(p + page * PAGE, PAGE, MADV_DONTNEED) == 0 && p[page * PAGE] == 0);
    MUST(mprotect(p + 8 * MB, FOLIO, PROT_READ) == 0 && mprotect(p + 8 * MB, FOLIO, PROT_READ | PROT_WRITE) == 0);
    MUST(mremap(p + 12 * MB, 4 * MB, 4 * MB, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q);
    verify_from(q, 12 * MB, 4 * MB, 3, "moved");
    MUST(mremap(q, 4 * MB, 4 * MB, MREMAP_MAYMOVE | MREMAP_FIXED, p + 12 * MB) == p + 12 * MB);
  }
  return x;
}

static void threads(void) {
  pthread_t t[4];
  MUST(!pthread_create(&t[0], 0, half, 0) && !pthread_create(&t[1], 0, half, (void *)1));
  MUST(!pthread_create(&t[2], 0, reads, 0) && !pthread_create(&t[3], 0, changes, 0));
  for (int i = 0; i < 12; i++) {
    pid_t child = fork();
    if (child == 0) {
      /* As it was at the fork, in every word one change or the one before. */
      for (int part = 0; part < 2; part++) {
        size_t first = part * words / 2;
        u64 least = ~0ul, most = 0;
        for (size_t w = first; w < first + words / 2; w++) {
          u64 change = memory[w] - word(w, 0);
          least = change < least ? change : least;
          most = change > most ? change : most;
        }
        if (most - least > 1) STOP("child %d: changes from %lu to %lu", i, least, most);
      }
      (i % 2 ? up : down)(1000000);
      look(0, words, 1000000, "child of threads");
      _exit(0);
    }
    if (i % 3) ends(child);
    else MUST(child > 0);
  }
  while (wait(0) > 0) {
  }
  stop = 1;
  for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
}

/* Every 32nd page is the device's. */
static int is_direct(size_t page) { return page % 32 == 5; }

static int file;

static void *device(void *x) {
  u64 at = 11;
  while (!stop) {
    size_t page = next(&at) % (bytes / PAGE / 32) * 32 + 5;
    char *p = (char *)memory + page * PAGE;
    off_t there = page * PAGE;
    MUST(pread(file, p, PAGE, there) == PAGE);
    MUST(*(u64 *)p == page && pwrite(file, p, PAGE, there) == PAGE);
  }
  return x;
}

static void direct(const char *path) {
  file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
  MUST(file >= 0 && unlink(path) == 0);
  for (size_t page = 5; page < bytes / PAGE; page += 32) {
    u64 *p = memory + page * PAGE / 8;
    for (size_t w = 0; w < PAGE / 8; w++) p[w] = page;
    MUST(pwrite(file, p, PAGE, page * PAGE) == PAGE);
  }
  for (int round = 0; round < 4; round++) {
    pid_t child = fork();
    pthread_t t;
    stop = 0;
    MUST(pthread_create(&t, 0, device, 0) == 0);
    u64 change = round * 2 + (child == 0) + 1;
    for (size_t w = 0; w < words; w++)
      if (!is_direct(w * 8 / PAGE)) memory[w] = word(w, change);
    stop = 1;
    pthread_join(t, 0);
    for (size_t w = 0; w < words; w++) {
      u64 want = is_direct(w * 8 / PAGE) ? w * 8 / PAGE : word(w, change);
      if (memory[w] != want) STOP("word %zu beside a device: %lx, not %lx", w, memory[w], want);
    }
    if (child == 0) _exit(0);
    ends(child);
  }
}

static void alone(void) {
  for (u64 round = 1; round < 4; round++) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    ends(child);
    up(round);
    look(0, words, round, "alone");
  }
}

static atomic_size_t passed;

static void *dies(void *at) {
  while (passed < (size_t)at) sched_yield();
  abort();
}

static void die(size_t at) {
  int end[2];
  char c;
  MUST(pipe(end) == 0);
  if (fork() == 0) {
    /* Shares until its parent is dead. */
    close(end[1]);
    MUST(read(end[0], &c, 1) == 0);
    look(0, words, 0, "child of the dead");
    _exit(0);
  }
  pthread_t t;
  printf("program %d %lx\n", getpid(), (u64)memory);
  fflush(stdout);
  MUST(pthread_create(&t, 0, dies, (void *)at) == 0);
  for (size_t w = 0; w < words; w++) {
    memory[w] = word(w, 1);
    passed = w * 8 / FOLIO;
  }
  pthread_join(t, 0);
}

static void calls(void) {
  int ends_of[2];
  pid_t child = fork();
  if (child) return ends(child);
  MUST(pipe(ends_of) == 0);
  for (size_t w = 0; w < words; w += FOLIO / 8) {
    u64 value = word(w, 1);
    MUST(write(ends_of[1], &value, 8) == 8 && read(ends_of[0], &memory[w], 8) == 8);
  }
  for (size_t w = 0; w < words; w++)
    if (memory[w] != word(w, w % (FOLIO / 8) == 0)) STOP("word %zu after calls: %lx", w, memory[w]);
  _exit(0);
}

static void filter(void) {
  struct sock_filter f[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof f / sizeof *f, f};
  MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
  pid_t child = fork();
  if (child == 0) {
    up(1);
    look(0, words, 1, "under a filter");
    _exit(0);
  }
  ends(child);
  look(0, words, 0, "parent of the filtered");
}

static void maps(void) {
  size_t most = 0;
  FILE *f = fopen("/proc/sys/vm/max_map_count", "r");
  MUST(f && fscanf(f, "%zu", &most) == 1 && fclose(f) == 0);
  int end[2];
  MUST(pipe(end) == 0);
  if (fork() == 0) {
    char c;
    close(end[1]);
    _exit(read(end[0], &c, 1) != 0);
  }
  /* The kernel takes the folios apart, and the children's are so from the start. */
  for (size_t w = 0; w < words; w += FOLIO / 8) memory[w] = word(w, 0);
  for (size_t fewer = 0; fewer < 10; fewer++) {
    pid_t child = fork();
    if (child) {
      ends(child);
      continue;
    }
    /* Not managed: each page that is made readable is a mapping of its own, and parts another. */
    char *many = mmap(0, (2 * most + 2) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    MUST(many != MAP_FAILED);
    size_t at = 1;
    while (mprotect(many + at * PAGE, PAGE, PROT_READ) == 0) at += 2;
    for (size_t i = 0; i < fewer && at > 2; i++) {
      at -= 2;
      MUST(mprotect(many + at * PAGE, PAGE, PROT_NONE) == 0);
    }
    up(1);
    look(0, words, 1, "with many mappings");
    _exit(0);
  }
  close(end[1]);
}

int main(int argc, char **argv) {
  MUST(argc >= 3);
  bytes = atol(argv[2]) * MB;
  words = bytes / 8;
  memory = map_folios(bytes);
  up(0);
  const char *how = argv[1];
  if (!strcmp(how, "up")) walk(up);
  if (!strcmp(how, "down")) walk(down);
  if (!strcmp(how, "jump")) jump();
  if (!strcmp(how, "apart")) apart();
  if (!strcmp(how, "threads")) threads();
  if (!strcmp(how, "direct")) direct(argv[3]);
  if (!strcmp(how, "alone")) alone();
  if (!strcmp(how, "die")) die(atol(argv[3]));
  if (!strcmp(how, "calls")) calls();
  if (!strcmp(how, "filter")) filter();
  if (!strcmp(how, "maps")) maps();
  puts("ok");
}
