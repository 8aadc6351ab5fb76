//! Limits that the program set itself, in the way of the engine's own descriptors, threads and memory.

use super::sleep::pause;
use super::syscall::{syscall, Errno};
use core::sync::atomic::{AtomicBool, Ordering::*};

/// Descriptors and threads that an engine may need while it starts, and more.
const ENOUGH: u64 = 256;

const RESOURCES: [(u32, u64); 4] = [
    (libc::RLIMIT_NOFILE, ENOUGH),
    (libc::RLIMIT_NPROC, ENOUGH),
    (libc::RLIMIT_AS, u64::MAX),
    (libc::RLIMIT_DATA, u64::MAX),
];

#[repr(C)]
#[derive(Clone, Copy)]
struct Limit {
    now: u64,
    most: u64,
}

/// Limits as high as they may be, until this is dropped.
pub struct Raised {
    before: [Option<Limit>; RESOURCES.len()],
}

impl Raised {
    /// Where the program has other threads they see it: for starts of the engine only, which happen
    /// in the constructor and in a forked child.
    pub fn raise() -> Raised {
        Raised {
            before: RESOURCES.map(|(resource, enough)| raise(resource, enough)),
        }
    }
}

/// Raises the limit to this, or as high as it may be. The one before, if anything has changed.
fn raise(resource: u32, enough: u64) -> Option<Limit> {
    let before = limit(resource, None).ok()?;
    if before.now >= enough {
        return None;
    }
    // Beyond the hard limit with CAP_SYS_RESOURCE only.
    let wished = Limit {
        now: enough,
        most: before.most.max(enough),
    };
    let allowed = Limit {
        now: before.most,
        most: before.most,
    };
    limit(resource, Some(wished))
        .or_else(|_| limit(resource, Some(allowed)))
        .ok()?;
    Some(before)
}

/// A soft limit of the program's; where it can't be had there is none. By the call that hooks are known to need.
pub fn soft(resource: u32) -> usize {
    let mut found = Limit { now: 0, most: 0 };
    // SAFETY: the structure is as the kernel's, and outlives the call.
    let asked = unsafe {
        let args = [resource as usize, &raw mut found as usize];
        syscall(libc::SYS_getrlimit, args)
    };
    asked.map_or(usize::MAX, |_| found.now as usize)
}

/// Whether writable addresses are limited: the engine should not have more of them than it needs.
pub fn is_data_limited() -> bool {
    limit(libc::RLIMIT_DATA, None).is_ok_and(|l| l.now != u64::MAX)
}

/// One thread at a time: what it puts back must be the program's limit. Not held while a child is made: the
/// engine stands still then, and no other hook runs.
static BEYOND: AtomicBool = AtomicBool::new(false);

/// Makes a call that takes addresses for the engine; where the program's limits of memory refuse it, again
/// with these as high as they may be.
pub fn beyond_memory<R>(call: impl Fn() -> Result<R, Errno>) -> Result<R, Errno> {
    let first = call();
    if !matches!(first, Err(Errno::ENOMEM)) {
        return first;
    }
    while BEYOND.swap(true, Acquire) {
        core::hint::spin_loop();
    }
    let memory = [libc::RLIMIT_AS, libc::RLIMIT_DATA];
    let before = memory.map(|resource| raise(resource, u64::MAX));
    let again = if before.iter().any(Option::is_some) {
        call()
    } else {
        first
    };
    for (resource, before) in memory.into_iter().zip(before) {
        if before.is_some() {
            let _ = limit(resource, before);
        }
    }
    BEYOND.store(false, Release);
    again
}

/// Threads that the kernel may make for requests of a ring while a child is made.
const MORE: u64 = 1;

/// For the moment in which a child is made: what the program allows itself does not count the engine's threads. To
/// be dropped in parent and child.
pub struct RoomForThreads {
    before: Option<Limit>,
}

impl RoomForThreads {
    /// `engines` tells how many threads the program does not know of; it is asked where there is a limit.
    pub fn make(engines: impl FnOnce() -> usize) -> RoomForThreads {
        let make = || {
            let before = limit(libc::RLIMIT_NPROC, None).ok()?;
            if before.now >= before.most {
                return None;
            }
            let now = before
                .now
                .saturating_add(engines() as u64 + MORE)
                .min(before.most);
            (now > before.now).then_some(())?;
            limit(libc::RLIMIT_NPROC, Some(Limit { now, ..before })).ok()
        };
        RoomForThreads { before: make() }
    }
}

impl Drop for RoomForThreads {
    fn drop(&mut self) {
        if self.before.is_some() {
            let _ = limit(libc::RLIMIT_NPROC, self.before);
        }
    }
}

/// One thread at a time has room for a descriptor: what it puts back must be the program's limit.
static ROOM: AtomicBool = AtomicBool::new(false);

/// For the moment in which a descriptor comes: the program may allow itself none.
pub struct RoomForDescriptor {
    before: Option<Limit>,
}

impl RoomForDescriptor {
    /// `free` is a number that none has, or less than zero.
    pub fn make(free: i32) -> RoomForDescriptor {
        while ROOM.swap(true, Acquire) {
            pause();
        }
        let now = limit(libc::RLIMIT_NOFILE, None).map_or(u64::MAX, |l| l.now);
        let is_there = u64::try_from(free).is_ok_and(|free| free < now);
        RoomForDescriptor {
            before: (!is_there)
                .then(|| raise(libc::RLIMIT_NOFILE, ENOUGH))
                .flatten(),
        }
    }

    /// In a forked child: who had it is not there.
    pub fn forget() {
        ROOM.store(false, Release);
    }
}

impl Drop for RoomForDescriptor {
    fn drop(&mut self) {
        if self.before.is_some() {
            let _ = limit(libc::RLIMIT_NOFILE, self.before);
        }
        ROOM.store(false, Release);
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        for ((resource, _), before) in RESOURCES.into_iter().zip(self.before) {
            if before.is_some() {
                let _ = limit(resource, before);
            }
        }
    }
}

/// Sets the limit, if one is given; returns the one before.
fn limit(resource: u32, to: Option<Limit>) -> Result<Limit, Errno> {
    let mut old = Limit { now: 0, most: 0 };
    let new = to.as_ref().map_or(0, |l| l as *const Limit as usize);
    // SAFETY: both structures are as the kernel's `struct rlimit64` and outlive the call.
    unsafe {
        syscall(
            libc::SYS_prlimit64,
            [0, resource as usize, new, &mut old as *mut Limit as usize],
        )
    }?;
    Ok(old)
}
