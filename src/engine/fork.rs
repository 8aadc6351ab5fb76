//! fork: the child gets the memory as it was, an engine of its own, and the right to read what the
//! parent had in swap.
//!
//! | step | who | what |
//! |---|---|---|
//! | prepare | parent, the forking thread | freezes the engine: no transfer in flight, tables at rest |
//! | | | takes an entry of the control page for the child, which borrows the parent's segments |
//! | clone | kernel | copies page tables; userfaultfd registrations are not inherited |
//! | parent | parent | thaws |
//! | child | child, its only thread | resets locks, registers again, starts threads |
//!
//! Nothing that the program owns is touched in the child before its engine runs.

use super::{Engine, Regions};
use crate::control::{FREE, LIVE, MAX_DEVICES, NEW};
use crate::fault::Handler;
use crate::sys::futex::{self, Scope};
use crate::sys::thread::getpid;
use crate::sys::{fd, uffd};
use core::sync::atomic::Ordering::*;
use std::os::fd::AsRawFd;

/// A process is not made smaller than this for a fork: 8 MiB.
const LEAST_RESIDENT: i64 = (8 << 20) / crate::mm::PAGE_SIZE as i64;

/// A fork under way: the child's entry of the control page.
pub struct ForkToken {
    child: Option<usize>,
    /// Pages of the program that are resident: the child's account.
    resident: i64,
    /// Copies of what the child's engine needs, in the program's table for the time of the fork.
    handed: Handed,
}

/// Descriptors for a child: the swap devices, and `/dev/userfaultfd`; -1 for none. The child could
/// open them itself, unless the program has given its privileges up meanwhile.
#[derive(Clone, Copy)]
pub struct Handed {
    pub devices: [i32; MAX_DEVICES],
    pub userfaultfd: i32,
}

impl Handed {
    pub const NOTHING: Handed = Handed {
        devices: [-1; MAX_DEVICES],
        userfaultfd: -1,
    };

    fn close(&self) {
        for &f in self.devices.iter().chain([&self.userfaultfd]) {
            if f >= 0 {
                fd::close(f);
            }
        }
    }
}

impl Engine {
    /// Before everything else, while the other threads still run: what is resident will count
    /// twice, once for the child, and each of its pages may become two. So there must be room for
    /// that within the run's limit, whoever writes to how many of them.
    pub fn fork_make_room(&self) {
        let c = &self.cache.charge;
        let limit = c.control.settings.limit_bytes as i64 / crate::mm::PAGE_SIZE as i64;
        let mine = limit - c.control.charged_by_others(c.index());
        if 2 * c.charged() <= mine {
            return;
        }
        let cap = (mine / 2).max(LEAST_RESIDENT);
        c.proc().fork_cap.store(cap, Release);
        let mut before = i64::MAX;
        let mut in_vain = 0;
        while c.charged() > cap && in_vain < 500 {
            self.kick().kick();
            self.kick().wait_for_progress();
            in_vain = if c.charged() < before { 0 } else { in_vain + 1 };
            before = before.min(c.charged());
        }
    }

    /// The cap ends with the fork; from there the supervisor divides anew.
    fn end_cap(&self) {
        let c = &self.cache.charge;
        if c.proc().fork_cap.swap(0, AcqRel) != 0 {
            c.proc().limit_pages.fetch_min(c.charged(), AcqRel);
            c.control.call();
        }
    }

    /// Before clone. None when the run has no room for another process.
    pub fn fork_prepare(&self, bell: usize) -> Option<ForkToken> {
        let c = &self.cache.charge;
        // The parent's pid stands in until there is a child to name: the entry must be there, and
        // alive, before the parent can free anything that the child will read.
        let Some(child) = c.control.join(getpid(), NEW) else {
            self.end_cap();
            return None;
        };
        let p = &c.control.procs[child];
        let me = c.index();
        for (i, l) in p.lenders.iter().enumerate() {
            let mut bits = c.proc().lenders[i].load(Acquire);
            if i == me / 64 {
                bits |= 1 << (me % 64);
            }
            l.store(bits, Release);
        }
        self.freeze(bell);
        self.cache.slots.lend_all();
        let ready = self.cache.frames.ready() * crate::mm::PMD_NR;
        let resident = c.charged() - ready as i64;
        // Held for the child from now on.
        p.charged_pages.store(resident, Release);
        p.limit_pages.store(resident, Release);
        Some(ForkToken {
            child: Some(child),
            resident,
            handed: self.hand_over(),
        })
    }

    /// Copies the engine's descriptors into the program's table. Where the kernel cannot do that
    /// the child opens its own.
    fn hand_over(&self) -> Handed {
        let tid = self.cache.charge.proc().engine_tids[0].load(Acquire);
        let copy = |f: i32| fd::copy_from_thread(tid, f).unwrap_or(-1);
        let mut h = Handed::NOTHING;
        for (to, d) in h.devices.iter_mut().zip(self.devices()) {
            *to = copy(d.as_fd().as_raw_fd());
        }
        h.userfaultfd = uffd::opened_device().map_or(-1, copy);
        h
    }

    /// In the parent, after clone; `pid` is the child's, if there is one.
    pub fn fork_parent(&self, token: ForkToken, pid: Option<u32>) {
        let c = &self.cache.charge;
        if let Some(i) = token.child {
            match pid {
                Some(pid) => {
                    // So that a child that died before it could do so itself is noticed. If the entry
                    // is somebody else's by now, the number in it is not ours.
                    let _ = c.control.procs[i]
                        .pid
                        .compare_exchange(getpid(), pid, AcqRel, Relaxed);
                    c.proc().stats.forks.inc();
                }
                None => c.control.procs[i].state.store(FREE, Release),
            }
        }
        // SAFETY: answers the `lend_all` of `fork_prepare`, which made the token.
        unsafe { self.cache.slots.fork_done() };
        token.handed.close();
        self.end_cap();
        self.thaw();
    }

    /// In the child, on its only thread, before anything else. `regions` says what to
    /// register. `wiped`: addresses (start, end) whose contents the child does not get.
    pub fn fork_child(
        &'static self,
        token: ForkToken,
        regions: &Regions,
        wiped: &[(usize, usize)],
    ) {
        let Some(index) = token.child else {
            return;
        };
        let c = &self.cache.charge;
        c.set_index(index);
        let p = c.proc();
        p.pid.store(getpid(), Release);
        p.start_time.store(0, Release);
        // Staging comes empty; everything else is inherited, shared until one of us writes.
        p.charged_pages.store(token.resident, Release);
        self.frozen.store(0, Release);
        self.reclaim_parked.store(0, Release);
        self.reclaim_ready.store(0, Release);
        self.cache.lru.reset_lock();
        // The child's handler is not the parent's, and has not gone anywhere yet.
        self.kick().set_near(0);
        // SAFETY: answers the `lend_all` of `fork_prepare`, in this process's copy.
        unsafe { self.cache.slots.fork_done() };
        self.cache.slots.start_over();
        for &(start, end) in wiped {
            self.discard(start, end - start);
        }
        self.put_signpost_up();
        p.state.store(LIVE, Release);
        self.restart(regions, token.handed);
        token.handed.close();
        c.control.call();
    }

    /// In the handler thread: everybody comes to rest. Returns the fork's number.
    pub(super) fn stand_still(&self, handler: &mut Handler<'_>) -> u32 {
        handler.drain();
        let fork = self.frozen.fetch_add(1, AcqRel) + 1;
        self.kick().kick();
        loop {
            let parked = self.reclaim_parked.load(Acquire);
            if parked == fork {
                return fork;
            }
            futex::wait(&self.reclaim_parked, parked, Some(1), Scope::Process);
            handler.serve_reclaim();
            self.kick().kick();
        }
    }

    /// In an engine thread: waits until the fork is over.
    pub(super) fn stay_parked(&self, fork: u32) {
        while self.frozen.load(Acquire) == fork {
            futex::wait(&self.frozen, fork, None, Scope::Process);
        }
    }

    fn thaw(&self) {
        self.frozen.fetch_add(1, AcqRel);
        futex::wake(&self.frozen, u32::MAX, Scope::Process);
    }
}
