//! The way up: a range leaves memory.

use super::{Dir, Frame, SwapCache};
use crate::device::Device;
use crate::mm::{PageMask, Pmd, SwapEntry, PMD_NR, PMD_SIZE};
use crate::vma::{IoState, RangeGuard};
use core::sync::atomic::Ordering::Relaxed;

/// A write to be carried out: `pages` of the frame to the same slots of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Writeback {
    pub pmd: Pmd,
    pub frame: Frame,
    pub pages: PageMask,
    pub entry: SwapEntry,
}

/// What came of trying to evict a range.
pub enum Victim {
    /// Its pages are in the frame; write them, then call `writeback_done`.
    Write(Writeback),
    /// Nothing to do here, now.
    Skip,
    /// No place in swap.
    Full,
    /// All frames are in use; finish some writes first.
    NoFrame,
}

impl SwapCache {
    /// Takes the resident pages of a range (popped from the LRU list) out of the program.
    pub fn begin_writeback(&self, pmd: Pmd, devices: &[Box<dyn Device>]) -> Victim {
        let Some(r) = self.ranges.get(pmd) else {
            return Victim::Skip;
        };
        let mut g = r.lock();
        g.listed = false;
        self.stats().pgscan.inc();
        let out = self.try_begin(pmd, &mut g, devices);
        // Whatever stays resident stays on the list.
        self.became_present(pmd, &mut g, PageMask::EMPTY);
        out
    }

    fn try_begin(&self, pmd: Pmd, g: &mut RangeGuard<'_>, devices: &[Box<dyn Device>]) -> Victim {
        let pages = g.present.and(g.writable);
        if g.io() != IoState::Idle || pages.is_empty() || !self.abilities.mv {
            return Victim::Skip;
        }
        let entry = match g.entry {
            Some(e) if self.clusters.is_writable(e) => e,
            // Another process reads this cluster too; it is let go when its last page comes in.
            Some(_) => return Victim::Skip,
            None => match self.clusters.alloc(&self.charge, devices) {
                Ok(e) => e,
                Err(_) => return Victim::Full,
            },
        };
        let Some(frame) = self.frames.take_empty() else {
            if g.entry.is_none() {
                self.clusters.free(entry);
            }
            return Victim::NoFrame;
        };
        let whole = g.is_whole();
        let out = self.move_pages(Dir::Out, pmd, frame, pages);
        g.present = g.present.minus(out.holes);
        self.charge.uncharge(out.holes.count());
        if out.moved.is_empty() {
            if g.entry.is_none() {
                self.clusters.free(entry);
            }
            self.frames.put_empty(frame);
            return Victim::Skip;
        }
        if whole && out.moved.is_full() {
            self.stats().thp_swpout.inc();
        } else {
            self.stats().thp_swpout_fallback.inc();
            g.huge = false;
        }
        g.present = g.present.minus(out.moved);
        g.moving = out.moved;
        g.entry = Some(entry);
        g.buffer = frame.0;
        g.set_io(IoState::Writing);
        Victim::Write(Writeback {
            pmd,
            frame,
            pages: out.moved,
            entry,
        })
    }

    /// The write ended; `ok` only if every byte of every page is known to be on the device.
    pub fn writeback_done(&self, pmd: Pmd, ok: bool) {
        let Some(r) = self.ranges.get(pmd) else {
            return;
        };
        let mut g = r.lock();
        let (frame, pages) = (Frame(g.buffer), g.moving);
        g.moving = PageMask::EMPTY;
        if ok {
            self.stats().pswpout.add(pages.count() as u64);
        } else {
            self.stats().swap_write_errors.inc();
        }
        if !ok || g.wanted {
            self.bring_back(pmd, &mut g, frame, pages, ok);
        } else {
            g.swapped = g.swapped.or(pages);
            self.stats().pgsteal.add(pages.count() as u64);
            self.retire(frame, pages, g.huge);
        }
        if g.present.is_empty() {
            g.huge = false;
        }
        let wanted = core::mem::take(&mut g.wanted);
        g.set_io(IoState::Idle);
        drop(g);
        if wanted {
            self.program().wake(pmd.addr(), PMD_SIZE);
        }
    }

    /// Puts pages that are still in the frame back into the program: somebody wants them, or
    /// they could not be written.
    fn bring_back(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        frame: Frame,
        pages: PageMask,
        written: bool,
    ) {
        self.drop_page_table(pmd, g);
        let mut back = self.move_pages(Dir::In, pmd, frame, pages).moved;
        let left = pages.minus(back);
        if !left.is_empty() {
            // The program's mapping changed: copy what cannot be moved.
            back = back.or(self.copy_in(pmd, left, self.frames.addr(frame) as *const u8));
        }
        let lost = pages.minus(back);
        self.became_present(pmd, g, back);
        if written {
            self.stats().swap_cache_hit.inc();
            g.swapped = g.swapped.or(lost);
            self.charge.uncharge(lost.count());
        } else if !lost.is_empty() {
            // Not on the device, and the program has no mapping to put it back into.
            self.stats().pages_poisoned.add(lost.count() as u64);
            self.charge.uncharge(lost.count());
        }
        if !left.is_empty() {
            self.frames.clear(frame, true, self.staging());
        }
        self.frames.put_empty(frame);
        if g.swapped.is_empty() {
            if let Some(e) = g.entry.take() {
                if written {
                    self.clusters.free(e);
                } else {
                    self.clusters.mark_bad(e);
                }
            }
        }
    }

    /// The frame's pages are on the device: use the frame again, or give its memory back.
    fn retire(&self, frame: Frame, pages: PageMask, huge: bool) {
        // Asked after the pages were moved out: a call that could keep a hold of them switches
        // recycling off before it takes effect.
        let whole = pages.is_full() && huge;
        if whole && self.recycle.load(Relaxed) && self.charge.room() >= 0 {
            self.stats().folio_recycled.inc();
            self.frames.put_ready(frame, false);
            return;
        }
        self.stats().folio_freed.inc();
        self.frames.clear(frame, !whole, self.staging());
        self.frames.put_empty(frame);
        self.charge.uncharge(pages.count());
    }

    /// Gives a ready frame back to the kernel; false when there is none.
    pub fn release_ready(&self) -> bool {
        let Some((frame, _)) = self.frames.take_ready(false) else {
            return false;
        };
        self.frames.clear(frame, false, self.staging());
        self.frames.put_empty(frame);
        self.charge.uncharge(PMD_NR);
        true
    }

    /// Makes a ready frame if the limit allows it (`force`: whatever the limit).
    pub fn prepare_ready(&self, force: bool) -> Option<Frame> {
        if force {
            self.charge.charge(PMD_NR);
        } else if !self.charge.try_charge(PMD_NR) {
            return None;
        }
        let Some(frame) = self.frames.take_empty() else {
            self.charge.uncharge(PMD_NR);
            return None;
        };
        if self.frames.populate(frame).is_err() {
            self.frames.clear(frame, true, self.staging());
            self.frames.put_empty(frame);
            self.charge.uncharge(PMD_NR);
            return None;
        }
        Some(frame)
    }
}
