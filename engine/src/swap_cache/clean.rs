//! Which pages need not be written: those that are full of zeros, and those that are still what is
//! in their slots.
//!
//! There is no way to see a page's dirty bit, and write-protecting a page before it is taken out
//! races with the program. But what is in a slot has a tag (`seal`), which was made before it was written.
//! It is made again when the page has gone out, from memory that the program cannot reach any more: no
//! write can fall in between.
//!
//! Zeros are looked for in the same place, and so as free of races: a page that is found to be zero
//! in the frame stays so until the program gets it back.
#![allow(unsafe_code)]

use super::{Frame, Memory, SwapCache};
use crate::control::FILE;
use crate::mm::{PageMask, Pmd, PAGE_SIZE, PMD_NR};
use crate::seal::Mode;
use crate::vma::{Range, RangeGuard};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Zeros are written along where they would cut a write in two that is worth more than they are:
/// so many pages at most.
const GAP: usize = 3;
/// Of a whole folio so many pages must be zero, or it leaves as a whole, by one write.
const ZEROS_OF_FOLIO: usize = PMD_NR / 8;

/// A folio that changed in more places than this is written as a whole.
const CHANGES: usize = 16;
/// What share of kept folios' pages must be clean for it to pay: a look costs about 200 us, a write
/// 1 ms. In 256ths.
const WORTH: u32 = 64;
/// Of folios that are not kept one in so many is, to see whether it would pay now.
const PROBE: u32 = 16;

/// Whether it has been worth it to keep the slots of folios that come in whole.
pub struct KeepFolios {
    /// Of the pages of kept folios, how many were not written when these left, in 256ths; an
    /// average that forgets.
    clean: AtomicU32,
    asked: AtomicU32,
}

impl Default for KeepFolios {
    fn default() -> Self {
        KeepFolios {
            clean: AtomicU32::new(256),
            asked: AtomicU32::new(0),
        }
    }
}

impl KeepFolios {
    fn pays(&self) -> bool {
        self.clean.load(Relaxed) >= WORTH || self.asked.fetch_add(1, Relaxed) % PROBE == 0
    }

    /// A kept folio left without writing so many of its pages. For the reclaim thread.
    fn learn(&self, clean: usize) {
        let (old, now) = (self.clean.load(Relaxed), (clean * 256 / PMD_NR) as u32);
        // Rounded so that it can reach both ends.
        let new = (old * 7 + now + if now > old { 7 } else { 0 }) / 8;
        self.clean.store(new, Relaxed);
    }
}

/// Whether 4 KiB are all zero. Most pages that are not show it in their first or last word.
fn is_zero(page: &[u64; PAGE_SIZE / 8]) -> bool {
    let line = |words: &[u64]| words.iter().fold(0, |all, word| all | word) == 0;
    page[0] | page[page.len() - 1] == 0 && page.chunks_exact(16).all(line)
}

impl<M: Memory> SwapCache<M> {
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
        // Sealed pages go side by side, and into slots that lie so: gaps make no more requests.
        worth_leaving_out(zero, pages, self.sealer.mode == Mode::Encrypt)
    }

    /// Whether the slots of a folio that comes in whole should be kept. Not for memory in place of a
    /// disk, where a write costs little more than a look; nor when swap is half full; nor where
    /// such folios were found changed when they left.
    pub(super) fn keeps_folio(&self, g: &RangeGuard<'_>) -> bool {
        let device = g.entry.and_then(|e| e.first()).map(|e| e.device().index());
        device.is_some_and(|d| self.is_disk(d))
            && self.keep_folios.pays()
            && !self.slots.is_half_full()
    }

    /// Whether a device is not memory.
    pub fn is_disk(&self, device: usize) -> bool {
        self.charge.control.devices()[device].kind == FILE
    }

    /// Of `pages`, which are all that the frame holds, what need not be written since its slots, of
    /// those in `old`, hold the same.
    pub(super) fn unchanged(
        &self,
        pmd: Pmd,
        r: &Range,
        frame: Frame,
        pages: PageMask,
        old: PageMask,
    ) -> PageMask {
        let mut clean = without_gaps(self.clean_pages(pmd, r, frame, old), pages);
        if !pages.is_full() {
            return clean;
        }
        if pages.minus(clean).runs().count() > CHANGES {
            clean = PageMask::EMPTY;
        }
        if old.count() >= PMD_NR / 2 {
            self.keep_folios.learn(clean.count());
        }
        clean
    }
}

fn worth_leaving_out(zero: PageMask, pages: PageMask, packed: bool) -> PageMask {
    if pages.is_full() && zero.count() < ZEROS_OF_FOLIO {
        return PageMask::EMPTY;
    }
    // Of what is used here and there nobody wants the rest back.
    if packed && 2 * zero.count() >= pages.count() {
        return zero;
    }
    without_gaps(zero, pages)
}

/// What may be left out of a write of `pages`, less the short gaps that would make two requests of
/// one.
fn without_gaps(leave: PageMask, pages: PageMask) -> PageMask {
    let data = pages.minus(leave);
    let mut out = leave;
    for run in leave.runs().filter(|run| run.len() <= GAP) {
        let before = run.start > 0 && data.has(run.start - 1);
        if before && run.end < PMD_NR && data.has(run.end) {
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
        let left_out = |zero, pages| worth_leaving_out(zero, pages, true);
        // A folio with few of them leaves by one write.
        assert!(left_out(of(3..60), PageMask::FULL).is_empty());
        assert_eq!(left_out(of(3..80), PageMask::FULL), of(3..80));
        assert!(left_out(PageMask::FULL, PageMask::FULL).is_full());
        // Small gaps between data are written over; ends and what lies beside a hole are not.
        let zero = of(10..13).or(of(20..24)).or(of(39..40)).or(of(0..1));
        assert_eq!(left_out(zero, of(0..40)), zero.minus(of(10..13)));
        // Unless more of it is gaps than data.
        let mut gaps = PageMask::EMPTY;
        (0..PMD_NR)
            .filter(|page| page % 4 > 0)
            .for_each(|page| gaps.insert(page));
        assert_eq!(left_out(gaps, PageMask::FULL), gaps);
        assert!(worth_leaving_out(gaps, PageMask::FULL, false).count() < 4);
        let zero = of(8..10).or(of(510..512));
        assert_eq!(left_out(zero, of(0..8).or(of(400..512)).or(zero)), zero);
    }

    #[test]
    fn keeping_is_learned_and_unlearned() {
        let keep = KeepFolios::default();
        let share = |keep: &KeepFolios| (0..1600).filter(|_| keep.pays()).count();
        assert_eq!(share(&keep), 1600);
        for _ in 0..40 {
            keep.learn(0);
        }
        assert_eq!(share(&keep), 100);
        for _ in 0..3 {
            keep.learn(PMD_NR);
        }
        assert_eq!(share(&keep), 1600);
        for _ in 0..40 {
            keep.learn(PMD_NR);
        }
        assert_eq!(keep.clean.load(Relaxed), 256);
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
