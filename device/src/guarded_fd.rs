//! A descriptor inside a program that may close it and open its own file under the same number.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::os::{self, Errno};

/// An owned descriptor that knows what it stands for.
pub(super) struct GuardedFd {
    fd: ManuallyDrop<OwnedFd>,
    identity: os::Identity,
}

impl GuardedFd {
    pub(super) fn new(fd: OwnedFd) -> Result<Self, Errno> {
        let identity = os::identity(fd.as_raw_fd())?;
        Ok(Self {
            fd: ManuallyDrop::new(fd),
            identity,
        })
    }

    /// Whether the number still stands for what it stood for at first.
    pub(super) fn is_ours(&self) -> bool {
        os::identity(self.fd.as_raw_fd()) == Ok(self.identity)
    }
}

impl AsFd for GuardedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for GuardedFd {
    fn drop(&mut self) {
        // What now is a file of the program is not ours to close.
        if self.is_ours() {
            // SAFETY: not used again; its owner is going away.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}
