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

use super::Engine;
use crate::control::{FREE, LIVE, NEW};
use crate::fault::Handler;
use crate::sys::futex::{self, Scope};
use crate::sys::thread::getpid;
use core::sync::atomic::Ordering::*;

/// A fork under way: the child's entry of the control page.
pub struct ForkToken {
    child: Option<usize>,
    /// Pages of the program that are resident: the child's account.
    resident: i64,
}

impl Engine {
    /// Before clone. None when the run has no room for another process.
    pub fn fork_prepare(&self, bell: usize) -> Option<ForkToken> {
        let c = &self.cache.charge;
        // The parent's pid stands in until there is a child to name: the entry must be there, and
        // alive, before the parent can free anything that the child will read.
        let child = c.control.join(getpid(), NEW)?;
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
        self.cache.clusters.lend_all();
        let ready = self.cache.frames.ready() * crate::mm::PMD_NR;
        Some(ForkToken {
            child: Some(child),
            resident: c.charged() - ready as i64,
        })
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
        self.thaw();
    }

    /// In the child, on its only thread, before anything else. `regions`: addresses (start, end) to
    /// register. `wiped`: those whose contents the child does not get.
    pub fn fork_child(
        &'static self,
        token: ForkToken,
        regions: &[(usize, usize)],
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
        p.limit_pages
            .store(c.control.settings.limit_bytes as i64 / 4096, Release);
        self.frozen.store(0, Release);
        self.reclaim_parked.store(0, Release);
        self.cache.lru.reset_lock();
        self.cache.clusters.start_over();
        for &(start, end) in wiped {
            self.discard(start, end - start);
        }
        p.state.store(LIVE, Release);
        self.restart(regions);
        c.control.call();
    }

    /// In the handler thread: everybody comes to rest.
    pub(super) fn stand_still(&self, handler: &mut Handler<'_>) {
        handler.drain();
        self.frozen.store(1, Release);
        self.kick().kick();
        loop {
            let parked = self.reclaim_parked.load(Acquire);
            if parked == 1 {
                return;
            }
            futex::wait(&self.reclaim_parked, parked, Some(100), Scope::Process);
            self.kick().kick();
        }
    }

    /// In an engine thread: waits until the fork is over.
    pub(super) fn stay_parked(&self) {
        while self.frozen.load(Acquire) == 1 {
            futex::wait(&self.frozen, 1, None, Scope::Process);
        }
    }

    fn thaw(&self) {
        // In this order: the next fork must not find reclaim parked that is about to go on.
        self.reclaim_parked.store(0, Release);
        self.frozen.store(0, Release);
        futex::wake(&self.frozen, u32::MAX, Scope::Process);
    }
}
