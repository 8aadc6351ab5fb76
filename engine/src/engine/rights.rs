//! The program gives up rights: the engine's threads, which the C library does not know, do so too.
//!
//! Each makes the system calls itself, between two of its turns. Its rings carry out their requests with
//! the rights of who asks, so nothing of theirs has to end.
#![allow(unsafe_code)]

use super::Engine;
use crate::fault::Handler;
use crate::sys::rights::Rights;
use crate::sys::{task, thread, Errno};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// Whether a thread of the engine's may make a system call.
pub type May = fn(i64, [usize; 6]) -> bool;

/// What the threads are to have.
pub(super) struct Change {
    rights: Rights,
    /// The program's thread: they go below its root.
    tid: u32,
    may: May,
    /// What came of it in the reclaim thread: an error's number.
    reclaims: AtomicU32,
}

const NOT_YET: u32 = u32::MAX;

/// What `task::enter_root_of` calls.
const ROOTS: [i64; 4] = [
    libc::SYS_openat,
    libc::SYS_fchdir,
    libc::SYS_chroot,
    libc::SYS_chdir,
];

impl Change {
    fn new(rights: &Rights, tid: u32, may: May) -> Change {
        Change {
            rights: *rights,
            tid,
            may,
            reclaims: AtomicU32::new(NOT_YET),
        }
    }

    fn take(&self) -> Result<(), Errno> {
        // Without /proc they stay where they are. First, for it takes a right.
        if ROOTS.iter().all(|&nr| (self.may)(nr, [0; 6])) {
            let _ = task::enter_root_of(self.tid);
        }
        self.rights.take(self.may)
    }
}

impl Engine {
    /// In a hook: the engine's threads have these rights from now on, as far as they had them, and the root of the
    /// program's thread `tid`. One hook at a time.
    pub fn give_up(&self, bell: usize, rights: &Rights, tid: u32, may: May) -> Result<(), Errno> {
        let change = Change::new(rights, tid, may);
        let handlers = self.ask_to_give_up(bell, &change);
        self.change.store(&raw const change as *mut Change, Release);
        while change.reclaims.load(Acquire) == NOT_YET {
            self.kick().kick();
            thread::pause();
        }
        match change.reclaims.load(Acquire) {
            0 => handlers,
            e => Err(Errno(e as i32)),
        }
    }

    /// The same for the calling thread, the deputy.
    pub fn give_up_here(&self, rights: &Rights, tid: u32, may: May) -> Result<(), Errno> {
        Change::new(rights, tid, may).take()
    }

    /// In the handler thread.
    pub(super) fn handler_gives_up(
        handler: &mut Handler<'_>,
        change: &Change,
    ) -> Result<(), Errno> {
        handler.with_fewer_rights(|| change.take())
    }

    /// In the reclaim thread, between two turns.
    pub(super) fn reclaim_gives_up(&self) {
        if self.change.load(Relaxed).is_null() {
            return;
        }
        let change = self.change.swap(null_mut(), AcqRel);
        // SAFETY: the hook that has stored it waits for the result.
        if let Some(change) = unsafe { change.as_ref() } {
            let error = change.take().err().map_or(0, |e| e.0 as u32);
            change.reclaims.store(error, Release);
        }
    }
}
