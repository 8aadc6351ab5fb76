//! Transfers: what reclaim writes, and what it reads that is to leave a device.
#![allow(unsafe_code)]

use super::{Reclaim, BUFFERS_NS};
use crate::device::{Op, Until};
use crate::mm::{PageMask, PAGE_SIZE, PMD_SIZE};
use crate::swap_cache::{Transfer, Writes};
use crate::swap_io::{Ended, Part, When};

/// Ranges being written, or read to leave a device, at most.
pub(super) const TRANSFERS: usize = crate::control::WRITES;
/// Requests in flight at most; a range that leaves in pieces needs one for each.
pub(super) const DEPTH: usize = 64;
/// After so many failed writes in a row the devices are left alone for a while.
const FAILED_MANY: u32 = 16;
/// For so long.
const PAUSE_FAILED_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy)]
pub(super) struct InFlight {
    pub(super) op: Op,
    all: Transfer,
    /// What is being transferred now.
    now: PageMask,
    /// What is to be, when that has ended.
    then: PageMask,
    /// What could not be before.
    failed: PageMask,
}

impl Reclaim<'_> {
    pub(super) fn writes_fail(&self) -> bool {
        self.failed_in_row >= FAILED_MANY
    }

    fn unused_slots(&self) -> impl Iterator<Item = usize> + '_ {
        self.io.free()
    }

    /// What has been written in the last second.
    fn writes_lately(&self) -> Writes {
        match self.last_tick_ns - self.last_folio_ns > BUFFERS_NS {
            true => Writes::Pieces,
            false => Writes::Folios,
        }
    }

    /// The place of another write: as many as there are buffers for.
    pub(super) fn write_slot(&self) -> Option<usize> {
        let usable = self.cache.seal_buffers(self.writes_lately());
        self.io.free().next().filter(|&slot| slot < usable)
    }

    /// Begins a transfer, in a free place.
    pub(super) fn transfer(&mut self, slot: usize, op: Op, t: Transfer) {
        if op == Op::Write {
            self.last_write_ns = self.last_tick_ns;
            if Writes::of(t.pages.count()) == Writes::Folios {
                self.last_folio_ns = self.last_tick_ns;
            }
        }
        self.go_on(slot, op, t, (t.pages, PageMask::EMPTY));
        self.io.kick();
        self.end_transfers();
    }

    /// Has as much of `left`, pages of a transfer of which some have failed, be transferred as can be at once: one request for
    /// each piece of the range's place; one for each page of a read after one that failed, to know which it was.
    fn go_on(&mut self, slot: usize, op: Op, all: Transfer, (left, failed): (PageMask, PageMask)) {
        let (now, memory) = match op {
            Op::Write => {
                let now = self.cache.seals_at_once(left);
                (now, self.cache.seal(&all, now, slot))
            }
            Op::Read => (left, self.cache.place_of(all.frame)),
        };
        let then = left.minus(now);
        self.io.begin(
            slot,
            InFlight {
                op,
                all,
                now,
                then,
                failed,
            },
        );
        let pieces = self.cache.pieces(all.pmd, all.entry, now);
        // What lies together in memory needs one request for slots that do, whichever pages they are of.
        for piece in pieces.joined(memory.is_packed()) {
            if op == Op::Write {
                // Pieces lie in one cluster each.
                let cluster = piece.entry.byte_offset() / PMD_SIZE as u64;
                let device = piece.entry.device().index();
                self.kick.proc().writing[slot].add(device, cluster as usize);
            }
            let step = if all.one_by_one { 1 } else { piece.nr };
            for at in (0..piece.nr).step_by(step) {
                // In pieces that were read one by one page follows page.
                let start = piece.pages.start + at;
                let end = if all.one_by_one {
                    start + 1
                } else {
                    piece.pages.end
                };
                let part = Part {
                    op,
                    device: piece.entry.device().index(),
                    offset: piece.entry.byte_offset() + (at * PAGE_SIZE) as u64,
                    nr: step,
                    addr: memory.addr(start) as *mut u8,
                    pages: start..end,
                    target: 0,
                };
                self.request(slot, part);
            }
        }
        self.io.send(slot);
    }

    fn request(&mut self, slot: usize, part: Part) {
        let (stats, bytes) = (self.cache.stats(), (part.nr * PAGE_SIZE) as u64);
        match part.op {
            Op::Write => {
                stats.device_write_bytes.add(bytes);
                stats.count_swpout(part.nr);
            }
            Op::Read => stats.device_read_bytes.add(bytes),
        }
        // SAFETY: frame and buffer belong to this transfer until its end was handled.
        unsafe { self.io.request(slot, part, When::Sent) };
    }

    /// Handles transfers that have ended.
    pub(super) fn reap(&mut self, until: Until) {
        self.io.reap(until);
        self.end_transfers();
    }

    pub(super) fn end_transfers(&mut self) {
        while let Some(end) = self.io.ended() {
            self.kick.proc().writing[end.place].clear();
            match end.what.op {
                Op::Read => self.end_read(&end),
                Op::Write => self.end_write(&end),
            }
        }
    }

    /// What is to leave a device has been read.
    fn end_read(&mut self, end: &Ended<InFlight>) {
        self.cache.stats().swap_read_errors.add(end.errors.into());
        let t = end.what;
        if let Some(taken) = self.cache.leave_done(t.all.pmd, end.failed.and(t.now)) {
            self.swapoff.arrive(taken);
        }
    }

    fn end_write(&mut self, end: &Ended<InFlight>) {
        let t = end.what;
        let failed = t.failed.or(end.failed.and(t.now));
        // A quota, or a disk that was filled after the place was reserved, is no error of the device.
        self.failed_in_row = match end.is_ok() {
            true => 0,
            false => self.failed_in_row.saturating_add(end.errors),
        };
        self.cache.stats().swap_write_errors.add(end.errors.into());
        if !(t.then.is_empty() || end.no_space || self.writes_fail()) {
            self.go_on(end.place, Op::Write, t.all, (t.then, failed));
            return self.io.kick();
        }
        // What was not tried any more failed too.
        let failed = failed.or(t.then);
        self.cache.writeback_done(t.all.pmd, t.all.pages, failed);
        if self.writes_fail() {
            self.pause(PAUSE_FAILED_NS);
        }
        if end.no_space {
            self.note_full();
        } else if !failed.is_empty() && !self.warned_write {
            self.warned_write = true;
            self.cache.charge.log(
                "warning: a write to swap failed; what it was to hold stays in memory. \
                 See swap_write_errors in the statistics",
            );
        }
        self.kick.made_progress();
    }

    /// Gives back what no write needs now.
    pub(super) fn release_buffers(&self) {
        self.release_all_but(0);
    }

    /// The same, where no folios are written.
    pub(super) fn release_folios_buffers(&self) {
        self.release_all_but(self.cache.seal_buffers(Writes::Pieces));
    }

    /// The first `keep` small ones stay.
    fn release_all_but(&self, keep: usize) {
        for slot in self.unused_slots() {
            self.cache.release_large_buffer(slot);
            if slot >= keep {
                self.cache.release_small_buffer(slot);
            }
        }
    }
}
