//! Limits that the program set itself, in the way of the engine's own descriptors and threads.

use super::syscall::{syscall, Errno};

/// Descriptors and threads that an engine may need while it starts, and more.
const ENOUGH: u64 = 256;

const RESOURCES: [u32; 2] = [libc::RLIMIT_NOFILE, libc::RLIMIT_NPROC];

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
        let as_allowed = |resource: u32| {
            let before = limit(resource, None).ok()?;
            if before.now >= ENOUGH {
                return None;
            }
            // Beyond the hard limit with CAP_SYS_RESOURCE only.
            let wished = Limit {
                now: ENOUGH,
                most: before.most.max(ENOUGH),
            };
            let allowed = Limit {
                now: before.most,
                most: before.most,
            };
            limit(resource, Some(wished))
                .or_else(|_| limit(resource, Some(allowed)))
                .ok()?;
            Some(before)
        };
        Raised {
            before: RESOURCES.map(as_allowed),
        }
    }
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

impl Drop for Raised {
    fn drop(&mut self) {
        for (resource, before) in RESOURCES.into_iter().zip(self.before) {
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
