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

/// Writes to the word there what it has, in one step with reading it, so that its page is dirty. It never waits for the page: EFAULT
/// where that is missing in a userfaultfd's range, or traps writes there. (Who waits for the word may be woken for nothing, if it has a certain
/// value; that is allowed at any time.)
pub fn rewrite(word: usize) -> Result<(), Errno> {
    // `FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0x5a7)`: who waits is woken where that is what it was.
    const OR_NOTHING: usize = 2 << 28 | 0x5a7;
    let nobody = AtomicU32::new(0);
    // SAFETY: the word's value stays what it is, whoever writes to it meanwhile.
    let r = unsafe {
        syscall(
            libc::SYS_futex,
            [
                nobody.as_ptr() as usize,
                op(libc::FUTEX_WAKE_OP, Scope::Process),
                0,
                0,
                word,
                OR_NOTHING,
            ],
        )
    };
    r.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_rewritten_as_it_is() {
        for value in [0, 0x5a7, u32::MAX] {
            let word = AtomicU32::new(value);
            assert_eq!(rewrite(word.as_ptr() as usize), Ok(()));
            assert_eq!(word.into_inner(), value);
        }
        assert_eq!(rewrite(4096), Err(Errno::EFAULT));
        static CONSTANT: u32 = 7;
        assert_eq!(rewrite(&raw const CONSTANT as usize), Err(Errno::EFAULT));
    }
}
