/* What a program sets for its thread or its process, which hooks and the engine's threads get with it. own_state WHAT. */
#include "check.h"
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif
#ifndef PROT_SEM
#define PROT_SEM 8
#endif

#define TRAP_FLAG "0x100"
#define ALIGNMENT_FLAG "0x40000"
#define SET(flag) asm volatile("sub $128, %%rsp; pushfq; orq $" flag ", (%%rsp); popfq; add $128, %%rsp" ::: "cc", "memory")
#define CLEAR(flag) asm volatile("sub $128, %%rsp; pushfq; andq $~" flag ", (%%rsp); popfq; add $128, %%rsp" ::: "cc", "memory")

static const size_t bytes = 128 * MB;
static char *p;

static void push_out(void) {
  for (int i = 0; i < 3; i++) {
    char *q = map_rw(40 * MB);
    fill(q, 40 * MB, 9);
    MUST(munmap(q, 40 * MB) == 0);
  }
}

static void child_has_all(const char *what) {
  push_out();
  pid_t pid = fork();
  MUST(pid >= 0);
  if (pid == 0) {
    verify(p, bytes, 1, what);
    fill(p, bytes, 2);
    verify(p, bytes, 2, what);
    _exit(0);
  }
  wait_ok(pid, what);
  verify(p, bytes, 1, what);
}

/* Every exception of floating point is a signal, also that a result is not exact. */
static void float_exceptions(void) {
  unsigned all = 0, none = 0x1f80, now;
  unsigned short x87 = 0;
  asm volatile("ldmxcsr %0; fldcw %1" : : "m"(all), "m"(x87));
  child_has_all("with exceptions of floating point");
  asm volatile("stmxcsr %0" : "=m"(now));
  MUST((now & none) == 0);
}

static volatile long steps;
static void step(int signal) {
  (void)signal;
  steps++;
}

/* A signal after each instruction, as a program has that traces itself. */
static void single_steps(void) {
  MUST(signal(SIGTRAP, step) != SIG_ERR);
  push_out();
  SET(TRAP_FLAG);
  char *q = mmap(0, 8 * MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  long before = steps;
  int r = madvise(p, PAGE, MADV_WILLNEED);
  long after = steps;
  pid_t pid = fork();
  if (pid == 0) {
    CLEAR(TRAP_FLAG);
    verify(p, bytes, 1, "stepped");
    _exit(0);
  }
  CLEAR(TRAP_FLAG);
  MUST(q != MAP_FAILED && r == 0 && before > 0 && after > before);
  wait_ok(pid, "stepped");
  verify(p, bytes, 1, "after steps");
}

/* A signal at each address that is not aligned. */
static void alignment(void) {
  push_out();
  /* The loader, and what the C library does for a child, may read what is not aligned. */
  MUST(syscall(SYS_getpid) == getpid());
  SET(ALIGNMENT_FLAG);
  char *q = mmap(0, 8 * MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  int r = munmap(q, 8 * MB);
  pid_t pid = syscall(SYS_fork);
  CLEAR(ALIGNMENT_FLAG);
  if (pid == 0) {
    verify(p, bytes, 1, "aligned");
    _exit(0);
  }
  MUST(q != MAP_FAILED && r == 0);
  wait_ok(pid, "aligned");
  verify(p, bytes, 1, "after alignment");
}

/* The processor's counter can't be read any more, nor can a child read it. */
static void no_counter(void) {
  MUST(prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) == 0);
  child_has_all("without a counter");
  pid_t pid = fork();
  if (pid == 0) {
    child_has_all("a child without a counter");
    _exit(0);
  }
  wait_ok(pid, "without a counter");
}

/* No code can be made or changed any more, in programs that come after it neither. Linux 6.3. */
static void no_new_code(char **argv) {
  if (prctl(PR_SET_MDWE, 1, 0, 0, 0) != 0) MUST(errno == EINVAL);
  child_has_all("without new code");
  pid_t pid = fork();
  if (pid == 0) {
    argv[1] = "nothing";
    execv("/proc/self/exe", argv);
    _exit(1);
  }
  wait_ok(pid, "a program without new code");
}

static void nothing(void) { child_has_all("a program that came after another"); }

/* The kernel does not look at more of a protection than it knows, and wants an offset that it does not use. */
static void protections(void) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  MUST(munmap(p, bytes) == 0);
  MUST(mmap(0, bytes, PROT_READ | PROT_WRITE, flags, -1, 5) == MAP_FAILED && errno == EINVAL);
  MUST(syscall(SYS_mmap, 0, bytes, PROT_READ | PROT_WRITE, flags, -1, 5) == -1 && errno == EINVAL);
  p = mmap(0, bytes, PROT_READ | PROT_WRITE | PROT_SEM | 0x40, flags, -1, 0);
  MUST(p != MAP_FAILED);
  fill(p, bytes, 1);
  push_out();
  verify(p, bytes, 1, "mapped");
  MUST(mprotect(p, 8 * MB, PROT_READ | 0x40) == -1 && errno == EINVAL);
  MUST(mprotect(p, 8 * MB, PROT_READ | PROT_SEM) == 0);
  verify(p, 8 * MB, 1, "to be read");
  MUST(mprotect(p, bytes, PROT_READ | PROT_WRITE | PROT_SEM) == 0);
  child_has_all("protected");
}

/* The break by its number, of which the C library learns nothing. */
static void heap_by_number(void) {
  char *end = sbrk(0);
  MUST((char *)syscall(SYS_brk, 0) == end);
  MUST((char *)syscall(SYS_brk, end + bytes) == end + bytes && sbrk(0) == end);
  fill(end, bytes, 3);
  child_has_all("beside the heap");
  verify(end, bytes, 3, "the heap");
  MUST((char *)syscall(SYS_brk, 5) == end + bytes);
  MUST((char *)syscall(SYS_brk, end + 5) == end + 5);
  MUST((char *)syscall(SYS_brk, end + bytes) == end + bytes);
  verify_zero(end + PAGE, bytes - PAGE, "the heap that grew again");
  /* The C library goes on from where it left off. */
  MUST(sbrk(PAGE) == end && (char *)syscall(SYS_brk, 0) == end + PAGE);
}

static char dispatched;

static void not_reached(int signal) {
  (void)signal;
  dispatched = 0;
  STOP("a call of the C library's became a signal");
}

/* Only the C library may make system calls (PR_SET_SYSCALL_USER_DISPATCH): hooks do its work. */
static void calls_dispatched(void) {
  unsigned long from = 0, to = 0;
  char line[512];
  FILE *maps = fopen("/proc/self/maps", "r");
  MUST(maps);
  while (fgets(line, sizeof line, maps)) {
    unsigned long a, b;
    if (!strstr(line, "/libc.so") || sscanf(line, "%lx-%lx", &a, &b) != 2) continue;
    if (!from) from = a;
    to = b;
  }
  fclose(maps);
  MUST(from);
  signal(SIGSYS, not_reached);
  MUST(prctl(59, 1, from, to - from, &dispatched) == 0);
  dispatched = 1;
  push_out();
  char *more = mmap(NULL, 8 * MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MUST(more != MAP_FAILED);
  more[MB] = 1;
  MUST(syscall(SYS_mprotect, more, PAGE, PROT_READ) == 0);
  MUST(mprotect(more, PAGE, PROT_READ | PROT_WRITE) == 0);
  more = mremap(more, 8 * MB, 16 * MB, MREMAP_MAYMOVE);
  MUST(more != MAP_FAILED && more[MB] == 1);
  MUST(munmap(more, 16 * MB) == 0);
  MUST(syscall(SYS_getpid) == getpid());
  int null = open("/dev/null", O_RDONLY);
  MUST(null >= 0);
  close(null);
  child_has_all("a program whose calls are dispatched");
}

int main(int argc, char **argv) {
  MUST(argc == 2);
  p = map_rw(bytes);
  fill(p, bytes, 1);
  if (!strcmp(argv[1], "float_exceptions")) float_exceptions();
  else if (!strcmp(argv[1], "single_steps")) single_steps();
  else if (!strcmp(argv[1], "alignment")) alignment();
  else if (!strcmp(argv[1], "no_counter")) no_counter();
  else if (!strcmp(argv[1], "no_new_code")) no_new_code(argv);
  else if (!strcmp(argv[1], "nothing")) nothing();
  else if (!strcmp(argv[1], "protections")) protections();
  else if (!strcmp(argv[1], "heap_by_number")) heap_by_number();
  else if (!strcmp(argv[1], "calls_dispatched")) calls_dispatched();
  else STOP("unknown: %s", argv[1]);
  if (strcmp(argv[1], "nothing")) say("ok\n");
  return 0;
}
