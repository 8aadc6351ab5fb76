//! What the program does to its mappings, as far as pages are concerned.

use super::{Frame, SwapCache};
use crate::mm::{split_by_pmd, PageMask, Pmd, PAGE_SIZE};
use crate::sys::uffd::Refused;
use crate::sys::Errno;
use crate::vma::{IoState, RangeGuard};
use core::sync::atomic::Ordering::{Relaxed, Release};

impl SwapCache {
    /// The pages' contents are not needed any more. The range is settled.
    ///
    /// This runs in the program's threads, which have no descriptor of ours: nothing here may need
    /// a userfaultfd.
    pub fn discard(&self, pmd: Pmd, g: &mut RangeGuard<'_>, pages: PageMask) {
        match g.io() {
            IoState::Ahead => {
                self.drop_ahead(g);
            }
            IoState::Inactive => self.discard_inactive(g, pages),
            _ => {}
        }
        let present = g.present.and(pages);
        if !present.is_empty() {
            self.charge.uncharge(present.count());
            g.present = g.present.minus(pages);
            g.huge = false;
        }
        g.lost = g.lost.minus(pages);
        self.forget_slots(pmd, g, pages);
    }

    /// Drops pages that reclaim has taken out and not written yet.
    fn discard_inactive(&self, g: &mut RangeGuard<'_>, pages: PageMask) {
        let gone = g.moving.and(pages);
        if gone.is_empty() {
            return;
        }
        let frame = Frame(g.buffer);
        g.huge = false;
        g.moving = g.moving.minus(gone);
        self.charge.uncharge(gone.count());
        self.frames.drop_pages(frame, gone);
        if g.moving.is_empty() {
            self.frames.put_empty(frame);
            g.set_io(IoState::Idle);
        }
    }

    /// The range is to leave now, before it is its turn.
    pub fn page_out(&self, pmd: Pmd) {
        if self.cool(pmd) {
            self.asked.fetch_add(1, Relaxed);
        }
    }

    /// The range is to leave next; false if nothing of it can.
    pub fn cool(&self, pmd: Pmd) -> bool {
        let Some(r) = self.ranges.get(pmd) else {
            return false;
        };
        let g = r.lock();
        g.listed && self.lru.hasten(&self.ranges, pmd, g.list)
    }

    /// Pages that were resident before we knew of them; charged by the caller.
    pub fn adopt(&self, pmd: Pmd, g: &mut RangeGuard<'_>, pages: PageMask) {
        let new = pages.minus(g.present).minus(g.moving);
        self.charge.uncharge(pages.count() - new.count());
        self.became_present(pmd, g, new);
    }

    pub fn answer_doorbell(&self, page: usize) -> Result<(), Refused> {
        // SAFETY: the zero page is readable; the doorbell page is the engine's own.
        unsafe { self.program().copy(page, self.zeros.0, PAGE_SIZE) }
    }

    /// Moves contents, resident or swapped, to other addresses with the same place within 2 MiB.
    /// For mremap; called in the handler thread with none of its transfers in flight. EBUSY when
    /// a page cannot be moved: what was moved by then is at its new place, the caller copies the
    /// rest.
    /// `meanwhile` is called while a transfer of reclaim's is waited for.
    pub fn move_contents(
        &self,
        old: usize,
        new: usize,
        len: usize,
        meanwhile: &dyn Fn(),
    ) -> Result<(), Errno> {
        let delta = (new as i64 - old as i64) / crate::mm::PMD_SIZE as i64;
        for (from, part) in split_by_pmd(old, len) {
            let to = Pmd((from.0 as i64 + delta) as u32);
            let pages = PageMask::of(part);
            let Some(rf) = self.ranges.get(from) else {
                continue;
            };
            let rt = self.ranges.get_or_map(to)?;
            // Two ranges are locked here only. Reclaim ends its writes without us, but not if it
            // waits for a range that we hold: so neither is held while waiting for the other.
            let (mut f, mut t) = loop {
                let f = rf.lock();
                let t = rt.lock();
                if f.io().is_settled() && t.io().is_settled() {
                    break (f, t);
                }
                drop(t);
                drop(f);
                meanwhile();
                crate::sys::thread::pause();
            };
            self.contents_moved.fetch_add(1, Release);
            self.settle(from, &mut f);
            self.settle(to, &mut t);
            if f.io() != IoState::Idle || t.io() != IoState::Idle {
                return Err(Errno::EBUSY);
            }
            // What is lost here is lost there.
            let lost = f.lost.and(pages);
            self.poison(to, lost)?;
            t.lost = t.lost.or(lost);
            f.lost = f.lost.minus(lost);
            // The slots of resident pages stay behind: their checksums would.
            let resident = f.present.and(pages);
            self.forget_slots(from, &mut f, resident);
            if !t.swapped.and(pages).is_empty() {
                return Err(Errno::EBUSY);
            }
            let whole_before = f.huge;
            let present = f.present.and(pages);
            let moved = self.move_between(from, to, present);
            f.present = f.present.minus(moved);
            self.became_present(to, &mut t, moved);
            if moved.is_full() && whole_before {
                t.huge = true;
            }
            f.huge = false;
            if moved != present {
                return Err(Errno::EBUSY);
            }
            let swapped = f.swapped.and(pages);
            if !swapped.is_empty() && !self.move_slots((from, &mut f), (to, &mut t), swapped) {
                return Err(Errno::EBUSY);
            }
        }
        Ok(())
    }

    fn move_between(&self, from: Pmd, to: Pmd, pages: PageMask) -> PageMask {
        let mut moved = PageMask::EMPTY;
        if !self.abilities.mv {
            return moved;
        }
        for run in pages.runs() {
            let mut at = run.start;
            let mut tries = 0;
            while at < run.end {
                let n = run.end - at;
                // SAFETY: both ranges are locked and belong to the program.
                let r = unsafe {
                    let (dst, src) = (to.page_addr(at), from.page_addr(at));
                    self.mv(self.program(), dst, src, n * PAGE_SIZE)
                };
                let Err(e) = r else {
                    moved = moved.or(PageMask::of(at..run.end));
                    break;
                };
                let mut done = e.done() / PAGE_SIZE;
                match e {
                    Refused::Again { .. } | Refused::Busy { .. } if tries < 100 => tries += 1,
                    // Nothing there: zeros here and zeros there.
                    Refused::Hole { .. } => done += 1,
                    _ => return moved.or(PageMask::of(at..at + done)),
                }
                moved = moved.or(PageMask::of(at..at + done));
                at += done;
            }
        }
        moved
    }
}
