//! The way up ends: what was written is gone, and what could not be goes back to the program.

use super::frames::{For, Left};
use super::{Bytes, Dir, Frame, Memory, SwapCache, Taken, EXIT_LOST};
use crate::mm::{PageMask, Pmd, PMD_NR, PMD_SIZE};
use crate::policy::List;
use crate::vma::{IoState, RangeGuard};

impl<M: Memory> SwapCache<M> {
    /// Pages have left the program for good.
    pub(super) fn note_gone(&self, g: &mut RangeGuard<'_>, pages: PageMask) {
        if !pages.is_empty() {
            self.stats().pgsteal.add(pages.count() as u64);
            if g.list == List::Walk {
                self.stats().pgsteal_walk.add(pages.count() as u64);
            }
            g.fills.count = 0;
            g.credit.forget(pages);
            g.shadow = self.lru.evict(g.list, pages.count());
        }
    }

    /// There is no place for it: the program gets it back.
    pub(super) fn end_writeback_unwritten(&self, pmd: Pmd, mut g: RangeGuard<'_>) {
        self.bring_rest_back(pmd, &mut g);
        self.end_writing(pmd, g);
    }

    /// The frame's pages go back to the program, but for those that have.
    fn bring_rest_back(&self, pmd: Pmd, g: &mut RangeGuard<'_>) {
        let (frame, pages) = (Frame(g.buffer()), g.moving());
        let copied = pages.and(g.present);
        if !copied.is_empty() {
            g.huge = false;
        }
        self.bring_back_part(pmd, g, frame, pages.minus(copied), copied);
    }

    pub(super) fn end_writing(&self, pmd: Pmd, mut g: RangeGuard<'_>) {
        let wanted = g.take_wanted();
        g.end();
        drop(g);
        if wanted {
            self.memory.wake(pmd.addr(), PMD_SIZE);
        }
    }

    /// No frame holds pages of the range any more: what was read ahead is forgotten, what is
    /// inactive goes back to the program. No transfer is in flight.
    pub fn settle(&self, pmd: Pmd, g: &mut RangeGuard<'_>) {
        match g.io() {
            IoState::Ahead => {
                self.drop_ahead(g);
            }
            IoState::Inactive => {
                self.bring_rest_back(pmd, g);
                g.end();
            }
            _ => {}
        }
    }

    /// As `settle`, for a range that reclaim had made inactive.
    pub fn activate(&self, taken: Taken) {
        let pmd = taken.pmd;
        if let Some(r) = self.ranges.get(pmd) {
            let mut g = r.lock();
            if g.io() == IoState::Inactive {
                self.settle(pmd, &mut g);
            }
        }
    }

    /// The write of `pages` ended; of all but the `failed` ones every byte is known to be on the
    /// device.
    pub fn writeback_done(&self, pmd: Pmd, pages: PageMask, failed: PageMask) {
        let Some(r) = self.ranges.get(pmd) else {
            return;
        };
        let mut g = r.lock();
        let written = pages.minus(failed);
        self.stats().pswpout.add(written.count() as u64);
        // The slots of the failed ones are not to be tried again.
        g.swapped = g.swapped.or(pages);
        self.give_slots_up(pmd, &mut g, failed);
        self.end_writeback(pmd, g, failed);
    }

    /// The frame's pages are in their slots, but for the `failed` ones.
    pub(super) fn end_writeback(&self, pmd: Pmd, mut g: RangeGuard<'_>, failed: PageMask) {
        let (frame, pages) = (Frame(g.buffer()), g.moving());
        let copied = pages.and(g.present);
        let kept = failed.minus(copied);
        let gone = pages.minus(copied).minus(kept);
        if g.is_wanted_back() && failed.is_empty() {
            // Nothing of it was copied: a thread that wants the whole makes the others wait for it
            // too.
            self.stats().swap_cache_hit.inc();
            self.stats().writeback_copied.add(pages.count() as u64);
            if !self.keeps_folio(&g) {
                self.forget_slots(pmd, &mut g, pages);
            }
            self.bring_back(pmd, &mut g, frame, pages);
            return self.end_writing(pmd, g);
        }
        self.note_gone(&mut g, gone);
        self.stay(pmd, &mut g, frame, gone);
        // Before the frame's memory goes: a core file takes what is gone from its slots.
        g.leave_frame(pages.minus(kept));
        if kept.is_empty() {
            self.retire(frame, pages, g.huge);
            g.huge = false;
        } else {
            g.huge &= kept == pages;
            self.bring_back_part(pmd, &mut g, frame, kept, pages.minus(kept));
        }
        self.end_writing(pmd, g);
    }

    /// Puts pages that are in the frame back into the program.
    pub(super) fn bring_back(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        frame: Frame,
        pages: PageMask,
    ) {
        self.bring_back_part(pmd, g, frame, pages, PageMask::EMPTY);
    }

    /// As `bring_back`; the frame's other pages, `rest`, are not needed any more.
    fn bring_back_part(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        frame: Frame,
        pages: PageMask,
        rest: PageMask,
    ) {
        self.drop_page_table(pmd, g);
        let mut back = self.move_pages(Dir::In, pmd, frame, pages).moved;
        let left = pages.minus(back);
        if !left.is_empty() {
            // The program's mapping changed: copy what cannot be moved.
            back = back.or(self.copy_in(pmd, left, self.frames.addr(frame) as *const u8));
            let lost = left.minus(back).minus(g.swapped);
            if !lost.is_empty() && self.memory.is_mapped(pmd.addr(), PMD_NR) {
                // The range is mapped, and the kernel took the pages back in no way.
                self.charge.log(
                    "pages could not be given back to the program, which has no memory left: ending it",
                );
                crate::sys::thread::exit_group(EXIT_LOST);
            }
        }
        match left.is_empty() && rest.is_empty() {
            true => self.frames.put_empty(frame),
            false => self.empty(frame, Left::Pieces),
        }
        self.became_present(pmd, g, back);
        // What has no mapping any more to go back to is still in its slot, or nobody's.
        self.charge.uncharge(pages.or(rest).minus(back).count());
    }

    /// The frame's pages are on the device: use the frame again, or give its memory back.
    pub(super) fn retire(&self, frame: Frame, pages: PageMask, huge: bool) {
        // Asked after the pages were moved out: a call that could keep a hold of them switches
        // recycling off before it takes effect.
        let whole = pages.is_full() && huge;
        let again = whole && self.charge.control.may_recycle() && self.charge.room() >= 0;
        // Base pages would stay base pages, and their page table take the next folio apart.
        if again && self.is_huge(frame) {
            self.stats().folio_recycled.inc();
            self.frames.put_ready(frame, Bytes::Old);
            return;
        }
        self.stats().folio_freed.inc();
        let left = match whole && !again {
            true => Left::Folio,
            false => Left::Pieces,
        };
        self.empty(frame, left);
        self.charge.uncharge(pages.count());
    }

    /// Gives a ready frame back to the kernel; false when there is none.
    pub fn release_ready(&self) -> bool {
        let Some((frame, _)) = self.frames.take_ready(Bytes::Old) else {
            return false;
        };
        self.empty(frame, Left::Folio);
        self.charge.uncharge(PMD_NR);
        true
    }

    /// An empty frame for pieces, if need be another.
    pub(super) fn take_empty_for_pieces(&self) -> Option<Frame> {
        let empty = self.frames.take_empty(For::Pieces);
        empty.or_else(|| self.frames.take_empty(For::Folio))
    }

    /// The frame's memory goes back to the kernel.
    pub(super) fn empty(&self, frame: Frame, left: Left) {
        self.frames.clear(frame, left, &self.memory);
        self.frames.put_empty(frame);
    }

    /// A ready frame, which is made if the limit allows it.
    pub fn ready_within_limit(&self) -> Option<Frame> {
        match self.frames.take_ready(Bytes::Old) {
            Some((frame, _)) => Some(frame),
            None => self.prepare_ready(),
        }
    }

    /// Makes a ready frame if the limit allows it.
    pub fn prepare_ready(&self) -> Option<Frame> {
        self.charge.try_charge(PMD_NR).then(|| self.populate())?
    }

    /// As `prepare_ready`, for a fault: also if nothing can be done about the limit.
    pub fn prepare_for_fault(&self) -> Option<Frame> {
        self.charge_for_fault(PMD_NR).then(|| self.populate())?
    }

    /// An empty frame becomes one that is ready, zeroed; it is charged. None, and it is not, if there is none.
    fn populate(&self) -> Option<Frame> {
        let Some(frame) = self.frames.take_empty(For::Folio) else {
            self.charge.uncharge(PMD_NR);
            return None;
        };
        if self.frames.populate(frame, &self.memory).is_err() {
            self.empty(frame, Left::Pieces);
            self.charge.uncharge(PMD_NR);
            return None;
        }
        Some(frame)
    }
}
