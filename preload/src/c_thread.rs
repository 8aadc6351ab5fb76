//! What the C library keeps of the calling thread, and the kernel is told of.

use crate::arch::{thread_number, ROBUST_HEAD};
use hugeswap::sys::arch::thread_pointer;
use hugeswap::sys::{syscall, thread};

/// This thread's number, as the C library knows it; zero where it does not know the thread.
pub fn tid() -> u32 {
    thread_number()
}

/// The head of this thread's robust mutexes, as the kernel knows it.
pub fn robust_head() -> Option<(usize, usize)> {
    let (mut head, mut len) = (0usize, 0usize);
    // SAFETY: the variables outlive the call.
    unsafe {
        syscall(
            libc::SYS_get_robust_list,
            [
                0,
                &mut head as *mut usize as usize,
                &mut len as *mut usize as usize,
            ],
        )
    }
    .ok()?;
    (head != 0).then_some((head, len))
}

/// Whether this C library keeps its thread structure as we know it.
pub fn is_known() -> bool {
    tid() == thread::gettid()
        && robust_head().is_some_and(|(h, _)| h == thread_pointer() + ROBUST_HEAD)
}

/// The kernel forgets the list at fork; it lies where it lay.
pub fn robust_head_in_child() -> Option<(usize, usize)> {
    Some((thread_pointer() + ROBUST_HEAD, 24))
}
