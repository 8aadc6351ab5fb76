//! Memory standing in for persistent memory: a shared mapping of a memory file.
//!
//! Requests are carried out inside `submit` by the CPU, the target page last. The memory can come
//! from outside: a supervisor makes and fills it (so that it is charged to the supervisor's memory
//! cgroup and not to the program's), and a child opens its parent's again.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::guarded_fd::GuardedFd;
use super::inline::Finished;
use super::os::{self, Errno};
use super::{
    Completion, Counters, Device, DeviceError, IoError, Op, OpenError, Queue, QueueFull, Request,
    Until,
};
use hugeswap_mm::{PAGE_SIZE, PMD_SIZE};
use hugeswap_page_copy as copy;

/// What [`Device::discard`] does to the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDiscard {
    /// Give it back to the system.
    Free,
    /// Keep it: it was filled beforehand and is charged to somebody else, and new memory would be
    /// charged to us.
    Keep,
}

/// Whose memory file it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Made here.
    Own,
    /// Given from outside.
    Given,
}

/// Memory as a swap device.
pub struct RamDevice {
    store: Arc<Store>,
    fd: GuardedFd,
    origin: Origin,
    on_discard: OnDiscard,
}

struct Store {
    base: *mut u8,
    bytes: usize,
    capacity: AtomicU64,
    /// One bit for each 2 MiB: some of its pages may have to be allocated or mapped before they
    /// are written.
    holes: Box<[AtomicU64]>,
    errors: AtomicU64,
}

// SAFETY: the mapping lives as long as the store and is only used through raw copies; the callers
// agree which of them may touch which part at which time, as with any device.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl RamDevice {
    /// Fresh memory, allocated as the device grows.
    pub fn new(max_bytes: u64) -> Result<Self, OpenError> {
        let fd = os::memfd(c"hugeswap-ram").map_err(|errno| failed("create", errno))?;
        // SAFETY: at no address of ours.
        let device = unsafe { Self::map(fd, max_bytes, OnDiscard::Free, Origin::Own, 0) }?;
        device.store.capacity.store(0, Ordering::Release);
        Ok(device)
    }

    /// The memory file of an open descriptor, all that it holds now usable at once. It is made
    /// longer if it is shorter than `max_bytes`; from then on it must not be made shorter, which
    /// is enforced where the descriptor allows (file seals).
    pub fn from_fd(fd: OwnedFd, max_bytes: u64, on_discard: OnDiscard) -> Result<Self, OpenError> {
        // SAFETY: at no address of ours.
        unsafe { Self::map(fd, max_bytes, on_discard, Origin::Given, 0) }
    }

    /// The same, mapped at an address.
    ///
    /// # Safety
    ///
    /// `max_bytes` from there on are the caller's, who leaves them to the device.
    pub unsafe fn from_fd_at(
        fd: OwnedFd,
        max_bytes: u64,
        on_discard: OnDiscard,
        at: usize,
    ) -> Result<Self, OpenError> {
        // SAFETY: the caller's contract.
        unsafe { Self::map(fd, max_bytes, on_discard, Origin::Given, at) }
    }

    /// # Safety
    ///
    /// As `from_fd_at`, if `at` is not 0.
    unsafe fn map(
        fd: OwnedFd,
        max_bytes: u64,
        on_discard: OnDiscard,
        origin: Origin,
        at: usize,
    ) -> Result<Self, OpenError> {
        let bytes = max_bytes - max_bytes % PAGE_SIZE as u64;
        let stat = os::fstat(fd.as_fd()).map_err(|errno| failed("stat", errno))?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if size < bytes {
            os::ftruncate(fd.as_fd(), bytes).map_err(|errno| failed("size", errno))?;
        }
        // A file cut short under a mapping kills whoever touches the lost part.
        let _unsealed = os::seal_size(fd.as_fd());
        let len = usize::try_from(bytes).map_err(|_| failed("map", libc::EFBIG))?;
        // SAFETY: the caller's contract.
        let base = unsafe { os::map_shared(fd.as_fd(), len, at) };
        let base = base.map_err(|errno| failed("map", errno))?;
        // Fewer and larger pages where the system's shmem_enabled says "advise".
        // SAFETY: the range is the mapping just made.
        let _refused = unsafe { os::advise(base, len, libc::MADV_HUGEPAGE) };
        // A forked child maps the file anew.
        // SAFETY: as above; contents do not change.
        let _refused = unsafe { os::advise(base, len, libc::MADV_DONTFORK) };
        let words = len.div_ceil(PMD_SIZE).div_ceil(64);
        let store = Store {
            base,
            bytes: len,
            capacity: AtomicU64::new((size - size % PAGE_SIZE as u64).min(bytes)),
            holes: (0..words).map(|_| AtomicU64::new(u64::MAX)).collect(),
            errors: AtomicU64::new(0),
        };
        Ok(Self {
            store: Arc::new(store),
            fd: GuardedFd::new(fd).map_err(|errno| failed("stat", errno))?,
            origin,
            on_discard,
        })
    }
}

fn failed(action: &'static str, errno: Errno) -> OpenError {
    OpenError::Os {
        path: Path::new("memory for swap").into(),
        action,
        errno,
    }
}

impl Store {
    /// The address of an offset below the mapping's length.
    fn at(&self, offset: u64) -> *mut u8 {
        self.base.wrapping_add(offset as usize)
    }

    /// The words and bits of the 2 MiB blocks that `offset..offset + len` touches.
    fn blocks(&self, offset: u64, len: u64) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let first = offset as usize / PMD_SIZE;
        let end = (offset + len).div_ceil(PMD_SIZE as u64) as usize;
        (first..end).filter_map(|block| {
            self.holes
                .get(block / 64)
                .map(|word| (word, 1_u64 << (block % 64)))
        })
    }

    fn may_have_holes(&self, offset: u64, len: u64) -> bool {
        self.blocks(offset, len)
            .any(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Forgets the holes of those blocks that lie wholly in the range.
    fn filled(&self, offset: u64, len: u64) {
        let pmd = PMD_SIZE as u64;
        let (first, end) = (offset.next_multiple_of(pmd), (offset + len) / pmd * pmd);
        if first < end {
            for (word, bit) in self.blocks(first, end - first) {
                word.fetch_and(!bit, Ordering::Relaxed);
            }
        }
    }

    /// Allocates and maps the pages of a range, so that memory running out is an error here and
    /// not a signal in the middle of a copy.
    fn populate(&self, offset: u64, len: u64) -> Result<(), Errno> {
        loop {
            // SAFETY: callers pass ranges below the mapping's length; the advice changes no data.
            let done =
                unsafe { os::advise(self.at(offset), len as usize, libc::MADV_POPULATE_WRITE) };
            match done {
                Err(libc::EINTR | libc::EAGAIN) => {}
                // Linux before 5.14: pages come one by one when they are written.
                Err(libc::EINVAL) => return Ok(()),
                Err(errno) => return Err(errno),
                Ok(()) => {
                    self.filled(offset, len);
                    return Ok(());
                }
            }
        }
    }

    /// Carries out a request.
    ///
    /// # Safety
    ///
    /// The contract of [`Queue::submit`].
    unsafe fn transfer(&self, req: &Request) -> Result<(), IoError> {
        req.check(self.capacity.load(Ordering::Acquire))?;
        let device = self.at(req.offset);
        match req.op {
            // SAFETY: `check` bounds the device's side by the capacity, which is at most the
            // mapping's length; the caller vouches for the memory's.
            Op::Read => unsafe { copy_pages(req.addr, device, req.len, req.target) },
            Op::Write => {
                let len = req.len as u64;
                if self.may_have_holes(req.offset, len) {
                    self.populate(req.offset, len)
                        .map_err(|errno| match errno {
                            libc::ENOMEM | libc::EFAULT => IoError::NoSpace,
                            errno => IoError::from_errno(errno),
                        })?;
                }
                // SAFETY: as above.
                unsafe { copy_pages(device, req.addr, req.len, req.target) }
            }
        }
        Ok(())
    }
}

/// Copies whole pages, the one that holds byte `target` last.
///
/// # Safety
///
/// Both ranges are valid for `len` bytes and don't overlap.
unsafe fn copy_pages(to: *mut u8, from: *const u8, len: usize, target: usize) {
    let target = (target / PAGE_SIZE).min(len / PAGE_SIZE - 1);
    // SAFETY: the caller's contract.
    let copied = unsafe { copy::copy_raw(to, from, len, target, copy::Strategy::default()) };
    debug_assert!(copied.is_ok(), "requests are checked before");
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by us with this length, and the last user is gone.
        unsafe { os::unmap(self.base, self.bytes) };
    }
}

impl Device for RamDevice {
    fn queue(&self, depth: u32) -> Result<Box<dyn Queue>, DeviceError> {
        Ok(Box::new(RamQueue {
            store: Arc::clone(&self.store),
            finished: Finished::new(depth),
        }))
    }

    fn grow(&self, bytes: u64) -> Result<(), DeviceError> {
        let have = self.capacity();
        if bytes <= have {
            return Ok(());
        }
        if bytes > self.max_bytes() {
            return Err(DeviceError::LimitReached {
                limit: self.max_bytes(),
            });
        }
        let end = bytes
            .next_multiple_of(PMD_SIZE as u64)
            .min(self.max_bytes());
        self.store
            .populate(have, end - have)
            .map_err(|errno| match errno {
                libc::ENOMEM | libc::EFAULT => DeviceError::NoSpace,
                errno => DeviceError::from_errno(errno),
            })?;
        self.store.capacity.fetch_max(end, Ordering::AcqRel);
        Ok(())
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        if offset
            .checked_add(len)
            .is_none_or(|end| end > self.capacity())
        {
            return Err(DeviceError::OutOfRange);
        }
        self.store
            .populate(offset, len)
            .map_err(|errno| match errno {
                libc::ENOMEM | libc::EFAULT => DeviceError::NoSpace,
                errno => DeviceError::from_errno(errno),
            })
    }

    fn capacity(&self) -> u64 {
        self.store.capacity.load(Ordering::Acquire)
    }

    fn max_bytes(&self) -> u64 {
        self.store.bytes as u64
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let page = PAGE_SIZE as u64;
        let inside = offset
            .checked_add(len)
            .is_some_and(|end| end <= self.capacity());
        if !inside || offset % page != 0 || len % page != 0 {
            return Err(DeviceError::OutOfRange);
        }
        if len == 0 || self.on_discard == OnDiscard::Keep {
            return Ok(());
        }
        // Before the pages go: a write to their neighbours that comes after sees the mark or
        // does not need it.
        for (word, bit) in self.store.blocks(offset, len) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        // Through the mapping, not the descriptor, which the program may have closed.
        // SAFETY: the range lies below the capacity, and the caller says nobody needs its data.
        unsafe { os::advise(self.store.at(offset), len as usize, libc::MADV_REMOVE) }
            .map_err(DeviceError::from_errno)
    }

    fn describe(&self) -> String {
        format!(
            "ram, at most {} MiB{}",
            self.store.bytes >> 20,
            if self.origin == Origin::Given {
                " (given from outside)"
            } else {
                ""
            }
        )
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn counters(&self) -> Counters {
        Counters {
            errors: self.store.errors.load(Ordering::Relaxed),
            ..Counters::default()
        }
    }
}

struct RamQueue {
    store: Arc<Store>,
    finished: Finished,
}

impl Queue for RamQueue {
    unsafe fn submit(&mut self, req: Request) -> Result<(), QueueFull> {
        if self.finished.is_full() {
            return Err(QueueFull);
        }
        // SAFETY: the caller keeps the contract.
        let result = unsafe { self.store.transfer(&req) };
        if result.is_err() {
            self.store.errors.fetch_add(1, Ordering::Relaxed);
        }
        self.finished.push(Completion {
            tag: req.tag,
            result,
        })
    }

    fn kick(&mut self) {}

    fn reap(&mut self, _until: Until, f: &mut dyn FnMut(Completion)) {
        while let Some(completion) = self.finished.pop() {
            f(completion);
        }
    }

    fn in_flight(&self) -> u32 {
        self.finished.len()
    }

    fn poll_fd(&self) -> Option<RawFd> {
        None
    }
}
