//! Small fills: pages that come in by way of a buffer, and are copied to the program.

use super::plan::Plan;
use super::{Memory, SwapCache};
use crate::mm::{PageMask, Pmd, PAGE_SIZE, PMD_SIZE};
use crate::policy::{List, Pattern, Unit, FILL_MAX};
use crate::sys::pages::OwnPages;
use crate::sys::Errno;
use crate::vma::{IoState, RangeGuard};

/// Buffers that small fills are read into; memory of the engine's own.
pub struct FillBuffers {
    memory: OwnPages,
    free: [u8; Self::COUNT],
    len: usize,
    /// Pages of each that were used, and so are charged.
    touched: [u8; Self::COUNT],
    /// Pages of each that were used since the last `rest`.
    used: [u8; Self::COUNT],
    /// Pages in each that go to compressed memory, and not to the program.
    beside: [PageMask; Self::COUNT],
}

impl FillBuffers {
    pub const COUNT: usize = 32;
    pub const BYTES: usize = Self::COUNT * FILL_MAX * PAGE_SIZE;

    pub fn new() -> Result<FillBuffers, Errno> {
        Ok(FillBuffers {
            memory: OwnPages::of_thread(Self::COUNT * FILL_MAX)?,
            free: core::array::from_fn(|i| i as u8),
            len: Self::COUNT,
            touched: [0; Self::COUNT],
            used: [0; Self::COUNT],
            beside: [PageMask::EMPTY; Self::COUNT],
        })
    }
    pub fn addr(&self, i: u32) -> *mut u8 {
        self.memory.at(Self::first_page(i))
    }
    fn first_page(i: u32) -> usize {
        i as usize % Self::COUNT * FILL_MAX
    }
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Whether some may be used for what nobody waits for.
    fn has_spare(&self) -> bool {
        self.len > Self::COUNT / 4
    }
    fn take(&mut self) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        Some(self.free[self.len] as u32)
    }
    /// Room for `n` pages until the next buffer is taken, and how many pages of it were never used.
    pub(super) fn lend(&mut self, n: usize) -> Option<(*mut u8, usize)> {
        let buffer = self.take()?;
        let new = self.touch(buffer, n);
        self.put(buffer);
        Some((self.addr(buffer), new))
    }
    /// Notes that `n` pages of the buffer are used; returns how many of them for the first time.
    fn touch(&mut self, i: u32, n: usize) -> usize {
        let i = i as usize % Self::COUNT;
        self.used[i] = self.used[i].max(n as u8);
        let new = n.saturating_sub(self.touched[i].into());
        self.touched[i] += new as u8;
        new
    }
    /// Pages that are charged.
    pub fn touched(&self) -> usize {
        self.touched.iter().map(|&n| usize::from(n)).sum()
    }
    /// Gives back memory that was not used since the last time. How many pages that is.
    pub fn rest(&mut self) -> usize {
        let used = core::mem::replace(&mut self.used, [0; Self::COUNT]);
        let mut pages = 0;
        for &i in &self.free[..self.len] {
            let keep = usize::from(used[usize::from(i)]);
            let n = usize::from(self.touched[usize::from(i)]).saturating_sub(keep);
            if n == 0 {
                continue;
            }
            let first = Self::first_page(i.into()) + keep;
            if self.memory.forget(first..first + n) {
                self.touched[usize::from(i)] = keep as u8;
                pages += n;
            }
        }
        pages
    }
    fn put(&mut self, i: u32) {
        self.beside[i as usize % Self::COUNT] = PageMask::EMPTY;
        if self.len < Self::COUNT {
            self.free[self.len] = i as u8;
            self.len += 1;
        }
    }
}

impl<M: Memory> SwapCache<M> {
    pub(super) fn begin_fill(
        &self,
        g: &mut RangeGuard<'_>,
        pmd: Pmd,
        page: usize,
        unit: Unit,
        buffers: &mut FillBuffers,
    ) -> Plan {
        let Some(entry) = g.entry else {
            return Plan::Wait;
        };
        // What the frame of an inactive range holds is newer than its slots.
        let there = g.swapped.minus(g.present).minus(g.compressed);
        let there = there.minus(g.moving());
        self.is_lost(pmd, g, page);
        let there = there.minus(g.lazy);
        let pages = unit.of(there, page);
        debug_assert!(pages.count() <= FILL_MAX);
        if buffers.is_empty() {
            return Plan::NeedBuffer;
        }
        let n = pages.count();
        if !self.charge_for_fault(n) {
            return Plan::NeedRoom;
        }
        let Some(buffer) = buffers.take() else {
            self.charge.uncharge(n);
            return Plan::NeedBuffer;
        };
        let beside = self.beside(pmd, g, entry, there, pages);
        let pages = pages.or(beside);
        self.charge_own(buffers.touch(buffer, pages.count()));
        buffers.beside[buffer as usize % FillBuffers::COUNT] = beside;
        self.join_list(pmd, g, unit);
        g.huge = false;
        g.begin_filling(buffer, pages);
        Plan::Fill {
            buffer,
            pages,
            entry,
        }
    }

    /// The list of a range of which pages come in by a small fill.
    pub(super) fn join_list(&self, pmd: Pmd, g: &mut RangeGuard<'_>, unit: Unit) {
        match unit.walks() {
            Some(n) => self.join_walk(pmd, g, 2 * n),
            None => {
                if self.lru.came_back(g.shadow, 1, self.charge.limit()) {
                    self.stats().workingset_refault_anon.inc();
                }
                g.belongs_to(List::Main);
            }
        }
    }

    /// A walk brings in so many pages. If they are more than was there the range is the walk's, though it may
    /// be on the main list since a jump seemed to begin it, or since it left in part.
    fn join_walk(&self, pmd: Pmd, g: &mut RangeGuard<'_>, pages: usize) {
        if g.listed && (g.list == List::Walk || g.present.count() >= pages) {
            return;
        }
        let list = self.lru.arrive(g.shadow, self.charge.limit());
        if g.listed && list == List::Walk && self.lru.remove(&self.ranges, pmd, g.list) {
            g.listed = false;
            g.list = list;
            self.became_present(pmd, g, PageMask::EMPTY);
        }
        g.belongs_to(list);
    }

    /// Begins to read pages that a stride will come to, in a range that nobody waits for. None if there
    /// is nothing to read, or no room to spare.
    pub fn begin_set_ahead(
        &self,
        pmd: Pmd,
        set: PageMask,
        buffers: &mut FillBuffers,
    ) -> Option<Plan> {
        let mut g = self.ranges.get(pmd)?.lock();
        let against = g.hints.pattern == Pattern::Random;
        let there = g.swapped.minus(g.present).minus(g.compressed);
        let there = there.minus(g.lazy).and(set);
        let first = there.next_from(0)?;
        let room = self.charge.room() > there.count() as i64;
        if g.io() != IoState::Idle || g.salvage || against || !room || !buffers.has_spare() {
            return None;
        }
        match self.begin_fill(&mut g, pmd, first, Unit::Set(there), buffers) {
            plan @ Plan::Fill { .. } => Some(plan),
            _ => None,
        }
    }

    /// The read of a small fill ended. How many pages it was for.
    pub fn fill_done(&self, pmd: Pmd, ok: bool, buffers: &mut FillBuffers) -> usize {
        let Some(r) = self.ranges.get(pmd) else {
            return 0;
        };
        let place = |buffer: u32, pages: &PageMask, page: usize| {
            buffers
                .addr(buffer)
                .wrapping_add(pages.rank(page) * PAGE_SIZE)
        };
        let ok = ok && self.open(pmd, r, |moving| moving, place).is_empty();
        let mut g = r.lock();
        let (buffer, pages) = (g.buffer(), g.moving());
        let mut wake = g.take_wanted();
        let n = pages.count();
        let beside = buffers.beside[buffer as usize % FillBuffers::COUNT];
        let asked = pages.minus(beside);
        let base = buffers.addr(buffer) as *const u8;
        let src = |page| base.wrapping_add(pages.rank(page) * PAGE_SIZE);
        if ok {
            // What could not be read with others is read this once.
            let keep = !g.salvage;
            let mut got = PageMask::EMPTY;
            for run in asked.runs() {
                got = got.or(self.copy_run(pmd, run, src));
            }
            // The copy woke those who wait for these pages.
            wake |= got != asked;
            self.charge.uncharge(asked.minus(got).count());
            self.became_present(pmd, &mut g, got);
            if !keep {
                self.forget_slots(pmd, &mut g, got);
            }
            self.stats().pswpin.add(n as u64);
            self.stats().count_swpin(n);
            self.stats().fill.inc();
        } else {
            wake = true;
            self.charge.uncharge(asked.count());
            self.stats().swap_read_errors.inc();
            if n > 1 {
                g.salvage = true;
            } else {
                self.lose(pmd, &mut g, pages);
            }
        }
        g.end_filling();
        if ok {
            self.take_beside(pmd, &mut g, beside, src);
        }
        buffers.put(buffer);
        drop(g);
        if wake {
            self.memory.wake(pmd.addr(), PMD_SIZE);
        }
        asked.count()
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_nobody_uses_give_their_memory_back() {
        let mut b = FillBuffers::new().unwrap();
        assert_eq!(b.rest(), 0);
        let (one, other) = (b.take().unwrap(), b.take().unwrap());
        assert_eq!(
            (b.touch(one, 3), b.touch(other, 5), b.touch(other, 2)),
            (3, 5, 0)
        );
        // SAFETY: inside of the buffer.
        unsafe { b.addr(other).write(7) };
        // Both are in use, and `one` is all the time.
        assert_eq!((b.rest(), b.rest()), (0, 0));
        b.put(other);
        assert_eq!((b.rest(), b.touched()), (5, 3));
        // SAFETY: the same.
        assert_eq!(unsafe { b.addr(other).read() }, 0);
        b.put(one);
        // As much stays as was used lately. What comes back is charged again.
        let again = b.take().unwrap();
        assert_eq!((again, b.touch(again, 1)), (one, 0));
        b.put(again);
        assert_eq!((b.rest(), b.rest(), b.touched()), (2, 1, 0));
        let again = b.take().unwrap();
        assert_eq!(b.touch(again, 2), 2);
    }
}
