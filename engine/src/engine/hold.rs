//! Stretches of the program's memory while the kernel decides about them.
//!
//! A hook does nothing that it cannot undo before the kernel has agreed. It holds the stretch: no
//! transfer is in flight for it, reclaim leaves it alone, and faults on it wait. Then it makes the
//! program's call. What the tables say changes afterwards, by what the kernel has answered.
//!
//! Ranges are held in the order of their addresses. Hooks whose stretches overlap keep out of each
//! other's way before they come here, so the two ranges at the edges of a stretch are all that two
//! holds can both want. While ranges are held nothing of the program's memory may be touched.

use super::Engine;
use crate::mm::{split_by_pmd, PageMask, Pmd, PAGE_SIZE, PMD_NR, PMD_SIZE};
use crate::swap_cache::Shift;
use crate::sys::Errno;
use crate::vma::{IoState, RangeGuard};

/// Addresses (start, end).
pub type Stretch = (usize, usize);

/// What becomes of pages that were held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The contents are gone: they read as zeros.
    Dropped,
    /// The mapping is gone, and all that was known of it.
    Unmapped,
}

/// Ends with `end`, or as if nothing had happened.
pub struct Hold<'e> {
    engine: &'e Engine,
    bell: usize,
    /// In order; where there is one only, the second is empty.
    parts: [Stretch; 2],
}

/// The ranges of two stretches, each once.
fn ranges([one, two]: [Stretch; 2]) -> impl Iterator<Item = Pmd> {
    let of = |(from, to): Stretch| split_by_pmd(from, to - from).map(|(pmd, _)| pmd);
    let last = (one.0 < one.1).then(|| Pmd::of(one.1 - 1));
    of(one).chain(of(two).filter(move |pmd| Some(*pmd) != last))
}

/// The pages of a range that are in the stretch.
fn pages_of(pmd: Pmd, (from, to): Stretch) -> PageMask {
    let page = |at: usize| {
        at.saturating_sub(pmd.addr())
            .div_ceil(PAGE_SIZE)
            .min(PMD_NR)
    };
    if to <= pmd.addr() || from >= pmd.addr() + PMD_SIZE {
        return PageMask::EMPTY;
    }
    PageMask::of(page(from)..page(to))
}

impl Engine {
    /// Holds whole pages below 2^47. `bell` is the hook's.
    pub fn hold(&self, bell: usize, stretch: Stretch) -> Result<Hold<'_>, Errno> {
        self.hold_two(bell, stretch, (stretch.1, stretch.1))
    }

    /// As `hold`, for two stretches that do not overlap.
    pub fn hold_two(&self, bell: usize, one: Stretch, two: Stretch) -> Result<Hold<'_>, Errno> {
        let parts = if one.0 <= two.0 {
            [one, two]
        } else {
            [two, one]
        };
        let table = &self.cache.ranges;
        // What is another's in part can come into use at any time, and only what is in use is held.
        for at in parts.iter().filter(|p| p.0 < p.1).flat_map(|p| [p.0, p.1]) {
            if at % PMD_SIZE != 0 {
                table.get_or_map(Pmd::of(at))?;
            }
        }
        for r in ranges(parts).filter_map(|pmd| table.get(pmd)) {
            r.lock_settled().hold();
        }
        Ok(Hold {
            engine: self,
            bell,
            parts,
        })
    }
}

impl Hold<'_> {
    /// Brings back what frames hold, so that each page is resident, in swap, or nowhere.
    pub fn settle(&self) {
        for (from, to) in self.parts {
            if from < to {
                self.engine.settle_held(self.bell, from, to - from);
            }
        }
    }

    /// The kernel has agreed: this is what became of `stretch`, a part of what is held. The rest is as
    /// it was.
    pub fn end(self, stretch: Stretch, fate: Fate) {
        self.end_each(|pages| pages(stretch), fate);
    }

    /// Before the kernel is asked to move `len` bytes of mappings from `old` to `new`, both of them
    /// held: has all that `moved` takes.
    pub fn prepare_move(&self, old: usize, new: usize, len: usize) -> Result<(), Errno> {
        self.settle();
        let table = &self.engine.cache.ranges;
        for s in Shift::all(old, new, len) {
            self.engine.cache.prepare_move(&s)?;
            // It may have come into use only now.
            if let Some(r) = table.get(s.to) {
                loop {
                    let mut g = r.lock();
                    if g.io() != IoState::Held && g.io().is_settled() {
                        g.hold();
                    }
                    if g.io() == IoState::Held {
                        break;
                    }
                    drop(g);
                    drop(r.lock_settled());
                }
            }
        }
        Ok(())
    }

    /// The kernel has moved them: what is in swap goes along. What was at `new` before is gone. Both stay
    /// held; at `old` there is nothing any more but what is said of the mapping.
    pub fn moved(&self, old: usize, new: usize, len: usize) {
        let e = self.engine;
        let mut managed = 0;
        for s in Shift::all(old, new, len) {
            managed += e
                .cache
                .unmap_held(s.to, s.moved(PageMask::of(s.pages.clone())));
            managed += e.cache.move_held(&s) as i64;
        }
        e.count_managed(managed);
    }

    /// As `end`, for several parts.
    pub fn end_parts(self, stretches: &[Stretch], fate: Fate) {
        self.end_each(
            |pages| {
                let all = stretches.iter().map(|s| pages(*s));
                all.fold(PageMask::EMPTY, PageMask::or)
            },
            fate,
        );
    }

    fn end_each(mut self, which: impl Fn(&dyn Fn(Stretch) -> PageMask) -> PageMask, fate: Fate) {
        let e = self.engine;
        let mut managed = 0;
        self.release(|pmd, g| {
            let pages = || which(&|s| pages_of(pmd, s));
            match g {
                Some(g) => managed += e.cache.meet(pmd, g, pages(), fate),
                None if fate == Fate::Dropped || !e.cache.ranges.is_known(pmd) => {}
                None => {
                    if pages().is_full() && e.cache.ranges.end_fresh(pmd) {
                        managed -= PMD_NR as i64;
                    }
                }
            }
        });
        e.count_managed(managed);
    }

    /// Lets go of each range, after `change` with its lock; None: it is not in use.
    fn release(&mut self, mut change: impl FnMut(Pmd, Option<&mut RangeGuard<'_>>)) {
        let e = self.engine;
        let mut waited: Option<(Pmd, Pmd)> = None;
        for pmd in ranges(self.parts) {
            let Some(r) = e.cache.ranges.get(pmd) else {
                change(pmd, None);
                continue;
            };
            let mut g = r.lock();
            if !g.let_go() {
                // It came into use meanwhile: all of it is in what is held.
                drop(g);
                g = r.lock_settled();
            }
            change(pmd, Some(&mut g));
            if g.take_wanted() {
                waited = Some((waited.map_or(pmd, |w| w.0), pmd));
            }
        }
        self.parts = [(0, 0); 2];
        if let Some((first, last)) = waited {
            e.wake(
                self.bell,
                first.addr(),
                last.addr() + PMD_SIZE - first.addr(),
            );
        }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if self.parts != [(0, 0); 2] {
            self.release(|_, _| {});
        }
    }
}

impl crate::swap_cache::SwapCache {
    /// What a held range has at these pages is gone; it stays held. Says how many more are managed.
    fn unmap_held(&self, pmd: Pmd, pages: PageMask) -> i64 {
        let Some(r) = self.ranges.get(pmd) else {
            return match pages.is_full() && self.ranges.end_fresh(pmd) {
                true => -(PMD_NR as i64),
                false => 0,
            };
        };
        let mut g = r.lock();
        let held = g.let_go();
        let more = self.meet(pmd, &mut g, pages, Fate::Unmapped);
        if held {
            g.hold();
        }
        more
    }

    /// Says how many pages more or less are managed now.
    fn meet(&self, pmd: Pmd, g: &mut RangeGuard<'_>, pages: PageMask, fate: Fate) -> i64 {
        if pages.is_empty() {
            return 0;
        }
        self.discard(pmd, g, pages);
        if fate == Fate::Dropped {
            return 0;
        }
        // The owner of the larger part speaks for a range that is another's in part.
        if pages.count() * 2 >= PMD_NR {
            g.becomes_anothers();
        }
        let before = g.writable.count() as i64;
        g.writable = g.writable.minus(pages);
        g.writable.count() as i64 - before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_range_of_two_stretches_comes_once() {
        let at = |k: usize| k * PMD_SIZE;
        let list = |p| ranges(p).map(|pmd| pmd.0).collect::<Vec<_>>();
        assert_eq!(list([(at(1), at(3)), (at(3), at(3))]), [1, 2]);
        let half = at(3) + PMD_SIZE / 2;
        assert_eq!(list([(at(2), half), (half, at(5))]), [2, 3, 4]);
        assert_eq!(list([(at(2), half), (at(7), at(8))]), [2, 3, 7]);
        assert_eq!(pages_of(Pmd(3), (at(2), half)), PageMask::of(0..256));
        assert_eq!(pages_of(Pmd(3), (half, at(9))), PageMask::of(256..512));
        assert!(pages_of(Pmd(1), (at(2), half)).is_empty());
    }
}
