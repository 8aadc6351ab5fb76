//! What the program does to its mappings, as far as pages are concerned.

use super::{Dir, Frame, Memory, SwapCache};
use crate::mm::{
    page_in_pmd, Extent, Extents, PageMask, Pmd, SwapPlace, PAGE_SIZE, PMD_NR, PMD_SIZE,
};
use crate::seal::Nonce;
use crate::sys::uffd::Refused;
use crate::sys::Errno;
use crate::vma::{IoState, RangeGuard};
use core::sync::atomic::Ordering::Relaxed;

impl<M: Memory> SwapCache<M> {
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
        self.not_lazy(g, pages);
        self.drop_compressed(pmd, g, pages);
        self.forget_slots(pmd, g, pages);
    }

    /// Drops pages that reclaim has taken out and not written yet.
    fn discard_inactive(&self, g: &mut RangeGuard<'_>, pages: PageMask) {
        if g.moving().and(pages).is_empty() {
            return;
        }
        // It is not huge any more: what has come back needs no place in the frame.
        let gone = g.moving().and(pages.or(g.present));
        let frame = Frame(g.buffer());
        g.huge = false;
        g.leave_frame(gone);
        self.charge.uncharge(gone.count());
        self.frames.drop_pages(frame, gone, &self.memory);
        if g.moving().is_empty() {
            self.frames.put_empty(frame);
            g.end();
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
        let mut g = r.lock();
        g.asked = g.listed;
        g.listed && self.lru.hasten(&self.ranges, pmd, g.list)
    }

    /// Pages that were resident before we knew of them; charged by the caller.
    pub fn adopt(&self, pmd: Pmd, g: &mut RangeGuard<'_>, pages: PageMask) {
        let new = pages.minus(g.present).minus(g.moving()).minus(g.lazy);
        self.charge.uncharge(pages.count() - new.count());
        self.became_present(pmd, g, new);
    }

    pub fn answer_doorbell(&self, page: usize) -> Result<(), Refused> {
        self.memory.copy(Dir::In, page, self.zeros.at(0), PAGE_SIZE)
    }

    /// Sees to it that `move_held` can't fail: all that it takes beside the pages is had here.
    pub fn prepare_move(&self, s: &Shift) -> Result<(), Errno> {
        let Some(r) = self.ranges.get(s.from) else {
            return Ok(());
        };
        let out = {
            let g = r.lock();
            !g.swapped.or(g.compressed).is_empty()
        };
        self.ranges.get_or_map(s.to)?;
        // All kinds of tables are had at once.
        let tables = [s.from, s.to].map(|pmd| self.ranges.slots(pmd));
        if out && tables.iter().any(Option::is_none) {
            return Err(Errno::ENOMEM);
        }
        Ok(())
    }

    /// The kernel has moved the pages to the other place. Both ranges are held and settled, and the new
    /// one has nothing at that place. Says how many pages are writable there.
    pub fn move_held(&self, s: &Shift) -> usize {
        let Some(from) = self.ranges.get(s.from) else {
            return self.move_fresh(s);
        };
        let _moving = self.moves.begin();
        let (carried, slots) = self.pick_up(s, &mut from.lock());
        let Ok(to) = self.ranges.get_or_map(s.to) else {
            return 0;
        };
        self.put_down(s, &carried, slots, &mut to.lock());
        carried.writable.count()
    }

    /// What the old range has of the pages; it has nothing of them any more.
    fn pick_up(&self, s: &Shift, g: &mut RangeGuard<'_>) -> (Carried, Extents) {
        let pages = PageMask::of(s.pages.clone());
        // The slots of resident pages stay behind.
        let present = g.present.and(pages);
        self.forget_slots(s.from, g, present);
        let swapped = g.swapped.and(pages);
        let place = g.entry.filter(|_| !swapped.is_empty());
        // All of a cluster goes to the same place in its range.
        let cluster = place.filter(|place| {
            place.first().is_some() && swapped == g.swapped && s.pages.start == s.there
        });
        let mut slots = Extents::new();
        if let (None, Some(place)) = (cluster, place) {
            for piece in self.pieces(s.from, place, swapped) {
                let (entry, nr) = (piece.entry, piece.pages.len() as u16);
                slots.push(Extent { entry, nr });
            }
        }
        let carried = Carried {
            present,
            swapped,
            compressed: g.compressed.and(pages),
            lost: g.lost.and(pages),
            writable: g.writable.and(pages),
            huge: g.huge && present.is_full(),
            salvage: g.salvage,
            cluster,
            nonce: g.nonce,
        };
        g.present = g.present.minus(present);
        g.swapped = g.swapped.minus(swapped);
        g.compressed = g.compressed.minus(carried.compressed);
        g.lost = g.lost.minus(carried.lost);
        g.huge = false;
        if g.swapped.is_empty() {
            g.entry = None;
            g.salvage = false;
        }
        (carried, slots)
    }

    /// The new range has what the old one had; `slots` are those of what was in swap, but for a cluster's.
    fn put_down(&self, s: &Shift, carried: &Carried, mut slots: Extents, g: &mut RangeGuard<'_>) {
        g.writable = g.writable.or(s.moved(carried.writable));
        g.lost = g.lost.or(s.moved(carried.lost));
        g.huge = carried.huge;
        self.became_present(s.to, g, s.moved(carried.present));
        self.move_compressed(s.from, carried.compressed, (s.to, g), |page| {
            page - s.pages.start + s.there
        });
        if carried.swapped.is_empty() {
            return;
        }
        g.salvage |= carried.salvage;
        self.move_seals(s, carried.swapped, carried.nonce, g);
        if carried.cluster.is_some() && g.entry.is_none() {
            g.entry = carried.cluster;
        } else {
            if let Some(first) = carried.cluster.and_then(SwapPlace::first) {
                for run in carried.swapped.runs() {
                    if let Some(entry) = first.checked_add(run.start as u64) {
                        let nr = run.len() as u16;
                        slots.push(Extent { entry, nr });
                    }
                }
            }
            // The table was had by `prepare_move`.
            self.scatter(s.to, g);
            self.name_slots(s.to, s.moved(carried.swapped), &slots);
        }
        g.swapped = g.swapped.or(s.moved(carried.swapped));
    }

    /// Of a range that was never used there is nothing but that it is writable.
    fn move_fresh(&self, s: &Shift) -> usize {
        if !self.ranges.is_known(s.from) {
            return 0;
        }
        let all = s.pages.len() == PMD_NR;
        if all && self.ranges.begin_fresh(s.to) {
            return PMD_NR;
        }
        let Ok(r) = self.ranges.get_or_map(s.to) else {
            // They stay where they are.
            return 0;
        };
        let mut g = r.lock();
        g.writable = g.writable.or(s.moved(PageMask::of(s.pages.clone())));
        s.pages.len()
    }
}

/// What a range had of pages that go to another.
struct Carried {
    present: PageMask,
    swapped: PageMask,
    compressed: PageMask,
    lost: PageMask,
    writable: PageMask,
    huge: bool,
    salvage: bool,
    /// Where those in swap are, if they are all that its cluster holds and keep their places in it.
    cluster: Option<SwapPlace>,
    nonce: Nonce,
}

/// Pages of one range that become pages of one range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shift {
    pub from: Pmd,
    pub to: Pmd,
    pub pages: core::ops::Range<usize>,
    /// What the first of them is in the other range.
    pub there: usize,
}

impl Shift {
    /// How `len` bytes go from `old` to `new`.
    pub fn all(old: usize, new: usize, len: usize) -> impl Iterator<Item = Shift> {
        let mut off = 0;
        core::iter::from_fn(move || {
            let (at, to) = (old + off, new + off);
            let room = |at: usize| PMD_SIZE - at % PMD_SIZE;
            let n = room(at).min(room(to)).min(len - off) / PAGE_SIZE;
            off += n * PAGE_SIZE;
            let first = page_in_pmd(at);
            (n > 0).then(|| Shift {
                from: Pmd::of(at),
                to: Pmd::of(to),
                pages: first..first + n,
                there: page_in_pmd(to),
            })
        })
    }

    /// Where these pages, which are among ours, are in the other range.
    pub fn moved(&self, pages: PageMask) -> PageMask {
        let mut out = PageMask::EMPTY;
        for run in pages.runs() {
            let start = run.start - self.pages.start + self.there;
            out = out.or(PageMask::of(start..start + run.len()));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifts_cover_what_moves_whatever_the_phase() {
        for (old, new) in [(0, 0), (5, 5), (5, 511), (500, 3)] {
            let (old, new) = (old * PAGE_SIZE, PMD_SIZE * 9 + new * PAGE_SIZE);
            let mut off = 0;
            for s in Shift::all(old, new, 1500 * PAGE_SIZE) {
                assert_eq!(s.from.page_addr(s.pages.start), old + off);
                assert_eq!(s.to.page_addr(s.there), new + off);
                assert!(s.pages.end <= PMD_NR && s.there + s.pages.len() <= PMD_NR);
                let all = PageMask::of(s.there..s.there + s.pages.len());
                assert_eq!(s.moved(PageMask::of(s.pages.clone())), all);
                off += s.pages.len() * PAGE_SIZE;
            }
            assert_eq!(off, 1500 * PAGE_SIZE);
        }
    }
}
