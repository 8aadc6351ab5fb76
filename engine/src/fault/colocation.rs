//! Colocation: the handler serves a thread's faults on the thread's own CPU.
//!
//! If one thread jumps through memory, each miss wakes the handler, and the handler wakes the thread.
//! Between two CPUs each wake-up is an interrupt, and in a virtual machine often an exit. On one CPU it
//! is a context switch. So after a run of jumps by one thread the handler moves to that thread's CPU and
//! takes SCHED_IDLE there. The policy matters for the way back: the scheduler treats a CPU that runs only
//! SCHED_IDLE threads as idle. It therefore leaves the thread on that CPU when the handler wakes it, and
//! runs it first.
//!
//! The price is that everything else that wants this CPU runs first too. So the reclaim thread checks every
//! few milliseconds whether a fault waits while the handler does not get to run (`reclaim::watch`). If so, it
//! makes the handler an ordinary thread again, and the handler stays away for a while, longer each time.
//!
//! For walks the handler stays on a CPU of its own: transfers and page moves then go on beside the
//! program's work.

use crate::pressure::{Kick, UNUSED_NS};
use crate::sys::sched::{self, Cpus, Policy};
use crate::sys::thread::{gettid, now_ns};
use crate::sys::Errno;

/// Jumps of one thread in a row before the handler goes there.
const ENTER: u32 = 32;
/// Looks in vain between two faults that say that the thread is not on our CPU: there the handler
/// runs only while the thread does not.
const APART_LOOKS: u32 = 4;
/// Such faults in a row before we ask where the thread is; more each time that it was here.
const APART_FAULTS: u32 = 2;
const APART_FAULTS_MAX: u32 = 64;
/// How long the handler stays away after it had to be helped.
const REST_NS: u64 = 1_000_000_000;
const REST_MAX_NS: u64 = 60_000_000_000;

pub struct Colocation<'e> {
    kick: Kick<'e>,
    /// The CPUs that the handler may use while it is not colocated; None if it must not try.
    anywhere: Option<Cpus>,
    me: u32,
    /// The thread whose jumps are counted.
    tid: u32,
    jumps: u32,
    /// The CPU of the thread, while colocated with it.
    cpu: Option<u32>,
    /// Looks in vain since the last fault.
    looks: u32,
    apart: u32,
    apart_faults: u32,
    rest_ns: u64,
    rest_until_ns: u64,
    /// When the last fault was served.
    seen_ns: u64,
}

impl<'e> Colocation<'e> {
    /// In the handler thread.
    pub fn new(kick: Kick<'e>) -> Colocation<'e> {
        let anywhere = Cpus::allowed()
            .ok()
            .filter(|cpus| cpus.count() > 1 && sched::may_leave_idle());
        Colocation {
            kick,
            anywhere,
            me: gettid(),
            tid: 0,
            jumps: 0,
            cpu: None,
            looks: 0,
            apart: 0,
            apart_faults: APART_FAULTS,
            rest_ns: REST_NS,
            rest_until_ns: 0,
            seen_ns: 0,
        }
    }

    /// Whether the handler serves one thread that jumps, on that thread's CPU.
    pub fn is_active(&self) -> bool {
        self.cpu.is_some() && self.kick.colocated() != 0
    }

    /// The handler looked and found nothing to do.
    #[inline]
    pub fn looked_in_vain(&mut self) {
        self.looks = self.looks.saturating_add(1);
    }

    /// A fault of this thread is about to be served. One of another thread would have to wait
    /// while the thread that shares our CPU runs.
    pub fn seen(&mut self, tid: u32, now_ns: u64) {
        let idle_ns = now_ns - core::mem::replace(&mut self.seen_ns, now_ns);
        if self.cpu.is_some() && self.kick.colocated() == 0 {
            // The watch ended it. If not because there was nothing to do, it was a bad place.
            self.go_anywhere();
            self.jumps = 0;
            if idle_ns < UNUSED_NS {
                self.rest_until_ns = now_ns + self.rest_ns;
                self.rest_ns = (self.rest_ns * 2).min(REST_MAX_NS);
            }
        }
        if tid != self.tid {
            self.leave();
            self.tid = tid;
        }
    }

    /// A fault that goes on with nothing, and waits for the device.
    pub fn jump(&mut self, tid: u32) {
        if self.anywhere.is_none() {
            return;
        }
        let looks = core::mem::take(&mut self.looks);
        self.jumps = self.jumps.saturating_add(1);
        match self.cpu {
            None if self.jumps >= ENTER && now_ns() >= self.rest_until_ns => {
                self.jumps = 0;
                // A thread that is itself idle, or has priority, is not woken as we need it.
                if sched::is_ordinary(tid) {
                    self.enter(tid);
                }
            }
            Some(cpu) if looks >= APART_LOOKS => {
                self.apart += 1;
                if self.apart < self.apart_faults {
                    return;
                }
                self.apart = 0;
                match sched::cpu_of(tid) {
                    Some(now) if now == cpu => {
                        self.apart_faults = (self.apart_faults * 2).min(APART_FAULTS_MAX);
                    }
                    Some(now) if self.go_to(now).is_ok() => self.apart_faults = APART_FAULTS,
                    _ => self.leave(),
                }
            }
            _ => self.apart = 0,
        }
    }

    fn enter(&mut self, tid: u32) {
        let entered = sched::cpu_of(tid)
            .ok_or(Errno::ESRCH)
            .and_then(|cpu| self.go_to(cpu))
            .and_then(|()| sched::ordinary_io())
            .and_then(|()| sched::set_policy(0, Policy::Idle));
        if entered.is_err() {
            // Not on this system, then.
            self.go_anywhere();
            self.anywhere = None;
            return;
        }
        self.kick.set_colocated(self.me);
        self.kick.proc().stats.fault_colocated.inc();
        self.apart = 0;
        self.apart_faults = APART_FAULTS;
    }

    /// Moves to a CPU, and reclaim will come there to move pages.
    fn go_to(&mut self, cpu: u32) -> Result<(), Errno> {
        let cpus = Cpus::one(cpu);
        cpus.confine(0)?;
        self.cpu = Some(cpu);
        self.kick.set_place(Some(cpu));
        Ok(())
    }

    fn go_anywhere(&mut self) {
        self.cpu = None;
        self.kick.set_place(None);
        if let Some(anywhere) = &self.anywhere {
            let _ = anywhere.confine(0);
        }
    }

    /// The handler is better off on its own.
    pub fn leave(&mut self) {
        self.jumps = 0;
        if self.cpu.is_some() {
            let _ = sched::set_policy(0, Policy::Other);
            self.go_anywhere();
            self.kick.set_colocated(0);
        }
    }
}
