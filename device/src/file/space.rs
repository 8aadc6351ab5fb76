//! Growing the file and giving space back.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use super::super::{os, DeviceError};
use super::store::Store;
use hugeswap_mm::PAGE_SIZE;

/// Files grow by at least this much, so that growing is rare.
const STEP: u64 = 64 << 20;
/// A step larger than asked for must leave this much of the file system free.
const LEAVE_FREE: u64 = 256 << 20;

impl Store {
    pub(super) fn grow(&self, bytes: u64) -> Result<(), DeviceError> {
        let have = self.capacity();
        if bytes <= have {
            return Ok(());
        }
        if bytes > self.max_bytes {
            return Err(DeviceError::LimitReached {
                limit: self.max_bytes,
            });
        }
        if self.block {
            // All of it was usable from the start.
            return Err(DeviceError::NoSpace);
        }
        if !self.fd.is_ours() {
            return Err(DeviceError::Gone);
        }
        let want = bytes.next_multiple_of(PAGE_SIZE as u64).min(self.max_bytes);
        let step = want.next_multiple_of(STEP).min(self.max_bytes);
        if step > want && self.has_room(step - have) && self.reserve(have, step).is_ok() {
            return Ok(());
        }
        self.reserve(have, want)
    }

    /// Whether the file system has `bytes` to spare. Asked before a generous step, because a
    /// reservation that fails half-way keeps the first half.
    fn has_room(&self, bytes: u64) -> bool {
        os::fstatfs(self.fd.as_fd()).is_ok_and(|fs| {
            let block = u64::try_from(fs.f_bsize).unwrap_or(0);
            fs.f_bavail.saturating_mul(block) >= bytes.saturating_add(LEAVE_FREE)
        })
    }

    /// Makes `have..end` usable. `have` has been the capacity at some time, so everything below it
    /// is reserved; two threads may do this at once, for different ends.
    fn reserve(&self, have: u64, end: u64) -> Result<(), DeviceError> {
        if self.can_reserve.load(Ordering::Relaxed) {
            match os::fallocate(self.fd.as_fd(), 0, have, end - have) {
                Ok(()) => {
                    self.capacity.fetch_max(end, Ordering::AcqRel);
                    return Ok(());
                }
                Err(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => {
                    self.can_reserve.store(false, Ordering::Relaxed);
                }
                Err(errno) => return Err(DeviceError::from_errno(errno)),
            }
        }
        // No reservation on this file system: the file only gets its length, all of it at once,
        // because a second, shorter ftruncate would cut off what another thread has written.
        let fd = self.fd.as_fd();
        let stat = os::fstat(fd).map_err(DeviceError::from_errno)?;
        if u64::try_from(stat.st_size).unwrap_or(0) < self.max_bytes {
            os::ftruncate(fd, self.max_bytes).map_err(DeviceError::from_errno)?;
        }
        self.capacity.fetch_max(end, Ordering::AcqRel);
        Ok(())
    }

    /// Reserves blocks for a range of a file that has its full length already.
    pub(super) fn reserve_range(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        if offset
            .checked_add(len)
            .is_none_or(|end| end > self.capacity())
        {
            return Err(DeviceError::OutOfRange);
        }
        if self.block || !self.can_reserve.load(Ordering::Relaxed) {
            return Ok(());
        }
        match os::fallocate(self.fd.as_fd(), libc::FALLOC_FL_KEEP_SIZE, offset, len) {
            Ok(()) => Ok(()),
            Err(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => {
                self.can_reserve.store(false, Ordering::Relaxed);
                Ok(())
            }
            Err(errno) => Err(DeviceError::from_errno(errno)),
        }
    }

    pub(super) fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let page = PAGE_SIZE as u64;
        let inside = offset
            .checked_add(len)
            .is_some_and(|end| end <= self.capacity());
        if !inside || offset % page != 0 || len % page != 0 {
            return Err(DeviceError::OutOfRange);
        }
        if len == 0 || !self.can_discard.load(Ordering::Relaxed) {
            return Ok(());
        }
        if !self.fd.is_ours() {
            return Err(DeviceError::Gone);
        }
        let fd = self.fd.as_fd();
        let result = if self.block {
            os::block_discard(fd, offset, len)
        } else {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            os::fallocate(fd, mode, offset, len)
        };
        match result {
            Ok(()) => Ok(()),
            Err(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => {
                // Can't give space back here: the range keeps its old bytes, which is allowed.
                self.can_discard.store(false, Ordering::Relaxed);
                Ok(())
            }
            Err(errno) => Err(DeviceError::from_errno(errno)),
        }
    }
}
