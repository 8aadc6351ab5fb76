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

/// Waits until some of these can be read, at most so long. A number below zero is passed over.
pub fn wait_readable(fds: &mut [libc::pollfd], mut limit: Option<libc::timespec>) {
    let at = limit.as_mut().map_or(0, |l| l as *mut _ as usize);
    let args = [fds.as_mut_ptr() as usize, fds.len(), at, 0, 8];
    // SAFETY: array and time outlive the call; no signal mask.
    if unsafe { syscall(libc::SYS_ppoll, args) } == Err(Errno::EINVAL) {
        // The program allows itself fewer descriptors than these are.
        select(fds, at);
    }
}

/// As poll, by select, which does not ask how many descriptors the process may have. `limit` is the address of a
/// time, or zero.
fn select(fds: &mut [libc::pollfd], limit: usize) {
    let mut set = [0u64; 16];
    let place = |fd: i32| {
        let fd = usize::try_from(fd).ok().filter(|&fd| fd < 1024)?;
        Some((fd / 64, 1 << (fd % 64)))
    };
    for (word, bit) in fds.iter().filter_map(|f| place(f.fd)) {
        set[word] |= bit;
    }
    let args = [1024, set.as_mut_ptr() as usize, 0, 0, limit, 0];
    // SAFETY: the set has a bit for each number below 1024; set and time outlive the call.
    let some = unsafe { syscall(libc::SYS_pselect6, args) }.is_ok();
    for f in fds {
        let is_readable = some && place(f.fd).is_some_and(|(word, bit)| set[word] & bit != 0);
        f.revents = if is_readable { libc::POLLIN } else { 0 };
    }
}

/// Whether the other side of a connection is gone. Without waiting.
pub fn is_hung_up(fd: i32) -> bool {
    let mut polled = libc::pollfd {
        fd,
        events: 0,
        revents: 0,
    };
    // SAFETY: one structure, which outlives the call.
    match unsafe { syscall(libc::SYS_poll, [&raw mut polled as usize, 1, 0]) } {
        // As in `wait_readable`.
        Err(Errno::EINVAL) => has_ended(fd),
        _ => polled.revents & libc::POLLHUP != 0,
    }
}

/// Whether nothing more comes by a connection.
fn has_ended(fd: i32) -> bool {
    let mut byte = 0u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let args = [fd as usize, &raw mut byte as usize, 1, flags as usize, 0, 0];
    // SAFETY: one byte, which outlives the call.
    let came = unsafe { syscall(libc::SYS_recvfrom, args) };
    came == Ok(0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn select_says_what_poll_says() {
        let mut two = [-1; 2];
        let args = [two.as_mut_ptr() as usize, 0];
        // SAFETY: room for two numbers.
        unsafe { syscall(libc::SYS_pipe2, args) }.unwrap();
        let now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let is_readable = || {
            let mut fds = [-1, two[0]].map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 7,
            });
            select(&mut fds, &raw const now as usize);
            fds.map(|f| f.revents)
        };
        assert_eq!(is_readable(), [0, 0]);
        write_both(two[1], [b"1", b""]).unwrap();
        assert_eq!(is_readable(), [0, libc::POLLIN]);
        two.into_iter().for_each(close);
    }
}
