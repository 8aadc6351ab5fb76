//! A test device: another device with faults after a fixed plan, the same on every run.
//!
//! [`FaultyDevice`] works on whole requests: errors, a device that fills up, completions that come
//! late and in another order. [`ShortTransfers`] works below requests, on the answers of the
//! kernel to a [`file`](super::file) device's system calls, where short reads and writes live.
//! No completion is ever lost.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::transfer::{Answer, Inject};
use super::{
    os, Completion, Counters, Device, DeviceError, IoError, Op, Queue, QueueFull, Request, Until,
};
use hugeswap_mm::PAGE_SIZE;

/// A sequence of numbers without visible pattern; each step is one atomic addition.
struct Sequence(AtomicU64);

impl Sequence {
    fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// A number below `end`, or 0.
    fn below(&self, end: u64) -> u64 {
        let mut x = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        // Mixing by multiply and shift, so that neighbours in the sequence differ in all bits.
        for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9_u64), (27, 0x94d0_49bb_1331_11eb)] {
            x = (x ^ (x >> shift)).wrapping_mul(factor);
        }
        (x ^ (x >> 31)).checked_rem(end).unwrap_or(0)
    }
}

/// The faults of a [`FaultyDevice`].
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Reads that fail, counted from 1 over all queues.
    pub failing_reads: Vec<(u64, IoError)>,
    /// Writes that fail, counted from 1 over all queues.
    pub failing_writes: Vec<(u64, IoError)>,
    /// Of so many reads one fails; 0 for none.
    pub read_every: u64,
    /// Of so many writes one fails; 0 for none.
    pub write_every: u64,
    /// Every page of the device whose number is a multiple of this can't be read; 0 for none.
    pub bad_page_every: u64,
    /// Device ranges that can't be read.
    pub bad_ranges: Vec<Range<u64>>,
    /// Growing or reserving past this is `NoSpace`.
    pub full_at: Option<u64>,
    /// A finished request is kept back while fewer than this many finish after it, unless
    /// somebody waits.
    pub hold: usize,
    /// Hand out completions in an order drawn from this seed.
    pub shuffle: Option<u64>,
}

impl Plan {
    /// Whether one of the evenly spread bad pages touches `start..end`.
    fn has_bad_page(&self, start: u64, end: u64) -> bool {
        let page = PAGE_SIZE as u64;
        match self.bad_page_every.checked_mul(page) {
            None | Some(0) => false,
            Some(distance) => (start / page * page)
                .checked_next_multiple_of(distance)
                .is_some_and(|bad| bad < end),
        }
    }
}

/// Another device, with faults.
pub struct FaultyDevice<D> {
    inner: D,
    state: Arc<State>,
}

struct State {
    plan: Plan,
    reads: AtomicU64,
    writes: AtomicU64,
    errors: AtomicU64,
    order: Sequence,
}

impl State {
    /// The planned error of the next request, if any.
    fn next(&self, req: &Request) -> Option<IoError> {
        let plan = &self.plan;
        let (count, failing, every) = match req.op {
            Op::Read => (&self.reads, &plan.failing_reads, plan.read_every),
            Op::Write => (&self.writes, &plan.failing_writes, plan.write_every),
        };
        let number = count.fetch_add(1, Ordering::Relaxed) + 1;
        let planned = failing
            .iter()
            .find(|(nth, _)| *nth == number)
            .map(|(_, error)| *error);
        let end = req.offset.saturating_add(req.len as u64);
        let overlaps = |bad: &Range<u64>| bad.start < end && req.offset < bad.end;
        let bad = req.op == Op::Read
            && (plan.bad_ranges.iter().any(overlaps) || plan.has_bad_page(req.offset, end));
        let due = every != 0 && number % every == 0;
        planned.or((bad || due).then_some(IoError::Io))
    }
}

impl<D: Device> FaultyDevice<D> {
    pub fn new(inner: D, plan: Plan) -> Self {
        let order = Sequence::new(plan.shuffle.unwrap_or(0));
        let zero = || AtomicU64::new(0);
        let state = State {
            plan,
            reads: zero(),
            writes: zero(),
            errors: zero(),
            order,
        };
        Self {
            inner,
            state: Arc::new(state),
        }
    }

    pub fn inner(&self) -> &D {
        &self.inner
    }
}

impl<D: Device> Device for FaultyDevice<D> {
    fn queue(&self, depth: u32) -> Result<Box<dyn Queue>, DeviceError> {
        let inner = self.inner.queue(depth)?;
        let bell = Bell::new(inner.poll_fd()).map_err(DeviceError::from_errno)?;
        Ok(Box::new(FaultyQueue {
            state: Arc::clone(&self.state),
            depth: depth.max(1),
            held: Vec::with_capacity(depth.max(1) as usize),
            inner,
            bell,
        }))
    }

    fn grow(&self, bytes: u64) -> Result<(), DeviceError> {
        match self.state.plan.full_at {
            Some(full) if bytes > full => Err(DeviceError::NoSpace),
            _ => self.inner.grow(bytes),
        }
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        match self.state.plan.full_at {
            Some(full) if offset.saturating_add(len) > full => Err(DeviceError::NoSpace),
            _ => self.inner.reserve(offset, len),
        }
    }

    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn max_bytes(&self) -> u64 {
        self.inner.max_bytes()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, len)
    }

    fn describe(&self) -> String {
        format!("{}, with injected faults", self.inner.describe())
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }

    fn counters(&self) -> Counters {
        let mut counters = self.inner.counters();
        counters.errors += self.state.errors.load(Ordering::Relaxed);
        counters
    }
}

/// A descriptor that is readable while the inner queue's is, or while it is rung.
struct Bell {
    both: OwnedFd,
    rung: OwnedFd,
}

impl Bell {
    fn new(inner: Option<RawFd>) -> Result<Self, os::Errno> {
        let bell = Self {
            both: os::epoll()?,
            rung: os::eventfd()?,
        };
        os::epoll_add(bell.both.as_fd(), bell.rung.as_raw_fd())?;
        if let Some(inner) = inner {
            os::epoll_add(bell.both.as_fd(), inner)?;
        }
        Ok(bell)
    }

    fn set(&self, on: bool) {
        os::eventfd_set(self.rung.as_fd(), on);
    }
}

struct FaultyQueue {
    state: Arc<State>,
    inner: Box<dyn Queue>,
    depth: u32,
    /// Finished, not yet handed out; never more than `depth`.
    held: Vec<Completion>,
    bell: Bell,
}

impl FaultyQueue {
    fn collect(&mut self, until: Until) {
        let held = &mut self.held;
        self.inner
            .reap(until, &mut |completion| held.push(completion));
    }

    fn take(&mut self) -> Option<Completion> {
        if self.held.is_empty() {
            return None;
        }
        let at = match self.state.plan.shuffle {
            Some(_) => self.state.order.below(self.held.len() as u64) as usize,
            None => 0,
        };
        Some(self.held.remove(at))
    }
}

impl Queue for FaultyQueue {
    unsafe fn submit(&mut self, req: Request) -> Result<(), QueueFull> {
        if self.in_flight() >= self.depth {
            return Err(QueueFull);
        }
        if let Some(error) = self.state.next(&req) {
            if req.op == Op::Read && req.len % PAGE_SIZE == 0 && !req.addr.is_null() {
                // After an error the contents are undefined: make sure nobody relies on them.
                // SAFETY: the caller vouches for the memory of a read request.
                unsafe { std::ptr::write_bytes(req.addr, 0xa5, req.len) };
            }
            self.state.errors.fetch_add(1, Ordering::Relaxed);
            self.held.push(Completion {
                tag: req.tag,
                result: Err(error),
            });
            self.bell.set(true);
            return Ok(());
        }
        // SAFETY: the caller keeps the contract.
        unsafe { self.inner.submit(req) }?;
        if self.inner.poll_fd().is_none() {
            self.bell.set(true);
        }
        Ok(())
    }

    fn kick(&mut self) {
        self.inner.kick();
    }

    fn reap(&mut self, until: Until, f: &mut dyn FnMut(Completion)) {
        self.collect(match self.held.is_empty() {
            true => until,
            false => Until::Now,
        });
        let mut hand_out = self.held.len().saturating_sub(self.state.plan.hold);
        if hand_out == 0 && (until == Until::OneEnded || self.inner.in_flight() == 0) {
            hand_out = 1;
        }
        for _ in 0..hand_out {
            let Some(completion) = self.take() else { break };
            f(completion);
        }
        let inline = self.inner.poll_fd().is_none() && self.inner.in_flight() > 0;
        // What is kept back comes out once more has finished, or when asked again after the rest.
        self.bell.set(inline || !self.held.is_empty());
    }

    fn in_flight(&self) -> u32 {
        self.inner.in_flight() + self.held.len() as u32
    }

    fn poll_fd(&self) -> Option<RawFd> {
        Some(self.bell.both.as_raw_fd())
    }

    fn is_behind(&self) -> bool {
        self.inner.is_behind()
    }
}

/// Short transfers of every kind and passing errors, for [`Options::inject`].
///
/// [`Options::inject`]: super::file::Options::inject
pub struct ShortTransfers {
    draw: Sequence,
    /// Attempts between two faults, on average; 1 is the most.
    every: u64,
    attempts: AtomicU64,
    /// Attempts that end with an errno for good, counted from 1.
    hard: Vec<(u64, i32)>,
}

impl ShortTransfers {
    pub fn new(seed: u64, every: u64) -> Self {
        Self {
            draw: Sequence::new(seed),
            every: every.max(1),
            attempts: AtomicU64::new(0),
            hard: Vec::new(),
        }
    }

    /// Ends the `nth` attempt with `errno`.
    #[must_use]
    pub fn with_errno(mut self, nth: u64, errno: i32) -> Self {
        self.hard.push((nth, errno));
        self
    }

    /// Attempts made so far.
    pub fn attempts(&self) -> u64 {
        self.attempts.load(Ordering::Relaxed)
    }
}

impl Inject for ShortTransfers {
    fn answer(&self, op: Op, _offset: u64, len: u32) -> Answer {
        let number = self.attempts.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some((_, errno)) = self.hard.iter().find(|(nth, _)| *nth == number) {
            return Answer::Errno(*errno);
        }
        if self.draw.below(self.every) != 0 {
            return Answer::Real;
        }
        match self.draw.below(13) {
            0 => Answer::Errno(libc::EAGAIN),
            1 => Answer::Errno(libc::EINTR),
            2 => Answer::Errno(libc::ECANCELED),
            // A write of nothing is odd but no end; a read of nothing is the end of the file.
            3 if op == Op::Write => Answer::Short(0),
            4 => Answer::Short(1),
            5 => Answer::Short(511),
            6 => Answer::Short(512),
            7 => Answer::Short(4095),
            8 => Answer::Short(4096),
            9 => Answer::Short(4097),
            10 => Answer::Short(len / 2),
            11 => Answer::Short(len - 1),
            _ => Answer::Short(len - 512),
        }
    }
}
