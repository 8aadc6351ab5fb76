/* Threads that fill their stacks, which can't be swapped, beside a heap that can: stacks MEGABYTES GO.
 * Says "ready" when the stacks are full, and fills the heap when the file GO is there. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS 6
#define STACK (8 << 20)

static pthread_barrier_t filled, checked;

static void *fill(void *arg) {
    volatile char room[STACK - (256 << 10)];
    for (size_t i = 0; i < sizeof room; i += 512)
        room[i] = (char)(i >> 9) ^ (char)(long)arg;
    pthread_barrier_wait(&filled);
    pthread_barrier_wait(&checked);
    for (size_t i = 0; i < sizeof room; i += 512)
        if (room[i] != ((char)(i >> 9) ^ (char)(long)arg))
            return (void *)1;
    return NULL;
}

int main(int argc, char **argv) {
    size_t pages = argc == 3 ? (size_t)atoi(argv[1]) << 8 : 0;
    pthread_t threads[THREADS];
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK);
    pthread_barrier_init(&filled, NULL, THREADS + 1);
    pthread_barrier_init(&checked, NULL, THREADS + 1);
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], &attr, fill, (void *)i))
            return 2;
    pthread_barrier_wait(&filled);
    puts("ready");
    fflush(stdout);
    while (access(argv[2], F_OK))
        usleep(10000);
    size_t *heap = malloc(pages * 4096);
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < pages; i++) {
            size_t *word = heap + i * 512;
            if (round && *word != i * 77 + round - 1)
                return 3;
            *word = i * 77 + round;
        }
    pthread_barrier_wait(&checked);
    for (int i = 0; i < THREADS; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        if (wrong)
            return 4;
    }
    puts("ok");
    return 0;
}
