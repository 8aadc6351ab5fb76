//! `/proc/self/maps`, for those who have no descriptor to open it with.

use super::fd;
use super::syscall::{syscall, Errno};

/// The open file. Copies share the descriptor; it is closed with the engine's table.
#[derive(Clone, Copy)]
pub struct MapsFile {
    fd: i32,
}

impl MapsFile {
    /// What is open under this number.
    pub fn from_fd(fd: i32) -> MapsFile {
        MapsFile { fd }
    }

    pub fn fd(&self) -> i32 {
        self.fd
    }

    pub fn open() -> Result<MapsFile, Errno> {
        fd::open(c"/proc/thread-self/maps").map(|fd| MapsFile { fd })
    }

    /// Reads it from the beginning, as far as there is room; returns how much that is.
    pub fn read(&self, room: &mut [u8]) -> Result<usize, Errno> {
        let mut n = 0;
        // SAFETY: the buffer is valid for what is left of its length.
        unsafe {
            syscall(
                libc::SYS_lseek,
                [self.fd as usize, 0, libc::SEEK_SET as usize],
            )?;
            while n < room.len() {
                let at = room[n..].as_mut_ptr() as usize;
                match syscall(libc::SYS_read, [self.fd as usize, at, room.len() - n])? {
                    0 => break,
                    more => n += more,
                }
            }
        }
        Ok(n)
    }
}
