//! A program that gives up rights, as servers do after their start: the engine's threads would keep them, in
//! memory that the program can write. So they give them up too (`Engine::give_up`).
//!
//! Only rights that can't be had back count: a program that has a user or a capability saved may take
//! it again itself.
//!
//! The functions below stand before those of the C library, for programs that call them by name.

use crate::arch::hugeswap_entry_rights;
use crate::frame::{to_c, Frame, Result};
use crate::{c_thread, deputy, sandbox};
use core::ffi::{c_char, c_void, CStr};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use hugeswap::control;
use hugeswap::engine::Engine;
use hugeswap::sync::Mutex;
use hugeswap::sys::rights::{Rights, ASKED};
use hugeswap::sys::syscall::raw;
use hugeswap::sys::thread;

/// What the engine's threads have. Held while they give up some of it: they never take it.
static NOTED: Mutex<Rights> = Mutex::new(Rights::NONE);
/// Whose they are: a child of vfork has its parent's engine.
static PROCESS: AtomicU32 = AtomicU32::new(0);
static SAID: AtomicBool = AtomicBool::new(false);

/// The engine's threads have just been started by this one.
pub fn note() {
    *NOTED.lock() = asked().unwrap_or(Rights::NONE);
    PROCESS.store(thread::getpid(), Relaxed);
}

/// The rights of this thread, unless a filter may end who asks.
fn asked() -> Option<Rights> {
    let allowed = |&nr: &i64| sandbox::is_allowed(nr, [0; 6]);
    ASKED.iter().all(allowed).then(Rights::of_this_thread)
}

/// In a hook, which may be the deputy's: the engine's threads give up what the program's has given up.
pub fn follow(e: &'static Engine, f: &Frame) -> Result<usize> {
    // SAFETY: what `changed` has passed, and waits for us. It may be in swap; no lock is held.
    let now = unsafe { (f.args[0] as *const Rights).read() };
    let mut noted = NOTED.lock();
    if !noted.is_more_than(&now) {
        return Ok(0);
    }
    let tid = f.args[1] as u32;
    let deputys = match deputy::is_there() {
        true => e.give_up_here(&now, tid, sandbox::deputy_may),
        false => Ok(()),
    };
    let engines = e.give_up(f.bell(), &now, tid, sandbox::engine_may);
    match engines.and(deputys) {
        Ok(()) => *noted = now,
        Err(err) => {
            if !SAID.swap(true, Relaxed) {
                control::log(&format!(
                    "the engine's threads keep rights that process {} has given up: {err}",
                    thread::getpid()
                ));
            }
        }
    }
    Ok(0)
}

/// Whether this is the process that the engine is in, and no child that has its memory. Where a filter may end who
/// asks, it is: a child's are not known here.
pub fn is_of_engines_process() -> bool {
    !sandbox::is_allowed(libc::SYS_getpid, [0; 6]) || PROCESS.load(Relaxed) == thread::getpid()
}

/// After a call that may have given up rights.
fn changed() {
    let mine = || sandbox::is_allowed(libc::SYS_getpid, [0; 6]) && is_of_engines_process();
    if hugeswap::engine::get().is_none() || !mine() {
        return;
    }
    if let Some(now) = asked() {
        // SAFETY: the thread's errno; the entry of a hook, which reads the rights and no more.
        unsafe {
            let errno = *libc::__errno_location();
            hugeswap_entry_rights(&raw const now as usize, c_thread::tid());
            *libc::__errno_location() = errno;
        }
    }
}

/// `syscall(2)` of one of these calls.
#[no_mangle]
extern "C-unwind" fn hugeswap_syscall_rights(
    nr: i64,
    a0: usize,
    a1: usize,
    a2: usize,
    a3: usize,
    a4: usize,
) -> i64 {
    // SAFETY: the call that the program asked for, with its arguments.
    let r = unsafe { raw(nr, [a0, a1, a2, a3, a4, 0]) };
    if r == 0 {
        changed();
    }
    to_c(r)
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

macro_rules! stand_before {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        /// # Safety
        /// As the C library's function of that name.
        #[no_mangle]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> i32 {
            static REAL: AtomicUsize = AtomicUsize::new(0);
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!(),
            };
            let p = real(NAME, &REAL);
            if p.is_null() {
                return to_c(-i64::from(libc::ENOSYS)) as i32;
            }
            // SAFETY: the function of that name, with the caller's arguments.
            let r = unsafe {
                core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> i32>(p)($($arg),*)
            };
            if r == 0 {
                changed();
            }
            r
        }
    )*};
}

stand_before! {
    setuid(user: u32);
    seteuid(user: u32);
    setreuid(real_user: u32, effective: u32);
    setresuid(real_user: u32, effective: u32, saved: u32);
    setgid(group: u32);
    setegid(group: u32);
    setregid(real_group: u32, effective: u32);
    setresgid(real_group: u32, effective: u32, saved: u32);
    setgroups(count: usize, groups: *const u32);
    initgroups(name: *const c_char, group: u32);
    capset(head: *mut c_void, data: *const c_void);
}
