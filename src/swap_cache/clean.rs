//! Which pages need not be written: those that are full of zeros, and those that are still what is
//! in their slots.
//!
//! There is no way to see a page's dirty bit, and write-protecting a page before it is taken out
//! races with the program. So pages are summed when they come in, from memory that the program
//! cannot reach yet, and again when they have gone out, from memory that it cannot reach any more:
//! no write can fall in between. The sum is 64 bits with a key of its own for each process.
//!
//! Zeros are looked for in the same place, and so as free of races: a page that is found to be zero
//! in the frame stays so until the program gets it back.

use super::{Frame, SwapCache};
use crate::mm::{PageMask, Pmd, PAGE_SIZE, PMD_NR};
use crate::vma::RangeGuard;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Zeros are written along where they would cut a write in two that is worth more than they are:
/// so many pages at most.
const GAP: usize = 3;
/// Of a whole folio so many pages must be zero, or it leaves as a whole, by one write.
const ZEROS_OF_FOLIO: usize = PMD_NR / 8;

/// Whether 4 KiB are all zero. Most pages that are not show it in their first or last word.
fn is_zero(page: &[u64; PAGE_SIZE / 8]) -> bool {
    let line = |words: &[u64]| words.iter().fold(0, |all, word| all | word) == 0;
    page[0] | page[page.len() - 1] == 0 && page.chunks_exact(16).all(line)
}

impl SwapCache {
    /// Of `pages`, which are in the frame, those that are full of zeros and better left out than
    /// written. They need neither a slot nor a write.
    pub(super) fn zero_pages(&self, frame: Frame, pages: PageMask) -> PageMask {
        let base = self.frames.addr(frame) as *const [u64; PAGE_SIZE / 8];
        let mut zero = PageMask::EMPTY;
        for page in pages.runs().flatten() {
            // SAFETY: the page was moved into the frame, which is ours for now; nobody writes there.
            if is_zero(unsafe { &*base.add(page) }) {
                zero.insert(page);
            }
        }
        worth_leaving_out(zero, pages)
    }

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
                clean.insert(page);
            }
        }
        clean
    }
}

fn worth_leaving_out(zero: PageMask, pages: PageMask) -> PageMask {
    if pages.is_full() && zero.count() < ZEROS_OF_FOLIO {
        return PageMask::EMPTY;
    }
    let data = pages.minus(zero);
    let mut out = zero;
    for run in zero.runs().filter(|run| run.len() <= GAP) {
        let between =
            run.start > 0 && data.has(run.start - 1) && run.end < PMD_NR && data.has(run.end);
        if between {
            out = out.minus(PageMask::of(run));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_is_not_zero() {
        let mut page = [0; PAGE_SIZE / 8];
        assert!(is_zero(&page));
        for word in 0..page.len() {
            page[word] = 1 << (word % 64);
            assert!(!is_zero(&page), "{word}");
            page[word] = 0;
        }
    }

    #[test]
    fn zeros_that_save_little_are_written() {
        let of = PageMask::of;
        let left_out = |zero, pages| worth_leaving_out(zero, pages);
        // A folio with few of them leaves by one write.
        assert!(left_out(of(3..60), PageMask::FULL).is_empty());
        assert_eq!(left_out(of(3..80), PageMask::FULL), of(3..80));
        assert!(left_out(PageMask::FULL, PageMask::FULL).is_full());
        // Small gaps between data are written over; ends and what lies beside a hole are not.
        let zero = of(10..13).or(of(20..24)).or(of(39..40)).or(of(0..1));
        assert_eq!(left_out(zero, of(0..40)), zero.minus(of(10..13)));
        let zero = of(8..10).or(of(510..512));
        assert_eq!(left_out(zero, of(0..8).or(of(400..512)).or(zero)), zero);
    }

    /// `cargo test --release -p hugeswap -- --ignored --nocapture cost_of`
    #[test]
    #[ignore = "measures"]
    fn cost_of_looking_for_zeros() {
        // As large as no cache, so that each page is new to it.
        let folios = 256;
        let mut mem = vec![[0u64; PAGE_SIZE / 8]; folios * PMD_NR];
        let mut time = |what: &str, fill: &dyn Fn(&mut [u64; PAGE_SIZE / 8])| {
            mem.iter_mut().for_each(fill);
            let start = std::time::Instant::now();
            let zero = mem.iter().filter(|page| is_zero(page)).count();
            let ns = start.elapsed().as_nanos() as usize / folios;
            println!("{what}: {zero} zero, {ns} ns for each 2 MiB");
        };
        time("data", &|page| page.fill(7));
        time("data behind the first word", &|page| page[0] = 0);
        time("zero at both ends", &|page| page[PAGE_SIZE / 8 - 1] = 0);
        time("zeros", &|page| page.fill(0));
    }
}
