//! The way up: a range leaves memory.

use super::{Dir, Frame, Moved, SwapCache};
use crate::device::Device;
use crate::mm::{Extents, PageMask, Pmd, SwapPlace, PAGE_SIZE, PMD_NR, PMD_SIZE};
use crate::policy::List;
use crate::seal::{Mode, Nonce};
use crate::sys::{mem, Errno};
use crate::vma::{IoState, Range, RangeGuard};
use core::sync::atomic::Ordering::Relaxed;

/// Pages that are copied out at a time, where they cannot be moved.
const COPY_MAX: usize = 64;

/// A transfer to be carried out between `pages` of the frame and their slots, which `pieces` tells.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    pub pmd: Pmd,
    pub frame: Frame,
    pub pages: PageMask,
    pub entry: SwapPlace,
    /// What they are sealed with, of a write.
    pub nonce: Nonce,
    /// In requests of one page.
    pub one_by_one: bool,
}

/// What came of trying to evict a range.
///
/// Pages leave by UFFDIO_MOVE, which refuses pages that something holds for I/O. Without it (before
/// Linux 6.8) they are protected against writing, copied, and dropped with MADV_DONTNEED. But
/// protection stops only who comes through the page table. Whoever pinned the page before (a direct
/// read in flight, buffers registered with io_uring or a device) goes on writing into the page
/// that was dropped, and the program never sees the data; and user space cannot see a pin. So pages are
/// copied out only as long as the run's guard (`run/zero_copy.rs`) has seen no call by which
/// the program could have pinned any. The guard is asked after the pages are protected: whoever is
/// let through afterwards must fault on a protected page first, and waits.
pub enum Victim {
    /// Its pages are in a frame, out of the program's reach; see `start_write`.
    Inactive,
    /// Nothing to do here, now.
    Skip,
    /// All frames are in use; finish some writes first.
    NoFrame,
}

/// What came of an inactive range.
pub enum Start {
    /// Carry the write out, then call `writeback_done`.
    Write(Transfer),
    /// It left without a write: every page was clean.
    Clean,
    /// It became active again meanwhile.
    Active,
    /// One of its other pages is being read, or a hook holds it; try again later.
    Busy,
    /// No place in swap: it is back in the program.
    Full,
}

/// Where pages may leave to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// Compressed memory, or else a device.
    Memory,
    Device,
}

/// What became of pages that could go to compressed memory.
enum Compressed {
    /// These did.
    Pages(PageMask),
    /// All did, and the range is at rest.
    All,
    /// The program wanted the whole range back meanwhile, and has it.
    Wanted,
}

impl SwapCache {
    /// Takes pages of a range (popped from the LRU list) out of the program: a folio as a whole, of others
    /// those whose turn it is. Whoever touches one before it is written gets it back at once: that is the
    /// second chance.
    pub fn deactivate(&self, pmd: Pmd) -> Victim {
        let Some(r) = self.ranges.get(pmd) else {
            return Victim::Skip;
        };
        let mut g = r.lock();
        g.listed = false;
        self.stats().pgscan.inc();
        let (out, mut g) = self.try_deactivate(pmd, r, g);
        // Whatever stays resident stays on the list.
        self.became_present(pmd, &mut g, PageMask::EMPTY);
        let wanted = g.io() == IoState::Idle && core::mem::take(&mut g.wanted);
        drop(g);
        if wanted {
            self.program().wake(pmd.addr(), PMD_SIZE);
        }
        out
    }

    fn try_deactivate<'r>(
        &self,
        pmd: Pmd,
        r: &'r Range,
        mut g: RangeGuard<'r>,
    ) -> (Victim, RangeGuard<'r>) {
        let mut pages = g.present.and(g.writable);
        let all = core::mem::take(&mut g.asked) || g.huge || g.list == List::Walk;
        if !all && g.io() == IoState::Idle {
            pages = g.credit.take(pages);
        }
        if g.io() != IoState::Idle || pages.is_empty() || !self.can_take() {
            return (Victim::Skip, g);
        }
        if self.full.load(Relaxed) && !pages.minus(g.swapped).is_empty() {
            return (Victim::Skip, g);
        }
        let Some(frame) = self.frames.take_empty() else {
            return (Victim::NoFrame, g);
        };
        let whole = g.is_whole();
        g.held = pages;
        g.frame = frame.0;
        let mut out = if self.abilities.mv {
            self.move_until(Dir::Out, pmd, frame, pages, true)
        } else {
            // Faults on the range wait meanwhile, ours too, should a page have been dropped.
            g.set_io(IoState::Leaving);
            drop(g);
            let out = self.copy_out(pmd, frame, pages);
            g = r.lock();
            g.set_io(IoState::Idle);
            out
        };
        if out.busy {
            self.account_moved(pmd, &mut g, &out);
            let left = g.present.and(pages);
            // Faults on the range wait while this goes on without the lock: should the program
            // have dropped a page behind our back, the handler must be able to serve us.
            g.set_io(IoState::Leaving);
            drop(g);
            self.unshare(pmd, left);
            g = r.lock();
            g.set_io(IoState::Idle);
            pages = left;
            let more = self.move_pages(Dir::Out, pmd, frame, pages);
            self.account_moved(pmd, &mut g, &more);
            out.moved = out.moved.or(more.moved);
        } else {
            self.account_moved(pmd, &mut g, &out);
        }
        g.moving = PageMask::EMPTY;
        if out.moved.is_empty() {
            g.held = PageMask::EMPTY;
            self.frames.put_empty(frame);
            return (Victim::Skip, g);
        }
        if !(whole && out.moved.is_full()) {
            g.huge = false;
        }
        g.moving = out.moved;
        g.buffer = frame.0;
        g.set_io(IoState::Inactive);
        g.held = PageMask::EMPTY;
        if g.wanted {
            // Touched while it was being unshared.
            self.settle(pmd, &mut g);
            return (Victim::Skip, g);
        }
        (Victim::Inactive, g)
    }

    /// Pages of an inactive range that have not come back.
    pub fn staged(&self, pmd: Pmd) -> usize {
        self.ranges.get(pmd).map_or(0, |r| {
            let g = r.lock();
            match g.io() {
                IoState::Inactive => g.moving.minus(g.present).count(),
                IoState::Filling => g.held.minus(g.present).count(),
                _ => 0,
            }
        })
    }

    /// Whether pages of the program can be taken out without losing what is written to them.
    pub fn can_take(&self) -> bool {
        self.abilities.mv || self.charge.control.may_recycle()
    }

    /// Copies pages to the frame and drops them. The caller keeps everybody else from the range.
    fn copy_out(&self, pmd: Pmd, frame: Frame, pages: PageMask) -> Moved {
        let mut out = Moved::default();
        // So much is there twice for a moment.
        self.charge.charge(COPY_MAX);
        for run in pages.runs() {
            let mut at = run.start;
            let mut step = COPY_MAX;
            while at < run.end {
                let part = at..run.end.min(at + step);
                match self.copy_part_out(pmd, frame, &part) {
                    Ok(()) => out.moved = out.moved.or(PageMask::of(part.clone())),
                    Err(_) if part.len() > 1 => {
                        step = 1;
                        continue;
                    }
                    // Not mapped any more: a child has not all that its parent has.
                    Err(Errno::ENOENT | Errno(libc::EFAULT)) => {
                        self.stats().move_hole.inc();
                        out.holes = out.holes.or(PageMask::of(part.clone()));
                    }
                    Err(_) => {}
                }
                at = part.end;
            }
        }
        self.charge.uncharge(COPY_MAX);
        if out.moved.is_empty() {
            self.frames.clear(frame, true, self.staging());
        } else {
            self.frames.drop_pages(frame, pages.minus(out.moved));
        }
        out
    }

    fn copy_part_out(
        &self,
        pmd: Pmd,
        frame: Frame,
        part: &core::ops::Range<usize>,
    ) -> Result<(), Errno> {
        let (at, len) = (pmd.page_addr(part.start), part.len() * PAGE_SIZE);
        let to = (self.frames.addr(frame) + part.start * PAGE_SIZE) as *mut u8;
        let protect = |on: bool| self.program().write_protect(at, len, on);
        let gone = protect(true).and_then(|()| {
            // Asked when nobody can write any more.
            if !self.can_take() {
                return Err(Errno::EBUSY);
            }
            // SAFETY: the frame is ours.
            unsafe { mem::copy_from_program(at, to, len) }?;
            // SAFETY: all of the pages were copied.
            unsafe { mem::madvise(at, len, libc::MADV_DONTNEED) }.inspect_err(|_| {
                // Some of them may be gone all the same: they come back, the others are there.
                let frame = self.frames.addr(frame) as *const u8;
                self.copy_in(pmd, PageMask::of(part.clone()), frame);
            })
        });
        if gone.is_err() {
            let _ = protect(false);
        }
        gone
    }

    pub(super) fn account_moved(&self, pmd: Pmd, g: &mut RangeGuard<'_>, out: &Moved) {
        // What was dropped reads as zeros, not as what its slot still has.
        self.forget_slots(pmd, g, out.holes);
        g.present = g.present.minus(out.holes).minus(out.moved);
        self.charge.uncharge(out.holes.count());
    }

    /// Makes pages this process's own that it shares since a fork, as a write to them would:
    /// UFFDIO_MOVE takes only such. Pages that are pinned stay so, and are refused again.
    fn unshare(&self, pmd: Pmd, pages: PageMask) {
        const MADV_POPULATE_WRITE: i32 = 23;
        self.stats().pgunshare.add(pages.count() as u64);
        for run in pages.runs() {
            // SAFETY: contents do not change; a page that is missing is served by the handler.
            let _ = unsafe {
                mem::madvise(
                    pmd.page_addr(run.start),
                    run.len() * PAGE_SIZE,
                    MADV_POPULATE_WRITE,
                )
            };
        }
    }

    /// An inactive range leaves for good.
    pub fn start_write(&self, pmd: Pmd, to: To, devices: &[Box<dyn Device>]) -> Start {
        let Some(r) = self.ranges.get(pmd) else {
            return Start::Active;
        };
        let mut g = r.lock();
        if g.io() == IoState::Filling && !g.held.is_empty() || g.io() == IoState::Held {
            return Start::Busy;
        }
        if g.io() != IoState::Inactive {
            return Start::Active;
        }
        self.forget_leaving(pmd, &mut g);
        let (frame, mut pages, old) = (Frame(g.buffer), g.moving, g.moving.and(g.swapped));
        let (entry, list) = (g.entry, g.list);
        // From here on faults wait for us, and the frame can be looked at without the lock.
        g.set_io(IoState::Writing);
        drop(g);
        let zero = self.zero_pages(frame, pages);
        let mut clean = if old.is_empty() {
            PageMask::EMPTY
        } else {
            self.unchanged(pmd, r, frame, pages, old.minus(zero))
        };
        if to == To::Memory {
            match self.compress(pmd, r, frame, pages.minus(zero), clean, list) {
                Compressed::Pages(gone) => {
                    pages = pages.minus(gone);
                    clean = clean.minus(gone);
                }
                Compressed::All => return Start::Clean,
                Compressed::Wanted => return Start::Active,
            }
        }
        let old = old.and(pages);
        let dirty = pages.minus(clean).minus(zero);
        self.stats()
            .pswpout_again
            .add(dirty.and(old).count() as u64);
        // Without the lock, for the file system may have to find space. While `io` is Writing
        // nobody else gives the range a place or takes it away.
        let mut slots = Extents::new();
        let again = self.rewritten(pmd, entry, dirty, old);
        let found = self.find_slots(dirty.minus(again), devices, &mut slots);
        let mut g = r.lock();
        // Neither present nor swapped: they read as zeros, as if they had never been touched.
        self.forget_slots(pmd, &mut g, zero);
        if dirty.is_empty() {
            self.count_swapout(pages, clean, zero);
            self.end_writeback(pmd, g, PageMask::EMPTY);
            return Start::Clean;
        }
        let nonce = self.sealer.keys.nonce();
        let found = found && nonce.is_some() && self.make_tags(pmd, &mut g);
        if !found || !self.give_slots(pmd, &mut g, dirty.minus(again), &slots) {
            for e in slots.iter() {
                self.slots.free(e.entry, e.nr.into());
            }
            // Of no more use, and room for the next.
            self.forget_slots(pmd, &mut g, dirty);
            let all_back = dirty.minus(g.present).is_empty();
            self.end_writeback_unwritten(pmd, g);
            return match all_back {
                true => Start::Active,
                false => Start::Full,
            };
        }
        // These slots hold neither the old nor the new until the write is done.
        g.swapped = g.swapped.minus(dirty);
        let nonce = nonce.unwrap_or_default();
        self.set_nonce(pmd, &mut g, dirty, nonce);
        self.count_swapout(pages, clean, zero);
        if slots.len() > 1 {
            let together = dirty.minus(again).count();
            self.stats().count_swpout_fallback(together);
        }
        let entry = g.entry.unwrap_or(SwapPlace::SCATTERED);
        drop(g);
        Start::Write(Transfer {
            pmd,
            frame,
            pages: dirty,
            entry,
            nonce,
            one_by_one: false,
        })
    }

    /// Has pages of a range that is being written go to compressed memory, as far as they are admitted there.
    /// Of these the `clean` ones keep their slots.
    fn compress(
        &self,
        pmd: Pmd,
        r: &Range,
        frame: Frame,
        pages: PageMask,
        clean: PageMask,
        list: List,
    ) -> Compressed {
        let mut handles = [0; PMD_NR];
        let stored = self.store(pmd, frame, pages, list, &mut handles);
        if stored.is_empty() {
            return Compressed::Pages(stored);
        }
        let mut g = r.lock();
        if g.back {
            self.forget_stored(stored, &handles);
            self.end_writeback_unwritten(pmd, g);
            return Compressed::Wanted;
        }
        let stored = self.take_stored(pmd, &mut g, stored, &handles);
        // Their slots have something older.
        self.forget_slots(pmd, &mut g, stored.minus(clean));
        self.note_gone(&mut g, stored);
        if g.moving.is_empty() {
            self.retire(frame, stored, g.huge);
            g.huge = false;
            self.end_writing(pmd, g);
            return Compressed::All;
        }
        if !stored.is_empty() {
            g.huge = false;
            self.frames.drop_pages(frame, stored);
            self.charge.uncharge(stored.count());
        }
        Compressed::Pages(stored)
    }

    /// Pages have left the program for good.
    fn note_gone(&self, g: &mut RangeGuard<'_>, pages: PageMask) {
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

    /// Of `dirty`, the pages to be written to the slots that they have had, which are among `old`:
    /// where nobody else may read these, and it takes no more requests than elsewhere.
    fn rewritten(
        &self,
        pmd: Pmd,
        entry: Option<SwapPlace>,
        dirty: PageMask,
        old: PageMask,
    ) -> PageMask {
        let had = dirty.and(old);
        let Some(entry) = entry.filter(|_| !had.is_empty()) else {
            return PageMask::EMPTY;
        };
        let scattered = entry.first().is_none();
        if scattered && dirty.is_full() {
            // A folio belongs in one piece.
            return PageMask::EMPTY;
        }
        let mut again = PageMask::EMPTY;
        for piece in self.pieces(pmd, entry, had) {
            if self.slots.is_own(piece.entry, piece.pages.len()) {
                again = again.or(PageMask::of(piece.pages));
            }
        }
        // New slots are neighbours.
        let packed = self.sealer.mode == Mode::Encrypt;
        let requests = self.pieces(pmd, entry, again).joined(packed).count();
        let new = if packed { 1 } else { had.runs().count() };
        if scattered && requests > 2 * new + 2 {
            return PageMask::EMPTY;
        }
        again
    }

    /// New slots for `pages`, if need be those of resident pages.
    fn find_slots(&self, pages: PageMask, devices: &[Box<dyn Device>], out: &mut Extents) -> bool {
        let mut alloc = || {
            self.slots
                .alloc(pages.count(), &self.charge, devices, out)
                .is_ok()
        };
        if devices.is_empty() {
            return pages.is_empty();
        }
        pages.is_empty() || alloc() || self.forget_kept_slots() && alloc()
    }

    /// Gives pages of a range that is being written new slots in place of those that they may have.
    /// False, and nothing has changed, where there is no memory for a table of them.
    fn give_slots(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        pages: PageMask,
        slots: &Extents,
    ) -> bool {
        if pages.is_empty() {
            return true;
        }
        if pages.is_full() && slots.len() == 1 {
            self.forget_slots(pmd, g, pages);
            g.entry = slots.first().map(|e| SwapPlace::cluster(e.entry));
            return true;
        }
        if !self.scatter(pmd, g) {
            return false;
        }
        self.forget_slots(pmd, g, pages);
        g.entry = Some(SwapPlace::SCATTERED);
        self.name_slots(pmd, pages, slots);
        true
    }

    fn count_swapout(&self, pages: PageMask, clean: PageMask, zero: PageMask) {
        self.stats().swap_clean.add(clean.count() as u64);
        self.stats().swpout_zero.add(zero.count() as u64);
        if pages.is_full() {
            self.stats().thp_swpout.inc();
        } else {
            self.stats().thp_swpout_fallback.inc();
        }
    }

    /// There is no place for it: the program gets it back.
    fn end_writeback_unwritten(&self, pmd: Pmd, mut g: RangeGuard<'_>) {
        self.bring_rest_back(pmd, &mut g);
        self.end_writing(pmd, g);
    }

    /// The frame's pages go back to the program, but for those that have.
    fn bring_rest_back(&self, pmd: Pmd, g: &mut RangeGuard<'_>) {
        let (frame, pages) = (Frame(g.buffer), g.moving);
        let copied = pages.and(g.present);
        if !copied.is_empty() {
            g.huge = false;
        }
        self.bring_back_part(pmd, g, frame, pages.minus(copied), copied);
    }

    fn end_writing(&self, pmd: Pmd, mut g: RangeGuard<'_>) {
        g.moving = PageMask::EMPTY;
        g.back = false;
        let wanted = core::mem::take(&mut g.wanted);
        g.set_io(IoState::Idle);
        drop(g);
        if wanted {
            self.program().wake(pmd.addr(), PMD_SIZE);
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
                g.moving = PageMask::EMPTY;
                g.set_io(IoState::Idle);
            }
            _ => {}
        }
    }

    /// As `settle`, for a range that reclaim had made inactive.
    pub fn activate(&self, pmd: Pmd) {
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
    fn end_writeback(&self, pmd: Pmd, mut g: RangeGuard<'_>, failed: PageMask) {
        let (frame, pages) = (Frame(g.buffer), g.moving);
        let copied = pages.and(g.present);
        let kept = failed.minus(copied);
        let gone = pages.minus(copied).minus(kept);
        if g.back && failed.is_empty() {
            // Nothing of it was copied: who wants the whole makes the others wait for it too.
            self.stats().swap_cache_hit.inc();
            self.stats().writeback_copied.add(pages.count() as u64);
            if !self.keeps_folio(&g) {
                self.forget_slots(pmd, &mut g, pages);
            }
            self.bring_back(pmd, &mut g, frame, pages);
            return self.end_writing(pmd, g);
        }
        self.note_gone(&mut g, gone);
        if kept.is_empty() {
            self.retire(frame, pages, g.huge);
            g.huge = false;
        } else {
            g.huge &= kept == pages;
            (g.held, g.frame) = (kept, frame.0);
            self.bring_back_part(pmd, &mut g, frame, kept, pages.minus(kept));
            g.held = PageMask::EMPTY;
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
            if !lost.is_empty() && mem::resident(pmd.addr(), PMD_NR).is_ok() {
                // The range is mapped, and the kernel took the pages back in no way.
                self.charge.log(
                    "pages could not be given back to the program, which has no memory left: ending it",
                );
                crate::sys::thread::exit_group(super::EXIT_LOST);
            }
        }
        if !left.is_empty() || !rest.is_empty() {
            self.frames.clear(frame, true, self.staging());
        }
        self.frames.put_empty(frame);
        self.became_present(pmd, g, back);
        // What has no mapping any more to go back to is still in its slot, or nobody's.
        self.charge.uncharge(pages.or(rest).minus(back).count());
    }

    /// The frame's pages are on the device: use the frame again, or give its memory back.
    fn retire(&self, frame: Frame, pages: PageMask, huge: bool) {
        // Asked after the pages were moved out: a call that could keep a hold of them switches
        // recycling off before it takes effect.
        let whole = pages.is_full() && huge;
        let again = whole && self.charge.control.may_recycle() && self.charge.room() >= 0;
        // Base pages would stay base pages, and their page table take the next folio apart.
        if again && self.is_huge(frame) {
            self.stats().folio_recycled.inc();
            self.frames.put_ready(frame, false);
            return;
        }
        self.stats().folio_freed.inc();
        self.frames.clear(frame, !whole || again, self.staging());
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

    /// Makes a ready frame if the limit allows it (`fault`: or if nothing can be done about it).
    pub fn prepare_ready(&self, fault: bool) -> Option<Frame> {
        let charged = match fault {
            true => self.charge_for_fault(PMD_NR),
            false => self.charge.try_charge(PMD_NR),
        };
        if !charged {
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
