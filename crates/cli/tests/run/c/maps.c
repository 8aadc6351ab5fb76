/* maps SHADOW_FILE SEED COUNT [WITHOUT...]: random sequences of mmap, munmap, mremap, mprotect, madvise, brk and
 * fork over memory that is swapped, compared with a shadow kept in a file mapping. The state goes
 * on from one sequence to the next. WITHOUT names what is left out: fork, remap, brk, advise,
 * protect, over, populate, later (protection), hint, parts (unmapped). */
#include "check.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

/* A page is 16 cells of 256 bytes, each one value in all of its words. */
enum { CELLS = 16, WORDS = 32, REGIONS = 48, LARGEST = 8192, STEPS = 24 };

struct page {
  u64 cell[CELLS];
  unsigned char prot;
  unsigned char freed; /* by MADV_FREE: as it was, or zero */
};

struct region {
  char *at;
  size_t pages;
  int is_heap;
  unsigned id[LARGEST];
};

struct shadow {
  u64 rng;
  size_t pages, free_count, regions;
  struct region region[REGIONS];
  unsigned free_ids[1 << 16];
  struct page page[1 << 16];
};

static struct shadow *s;
static u64 sequence;
static const char *op = "start";
static size_t op_from, op_count;

static char **without;

static int is_left_out(const char *name) {
  for (char **w = without; *w; w++)
    if (!strcmp(*w, name)) return 1;
  return 0;
}

static u64 rnd(u64 n) { return next(&s->rng) % n; }

static struct page *page_of(struct region *r, size_t i) { return &s->page[r->id[i]]; }

static unsigned new_id(void) {
  unsigned id = s->free_ids[--s->free_count];
  memset(&s->page[id], 0, sizeof s->page[id]);
  s->page[id].prot = PROT_READ | PROT_WRITE;
  return id;
}

static void check_page(struct region *r, size_t i) {
  struct page *g = page_of(r, i);
  if (!(g->prot & PROT_READ)) return;
  const u64 *w = (const u64 *)(r->at + i * PAGE);
  if (g->freed && w[0] == 0) {
    int zero = 1;
    for (size_t k = 0; k < PAGE / 8; k++) zero &= w[k] == 0;
    if (zero) {
      memset(g->cell, 0, sizeof g->cell);
      g->freed = 0;
      return;
    }
  }
  for (int c = 0; c < CELLS; c++)
    for (int k = 0; k < WORDS; k++)
      if (w[c * WORDS + k] != g->cell[c])
        STOP("sequence %llu, last '%s' (pages %zu+%zu): page %zu of %zu at %p, cell %d word %d: %llx, not %llx%s",
             (unsigned long long)sequence, op, op_from, op_count, i, r->pages, (void *)w, c, k,
             (unsigned long long)w[c * WORDS + k], (unsigned long long)g->cell[c], g->freed ? " (freed)" : "");
}

static void check_range(struct region *r, size_t from, size_t count) {
  for (size_t i = from; i < from + count; i++) check_page(r, i);
}

static void check_all(void) {
  for (size_t i = 0; i < s->regions; i++) check_range(&s->region[i], 0, s->region[i].pages);
}

static void write_cell(struct region *r, size_t i, int c, u64 v) {
  u64 *w = (u64 *)(r->at + i * PAGE) + c * WORDS;
  for (int k = 0; k < WORDS; k++) w[k] = v;
  page_of(r, i)->cell[c] = v;
}

static void write_page(struct region *r, size_t i, int cells) {
  struct page *g = page_of(r, i);
  if (!(g->prot & PROT_WRITE)) return;
  if (g->freed) cells = CELLS, g->freed = 0;
  int first = rnd(CELLS);
  for (int n = 0; n < cells; n++) write_cell(r, i, (first + n) % CELLS, next(&s->rng));
}

/* Mostly small, sometimes many pages; often at the edge of 2 MiB. */
static size_t size(size_t most) {
  size_t n;
  switch (rnd(6)) {
    case 0: n = 1 + rnd(8); break;
    case 1: n = 1 + rnd(128); break;
    case 2: n = 256 << rnd(2); break;
    case 3: n = 512 * (1 + rnd(6)); break;
    case 4: n = 512 * (1 + rnd(6)) - 1 + rnd(3); break;
    default: n = 1 + rnd(3000);
  }
  return n < most ? n : most;
}

static void part(struct region *r, size_t *from, size_t *count) {
  *count = size(r->pages);
  *from = rnd(r->pages - *count + 1);
  if (rnd(3) == 0) *from = 0;
  else if (rnd(3) == 0) *from = r->pages - *count;
  op_from = *from, op_count = *count;
}

static struct region *pick(void) { return s->regions ? &s->region[rnd(s->regions)] : 0; }

static void drop_ids(struct region *r, size_t from, size_t count) {
  for (size_t i = from; i < from + count; i++) s->free_ids[s->free_count++] = r->id[i];
}

static struct region *add(char *at, size_t pages) {
  struct region *r = &s->region[s->regions++];
  r->at = at, r->pages = pages, r->is_heap = 0;
  for (size_t i = 0; i < pages; i++) r->id[i] = new_id();
  return r;
}

static void forget(struct region *r) { *r = s->region[--s->regions]; }

static void op_map(void) {
  size_t n = size(LARGEST);
  if (s->regions == REGIONS || n > s->free_count) return;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS, prot = PROT_READ | PROT_WRITE;
  if (rnd(2)) flags |= MAP_NORESERVE;
  if (rnd(8) == 0 && !is_left_out("populate")) flags |= MAP_POPULATE;
  int later = rnd(4) == 0 && !is_left_out("later");
  void *hint = 0;
  if (rnd(4) == 0 && !is_left_out("hint")) hint = (void *)(0x100000000000ul + rnd(1 << 20) * 2 * MB);
  op = "mmap", op_from = 0, op_count = n;
  char *at = mmap(hint, n * PAGE, later ? PROT_NONE : prot, flags, -1, 0);
  MUST(at != MAP_FAILED);
  if (later) MUST(mprotect(at, n * PAGE, prot) == 0);
  struct region *r = add(at, n);
  if (rnd(2))
    for (size_t i = 0; i < n; i++) write_page(r, i, CELLS);
  if (rnd(4) == 0) check_range(r, 0, n);
}

/* New memory over a part of the old, in one call. */
static void op_map_over(void) {
  struct region *r = pick();
  if (!r || r->is_heap) return;
  size_t from, n;
  part(r, &from, &n);
  op = "mmap fixed";
  char *at = r->at + from * PAGE;
  MUST(mmap(at, n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
  drop_ids(r, from, n);
  for (size_t i = from; i < from + n; i++) r->id[i] = new_id();
  if (rnd(2)) check_range(r, from, n);
}

static void op_unmap(void) {
  struct region *r = pick();
  if (!r || r->is_heap) return;
  size_t from, n;
  part(r, &from, &n);
  op = "munmap";
  if (rnd(3) == 0 || s->regions == REGIONS || is_left_out("parts")) from = 0, n = r->pages;
  MUST(munmap(r->at + from * PAGE, n * PAGE) == 0);
  drop_ids(r, from, n);
  size_t rest = r->pages - from - n;
  if (from && rest) {
    struct region *t = &s->region[s->regions++];
    t->at = r->at + (from + n) * PAGE, t->pages = rest, t->is_heap = 0;
    memcpy(t->id, r->id + from + n, rest * sizeof *t->id);
    r->pages = from;
  } else if (from) {
    r->pages = from;
  } else if (rest) {
    r->at += n * PAGE, r->pages = rest;
    memmove(r->id, r->id + n, rest * sizeof *r->id);
  } else {
    forget(r);
  }
}

static void op_write(void) {
  struct region *r = pick();
  if (!r) return;
  size_t from, n;
  part(r, &from, &n);
  op = "write";
  if (rnd(2))
    for (size_t i = from; i < from + n; i++) write_page(r, i, CELLS);
  else
    for (size_t k = 0; k < n / 4 + 1; k++) write_page(r, from + rnd(n), 1 + rnd(4));
}

static void op_read(void) {
  struct region *r = pick();
  if (!r) return;
  size_t from, n;
  part(r, &from, &n);
  if (rnd(2)) check_range(r, from, n);
  else
    for (size_t k = 0; k < n / 4 + 1; k++) check_page(r, from + rnd(n));
}

static void op_protect(void) {
  static const int prots[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE};
  struct region *r = pick();
  if (!r) return;
  size_t from, n;
  part(r, &from, &n);
  int prot = prots[rnd(4)];
  op = prot == PROT_NONE ? "mprotect none" : prot == PROT_READ ? "mprotect read" : "mprotect write";
  MUST(mprotect(r->at + from * PAGE, n * PAGE, prot) == 0);
  for (size_t i = from; i < from + n; i++) page_of(r, i)->prot = prot;
}

static void op_advise(void) {
  static const struct { int advice; const char *name; } list[] = {
      {MADV_DONTNEED, "dontneed"},   {MADV_DONTNEED, "dontneed"}, {MADV_FREE, "free"},
      {MADV_WILLNEED, "willneed"},   {MADV_HUGEPAGE, "hugepage"}, {MADV_NOHUGEPAGE, "nohugepage"},
      {MADV_COLLAPSE, "collapse"},   {MADV_COLD, "cold"},         {MADV_PAGEOUT, "pageout"},
      {MADV_SEQUENTIAL, "seq"},      {MADV_MERGEABLE, "merge"},   {MADV_POPULATE_WRITE, "populate"},
      {MADV_DONTDUMP, "dontdump"},
  };
  struct region *r = pick();
  if (!r) return;
  size_t from, n;
  part(r, &from, &n);
  int k = rnd(sizeof list / sizeof *list), advice = list[k].advice;
  op = list[k].name;
  int failed = madvise(r->at + from * PAGE, n * PAGE, advice);
  if (advice == MADV_DONTNEED || advice == MADV_FREE) {
    if (failed) STOP("sequence %llu: madvise %s of %zu+%zu: %s", (unsigned long long)sequence, op, from, n, strerror(errno));
    for (size_t i = from; i < from + n; i++) {
      struct page *g = page_of(r, i);
      if (advice == MADV_FREE) g->freed = 1;
      else memset(g->cell, 0, sizeof g->cell), g->freed = 0;
    }
  }
  if (rnd(2)) check_range(r, from, n);
}

static void open_all(struct region *r) {
  MUST(mprotect(r->at, r->pages * PAGE, PROT_READ | PROT_WRITE) == 0);
  for (size_t i = 0; i < r->pages; i++) page_of(r, i)->prot = PROT_READ | PROT_WRITE;
}

/* EFAULT: the kernel has it in several mappings; the program can't know. */
static void op_remap(void) {
  struct region *r = pick();
  if (!r || r->is_heap) return;
  size_t old = r->pages, n = rnd(3) == 0 ? size(old) : old + size(2000);
  if (n > LARGEST || (n > old && n - old > s->free_count)) return;
  open_all(r);
  op = n > old ? "mremap grow" : "mremap shrink", op_from = old, op_count = n;
  int flags = rnd(4) ? MREMAP_MAYMOVE : 0;
  void *to = 0;
  if (rnd(3) == 0) {
    op = "mremap fixed";
    flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    char *place = mmap(0, n * PAGE + 2 * MB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(place != MAP_FAILED);
    to = place + rnd(513) * PAGE;
    munmap(place, (char *)to - place);
    munmap((char *)to + n * PAGE, 2 * MB - ((char *)to - place));
  }
  char *at = mremap(r->at, old * PAGE, n * PAGE, flags, to);
  if (at == MAP_FAILED) {
    if (to) munmap(to, n * PAGE);
    if (errno != EFAULT && !(errno == ENOMEM && !(flags & MREMAP_MAYMOVE)))
      STOP("sequence %llu: %s %zu to %zu: %s", (unsigned long long)sequence, op, old, n, strerror(errno));
    return;
  }
  if (to && at != to) STOP("mremap fixed went elsewhere");
  r->at = at, r->pages = n;
  if (n < old) {
    for (size_t i = n; i < old; i++) s->free_ids[s->free_count++] = r->id[i];
  } else {
    for (size_t i = old; i < n; i++) r->id[i] = new_id();
  }
  if (rnd(2)) check_range(r, 0, n);
}

/* The contents go elsewhere, the old place stays, empty. */
static void op_remap_keep(void) {
  struct region *r = pick();
  if (!r || r->is_heap || s->regions == REGIONS || r->pages > s->free_count) return;
  open_all(r);
  op = "mremap dontunmap", op_from = 0, op_count = r->pages;
  char *at = mremap(r->at, r->pages * PAGE, r->pages * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
  if (at == MAP_FAILED) {
    if (errno != EFAULT && errno != EINVAL) STOP("sequence %llu: %s: %s", (unsigned long long)sequence, op, strerror(errno));
    return;
  }
  char *old = r->at;
  r->at = at;
  struct region *empty = add(old, r->pages);
  check_range(empty, 0, empty->pages);
  if (rnd(2)) check_range(r, 0, r->pages);
}

static void op_brk(void) {
  struct region *r = 0;
  for (size_t i = 0; i < s->regions; i++)
    if (s->region[i].is_heap) r = &s->region[i];
  if (!r) {
    if (s->regions == REGIONS || s->free_count < 8) return;
    char *now = sbrk(0);
    MUST(sbrk(-(size_t)now & (PAGE - 1)) != (void *)-1);
    char *at = sbrk(8 * PAGE);
    MUST(at != (void *)-1);
    r = add(at, 8);
    r->is_heap = 1;
  }
  size_t n = size(2000);
  if (rnd(3) == 0) {
    if (n >= r->pages) n = r->pages - 1;
    op = "brk shrink", op_from = r->pages, op_count = n;
    MUST(sbrk(-(intptr_t)(n * PAGE)) != (void *)-1);
    drop_ids(r, r->pages - n, n);
    r->pages -= n;
    MUST((char *)sbrk(0) == r->at + r->pages * PAGE);
  } else {
    if (r->pages + n > LARGEST || n > s->free_count) return;
    op = "brk grow", op_from = r->pages, op_count = n;
    char *at = sbrk(n * PAGE);
    MUST(at == r->at + r->pages * PAGE);
    for (size_t i = 0; i < n; i++) r->id[r->pages + i] = new_id();
    r->pages += n;
    if (rnd(2)) check_range(r, r->pages - n, n);
  }
}

static void op_fork(void) {
  if (rnd(4)) return;
  op = "fork";
  pid_t pid = fork();
  MUST(pid >= 0);
  if (pid == 0) {
    /* The shadow is shared: the child only looks. */
    op = "fork, in the child";
    for (size_t i = 0; i < s->regions; i++) {
      struct region *r = &s->region[i];
      for (size_t k = 0; k < r->pages; k++)
        if (!page_of(r, k)->freed && (mix(k) & 3) == 0) check_page(r, k);
    }
    _exit(0);
  }
  wait_ok(pid, "child");
}

static void step(void) {
  switch (rnd(24)) {
    case 0: case 1: case 2: op_map(); break;
    case 3: if (!is_left_out("over")) op_map_over(); break;
    case 4: case 5: op_unmap(); break;
    case 6: case 7: case 8: case 9: case 10: op_write(); break;
    case 11: case 12: case 13: case 14: op_read(); break;
    case 15: case 16: if (!is_left_out("protect")) op_protect(); break;
    case 17: case 18: if (!is_left_out("advise")) op_advise(); break;
    case 19: case 20: if (!is_left_out("remap")) op_remap(); break;
    case 21: if (!is_left_out("remap")) op_remap_keep(); break;
    case 22: if (!is_left_out("brk")) op_brk(); break;
    default: if (!is_left_out("fork")) op_fork();
  }
}

/* On a stack and with contents that are not in question. */
static void broken(int signal, siginfo_t *info, void *context) {
  (void)context;
  STOP("sequence %llu, last '%s' (pages %zu+%zu): signal %d at %p", (unsigned long long)sequence, op, op_from, op_count,
       signal, info->si_addr);
}

int main(int argc, char **argv) {
  MUST(argc >= 4);
  struct sigaction sa = {.sa_sigaction = broken, .sa_flags = SA_SIGINFO};
  MUST(sigaction(SIGSEGV, &sa, 0) == 0 && sigaction(SIGBUS, &sa, 0) == 0);
  int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
  MUST(fd >= 0 && ftruncate(fd, sizeof *s) == 0);
  s = mmap(0, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  MUST(s != MAP_FAILED);
  u64 first = strtoull(argv[2], 0, 0), count = strtoull(argv[3], 0, 0);
  without = argv + 4;
  s->pages = 144 * (MB / PAGE);
  for (size_t i = 0; i < s->pages; i++) s->free_ids[s->free_count++] = i;
  for (sequence = first; sequence < first + count; sequence++) {
    s->rng = mix(sequence);
    for (int i = 0; i < STEPS; i++) step();
    if (sequence % 16 == 15) check_all();
  }
  check_all();
  say("ok\n");
  return 0;
}
