//! How memory pressure is told: a thread that needs pages calls reclaim, and waits for it.
//! `fault` and `reclaim` know each other by this alone.

use crate::charge::Charge;
use crate::control::Proc;
use crate::policy::Walking;
use crate::sys::futex::{self, Scope};
use core::sync::atomic::{AtomicU32, Ordering::*};

/// The handler ends its colocation with a thread after so long without a fault (`fault::colocation`).
pub const UNUSED_NS: u64 = 1_000_000_000;

/// How others call the reclaim thread and wait for it.
#[derive(Clone, Copy)]
pub struct Kick<'e> {
    charge: &'e Charge,
    pressure: &'e Pressure,
}

/// What the reclaim thread and those who wait for it share.
#[derive(Default)]
pub struct Pressure {
    /// The thread's number.
    tid: AtomicU32,
    /// The handler's thread number while it runs as SCHED_IDLE beside the program (`fault::colocation`).
    colocated: AtomicU32,
    /// One more than the number of the CPU that it does so on.
    place: AtomicU32,
    /// How often the handler has looked for faults.
    looks: AtomicU32,
    /// Nonzero while the thread has something to do.
    runs: AtomicU32,
    /// A fault waits for memory, perhaps for a whole folio.
    starving: AtomicU32,
    /// See `Walking`.
    walking: AtomicU32,
}

impl<'e> Kick<'e> {
    pub fn new(charge: &'e Charge, pressure: &'e Pressure) -> Kick<'e> {
        Kick { charge, pressure }
    }

    /// Called by the reclaim thread, once.
    pub fn this_is_reclaim(&self) {
        self.pressure
            .tid
            .store(crate::sys::thread::gettid(), Relaxed);
    }

    /// Whether the thread of that number is the reclaim thread.
    pub fn is_reclaim(&self, tid: u32) -> bool {
        tid != 0 && tid == self.reclaim()
    }

    /// The reclaim thread's number.
    pub fn reclaim(&self) -> u32 {
        self.pressure.tid.load(Relaxed)
    }

    /// The reclaim thread has something to do. Only it says so.
    pub fn begin_reclaim(&self) {
        self.pressure.runs.store(1, Relaxed);
    }

    /// It has nothing to do any more.
    pub fn end_reclaim(&self) {
        self.pressure.runs.store(0, Relaxed);
    }

    pub fn reclaim_runs(&self) -> bool {
        self.pressure.runs.load(Relaxed) != 0
    }

    /// The handler's thread number while it is colocated with a thread of the program; else 0.
    pub fn colocated(&self) -> u32 {
        self.pressure.colocated.load(Acquire)
    }

    pub fn set_colocated(&self, tid: u32) {
        self.pressure.colocated.store(tid, Release);
    }

    /// The CPU on which the handler is colocated with a thread, if it is.
    pub fn place(&self) -> Option<u32> {
        let place = self.pressure.place.load(Acquire).checked_sub(1);
        place.filter(|_| self.colocated() != 0)
    }

    /// It goes there, or anywhere. Only the handler says so.
    pub fn set_place(&self, cpu: Option<u32>) {
        let place = cpu.map_or(0, |cpu| cpu + 1);
        self.pressure.place.store(place, Release);
    }

    /// The handler has looked for faults. Only it calls this.
    #[inline]
    pub fn looked(&self) {
        self.pressure
            .looks
            .store(self.pressure.looks.load(Relaxed).wrapping_add(1), Relaxed);
    }

    pub fn looks(&self) -> u32 {
        self.pressure.looks.load(Relaxed)
    }

    pub fn proc(&self) -> &'static Proc {
        self.charge.proc()
    }

    pub fn kick(&self) {
        let p = self.proc();
        p.limit_seq.fetch_add(1, Release);
        futex::wake(&p.limit_seq, 1, Scope::Shared);
    }

    /// A fault waits for memory. Only the handler says so.
    pub fn begin_starving(&self) {
        self.pressure.starving.store(1, Release);
    }

    /// No fault waits for memory any more.
    pub fn end_starving(&self) {
        self.pressure.starving.store(0, Release);
    }

    pub fn is_starving(&self) -> bool {
        self.pressure.starving.load(Acquire) != 0
    }

    /// Sleeps until reclaim has freed something, or can be helped; two milliseconds at most.
    pub fn wait_for_progress(&self, seen: u32) {
        self.charge.progress.wait(seen);
    }

    /// What to wait for more of.
    pub fn progress(&self) -> u32 {
        self.charge.progress.seen()
    }

    pub fn made_progress(&self) {
        self.charge.progress.make();
    }

    /// A fault took so many pages for a walk or a first touch; none for a jump. Only the handler calls this.
    pub fn took(&self, pages: usize) {
        let (old, new) = (self.walking(), self.walking().after(pages));
        if new != old {
            self.pressure.walking.store(new.to_word(), Relaxed);
        }
    }

    fn walking(&self) -> Walking {
        Walking::of_word(self.pressure.walking.load(Relaxed))
    }

    /// Of `most` folios to hold ready, those that are worth their memory now.
    pub fn ready_folios(&self, most: usize) -> usize {
        let limit = self.charge.limit();
        self.walking().ready_folios(most, limit)
    }

    /// Below this many free pages reclaim is called.
    pub fn low_pages(&self) -> i64 {
        self.walking().low_pages(self.charge.limit())
    }

    /// Up to this many it works.
    pub fn high_pages(&self) -> i64 {
        let (walking, limit) = (self.walking(), self.charge.limit());
        match self.is_starving() {
            true => walking.high_pages_for_fault(limit),
            false => walking.high_pages(limit),
        }
    }
}
