//! Pages go between a range and a frame by their page tables.
#![allow(unsafe_code)]

use super::{Dir, Frame, Memory, SwapCache};
use crate::mm::{PageMask, Pmd, PAGE_SIZE, PMD_SIZE};
use crate::sys::uffd::Refused;
use crate::vma::RangeGuard;

impl<M: Memory> SwapCache<M> {
    /// Frees the page table that a fault left behind, so that a huge page can be moved in whole.
    /// Only where nothing is present and all 2 MiB are the program's managed memory: other
    /// mappings may have pages in the rest of a range that is managed in part. Poison markers of
    /// lost pages would go with it.
    pub(super) fn drop_page_table(&self, pmd: Pmd, g: &mut RangeGuard<'_>) {
        let vacant = g.present.is_empty() && g.lost.is_empty();
        if !self.abilities.pt_reclaim || !vacant || !g.writable.is_full() {
            return;
        }
        // SAFETY: the lock is held, so the tables are true: there is nothing to lose.
        let _ = unsafe { self.memory.drop_pages(pmd.addr(), PMD_SIZE) };
        self.not_lazy(g, PageMask::FULL);
    }

    /// Moves `pages` between the range and the same places of the frame; what is refused as a
    /// whole is tried in smaller pieces, down to single pages.
    pub(super) fn move_pages(&self, dir: Dir, pmd: Pmd, frame: Frame, pages: PageMask) -> Moved {
        self.move_until(dir, pmd, frame, pages, Busy::GoesOn)
    }

    /// As `move_pages`; `busy` says what to do at the first page that is shared or pinned.
    pub(super) fn move_until(
        &self,
        dir: Dir,
        pmd: Pmd,
        frame: Frame,
        pages: PageMask,
        busy: Busy,
    ) -> Moved {
        let mut out = Moved::default();
        for run in pages.runs() {
            let mut at = run.start;
            let mut step = run.len();
            while at < run.end {
                let n = step.min(run.end - at);
                let Err(e) = self.move_run(dir, pmd, frame, at, n) else {
                    out.moved = out.moved.or(PageMask::of(at..at + n));
                    at += n;
                    continue;
                };
                let done = self.note_refusal(e).min(n);
                out.moved = out.moved.or(PageMask::of(at..at + done));
                at += done;
                if busy == Busy::Stops && matches!(e, Refused::Busy { .. }) {
                    out.busy = true;
                    return out;
                }
                if n > 16 {
                    step = 16;
                } else if n > 1 {
                    step = 1;
                } else {
                    if let Refused::Hole { .. } = e {
                        out.holes = out.holes.or(PageMask::of(at..at + 1));
                    }
                    at += 1;
                }
            }
        }
        out
    }

    /// Counts why a move was refused. Returns the pages that moved before.
    pub(super) fn note_refusal(&self, e: Refused) -> usize {
        let s = self.stats();
        match e {
            Refused::Busy { .. } => s.move_busy.inc(),
            Refused::Hole { .. } => s.move_hole.inc(),
            Refused::Invalid => s.move_split.inc(),
            _ => {}
        }
        e.done() / PAGE_SIZE
    }

    /// One move.
    ///
    /// # Safety
    /// As [`Memory::mv`].
    unsafe fn mv(&self, dir: Dir, dst: usize, src: usize, len: usize) -> Result<(), Refused> {
        let mut uncounted = 0;
        // SAFETY: the caller's contract.
        let r = unsafe { self.memory.mv(dir, dst, src, len, &mut uncounted) };
        self.stats().move_uncounted.add(uncounted as u64);
        r
    }

    /// Moves pages of a range; goes on after partial progress.
    pub(super) fn move_run(
        &self,
        dir: Dir,
        pmd: Pmd,
        frame: Frame,
        first: usize,
        n: usize,
    ) -> Result<(), Refused> {
        if !self.abilities.mv {
            return Err(Refused::Invalid);
        }
        let prog = pmd.page_addr(first);
        let stage = self.frames.addr(frame) + first * PAGE_SIZE;
        let (dst, src) = match dir {
            Dir::Out => (stage, prog),
            Dir::In => (prog, stage),
        };
        let len = n * PAGE_SIZE;
        let mut at = 0;
        let mut tries = 0;
        loop {
            // SAFETY: the range's lock is held, so nobody else moves its pages; the program
            // accesses its memory by address, not through Rust references.
            match unsafe { self.mv(dir, dst + at, src + at, len - at) } {
                Ok(()) => return Ok(()),
                // Mappings are being changed by another thread, or a page was locked: try again,
                // but do not spin for ever.
                Err(Refused::Again { done }) if done > 0 || tries < 1000 => {
                    at += done;
                    tries = if done > 0 { 0 } else { tries + 1 };
                    if at >= len {
                        return Ok(());
                    }
                }
                // The kernel may hold a brief reference of its own, for instance to a page that
                // our own transfer has just released.
                Err(Refused::Busy { done }) if done > 0 || tries < 3 => {
                    at += done;
                    tries = if done > 0 { 0 } else { tries + 1 };
                    if at >= len {
                        return Ok(());
                    }
                }
                Err(e) => return Err(e.after(at)),
            }
        }
    }
}

/// What a move does at a page that is shared or pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Busy {
    Stops,
    /// It leaves that page where it is.
    GoesOn,
}

/// What became of a move.
#[derive(Default)]
pub(super) struct Moved {
    pub(super) moved: PageMask,
    /// Pages that were not there, whatever the table said.
    pub(super) holes: PageMask,
    /// Left off at a page that is shared or pinned.
    pub(super) busy: bool,
}
