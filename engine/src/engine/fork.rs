//! fork: the child gets the memory as it was, an engine of its own, and the right to read what the
//! parent had in swap.
//!
//! | step | who | what |
//! |---|---|---|
//! | prepare | parent, the forking thread | freezes the engine: no transfer in flight, tables at rest |
//! | | | gets a place in the run for the child, which borrows the parent's segments |
//! | clone | kernel | copies page tables; userfaultfd registrations are not inherited |
//! | parent | parent | thaws |
//! | child | child, its only thread | resets locks, registers again, starts threads |
//!
//! Nothing that the program owns is touched in the child before its engine runs.
#![allow(unsafe_code)]

use super::{Engine, Regions};
use crate::control::link::Place;
use crate::control::{keep_from_children, set_current, Proc};
use crate::fault::Handler;
use crate::sys::futex::{self, Scope};
use crate::sys::limits::RoomForDescriptor;
use crate::sys::{mem, Errno};
use core::sync::atomic::Ordering::*;

/// A process is not made smaller than this for a fork: 8 MiB.
const LEAST_RESIDENT: i64 = (8 << 20) / crate::mm::PAGE_SIZE as i64;

/// A fork under way. The child's page is mapped here, without a descriptor, and so in the child from its
/// first moment on: as long as it is mapped anywhere the supervisor knows that the child may be there.
pub struct ForkToken {
    place: Place,
    page: &'static Proc,
    /// Pages of the program that are resident: the child's account.
    resident: i64,
}

impl Engine {
    /// Before everything else, while the other threads still run: what is resident will count
    /// twice, once for the child, and each of its pages may become two. So there must be room for
    /// that within the run's limit, whichever of the two writes to how many of them.
    pub fn fork_make_room(&self) {
        let c = &self.cache.charge;
        let limit = c.control.settings.limit_bytes as i64 / crate::mm::PAGE_SIZE as i64;
        let mine = limit - c.proc().others_pages.load(Acquire);
        if 2 * c.charged() <= mine {
            return;
        }
        let cap = (mine / 2).max(LEAST_RESIDENT);
        c.proc().fork_cap.store(cap, Release);
        let mut before = i64::MAX;
        let mut in_vain = 0;
        while c.charged() > cap && in_vain < 500 {
            self.kick().kick();
            self.kick().wait_for_progress(self.kick().progress());
            in_vain = if c.charged() < before { 0 } else { in_vain + 1 };
            before = before.min(c.charged());
        }
    }

    /// The cap ends with the fork; from there the supervisor divides anew.
    fn end_cap(&self) {
        let c = &self.cache.charge;
        if c.proc().fork_cap.swap(0, AcqRel) != 0 {
            // The supervisor finds that at its next look.
            c.proc().limit_pages.fetch_min(c.charged(), AcqRel);
        }
    }

    /// After `fork_make_room`: there is no fork now.
    pub fn fork_given_up(&self) {
        self.end_cap();
    }

    /// Before clone. None when the run has no room for another process. `door`: one of two sockets of which
    /// the child has the other, to be found by the supervisor if it can't find it; or -1.
    pub fn fork_prepare(&self, bell: usize, door: i32) -> Option<ForkToken> {
        let c = &self.cache.charge;
        // The child must be known, and borrow, before the parent can free anything that it will read.
        self.ask_for_place(bell, door);
        let Some((place, page)) = self.link.granted() else {
            self.end_cap();
            return None;
        };
        if self.freeze(bell).is_err() {
            unmap(page);
            self.end_cap();
            // The handler tells the supervisor that there will be no child.
            self.thaw();
            return None;
        }
        self.cache.slots.lend_all();
        let ready = self.cache.frames.ready() * crate::mm::PMD_NR;
        let resident = c.charged() - ready as i64 - self.cache.own_pages();
        // Held for the child from now on.
        page.charged_pages.store(resident, Release);
        page.limit_pages.store(resident, Release);
        Some(ForkToken {
            place,
            page,
            resident,
        })
    }

    /// In the parent, after clone; `pid` is the child's, if there is one.
    pub fn fork_parent(&self, token: ForkToken, pid: Option<u32>) {
        unmap(token.page);
        if pid.is_some() {
            self.cache.charge.proc().stats.forks.inc();
        }
        // SAFETY: answers the `lend_all` of `fork_prepare`, which made the token.
        unsafe { self.cache.slots.fork_done() };
        self.end_cap();
        self.thaw();
    }

    /// In the child, on its only thread, before anything else. `regions` says what to
    /// register. `wiped`: addresses (start, end) whose contents the child does not get. `door`: see
    /// `fork_prepare`.
    pub fn fork_child(
        &'static self,
        token: ForkToken,
        regions: &Regions,
        wiped: &[(usize, usize)],
        door: i32,
    ) {
        mem::forget_threads_own();
        let c = &self.cache.charge;
        c.set_image(token.place.id, token.page);
        set_current(token.page);
        keep_from_children(token.page);
        // Staging comes empty; everything else is inherited, shared until one of us writes.
        c.proc().charged_pages.store(token.resident, Release);
        self.frozen.store(0, Release);
        self.reclaim_parked.store(0, Release);
        self.reclaim_ready.store(0, Release);
        self.cache.lru.reset_lock();
        RoomForDescriptor::forget();
        self.cache.zswap.reset_locks();
        // The child's handler is not the parent's, and has not gone anywhere yet.
        self.kick().set_colocated(0);
        self.kick().end_starving();
        // SAFETY: answers the `lend_all` of `fork_prepare`, in this process's copy.
        unsafe { self.cache.slots.fork_done() };
        self.cache.slots.start_over();
        for &(start, end) in wiped {
            self.discard(start, end - start);
        }
        self.put_signpost_up();
        self.restart(regions, token.place, door);
    }

    /// In the handler thread, while all stand still: keys for both.
    pub(super) fn draw_keys(&self) -> Result<(), Errno> {
        let cache = &self.cache;
        cache.sealer.keys.fork_prepare(|f| cache.nonces_in_use(f))
    }

    /// In the handler thread: everybody comes to rest. Returns the fork's number.
    pub(super) fn stand_still(&self, handler: &mut Handler<'_>) -> u32 {
        handler.drain();
        let fork = self.frozen.fetch_add(1, AcqRel) + 1;
        self.kick().kick();
        loop {
            let parked = self.reclaim_parked.load(Acquire);
            if parked == fork {
                // The child's pages would not be protected.
                self.cache.drop_all_lazy();
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

    pub(super) fn thaw(&self) {
        self.frozen.fetch_add(1, AcqRel);
        futex::wake(&self.frozen, u32::MAX, Scope::Process);
    }
}

/// In the parent: the child's page, which was mapped for the fork, is not used any more.
fn unmap(page: &'static Proc) {
    // SAFETY: nobody else has the reference.
    unsafe { mem::unmap_own(page as *const Proc as usize, Proc::BYTES) };
}
