//! What a thread that waits for memory waits for: that some was freed, or that it can help.

use crate::sys::futex::{self, Scope};
use core::sync::atomic::{AtomicU32, Ordering::*};

/// Nobody waits longer without a look of his own.
const AT_MOST_MS: u64 = 2;

#[derive(Default)]
pub struct Progress {
    made: AtomicU32,
    waiting: AtomicU32,
}

impl Progress {
    /// How much there has been.
    pub fn seen(&self) -> u32 {
        self.made.load(Acquire)
    }

    /// Sleeps until there is more than was seen; two milliseconds at most.
    pub fn wait(&self, seen: u32) {
        self.waiting.fetch_add(1, SeqCst);
        futex::wait(&self.made, seen, Some(AT_MOST_MS), Scope::Process);
        self.waiting.fetch_sub(1, SeqCst);
    }

    pub fn make(&self) {
        self.made.fetch_add(1, SeqCst);
        if self.waiting.load(SeqCst) > 0 {
            futex::wake(&self.made, u32::MAX, Scope::Process);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_misses_it() {
        let (progress, turn) = (Progress::default(), AtomicU32::new(0));
        std::thread::scope(|s| {
            s.spawn(|| {
                for n in 1..=2000 {
                    let seen = progress.seen();
                    if turn.load(Acquire) < n {
                        progress.wait(seen);
                    }
                    while turn.load(Acquire) < n {
                        std::thread::yield_now();
                    }
                }
            });
            for n in 1..=2000 {
                turn.store(n, Release);
                progress.make();
            }
        });
        assert_eq!(progress.seen(), 2000);
        assert_eq!(progress.waiting.load(Relaxed), 0);
    }
}
