//! The way up: one thread keeps memory free ahead of demand.
//!
//! It evicts the ranges that have been resident longest until what can be had without it lies
//! between the watermarks, writes them with several requests in flight, and keeps zeroed folios
//! ready for first touches.

mod full;
mod inactive;
mod more;
mod spot;
mod swapoff;
mod transfer;
mod watch;

use self::inactive::Inactive;
use self::more::Step;
use self::transfer::{InFlight, DEPTH, TRANSFERS};
use crate::control::Pressed;
use crate::device::{Device, Op, Until};
use crate::mm::{PAGE_SIZE, PMD_NR};
use crate::policy::{staging, InVain};
use crate::pressure::Kick;
use crate::swap_cache::{Bytes, Start, SwapCache, Taken, To, Victim, WriteBack, WRITE_BACK};
use crate::swap_io::SwapIo;
use crate::sys::futex::{self, Scope};
use crate::sys::thread::now_ns;
use crate::sys::Errno;
use core::sync::atomic::Ordering::*;

/// Folios kept ready at most.
const READY: usize = 4;

/// How long eviction pauses when the devices are full, or this kernel cannot evict.
const PAUSE_FULL_NS: u64 = 20_000_000;
/// Full devices are asked again after this, for another process may have freed something.
const FULL_NS: u64 = 100_000_000;
/// Buffers that pages are sealed into are given back when nothing was written for so long; those that only folios need, when
/// none of them was.
const BUFFERS_NS: u64 = 1_000_000_000;
/// Blocks of compressed memory that are emptied, and ranges whose pages there go on, at a time at most.
const WRITE_BACKS: usize = 16;
/// How long reclaim rests after a round in which it could do nothing; where there is nothing to do; and while the
/// program has no memory of ours.
const IDLE_MS: u64 = 2;
const REST_MS: u64 = 100;
const REST_UNUSED_MS: u64 = 1000;

/// The reclaim thread's own state.
pub struct Reclaim<'e> {
    cache: &'e SwapCache,
    devices: &'e [Box<dyn Device>],
    kick: Kick<'e>,
    io: SwapIo<InFlight, TRANSFERS>,
    inactive: Inactive,
    /// Ranges that are still to leave because the program asked for it.
    asked: usize,
    /// First touches that had been served when we looked last.
    touched: u64,
    last_tick_ns: u64,
    /// Processor time of this thread, as the supervisor was told last.
    told_ns: u64,
    /// When something was written, by the tick before.
    last_write_ns: u64,
    /// When a folio was.
    last_folio_ns: u64,
    warned_full: bool,
    warned_write: bool,
    /// Writes that failed since one succeeded.
    failed_in_row: u32,
    /// Until then eviction is not tried: it would only move pages out and back.
    pause_until_ns: u64,
    full_since_ns: u64,
    /// The last round evicted nothing, and nothing is in flight.
    idle: bool,
    /// The supervisor has yet to say whether there is more swap, or how much memory there is.
    awaits_swap: bool,
    more: more::MoreMemory,
    swapoff: swapoff::SwapOff,
    watch: watch::Watch,
    spot: spot::Spot,
}

impl<'e> Reclaim<'e> {
    /// In the reclaim thread. All memory that it will ever need is allocated here.
    pub fn new(
        cache: &'e SwapCache,
        devices: &'e [Box<dyn Device>],
        kick: Kick<'e>,
    ) -> Result<Self, Errno> {
        kick.this_is_reclaim();
        Ok(Reclaim {
            cache,
            devices,
            kick,
            io: SwapIo::new(devices, DEPTH)?,
            inactive: Inactive::new(),
            asked: 0,
            touched: 0,
            last_tick_ns: 0,
            told_ns: 0,
            last_write_ns: 0,
            last_folio_ns: 0,
            warned_full: false,
            warned_write: false,
            failed_in_row: 0,
            pause_until_ns: 0,
            full_since_ns: 0,
            idle: false,
            awaits_swap: false,
            more: more::MoreMemory::default(),
            swapoff: swapoff::SwapOff::new(),
            watch: watch::Watch::default(),
            spot: spot::Spot::new(),
        })
    }

    fn writing(&self) -> usize {
        self.io.each().filter(|t| t.op == Op::Write).count()
    }

    /// Waits for every transfer in flight, and gives inactive ranges back.
    pub fn drain(&mut self) {
        self.cache.cancel_copies();
        while self.io.in_flight() > 0 {
            self.reap(Until::OneEnded);
        }
        for p in self.swapoff.take_arrived() {
            self.cache.activate(p);
        }
        while let Some(p) = self.inactive.pop() {
            self.cache.activate(p);
        }
    }

    /// One round: evict, write, prepare, rest.
    pub fn turn(&mut self) {
        let seq = self.kick.proc().limit_seq.load(Acquire);
        self.tick();
        self.watch.look(self.cache.program(), self.kick);
        self.spot.for_moves(self.kick);
        self.cache.copy_shared();
        self.reap(Until::Now);
        self.leave_devices();
        self.mark();
        self.shrink();
        self.prepare();
        self.kick.end_reclaim();
        if self.io.in_flight() > 0 {
            self.reap(Until::OneEnded);
        } else if let Some(ms) = self.rest() {
            futex::wait(&self.kick.proc().limit_seq, seq, Some(ms), Scope::Shared);
        }
        self.kick.begin_reclaim();
    }

    /// How long there is nothing to do, in milliseconds, if nobody calls.
    fn rest(&self) -> Option<u64> {
        let c = self.cache;
        let enough = c.free_pages() >= self.kick.high_pages();
        let nothing = c.lru.is_empty() && self.inactive.len() == 0;
        if self.swapoff.is_active() {
            Some(IDLE_MS)
        } else if enough || nothing || c.is_stuck() || self.is_paused() {
            Some(match self.kick.colocated() {
                0 if c.charge.charged() > 0 => REST_MS,
                0 => REST_UNUSED_MS,
                _ => watch::PERIOD_MS,
            })
        } else {
            self.idle.then_some(IDLE_MS)
        }
    }

    fn is_paused(&self) -> bool {
        self.pause_until_ns != 0
            && now_ns() < self.pause_until_ns
            && (self.writes_fail() || !self.can_evict_new())
    }

    /// Ranges without a place in swap can leave.
    fn can_evict_new(&self) -> bool {
        self.cache.can_take() && !self.cache.full.load(Relaxed)
    }

    /// Nothing can be evicted for a while: faults go above the limit meanwhile.
    fn pause(&mut self, ns: u64) {
        self.pause_until_ns = now_ns() + ns;
        self.stuck();
    }

    /// Whoever waits for memory has it from above the limit.
    fn stuck(&self) {
        if self.cache.give_grace() {
            self.kick.made_progress();
        }
    }

    /// Free pages when the writes in flight are done.
    fn to_come(&self) -> i64 {
        self.cache.free_pages() + (self.writing() * PMD_NR) as i64
    }

    /// Evicts until enough is free or on its way.
    fn shrink(&mut self) {
        self.say_pressed();
        // Above the limit (it may have been lowered), ready folios go first.
        while self.cache.charge.room() < 0 && self.cache.release_ready() {}
        if self.cache.charge.room() < 0 {
            self.release_buffers();
        }
        if self.is_paused() {
            return self.stuck();
        }
        if self.cache.full.load(Relaxed) && now_ns() - self.full_since_ns > FULL_NS {
            self.cache.full.store(false, Relaxed);
        }
        let Some(evicted) = self.evict() else {
            return;
        };
        self.idle = !evicted && self.io.in_flight() == 0;
        if self.awaits_swap {
            // What leaves has no place until then, and whoever wants memory waits.
            return;
        }
        self.asked = 0;
        if self.idle && !self.can_evict_new() && self.to_come() < self.kick.high_pages() {
            return self.pause(PAUSE_FULL_NS);
        }
        // Looked at everything, took nothing, and nothing is under way: waiting would not help.
        // But before the supervisor has given a limit there is one to wait for.
        let short = self.cache.free_pages() < self.kick.high_pages();
        if self.idle && short && self.cache.charge.limit() > 0 {
            self.stuck();
        } else if evicted || self.cache.free_pages() >= self.kick.low_pages() {
            self.cache.end_grace();
        }
    }

    /// Has the supervisor know when memory becomes short, and when it no longer is.
    fn say_pressed(&self) {
        let free = self.cache.free_pages();
        let pressed = if self.kick.is_starving() && free < self.kick.high_pages() {
            Pressed::Waits
        } else if free < self.kick.low_pages() {
            Pressed::Short
        } else {
            Pressed::No
        };
        if self.kick.proc().set_pressed(pressed) {
            self.cache.charge.call();
        }
    }

    /// Begins to write what is inactive until enough will be free; looks at no range twice. Says whether anything
    /// leaves. None where another write has to end first.
    fn evict(&mut self) -> Option<bool> {
        let mut looked = self.cache.lru.len() + self.inactive.len() + 1;
        let mut evicted = false;
        let mut staged = self.staged();
        self.awaits_swap = false;
        let asked = self.cache.asked.swap(0, Relaxed);
        if asked > 0 && self.asked == 0 {
            // What the program asked for comes after what was inactive before.
            self.asked = self.inactive.len();
        }
        self.asked += asked;
        while (self.to_come() < self.kick.high_pages() || self.asked > 0) && looked > 0 {
            looked -= 1;
            if !self.has_swap() {
                break;
            }
            self.spot.for_moves(self.kick);
            self.write_back(&mut evicted);
            self.deactivate_some(&mut staged);
            let slot = self.write_slot()?;
            let Some(taken) = self.inactive.pop() else {
                break;
            };
            self.asked = self.asked.saturating_sub(1);
            staged = staged.saturating_sub(self.cache.staged(taken));
            match self.start_write(taken) {
                Start::Write(w) => {
                    evicted = true;
                    self.has_room();
                    self.transfer(slot, Op::Write, w);
                    if self.writes_fail() {
                        // One at a time, to see whether they work again.
                        return None;
                    }
                }
                Start::Clean => {
                    evicted = true;
                    self.has_room();
                    self.kick.made_progress();
                }
                Start::Active => {}
                Start::Busy => {
                    self.inactive.push(taken);
                    staged += self.cache.staged(taken);
                }
                Start::Full if self.cache.swaps_nowhere() => match self.no_room() {
                    Step::Full => self.note_full(),
                    Step::Ask(_) | Step::Wait => break,
                },
                Start::Full => self.note_full(),
            }
        }
        Some(evicted)
    }

    /// What was taken out leaves: to compressed memory, or to a device.
    fn start_write(&mut self, taken: Taken) -> Start {
        let compressed = || self.cache.stats().zswpout.get();
        let before = compressed();
        self.spot.for_work(self.kick);
        let start = self.cache.start_write(taken, To::Memory, self.devices);
        self.spot
            .has_compressed(compressed().saturating_sub(before));
        start
    }

    /// Has compressed memory become as small as it should be.
    fn write_back(&mut self, evicted: &mut bool) {
        for _ in 0..WRITE_BACKS {
            if !self.cache.has_too_much_compressed() || self.cache.full.load(Relaxed) {
                return;
            }
            // What has left it lay here and there, and left no block empty.
            if self.cache.empty_a_block() {
                *evicted = true;
                continue;
            }
            let Some(slot) = self.write_slot() else {
                return;
            };
            if self.inactive.is_full() {
                return;
            }
            // Until they are written its pages take more memory than they did.
            if self.writing() > 0 && self.cache.charge.room() < WRITE_BACK as i64 {
                return;
            }
            let taken = match self.cache.begin_write_back() {
                WriteBack::Nothing => return,
                WriteBack::Later => continue,
                WriteBack::Freed => {
                    *evicted = true;
                    continue;
                }
                WriteBack::Ready(taken) => taken,
            };
            match self.cache.start_write(taken, To::Device, self.devices) {
                Start::Write(w) => {
                    *evicted = true;
                    self.transfer(slot, Op::Write, w);
                }
                // A fault reads other pages of it: it has its turn later, and is known to be inactive.
                Start::Busy => self.inactive.push(taken),
                Start::Full => self.note_full(),
                Start::Clean | Start::Active => {}
            }
        }
    }

    /// Pages that are on their second chance.
    fn staged(&self) -> usize {
        self.inactive.iter().map(|p| self.cache.staged(p)).sum()
    }

    /// Fills the inactive list, on which so many pages are staged, from the active one.
    fn deactivate_some(&mut self, staged: &mut usize) {
        let charged = self.cache.charge.charged();
        let all = self.cache.lru.len();
        let limit = self.cache.charge.limit();
        let stays = self.cache.may_stay();
        let (mut in_vain, mut in_a_row) = (InVain::default(), 0);
        while in_a_row < staging::patience(self.inactive.len(), all)
            && !self.inactive.is_full()
            && staging::wants_more(charged, *staged, self.inactive.len(), stays)
        {
            in_a_row += 1;
            let Some((pmd, list)) = self.cache.lru.pop(&self.cache.ranges, limit, in_vain) else {
                return;
            };
            match self.cache.deactivate(pmd) {
                Victim::Inactive(taken) => {
                    self.cache.stats().pgdeactivate.inc();
                    self.inactive.push(taken);
                    *staged += self.cache.staged(taken);
                    in_a_row = 0;
                }
                Victim::Skip => in_vain.note(list),
                Victim::NoFrame => return,
            }
        }
    }

    /// Keeps zeroed folios ready while the program touches new memory, and folios of any kind
    /// while walks bring them in.
    fn prepare(&mut self) {
        let touched = self.cache.stats().thp_fault_alloc.get();
        let touching = touched != self.touched;
        self.touched = touched;
        let swapping = self.cache.stats().thp_swpin.get() > 0;
        let ready = self.kick.ready_folios(READY);
        while touching && self.cache.frames.ready_zeroed() < ready
            || swapping && self.cache.frames.ready() < ready
        {
            match self.cache.prepare_ready() {
                Some(f) => {
                    self.cache.frames.put_ready(f, Bytes::Zeros);
                    self.kick.made_progress();
                }
                None => break,
            }
        }
    }

    /// Says which slots this process may read, if somebody wants to know.
    fn mark(&self) {
        let p = self.kick.proc();
        let wanted = p.mark_wanted.load(Acquire);
        if wanted == p.marked.load(Relaxed) {
            return;
        }
        for (d, entry) in self.cache.charge.control.devices().iter().enumerate() {
            p.marks.unite(d, entry.segments(), core::iter::empty());
        }
        // Where contents move all the time it is done later.
        if self.cache.mark(&p.marks) {
            p.marked.store(wanted, Release);
            self.cache.charge.call();
        }
    }

    /// What has to be done now and then.
    fn tick(&mut self) {
        let now = now_ns();
        if now - self.last_tick_ns < 50_000_000 {
            return;
        }
        self.last_tick_ns = now;
        let proc = self.kick.proc();
        proc.count_engine_time(&mut self.told_ns);
        proc.tell_time();
        if now - self.last_write_ns > BUFFERS_NS {
            self.release_buffers();
        } else if now - self.last_folio_ns > BUFFERS_NS {
            self.release_folios_buffers();
        }
        let c = self.cache;
        let s = c.stats();
        s.resident_bytes
            .set(c.charge.charged().max(0) as u64 * PAGE_SIZE as u64);
        s.free_bytes
            .set(c.free_pages().max(0) as u64 * PAGE_SIZE as u64);
        s.inactive_bytes.set((self.staged() * PAGE_SIZE) as u64);
        s.walk_ranges.set(c.lru.walks() as u64);
        let swapped = c.slots.used() * PAGE_SIZE as u64;
        c.compact_compressed();
        c.count_compressed();
        s.swapped_bytes.set(swapped);
        s.peak_swapped_bytes.raise_to(swapped);
        c.slots.settle_loans(&c.charge);
        c.slots.trim(&c.charge);
        c.settle_lazyfree();
    }
}
