//! Memory of the C library's that the kernel reads and writes where it does not wait for a page to
//! be brought in, and that therefore stays resident:
//!
//! * mutexes with priority inheritance or protection (FUTEX_LOCK_PI), and robust ones (the list of
//!   a thread that died); static initializers make none of these;
//! * the word that a thread's end clears for whoever joins it: at the top of a stack that the
//!   program chose itself. Other stacks are not managed.
//!
//! The functions below stand before those of the C library, for programs that call them by name.

use crate::entry::hugeswap_entry_pin;
use core::ffi::{c_void, CStr};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static REAL_INIT: AtomicUsize = AtomicUsize::new(0);
static REAL_SETSTACK: AtomicUsize = AtomicUsize::new(0);

/// The C library's structure of a thread, at the top of its stack, is smaller than this.
const THREAD: usize = 4096;

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
