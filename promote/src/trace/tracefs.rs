//! The kernel's directory of events.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::sys;

pub fn tracefs() -> io::Result<OwnedFd> {
    sys::tracefs().map_err(|err| {
        let text = match err.raw_os_error() {
            Some(libc::ENODEV | libc::ENOSYS) => format!("this kernel has no trace events: {err}"),
            _ => format!("the kernel's trace events: {err}"),
        };
        io::Error::new(err.kind(), text)
    })
}

/// An event's number and the layout of its records.
pub fn load(dir: BorrowedFd, event: &str) -> io::Result<(u64, String)> {
    let id = sys::read_at(dir, &format!("events/{event}/id"))?;
    let id = id
        .trim()
        .parse()
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok((id, sys::read_at(dir, &format!("events/{event}/format"))?))
}
