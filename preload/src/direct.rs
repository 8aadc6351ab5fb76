//! Files that are opened for direct I/O. The run's guard stops at such a call (`run/zero_copy.rs` of the
//! command), and a signal can end it there with EINTR, which the program does not expect of a file. So the
//! guard is told before, with signals blocked, and lets the call itself pass by its last argument, which
//! the kernel does not look at.
//!
//! The functions below stand before those of the C library, for programs that call them by name.

use crate::frame::to_c;
use crate::marks;
use crate::sandbox::may_tell_guard;
use core::ffi::{c_char, c_void, CStr};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use hugeswap::control::{GUARD_PASS, GUARD_STOP};
use hugeswap::sys::syscall::raw;
use hugeswap::sys::thread;

static TOLD: AtomicBool = AtomicBool::new(false);

/// A call that the guard stops at, and that does nothing.
fn call_guard(word: usize) -> i64 {
    let mask = thread::block_signals();
    // SAFETY: without a name it opens nothing.
    let r = unsafe { raw(libc::SYS_openat2, [usize::MAX, 0, 0, 0, 0, word]) };
    thread::restore_signals(mask);
    r
}

/// Gives the guard up, for a program that wants a listener of its own: the kernel allows one. The call
/// returns when there is none any more.
pub fn give_guard_up() {
    if may_tell_guard() {
        call_guard(GUARD_STOP);
    }
}

extern "C" {
    fn pthread_testcancel();
}

fn open_direct(dir: i32, path: *const c_char, flags: i32, mode: u32) -> i32 {
    if !TOLD.load(Acquire) {
        call_guard(0);
        // From then on it is so for the whole run.
        TOLD.store(true, Release);
    }
    let args = [
        dir as usize,
        path as usize,
        flags as usize,
        mode as usize,
        0,
        GUARD_PASS,
    ];
    // SAFETY: the program's own call; it is one that a thread can be cancelled at.
    unsafe {
        pthread_testcancel();
        to_c(raw(libc::SYS_openat, args)) as i32
    }
}

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

fn is_ours(flags: i32) -> bool {
    flags & libc::O_DIRECT != 0 && hugeswap::engine::get().is_some() && may_tell_guard()
}

type Open = unsafe extern "C" fn(*const c_char, i32, u32) -> i32;
type OpenAt = unsafe extern "C" fn(i32, *const c_char, i32, u32) -> i32;

/// # Safety
/// As open(2).
#[no_mangle]
pub unsafe extern "C" fn open(path: *const c_char, flags: i32, mode: u32) -> i32 {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    if is_ours(flags) {
        return open_direct(libc::AT_FDCWD, path, flags, mode);
    }
    // SAFETY: the function of that name, with the caller's arguments.
    let fd = unsafe {
        core::mem::transmute::<*mut c_void, Open>(real(c"open", &REAL))(path, flags, mode)
    };
    // SAFETY: it has been opened by this path.
    unsafe { marks::check(fd, path, flags) }
}

/// # Safety
/// As open(2).
#[no_mangle]
pub unsafe extern "C" fn open64(path: *const c_char, flags: i32, mode: u32) -> i32 {
    // SAFETY: the caller's contract; they are the same here.
    unsafe { open(path, flags, mode) }
}

/// # Safety
/// As openat(2).
#[no_mangle]
pub unsafe extern "C" fn openat(dir: i32, path: *const c_char, flags: i32, mode: u32) -> i32 {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    if is_ours(flags) {
        return open_direct(dir, path, flags, mode);
    }
    // SAFETY: the function of that name, with the caller's arguments.
    let fd = unsafe {
        let real = core::mem::transmute::<*mut c_void, OpenAt>(real(c"openat", &REAL));
        real(dir, path, flags, mode)
    };
    // SAFETY: it has been opened by this path.
    unsafe { marks::check(fd, path, flags) }
}

/// # Safety
/// As openat(2).
#[no_mangle]
pub unsafe extern "C" fn openat64(dir: i32, path: *const c_char, flags: i32, mode: u32) -> i32 {
    // SAFETY: the caller's contract; they are the same here.
    unsafe { openat(dir, path, flags, mode) }
}

/// What a program calls that was built with `_FORTIFY_SOURCE`, for flags that say nothing of a mode. The C library ends it if
/// they do.
///
/// # Safety
/// As open(2).
#[no_mangle]
pub unsafe extern "C" fn __open_2(path: *const c_char, flags: i32) -> i32 {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    type Open2 = unsafe extern "C" fn(*const c_char, i32) -> i32;
    if needs_mode(flags) {
        // SAFETY: the function of that name, with the caller's arguments.
        return unsafe {
            core::mem::transmute::<*mut c_void, Open2>(real(c"__open_2", &REAL))(path, flags)
        };
    }
    // SAFETY: the caller's contract.
    unsafe { open(path, flags, 0) }
}

/// # Safety
/// As open(2).
#[no_mangle]
pub unsafe extern "C" fn __open64_2(path: *const c_char, flags: i32) -> i32 {
    // SAFETY: the caller's contract; they are the same here.
    unsafe { __open_2(path, flags) }
}

/// # Safety
/// As openat(2).
#[no_mangle]
pub unsafe extern "C" fn __openat_2(dir: i32, path: *const c_char, flags: i32) -> i32 {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    type OpenAt2 = unsafe extern "C" fn(i32, *const c_char, i32) -> i32;
    if needs_mode(flags) {
        // SAFETY: the function of that name, with the caller's arguments.
        return unsafe {
            let real = core::mem::transmute::<*mut c_void, OpenAt2>(real(c"__openat_2", &REAL));
            real(dir, path, flags)
        };
    }
    // SAFETY: the caller's contract.
    unsafe { openat(dir, path, flags, 0) }
}

/// # Safety
/// As openat(2).
#[no_mangle]
pub unsafe extern "C" fn __openat64_2(dir: i32, path: *const c_char, flags: i32) -> i32 {
    // SAFETY: the caller's contract; they are the same here.
    unsafe { __openat_2(dir, path, flags) }
}

fn needs_mode(flags: i32) -> bool {
    flags & libc::O_CREAT != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE
}
