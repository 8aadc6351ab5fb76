//! Whether more threads want a processor than there are, and what the handler does about it.
//!
//! The kernel's own swap runs in the thread that faulted. Our handler is a thread of its own, and in a crowd it waits for
//! a processor while a thread waits for it. So there it does not look for faults, it sleeps: a thread that wakes with
//! a short slice (`sched::shortest_slice`) runs soon, one that is awake waits for its turn, often for a tick
//! of 4 ms. Where it may, it also lowers its nice value: beside a thread that would use all of a processor it uses
//! up its share, and would wait for ticks again.

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
    is_there: bool,
}

impl Crowd {
    /// In the handler thread.
    pub fn new() -> Crowd {
        Crowd {
            load: Load::open().ok(),
            nice: sched::nice().ok(),
            asked_ns: 0,
            is_there: false,
        }
    }

    /// When a fault has come: its thread waits, and those that run are others.
    #[inline]
    pub fn look(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.asked_ns) < BELIEVED_NS {
            return;
        }
        self.asked_ns = now_ns;
        let Some(load) = &self.load else { return };
        let is_there = load.is_crowded();
        if core::mem::replace(&mut self.is_there, is_there) != is_there {
            self.hurry(is_there);
        }
    }

    fn hurry(&mut self, on: bool) {
        // Not otherwise: who looks for faults in vain should go last.
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
