//! Filling missing pages of the program by a copy.

use super::{Dir, Memory, SwapCache};
use crate::mm::{PageMask, Pmd, PAGE_SIZE};
use crate::sys::uffd::Refused;
use core::ops::Range;

impl<M: Memory> SwapCache<M> {
    /// Fills missing pages of the range from `src`, which holds the whole range's bytes as far as
    /// `pages` need them. Returns the pages that are there now.
    pub(super) fn copy_in(&self, pmd: Pmd, pages: PageMask, src: *const u8) -> PageMask {
        let mut got = PageMask::EMPTY;
        for run in pages.runs() {
            got = got.or(self.copy_run(pmd, run, |page| src.wrapping_add(page * PAGE_SIZE)));
        }
        got
    }

    pub(super) fn copy_run(
        &self,
        pmd: Pmd,
        run: Range<usize>,
        src: impl Fn(usize) -> *const u8,
    ) -> PageMask {
        let (got, there) = self.fill_run(run, |at, n| {
            self.memory
                .copy(Dir::In, pmd.page_addr(at), src(at), n * PAGE_SIZE)
        });
        // A page that is there already is newer than ours.
        got.or(there)
    }

    /// Fills the run by calls of `fill` for so many pages from one on. Says which it has filled, and which were there.
    pub(super) fn fill_run(
        &self,
        run: Range<usize>,
        fill: impl Fn(usize, usize) -> Result<(), Refused>,
    ) -> (PageMask, PageMask) {
        let (mut got, mut there) = (PageMask::EMPTY, PageMask::EMPTY);
        let mut at = run.start;
        let mut step = run.len();
        let mut tries = 0;
        while at < run.end {
            let n = step.min(run.end - at);
            let e = match fill(at, n) {
                Ok(()) => {
                    got = got.or(PageMask::of(at..at + n));
                    at += n;
                    continue;
                }
                Err(e) => e,
            };
            let done = (e.done() / PAGE_SIZE).min(n);
            got = got.or(PageMask::of(at..at + done));
            at += done;
            match e {
                Refused::Exists { .. } if n == 1 => {
                    there = there.or(PageMask::of(at..at + 1));
                    at += 1;
                }
                Refused::Again { .. } if tries < 1000 => tries += 1,
                _ if n > 1 && done < n => step = 1,
                _ => at += 1,
            }
        }
        (got, there)
    }
}
