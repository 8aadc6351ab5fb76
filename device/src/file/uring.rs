//! Requests through io_uring, several in flight.
//!
//! A request is cut into at most [`PIECES`] I/Os. Each has one entry in the ring at a time: when
//! it comes back short it is entered again for the rest. The rings are sized so that every piece
//! of every request fits; neither can overflow.
//!
//! The ring is plain: no single issuer, no deferred task work. A queue may be filled by one thread
//! and reaped by another, and a poll of its descriptor must wake up without help.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use io_uring::{opcode, squeue, types, IoUring};

use super::super::inline::Finished;
use super::super::os::{self, Errno};
use super::super::transfer::{Attempt, Piece, Range, Step};
use super::super::{Completion, IoError, Op, Queue, QueueFull, Request, Until};
use super::store::Store;
use hugeswap_mm::PMD_SIZE;

/// I/Os a request may be cut into.
const PIECES: usize = 4;
pub(super) const MIN_PIECE: u32 = (PMD_SIZE / PIECES) as u32;
pub(super) const MAX_PIECE: u32 = PMD_SIZE as u32;
/// The kernel allows 32768 entries in a ring.
const MAX_DEPTH: u32 = 32768 / PIECES as u32;
/// Waits of 100 µs for a kernel that can't take entries (EAGAIN, EBUSY, ENOMEM) before the ring is
/// given up: one second.
const MAX_REFUSALS: u32 = 10_000;

/// A request in flight.
#[derive(Clone, Copy)]
struct Slot {
    tag: u64,
    op: Op,
    /// Pieces not yet at their end.
    outstanding: u8,
    result: Result<(), IoError>,
    pieces: [(Piece, Attempt); PIECES],
}

impl Slot {
    const EMPTY: Self = Self {
        tag: 0,
        op: Op::Read,
        outstanding: 0,
        result: Ok(()),
        pieces: [(Piece::NONE, Attempt::REAL); PIECES],
    };
}

/// Names a piece of a slot; travels through the ring as user data.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Token(u32);

impl Token {
    fn new(slot: usize, piece: usize) -> Self {
        Self((slot * PIECES + piece) as u32)
    }
    fn slot(self) -> usize {
        self.0 as usize / PIECES
    }
    fn piece(self) -> usize {
        self.0 as usize % PIECES
    }
}

pub(super) struct UringQueue {
    ring: ManuallyDrop<IoUring>,
    /// What the ring's descriptor stands for.
    identity: os::Identity,
    store: Arc<Store>,
    /// The ring holds the file itself, not its number.
    registered: bool,
    piece_len: u32,
    depth: u32,
    in_flight: u32,
    slots: Box<[Slot]>,
    free: Vec<usize>,
    /// Entered in the ring, not yet taken by the kernel.
    entered: VecDeque<Token>,
    finished: Finished,
    refusals: u32,
    /// The ring's descriptor was closed or the kernel takes no more entries. What it has taken
    /// still completes, because the mappings keep the ring alive; all else is done by pread and
    /// pwrite.
    lost: bool,
}

fn build(entries: u32) -> Result<IoUring, Errno> {
    // Not mapped in children: they would take completions away from us.
    let ring = |coop: bool| {
        let mut builder = IoUring::builder();
        if coop {
            // Whoever has requests in flight looks or sleeps in the kernel: no need to interrupt it. Since 5.19.
            builder.setup_coop_taskrun();
        }
        builder.dontfork().build(entries)
    };
    let ring = ring(true).or_else(|_| ring(false));
    ring.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
}

/// Whether io_uring is allowed here.
pub(super) fn probe() -> Result<(), Errno> {
    let mut ring = build(2)?;
    let nop = opcode::Nop::new().build();
    // SAFETY: a no-op refers to no memory.
    let pushed = unsafe { ring.submission().push(&nop) };
    pushed.map_err(|_| libc::EIO)?;
    ring.submit_and_wait(1)
        .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
    let answered = ring.completion().next().is_some();
    if answered {
        Ok(())
    } else {
        Err(libc::EIO)
    }
}

impl UringQueue {
    pub(super) fn new(store: &Arc<Store>, depth: u32, piece_len: u32) -> Result<Self, Errno> {
        let depth = depth.clamp(1, MAX_DEPTH);
        let per_request = MAX_PIECE.div_ceil(piece_len);
        let entries = (depth * per_request).next_power_of_two();
        let ring = build(entries)?;
        let file = store.fd.as_fd().as_raw_fd();
        let registered = match store.line {
            Some(line) => ring.submitter().register_files(&[file, line]),
            None => ring.submitter().register_files(&[file]),
        };
        // A ring of which nobody knows when it has ended must not be.
        if let (Err(error), Some(_)) = (&registered, store.line) {
            return Err(error.raw_os_error().unwrap_or(libc::EIO));
        }
        let registered = registered.is_ok();
        let identity = os::identity(ring.as_raw_fd())?;
        let places = depth as usize;
        Ok(Self {
            ring: ManuallyDrop::new(ring),
            identity,
            store: Arc::clone(store),
            registered,
            piece_len,
            depth,
            in_flight: 0,
            slots: vec![Slot::EMPTY; places].into_boxed_slice(),
            free: (0..places).rev().collect(),
            entered: VecDeque::with_capacity(entries as usize),
            finished: Finished::new(depth),
            refusals: 0,
            lost: false,
        })
    }

    /// Enters the next attempt at a piece into the ring.
    fn enter_piece(&mut self, token: Token) {
        let Some(slot) = self.slots.get_mut(token.slot()) else {
            return;
        };
        let op = slot.op;
        let Some((piece, attempt)) = slot.pieces.get_mut(token.piece()) else {
            return;
        };
        let range = piece.rest();
        *attempt = self.store.plan(op, &range);
        let len = attempt.len.min(range.len);
        if self.lost || (!self.registered && !self.store.fd.is_ours()) {
            return self.run_piece(token);
        }
        let entry = if len == 0 {
            opcode::Nop::new().build()
        } else {
            let number = (!self.registered).then(|| self.store.fd.as_fd().as_raw_fd());
            transfer_entry(op, number, &range, len)
        };
        let entry = entry.user_data(u64::from(token.0));
        // SAFETY: the entry's memory is the request's, which the caller of `submit` keeps valid
        // until the request is reaped, and it is not reaped while a piece is outstanding.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        match pushed {
            Ok(()) => self.entered.push_back(token),
            // Can't be: there is an entry for every piece.
            Err(_) => self.run_piece(token),
        }
    }

    /// Carries out what is left of a piece without the ring.
    fn run_piece(&mut self, token: Token) {
        let Some(slot) = self.slots.get_mut(token.slot()) else {
            return;
        };
        let op = slot.op;
        let Some((piece, _)) = slot.pieces.get_mut(token.piece()) else {
            return;
        };
        // SAFETY: the memory is the request's; see `enter_piece`.
        let result = unsafe { self.store.run(op, piece) };
        self.end_piece(token, result);
    }

    fn end_piece(&mut self, token: Token, result: Result<(), IoError>) {
        let Some(slot) = self.slots.get_mut(token.slot()) else {
            return;
        };
        slot.result = slot.result.and(result);
        slot.outstanding = slot.outstanding.saturating_sub(1);
        if slot.outstanding == 0 {
            let completion = Completion {
                tag: slot.tag,
                result: slot.result,
            };
            self.free.push(token.slot());
            self.finish(completion);
        }
    }

    fn finish(&mut self, completion: Completion) {
        self.store.count_end(completion.result);
        // Never full: it has room for every request in flight.
        let _full = self.finished.push(completion);
    }

    /// Takes the kernel's answer to an entry.
    fn answer(&mut self, token: Token, real: i32) {
        let Some(slot) = self.slots.get_mut(token.slot()) else {
            return;
        };
        let Some((piece, attempt)) = slot.pieces.get_mut(token.piece()) else {
            return;
        };
        let answer = attempt.result(real);
        match piece.advance(answer) {
            Step::Done => self.end_piece(token, Ok(())),
            Step::Fail(error) => self.end_piece(token, Err(error)),
            Step::Short => {
                self.store.short_transfers.fetch_add(1, Ordering::Relaxed);
                self.enter_piece(token);
            }
            Step::Retry => {
                self.store.retries.fetch_add(1, Ordering::Relaxed);
                if answer == -libc::ECANCELED {
                    // The kernel has no thread for it and can't make one (RLIMIT_NPROC).
                    self.run_piece(token);
                } else {
                    self.enter_piece(token);
                }
            }
        }
    }

    fn take_answers(&mut self) {
        // One at a time: an answer may enter the next attempt.
        loop {
            let next = self.ring.completion().next();
            let Some(entry) = next else { return };
            self.answer(Token(entry.user_data() as u32), entry.result());
        }
    }

    /// Hands entries to the kernel and waits for `want` answers.
    fn enter(&mut self, want: usize) {
        if self.lost {
            // Answers to what the kernel took before still arrive in the mapped ring; the sleep
            // also lets the kernel run the work that posts them.
            os::sleep_micros(100);
            return;
        }
        loop {
            let before = self.entered.len();
            let ret = self.ring.submit_and_wait(want);
            let left = self.ring.submission().len();
            while self.entered.len() > left {
                self.entered.pop_front();
            }
            match ret.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)) {
                Ok(_) => {
                    self.refusals = 0;
                    // The kernel may stop early; go on while it makes progress.
                    if want > 0 || left == 0 || left == before {
                        return;
                    }
                }
                Err(libc::EINTR) if want == 0 => {}
                Err(libc::EINTR) => return,
                Err(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => {
                    if want > 0 {
                        os::sleep_micros(100);
                        self.refusals += 1;
                        if self.refusals > MAX_REFUSALS {
                            self.lose_ring();
                        }
                    }
                    return;
                }
                Err(_) => return self.lose_ring(),
            }
        }
    }

    fn lose_ring(&mut self) {
        self.lost = true;
        // Never taken by the kernel, and never will be: nobody enters this ring again.
        while let Some(token) = self.entered.pop_front() {
            self.run_piece(token);
        }
    }
}

/// A read or write of the file: by its place in the ring's file table, or by number.
fn transfer_entry(op: Op, number: Option<RawFd>, range: &Range, len: u32) -> squeue::Entry {
    let Range { addr, offset, .. } = *range;
    let table = types::Fixed(0);
    match (op, number.map(types::Fd)) {
        (Op::Read, None) => opcode::Read::new(table, addr, len).offset(offset).build(),
        (Op::Read, Some(fd)) => opcode::Read::new(fd, addr, len).offset(offset).build(),
        (Op::Write, None) => opcode::Write::new(table, addr, len).offset(offset).build(),
        (Op::Write, Some(fd)) => opcode::Write::new(fd, addr, len).offset(offset).build(),
    }
}

impl Queue for UringQueue {
    unsafe fn submit(&mut self, req: Request) -> Result<(), QueueFull> {
        if self.in_flight >= self.depth {
            return Err(QueueFull);
        }
        if let Err(error) = req.check(self.store.capacity()) {
            self.in_flight += 1;
            self.finish(Completion {
                tag: req.tag,
                result: Err(error),
            });
            return Ok(());
        }
        // One slot for each request in flight that is not finished yet: there is one.
        let index = self.free.pop().ok_or(QueueFull)?;
        let Some(slot) = self.slots.get_mut(index) else {
            return Err(QueueFull);
        };
        self.in_flight += 1;
        // `check` bounds the length by 2 MiB.
        let len = req.len as u32;
        let count = len.div_ceil(self.piece_len);
        *slot = Slot {
            tag: req.tag,
            op: req.op,
            outstanding: count as u8,
            ..Slot::EMPTY
        };
        for (i, (piece, _)) in (0..count).zip(slot.pieces.iter_mut()) {
            let from = i * self.piece_len;
            *piece = Piece::new(
                req.op,
                req.offset + u64::from(from),
                req.addr.wrapping_add(from as usize),
                self.piece_len.min(len - from),
            );
        }
        // The piece with the target first.
        let first = (req.target.min(req.len - 1) as u32) / self.piece_len;
        for i in 0..count {
            self.enter_piece(Token::new(index, ((first + i) % count) as usize));
        }
        Ok(())
    }

    unsafe fn read_now(&mut self, req: &Request) -> Option<Result<(), IoError>> {
        if req.op != Op::Read || req.len > self.piece_len as usize {
            return None;
        }
        let result = req.check(self.store.capacity()).and_then(|()| {
            let mut piece = Piece::new(req.op, req.offset, req.addr, req.len as u32);
            // SAFETY: the piece's memory is the request's; see the trait.
            unsafe { self.store.run(req.op, &mut piece) }
        });
        self.store.count_end(result);
        Some(result)
    }

    fn kick(&mut self) {
        if !self.entered.is_empty() {
            self.enter(0);
        }
    }

    fn reap(&mut self, until: Until, f: &mut dyn FnMut(Completion)) {
        loop {
            self.take_answers();
            // Entries for the rest of short transfers; also brings in what a lost ring leaves.
            self.kick();
            let mut delivered = false;
            while let Some(completion) = self.finished.pop() {
                self.in_flight -= 1;
                delivered = true;
                f(completion);
            }
            if delivered || until == Until::Now || self.in_flight == 0 {
                return;
            }
            self.enter(1);
        }
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn poll_fd(&self) -> Option<RawFd> {
        Some(self.ring.as_raw_fd())
    }

    fn is_behind(&self) -> bool {
        !self.entered.is_empty()
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        // The kernel must not write into memory its owner believes to be free.
        while self.in_flight > 0 {
            self.reap(Until::OneEnded, &mut |_| {});
        }
        if os::identity(self.ring.as_raw_fd()) != Ok(self.identity) {
            // Closed, or a descriptor of the program by now: not ours to close.
            return;
        }
        // A ring is torn down some time after its descriptor is closed. The file must not live on
        // until then: a block device would still be in use.
        if self.registered {
            let _gone = self.ring.submitter().unregister_files();
        }
        // SAFETY: not used again; the queue is going away.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
    }
}
