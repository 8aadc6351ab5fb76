//! The way up: what reclaim has taken out of the program leaves memory. What of it must be written, and where to.

use super::{Frame, Memory, SwapCache, Taken};
use crate::device::Device;
use crate::mm::{Extents, PageMask, Pmd, SwapPlace, PMD_NR};
use crate::policy::{List, Sparse};
use crate::seal::{Mode, Nonce};
use crate::vma::{IoState, Range, RangeGuard};

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

/// A range on its way out: its frame, and what is to become of the pages there.
struct Leaving {
    frame: Frame,
    pages: PageMask,
    /// Those that have a slot.
    old: PageMask,
    zero: PageMask,
    /// What their slots hold is what they are.
    clean: PageMask,
    /// Pages of the range that were in memory.
    held: usize,
    sparse: Sparse,
}

impl Leaving {
    /// Some are elsewhere now, and none of the frame's any more.
    fn have_gone(&mut self, pages: PageMask) {
        self.pages = self.pages.minus(pages);
        self.clean = self.clean.minus(pages);
    }

    /// What has to be written.
    fn dirty(&self) -> PageMask {
        self.pages.minus(self.clean).minus(self.zero)
    }
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

impl<M: Memory> SwapCache<M> {
    /// What was taken out leaves for good.
    pub fn start_write(&self, taken: Taken, to: To, devices: &[Box<dyn Device>]) -> Start {
        let pmd = taken.pmd;
        let Some(r) = self.ranges.get(pmd) else {
            return Start::Active;
        };
        let (mut out, entry, list) = match self.begin_writing(taken, r) {
            Ok(begun) => begun,
            Err(start) => return start,
        };
        let all = out.pages;
        if let Err(start) = self.leave_unwritten(pmd, r, &mut out, to, list) {
            return start;
        }
        let (dirty, old) = (out.dirty(), out.old.and(out.pages));
        self.stats()
            .pswpout_again
            .add(dirty.and(old).count() as u64);
        // Without the lock, for the file system may have to find space. While `io` is Writing
        // nobody else gives the range a place or takes it away.
        let mut slots = Extents::new();
        let new = dirty.minus(self.rewritten(pmd, entry, dirty, old));
        let found = self.find_slots(new, devices, &mut slots);
        let mut g = r.lock();
        // Neither present nor swapped: they read as zeros, as if they had never been touched.
        self.forget_slots(pmd, &mut g, out.zero);
        if dirty.is_empty() {
            self.count_swapout(&out);
            self.end_writeback(pmd, g, PageMask::EMPTY);
            return Start::Clean;
        }
        let nonce = self.sealer.keys.nonce().filter(|_| found);
        let ready = nonce.is_some() && self.make_tags(pmd, &mut g);
        if !ready || !self.give_slots(pmd, &mut g, new, &slots) {
            // Where a part has found room, there is some.
            return match self.do_not_write(pmd, g, dirty, &slots) {
                Start::Full if out.pages != all => Start::Clean,
                start => start,
            };
        }
        // These slots hold neither the old nor the new until the write is done.
        g.swapped = g.swapped.minus(dirty);
        let nonce = nonce.unwrap_or_default();
        self.set_nonce(pmd, &mut g, dirty, nonce);
        self.count_swapout(&out);
        if slots.len() > 1 {
            self.stats().count_swpout_fallback(new.count());
        }
        Start::Write(Transfer {
            pmd,
            frame: out.frame,
            pages: dirty,
            entry: g.entry.unwrap_or(SwapPlace::SCATTERED),
            nonce,
            one_by_one: false,
        })
    }

    /// What leaves without a write: zeros, what is in its slot already, and what compressed memory takes.
    fn leave_unwritten(
        &self,
        pmd: Pmd,
        r: &Range,
        out: &mut Leaving,
        to: To,
        list: List,
    ) -> Result<(), Start> {
        out.zero = self.zero_pages(out.frame, out.pages);
        let sparse = (out.sparse).leaves(out.held, out.pages.count(), out.zero.count());
        if sparse != out.sparse {
            r.lock().sparse = sparse;
        }
        if !out.old.is_empty() {
            let old = out.old.minus(out.zero);
            out.clean = self.unchanged(pmd, r, out.frame, out.pages, old);
        }
        if to == To::Memory {
            match self.compress(pmd, r, out, list) {
                Compressed::Pages(gone) => out.have_gone(gone),
                Compressed::All => return Err(Start::Clean),
                Compressed::Wanted => return Err(Start::Active),
            }
        }
        Ok(())
    }

    /// From here on faults on the range wait for the reclaim thread, which can look at the frame without the lock.
    fn begin_writing(
        &self,
        taken: Taken,
        r: &Range,
    ) -> Result<(Leaving, Option<SwapPlace>, List), Start> {
        let mut g = r.lock();
        match g.io() {
            _ if !taken.is(&g) => return Err(Start::Active),
            IoState::Inactive => {}
            IoState::Held => return Err(Start::Busy),
            IoState::Filling if !g.in_frame().is_empty() => return Err(Start::Busy),
            _ => return Err(Start::Active),
        }
        self.forget_leaving(taken.pmd, &mut g);
        g.begin_writing();
        let out = Leaving {
            frame: Frame(g.buffer()),
            pages: g.moving(),
            old: g.moving().and(g.swapped),
            zero: PageMask::EMPTY,
            clean: PageMask::EMPTY,
            held: g.present.or(g.moving()).count(),
            sparse: g.sparse,
        };
        Ok((out, g.entry, g.list))
    }

    /// There is no place for `dirty`, or nothing to seal it with.
    fn do_not_write(
        &self,
        pmd: Pmd,
        mut g: RangeGuard<'_>,
        dirty: PageMask,
        slots: &Extents,
    ) -> Start {
        for e in slots.iter() {
            self.slots.free(e.entry, e.nr.into());
        }
        // Of no more use, and room for the next.
        self.forget_slots(pmd, &mut g, dirty);
        let all_back = dirty.minus(g.present).is_empty();
        self.end_writeback_unwritten(pmd, g);
        match all_back {
            true => Start::Active,
            false => Start::Full,
        }
    }

    /// Has pages of a range that is being written go to compressed memory, as far as they are admitted there.
    /// Of these the clean ones keep their slots.
    fn compress(&self, pmd: Pmd, r: &Range, out: &Leaving, list: List) -> Compressed {
        let frame = out.frame;
        let pages = out.pages.minus(out.zero);
        let mut handles = [None; PMD_NR];
        let stored = self.store(pmd, frame, pages, list, &mut handles);
        if stored.is_empty() {
            return Compressed::Pages(stored);
        }
        let mut g = r.lock();
        if g.is_wanted_back() {
            self.forget_stored(stored, &handles);
            self.end_writeback_unwritten(pmd, g);
            return Compressed::Wanted;
        }
        let stored = self.take_stored(pmd, &mut g, stored, &handles);
        // Their slots have something older.
        self.forget_slots(pmd, &mut g, stored.minus(out.clean));
        self.note_gone(&mut g, stored);
        if g.moving().is_empty() {
            self.retire(frame, stored, g.huge);
            g.huge = false;
            self.end_writing(pmd, g);
            return Compressed::All;
        }
        if !stored.is_empty() {
            g.huge = false;
            self.frames.drop_pages(frame, stored, &self.memory);
            self.charge.uncharge(stored.count());
        }
        Compressed::Pages(stored)
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

    fn count_swapout(&self, out: &Leaving) {
        self.stats().swap_clean.add(out.clean.count() as u64);
        self.stats().swpout_zero.add(out.zero.count() as u64);
        if out.pages.is_full() {
            self.stats().thp_swpout.inc();
        } else {
            self.stats().thp_swpout_fallback.inc();
        }
    }
}
