//! The kernel's trace events: a directory and small files in it.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use super::{check, owned};

const FSCONFIG_CMD_CREATE: libc::c_uint = 6;

/// The directory of a tracefs that is mounted nowhere: nothing is left behind,
/// and it does not matter whether the machine has one mounted.
pub fn tracefs() -> io::Result<OwnedFd> {
    // SAFETY: fsopen, fsconfig and fsmount take integers and strings that end in 0.
    unsafe {
        let context = owned(libc::syscall(
            libc::SYS_fsopen,
            c"tracefs".as_ptr(),
            1 as libc::c_uint, // FSOPEN_CLOEXEC
        ))?;
        check(libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            FSCONFIG_CMD_CREATE,
            ptr::null::<libc::c_char>(),
            ptr::null::<libc::c_void>(),
            0,
        ))?;
        owned(libc::syscall(
            libc::SYS_fsmount,
            context.as_raw_fd(),
            1 as libc::c_uint, // FSMOUNT_CLOEXEC
            0 as libc::c_uint,
        ))
    }
}

/// Reads a small file below a directory.
pub fn read_at(dir: BorrowedFd, path: &str) -> io::Result<String> {
    let path = CString::new(path)?;
    // SAFETY: the path ends in 0.
    let fd = unsafe {
        owned(libc::openat(
            dir.as_raw_fd(),
            path.as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        ) as libc::c_long)?
    };
    io::read_to_string(std::fs::File::from(fd))
}

/// Appends to a small file below a directory, in one write.
pub fn append_at(dir: BorrowedFd, path: &str, text: &str) -> io::Result<()> {
    let path = CString::new(path)?;
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC;
    // SAFETY: the path ends in 0.
    let fd = unsafe { owned(libc::openat(dir.as_raw_fd(), path.as_ptr(), flags) as libc::c_long)? };
    let line = format!("{text}\n");
    io::Write::write_all(&mut std::fs::File::from(fd), line.as_bytes())
}
