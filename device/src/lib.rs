//! Swap devices: where folios go when they leave memory.
//!
//! It uses `mm` and `copy`, and io_uring. It may not know of slots, ranges or seals: it moves bytes between
//! memory and offsets.
//!
//! A [`Device`] is a flat range of bytes that can grow; a [`Queue`] is one thread's way to it.
//! The devices are
//!
//! * [`file::FileDevice`]: a swap file or block device, past the page cache where possible,
//!   through io_uring where allowed;
//! * [`ram::RamDevice`]: memory standing in for persistent memory;
//! * [`faulty::FaultyDevice`]: a wrapper that injects faults, for tests.
//!
//! The promises every device keeps are checked by one conformance suite
//! (`tests/conformance.rs`):
//!
//! * a completion is `Ok` only if every byte of the request was transferred;
//! * each accepted request completes exactly once, whatever happens to the device;
//! * after [`Device::queue`], submitting and reaping allocate nothing, take no lock, touch no
//!   lazily built thread-local storage and don't panic: they run inside fault handlers of other
//!   programs;
//! * requests in flight at the same time are not ordered. A caller that needs order waits.
//!
//! **Fork.** A child must neither use nor drop the queues and devices it inherits: the rings
//! belong to the parent and are not mapped in the child. It forgets them (`mem::forget`) and opens
//! the parent's swap file anew with [`file::FileDevice::from_fd`].
#![deny(unsafe_code)]

pub mod error;
pub mod faulty;
pub mod file;
mod guarded_fd;
mod inline;
mod os;
pub mod ram;

pub mod transfer;

pub use error::{DeviceError, IoError, OpenError, QueueFull};

use std::os::fd::{BorrowedFd, RawFd};

use hugeswap_mm::{PAGE_SIZE, PMD_SIZE};

/// Direction of one transfer, seen from memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// From the device into memory.
    Read,
    /// From memory to the device.
    Write,
}

/// One transfer between memory and the device.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    pub op: Op,
    /// Byte offset on the device; a multiple of the page size.
    pub offset: u64,
    /// Start of the memory; page-aligned.
    pub addr: *mut u8,
    /// Bytes; a multiple of the page size, not zero, at most 2 MiB.
    pub len: usize,
    /// Handed back with the completion; the device attaches no meaning to it.
    pub tag: u64,
    /// Byte offset within the request whose data is wanted first, or is to be the hottest in the
    /// CPU's cache afterwards.
    pub target: usize,
}

// SAFETY: a request only carries the address. Whether the memory may be used from another thread
// is decided where it is used, by the contract of `Queue::submit`.
#[allow(unsafe_code)]
unsafe impl Send for Request {}

impl Request {
    /// Whether the request has the promised form and lies below `capacity`.
    pub fn check(&self, capacity: u64) -> Result<(), IoError> {
        let aligned = self.offset % PAGE_SIZE as u64 == 0
            && self.addr.addr() % PAGE_SIZE == 0
            && self.len % PAGE_SIZE == 0;
        if !aligned || self.len == 0 || self.len > PMD_SIZE || self.addr.is_null() {
            return Err(IoError::Invalid);
        }
        match self.offset.checked_add(self.len as u64) {
            Some(end) if end <= capacity => Ok(()),
            _ => Err(IoError::OutOfRange),
        }
    }
}

/// The end of one [`Request`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    pub tag: u64,
    /// `Ok` only when the full length is known to be transferred. After an error the contents of
    /// the memory (read) or of the device's range (write) are undefined.
    pub result: Result<(), IoError>,
}

/// What a device has met on its way; for the statistics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Transfers that came back short and were continued.
    pub short_transfers: u64,
    /// Transfers repeated after a passing error (EINTR, EAGAIN).
    pub retries: u64,
    /// Requests that ended with an error.
    pub errors: u64,
}

/// A swap device.
pub trait Device: Send + Sync {
    /// A private request queue for one engine thread, with room for `depth` requests in flight.
    /// All memory it will ever need is allocated here. It may be moved to another thread.
    fn queue(&self, depth: u32) -> Result<Box<dyn Queue>, DeviceError>;

    /// Makes offsets below `bytes` usable; never shrinks. Space is reserved where the file system
    /// can do so, such that a later first write does not meet a full disk. (After
    /// [`discard`](Self::discard) it may.)
    fn grow(&self, bytes: u64) -> Result<(), DeviceError>;

    /// Reserves space for `offset..offset + len` below the capacity, where a shared file was made
    /// at its full length and each process reserves what it is going to use.
    fn reserve(&self, offset: u64, len: u64) -> Result<(), DeviceError>;

    /// Bytes usable now.
    fn capacity(&self) -> u64;

    /// Bytes [`grow`](Self::grow) can reach.
    fn max_bytes(&self) -> u64;

    /// The contents are no longer needed; reads give zeros or the old bytes until the next write.
    /// No request on the range may be in flight.
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError>;

    /// For `--verbose`: "file /var/tmp (O_DIRECT, io_uring)".
    fn describe(&self) -> String;

    /// The descriptor behind the device, to keep it open past a mass close or to hand it on.
    fn as_fd(&self) -> BorrowedFd<'_>;

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// How long [`Queue::reap`] looks for requests that have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// Without waiting.
    Now,
    /// Asleep, if none has and some are in flight.
    OneEnded,
}

/// One thread's requests to a device. Dropping it waits for those in flight.
pub trait Queue: Send {
    /// Accepts a request, or refuses it when `depth` requests have not been reaped yet. May
    /// complete it at once (sync and ram): the next [`reap`](Self::reap) then returns it. A
    /// malformed request is accepted and completes with an error.
    ///
    /// # Safety
    ///
    /// `addr..addr + len` is valid for reads (write request) or writes (read request) until the
    /// completion has been reaped or the queue dropped, and until then nobody else writes there,
    /// nor, for a read request, reads there. For a write request a change of the memory by others
    /// is allowed to tear the data.
    #[allow(unsafe_code)]
    unsafe fn submit(&mut self, req: Request) -> Result<(), QueueFull>;

    /// Carries a read of a page or so out while the caller waits, where that takes less time than to hand it in and to look
    /// for its end. `None`: not here, and nothing has happened.
    ///
    /// # Safety
    ///
    /// As for [`submit`](Self::submit), until this returns.
    #[allow(unsafe_code)]
    unsafe fn read_now(&mut self, _req: &Request) -> Option<Result<(), IoError>> {
        None
    }

    /// Hands submitted requests to the kernel without waiting. Needed only to start them before
    /// the next [`reap`](Self::reap).
    fn kick(&mut self);

    /// Calls `f` for each finished request.
    fn reap(&mut self, until: Until, f: &mut dyn FnMut(Completion));

    /// Requests submitted and not yet reaped.
    fn in_flight(&self) -> u32;

    /// A descriptor that polls readable when [`reap`](Self::reap) would find something; `None`
    /// when requests complete inline. A reap after a wake-up may still find nothing: a transfer
    /// that came back short was continued.
    fn poll_fd(&self) -> Option<RawFd>;

    /// Requests wait here that the kernel could not take when they were kicked: no descriptor tells
    /// of them, so whoever sleeps must kick again in a while.
    fn is_behind(&self) -> bool {
        false
    }
}
