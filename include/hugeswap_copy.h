/* Copying and clearing of huge pages, target sub-page last.
 *
 * A huge page is copied or cleared because one address in it was accessed; the
 * base page of that address is the target. It is the hottest in cache when the
 * call returns.
 *
 * Any thread may call these functions; they do not allocate, lock or use
 * thread-local storage. Link with libhugeswap_copy.a or .so.
 */
#ifndef HUGESWAP_COPY_H
#define HUGESWAP_COPY_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum hugeswap_copy_strategy {
	/* CHUNKS for a page within half of the thread's share of the last-level
	 * cache; of a larger page, that much from the target on, and the rest past
	 * the caches. The one to use. */
	HUGESWAP_COPY_AUTO = 0,
	/* From begin to end. */
	HUGESWAP_COPY_ASCENDING = 1,
	/* Farther end first, then left and right in turn towards the target, one
	 * base page at a time. */
	HUGESWAP_COPY_TARGET_LAST = 2,
	/* Right of the target, left of it, then five pages around it. */
	HUGESWAP_COPY_RANGES = 3,
	/* Large blocks from the far ends towards the target. */
	HUGESWAP_COPY_CHUNKS = 4,
	/* Past the caches but for 64 KiB from the target on. */
	HUGESWAP_COPY_STREAMING = 5
};

enum hugeswap_copy_error {
	HUGESWAP_COPY_OK = 0,
	HUGESWAP_COPY_EMPTY = -1,
	HUGESWAP_COPY_PARTIAL_PAGE = -2,
	HUGESWAP_COPY_TARGET_OUTSIDE = -3,
	HUGESWAP_COPY_MISALIGNED = -4,
	HUGESWAP_COPY_BAD_ADDRESS = -5,
	HUGESWAP_COPY_OVERLAP = -6,
	HUGESWAP_COPY_BAD_STRATEGY = -20,
	HUGESWAP_COPY_UNKNOWN = -21
};

/* Looks at the processor once. Optional: the first copy does it otherwise. */
void hugeswap_copy_init(void);

/* Copies len bytes from src to dst. Both are aligned to 4096 bytes and do not
 * overlap; len is a positive multiple of 4096; target is the index of a base
 * page of it. Returns 0, or one of the errors above with nothing written.
 *
 * If the arguments pass these checks, src must be readable and dst writable,
 * and nobody else may write src or touch dst during the call. */
int hugeswap_copy(void *dst, const void *src, size_t len, size_t target,
		  int strategy);

/* Clears len bytes at dst; otherwise as hugeswap_copy. */
int hugeswap_clear(void *dst, size_t len, size_t target, int strategy);

/* The message for a value that the functions above returned. Never freed. */
const char *hugeswap_copy_strerror(int error);

#ifdef __cplusplus
}
#endif

#endif
