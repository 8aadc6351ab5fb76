//! The ring that perf writes its records into: mapped here, taken apart by `records`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::page::PAGE;
use crate::records::{walk, Bytes, Record};

/// A mapped ring of records that the kernel writes and we read.
pub struct Ring {
    base: *mut u8,
    /// Bytes of the data behind the first page; a power of two.
    size: usize,
}

/// Where in the first page of a ring the kernel keeps the two ends.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

impl Ring {
    pub fn map(event: BorrowedFd, pages: usize) -> io::Result<Ring> {
        assert!(pages.is_power_of_two());
        let size = pages * PAGE as usize;
        // SAFETY: a new mapping; nothing is replaced.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size + PAGE as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Ring {
            base: base.cast(),
            size,
        })
    }

    fn end(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: within the mapped first page, aligned to 8; the kernel
        // writes it as a whole word.
        unsafe { &*self.base.add(offset).cast::<AtomicU64>() }
    }

    /// Hands every record that waits to `each`.
    pub fn drain(&mut self, buffer: &mut Vec<u8>, each: impl FnMut(Record)) {
        let head = self.end(DATA_HEAD).load(Ordering::Acquire);
        let tail = self.end(DATA_TAIL).load(Ordering::Relaxed);
        if tail == head {
            return;
        }
        let tail = walk(self, tail, head, buffer, each);
        self.end(DATA_TAIL).store(tail, Ordering::Release);
    }
}

impl Bytes for Ring {
    fn copy(&self, from: u64, to: &mut [u8]) {
        assert!(to.len() <= self.size);
        let start = from as usize & (self.size - 1);
        let first = to.len().min(self.size - start);
        // SAFETY: both parts lie within the data of the ring, which the kernel
        // does not write between tail and head.
        unsafe {
            let data = self.base.add(PAGE as usize);
            ptr::copy_nonoverlapping(data.add(start), to.as_mut_ptr(), first);
            ptr::copy_nonoverlapping(data, to.as_mut_ptr().add(first), to.len() - first);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: our own mapping; no reference into it outlives us.
        unsafe { libc::munmap(self.base.cast(), self.size + PAGE as usize) };
    }
}
