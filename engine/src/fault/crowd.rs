//! Whether more threads want a processor than there are, and what the handler does about it.
//!
//! The kernel's own swap runs in the thread that faulted. Our handler is a thread of its own, and in a crowd it waits for
//! a processor while a thread waits for it. So there it does not look for faults, it sleeps: a thread that wakes with
//! a short slice (`sched::shortest_slice`) runs soon, one that is awake waits for its turn, often for a tick
//! of 4 ms. Where it may, it also lowers its nice value: beside a thread that would use all of a processor it uses
//! up its share, and would wait for ticks again.

use crate::pressure::Kick;
use crate::sys::load::Load;
use crate::sys::sched;

/// How long what was seen is believed.
const BELIEVED_NS: u64 = 1_000_000;

pub struct Crowd {
    /// None where it can't be seen.
    load: Option<Load>,
    /// The nice value that the program gave; None where it can't be lowered.
    nice: Option<i32>,
    asked_ns: u64,
    excess: Excess,
    is_there: bool,
}

/// By how many more threads than processors there are, on average: a moment with one more, while another works between two
/// faults, is no crowd. And the kernel counts threads that have just gone to sleep, until they would have had their turn
/// (DELAY_DEQUEUE, Linux 6.12): with two threads that fault all the time about one too many.
#[derive(Default)]
struct Excess(i32);

impl Excess {
    /// What one is in the average.
    const ONE: i32 = 256;
    /// Of how many looks it is the average.
    const LOOKS: i32 = 8;
    /// So much is a crowd.
    const CROWD: i32 = Self::ONE / 4 * 3;

    fn add(&mut self, excess: i32) {
        self.0 += (excess.clamp(-8, 8) * Self::ONE - self.0) / Self::LOOKS;
    }

    fn is_crowd(&self) -> bool {
        self.0 >= Self::CROWD
    }
}

impl Crowd {
    /// In the handler thread.
    pub fn new() -> Crowd {
        Crowd {
            load: Load::open().ok(),
            nice: sched::nice().ok(),
            asked_ns: 0,
            excess: Excess::default(),
            is_there: false,
        }
    }

    /// At any time. (When a fault has just come its thread still counts as running.)
    #[inline]
    pub fn look(&mut self, now_ns: u64, kick: Kick<'_>) {
        if now_ns.saturating_sub(self.asked_ns) < BELIEVED_NS {
            return;
        }
        self.asked_ns = now_ns;
        let Some(load) = &self.load else { return };
        let Some(excess) = load.excess() else { return };
        self.excess.add(excess - i32::from(kick.reclaim_runs()));
        let is_there = self.excess.is_crowd();
        if core::mem::replace(&mut self.is_there, is_there) != is_there {
            self.hurry(is_there);
        }
    }

    fn hurry(&mut self, on: bool) {
        // Not otherwise: a thread that looks for faults in vain should go last.
        let by = if on { sched::NICER } else { 0 };
        self.nice = self.nice.filter(|nice| sched::set_nice(nice - by).is_ok());
    }

    pub fn is_there(&self) -> bool {
        self.is_there
    }

    /// At the thread's end.
    pub fn leave(self) {
        if let Some(load) = self.load {
            load.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(excesses: impl IntoIterator<Item = i32>) -> bool {
        let mut e = Excess::default();
        excesses.into_iter().for_each(|n| e.add(n));
        e.is_crowd()
    }

    #[test]
    fn a_crowd_is_there_on_average() {
        assert!(after([1; 30]) && after([4; 4]));
        // Two threads that work between their faults, and the handler beside them.
        assert!(!after([1, -1, 0, 1, 1, 0, -1, 0].repeat(20)));
        assert!(!after([2]) && !after([0; 30]) && !after([]));
        // It passes.
        assert!(!after([3; 30].into_iter().chain([-1; 8])));
    }
}
