// A plugin for QEMU's user-mode emulation (7.2, plugin API 1): writes which pages a program touches.
//
// Raw records are 64-bit words: page number (bits 0-39), thread (bits 40-55), kind (bits 60-63). Kinds: 0 read,
// 1 write, 2 freed; a word that says how many pages follows a freed one.
//
// Options: out=FILE, and window=N: a touch is left out if its thread touched the page within the last N records.
#include <pthread.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

// What is used of <qemu/qemu-plugin.h>, which Debian does not package.
#define EXPORT __attribute__((visibility("default")))
typedef uint64_t plugin_id;
typedef uint32_t meminfo;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef void (*tb_callback)(plugin_id, struct qemu_plugin_tb *);
typedef void (*mem_callback)(unsigned vcpu, meminfo, uint64_t address, void *);
typedef void (*syscall_callback)(plugin_id, unsigned vcpu, int64_t number, uint64_t, uint64_t, uint64_t, uint64_t,
                                 uint64_t, uint64_t, uint64_t, uint64_t);
typedef void (*syscall_return_callback)(plugin_id, unsigned vcpu, int64_t number, int64_t result);
typedef void (*exit_callback)(plugin_id, void *);
enum { NO_REGISTERS = 0, READS_AND_WRITES = 3 };
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, tb_callback);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, mem_callback, int flags, int rw, void *);
bool qemu_plugin_mem_is_store(meminfo);
void qemu_plugin_register_vcpu_syscall_cb(plugin_id, syscall_callback);
void qemu_plugin_register_vcpu_syscall_ret_cb(plugin_id, syscall_return_callback);
void qemu_plugin_register_atexit_cb(plugin_id, exit_callback, void *);
EXPORT int qemu_plugin_version = 1;

enum { READ, WRITE, FREED };
enum { THREADS = 256, SLOTS = 1024, BUFFER = 1 << 16, PAGE_SHIFT = 12, PAGE_SIZE = 1 << PAGE_SHIFT };

// What a thread touched lately. Its own, so that most touches need no lock. Threads beyond THREADS share with others.
struct slot {
    uint64_t page;
    uint64_t until; // the count of records at which the slot no longer counts
    bool written;
};
static struct thread {
    struct slot slots[SLOTS];
    uint64_t arguments[4]; // of the system call that it is in
} threads[THREADS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // for all below
static uint64_t buffer[BUFFER];
static size_t buffered;
static uint64_t records; // also read without the lock: somewhat old is good enough for `until`
static uint64_t heap_end;
static int out = -1;
static uint64_t window = 64;

static void flush(void) {
    const char *at = (const char *)buffer, *end = (const char *)(buffer + buffered);
    while (out >= 0 && at < end) {
        ssize_t done = write(out, at, end - at);
        if (done <= 0) {
            perror("page_trace");
            _exit(1);
        }
        at += done;
    }
    buffered = 0;
}

static void put(uint64_t word) {
    buffer[buffered++] = word;
    if (buffered == BUFFER)
        flush();
}

static void touch(unsigned vcpu, uint64_t page, bool written) {
    struct slot *slot = &threads[vcpu % THREADS].slots[(page ^ page >> 10) % SLOTS];
    uint64_t now = __atomic_load_n(&records, __ATOMIC_RELAXED);
    if (slot->page == page && now < slot->until && (slot->written || !written))
        return;
    *slot = (struct slot){page, now + window, written};
    pthread_mutex_lock(&lock);
    put(page | (uint64_t)(vcpu % THREADS) << 40 | (uint64_t)(written ? WRITE : READ) << 60);
    __atomic_store_n(&records, records + 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
}

static void touch_bytes(unsigned vcpu, uint64_t address, uint64_t length, bool written) {
    if (length)
        for (uint64_t page = address >> PAGE_SHIFT; page <= (address + length - 1) >> PAGE_SHIFT; page++)
            touch(vcpu, page, written);
}

static void freed(uint64_t address, uint64_t length) {
    pthread_mutex_lock(&lock);
    put(address >> PAGE_SHIFT | (uint64_t)FREED << 60);
    put((length + PAGE_SIZE - 1) >> PAGE_SHIFT);
    // No thread's slots count any longer: what comes back at these addresses is new.
    __atomic_store_n(&records, records + window, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
}

static void on_memory(unsigned vcpu, meminfo info, uint64_t address, void *unused) {
    touch(vcpu, address >> PAGE_SHIFT, qemu_plugin_mem_is_store(info));
}

static void on_translation(plugin_id id, struct qemu_plugin_tb *block) {
    for (size_t n = 0; n < qemu_plugin_tb_n_insns(block); n++)
        qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(block, n), on_memory, NO_REGISTERS, READS_AND_WRITES,
                                         NULL);
}

// What frees is noted before the call: after it, another thread might already have the addresses.
static void on_syscall(plugin_id id, unsigned vcpu, int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                       uint64_t e, uint64_t f, uint64_t g, uint64_t h) {
    memcpy(threads[vcpu % THREADS].arguments, (uint64_t[]){a, b, c, d}, sizeof(uint64_t[4]));
    switch (number) {
    case SYS_munmap:
        freed(a, b);
        break;
    case SYS_madvise:
        if (c == MADV_DONTNEED || c == MADV_FREE)
            freed(a, b);
        break;
    case SYS_mmap:
        if (d & MAP_FIXED)
            freed(a, b);
        break;
    }
}

// The kernel's own reads and writes of the program's buffers are not instructions of the program.
static void on_syscall_return(plugin_id id, unsigned vcpu, int64_t number, int64_t result) {
    const uint64_t *a = threads[vcpu % THREADS].arguments;
    if (result < 0)
        return;
    switch (number) {
    case SYS_read:
    case SYS_pread64:
    case SYS_recvfrom:
        touch_bytes(vcpu, a[1], result, true);
        break;
    case SYS_write:
    case SYS_pwrite64:
    case SYS_sendto:
        touch_bytes(vcpu, a[1], result, false);
        break;
    case SYS_mremap:
        if (a[2] < a[1])
            freed(a[0] + a[2], a[1] - a[2]);
        // There is no record for pages that move: they are freed, and written where they are now.
        if ((uint64_t)result != a[0]) {
            freed(a[0], a[1]);
            touch_bytes(vcpu, result, a[1] < a[2] ? a[1] : a[2], true);
        }
        break;
    case SYS_brk:
        if ((uint64_t)result < heap_end)
            freed((result + PAGE_SIZE - 1) & -PAGE_SIZE, heap_end - result);
        heap_end = result;
        break;
    }
}

static void at_exit(plugin_id id, void *unused) {
    pthread_mutex_lock(&lock);
    flush();
    pthread_mutex_unlock(&lock);
}

// A child has a copy of the buffer, and its pages are others.
static void in_child(void) {
    out = -1;
    pthread_mutex_init(&lock, NULL);
}

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void in_parent(void) { pthread_mutex_unlock(&lock); }

EXPORT int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
    for (int n = 0; n < argc; n++) {
        if (!strncmp(argv[n], "out=", 4))
            out = open(argv[n] + 4, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        else if (!strncmp(argv[n], "window=", 7))
            window = strtoull(argv[n] + 7, NULL, 10);
    }
    if (out < 0) {
        fputs("page_trace: out=FILE is needed, a file that can be written\n", stderr);
        return 1;
    }
    pthread_atfork(before_fork, in_parent, in_child);
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    qemu_plugin_register_vcpu_syscall_cb(id, on_syscall);
    qemu_plugin_register_vcpu_syscall_ret_cb(id, on_syscall_return);
    qemu_plugin_register_atexit_cb(id, at_exit, NULL);
    return 0;
}
