//! Reads on their way: from the plan of what to read to the pages' being there.
#![allow(unsafe_code)]

use super::Handler;
use crate::device::{Op, Until};
use crate::mm::{PageMask, Pmd, SwapEntry, SwapPlace, PAGE_SIZE, PMD_NR};
use crate::swap_cache::{Frame, Gather, GatherPlan, Source};
use crate::swap_io::{Ended, Part, When};
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
            if let Some(slot) = self.io.free().next() {
                break slot;
            }
            self.io.kick();
            self.reap(Until::OneEnded);
        };
        let transfer = Transfer {
            pmd: read.pmd,
            whole,
            pages: read.pages.count(),
            start_ns: read.start_ns,
        };
        self.io.begin(slot, transfer);
        let gathered = self.submit_gathered(slot, &read);
        let rest = read.pages.minus(gathered);
        for piece in self.cache.pieces(read.pmd, read.entry, rest) {
            let (start, end) = (piece.pages.start, piece.pages.end);
            let part = Part {
                op: Op::Read,
                device: piece.entry.device().index(),
                offset: piece.entry.byte_offset(),
                nr: end - start,
                addr: to.addr(start) as *mut u8,
                pages: piece.pages,
                target: (read.page.clamp(start, end - 1) - start) * PAGE_SIZE,
            };
            self.request(slot, part);
        }
        self.io.send(slot);
        self.end_transfers();
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
            let part = Part {
                op: Op::Read,
                device: run.entry.device().index(),
                offset: run.entry.byte_offset(),
                nr: run.nr,
                addr: self.gathers[i].addr(&run),
                // Whose they are says the plan; if one fails all are read again.
                pages: 0..0,
                target: 0,
            };
            self.request(slot, part);
        }
        plan.pages
    }

    /// Reads slots to memory that is transfer `slot`'s until its end.
    fn request(&mut self, slot: usize, part: Part) {
        let bytes = (part.nr * PAGE_SIZE) as u64;
        self.cache.stats().device_read_bytes.add(bytes);
        // The one thread that jumps waits for this read and for nothing else.
        let alone = part.nr == 1 && self.io.in_flight() == 1 && self.colocation.is_active();
        let when = match alone && self.cache.reads_are_quick() {
            true => When::AtOnce,
            false => When::Sent,
        };
        // SAFETY: frame, buffer or gathering memory belong to this transfer until its end was handled.
        unsafe { self.io.request(slot, part, when) };
    }

    /// Ends the transfers that are complete. False if no request has ended.
    pub(super) fn reap(&mut self, until: Until) -> bool {
        if self.io.in_flight() == 0 {
            return false;
        }
        let any = self.io.reap(until);
        self.end_transfers();
        any
    }

    fn end_transfers(&mut self) {
        while let Some(end) = self.io.ended() {
            self.end_transfer(&end);
        }
    }

    fn end_transfer(&mut self, end: &Ended<Transfer>) {
        let (t, ok) = (end.what, end.is_ok());
        for gather in &mut self.gathers {
            gather.end(end.place, ok);
        }
        let pages = match t.whole {
            true => {
                if !self.cache.swapin_done(t.pmd, ok) {
                    self.ahead.remove(t.pmd);
                }
                t.pages
            }
            false => self.cache.fill_done(t.pmd, ok, &mut self.buffers),
        };
        if t.start_ns != 0 {
            let took = now_ns() - t.start_ns;
            self.cache.stats().fault_ns.record(took);
            self.intake.waited(took);
            self.cache.read_took(pages, took);
            self.kick.proc().count_return(took);
        }
    }
}
