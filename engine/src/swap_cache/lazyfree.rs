//! What has left stays where it is for as long as the kernel has no other use for the memory.
//!
//! Beside what `--memory` allows a run's memory group often has some left. The kernel lets it be used without being in
//! the way: of memory that was given `MADV_FREE` it takes what was not accessed lately as soon as it needs any, without
//! I/O. So a page that is in its slot is put back in its place, protected against being written to, and given that.
//! It is not charged any more.
//!
//! Such a page is *lazy*. It is the same as in its slot, so the kernel may take it at any time, and so may we. The program reads
//! it without a fault. Where it is gone a fault reads it from its slot, as if it had never stayed. A write to it is a
//! fault, and makes it the program's again: that is all that ends a page's being lazy but the loss of its memory.
//!
//! The protection is lost where a userfaultfd's registration ends, where mappings move, and in a child. So nothing
//! stays there: see who calls `drop_lazy`.
#![allow(unsafe_code)]

use super::frames::For;
use super::plan::Plan;
use super::{Dir, FillBuffers, Frame, Memory, SwapCache};
use crate::control::{Control, FILE};
use crate::mm::{PageMask, Pmd, PAGE_SIZE, PMD_NR};
use crate::policy::{List, Unit, FILL_MAX};
use crate::seal::Page;
use crate::vma::RangeGuard;
use core::sync::atomic::{AtomicI64, Ordering::Relaxed};

pub(super) struct LazyFree {
    /// Lazy pages, with those that the kernel has taken and nobody has touched since.
    pages: AtomicI64,
    /// All slots are on disks. In memory in place of one a read takes no longer.
    pays: bool,
}

/// What came of lazy pages that are written to.
#[derive(Default)]
struct Reused {
    /// These are the program's again.
    back: PageMask,
    /// The kernel has taken these, or they could not be put back: they are in their slots only.
    lost: PageMask,
}

impl LazyFree {
    pub fn new(control: &Control) -> LazyFree {
        LazyFree {
            pages: AtomicI64::new(0),
            pays: control.devices().iter().all(|d| d.kind == FILE),
        }
    }
}

impl<M: Memory> SwapCache<M> {
    /// Whether what leaves may stay where it is.
    pub fn may_stay(&self) -> bool {
        // System calls that write to a lazy page would not wait for us but fail.
        let waits = self.charge.control.settings.user_mode_only == 0;
        waits && self.lazyfree.pays && self.abilities.mv && self.charge.lazyfree_limit() > 0
    }

    /// Pages of the frame, which are in their slots, become lazy, as far as they can.
    pub(super) fn stay(&self, pmd: Pmd, g: &mut RangeGuard<'_>, frame: Frame, pages: PageMask) {
        // What is read page by page may not be readable. What is not writable may not be ours soon.
        if frame.is_for() != For::Pieces || !self.may_stay() || g.salvage {
            return;
        }
        let base = self.frames.addr(frame) as *const u8;
        for run in pages.and(g.writable).and(g.swapped).runs() {
            let (got, _) = self.fill_run(run, |at, n| {
                let src = base.wrapping_add(at * PAGE_SIZE);
                self.memory
                    .copy_protected(pmd.page_addr(at), src, n * PAGE_SIZE)
            });
            for run in got.runs() {
                let (at, len) = (pmd.page_addr(run.start), run.len() * PAGE_SIZE);
                // SAFETY: they are in their slots, and nobody can have written to them.
                // What is not freed is there for longer.
                let _ = unsafe { self.memory.free_lazily(at, len) };
            }
            g.lazy = g.lazy.or(got);
            self.lazyfree.pages.fetch_add(got.count() as i64, Relaxed);
            self.stats().pglazyfree.add(got.count() as u64);
        }
    }

    /// Pages that are not lazy any more, whatever became of them.
    pub(super) fn not_lazy(&self, g: &mut RangeGuard<'_>, pages: PageMask) {
        let no_more = g.lazy.and(pages);
        if !no_more.is_empty() {
            g.lazy = g.lazy.minus(pages);
            self.lazyfree
                .pages
                .fetch_sub(no_more.count() as i64, Relaxed);
        }
    }

    /// Of `pages` nothing stays. This needs no userfaultfd.
    pub fn drop_lazy(&self, pmd: Pmd, g: &mut RangeGuard<'_>, pages: PageMask) {
        for run in g.lazy.and(pages).runs() {
            let (at, len) = (pmd.page_addr(run.start), run.len() * PAGE_SIZE);
            // Locked since: who locks faults them in after this.
            // SAFETY: they are in their slots, and nobody can have written to them.
            let _ = unsafe { self.memory.drop_even_locked(at, len) };
        }
        self.not_lazy(g, pages);
    }

    /// Nothing stays anywhere. Where reclaim goes on, more may come to stay.
    pub fn drop_all_lazy(&self) {
        if self.lazyfree.pages.load(Relaxed) > 0 {
            self.ranges.for_each(|pmd, r| {
                let mut g = r.lock();
                self.drop_lazy(pmd, &mut g, PageMask::FULL);
            });
        }
    }

    /// Now and then: gives back what may not stay any more, and tells what stays.
    pub fn settle_lazyfree(&self) {
        if self.charge.must_drop_lazy() {
            self.drop_all_lazy();
        }
        let pages = self.lazyfree.pages.load(Relaxed);
        self.charge.proc().lazyfree_pages.store(pages, Relaxed);
        self.stats()
            .lazyfree_bytes
            .set(pages.max(0) as u64 * PAGE_SIZE as u64);
    }

    /// A fault on a lazy page, to be read: the kernel has taken it. Or the message is an old one, and it is there. Others near
    /// it that the kernel has taken are to come with it.
    pub(super) fn is_lost(&self, pmd: Pmd, g: &mut RangeGuard<'_>, page: usize) {
        if !g.lazy.has(page) {
            return;
        }
        self.stats().lazyfree_lost.inc();
        self.drop_lazy(pmd, g, PageMask::of(page..page + 1));
        let near = page.saturating_sub(FILL_MAX)..PMD_NR.min(page + FILL_MAX);
        let near = g.lazy.and(PageMask::of(near));
        let first = near.runs().next().map(|run| run.start);
        let end = near.runs().last().map(|run| run.end);
        let looked = first.zip(end).map(|(first, end)| first..end);
        let there = looked.and_then(|pages| self.memory.which_are_there(pmd, pages));
        if let Some(there) = there {
            self.not_lazy(g, near.minus(there));
        }
    }

    /// A write to a lazy page: it is the program's again, or gone. With it come neighbours that are lazy too: as many as `unit`
    /// says, for a walk that writes.
    pub(super) fn reuse(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        page: usize,
        unit: Unit,
        buffers: &mut FillBuffers,
    ) -> Plan {
        let pages = unit.of(g.lazy, page);
        if !self.charge_for_fault(pages.count()) {
            return Plan::NeedRoom;
        }
        let Reused { back, lost } = self.take_back(pmd, g, pages, buffers);
        self.charge.uncharge(pages.minus(back).count());
        self.not_lazy(g, back.or(lost));
        self.stats().lazyfree_reuse.add(back.count() as u64);
        if !back.is_empty() {
            g.belongs_to(List::Main);
            g.credit.earn(page);
            self.note_stay(pmd, back);
            self.became_present(pmd, g, back);
        }
        if !back.has(page) {
            self.drop_lazy(pmd, g, PageMask::of(page..page + 1));
            self.memory.wake(pmd.page_addr(page), PAGE_SIZE);
        }
        Plan::Served
    }

    /// Makes lazy pages ones that the kernel may not take, by way of a frame. What can't be moved is what it was.
    fn take_back(
        &self,
        pmd: Pmd,
        g: &RangeGuard<'_>,
        pages: PageMask,
        buffers: &mut FillBuffers,
    ) -> Reused {
        let Some(frame) = self.frames.take_empty(For::Pieces) else {
            return Reused::default();
        };
        let out = self.move_pages(Dir::Out, pmd, frame, pages);
        let kept = self.keep(pmd, g, frame, out.moved, buffers);
        let back = self.move_pages(Dir::In, pmd, frame, kept).moved;
        let lost = out.moved.minus(back);
        self.frames.drop_pages(frame, lost, &self.memory);
        self.frames.put_empty(frame);
        Reused {
            back,
            lost: lost.or(out.holes),
        }
    }

    /// Writes to pages in the frame, so that the kernel takes them no more. Those that it has not taken before.
    fn keep(
        &self,
        pmd: Pmd,
        g: &RangeGuard<'_>,
        frame: Frame,
        pages: PageMask,
        buffers: &mut FillBuffers,
    ) -> PageMask {
        let mut kept = PageMask::EMPTY;
        for page in pages.runs().flatten() {
            let at = (self.frames.addr(frame) + page * PAGE_SIZE) as *mut u8;
            // If the kernel has been quicker there are zeros now, with a byte of it.
            // SAFETY: the frame is ours, and what is missing there the kernel fills with zeros.
            unsafe { at.write_volatile(at.read_volatile()) };
            // SAFETY: the same.
            if self.is_copy(pmd, g, page, unsafe { &*(at as *const Page) }, buffers) {
                kept.insert(page);
            }
        }
        kept
    }

    /// Whether that is what the page's slot has.
    fn is_copy(
        &self,
        pmd: Pmd,
        g: &RangeGuard<'_>,
        page: usize,
        copy: &Page,
        buffers: &mut FillBuffers,
    ) -> bool {
        let Some((scratch, new)) = buffers.lend(1) else {
            return false;
        };
        self.charge_own(new);
        // SAFETY: nobody else uses the buffer.
        let scratch = unsafe { &mut *(scratch as *mut Page) };
        self.is_in_slot(pmd, g, page, copy, scratch)
    }
}
