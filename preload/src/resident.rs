//! Memory of the C library's that the kernel reads and writes where it does not wait for a page to
//! be brought in, and that therefore stays resident:
//!
//! * mutexes with priority inheritance or protection (FUTEX_LOCK_PI), and robust ones (the list of
//!   a thread that died); static initializers make none of these;
//! * the word that a thread's end clears for whoever joins it, and its rseq area: at the top of a stack
//!   that the program chose itself, in thread-local memory that was adopted, or where the program said
//!   so by `syscall(2)` or `clone`. Other stacks are not managed;
//! * a list of robust futexes of the program's own: its head from the start, what is in it when the
//!   thread ends.
//!
//! The functions below stand before those of the C library, for programs that call them by name.

use crate::arch::{hugeswap_entry_pin, hugeswap_entry_thread_ends, thread_structure};
use crate::{c_thread, lock};
use core::ffi::{c_void, CStr};
use core::sync::atomic::{AtomicIsize, AtomicU32, AtomicUsize, Ordering::*};
use hugeswap::engine::Engine;
use hugeswap::sys::arch::thread_pointer;
use hugeswap::sys::{mem, Errno};

static REAL_INIT: AtomicUsize = AtomicUsize::new(0);
static REAL_SETSTACK: AtomicUsize = AtomicUsize::new(0);

/// The C library's structure of a thread, at the top of its stack, is smaller than this.
pub const THREAD: usize = 4096;

/// Where glibc has the rseq area, from the thread pointer.
static RSEQ: AtomicIsize = AtomicIsize::new(0);

/// In the constructor.
pub fn find_rseq() {
    // SAFETY: a plain look-up of a constant of the C library's (2.35 and later).
    unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) as *const isize;
        if let Some(offset) = offset.as_ref() {
            RSEQ.store(*offset, Relaxed);
        }
    }
}

/// What of this thread the kernel reads and writes: its number, the head of its robust mutexes, its rseq
/// area. It stays resident.
pub fn keep_kernels_words(e: &Engine) {
    let rseq = thread_pointer().wrapping_add_signed(RSEQ.load(Relaxed));
    for (at, len) in [(thread_structure(), THREAD), (rseq, 32)] {
        let _ = lock::pin(e, at, len);
    }
}

type Init =
    unsafe extern "C" fn(*mut libc::pthread_mutex_t, *const libc::pthread_mutexattr_t) -> i32;

/// The C library's own function.
fn real(name: &CStr, at: &AtomicUsize) -> *mut c_void {
    let known = at.load(Relaxed);
    if known != 0 {
        return known as *mut c_void;
    }
    // SAFETY: a plain look-up.
    let p = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    at.store(p as usize, Relaxed);
    p
}

extern "C" {
    fn pthread_mutexattr_getprotocol(a: *const libc::pthread_mutexattr_t, p: *mut i32) -> i32;
    fn pthread_mutexattr_getrobust(a: *const libc::pthread_mutexattr_t, r: *mut i32) -> i32;
}

/// Whether the kernel reads a mutex of this kind.
unsafe fn is_special(attr: *const libc::pthread_mutexattr_t) -> bool {
    if attr.is_null() {
        return false;
    }
    let (mut protocol, mut robust) = (0, 0);
    // SAFETY: the caller's attributes, initialized; the variables outlive the calls.
    unsafe {
        pthread_mutexattr_getprotocol(attr, &mut protocol);
        pthread_mutexattr_getrobust(attr, &mut robust);
    }
    protocol != 0 || robust != 0
}

/// # Safety
/// As pthread_mutex_init(3).
#[no_mangle]
pub unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut libc::pthread_mutex_t,
    attr: *const libc::pthread_mutexattr_t,
) -> i32 {
    let init = real(c"pthread_mutex_init", &REAL_INIT);
    if init.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: the function of that name, with the caller's arguments.
    unsafe {
        let init: Init = core::mem::transmute(init);
        let r = init(mutex, attr);
        if r == 0 && hugeswap::engine::get().is_some() && is_special(attr) {
            // The word before it is part of the list of robust mutexes.
            hugeswap_entry_pin(mutex as usize, size_of::<libc::pthread_mutex_t>());
        }
        r
    }
}

type SetStack = unsafe extern "C" fn(*mut libc::pthread_attr_t, *mut c_void, usize) -> i32;

/// # Safety
/// As pthread_attr_setstack(3).
#[no_mangle]
pub unsafe extern "C" fn pthread_attr_setstack(
    attr: *mut libc::pthread_attr_t,
    stack: *mut c_void,
    size: usize,
) -> i32 {
    let set = real(c"pthread_attr_setstack", &REAL_SETSTACK);
    if set.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: the function of that name, with the caller's arguments.
    unsafe {
        let set: SetStack = core::mem::transmute(set);
        let r = set(attr, stack, size);
        if r == 0 && hugeswap::engine::get().is_some() {
            hugeswap_entry_pin((stack as usize + size).saturating_sub(THREAD), THREAD);
        }
        r
    }
}

/// `struct robust_list_head`: the first entry, the distance from an entry to its futex, an entry that is
/// just being changed.
pub const ROBUST_HEAD: usize = 24;
/// The kernel goes no further.
const ROBUST_MOST: usize = 2048;

/// 0: no thread has a list of its own; 1: some has; 2: and the C library tells us of their ends.
static LISTS: AtomicU32 = AtomicU32::new(0);

/// This thread has told the kernel of a list of its own.
pub fn has_robust_list() {
    static KEY: AtomicU32 = AtomicU32::new(0);
    if hugeswap::engine::get().is_none() {
        return;
    }
    if LISTS.compare_exchange(0, 1, AcqRel, Acquire).is_ok() {
        let mut key = 0;
        // SAFETY: the variable outlives the call; the function may run at any thread's end.
        if unsafe { libc::pthread_key_create(&mut key, Some(at_end_of_thread)) } == 0 {
            KEY.store(key, Relaxed);
            LISTS.store(2, Release);
        }
    }
    if LISTS.load(Acquire) == 2 {
        // SAFETY: the key was made; its value is never looked at.
        unsafe { libc::pthread_setspecific(KEY.load(Relaxed), c"".as_ptr().cast()) };
    }
}

unsafe extern "C" fn at_end_of_thread(_: *mut c_void) {
    thread_ends();
}

/// This thread is about to end.
pub fn thread_ends() {
    if LISTS.load(Acquire) != 0 {
        // SAFETY: the entry of a hook.
        unsafe { hugeswap_entry_thread_ends() };
    }
}

/// In a hook: the futexes that the thread's list names stay resident. The C library's own list has
/// mutexes that are so from the start.
pub fn robust_futexes(e: &Engine) -> Result<usize, Errno> {
    let Some((head, _)) = c_thread::robust_head() else {
        return Ok(0);
    };
    let word = |at: usize| -> Result<usize, Errno> {
        let mut word = 0usize;
        // SAFETY: memory of ours, as long as said.
        unsafe { mem::copy_from_program(at, (&raw mut word).cast(), size_of::<usize>()) }?;
        Ok(word)
    };
    let (first, offset, pending) = (word(head)?, word(head + 8)?, word(head + 16)?);
    // The lowest bit says of what kind a futex is.
    let entry = |at: usize| {
        let at = at & !1;
        lock::pin(e, at, size_of::<usize>())?;
        lock::pin(e, at.wrapping_add(offset), size_of::<u32>())?;
        Ok::<_, Errno>(at)
    };
    if pending & !1 != 0 {
        entry(pending)?;
    }
    let mut at = first;
    for _ in 0..ROBUST_MOST {
        if at & !1 == head {
            break;
        }
        at = word(entry(at)?)?;
    }
    Ok(0)
}
