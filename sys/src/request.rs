//! How a thread of the program asks a thread of the engine for something and waits for the answer. The words and
//! the pages are given by the caller: the same code runs in the engine, and in a test that tries every order of
//! what its threads do (`tests/loom.rs`).
//!
//! The asking thread reads a page that is missing, and sleeps in that fault until the other has filled the page.
//! There are two such pages, of which at most one is there: filling one drops the other. So a thread that reads
//! both in turn is always heard, even if the program has read one of them by mistake.

use core::sync::atomic::{AtomicUsize, Ordering, Ordering::*};

/// An atomic word.
pub trait Word {
    fn load(&self, order: Ordering) -> usize;
    fn store(&self, value: usize, order: Ordering);
    fn swap(&self, value: usize, order: Ordering) -> usize;
}

impl Word for AtomicUsize {
    #[inline]
    fn load(&self, order: Ordering) -> usize {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: usize, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn swap(&self, value: usize, order: Ordering) -> usize {
        self.swap(value, order)
    }
}

/// What was asked: a number other than zero, and what it needs.
pub type Asked = (usize, [usize; 3]);

/// One thread's request at a time. All words begin as zero.
#[derive(Default)]
pub struct Request<W> {
    /// Zero once the request has been taken.
    op: W,
    args: [W; 3],
    result: W,
    /// Whether the result is there.
    done: W,
    /// Which page is read next. Only the asking thread changes it.
    turn: W,
    /// The page by which the request was heard. Only the answering thread uses it.
    heard: W,
}

impl<W: Word> Request<W> {
    /// Asks, and waits for the answer. Nobody else may ask meanwhile. `read` reads page 0 or 1.
    pub fn ask(&self, (op, args): Asked, read: impl Fn(usize)) -> usize {
        for (word, arg) in self.args.iter().zip(args) {
            word.store(arg, Relaxed);
        }
        self.done.store(0, Relaxed);
        self.op.store(op, Release);
        while self.done.load(Acquire) == 0 {
            let turn = self.turn.load(Relaxed);
            self.turn.store(turn ^ 1, Relaxed);
            read(turn);
        }
        self.result.load(Relaxed)
    }

    /// A thread waits for page `which`. If that is by a new request, `answer` ends it, now or later; else the page
    /// is filled at once: somebody else looked at it, or it belongs to a request that has been taken.
    pub fn take(&self, which: usize, fill: impl FnOnce(usize)) -> Option<Asked> {
        let op = self.op.swap(0, Acquire);
        if op == 0 {
            fill(which);
            return None;
        }
        self.heard.store(which, Relaxed);
        Some((op, core::array::from_fn(|i| self.args[i].load(Relaxed))))
    }

    /// The thread whose request was taken goes on.
    pub fn answer(&self, result: usize, fill: impl FnOnce(usize)) {
        self.result.store(result, Relaxed);
        self.done.store(1, Release);
        fill(self.heard.load(Relaxed));
    }
}
