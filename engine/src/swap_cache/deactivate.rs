//! The way up begins: pages are taken out of the program.
#![allow(unsafe_code)]

use super::frames::{For, Left};
use super::{Busy, Dir, Frame, Memory, Moved, SwapCache};
use crate::mm::{PageMask, Pmd, PAGE_SIZE, PMD_SIZE};
use crate::policy::List;
use crate::sys::Errno;
use crate::vma::{IoState, Range, RangeGuard};
use core::sync::atomic::Ordering::Relaxed;

/// Pages that are copied out at a time, where they cannot be moved.
const COPY_MAX: usize = 64;

/// What came of trying to evict a range.
///
/// Pages leave by UFFDIO_MOVE, which refuses pages that something holds for I/O. Without it (before
/// Linux 6.8) they are protected against writing, copied, and dropped with MADV_DONTNEED. But
/// protection stops only writers that come through the page table. A writer that pinned the page before
/// (a direct read in flight, buffers registered with io_uring or a device) goes on writing into the
/// page that was dropped, and the program never sees the data; and user space cannot see a pin. So
/// pages are
/// copied out only as long as the run's guard (`supervise/src/zero_copy.rs`) has seen no call by which
/// the program could have pinned any. The guard is asked after the pages are protected: a thread
/// that is let through afterwards must fault on a protected page first, and waits.
pub enum Victim {
    /// Its pages are in a frame, out of the program's reach; see `start_write`.
    Inactive(Taken),
    /// Nothing to do here, now.
    Skip,
    /// All frames are in use; finish some writes first.
    NoFrame,
}

/// Pages of a range that were taken out together. When they are asked for again they may all have come back, and others
/// of the range been taken out since: those are not these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    pub pmd: Pmd,
    turn: u32,
}

impl Taken {
    pub const NOTHING: Taken = Taken {
        pmd: Pmd(0),
        turn: 0,
    };

    /// What of the range is out now.
    pub(super) fn of(pmd: Pmd, g: &RangeGuard<'_>) -> Taken {
        Taken {
            pmd,
            turn: g.turn(),
        }
    }

    pub(super) fn is(&self, g: &RangeGuard<'_>) -> bool {
        self.turn == g.turn()
    }
}

impl<M: Memory> SwapCache<M> {
    /// Takes pages of a range (popped from the LRU list) out of the program: a folio as a whole, of others
    /// the pages whose turn it is. A thread that touches one before it is written gets it back at once:
    /// that is the second chance.
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
        let wanted = g.io() == IoState::Idle && g.take_wanted();
        drop(g);
        if wanted {
            self.memory.wake(pmd.addr(), PMD_SIZE);
        }
        out
    }

    fn try_deactivate<'r>(
        &self,
        pmd: Pmd,
        r: &'r Range,
        mut g: RangeGuard<'r>,
    ) -> (Victim, RangeGuard<'r>) {
        let pages = self.whose_turn_it_is(&mut g);
        if pages.is_empty() {
            return (Victim::Skip, g);
        }
        let whole = g.is_whole();
        let frame = match whole && g.huge && pages.is_full() {
            true => self.frames.take_empty(For::Folio),
            false => self.take_empty_for_pieces(),
        };
        let Some(frame) = frame else {
            return (Victim::NoFrame, g);
        };
        g.track(frame.0, pages);
        let (moved, mut g) = self.take_out(pmd, r, g, frame, pages);
        if moved.is_empty() {
            g.untrack();
            self.frames.put_empty(frame);
            return (Victim::Skip, g);
        }
        if !(whole && moved.is_full()) {
            g.huge = false;
        }
        g.become_inactive(frame.0, moved);
        if g.is_wanted() {
            // Touched while it was being unshared.
            self.settle(pmd, &mut g);
            return (Victim::Skip, g);
        }
        (Victim::Inactive(Taken::of(pmd, &g)), g)
    }

    /// What of a range is to be taken out now: none where that can't be.
    fn whose_turn_it_is(&self, g: &mut RangeGuard<'_>) -> PageMask {
        let all = core::mem::take(&mut g.asked) || g.huge || g.list == List::Walk;
        if g.io() != IoState::Idle {
            return PageMask::EMPTY;
        }
        let mut pages = g.present.and(g.writable);
        if !all {
            pages = g.credit.take(pages);
        }
        let no_place = self.full.load(Relaxed) && !pages.minus(g.swapped).is_empty();
        if no_place || !self.can_take() {
            return PageMask::EMPTY;
        }
        pages
    }

    /// Takes pages out of the program, to their places in the frame, with the lock or without. Says which, and what
    /// was not there any more is no longer present.
    fn take_out<'r>(
        &self,
        pmd: Pmd,
        r: &'r Range,
        mut g: RangeGuard<'r>,
        frame: Frame,
        pages: PageMask,
    ) -> (PageMask, RangeGuard<'r>) {
        let out = if self.abilities.mv {
            self.move_until(Dir::Out, pmd, frame, pages, Busy::Stops)
        } else {
            let out;
            (out, g) = alone(r, g, || self.copy_out(pmd, frame, pages));
            out
        };
        self.account_moved(pmd, &mut g, &out);
        let mut moved = out.moved;
        if out.busy {
            let left = g.present.and(pages);
            // Writes to what has stayed must go on being told.
            self.drop_lazy(pmd, &mut g, PageMask::FULL);
            ((), g) = alone(r, g, || self.unshare(pmd, left));
            let more = self.move_pages(Dir::Out, pmd, frame, left);
            self.account_moved(pmd, &mut g, &more);
            moved = moved.or(more.moved);
        }
        (moved, g)
    }

    /// How many of them have not come back.
    pub fn staged(&self, taken: Taken) -> usize {
        self.ranges.get(taken.pmd).map_or(0, |r| {
            let g = r.lock();
            match g.io() {
                _ if !taken.is(&g) => 0,
                IoState::Inactive => g.moving().minus(g.present).count(),
                IoState::Filling => g.in_frame().minus(g.present).count(),
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
            self.frames.clear(frame, Left::Pieces, &self.memory);
        } else {
            self.frames
                .drop_pages(frame, pages.minus(out.moved), &self.memory);
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
        let gone = self.memory.trap_writes(at, len).and_then(|()| {
            // Asked when nobody can write any more.
            if !self.can_take() {
                return Err(Errno::EBUSY);
            }
            // SAFETY: the frame is ours.
            unsafe { self.memory.read(at, to, len) }?;
            // SAFETY: all of the pages were copied.
            unsafe { self.memory.drop_pages(at, len) }.inspect_err(|_| {
                // Some of them may be gone all the same: they come back, the others are there.
                let frame = self.frames.addr(frame) as *const u8;
                self.copy_in(pmd, PageMask::of(part.clone()), frame);
            })
        });
        if gone.is_err() {
            let _ = self.memory.allow_writes(at, len);
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
        self.stats().pgunshare.add(pages.count() as u64);
        // Since the fork writes to it may be told to us: this one is not to be.
        let _ = self.memory.allow_writes(pmd.addr(), PMD_SIZE);
        for run in pages.runs() {
            let _ = self
                .memory
                .populate(pmd.page_addr(run.start), run.len() * PAGE_SIZE);
        }
    }
}

/// Does something without the lock that touches the program's pages. Faults on the range wait meanwhile, so that the
/// handler can serve ours, should the program have dropped a page behind our back.
fn alone<'r, R>(r: &'r Range, mut g: RangeGuard<'r>, f: impl FnOnce() -> R) -> (R, RangeGuard<'r>) {
    g.begin_leaving();
    drop(g);
    let done = f();
    let mut g = r.lock();
    g.end_leaving();
    (done, g)
}
