//! A range that is resident in part becomes one huge page when the rest has come in.
#![allow(unsafe_code)]

use super::frames::Left;
use super::{Busy, Dir, Frame, Memory, SwapCache};
use crate::mm::{PageMask, Pmd, PAGE_SIZE, PMD_NR, PMD_SIZE};
use crate::policy::Huge;
use crate::vma::RangeGuard;

/// Pages that were never touched, and are zeros in the huge page that is made of the others.
const COLLAPSE_UNTOUCHED: usize = PMD_NR / 8;

impl<M: Memory> SwapCache<M> {
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
        if !self.join(pmd, g, frame, untouched) {
            return false;
        }
        // All of it is in the frame, which a core file must know before the slots go.
        g.track(frame.0, PageMask::FULL);
        if !self.keeps_folio(g) {
            self.forget_slots(pmd, g, pages);
        }
        self.give_whole(pmd, g, frame);
        true
    }

    /// An inactive folio of which much was touched, but not all, goes back as one huge page, with what the
    /// program has of it by now. False where that cannot be done.
    pub(super) fn rejoin(&self, pmd: Pmd, g: &mut RangeGuard<'_>) -> bool {
        let frame = Frame(g.buffer());
        let fit = g.moving().is_full() && g.writable.is_full() && g.hints.huge != Huge::Unwanted;
        if !fit {
            return false;
        }
        let here = g.present;
        if !self.join(pmd, g, frame, PageMask::EMPTY) {
            // The frame's copies go: of what was dropped behind our back they would be wrong.
            g.leave_frame(here);
            g.huge = false;
            self.charge.uncharge(here.count());
            self.frames.drop_pages(frame, here, &self.memory);
            return false;
        }
        self.give_whole(pmd, g, frame);
        g.end();
        true
    }

    /// Takes what is resident of the range out of the program, to its places in the frame, and clears
    /// what is `untouched`. False, and nothing has changed, where that cannot be done.
    fn join(&self, pmd: Pmd, g: &mut RangeGuard<'_>, frame: Frame, untouched: PageMask) -> bool {
        let here = g.present;
        let Some(other) = self.take_empty_for_pieces() else {
            return false;
        };
        g.track(other.0, here);
        let out = self.move_until(Dir::Out, pmd, other, here, Busy::Stops);
        if out.moved != here {
            // Pages are shared, pinned, or were dropped.
            self.account_moved(pmd, g, &out);
            self.bring_back(pmd, g, other, out.moved);
            g.untrack();
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
        g.track(frame.0, here);
        self.empty(other, Left::Pieces);
        self.charge.uncharge(here.count());
        true
    }

    /// Moves the frame in, which has all pages of the range.
    fn give_whole(&self, pmd: Pmd, g: &mut RangeGuard<'_>, frame: Frame) {
        self.bring_back(pmd, g, frame, PageMask::FULL);
        g.untrack();
        g.huge = self.memory.is_huge(pmd.addr(), PMD_SIZE) != Some(false);
        self.stats().thp_collapse_alloc.inc();
    }
}
