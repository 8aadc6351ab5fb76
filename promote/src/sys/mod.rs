//! The system calls, and the only unsafe code.
#![allow(unsafe_code)]

mod clock;
mod handle;
mod mapping;
mod open;
mod perf;
mod rights;
mod ring;
mod sched;
mod tracefs;
mod wait;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

pub use clock::{cpu_nanos, major_faults, monotonic_micros};
pub use handle::{xfs_generation, Handle};
pub use mapping::{memory_file, Mapped, Mapping};
#[cfg(test)]
pub use open::Lease;
pub use open::{name_below, name_of, name_of_descriptor, what, What};
pub use perf::{perf_event, perf_filter, perf_redirect, Perf};
pub use rights::drop_capabilities;
pub use ring::Ring;
pub use sched::Pinned;
pub use tracefs::{append_at, read_at, tracefs};
pub use wait::{signals, Waiter};

fn check(ret: libc::c_long) -> io::Result<libc::c_long> {
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(ret)
    }
}

fn owned(ret: libc::c_long) -> io::Result<OwnedFd> {
    let fd = check(ret)? as RawFd;
    // SAFETY: the kernel has just given it to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Five descriptors for each processor may be more than a process may have
/// by default.
pub fn allow_descriptors() {
    // SAFETY: the kernel fills the limits, and takes those that it gave.
    unsafe {
        let mut limits = std::mem::zeroed::<libc::rlimit>();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limits) == 0 {
            limits.rlim_cur = limits.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limits);
        }
    }
}

pub fn is_root() -> bool {
    // SAFETY: always succeeds.
    unsafe { libc::geteuid() == 0 }
}
