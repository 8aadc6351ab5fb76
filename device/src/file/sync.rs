//! Requests carried out at once by pread and pwrite, where io_uring is not allowed.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::super::inline::Finished;
use super::super::transfer::{Piece, Step};
use super::super::{os, Completion, IoError, Op, Queue, QueueFull, Request, Until};
use super::store::Store;

impl Store {
    /// Carries out what is left of a piece.
    ///
    /// # Safety
    ///
    /// The piece's memory obeys the contract of [`Queue::submit`].
    pub(super) unsafe fn run(&self, op: Op, piece: &mut Piece) -> Result<(), IoError> {
        if !self.fd.is_ours() {
            return Err(IoError::Gone);
        }
        loop {
            let range = piece.rest();
            let attempt = self.plan(op, &range);
            let len = attempt.len.min(range.len) as usize;
            let real = if len == 0 {
                Ok(0)
            } else {
                let fd = self.fd.as_fd();
                match op {
                    // SAFETY: `rest` lies within the piece, whose memory the caller vouches for.
                    Op::Read => unsafe { os::pread(fd, range.addr, len, range.offset) },
                    // SAFETY: as above.
                    Op::Write => unsafe { os::pwrite(fd, range.addr, len, range.offset) },
                }
            };
            // At most 2 MiB, so the count fits.
            let real = real.map_or_else(|errno| -errno, |n| n as i32);
            match piece.advance(attempt.result(real)) {
                Step::Done => return Ok(()),
                Step::Short => {
                    self.short_transfers.fetch_add(1, Ordering::Relaxed);
                }
                Step::Retry => {
                    self.retries.fetch_add(1, Ordering::Relaxed);
                    // What is busy or short of memory needs time; an interrupted call does not.
                    if real != -libc::EINTR {
                        os::sleep_micros(100);
                    }
                }
                Step::Fail(error) => return Err(error),
            }
        }
    }
}

pub(super) struct SyncQueue {
    store: Arc<Store>,
    finished: Finished,
}

impl SyncQueue {
    pub(super) fn new(store: &Arc<Store>, depth: u32) -> Self {
        Self {
            store: Arc::clone(store),
            finished: Finished::new(depth),
        }
    }
}

impl Queue for SyncQueue {
    unsafe fn submit(&mut self, req: Request) -> Result<(), QueueFull> {
        if self.finished.is_full() {
            return Err(QueueFull);
        }
        let result = req.check(self.store.capacity()).and_then(|()| {
            // `check` bounds the length by 2 MiB.
            let mut piece = Piece::new(req.op, req.offset, req.addr, req.len as u32);
            // SAFETY: the caller of `submit` vouches for the memory.
            unsafe { self.store.run(req.op, &mut piece) }
        });
        self.store.count_end(result);
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
