//! What has left stays in its frame for as long as the kernel has no other use for the memory.
//!
//! Beside what `--memory` allows a run's memory group often has some left. The kernel lets it be used without being in
//! the way: of memory that was given `MADV_FREE` it takes the oldest back as soon as it needs any, without I/O.
//! So a frame whose pages are in their slots is given that in place of `MADV_DONTNEED`, and is not charged any more.
//!
//! Nothing depends on what such a frame holds. A fault copies the page out of it and makes its tag again, as is done to
//! find pages that did not change (`clean`): if that is the slot's tag, these are the right bytes, whatever
//! became of the frame and of the range meanwhile. If it is not, the page is read.

use super::frames::{For, Left, FRAMES};
use super::plan::{Plan, Store};
use super::{FillBuffers, Frame, Memory, SwapCache};
use crate::control::{Control, FILE};
use crate::mm::{PageMask, Pmd, PAGE_SIZE};
use crate::policy::{Unit, FILL_MAX};
use crate::seal::Page;
use crate::sync::Mutex;
use crate::sys::{limits, mem, Errno};
use crate::vma::RangeGuard;
use core::sync::atomic::Ordering::Relaxed;

/// Frames that are kept at most. Others have to be there for what is leaving.
const MOST: usize = 384;
const _: () = assert!(MOST < FRAMES);
/// Pages that come out of kept frames for one fault at most.
const AT_ONCE: usize = 32;
const _: () = assert!(AT_ONCE < FILL_MAX);

/// A frame with pages of a range that have left. All-zero bytes are a valid one.
#[derive(Clone, Copy)]
struct Kept {
    frame: Frame,
    /// Those that may be wanted.
    pages: PageMask,
    /// All that have memory there, at most.
    held: u16,
}

/// Kept frames in the order in which their pages left, in a ring.
struct Ring {
    /// The range of each.
    pmds: [Pmd; MOST],
    /// Memory that is touched as it is used.
    rest: *mut [Kept; MOST],
    first: usize,
    len: usize,
    /// The sum of `held`.
    held: usize,
}

// SAFETY: the memory is the ring's alone.
unsafe impl Send for Ring {}

impl Ring {
    fn new() -> Result<Ring, Errno> {
        Ok(Ring {
            pmds: [Pmd(0); MOST],
            rest: mem::map_anon(size_of::<[Kept; MOST]>())? as *mut [Kept; MOST],
            first: 0,
            len: 0,
            held: 0,
        })
    }

    fn rest(&mut self) -> &mut [Kept; MOST] {
        // SAFETY: mapped with this size, never unmapped, and the ring's alone.
        unsafe { &mut *self.rest }
    }

    fn forget_all(&mut self) {
        (self.first, self.len, self.held) = (0, 0, 0);
    }

    fn push(&mut self, pmd: Pmd, kept: Kept) {
        debug_assert!(self.len < MOST);
        let at = (self.first + self.len) % MOST;
        self.pmds[at] = pmd;
        self.rest()[at] = kept;
        self.len += 1;
        self.held += usize::from(kept.held);
    }

    fn pop(&mut self) -> Option<Frame> {
        self.len = self.len.checked_sub(1)?;
        let first = self.first;
        let kept = self.rest()[first];
        self.first = (first + 1) % MOST;
        self.held -= usize::from(kept.held);
        Some(kept.frame)
    }

    /// Those of a range, the newest first.
    fn of(&self, pmd: Pmd) -> impl Iterator<Item = &Kept> {
        let end = self.first + self.len;
        // Those behind the array's end are the newer ones.
        let parts = [0..end.saturating_sub(MOST), self.first..end.min(MOST)];
        // SAFETY: as in `rest`.
        let rest = unsafe { &*self.rest };
        let all = parts.into_iter().flat_map(|part| part.rev());
        all.filter(move |&i| self.pmds[i] == pmd).map(|i| &rest[i])
    }

    /// Which of these pages may still be there.
    fn held(&self, pmd: Pmd, pages: PageMask) -> PageMask {
        let held = self.of(pmd).fold(PageMask::EMPTY, |all, k| all.or(k.pages));
        held.and(pages)
    }
}

pub(super) struct LazyFree {
    ring: Mutex<Ring>,
    /// All slots are on disks. In memory in place of one a read takes no longer.
    pays: bool,
}

impl LazyFree {
    pub fn new(control: &Control) -> Result<LazyFree, Errno> {
        Ok(LazyFree {
            ring: Mutex::new(Ring::new()?),
            pays: control.devices().iter().all(|d| d.kind == FILE),
        })
    }

    /// In a forked child, where frames are empty.
    pub fn start_over(&self) {
        self.ring.reset();
        self.ring.lock().forget_all();
    }
}

impl<M: Memory> SwapCache<M> {
    /// Keeps a frame, if there is memory to spare. `gone`: of its `held` pages those that are in their slots now. False
    /// if it is not kept.
    pub(super) fn keep_frame(
        &self,
        pmd: Pmd,
        frame: Frame,
        gone: PageMask,
        held: PageMask,
    ) -> bool {
        let n = held.count();
        let most = self.charge.lazyfree_limit();
        let is_for_it = frame.is_for() == For::Pieces && self.lazyfree.pays && !gone.is_empty();
        if !is_for_it || n > most || limits::is_data_limited() {
            return false;
        }
        // SAFETY: the frame is ours; what is in it is in slots.
        if unsafe { self.memory.free_lazily(self.frames.addr(frame)) }.is_err() {
            return false;
        }
        let kept = Kept {
            frame,
            pages: gone,
            held: n as u16,
        };
        self.trim_lazyfree(most - n, Some((pmd, kept)));
        self.stats().pglazyfree.add(n as u64);
        self.tell_lazyfree();
        true
    }

    /// Gives the oldest back until no more than so many pages are kept, and there is a place for a newcomer.
    fn trim_lazyfree(&self, most: usize, newcomer: Option<(Pmd, Kept)>) {
        loop {
            let mut ring = self.lazyfree.ring.lock();
            if ring.len == 0 || ring.held <= most && ring.len < MOST {
                if let Some((pmd, kept)) = newcomer {
                    ring.push(pmd, kept);
                }
                return;
            }
            let oldest = ring.pop();
            drop(ring);
            if let Some(frame) = oldest {
                self.empty(frame, Left::Pieces);
            }
        }
    }

    /// Gives back what is more than there is to spare now.
    pub fn settle_lazyfree(&self) {
        if self.lazyfree.ring.lock().len > 0 {
            self.trim_lazyfree(self.charge.lazyfree_limit(), None);
            self.tell_lazyfree();
        }
    }

    fn tell_lazyfree(&self) {
        let held = self.lazyfree.ring.lock().held;
        self.charge
            .proc()
            .lazyfree_pages
            .store(held as i64, Relaxed);
        self.stats().lazyfree_bytes.set((held * PAGE_SIZE) as u64);
    }

    /// An empty frame for pieces, if need be one that was kept, or another.
    pub(super) fn take_empty_for_pieces(&self) -> Option<Frame> {
        let kept = || {
            let frame = self.lazyfree.ring.lock().pop()?;
            self.frames.clear(frame, Left::Pieces, &self.memory);
            Some(frame)
        };
        let empty = self.frames.take_empty(For::Pieces).or_else(kept);
        empty.or_else(|| self.frames.take_empty(For::Folio))
    }

    /// Copies what is now where these pages left, of each the newest; says which. With the lock, so that nothing comes to be
    /// in a frame that is empty.
    fn copy_kept(&self, pmd: Pmd, pages: PageMask, to: impl Fn(usize) -> *mut u8) -> PageMask {
        let ring = self.lazyfree.ring.lock();
        let mut copied = PageMask::EMPTY;
        for kept in ring.of(pmd) {
            for page in kept.pages.and(pages).minus(copied).runs().flatten() {
                let from = (self.frames.addr(kept.frame) + page * PAGE_SIZE) as *const u8;
                // SAFETY: a kept frame is mapped, and nobody writes there. What the kernel has taken back reads as
                // zeros. The caller has seen to the other end.
                unsafe { core::ptr::copy_nonoverlapping(from, to(page), PAGE_SIZE) };
                copied.insert(page);
            }
        }
        copied
    }

    /// The fault on a page that may still be in the frame in which it left, and half of what was to come with it. None if
    /// it has to be read.
    pub(super) fn take_kept(
        &self,
        g: &mut RangeGuard<'_>,
        pmd: Pmd,
        page: usize,
        (pages, unit): (PageMask, Unit),
        buffers: &mut FillBuffers,
    ) -> Option<Plan> {
        let held = self.lazyfree.ring.lock().held(pmd, pages);
        let n = held.count();
        if !held.has(page) || 2 * n < pages.count() || n > AT_ONCE {
            return None;
        }
        if !self.charge_for_fault(n) {
            return Some(Plan::NeedRoom);
        }
        let Some((base, new)) = buffers.lend(n + 1) else {
            self.charge.uncharge(n);
            return None;
        };
        self.charge_own(new);
        let at = |page| base.wrapping_add(held.rank(page) * PAGE_SIZE);
        let copied = self.copy_kept(pmd, held, at);
        // SAFETY: nobody else uses the buffer, in which the last page is for this.
        let scratch = unsafe { &mut *(base.add(n * PAGE_SIZE) as *mut Page) };
        let mut right = PageMask::EMPTY;
        for page in copied.runs().flatten() {
            // SAFETY: the same; what is there was copied just now.
            let copy = unsafe { &*(at(page) as *const Page) };
            if self.is_in_slot(pmd, g, page, copy, scratch) {
                right.insert(page);
            }
        }
        if !right.has(page) {
            self.stats().lazyfree_lost.inc();
            self.charge.uncharge(n);
            return None;
        }
        let mut got = PageMask::EMPTY;
        for run in right.runs() {
            got = got.or(self.copy_run(pmd, run, |page| at(page) as *const u8));
        }
        self.charge.uncharge(n - got.count());
        self.join_list(pmd, g, unit);
        g.huge = false;
        self.became_present(pmd, g, got);
        if g.salvage {
            // Its slot may not be readable any more.
            self.forget_slots(pmd, g, got);
        }
        self.stats().lazyfree_hit.inc();
        if !got.has(page) {
            self.memory.wake(pmd.page_addr(page), PAGE_SIZE);
        }
        Some(Plan::Loaded {
            pages: got.count(),
            from: Store::Frame,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_copy_is_found_and_the_oldest_given_up() {
        let mut ring = Ring::new().unwrap();
        for i in 0..3 * MOST as u32 {
            if ring.len == MOST {
                assert_eq!(ring.pop(), Some(Frame(i - MOST as u32)));
            }
            let kept = Kept {
                frame: Frame(i),
                pages: PageMask::of(0..4),
                held: 4,
            };
            ring.push(Pmd(i % 2), kept);
            let newest = |pmd| ring.of(Pmd(pmd)).next().map(|k| k.frame);
            assert_eq!(newest(i % 2), Some(Frame(i)));
            assert_eq!(newest((i + 1) % 2), i.checked_sub(1).map(Frame));
            assert_eq!(newest(2), None);
            let held = |pmd| ring.held(Pmd(pmd), PageMask::of(2..6));
            assert_eq!(
                (held(i % 2), held(2)),
                (PageMask::of(2..4), PageMask::EMPTY)
            );
            assert_eq!(ring.held, 4 * ring.len);
        }
        while ring.pop().is_some() {}
        assert_eq!((ring.held, ring.of(Pmd(0)).count()), (0, 0));
    }
}
