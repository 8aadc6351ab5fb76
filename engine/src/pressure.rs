//! How memory pressure is told: who needs pages calls reclaim, and waits for it.
//! `fault` and `reclaim` know each other by this alone.

use crate::charge::Charge;
use crate::control::Proc;
use crate::mm::PMD_NR;
use crate::sys::futex::{self, Scope};
use core::sync::atomic::{AtomicU32, Ordering::*};

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
    /// A fault waits for memory, perhaps for a whole folio.
    starving: AtomicU32,
    /// See `Walking`.
    walking: AtomicU32,
}

/// How much of a range the last faults took for walks and first touches: an average that forgets. All of a
/// range each time is [`Walking::ALL`]; jumps take nothing. It rises faster than it falls: a walk needs what
/// is to be read ahead at once, and jumps are many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Walking(u32);

impl Walking {
    const RISE: u32 = 4;
    const FALL: u32 = 64;
    const ALL: u32 = 1 << 16;

    /// After one more fault that took so many pages.
    fn after(self, pages: usize) -> Walking {
        let took = pages.min(PMD_NR) as u32 * (Self::ALL / PMD_NR as u32);
        // Rounded so that it can reach both ends.
        Walking(match took.checked_sub(self.0) {
            Some(more) => self.0 + more.div_ceil(Self::RISE),
            None => self.0 - (self.0 - took).div_ceil(Self::FALL),
        })
    }

    /// That part of `n`.
    fn of(self, n: i64) -> i64 {
        n * i64::from(self.0) / i64::from(Self::ALL)
    }
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

    /// Whether a fault waits for memory. Only the handler says so.
    pub fn set_starving(&self, on: bool) {
        self.line.starving.store(on.into(), Release);
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

    /// A fault took so many pages for a walk or a first touch; none for a jump. Only the handler calls this.
    pub fn took(&self, pages: usize) {
        let (old, new) = (self.walking(), self.walking().after(pages));
        if new != old {
            self.line.walking.store(new.0, Relaxed);
        }
    }

    fn walking(&self) -> Walking {
        Walking(self.line.walking.load(Relaxed))
    }

    /// Of `most` folios to hold ready, those that are worth their memory now.
    pub fn ready_folios(&self, most: usize) -> usize {
        self.walking().of(2 * most as i64 + 1) as usize / 2
    }

    /// Below this many free pages reclaim is called.
    pub fn low_pages(&self) -> i64 {
        low_pages(self.charge.limit(), self.walking())
    }

    /// Up to this many it works.
    pub fn high_pages(&self) -> i64 {
        let high = self.low_pages() + self.low_pages() / 2;
        match self.line.starving.load(Acquire) {
            0 => high,
            _ => high.max(PMD_NR as i64),
        }
    }
}

/// Free pages for a program that jumps: it needs them one by one, and what is free is of no use to it.
const LOW_JUMPING: i64 = 128;

/// The low watermark for a limit in pages. Of a small share of a run's limit, as one of many
/// processes has it, most must be there to be used.
fn low_pages(limit: i64, walking: Walking) -> i64 {
    let part = |n: i64| limit / (n * PMD_NR as i64);
    let all = part(32).clamp(4, 32).min(part(4).max(1)) * PMD_NR as i64;
    LOW_JUMPING + walking.of(all - LOW_JUMPING)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(faults: usize, mut walking: Walking, pages: impl Fn(usize) -> usize) -> Walking {
        for i in 0..faults {
            walking = walking.after(pages(i));
        }
        walking
    }

    const NONE: Walking = Walking(0);
    const ALL: Walking = Walking(Walking::ALL);

    #[test]
    fn watermarks_leave_most_of_the_limit() {
        let limits = [0, 4, 9, 16, 32, 63, 256, 1024, 65536];
        let low = |walking| {
            let pages = |mib: i64| (mib << 20) / crate::mm::PAGE_SIZE as i64;
            limits.map(|mib| low_pages(pages(mib), walking))
        };
        let folios = [1, 1, 1, 2, 4, 4, 4, 16, 32];
        assert_eq!(low(ALL), folios.map(|n| n * PMD_NR as i64));
        assert_eq!(low(NONE), [LOW_JUMPING; 9]);
    }

    #[test]
    fn walks_raise_what_is_free_and_jumps_lower_it() {
        assert_eq!(after(1000, NONE, |_| PMD_NR), ALL);
        assert_eq!(after(1000, ALL, |_| 0), NONE);
        let begun = after(3, NONE, |_| PMD_NR);
        assert!((32_000..40_000).contains(&begun.0), "{begun:?}");
        // One range that is entered among many jumps changes little, and not for long.
        let jumps = after(1100, ALL, |i| if i % 100 == 0 { PMD_NR } else { 0 });
        assert!(low_pages(1 << 15, jumps) < 2 * LOW_JUMPING, "{jumps:?}");
        // A walk that gets a part of a range at each fault.
        let windows = after(1000, NONE, |_| 64);
        assert!(windows.0.abs_diff(Walking::ALL / 8) < 64, "{windows:?}");
    }
}
