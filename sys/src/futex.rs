//! Waiting for a word of memory to change.

use super::syscall::{syscall, Errno};
use core::sync::atomic::AtomicU32;

/// Whether the word is seen by other processes too.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Process,
    Shared,
}

fn op(base: i32, scope: Scope) -> usize {
    match scope {
        Scope::Process => (base | libc::FUTEX_PRIVATE_FLAG) as usize,
        Scope::Shared => base as usize,
    }
}

/// Sleeps while `*word == expected`, at most `timeout_ms`. May return early: check again.
/// Returns false when the time ran out.
pub fn wait(word: &AtomicU32, expected: u32, timeout_ms: Option<u64>, scope: Scope) -> bool {
    let ts = timeout_ms.map(|ms| libc::timespec {
        tv_sec: (ms / 1000) as i64,
        tv_nsec: (ms % 1000 * 1_000_000) as i64,
    });
    let ts_ptr = ts.as_ref().map_or(0, |t| t as *const _ as usize);
    // SAFETY: the word and the time outlive the call.
    let r = unsafe {
        syscall(
            libc::SYS_futex,
            [
                word.as_ptr() as usize,
                op(libc::FUTEX_WAIT, scope),
                expected as usize,
                ts_ptr,
            ],
        )
    };
    r != Err(Errno(libc::ETIMEDOUT))
}

/// Wakes up to `n` waiters.
pub fn wake(word: &AtomicU32, n: u32, scope: Scope) {
    // SAFETY: the kernel only uses the address as a key.
    let _ = unsafe {
        syscall(
            libc::SYS_futex,
            [
                word.as_ptr() as usize,
                op(libc::FUTEX_WAKE, scope),
                // The kernel takes a signed number.
                n.min(i32::MAX as u32) as usize,
            ],
        )
    };
}
