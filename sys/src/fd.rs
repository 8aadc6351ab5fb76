//! Descriptors, without the C library.

use super::syscall::{syscall, Errno};

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

/// A copy of a descriptor, under the lowest number that is free; it is closed at an exec.
pub fn duplicate(fd: i32) -> Result<i32, Errno> {
    let op = libc::F_DUPFD_CLOEXEC as usize;
    // SAFETY: no pointers.
    let copy = unsafe { syscall(libc::SYS_fcntl, [fd as usize, op, 0]) }?;
    Ok(copy as i32)
}

/// A copy of a descriptor of another thread of the process, whose table may be another.
pub fn of_thread(tid: u32, fd: i32) -> Result<i32, Errno> {
    const PIDFD_THREAD: usize = libc::O_EXCL as usize;
    // SAFETY: no pointers.
    let open = |flags: usize| unsafe { syscall(libc::SYS_pidfd_open, [tid as usize, flags]) };
    let thread = match open(PIDFD_THREAD) {
        // Before Linux 6.9: for the first thread only.
        Err(Errno::EINVAL) => open(0),
        r => r,
    }?;
    // SAFETY: no pointers.
    let copy = unsafe { syscall(libc::SYS_pidfd_getfd, [thread, fd as usize, 0]) };
    close(thread as i32);
    copy.map(|fd| fd as i32)
}

/// The number that a socket has in the kernel, and no other.
pub fn socket_inode(fd: i32) -> Result<u64, Errno> {
    // SAFETY: all-zero is a valid structure, which the call fills.
    let mut s: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the structure outlives the call.
    unsafe { syscall(libc::SYS_fstat, [fd as usize, &raw mut s as usize]) }?;
    match s.st_mode & libc::S_IFMT {
        libc::S_IFSOCK => Ok(s.st_ino),
        _ => Err(Errno(libc::ENOTSOCK)),
    }
}

/// Less than zero: none.
pub fn close(fd: i32) {
    if fd < 0 {
        return;
    }
    // SAFETY: no pointers; the caller owns the descriptor.
    let _ = unsafe { syscall(libc::SYS_close, [fd as usize]) };
}

/// Writes both parts by one call. How much was written.
pub fn write_both(fd: i32, parts: [&[u8]; 2]) -> Result<usize, Errno> {
    let each = parts.map(|part| libc::iovec {
        iov_base: part.as_ptr() as *mut _,
        iov_len: part.len(),
    });
    let args = [fd as usize, each.as_ptr() as usize, each.len()];
    // SAFETY: both parts are readable, and outlive the call.
    unsafe { syscall(libc::SYS_writev, args) }
}

/// Whether the other side of a connection is gone. Without waiting.
pub fn is_hung_up(fd: i32) -> bool {
    let mut polled = libc::pollfd {
        fd,
        events: 0,
        revents: 0,
    };
    // SAFETY: one structure, which outlives the call.
    let _ = unsafe { syscall(libc::SYS_poll, [&raw mut polled as usize, 1, 0]) };
    polled.revents & libc::POLLHUP != 0
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
