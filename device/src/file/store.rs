//! The open file.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use super::super::guarded_fd::GuardedFd;
use super::super::transfer::{Attempt, Inject, Range};
use super::super::{IoError, Op};

/// Shared by the device and its queues.
pub struct Store {
    pub fd: GuardedFd,
    pub block: bool,
    pub direct: bool,
    pub max_bytes: u64,
    pub capacity: AtomicU64,
    /// Cleared once the file system has said it can't.
    pub can_reserve: AtomicBool,
    pub can_discard: AtomicBool,
    pub short_transfers: AtomicU64,
    pub retries: AtomicU64,
    pub errors: AtomicU64,
    pub line: Option<RawFd>,
    pub inject: Option<Arc<dyn Inject>>,
}

impl Store {
    pub fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Acquire)
    }

    /// How to carry out the next attempt: for real, except in tests.
    pub fn plan(&self, op: Op, range: &Range) -> Attempt {
        match &self.inject {
            None => Attempt::REAL,
            Some(inject) => Attempt::plan(inject.answer(op, range.offset, range.len), range.len),
        }
    }

    pub fn count_end(&self, result: Result<(), IoError>) {
        if result.is_err() {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
    }
}
