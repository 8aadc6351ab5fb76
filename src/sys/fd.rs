//! Descriptors of other tables.

use super::syscall::{syscall, Errno};

/// A copy, in this thread's table, of a descriptor that another thread of this process has in a
/// table of its own (Linux 6.9).
pub fn copy_from_thread(tid: u32, fd: i32) -> Result<i32, Errno> {
    const PIDFD_THREAD: i32 = libc::O_EXCL;
    // SAFETY: no pointers; the descriptor for the thread is closed again.
    unsafe {
        let pidfd = syscall(libc::SYS_pidfd_open, [tid as usize, PIDFD_THREAD as usize])?;
        let copy = syscall(libc::SYS_pidfd_getfd, [pidfd, fd as usize, 0]);
        let _ = syscall(libc::SYS_close, [pidfd]);
        copy.map(|c| c as i32)
    }
}

/// Opens a file for reading; it is closed at an exec.
pub fn open(path: &core::ffi::CStr) -> Result<i32, Errno> {
    // SAFETY: a C string.
    let fd = unsafe {
        syscall(
            libc::SYS_openat,
            [
                libc::AT_FDCWD as usize,
                path.as_ptr() as usize,
                (libc::O_RDONLY | libc::O_CLOEXEC) as usize,
            ],
        )
    }?;
    Ok(fd as i32)
}

pub fn close(fd: i32) {
    // SAFETY: no pointers; who calls this owns the descriptor.
    let _ = unsafe { syscall(libc::SYS_close, [fd as usize]) };
}

/// Closes every descriptor of this thread's table but these.
pub fn close_all_but(keep: &[i32]) {
    let mut first = 0u32;
    loop {
        // The next one to be kept, in ascending order.
        let next = keep
            .iter()
            .filter(|&&k| k >= 0 && k as u32 >= first)
            .min()
            .map(|&k| k as u32);
        let last = next.map_or(u32::MAX, |n| n.wrapping_sub(1));
        if next != Some(first) {
            close_range(first, last);
        }
        match next {
            Some(n) => first = n + 1,
            None => return,
        }
    }
}

fn close_range(first: u32, last: u32) {
    // SAFETY: no pointers; the table is the caller's own.
    let r = unsafe { syscall(libc::SYS_close_range, [first as usize, last as usize, 0]) };
    if r.is_err() {
        for fd in first..=last.min(65536) {
            close(fd as i32);
        }
    }
}
