//! Swapping devices off: this process's part of it.
//!
//! Ranges are looked at in the order of their addresses, until a pass finds nothing on the devices
//! that leave. Only this thread gives slots, and none there any more, so nothing comes after.

use super::transfer::TRANSFERS;
use super::Reclaim;
use crate::control::{Phase, MAX_DEVICES};
use crate::device::Op;
use crate::mm::Pmd;
use crate::swap_cache::{DeviceSet, Frame, Leave, Since, Start, Taken, To};
use core::sync::atomic::Ordering::*;

/// Ranges being read at most, and looked at in one turn.
const READS: usize = 4;
const LOOKS: usize = 4096;

pub(super) struct SwapOff {
    /// Of each device that leaves, the epoch of its swapoff; 0 for the others.
    epochs: [u32; MAX_DEVICES],
    leaving: DeviceSet,
    /// A pass is under way, and this range is its next.
    next: Option<Pmd>,
    /// The pass met something, so there will be another.
    again: bool,
    /// When the pass began.
    since: Since,
    /// Ranges that were read, to be written elsewhere.
    arrived: [Option<Taken>; TRANSFERS],
}

impl SwapOff {
    pub(super) fn new() -> SwapOff {
        SwapOff {
            epochs: [0; MAX_DEVICES],
            leaving: DeviceSet::default(),
            next: None,
            again: false,
            since: Since::default(),
            arrived: [None; TRANSFERS],
        }
    }

    pub(super) fn is_active(&self) -> bool {
        self.next.is_some() || self.has_arrived()
    }

    fn has_arrived(&self) -> bool {
        self.arrived.iter().any(Option::is_some)
    }

    pub(super) fn arrive(&mut self, taken: Taken) {
        // One for each transfer, so there is room.
        if let Some(place) = self.arrived.iter_mut().find(|p| p.is_none()) {
            *place = Some(taken);
        }
    }

    /// Ranges that arrived and were not written.
    pub(super) fn take_arrived(&mut self) -> impl Iterator<Item = Taken> {
        core::mem::replace(&mut self.arrived, [None; TRANSFERS])
            .into_iter()
            .flatten()
    }
}

impl Reclaim<'_> {
    /// Goes on with swapping devices off, if any are.
    pub(super) fn leave_devices(&mut self) {
        self.look_for_swapoff();
        self.write_arrived();
        let mut frame = None;
        for _ in 0..LOOKS {
            let Some(from) = self.swapoff.next else {
                break;
            };
            match self.cache.ranges.next(from) {
                None => {
                    self.end_pass();
                    break;
                }
                Some(pmd) if self.leave(pmd, &mut frame) => {
                    self.swapoff.next = Some(Pmd(pmd.0 + 1));
                }
                Some(pmd) => {
                    self.swapoff.next = Some(pmd);
                    break;
                }
            }
        }
        if let Some(f) = frame {
            self.cache.put_or_clear(f);
        }
    }

    /// A device was swapped off, or on again.
    fn look_for_swapoff(&mut self) {
        let mut epochs = [0; MAX_DEVICES];
        let mut leaving = DeviceSet::default();
        for (d, entry) in self.cache.charge.control.devices().iter().enumerate() {
            let usage = entry.usage();
            if usage.phase != Phase::On {
                epochs[d] = usage.epoch;
                leaving.add(d);
            }
        }
        if epochs == self.swapoff.epochs {
            return;
        }
        self.cache.slots.set_leaving(leaving);
        self.swapoff.epochs = epochs;
        self.swapoff.leaving = leaving;
        self.swapoff.next = None;
        // There may be room again.
        self.cache.full.store(false, Relaxed);
        if !leaving.is_empty() {
            self.begin_pass();
        }
    }

    fn begin_pass(&mut self) {
        self.swapoff.next = Some(Pmd(0));
        self.swapoff.again = false;
        self.swapoff.since = self.cache.moves.now();
    }

    fn end_pass(&mut self) {
        let moved = !self.cache.moves.none_since(self.swapoff.since);
        if self.swapoff.again || moved {
            return self.begin_pass();
        }
        self.swapoff.next = None;
        for (left, &epoch) in self.kick.proc().left.iter().zip(&self.swapoff.epochs) {
            left.store(epoch, Release);
        }
        self.cache.charge.call();
    }

    /// False if there is no room to go on now.
    fn leave(&mut self, pmd: Pmd, frame: &mut Option<Frame>) -> bool {
        loop {
            // Before the range is marked as being read. The first places are left to writes.
            let Some(slot) = self.io.free().next_back() else {
                return false;
            };
            let devices = self.swapoff.leaving;
            match self.cache.begin_leave(pmd, devices, frame) {
                Leave::Nothing => return true,
                Leave::Later => {
                    self.swapoff.again = true;
                    return true;
                }
                Leave::NeedFrame => {
                    let reading = self.io.each().filter(|t| t.op == Op::Read).count();
                    let slots = self.io.free().count();
                    if reading >= READS || slots < 2 || self.cannot_write() {
                        return false;
                    }
                    *frame = self.cache.ready_within_limit();
                    if frame.is_none() {
                        return false;
                    }
                }
                Leave::Read(r) => {
                    self.swapoff.again = true;
                    self.transfer(slot, Op::Read, r);
                    return true;
                }
            }
        }
    }

    /// What is read could go nowhere.
    fn cannot_write(&self) -> bool {
        self.cache.full.load(Relaxed) || self.is_paused() || self.swapoff.has_arrived()
    }

    fn write_arrived(&mut self) {
        for i in 0..TRANSFERS {
            let Some(taken) = self.swapoff.arrived[i] else {
                continue;
            };
            let Some(slot) = self.write_slot() else {
                return;
            };
            if !self.has_swap() {
                return;
            }
            match self.cache.start_write(taken, To::Device, self.devices) {
                Start::Write(w) => self.transfer(slot, Op::Write, w),
                Start::Busy => continue,
                Start::Full => self.note_full(),
                Start::Clean | Start::Active => {}
            }
            self.swapoff.arrived[i] = None;
        }
    }
}
