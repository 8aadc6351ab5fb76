//! Whose instruction makes the system calls: our own, or one that was lent.

use core::sync::atomic::{AtomicUsize, Ordering::*};

/// Where the instruction stands by which system calls are made; 0 for our own.
pub static BORROWED: AtomicUsize = AtomicUsize::new(0);

/// From now on system calls are made by the instruction at `at`, which is another library's. So they pass
/// where the kernel asks from where a call comes (PR_SET_SYSCALL_USER_DISPATCH).
///
/// # Safety
/// At `at` are the bytes of [`CALL_AND_RETURN`](crate::arch::CALL_AND_RETURN), and they stay there.
pub unsafe fn borrow(at: usize) {
    BORROWED.store(at, Release);
}
