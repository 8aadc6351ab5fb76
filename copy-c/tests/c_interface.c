/* Uses the C interface as a C program would. */
#include "hugeswap_copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096u
#define LEN (512u * PAGE)

#define CHECK(condition)                                                       \
	do {                                                                   \
		if (!(condition)) {                                            \
			fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
			exit(1);                                               \
		}                                                              \
	} while (0)

static unsigned char *pages(void)
{
	void *p = aligned_alloc(PAGE, 2 * LEN);

	CHECK(p);
	return p;
}

int main(void)
{
	unsigned char *src = pages(), *dst = pages(), *zero = calloc(1, LEN);
	int strategy;

	CHECK(zero);
	for (size_t i = 0; i < 2 * LEN; i++)
		src[i] = (unsigned char)(i * 31 + (i >> 12));
	hugeswap_copy_init();

	for (strategy = HUGESWAP_COPY_AUTO; strategy <= HUGESWAP_COPY_STREAMING;
	     strategy++) {
		memset(dst, 0x5a, 2 * LEN);
		CHECK(hugeswap_copy(dst, src, LEN, 77, strategy) == 0);
		CHECK(memcmp(dst, src, LEN) == 0);
		CHECK(dst[LEN] == 0x5a);
		CHECK(hugeswap_clear(dst, LEN, 511, strategy) == 0);
		CHECK(memcmp(dst, zero, LEN) == 0);
		CHECK(dst[LEN] == 0x5a);

		CHECK(hugeswap_copy(dst, src, LEN, 512, strategy) ==
		      HUGESWAP_COPY_TARGET_OUTSIDE);
		CHECK(hugeswap_copy(dst, src, 0, 0, strategy) ==
		      HUGESWAP_COPY_EMPTY);
		CHECK(hugeswap_copy(dst, src, PAGE + 1, 0, strategy) ==
		      HUGESWAP_COPY_PARTIAL_PAGE);
		CHECK(hugeswap_copy(dst + 8, src, PAGE, 0, strategy) ==
		      HUGESWAP_COPY_MISALIGNED);
		CHECK(hugeswap_copy(NULL, src, PAGE, 0, strategy) ==
		      HUGESWAP_COPY_BAD_ADDRESS);
		CHECK(hugeswap_copy(src + PAGE, src, LEN, 0, strategy) ==
		      HUGESWAP_COPY_OVERLAP);
		CHECK(hugeswap_clear(dst, LEN, 512, strategy) ==
		      HUGESWAP_COPY_TARGET_OUTSIDE);
		CHECK(memcmp(dst, zero, LEN) == 0);
	}
	CHECK(hugeswap_copy(dst, src, LEN, 0, 99) == HUGESWAP_COPY_BAD_STRATEGY);
	CHECK(hugeswap_clear(dst, LEN, 0, -1) == HUGESWAP_COPY_BAD_STRATEGY);
	CHECK(strstr(hugeswap_copy_strerror(HUGESWAP_COPY_OVERLAP), "overlap"));
	puts("ok");
	return 0;
}
