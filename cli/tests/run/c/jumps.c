/* Jumps through memory at random and checks what it finds there.
 *
 * jumps MIB OPERATIONS THREADS HOGS: every thread has its own part; hogs use up the CPUs. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define WORDS 512

static uint64_t (*data)[WORDS];
static uint32_t *generation;
static size_t pages, operations, threads;
static volatile int done;

static uint64_t word(size_t page, uint32_t generation, unsigned i)
{
	return (page + 1) * 0x9e3779b97f4a7c15ull ^ (uint64_t)generation << 32 ^ i;
}

static void fill(size_t page)
{
	for (unsigned i = 0; i < WORDS; i++)
		data[page][i] = word(page, generation[page], i);
}

static void *jump(void *number)
{
	size_t part = pages / threads, first = (size_t)number * part;
	uint64_t x = 88172645463325252ull + first;

	for (size_t i = first; i < first + part; i++)
		fill(i);
	for (size_t n = 0; n < operations; n++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		size_t page = first + x % part;
		for (unsigned i = n % 7; i < WORDS; i += 97)
			if (data[page][i] != word(page, generation[page], i)) {
				printf("page %zu word %u is wrong after %zu\n", page, i, n);
				exit(1);
			}
		if (n % 3 == 0) {
			generation[page]++;
			fill(page);
		}
	}
	return NULL;
}

static void *hog(void *unused)
{
	while (!done)
		;
	return unused;
}

int main(int argc, char **argv)
{
	size_t hogs;

	if (argc != 5)
		return 2;
	pages = strtoul(argv[1], NULL, 10) << 8;
	operations = strtoul(argv[2], NULL, 10);
	threads = strtoul(argv[3], NULL, 10);
	hogs = strtoul(argv[4], NULL, 10);
	data = mmap(NULL, pages * sizeof *data, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	generation = calloc(pages, sizeof *generation);
	if (data == MAP_FAILED || !generation)
		return 2;

	pthread_t jumper[threads], spinner[hogs + 1];
	for (size_t i = 0; i < hogs; i++)
		pthread_create(&spinner[i], NULL, hog, NULL);
	for (size_t i = 0; i < threads; i++)
		pthread_create(&jumper[i], NULL, jump, (void *)i);
	for (size_t i = 0; i < threads; i++)
		pthread_join(jumper[i], NULL);
	done = 1;
	for (size_t i = 0; i < hogs; i++)
		pthread_join(spinner[i], NULL);
	puts("ok");
	return 0;
}
