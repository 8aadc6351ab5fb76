//! How threads sleep and wake on a word, over a trait: the same code runs on the kernel's futexes, and in a test that tries
//! every order of what its threads do (`tests/loom.rs`).

use crate::futex::{self, Scope};
use core::sync::atomic::{AtomicU32, Ordering::*};

/// A word that threads of one process can sleep on.
pub trait Word {
    /// So often a lock looks again before its thread sleeps: sections are a few microseconds long.
    const SPINS: usize;

    fn load(&self) -> u32;
    fn store(&self, value: u32);
    fn swap(&self, value: u32) -> u32;
    fn add(&self, value: u32);
    fn sub(&self, value: u32);
    /// Sets `new` if the word is `old`; says whether it was.
    fn replace(&self, old: u32, new: u32) -> bool;
    /// Sleeps while the word is `expected`. May return early.
    fn wait(&self, expected: u32);
    /// Wakes up to `n` of those who sleep.
    fn wake(&self, n: u32);
}

impl Word for AtomicU32 {
    const SPINS: usize = 100;

    #[inline]
    fn load(&self) -> u32 {
        self.load(SeqCst)
    }

    #[inline]
    fn store(&self, value: u32) {
        self.store(value, SeqCst);
    }

    #[inline]
    fn swap(&self, value: u32) -> u32 {
        self.swap(value, AcqRel)
    }

    #[inline]
    fn add(&self, value: u32) {
        self.fetch_add(value, SeqCst);
    }

    #[inline]
    fn sub(&self, value: u32) {
        self.fetch_sub(value, SeqCst);
    }

    #[inline]
    fn replace(&self, old: u32, new: u32) -> bool {
        self.compare_exchange(old, new, Acquire, Relaxed).is_ok()
    }

    fn wait(&self, expected: u32) {
        futex::wait(self, expected, None, Scope::Process);
    }

    fn wake(&self, n: u32) {
        futex::wake(self, n, Scope::Process);
    }
}

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Somebody may sleep.
const CONTENDED: u32 = 2;

/// Takes the lock whose word this is.
#[inline]
pub fn lock(word: &impl Word) {
    if !word.replace(FREE, HELD) {
        lock_slow(word);
    }
}

#[inline]
pub fn try_lock(word: &impl Word) -> bool {
    word.replace(FREE, HELD)
}

#[cold]
fn lock_slow<W: Word>(word: &W) {
    for _ in 0..W::SPINS {
        core::hint::spin_loop();
        if word.load() == FREE && try_lock(word) {
            return;
        }
    }
    while word.swap(CONTENDED) != FREE {
        word.wait(CONTENDED);
    }
}

#[inline]
pub fn unlock(word: &impl Word) {
    if word.swap(FREE) == CONTENDED {
        word.wake(1);
    }
}

/// The word has changed so that those who sleep on it may go on. `sleepers` is nearly always zero, and then this is no
/// system call. Either a thread is counted by now, or it sees the new word before it sleeps.
#[inline]
pub fn opened<W: Word>(word: &W, sleepers: &W) {
    if sleepers.load() > 0 {
        word.wake(u32::MAX);
    }
}

/// Sleeps until the word is no longer what was `seen` there, or a little shorter.
pub fn sleep<W: Word>(word: &W, sleepers: &W, seen: u32) {
    sleepers.add(1);
    word.wait(seen);
    sleepers.sub(1);
}
