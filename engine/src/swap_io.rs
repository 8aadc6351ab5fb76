//! Swap I/O: transfers between memory and slots, as requests to the devices (mm/page_io.c). Requests and their tags,
//! completions, and what of a transfer failed are here, once for both ways; what is short or passes is the device's
//! (`device::transfer`).
//!
//! It uses `mm` and `device`, and may not know of ranges, frames or seals: what a transfer is for (`T`) is its owner's.
//!
//! A transfer begins in a free place, gets its requests, and is sent. When the last of them has ended it has, and its owner
//! takes that with [`SwapIo::ended`]: never in the middle of making other requests. Then the place is free.
#![allow(unsafe_code)]

use crate::device::{Completion, Device, IoError, Op, Queue, Request, Until};
use crate::mm::{PageMask, PAGE_SIZE};
use crate::sys::Errno;
use core::ops::Range;
use std::os::fd::RawFd;

/// When a request is carried out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Once it has been sent.
    Sent,
    /// Before the call returns, if the device can do that.
    AtOnce,
}

/// One thread's transfers, `N` of them at most.
pub struct SwapIo<T, const N: usize> {
    queues: Vec<Box<dyn Queue>>,
    places: Places<T, N>,
    /// Transfers that are not in a free place.
    in_flight: usize,
}

struct Places<T, const N: usize> {
    transfers: [Option<Transfer<T>>; N],
    /// Where those are that have ended, and how many they are.
    done: [u8; N],
    done_len: usize,
}

struct Transfer<T> {
    what: T,
    /// Requests that are not complete, and one more as long as they are being made.
    pending: u32,
    failed: PageMask,
    errors: u32,
    no_space: bool,
}

/// Neighbouring slots, and the memory that they are read to or written from.
pub struct Part {
    pub op: Op,
    pub device: usize,
    /// In bytes.
    pub offset: u64,
    /// In pages.
    pub nr: usize,
    pub addr: *mut u8,
    /// Which of the transfer's pages fail with it.
    pub pages: Range<usize>,
    /// Byte offset within it that is wanted first.
    pub target: usize,
}

/// A transfer that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended<T> {
    pub place: usize,
    pub what: T,
    /// Of its pages those that were not transferred in full.
    pub failed: PageMask,
    /// Requests that failed for another reason than want of space.
    pub errors: u32,
    /// One failed for that.
    pub no_space: bool,
}

impl<T> Ended<T> {
    /// Every byte was transferred.
    pub fn is_ok(&self) -> bool {
        self.errors == 0 && !self.no_space
    }
}

/// Bits of the end of a request's pages in its tag.
const END_BITS: u32 = 16;

impl<T: Copy, const N: usize> SwapIo<T, N> {
    /// All memory that it will ever need is allocated here: `depth` requests to each device may be in flight.
    pub fn new(devices: &[Box<dyn Device>], depth: usize) -> Result<Self, Errno> {
        let mut queues = Vec::with_capacity(devices.len());
        for d in devices {
            queues.push(d.queue(depth as u32).map_err(|_| Errno::ENOMEM)?);
        }
        Ok(Self::of(queues))
    }

    fn of(queues: Vec<Box<dyn Queue>>) -> Self {
        const { assert!(N <= 1 << u8::BITS) };
        SwapIo {
            queues,
            places: Places {
                transfers: [const { None }; N],
                done: [0; N],
                done_len: 0,
            },
            in_flight: 0,
        }
    }

    /// Transfers that were begun and whose end was not taken.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// What they are for.
    pub fn each(&self) -> impl Iterator<Item = &T> {
        self.places.transfers.iter().flatten().map(|t| &t.what)
    }

    /// Free places.
    pub fn free(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        (0..N).filter(|&place| self.places.transfers[place].is_none())
    }

    /// Begins a transfer in a free place.
    pub fn begin(&mut self, place: usize, what: T) {
        debug_assert!(self.places.transfers[place].is_none());
        self.in_flight += 1;
        self.places.transfers[place] = Some(Transfer {
            what,
            pending: 1,
            failed: PageMask::EMPTY,
            errors: 0,
            no_space: false,
        });
    }

    /// Makes a request of a transfer that was begun and not sent. Where the queue is full others end first.
    ///
    /// # Safety
    /// The memory is the transfer's until its end is taken.
    pub unsafe fn request(&mut self, place: usize, part: Part, when: When) {
        let Some(t) = &mut self.places.transfers[place] else {
            return;
        };
        t.pending += 1;
        let pages = (part.pages.start << END_BITS | part.pages.end) as u64;
        let req = Request {
            op: part.op,
            offset: part.offset,
            addr: part.addr,
            len: part.nr * PAGE_SIZE,
            tag: pages * N as u64 + place as u64,
            target: part.target,
        };
        if when == When::AtOnce {
            // SAFETY: the caller's contract.
            if let Some(result) = unsafe { self.queues[part.device].read_now(&req) } {
                let tag = req.tag;
                return self.places.complete(Completion { tag, result });
            }
        }
        // SAFETY: the caller's contract.
        while unsafe { self.queues[part.device].submit(req) }.is_err() {
            self.kick();
            self.reap(Until::OneEnded);
        }
    }

    /// All requests of the transfer have been made.
    pub fn send(&mut self, place: usize) {
        self.places.less_pending(place);
    }

    /// Hands requests to the kernel.
    pub fn kick(&mut self) {
        for q in &mut self.queues {
            if q.in_flight() > 0 {
                q.kick();
            }
        }
    }

    /// Looks for requests that have ended. False if there was none.
    pub fn reap(&mut self, until: Until) -> bool {
        let (queues, places) = (&mut self.queues, &mut self.places);
        let mut any = false;
        for q in queues.iter_mut().filter(|q| q.in_flight() > 0) {
            let until = if any { Until::Now } else { until };
            q.reap(until, &mut |c| {
                any = true;
                places.complete(c);
            });
        }
        any
    }

    /// A transfer that has ended.
    pub fn ended(&mut self) -> Option<Ended<T>> {
        let places = &mut self.places;
        places.done_len = places.done_len.checked_sub(1)?;
        let place = usize::from(places.done[places.done_len]);
        let t = places.transfers[place].take()?;
        self.in_flight -= 1;
        Some(Ended {
            place,
            what: t.what,
            failed: t.failed,
            errors: t.errors,
            no_space: t.no_space,
        })
    }

    /// Descriptors that say when a request has ended.
    pub fn poll_fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        let busy = self.queues.iter().filter(|q| q.in_flight() > 0);
        busy.filter_map(|q| q.poll_fd())
    }

    /// Requests wait that no descriptor tells of: kick again in a while.
    pub fn is_behind(&self) -> bool {
        self.queues.iter().any(|q| q.is_behind())
    }
}

impl<T, const N: usize> Places<T, N> {
    fn complete(&mut self, c: Completion) {
        let place = (c.tag % N as u64) as usize;
        if let (Err(e), Some(t)) = (c.result, &mut self.transfers[place]) {
            let pages = (c.tag / N as u64) as usize;
            let pages = pages >> END_BITS..pages & ((1 << END_BITS) - 1);
            t.failed = t.failed.or(PageMask::of(pages));
            match e {
                IoError::NoSpace => t.no_space = true,
                _ => t.errors += 1,
            }
        }
        self.less_pending(place);
    }

    fn less_pending(&mut self, place: usize) {
        let Some(t) = &mut self.transfers[place] else {
            return;
        };
        t.pending -= 1;
        if t.pending == 0 {
            self.done[self.done_len] = place as u8;
            self.done_len += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::QueueFull;
    use proptest::prelude::*;

    /// Keeps requests until they are reaped, some at a time, the last first; those to odd slots fail.
    struct Slow {
        depth: usize,
        some: usize,
        held: Vec<Request>,
    }

    impl Slow {
        fn io<const N: usize>(depth: usize, some: usize) -> SwapIo<u32, N> {
            SwapIo::of(vec![Box::new(Slow {
                depth,
                some,
                held: Vec::new(),
            })])
        }
    }

    impl Queue for Slow {
        unsafe fn submit(&mut self, req: Request) -> Result<(), QueueFull> {
            if self.held.len() == self.depth {
                return Err(QueueFull);
            }
            self.held.push(req);
            Ok(())
        }
        unsafe fn read_now(&mut self, req: &Request) -> Option<Result<(), IoError>> {
            Some(outcome(req))
        }
        fn kick(&mut self) {}
        fn reap(&mut self, _until: Until, f: &mut dyn FnMut(Completion)) {
            for _ in 0..self.some.min(self.held.len()) {
                let req = self.held.pop().unwrap();
                let (tag, result) = (req.tag, outcome(&req));
                f(Completion { tag, result });
            }
        }
        fn in_flight(&self) -> u32 {
            self.held.len() as u32
        }
        fn poll_fd(&self) -> Option<RawFd> {
            None
        }
    }

    fn outcome(req: &Request) -> Result<(), IoError> {
        match req.offset / PAGE_SIZE as u64 % 4 {
            1 => Err(IoError::Io),
            3 => Err(IoError::NoSpace),
            _ => Ok(()),
        }
    }

    /// Page `page` of a range, of which page `p` is in slot `p`.
    fn part(pages: Range<usize>) -> Part {
        Part {
            op: Op::Read,
            device: 0,
            offset: (pages.start * PAGE_SIZE) as u64,
            nr: pages.len(),
            addr: core::ptr::without_provenance_mut(PAGE_SIZE),
            pages,
            target: 0,
        }
    }

    fn make<const N: usize>(io: &mut SwapIo<u32, N>, place: usize, pages: Range<usize>) {
        // SAFETY: this queue touches no memory.
        unsafe { io.request(place, part(pages), When::Sent) }
    }

    #[test]
    fn a_transfer_ends_with_its_last_request() {
        let mut io = Slow::io::<4>(8, 1);
        io.begin(2, 7);
        for page in [0, 3, 4, 5] {
            make(&mut io, 2, page..page + 2);
        }
        io.send(2);
        for _ in 0..3 {
            assert!(io.reap(Until::OneEnded) && io.ended().is_none());
        }
        assert_eq!(io.free().collect::<Vec<_>>(), [0, 1, 3]);
        assert!(io.reap(Until::OneEnded));
        let failed = PageMask::of(3..7);
        let end = io.ended().unwrap();
        assert_eq!((end.place, end.what, end.failed), (2, 7, failed));
        assert_eq!((end.errors, end.no_space, end.is_ok()), (1, true, false));
        assert!(io.ended().is_none() && !io.reap(Until::OneEnded));
        assert_eq!((io.in_flight(), io.free().count()), (0, 4));
    }

    #[test]
    fn none_ends_before_it_is_sent() {
        let mut io = Slow::io::<4>(8, 8);
        io.begin(0, 1);
        make(&mut io, 0, 0..1);
        assert!(io.reap(Until::OneEnded) && io.ended().is_none());
        io.send(0);
        assert_eq!(io.ended().unwrap().failed, PageMask::EMPTY);
        // Without requests it ends at once.
        io.begin(0, 2);
        io.send(0);
        assert_eq!(io.ended().unwrap().what, 2);
    }

    #[test]
    fn what_is_done_at_once_has_ended() {
        let mut io = Slow::io::<4>(0, 0);
        io.begin(1, 3);
        // SAFETY: as above.
        unsafe { io.request(1, part(5..6), When::AtOnce) };
        io.send(1);
        assert_eq!(io.ended().unwrap().failed, PageMask::of(5..6));
    }

    #[test]
    fn a_full_queue_ends_others_first_and_they_are_kept() {
        let mut io = Slow::io::<4>(2, 2);
        io.begin(0, 1);
        make(&mut io, 0, 0..1);
        make(&mut io, 0, 1..2);
        io.send(0);
        io.begin(1, 2);
        make(&mut io, 1, 2..3);
        // The first has ended meanwhile, and its place is not free before that is taken.
        assert_eq!(io.free().collect::<Vec<_>>(), [2, 3]);
        io.send(1);
        let end = io.ended().unwrap();
        assert_eq!((end.what, end.failed), (1, PageMask::of(1..2)));
        assert!(io.ended().is_none());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Begin(Vec<Range<usize>>),
        Reap,
    }

    fn step() -> impl Strategy<Value = Step> {
        let pages = (0..500usize, 1..12usize).prop_map(|(start, n)| start..start + n);
        prop_oneof![
            proptest::collection::vec(pages, 0..6).prop_map(Step::Begin),
            Just(Step::Reap),
        ]
    }

    proptest! {
        #[test]
        fn each_ends_once_whatever_the_order(
            depth in 1..12usize,
            some in 1..5usize,
            steps in proptest::collection::vec(step(), 0..200),
        ) {
            let mut io = Slow::io::<8>(depth, some);
            let mut open: [Option<PageMask>; 8] = [const { None }; 8];
            for step in steps {
                let free = io.free().next();
                match (step, free) {
                    (Step::Begin(parts), Some(place)) => {
                        io.begin(place, place as u32);
                        let wrong = parts.iter().filter(|p| p.start % 2 == 1);
                        let wrong = wrong.map(|p| PageMask::of(p.clone()));
                        open[place] = Some(wrong.fold(PageMask::EMPTY, PageMask::or));
                        parts.into_iter().for_each(|p| make(&mut io, place, p));
                        io.send(place);
                    }
                    _ => {
                        io.reap(Until::OneEnded);
                    }
                }
                while let Some(end) = io.ended() {
                    prop_assert_eq!(open[end.place].take(), Some(end.failed));
                    prop_assert_eq!(end.what as usize, end.place);
                }
                prop_assert_eq!(io.in_flight(), open.iter().flatten().count());
            }
        }
    }
}
