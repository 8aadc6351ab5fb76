//! How memory pressure is told: who needs pages calls reclaim, and waits for it.
//! `fault` and `reclaim` know each other by this alone.

use crate::charge::Charge;
use crate::control::Proc;
use crate::mm::PMD_NR;
use crate::sys::futex::{self, Scope};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

/// Without a fault for so long the handler does not stay near (`fault::near`).
pub const UNUSED_NS: u64 = 1_000_000_000;

/// How others call the reclaim thread and wait for it.
#[derive(Clone, Copy)]
pub struct Kick<'e> {
    charge: &'e Charge,
    line: &'e Line,
}

/// What the reclaim thread and those who wait for it share.
#[derive(Default)]
pub struct Line {
    /// Bumped whenever something was freed.
    progress: AtomicU32,
    /// The thread's number.
    tid: AtomicU32,
    /// The handler's thread number while it runs as SCHED_IDLE beside the program (`fault::near`).
    near: AtomicU32,
    /// How often the handler has looked for faults.
    looks: AtomicU32,
    /// Pages come in one by one.
    jumping: AtomicBool,
}

impl<'e> Kick<'e> {
    pub fn new(charge: &'e Charge, line: &'e Line) -> Kick<'e> {
        Kick { charge, line }
    }

    /// Called by the reclaim thread, once.
    pub fn this_is_reclaim(&self) {
        self.line.tid.store(crate::sys::thread::gettid(), Relaxed);
    }

    /// Whether the thread of that number is the reclaim thread.
    pub fn is_reclaim(&self, tid: u32) -> bool {
        tid != 0 && tid == self.reclaim()
    }

    /// The reclaim thread's number.
    pub fn reclaim(&self) -> u32 {
        self.line.tid.load(Relaxed)
    }

    /// The handler's thread number while it is near a thread of the program; else 0.
    pub fn near(&self) -> u32 {
        self.line.near.load(Acquire)
    }

    pub fn set_near(&self, tid: u32) {
        self.line.near.store(tid, Release);
    }

    /// The handler has looked for faults. Only it calls this.
    #[inline]
    pub fn looked(&self) {
        self.line
            .looks
            .store(self.line.looks.load(Relaxed).wrapping_add(1), Relaxed);
    }

    pub fn looks(&self) -> u32 {
        self.line.looks.load(Relaxed)
    }

    pub fn proc(&self) -> &'static Proc {
        self.charge.proc()
    }

    pub fn kick(&self) {
        let p = self.proc();
        p.limit_seq.fetch_add(1, Release);
        futex::wake(&p.limit_seq, 1, Scope::Shared);
    }

    /// Sleeps until reclaim has freed something, two milliseconds at most.
    pub fn wait_for_progress(&self) {
        let seen = self.line.progress.load(Acquire);
        futex::wait(&self.line.progress, seen, Some(2), Scope::Process);
    }

    pub fn made_progress(&self) {
        self.line.progress.fetch_add(1, Release);
        futex::wake(&self.line.progress, u32::MAX, Scope::Process);
    }

    /// The program's faults are jumps, or are not any more.
    pub fn set_jumping(&self, on: bool) {
        if self.line.jumping.load(Relaxed) != on {
            self.line.jumping.store(on, Relaxed);
        }
    }

    /// Below this many free pages reclaim is called. A program that jumps needs them one by one: what is
    /// free is of no use to it.
    pub fn low_pages(&self) -> i64 {
        if self.line.jumping.load(Relaxed) {
            return (PMD_NR / 2) as i64;
        }
        low_folios(self.charge.limit()) * PMD_NR as i64
    }

    /// Up to this many it works.
    pub fn high_pages(&self) -> i64 {
        self.low_pages() + (self.low_pages() / 2).max(PMD_NR as i64 / 4)
    }
}

/// The low watermark for a limit in pages. Of a small share of a run's limit, as one of many
/// processes has it, most must be there to be used.
fn low_folios(limit: i64) -> i64 {
    let part = |n: i64| limit / (n * PMD_NR as i64);
    part(32).clamp(4, 32).min(part(4).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_leave_most_of_the_limit() {
        let folios = |mib: i64| low_folios((mib << 20) / crate::mm::PAGE_SIZE as i64);
        let limits = [0, 4, 9, 16, 32, 63, 256, 1024, 65536];
        assert_eq!(limits.map(folios), [1, 1, 1, 2, 4, 4, 4, 16, 32]);
    }
}
