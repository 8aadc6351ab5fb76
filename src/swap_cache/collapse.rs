//! A range that is resident in part becomes one huge page when the rest has come in.

use super::{Dir, Frame, SwapCache};
use crate::mm::{PageMask, Pmd, PAGE_SIZE, PMD_NR, PMD_SIZE};
use crate::vma::{Huge, RangeGuard};

/// Pages that were never touched, and are zeros in the huge page that is made of the others.
const COLLAPSE_UNTOUCHED: usize = PMD_NR / 8;

impl SwapCache {
    /// Makes one huge page of what is resident of the range and of `pages`, which the frame holds: as
    /// khugepaged does, with the program's pages out of its reach meanwhile. False, and nothing has
    /// changed, where that makes no sense or cannot be done.
    pub(super) fn collapse(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        frame: Frame,
        pages: PageMask,
    ) -> bool {
        let (here, untouched) = (g.present, PageMask::FULL.minus(g.present).minus(pages));
        let fit = g.writable.is_full() && g.lost.is_empty() && g.hints.huge != Huge::Unwanted;
        if !self.abilities.mv || !fit || here.is_empty() || untouched.count() > COLLAPSE_UNTOUCHED {
            return false;
        }
        let Some(other) = self.frames.take_empty() else {
            return false;
        };
        (g.held, g.frame) = (here, other.0);
        let out = self.move_until(Dir::Out, pmd, other, here, true);
        if out.moved != here {
            // Pages are shared, pinned, or were dropped.
            self.account_moved(pmd, g, &out);
            self.bring_back(pmd, g, other, out.moved);
            g.held = PageMask::EMPTY;
            self.stats().thp_collapse_alloc_failed.inc();
            return false;
        }
        g.present = PageMask::EMPTY;
        for run in here.runs() {
            let (from, to) = (self.frames.addr(other), self.frames.addr(frame));
            let at = run.start * PAGE_SIZE;
            // SAFETY: both frames are ours, and both have these pages.
            unsafe {
                core::ptr::copy_nonoverlapping(
                    (from + at) as *const u8,
                    (to + at) as *mut u8,
                    run.len() * PAGE_SIZE,
                );
            }
        }
        self.clear_pages(frame, untouched, 0);
        g.frame = frame.0;
        self.frames.clear(other, true, self.staging());
        self.frames.put_empty(other);
        self.charge.uncharge(here.count());
        let base = self.frames.addr(frame) as *const u8;
        let src = |page| base.wrapping_add(page * PAGE_SIZE);
        if !self.keeps_folio(g) || !self.remember(pmd, g, pages, src) {
            self.forget_slots(pmd, g, pages);
        }
        self.bring_back(pmd, g, frame, PageMask::FULL);
        g.held = PageMask::EMPTY;
        g.huge = self.pagemap().is_huge(pmd.addr(), PMD_SIZE) != Ok(false);
        self.stats().thp_collapse_alloc.inc();
        true
    }
}
