//! Pages that were never touched: zeros, a folio of them or a few.
#![allow(unsafe_code)]

use super::plan::Plan;
use super::swapin::Whole;
use super::{Bytes, Frame, Memory, SwapCache};
use crate::mm::{copy, PageMask, Pmd, PAGE_SIZE, PMD_NR};
use crate::policy::{Huge, List, ZERO_FILL, ZERO_FILL_MAX};
use crate::vma::RangeGuard;

impl<M: Memory> SwapCache<M> {
    /// A page that was never touched: `new` pages of zeros, a folio or a power of two.
    pub(super) fn touch_new(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        page: usize,
        new: usize,
        frame: &mut Option<(Frame, Bytes)>,
    ) -> Plan {
        let unused = g.used().is_empty() && g.writable.is_full();
        if unused && g.hints.huge != Huge::Unwanted && new >= PMD_NR {
            return self.first_touch(pmd, g, page, frame);
        }
        self.zero_fill(pmd, g, page, new.min(ZERO_FILL_MAX))
    }

    /// A zeroed huge page for a range that was never touched.
    fn first_touch(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        page: usize,
        frame: &mut Option<(Frame, Bytes)>,
    ) -> Plan {
        if !self.abilities.mv {
            return self.zero_fill(pmd, g, page, ZERO_FILL);
        }
        let Some((fr, bytes)) = frame.take() else {
            return Plan::NeedFrame {
                bytes: Bytes::Zeros,
            };
        };
        if bytes == Bytes::Old {
            self.clear_pages(fr, PageMask::FULL, page);
        }
        g.belongs_to(List::Main);
        match self.move_whole_in(pmd, g, fr) {
            Whole::Moved => {
                self.stats().thp_fault_alloc.inc();
                return Plan::Served;
            }
            Whole::Part => {
                self.copy_rest(pmd, g, fr, PageMask::FULL);
                self.stats().thp_fault_fallback.inc();
                return Plan::Served;
            }
            Whole::Nothing => *frame = Some((fr, Bytes::Zeros)),
        }
        self.stats().thp_fault_fallback.inc();
        self.zero_fill(pmd, g, page, ZERO_FILL)
    }

    /// Zeros for the page and those of the `n` around it that were never touched either.
    fn zero_fill(&self, pmd: Pmd, g: &mut RangeGuard<'_>, page: usize, n: usize) -> Plan {
        let untouched = PageMask::FULL.minus(g.used());
        // What lies between them is there, or in swap: a walk comes to those beyond as well.
        let want = match g.writable.has(page) {
            true => untouched.and(g.writable).and(PageMask::around(page, n)),
            false => PageMask::of(page..page + 1),
        };
        if !self.charge_for_fault(want.count()) {
            return Plan::NeedRoom;
        }
        g.belongs_to(List::Main);
        let got = self.copy_zeros(pmd, want);
        self.charge.uncharge(want.minus(got).count());
        self.stats().anon_fault_alloc.add(got.count() as u64);
        self.became_present(pmd, g, got);
        if !got.has(page) {
            self.memory.wake(pmd.page_addr(page), PAGE_SIZE);
        }
        Plan::Served
    }

    fn copy_zeros(&self, pmd: Pmd, pages: PageMask) -> PageMask {
        let mut got = PageMask::EMPTY;
        for run in pages.runs() {
            got = got.or(self.copy_run(pmd, run, |_| self.zeros.at(0)));
        }
        got
    }

    /// Zeros pages of a frame that is ready and ours.
    /// The page `target` is the hottest in the CPU's cache afterwards, where it is among them.
    pub(super) fn clear_pages(&self, frame: Frame, pages: PageMask, target: usize) {
        for run in pages.runs() {
            let p = (self.frames.addr(frame) + run.start * PAGE_SIZE) as *mut u8;
            let at = target.clamp(run.start, run.end - 1) - run.start;
            // SAFETY: the frame is mapped, ready, and nobody else has it.
            let cleared =
                unsafe { copy::clear_raw(p, run.len() * PAGE_SIZE, at, copy::Strategy::default()) };
            debug_assert!(cleared.is_ok(), "runs are whole pages of the frame");
        }
    }
}
