/*
 * Fills anonymous memory, rewrites and reads it in several orders, and compares every word with
 * what it wrote. Usage: check MEGABYTES ROUNDS [MODE]. Modes:
 *
 *   die      no SIGBUS handler: the first lost page ends the program
 *   count    (the default) lost pages are counted and must stay lost
 *   replace  lost pages are dropped and written anew
 *   threads  as count, with four threads that read everything at the same time in the end
 *   fork     as count, and a child looks at everything too
 *   remap    as count, and everything moves to another address before it is looked at
 *
 * Prints "lost=N wrong=N" and exits with 1 if anything was wrong that was not lost. It allocates
 * nothing, so that only its data is ever swapped out.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, MOST = 1 << 18 };

static uint64_t *data;
static size_t pages;
static unsigned char is_lost[MOST];
static unsigned char version[MOST];
/* Shared, so that a child's count is the parent's too. */
static struct { size_t lost, wrong; } *found;
static int replace;
static __thread sigjmp_buf back;

static uint64_t word(size_t page, size_t i)
{
    uint64_t x = (page * WORDS + i + 1) * 0x9e3779b97f4a7c15u + version[page];
    x ^= x >> 31;
    return x * 0xbf58476d1ce4e5b9u;
}

static void on_bus(int sig, siginfo_t *info, void *context)
{
    (void)sig;
    (void)context;
    char *at = info->si_addr;
    if (at < (char *)data || at >= (char *)data + pages * PAGE) {
        static const char text[] = "SIGBUS outside the data\n";
        (void)!write(2, text, sizeof text - 1);
        _exit(9);
    }
    siglongjmp(back, 1);
}

static void fill(size_t page)
{
    for (size_t i = 0; i < WORDS; i++)
        data[page * WORDS + i] = word(page, i);
}

static void compare(size_t page)
{
    for (size_t i = 0; i < WORDS; i++)
        if (data[page * WORDS + i] != word(page, i)) {
            if (found->wrong++ == 0)
                fprintf(stderr, "page %zu word %zu: %lx is not %lx\n", page, i,
                        (long)data[page * WORDS + i], (long)word(page, i));
            return;
        }
}

/* Reads the page and, if asked, writes new contents. */
static void visit(size_t page, int rewrite)
{
    if (sigsetjmp(back, 1) == 0) {
        compare(page);
        if (is_lost[page]) {
            fprintf(stderr, "page %zu was lost and is there again\n", page);
            found->wrong++;
            return;
        }
        if (rewrite) {
            version[page]++;
            fill(page);
        }
        return;
    }
    if (!__atomic_exchange_n(&is_lost[page], 1, __ATOMIC_SEQ_CST))
        __atomic_add_fetch(&found->lost, 1, __ATOMIC_SEQ_CST);
    if (replace) {
        madvise(data + page * WORDS, PAGE, MADV_DONTNEED);
        is_lost[page] = 0;
        version[page]++;
        fill(page);
    }
}

/* Reads everything forwards and backwards. */
static void *look(void *start)
{
    for (size_t p = 0; p < pages; p++)
        visit((p + (size_t)start) % pages, 0);
    for (size_t p = pages; p-- > 0;)
        visit(p, 0);
    return NULL;
}

static void look_with_threads(void)
{
    pthread_t thread[4];
    for (size_t i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, look, (void *)(i / 2));
    for (size_t i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
}

static void move_all(void)
{
    size_t size = pages * PAGE;
    char *at = mmap(NULL, size + (4 << 20), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uintptr_t to = ((uintptr_t)at + (2 << 20)) & ~(uintptr_t)((2 << 20) - 1);
    to += (uintptr_t)data % (2 << 20);
    data = mremap(data, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)to);
    if (data == MAP_FAILED)
        _exit(3);
}

/* A system call that meets a lost page fails and does not read zeros. */
static void try_system_call(void)
{
    int fd[2];
    if (pipe(fd) != 0)
        _exit(3);
    for (size_t p = 0; p < pages; p++)
        if (is_lost[p]) {
            if (write(fd[1], data + p * WORDS, PAGE) != -1 || errno != EFAULT) {
                fprintf(stderr, "a system call could read lost page %zu\n", p);
                found->wrong++;
            }
            return;
        }
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    const char *mode = argc > 3 ? argv[3] : "count";
    pages = (size_t)atol(argv[1]) << 8;
    int rounds = atoi(argv[2]);
    if (pages > MOST)
        return 2;
    data = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    found = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED || found == MAP_FAILED)
        return 2;
    replace = strcmp(mode, "replace") == 0;
    if (strcmp(mode, "die") != 0) {
        struct sigaction sa = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
        sigaction(SIGBUS, &sa, NULL);
    }
    for (size_t p = 0; p < pages; p++)
        fill(p);
    uint64_t x = 88172645463325252u;
    for (int r = 0; r < rounds; r++) {
        for (size_t p = 0; p < pages; p++)
            visit(p, 1);
        for (size_t k = 0; k < pages / 8; k++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            visit(x % pages, x >> 40 & 1);
        }
    }
    if (strcmp(mode, "remap") == 0)
        move_all();
    if (strcmp(mode, "fork") == 0) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            look(NULL);
            _exit(0);
        }
        look(NULL);
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
            fprintf(stderr, "the child ended with status %x\n", status);
            found->wrong++;
        }
    }
    if (strcmp(mode, "threads") == 0)
        look_with_threads();
    look(NULL);
    try_system_call();
    printf("lost=%zu wrong=%zu\n", found->lost, found->wrong);
    return found->wrong != 0;
}
