/* Contents that tell where they belong, and a stop with a reason. */
#ifndef CHECK_H
#define CHECK_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t u64;
#define PAGE 4096ul
#define MB (1ul << 20)

#define STOP(...) \
  do { \
    char stop_text[512]; \
    int stop_len = snprintf(stop_text, sizeof stop_text, __VA_ARGS__); \
    if (write(2, stop_text, stop_len) < 0 || write(2, "\n", 1) < 0) { \
    } \
    _exit(99); \
  } while (0)

#define MUST(x) \
  do { \
    if (!(x)) STOP("%s:%d: %s (%s)", __FILE__, __LINE__, #x, strerror(errno)); \
  } while (0)

static inline u64 mix(u64 x) {
  x ^= x >> 31;
  x *= 0x9e3779b97f4a7c15ull;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9ull;
  return x ^ x >> 32;
}

static inline u64 next(u64 *state) { return mix(*state += 0x632be59bd9b4e019ull); }

static inline char *map_rw(size_t bytes) {
  char *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  MUST(p != MAP_FAILED);
  return p;
}

static inline void fill(char *p, size_t bytes, u64 seed) {
  u64 *w = (u64 *)p;
  for (size_t i = 0; i < bytes / 8; i++) w[i] = mix(i * 8 + seed);
}

/* Word i of a region that was filled with `seed`, compared from `from` on. */
static inline void verify_from(const char *p, size_t from, size_t bytes, u64 seed, const char *what) {
  const u64 *w = (const u64 *)p;
  for (size_t i = 0; i < bytes / 8; i++)
    if (w[i] != mix(from + i * 8 + seed))
      STOP("%s: wrong at %zu of %zu: %llx, not %llx", what, i * 8, bytes, (unsigned long long)w[i],
           (unsigned long long)mix(from + i * 8 + seed));
}

static inline void verify(const char *p, size_t bytes, u64 seed, const char *what) {
  verify_from(p, 0, bytes, seed, what);
}

static inline void verify_zero(const char *p, size_t bytes, const char *what) {
  for (size_t i = 0; i < bytes; i++)
    if (p[i]) STOP("%s: not zero at %zu", what, i);
}

static inline void say(const char *text) { MUST(write(1, text, strlen(text)) == (ssize_t)strlen(text)); }

/* The child must end well. */
static inline void wait_ok(pid_t pid, const char *what) {
  int status;
  MUST(waitpid(pid, &status, 0) == pid);
  if (status) STOP("%s: ended with %x", what, status);
}

/* The memory is as it was (filled with 1), can be written, and a child has it too. */
static inline void works(char *p, size_t n, const char *what) {
  verify(p, n, 1, what);
  fill(p, n, 2);
  pid_t pid = fork();
  if (pid == 0) {
    verify(p, n, 2, what);
    _exit(0);
  }
  verify(p, n, 2, what);
  wait_ok(pid, what);
  fill(p, n, 1);
}

struct test_case {
  const char *name;
  void (*run)(void);
};

/* Each in a child of its own. */
static inline void each_in_a_child(const struct test_case *cases, size_t count) {
  for (size_t i = 0; i < count; i++) {
    pid_t pid = fork();
    if (pid == 0) {
      cases[i].run();
      _exit(0);
    }
    wait_ok(pid, cases[i].name);
  }
}
#endif
