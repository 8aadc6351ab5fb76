//! Reads on their way: from the plan of what to read to the pages' being there.

use super::Handler;
use crate::device::{Completion, Op, Request};
use crate::mm::{PageMask, Pmd, SwapEntry, SwapPlace, PAGE_SIZE, PMD_NR};
use crate::swap_cache::{Frame, Gather, GatherPlan, Source};
use crate::sys::thread::now_ns;

/// Transfers that the handler has in flight at most.
pub const DEPTH: usize = 128;
/// Reads at a time that may go through memory of the engine's own to be few, and what part of the limit one
/// of them may take.
pub const GATHERS: usize = 2;
const GATHERS_SHARE: i64 = 64;

/// What a transfer in flight is for.
#[derive(Clone, Copy)]
pub struct Transfer {
    pmd: Pmd,
    whole: bool,
    pages: usize,
    start_ns: u64,
    /// Requests that are not complete, and one more as long as they are being made.
    pending: u32,
    failed: bool,
}

/// Where to read: a frame, in which each page has its place, or a fill buffer, in which they lie one
/// behind the other.
#[derive(Clone, Copy)]
pub enum To {
    Frame(Frame),
    Buffer(u32),
}

/// What is to be read: pages of a range.
pub struct Read {
    pub pmd: Pmd,
    pub to: To,
    pub pages: PageMask,
    pub entry: SwapPlace,
    /// The page that is wanted first.
    pub page: usize,
    /// When the fault came; 0 if nobody waits.
    pub start_ns: u64,
}

impl Handler<'_> {
    /// Begins a transfer: one request for each piece that the pages are in, or fewer where that saves many.
    pub(super) fn submit(&mut self, read: Read) {
        let to = self.place_of(&read);
        let whole = matches!(read.to, To::Frame(_));
        let slot = loop {
            match self.transfers.iter().position(Option::is_none) {
                Some(i) => break i,
                None => {
                    self.kick_queues();
                    self.reap(true);
                }
            }
        };
        self.transfers[slot] = Some(Transfer {
            pmd: read.pmd,
            whole,
            pages: read.pages.count(),
            start_ns: read.start_ns,
            pending: 1,
            failed: false,
        });
        self.in_flight += 1;
        let gathered = self.submit_gathered(slot, &read);
        let rest = read.pages.minus(gathered);
        for piece in self.cache.pieces(read.pmd, read.entry, rest) {
            let (start, n) = (piece.pages.start, piece.pages.len());
            let addr = to.addr(start) as *mut u8;
            let target = (read.page.clamp(start, start + n - 1) - start) * PAGE_SIZE;
            self.request(slot, piece.entry, n, addr, target);
        }
        self.finish(Completion {
            tag: slot as u64,
            result: Ok(()),
        });
    }

    fn place_of(&self, read: &Read) -> Source {
        match read.to {
            To::Frame(f) => self.cache.place_of(f),
            To::Buffer(b) => Source::packed(self.buffers.addr(b) as usize, read.pages),
        }
    }

    /// Requests pages in the order of their slots, where that saves many requests. Gives those pages.
    fn submit_gathered(&mut self, slot: usize, read: &Read) -> PageMask {
        if read.pages.count() == 1 {
            // Most reads of who jumps.
            return PageMask::EMPTY;
        }
        let pieces = || self.cache.pieces(read.pmd, read.entry, read.pages);
        // Of memory a request costs little more than its bytes.
        let on_disk = |e: SwapEntry| self.cache.is_disk(e.device().index());
        if !pieces().next().is_some_and(|first| on_disk(first.entry)) {
            return PageMask::EMPTY;
        }
        let fit = self.cache.charge.limit() / (PMD_NR as i64 * GATHERS_SHARE);
        let usable = &self.gathers[..(fit as usize).clamp(1, GATHERS)];
        let Some(i) = usable.iter().position(Gather::is_free) else {
            return PageMask::EMPTY;
        };
        let Some(plan) = GatherPlan::of(pieces()) else {
            return PageMask::EMPTY;
        };
        let to = self.place_of(read);
        let new = self.gathers[i].begin(slot, to, &plan);
        self.cache.charge_own(new);
        self.cache.stats().swpin_gathered.inc();
        for run in plan.runs() {
            let addr = self.gathers[i].addr(&run);
            self.request(slot, run.entry, run.nr, addr, 0);
        }
        plan.pages
    }

    /// Reads `n` slots to memory that is transfer `slot`'s until the last of its requests has ended.
    fn request(&mut self, slot: usize, entry: SwapEntry, n: usize, addr: *mut u8, target: usize) {
        if let Some(t) = &mut self.transfers[slot] {
            t.pending += 1;
        }
        let len = n * PAGE_SIZE;
        self.cache.stats().device_read_bytes.add(len as u64);
        let req = Request {
            op: Op::Read,
            offset: entry.byte_offset(),
            addr,
            len,
            tag: slot as u64,
            target,
        };
        let queue = &mut self.queues[entry.device().index()];
        // The one thread that jumps waits for this read and for nothing else.
        if n == 1 && self.in_flight == 1 && self.near.is_near() && self.cache.reads_are_quick() {
            // SAFETY: the memory is the transfer's.
            if let Some(result) = unsafe { queue.read_now(&req) } {
                let tag = slot as u64;
                return self.finish(Completion { tag, result });
            }
        }
        // SAFETY: the memory belongs to this transfer until the completion of its last request was
        // handled.
        while unsafe { self.queues[entry.device().index()].submit(req) }.is_err() {
            self.kick_queues();
            self.reap(true);
        }
    }

    /// Ends the transfers that are complete. True if there were any.
    pub(super) fn reap(&mut self, wait: bool) -> bool {
        if self.in_flight == 0 {
            return false;
        }
        let mut any = false;
        for q in 0..self.queues.len() {
            // A queue is not deeper than this.
            let mut done = [None::<Completion>; DEPTH];
            let mut n = 0;
            if self.queues[q].in_flight() > 0 {
                self.queues[q].reap(wait && !any, &mut |c| {
                    if n < DEPTH {
                        done[n] = Some(c);
                        n += 1;
                    }
                });
            }
            any |= n > 0;
            for c in done.into_iter().flatten() {
                self.finish(c);
            }
        }
        any
    }

    /// A request ended; with the last one its transfer does.
    fn finish(&mut self, c: Completion) {
        let Some(slot) = self.transfers.get_mut(c.tag as usize) else {
            return;
        };
        let Some(t) = slot else {
            return;
        };
        t.failed |= c.result.is_err();
        t.pending -= 1;
        if t.pending > 0 {
            return;
        }
        let t = *t;
        *slot = None;
        self.in_flight -= 1;
        let ok = !t.failed;
        for gather in &mut self.gathers {
            gather.end(c.tag as usize, ok);
        }
        if t.whole {
            if !self.cache.swapin_done(t.pmd, ok) {
                self.ahead.remove(t.pmd);
            }
        } else {
            self.cache.fill_done(t.pmd, ok, &mut self.buffers);
        }
        if t.start_ns != 0 {
            let took = now_ns() - t.start_ns;
            self.cache.stats().fault_ns.record(took);
            self.intake.waited(took);
            self.cache.read_took(t.pages, took);
        }
    }
}
