//! A swap file or block device.
//!
//! The file is read and written past the page cache (`O_DIRECT`) where the file system can do
//! that. Where not, the kernel caches part of what was swapped out and the memory limit is less
//! true; [`Device::describe`] says so.
//!
//! A program may close descriptors that are not its own (`close_range(3, ~0)`) and open a file of
//! its own under the same number. So that no swap data ever lands in such a file, rings hold the
//! file itself (a registered file) and every other call first checks what the number stands for.

mod contents;
mod open;
mod signature;
mod space;
mod store;
mod sync;
mod uring;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::transfer::Inject;
use super::{Counters, Device, DeviceError, OpenError, Queue};
use store::Store;

/// The system calls that carry requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Via {
    /// io_uring, or pread and pwrite where it is refused.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// pread and pwrite.
    Sync,
}

/// Bytes of one I/O of a longer request unless [`Options::piece`] says otherwise.
///
/// Measured on a virtual disk, reads of 2 MiB at depths 1, 2 and 3, medians in GB/s: whole 1.08,
/// 1.19, 1.00; in halves 1.25, 1.27, 1.27; in quarters 1.16, 1.25, 1.20. Writes: no difference.
pub const DEFAULT_PIECE: u32 = 1 << 20;

/// How to open a swap file.
#[derive(Clone)]
pub struct Options {
    /// Limit of growth.
    pub max_bytes: u64,
    pub via: Via,
    /// Go through the page cache even where `O_DIRECT` works.
    pub buffered: bool,
    /// Use a block device whatever it carries now.
    pub force: bool,
    /// Use a block device with data on it that nobody knows.
    pub overwrite: bool,
    /// Pass [`Device::discard`] on to a block device. Files always give their space back.
    pub discard_blocks: bool,
    /// Longer requests are cut into I/Os of this size, all in flight at once: 512 KiB to 2 MiB.
    pub piece: u32,
    /// A file that each ring holds as well: the kernel lets go of it once the ring's last request
    /// has ended, also when processes are killed. The caller keeps the number open.
    pub line: Option<RawFd>,
    /// Test answers in place of the kernel's.
    pub inject: Option<Arc<dyn Inject>>,
}

impl Options {
    pub fn new(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            via: Via::Auto,
            buffered: false,
            force: false,
            overwrite: false,
            discard_blocks: false,
            piece: DEFAULT_PIECE,
            line: None,
            inject: None,
        }
    }
}

/// A swap file or block device.
pub struct FileDevice {
    store: Arc<Store>,
    name: Box<str>,
    uring: bool,
    piece: u32,
}

impl FileDevice {
    /// The file of an open descriptor: one the supervisor handed down, or an ancestor's swap file
    /// after fork. What the file holds now is readable; growing it goes on from there.
    ///
    /// Descriptors that share an open file share its `O_DIRECT` flag, so that is taken as found.
    pub fn from_fd(fd: OwnedFd, max_bytes: u64) -> Result<Self, OpenError> {
        Self::from_fd_with(fd, &Options::new(max_bytes))
    }

    fn build(store: Store, name: String, options: &Options) -> Result<Self, OpenError> {
        let uring = match options.via {
            Via::Sync => false,
            Via::Auto => uring::probe().is_ok(),
            Via::Uring => {
                uring::probe().map_err(|errno| OpenError::NoUring { errno })?;
                true
            }
        };
        Ok(Self {
            store: Arc::new(store),
            name: name.into_boxed_str(),
            uring,
            piece: options.piece.clamp(uring::MIN_PIECE, uring::MAX_PIECE),
        })
    }

    /// Whether requests go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.store.direct
    }

    /// Whether requests go through io_uring.
    pub fn is_uring(&self) -> bool {
        self.uring
    }
}

impl Device for FileDevice {
    fn queue(&self, depth: u32) -> Result<Box<dyn Queue>, DeviceError> {
        if self.uring {
            match uring::UringQueue::new(&self.store, depth, self.piece) {
                Ok(queue) => return Ok(Box::new(queue)),
                // The probe worked: a limit (locked memory, descriptors) is used up by now. The
                // other way needs neither.
                Err(_) => self.store.retries.fetch_add(1, Ordering::Relaxed),
            };
        }
        Ok(Box::new(sync::SyncQueue::new(&self.store, depth)))
    }

    fn grow(&self, bytes: u64) -> Result<(), DeviceError> {
        self.store.grow(bytes)
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.store.reserve_range(offset, len)
    }

    fn capacity(&self) -> u64 {
        self.store.capacity()
    }

    fn max_bytes(&self) -> u64 {
        self.store.max_bytes
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.store.discard(offset, len)
    }

    fn describe(&self) -> String {
        format!(
            "{} {} ({}, {})",
            if self.store.block {
                "block device"
            } else {
                "file"
            },
            self.name,
            if self.store.direct {
                "O_DIRECT"
            } else {
                "through the page cache"
            },
            if self.uring {
                "io_uring"
            } else {
                "pread/pwrite"
            },
        )
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.store.fd.as_fd()
    }

    fn counters(&self) -> Counters {
        Counters {
            short_transfers: self.store.short_transfers.load(Ordering::Relaxed),
            retries: self.store.retries.load(Ordering::Relaxed),
            errors: self.store.errors.load(Ordering::Relaxed),
        }
    }
}
