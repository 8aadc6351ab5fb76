//! Locks for engine threads and hooks: a futex word, no thread-local storage, no poisoning,
//! no allocation. Lock order is written in docs/internals/locks.md.
#![allow(unsafe_code)]

use crate::gate;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering::*};

/// A lock without data, for state that lives beside it.
#[derive(Default)]
#[repr(transparent)]
pub struct RawLock(AtomicU32);

impl RawLock {
    pub const fn new() -> Self {
        RawLock(AtomicU32::new(0))
    }

    #[inline]
    pub fn lock(&self) {
        gate::lock(&self.0);
    }

    #[inline]
    pub fn try_lock(&self) -> bool {
        gate::try_lock(&self.0)
    }

    #[inline]
    pub fn unlock(&self) {
        gate::unlock(&self.0);
    }

    /// In a forked child, where whoever held the lock does not exist.
    pub fn reset(&self) {
        self.0.store(0, Release);
    }
}

/// A lock and what it protects.
pub struct Mutex<T> {
    lock: RawLock,
    data: UnsafeCell<T>,
}

// SAFETY: access to the data only goes through the lock.
unsafe impl<T: Send> Sync for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Mutex<T> {}

impl<T> Mutex<T> {
    pub const fn new(data: T) -> Self {
        Mutex {
            lock: RawLock::new(),
            data: UnsafeCell::new(data),
        }
    }

    pub fn lock(&self) -> Guard<'_, T> {
        self.lock.lock();
        Guard { m: self }
    }

    /// In a forked child, where whoever held the lock does not exist.
    pub fn reset(&self) {
        self.lock.reset();
    }
}

#[clippy::has_significant_drop]
pub struct Guard<'a, T> {
    m: &'a Mutex<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard exists only while the lock is held.
        unsafe { &*self.m.data.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists only while the lock is held, and is borrowed mutably.
        unsafe { &mut *self.m.data.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.m.lock.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_from_many_threads() {
        let m = Mutex::new(0u64);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..10_000 {
                        *m.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*m.lock(), 40_000);
    }
}
