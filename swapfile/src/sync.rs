//! Locks and atomics, from std or from loom: the only source of either for the
//! swap-slot allocator, so that the code that runs is the code loom explores.
//!
//! [`Lock`] is a futex lock of one word. It keeps nothing in thread-local
//! storage, never allocates, has no poisoning, and its whole state is that
//! word: a child of fork(2) may go on with it once [`Lock::release_held`] ran.
#![allow(unsafe_code)]

use core::ops::{Deref, DerefMut};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody sleeps (or is about to) on the word.
const CONTENDED: u32 = 2;

/// Tries before a waiter sleeps. The sections under these locks last tens of
/// nanoseconds, a sleep and a wake tens of microseconds.
#[cfg(not(loom))]
const SPINS: u32 = 200;

#[cfg(loom)]
type Cell<T> = loom::cell::UnsafeCell<T>;
#[cfg(not(loom))]
type Cell<T> = core::cell::UnsafeCell<T>;

/// A mutual-exclusion lock around `T`.
#[derive(Debug)]
pub struct Lock<T> {
    word: AtomicU32,
    data: Cell<T>,
}

// SAFETY: `data` is reached only through a guard, and a guard exists only
// while `word` is held by its owner, so two threads never reach it at once.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: the lock owns its data; moving it moves the data.
unsafe impl<T: Send> Send for Lock<T> {}

/// Proof that the lock is held; dropping it unlocks.
#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    // Loom's cell hands out tracked pointers that must live as long as the access.
    #[cfg(loom)]
    ptr: Option<loom::cell::MutPtr<T>>,
}

impl<T> Lock<T> {
    /// A lock that is free.
    pub fn new(data: T) -> Self {
        Lock {
            word: AtomicU32::new(FREE),
            data: Cell::new(data),
        }
    }

    /// Takes the lock, waiting as long as it takes.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        self.acquire();
        Guard {
            lock: self,
            #[cfg(loom)]
            ptr: Some(self.data.get_mut()),
        }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.word
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        Some(Guard {
            lock: self,
            #[cfg(loom)]
            ptr: Some(self.data.get_mut()),
        })
    }

    /// Takes the lock without a guard, for the time around fork(2).
    pub fn hold(&self) {
        self.acquire();
    }

    /// Gives back what [`hold`](Self::hold) took; also in the child, whose
    /// copy of the word says "held" although the holder's thread is not there.
    ///
    /// # Safety
    /// The lock is held by a `hold` that no `release_held` has answered yet.
    pub unsafe fn release_held(&self) {
        self.release();
    }

    #[inline]
    fn acquire(&self) {
        if self
            .word
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.acquire_slow();
        }
    }

    #[cold]
    fn acquire_slow(&self) {
        #[cfg(not(loom))]
        for _ in 0..SPINS {
            core::hint::spin_loop();
            if self.word.load(Ordering::Relaxed) == FREE
                && self
                    .word
                    .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
        }
        // Whoever got here may not be the last sleeper, so it holds the lock as
        // "contended": one wake too many, never one too few.
        while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
            futex_wait(&self.word, CONTENDED);
        }
    }

    #[inline]
    fn release(&self) {
        if self.word.swap(FREE, Ordering::Release) == CONTENDED {
            futex_wake_one(&self.word);
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        #[cfg(loom)]
        // SAFETY: the lock is held for the life of the guard.
        return unsafe { self.ptr.as_ref().expect("held").deref() };
        #[cfg(not(loom))]
        // SAFETY: the lock is held for the life of the guard, and `&self` bars
        // a `&mut` from the same guard.
        unsafe {
            &*self.lock.data.get()
        }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        #[cfg(loom)]
        // SAFETY: the lock is held for the life of the guard.
        return unsafe { self.ptr.as_ref().expect("held").deref() };
        #[cfg(not(loom))]
        // SAFETY: the lock is held for the life of the guard, and `&mut self`
        // makes this the only reference.
        unsafe {
            &mut *self.lock.data.get()
        }
    }
}

#[cfg(not(loom))]
impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.release();
    }
}

#[cfg(loom)]
impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // The tracked access must end before the unlock.
        self.ptr = None;
        self.lock.release();
    }
}

#[cfg(not(loom))]
fn futex_wait(word: &AtomicU32, expected: u32) {
    // SAFETY: the word is a live, aligned u32 for the whole call; a null
    // timeout waits without limit, and early returns are retried by the caller.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            core::ptr::null::<libc::timespec>(),
        );
    }
}

#[cfg(not(loom))]
fn futex_wake_one(word: &AtomicU32) {
    // SAFETY: only the address is used, and it is that of a live u32.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            1,
        );
    }
}

#[cfg(loom)]
fn futex_wait(_word: &AtomicU32, _expected: u32) {
    loom::thread::yield_now();
}

#[cfg(loom)]
fn futex_wake_one(_word: &AtomicU32) {}
