//! Addresses for memory of the engine's own.
//!
//! The program may map at fixed addresses that the kernel once gave it and that it gave back: so
//! nothing of ours may lie where the kernel places mappings. All of it lies in one stretch that is
//! taken before the program runs, and stays taken.
//!
//! Memory is taken from the start of it upwards. What comes next to each other is one mapping, so
//! that more can be had when the process has as many mappings as the kernel allows. What a forked
//! child does not inherit is taken from the end downwards, and there again in the child.

use super::limits::beyond_memory;
use super::mmap::{map_at_noreplace, mprotect};
use super::syscall::{syscall, Errno};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use hugeswap_mm::PAGE_SIZE;

/// Between position-independent programs with their heap and the window of the preloaded library.
const PLACES: [usize; 4] = [
    0x5e00_0000_0000,
    0x5f00_0000_0000,
    0x5d00_0000_0000,
    0x5c00_0000_0000,
];
/// More than the tables of 128 TiB of program memory.
const LEN: usize = 1 << 40;

static START: AtomicUsize = AtomicUsize::new(0);
/// What is between these two is free.
static LOW: AtomicUsize = AtomicUsize::new(0);
static HIGH: AtomicUsize = AtomicUsize::new(0);

/// Pages at the start of the stretch that are mappings of their own, for no other reason than to be
/// joined when one more is needed and the process has as many as the kernel allows.
const SPARE: usize = 8;
static SPARE_USED: AtomicBool = AtomicBool::new(false);

/// What was given back, as (start, length); zero length: nothing. It is empty and accessible.
static BACK: [[AtomicUsize; 2]; 64] = [const { [const { AtomicUsize::new(0) }; 2] }; 64];

/// Takes the stretch, if that was not done yet. Without it the kernel places what is ours.
pub fn set_up() {
    if START.load(Acquire) != 0 {
        return;
    }
    for at in PLACES {
        // SAFETY: nothing is replaced.
        if unsafe { map_at_noreplace(at, LEN, libc::PROT_NONE) }.is_ok() {
            LOW.store(at + SPARE * PAGE_SIZE, Release);
            HIGH.store(at + LEN, Release);
            START.store(at, Release);
            keep_spare();
            return;
        }
    }
}

pub fn range() -> Option<(usize, usize)> {
    let start = START.load(Acquire);
    (start != 0).then_some((start, start + LEN))
}

/// Every other page of the first ones gets a protection of its own.
fn keep_spare() {
    let Some((start, _)) = range() else { return };
    for page in (0..SPARE).step_by(2) {
        // SAFETY: nobody uses these pages.
        let _ = unsafe { mprotect(start + page * PAGE_SIZE, PAGE_SIZE, libc::PROT_READ) };
    }
    SPARE_USED.store(false, Release);
}

/// Makes room for some mappings; false if there is none to be made.
pub(super) fn use_spare() -> bool {
    let Some((start, _)) = range() else {
        return false;
    };
    if SPARE_USED.swap(true, AcqRel) {
        return false;
    }
    // SAFETY: nobody uses these pages.
    unsafe { mprotect(start, SPARE * PAGE_SIZE, libc::PROT_NONE) }.is_ok()
}

fn holds(addr: usize) -> bool {
    range().is_some_and(|(start, end)| addr >= start && addr < end)
}

/// `len` bytes of zeros, `align`ed; None where there is no such stretch.
pub(super) fn take(len: usize, align: usize) -> Option<Result<usize, Errno>> {
    range()?;
    let len = len.next_multiple_of(PAGE_SIZE);
    if let Some(at) = take_back(len, align) {
        return Some(Ok(at));
    }
    let at = match reserve(len, align)? {
        Ok(at) => at,
        err => return Some(err),
    };
    // SAFETY: the addresses are the caller's from here on.
    let open = beyond_memory(|| unsafe { mprotect(at, len, libc::PROT_READ | libc::PROT_WRITE) });
    if open.is_err() {
        // Unless another thread took more.
        let _ = LOW.compare_exchange(at + len, at, AcqRel, Relaxed);
    }
    Some(open.map(|()| at))
}

/// As `take`, inaccessible.
pub(super) fn reserve(len: usize, align: usize) -> Option<Result<usize, Errno>> {
    range()?;
    let mut at = 0;
    let up = |low: usize| {
        at = low.next_multiple_of(align);
        (at + len <= HIGH.load(Acquire)).then_some(at + len)
    };
    let taken = LOW.fetch_update(AcqRel, Acquire, up);
    Some(taken.map(|_| at).map_err(|_| Errno::ENOMEM))
}

fn take_back(len: usize, align: usize) -> Option<usize> {
    BACK.iter().find_map(|[at, n]| {
        let fits = n.load(Acquire) == len && at.load(Acquire) % align == 0;
        // Whoever makes it 1 has it.
        (fits && n.compare_exchange(len, 1, AcqRel, Relaxed).is_ok()).then(|| {
            let at = at.load(Acquire);
            n.store(0, Release);
            at
        })
    })
}

/// As `take`, for what a forked child does not inherit.
pub(super) fn take_threads_own(len: usize) -> Option<Result<usize, Errno>> {
    range()?;
    let len = len.next_multiple_of(PAGE_SIZE);
    let Some(at) = reserve_threads_own(len, PAGE_SIZE) else {
        return Some(Err(Errno::ENOMEM));
    };
    // SAFETY: the addresses are the caller's from here on; nothing of anybody's is there.
    Some(unsafe { map_over(at, len) })
}

/// Addresses only, for a mapping that a forked child does not inherit. In a child nothing may be mapped there.
pub(super) fn reserve_threads_own(len: usize, align: usize) -> Option<usize> {
    range()?;
    let below = |high: usize| {
        let at = high.checked_sub(len)? & !(align - 1);
        (at >= LOW.load(Acquire)).then_some(at)
    };
    HIGH.fetch_update(AcqRel, Acquire, below)
        .ok()
        .and_then(below)
}

/// # Safety
/// What is there must be nobody's any more.
unsafe fn map_over(at: usize, len: usize) -> Result<usize, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    let args = [at, len, rw as usize, flags as usize, usize::MAX, 0];
    // SAFETY: the caller's contract.
    beyond_memory(|| unsafe { syscall(libc::SYS_mmap, args) })
}

/// In a forked child, which has none of what `take_threads_own` gave.
pub fn forget_threads_own() {
    if let Some((_, end)) = range() {
        HIGH.store(end, Release);
    }
}

/// Takes back what `take` gave; false if it is no memory of this stretch.
///
/// # Safety
/// Nothing may use it any more.
pub(super) unsafe fn give_back(at: usize, len: usize) -> bool {
    if !holds(at) {
        return false;
    }
    let len = len.next_multiple_of(PAGE_SIZE);
    // Mapped anew, so that nothing that was advised of it stays.
    // SAFETY: the caller's contract.
    if unsafe { map_over(at, len) }.is_err() {
        return true;
    }
    if SPARE_USED.load(Acquire) {
        keep_spare();
    }
    if LOW.compare_exchange(at + len, at, AcqRel, Relaxed).is_ok() {
        return true;
    }
    for [place, n] in &BACK {
        if n.compare_exchange(0, 1, AcqRel, Relaxed).is_ok() {
            place.store(at, Release);
            n.store(len, Release);
            break;
        }
    }
    // Where there is no place to note it the addresses are lost, and no memory.
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_next_lies_next_and_what_went_back_is_zeros() {
        set_up();
        let (start, end) = range().unwrap();
        let one = take(3 * PAGE_SIZE + 1, PAGE_SIZE).unwrap().unwrap();
        assert!(one >= start && one < end);
        // SAFETY: just taken, that long.
        unsafe { (one as *mut u8).write_bytes(7, 4 * PAGE_SIZE) };
        let aligned = take(1 << 21, 1 << 21).unwrap().unwrap();
        assert_eq!(aligned % (1 << 21), 0);
        // SAFETY: ours, and not used any more.
        assert!(unsafe { give_back(one, 3 * PAGE_SIZE + 1) });
        let again = take(4 * PAGE_SIZE, PAGE_SIZE).unwrap().unwrap();
        assert_eq!(again, one);
        // SAFETY: just taken, that long.
        assert_eq!(unsafe { (one as *const u8).read_volatile() }, 0);
        let thread = take_threads_own(PAGE_SIZE).unwrap().unwrap();
        assert!(thread > aligned && thread < end);
        // SAFETY: nothing of ours.
        assert!(!unsafe { give_back(PAGE_SIZE, PAGE_SIZE) });
    }
}
