/* What the guest's script needs and busybox has not. Knows nothing of hugeswap.
 *
 *   guest bind NODE COMMAND...    run a command with its memory on a node
 *   guest make FILE MIB           write a file of numbers that do not repeat
 *   guest where FILE              how many cached pages of a file are on which node
 *   guest flags FILE              how many are referenced and active, by the kernel's marks
 *   guest loop FILE ROUNDS [SIZE] read a file again and again by read(2); sums and times
 *   guest read FILE ROUNDS SIZE [MS]
 *                                 the same without sums: nothing but reads, and so many
 *                                 milliseconds of rest after each round
 *   guest random FILE READS       read 4 KiB pieces at random
 *   guest hold FILE SECONDS       read in a loop, also once it has no name, for so long at
 *                                 most, or until 99 % of it is on node 0
 *   guest contained GROUP COMMAND...
 *                                 run a command in a memory group, which is the root of the tree
 *                                 that is seen there, as in a container
 *   guest powerless COMMAND...    run a command as root without capabilities
 *   guest untraced COMMAND...     run a command as on a kernel without trace events
 *   guest fill MIB                take so much memory that can't be moved, until it is killed
 *   guest peak FILE               most pages migrated within any second, while FILE is there
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* Maps a file, enters what is cached, and leaves the marks of age alone. */
static char *map_cached(const char *name, size_t *pages, unsigned char **cached) {
    struct stat st;
    int fd = open(name, O_RDONLY);
    if (fd < 0 || fstat(fd, &st)) die(name);
    *pages = (st.st_size + 4095) / 4096;
    char *at = mmap(0, *pages * 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) die("mmap");
    madvise(at, *pages * 4096, MADV_RANDOM);
    *cached = malloc(*pages);
    if (mincore(at, *pages * 4096, *cached)) die("mincore");
    /* By touching: populating would mark the pages accessed. */
    for (size_t i = 0; i < *pages; i++)
        if ((*cached)[i] & 1) *(volatile char *)(at + i * 4096);
    close(fd);
    return at;
}

static void unmap(char *at, size_t pages) {
    madvise(at, pages * 4096, MADV_SEQUENTIAL);
    munmap(at, pages * 4096);
}

/* How many pages are not where they should be; -1: nothing is cached. */
static long where(const char *name, int print) {
    size_t pages, count[4] = {0};
    unsigned char *cached;
    char *at = map_cached(name, &pages, &cached);
    void **all = malloc(pages * sizeof *all);
    int *status = malloc(pages * sizeof *status);
    for (size_t i = 0; i < pages; i++) all[i] = at + i * 4096;
    if (syscall(SYS_move_pages, 0, pages, all, NULL, status, 0)) die("move_pages");
    for (size_t i = 0; i < pages; i++)
        count[!(cached[i] & 1) || status[i] < 0 || status[i] > 2 ? 3 : status[i]]++;
    if (print)
        printf("node0=%zu node1=%zu node2=%zu none=%zu\n", count[0], count[1], count[2], count[3]);
    unmap(at, pages);
    free(all);
    free(status);
    free(cached);
    return count[0] + count[1] ? (long)(count[1] * 100 / (count[0] + count[1])) : -1;
}

static int flags(const char *name) {
    size_t pages, referenced = 0, active = 0;
    unsigned char *cached;
    char *at = map_cached(name, &pages, &cached);
    int map = open("/proc/self/pagemap", O_RDONLY), kpf = open("/proc/kpageflags", O_RDONLY);
    for (size_t i = 0; i < pages; i++) {
        uint64_t entry = 0, flags = 0;
        pread(map, &entry, 8, ((uintptr_t)at / 4096 + i) * 8);
        if (entry >> 63) pread(kpf, &flags, 8, (entry & ((1ULL << 55) - 1)) * 8);
        referenced += flags >> 2 & 1;
        active += flags >> 6 & 1;
    }
    printf("referenced=%zu active=%zu\n", referenced, active);
    unmap(at, pages);
    return 0;
}

static int make(const char *name, size_t mib) {
    static uint64_t buffer[1 << 17], x = 88172645463325252ULL;
    int fd = open(name, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    if (fd < 0) die(name);
    for (size_t i = 0; i < mib; i++) {
        for (size_t j = 0; j < 1 << 17; j++) buffer[j] = x += 0x9e3779b97f4a7c15ULL;
        if (write(fd, buffer, 1 << 20) != 1 << 20) die("write");
    }
    if (fsync(fd)) die("fsync");
    return 0;
}

static uint64_t pass(int fd, char *buffer, size_t size) {
    uint64_t sum = 0;
    ssize_t got;
    off_t at = 0;
    while ((got = pread(fd, buffer, size, at)) > 0) {
        for (ssize_t i = 0; i + 8 <= got; i += 8) sum = sum * 31 + *(uint64_t *)(buffer + i);
        at += got;
    }
    return sum;
}

static int loop(const char *name, int rounds, size_t size) {
    char *buffer = malloc(size);
    int fd = open(name, O_RDONLY);
    if (fd < 0) die(name);
    uint64_t first = 0, sum = 0;
    double start = now(), best = 1e9;
    for (int i = 0; i < rounds; i++) {
        double begin = now();
        sum = pass(fd, buffer, size);
        if (now() - begin < best) best = now() - begin;
        if (i == 0) first = sum;
        if (sum != first) {
            printf("sum changed in round %d\n", i);
            return 1;
        }
    }
    printf("sum=%016llx seconds=%.3f best=%.4f\n", (unsigned long long)sum, now() - start, best);
    return 0;
}

static int only_read(const char *name, int rounds, size_t size, int rest) {
    char *buffer = malloc(size);
    int fd = open(name, O_RDONLY);
    if (fd < 0) die(name);
    double start = now();
    for (int i = 0; i < rounds; i++) {
        off_t at = 0;
        ssize_t got;
        while ((got = pread(fd, buffer, size, at)) > 0) at += got;
        usleep(rest * 1000);
    }
    printf("seconds=%.4f\n", now() - start);
    return 0;
}

static int random_reads(const char *name, long reads) {
    char buffer[4096];
    struct stat st;
    int fd = open(name, O_RDONLY);
    if (fd < 0 || fstat(fd, &st)) die(name);
    uint32_t x = 1;
    double start = now();
    for (long i = 0; i < reads; i++) {
        x = x * 1664525 + 1013904223;
        pread(fd, buffer, 4096, (off_t)((x >> 8) % (st.st_size / 4096)) * 4096);
    }
    printf("seconds=%.4f\n", now() - start);
    return 0;
}

static int hold(const char *name, double seconds) {
    static char buffer[1 << 16];
    int fd = open(name, O_RDONLY);
    if (fd < 0) die(name);
    /* Where its pages are is asked through the descriptor: it has no name. */
    char self[64];
    sprintf(self, "/proc/self/fd/%d", fd);
    double end = now() + seconds;
    for (int i = 1; now() < end; i++) {
        pass(fd, buffer, sizeof buffer);
        usleep(20000);
        if (i % 16 == 0 && where(self, 0) == 0) break;
    }
    where(self, 1);
    return 0;
}

static unsigned long migrated(void) {
    char text[65536], *at;
    int fd = open("/proc/vmstat", O_RDONLY);
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got < 0 ? 0 : got] = 0;
    at = strstr(text, "pgmigrate_success ");
    return at ? strtoul(at + 18, NULL, 10) : 0;
}

static int peak(const char *name) {
    static struct { double at; unsigned long sum; } log[100000];
    size_t n = 0, from = 0;
    unsigned long most = 0, first = migrated();
    while (!access(name, F_OK) && n < 100000) {
        log[n].sum = migrated();
        log[n].at = now();
        while (log[n].at - log[from].at > 1.0) from++;
        if (log[n].sum - log[from].sum > most) most = log[n].sum - log[from].sum;
        n++;
        usleep(10000);
    }
    printf("peak=%lu all=%lu\n", most, log[n - 1].sum - first);
    return 0;
}

static int fill(size_t mib) {
    void *at = mmap(0, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mlock(at, mib << 20)) die("mlock");
    puts("filled");
    fflush(stdout);
    for (;;) pause();
}

static void powerless(void) {
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap) >= 0; cap++)
        if (prctl(PR_CAPBSET_DROP, cap)) die("PR_CAPBSET_DROP");
}

/* There is no file system of that name. */
static void untraced(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fsopen, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENODEV),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) die("PR_SET_SECCOMP");
}

/* As in a container: the group is the root of the tree that is seen there. */
static void contained(const char *group) {
    char procs[256];
    snprintf(procs, sizeof procs, "%s/cgroup.procs", group);
    int fd = open(procs, O_WRONLY);
    if (fd < 0 || write(fd, "0", 1) != 1) die(procs);
    close(fd);
    if (unshare(CLONE_NEWCGROUP | CLONE_NEWNS)) die("unshare");
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)) die("private mounts");
    if (umount("/sys/fs/cgroup") || mount("none", "/sys/fs/cgroup", "cgroup2", 0, NULL)) die("cgroup2");
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    if (!strcmp(argv[1], "powerless") || !strcmp(argv[1], "untraced")) {
        if (argv[1][0] == 'p') powerless();
        else untraced();
        execvp(argv[2], argv + 2);
        die(argv[2]);
    }
    if (!strcmp(argv[1], "contained") && argc > 3) {
        contained(argv[2]);
        execvp(argv[3], argv + 3);
        die(argv[3]);
    }
    if (!strcmp(argv[1], "bind") && argc > 3) {
        unsigned long mask = 1UL << atoi(argv[2]);
        if (syscall(SYS_set_mempolicy, 2 /* MPOL_BIND */, &mask, 64)) die("set_mempolicy");
        execvp(argv[3], argv + 3);
        die(argv[3]);
    }
    if (!strcmp(argv[1], "make") && argc > 3) return make(argv[2], atol(argv[3]));
    if (!strcmp(argv[1], "where")) return where(argv[2], 1) < -1;
    if (!strcmp(argv[1], "flags")) return flags(argv[2]);
    if (!strcmp(argv[1], "loop"))
        return loop(argv[2], atoi(argv[3]), argc > 4 ? atol(argv[4]) : 131072);
    if (!strcmp(argv[1], "read") && argc > 4)
        return only_read(argv[2], atoi(argv[3]), atol(argv[4]), argc > 5 ? atoi(argv[5]) : 0);
    if (!strcmp(argv[1], "random")) return random_reads(argv[2], atol(argv[3]));
    if (!strcmp(argv[1], "hold")) return hold(argv[2], atof(argv[3]));
    if (!strcmp(argv[1], "fill")) return fill(atol(argv[2]));
    if (!strcmp(argv[1], "peak")) return peak(argv[2]);
    return 2;
}
