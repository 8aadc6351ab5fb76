//! Makes sure that the handler gets to run while it is colocated with a thread (`fault::colocation`).

use crate::pressure::{Kick, UNUSED_NS};
use crate::sys::sched::{self, Cpus, Policy};
use crate::sys::thread::now_ns;
use crate::sys::uffd::Uffd;

/// How often the reclaim thread looks while the handler is colocated.
pub const PERIOD_MS: u64 = 4;
const PERIOD_NS: u64 = PERIOD_MS * 1_000_000;

#[derive(Default)]
pub struct Watch {
    /// The handler's looks when they were last seen to have changed, and when that was.
    looks: u32,
    since_ns: u64,
}

impl Watch {
    /// Makes the handler an ordinary thread again if a fault waits and it does not get to run, or
    /// if there was nothing for it for a long time.
    pub fn look(&mut self, program: Uffd, kick: Kick<'_>) {
        let tid = kick.colocated();
        if tid == 0 {
            return;
        }
        let (looks, now) = (kick.looks(), now_ns());
        if looks != self.looks {
            (self.looks, self.since_ns) = (looks, now);
            return;
        }
        let still = now - self.since_ns;
        if still < PERIOD_NS || still < UNUSED_NS && !program.has_message() {
            return;
        }
        // The handler finds out by the zero, at its next fault: only it knows where both of us may
        // run.
        kick.set_colocated(0);
        kick.proc().stats.fault_colocated_ended.inc();
        let _ = sched::set_policy(tid, Policy::Other);
        let _ = Cpus::ALL.confine(tid);
    }
}
