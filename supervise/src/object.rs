//! The page that the supervisor shares with one image of a program, and the question whether the image is
//! gone.
//!
//! A process has the page mapped, and its io_urings hold the page's file, by *handles*: open files of
//! their own, each with a shared lock. The kernel ends the lock when the last mapping, descriptor and ring
//! that refers to the handle is gone, and a ring is gone only when its last request has ended. So who can
//! take the lock for itself knows that the image has no memory and no read or write in flight.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use hugeswap_control::{Mapped, Proc};

use hugeswap_host::os;

pub struct Object {
    page: Mapped,
    file: File,
}

fn lock(file: &File, how: i32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    match unsafe { libc::flock(file.as_raw_fd(), how) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Object {
    pub fn new() -> io::Result<Object> {
        let file = os::sealed_memory_file("hugeswap-process", Proc::BYTES as u64)?;
        // SAFETY: it has this size for ever.
        let page = unsafe { Mapped::new(file.as_raw_fd()) };
        let page = page.map_err(|e| io::Error::from_raw_os_error(e.0))?;
        Ok(Object { page, file })
    }

    pub fn page(&self) -> &Proc {
        &self.page
    }

    /// An open file of the page, to be handed out and then closed here.
    pub fn handle(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let handle = File::options().read(true).write(true).open(path)?;
        lock(&handle, libc::LOCK_SH | libc::LOCK_NB)?;
        Ok(handle.into())
    }

    /// The number of its file in lists of mappings.
    pub fn inode(&self) -> Option<String> {
        use std::os::unix::fs::MetadataExt;
        self.file.metadata().ok().map(|m| m.ino().to_string())
    }

    /// Whether anybody has a hold of a handle, as far as can be known.
    pub fn is_held(&self) -> bool {
        if lock(&self.file, libc::LOCK_EX | libc::LOCK_NB).is_err() {
            return true;
        }
        // A handle may yet be made.
        let _ = lock(&self.file, libc::LOCK_UN);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_held_by_its_mapping() {
        let object = Object::new().unwrap();
        assert!(!object.is_held());
        let (a, b) = (object.handle().unwrap(), object.handle().unwrap());
        // SAFETY: it has this size for ever.
        let mapped = unsafe { Mapped::new(a.as_raw_fd()) }.unwrap();
        drop(a);
        drop(b);
        assert!(object.is_held());
        drop(mapped);
        assert!(!object.is_held());
    }
}
