//! What the C library keeps of the calling thread, and the kernel is told of.

use crate::arch::{thread_number, ROBUST_HEAD};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use hugeswap::sys::arch::thread_pointer;
use hugeswap::sys::{syscall, thread};

/// The thread that a child began with: where its structure is, what number the C library has there, and the true one.
/// Where the program has made the child by a system call of that name it is the parent's.
static FIRST: AtomicUsize = AtomicUsize::new(0);
static FIRST_KNOWN: AtomicU32 = AtomicU32::new(0);
static FIRST_TID: AtomicU32 = AtomicU32::new(0);

/// This thread's number. Zero where the C library does not know the thread. No system call is made.
pub fn tid() -> u32 {
    let known = thread_number();
    // The structure may be another thread's by now; that one has been numbered.
    if FIRST.load(Relaxed) == thread_pointer() && FIRST_KNOWN.load(Relaxed) == known {
        return FIRST_TID.load(Relaxed);
    }
    known
}

/// In a forked child.
pub fn in_child() {
    FIRST_TID.store(thread::gettid(), Relaxed);
    FIRST_KNOWN.store(thread_number(), Relaxed);
    FIRST.store(thread_pointer(), Relaxed);
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
