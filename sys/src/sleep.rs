//! Sleeping without the C library.

use super::syscall::syscall;

/// Sleeps for a tenth of a millisecond.
pub fn pause() {
    let t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 100_000,
    };
    // SAFETY: the time outlives the call.
    let _ = unsafe { syscall(libc::SYS_nanosleep, [&t as *const _ as usize, 0]) };
}
