//! The gate of hooks: how many run, on which stacks, and how a fork comes to be alone.
//!
//! A hook runs on a stack of ours: the program's own stack may lie in managed memory, and a hook that held a
//! lock while touching a swapped page of it would wait for the handler, and the handler for the lock.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering::*};
use hugeswap::engine::DOORBELLS;
use hugeswap::sys::futex::{self, Scope};
use hugeswap::sys::{mem, Errno};

const STACK: usize = 64 << 10;
const _: () = assert!(DOORBELLS == 64);

/// Which stacks are free, a bit to each.
static FREE: AtomicU64 = AtomicU64::new(0);
static BASE: AtomicUsize = AtomicUsize::new(0);
/// Hooks that run now, and whether a fork wants to be alone.
static ACTIVE: AtomicU32 = AtomicU32::new(0);
static FORKING: AtomicU32 = AtomicU32::new(0);

/// Not zero: hooks run in the deputy's thread. The entries read it.
pub static DELEGATING: AtomicU8 = AtomicU8::new(0);

pub fn set_up() -> Result<(), Errno> {
    BASE.store(mem::map_anon(STACK * DOORBELLS)? as usize, Release);
    FREE.store(u64::MAX, Release);
    Ok(())
}

/// Waits until this hook is the only one; others wait at their entry until `let_others_in`.
pub fn be_alone() {
    while FORKING.swap(1, AcqRel) == 1 {
        // Another fork is under way: it waits for our count to go away.
        ACTIVE.fetch_sub(1, AcqRel);
        futex::wake(&ACTIVE, u32::MAX, Scope::Process);
        futex::wait(&FORKING, 1, Some(10), Scope::Process);
        ACTIVE.fetch_add(1, AcqRel);
    }
    loop {
        let n = ACTIVE.load(Acquire);
        if n == 1 {
            return;
        }
        futex::wait(&ACTIVE, n, Some(10), Scope::Process);
    }
}

pub fn let_others_in() {
    FORKING.store(0, Release);
    futex::wake(&FORKING, u32::MAX, Scope::Process);
}

/// In a forked child: the only thread is in the hook on the stack `index`.
pub fn only_me(index: usize) {
    ACTIVE.store(1, Release);
    FREE.store(!(1 << index), Release);
}

fn take_stack() -> usize {
    loop {
        let free = FREE.load(Acquire);
        if free == 0 {
            // All hooks are busy; they are short.
            futex::wait(&ACTIVE, ACTIVE.load(Relaxed), Some(1), Scope::Process);
            continue;
        }
        let i = free.trailing_zeros() as usize;
        if FREE
            .compare_exchange(free, free & !(1 << i), AcqRel, Relaxed)
            .is_ok()
        {
            return i;
        }
    }
}

/// A hook begins, on a stack of its own, whose number this is.
pub fn come_in() -> usize {
    enter();
    take_stack()
}

/// Where such a stack ends.
pub fn end_of_stack(index: usize) -> usize {
    BASE.load(Relaxed) + (index + 1) * STACK
}

/// Where hooks wait while there is a fork.
fn enter() {
    ACTIVE.fetch_add(1, AcqRel);
    while FORKING.load(Acquire) == 1 {
        ACTIVE.fetch_sub(1, AcqRel);
        futex::wake(&ACTIVE, u32::MAX, Scope::Process);
        futex::wait(&FORKING, 1, Some(10), Scope::Process);
        ACTIVE.fetch_add(1, AcqRel);
    }
}

/// A hook is over; its stack was `index`.
pub fn go_out(index: usize) {
    FREE.fetch_or(1 << index, AcqRel);
    leave();
}

fn leave() {
    ACTIVE.fetch_sub(1, AcqRel);
    if FORKING.load(Acquire) == 1 {
        futex::wake(&ACTIVE, u32::MAX, Scope::Process);
    }
}

/// Makes a call in a hook that may wait for another thread of the program's: forks do not wait for it.
/// No lock may be held.
pub fn outside<R>(call: impl FnOnce() -> R) -> R {
    leave();
    let r = call();
    enter();
    r
}
