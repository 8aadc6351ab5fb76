//! A device is swapped off: what is there goes through a frame to another device, as `try_to_unuse`
//! of Linux would bring it in.

use super::frames::Left;
use super::slots::DeviceSet;
use super::{Frame, Memory, SwapCache, Taken, Transfer};
use crate::mm::{PageMask, Pmd, PAGE_SIZE, PMD_NR, PMD_SIZE};
use crate::seal::Nonce;
use crate::vma::{IoState, RangeGuard};

/// What there is to do about a range.
pub enum Leave {
    /// It has nothing on these devices.
    Nothing,
    /// Read the pages into the frame, then call `leave_done`.
    Read(Transfer),
    /// A transfer is in flight; look again.
    Later,
    /// Ask again with a ready frame.
    NeedFrame,
}

impl<M: Memory> SwapCache<M> {
    /// Pages of the range that have slots on the devices.
    fn pages_on(&self, pmd: Pmd, g: &RangeGuard<'_>, devices: DeviceSet) -> PageMask {
        let Some(place) = g.entry.filter(|_| !g.swapped.is_empty()) else {
            return PageMask::EMPTY;
        };
        let on = |first: crate::mm::SwapEntry| devices.has(first.device().index());
        if let Some(first) = place.first() {
            return if on(first) {
                g.swapped
            } else {
                PageMask::EMPTY
            };
        }
        let mut pages = PageMask::EMPTY;
        for piece in self.pieces(pmd, place, g.swapped) {
            if on(piece.entry) {
                pages = pages.or(PageMask::of(piece.pages));
            }
        }
        pages
    }

    /// Takes the range's pages from `devices`, which give no slots any more: the slots of resident
    /// pages are forgotten, the others are to be read. For the reclaim thread. A frame that was handed
    /// in is taken if it is needed.
    pub fn begin_leave(&self, pmd: Pmd, devices: DeviceSet, frame: &mut Option<Frame>) -> Leave {
        let Some(r) = self.ranges.get(pmd) else {
            return Leave::Nothing;
        };
        let mut g = r.lock();
        if !g.io().is_settled() {
            // Even if it has nothing there: it may be on its way.
            return Leave::Later;
        }
        let there = self.pages_on(pmd, &g, devices);
        if there.is_empty() {
            return Leave::Nothing;
        }
        self.settle(pmd, &mut g);
        self.drop_lazy(pmd, &mut g, there);
        let here = there.and(g.present.or(g.compressed));
        self.stats().swapoff_pages.add(here.count() as u64);
        self.forget_slots(pmd, &mut g, here);
        let pages = there.minus(here);
        let Some(entry) = g.entry.filter(|_| !pages.is_empty()) else {
            return Leave::Nothing;
        };
        let Some(fr) = frame.take() else {
            return Leave::NeedFrame;
        };
        g.begin_reading(fr.0, pages);
        Leave::Read(Transfer {
            pmd,
            frame: fr,
            pages,
            entry,
            nonce: Nonce::NONE,
            one_by_one: g.salvage,
        })
    }

    /// The read of `begin_leave` ended. What was read has no slots any more: the range is inactive, to be
    /// written like any other, and is returned; or it is back in the program, if somebody waited for
    /// it. Of what `failed` the single pages are read again, the next time, and after that they are
    /// lost.
    pub fn leave_done(&self, pmd: Pmd, failed: PageMask) -> Option<Taken> {
        let r = self.ranges.get(pmd)?;
        let place = |frame: u32, _: &PageMask, page: usize| {
            (self.frames.addr(Frame(frame)) + page * PAGE_SIZE) as *mut u8
        };
        let wrong = self.open(pmd, r, |moving| moving.minus(failed), place);
        if !wrong.is_empty() {
            self.stats().swap_read_errors.inc();
        }
        let failed = failed.or(wrong);
        let mut g = r.lock();
        let (frame, pages) = (Frame(g.buffer()), g.moving().minus(failed));
        self.stats().pswpin.add(pages.count() as u64);
        self.stats().count_swpin(pages.count());
        self.stats().swapoff_pages.add(pages.count() as u64);
        if g.salvage {
            self.lose(pmd, &mut g, failed);
        } else if !failed.is_empty() {
            g.salvage = true;
        }
        g.track(frame.0, pages);
        self.forget_slots(pmd, &mut g, pages);
        // The frame was ready as a whole.
        if pages.is_empty() {
            self.empty(frame, Left::Pieces);
        } else {
            self.frames
                .drop_pages(frame, PageMask::FULL.minus(pages), &self.memory);
        }
        self.charge.uncharge(PMD_NR - pages.count());
        g.huge = pages.is_full() && self.is_huge(frame);
        let wanted = g.take_wanted();
        if pages.is_empty() {
            g.end();
        } else {
            g.become_inactive(frame.0, pages);
            if wanted {
                self.settle(pmd, &mut g);
            }
        }
        let arrived = (g.io() == IoState::Inactive).then(|| Taken::of(pmd, &g));
        drop(g);
        if wanted {
            self.memory.wake(pmd.addr(), PMD_SIZE);
        }
        arrived
    }

    /// What is in the frame of an inactive range needs no slots on devices that leave.
    pub(super) fn forget_leaving(&self, pmd: Pmd, g: &mut RangeGuard<'_>) {
        let devices = self.slots.leaving();
        if !devices.is_empty() {
            let there = self.pages_on(pmd, g, devices).and(g.moving());
            self.stats().swapoff_pages.add(there.count() as u64);
            self.forget_slots(pmd, g, there);
        }
    }
}
