//! Which resident pages are still what is in their slots.
//!
//! There is no way to see a page's dirty bit, and write-protecting a page before it is taken out
//! races with the program. So pages are summed when they come in, from memory that the program
//! cannot reach yet, and again when they have gone out, from memory that it cannot reach any more:
//! no write can fall in between. The sum is 64 bits with a key of its own for each process.

use super::{Frame, SwapCache};
use crate::mm::{PageMask, Pmd, PAGE_SIZE};
use crate::vma::RangeGuard;
use xxhash_rust::xxh3::xxh3_64_with_seed;

impl SwapCache {
    fn sum(&self, page: *const u8) -> u64 {
        // SAFETY: every caller passes a page of a frame or buffer that is its own for now.
        let bytes = unsafe { core::slice::from_raw_parts(page, PAGE_SIZE) };
        xxh3_64_with_seed(bytes, self.seed)
    }

    /// Notes the sums of pages that are about to come in; `src` counts from the range's start.
    /// True if their slots may be kept.
    pub(super) fn remember(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        pages: PageMask,
        src: *const u8,
    ) -> bool {
        let sums = self.ranges.sums(pmd);
        if sums.is_null() {
            return false;
        }
        if !g.summed {
            g.summed = true;
            self.charge.charge(1);
        }
        for page in pages.runs().flatten() {
            let sum = self.sum(src.wrapping_add(page * PAGE_SIZE));
            // SAFETY: the lock is held; the table has an element for each page.
            unsafe { (*sums)[page] = sum };
        }
        true
    }

    /// Of `pages`, which are in the frame and in slots, those that are alike in both.
    pub(super) fn clean_pages(&self, pmd: Pmd, frame: Frame, pages: PageMask) -> PageMask {
        let sums = self.ranges.sums(pmd);
        let mut clean = PageMask::EMPTY;
        if sums.is_null() {
            return clean;
        }
        for page in pages.runs().flatten() {
            let now = self.sum((self.frames.addr(frame) + page * PAGE_SIZE) as *const u8);
            // SAFETY: the range is being written by us, so nobody changes its sums.
            if now == unsafe { (*sums)[page] } {
                clean = clean.or(PageMask::of(page..page + 1));
            }
        }
        clean
    }
}
