//! A program that gives up rights, as servers do after their start: the engine's threads would keep them, in
//! memory that the program can write. So they end, and start again with what the program's thread has
//! (`Engine::step_aside`).
//!
//! Only what can't be had back counts: who has a user or a capability saved may take it again himself.
//!
//! The functions below stand before those of the C library, for programs that call them by name.

use crate::entry::{self, hugeswap_entry_rights, to_c, Frame};
use crate::hooks::Result;
use crate::{deputy, fork, sandbox};
use core::ffi::{c_char, c_void, CStr};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use hugeswap::engine::Engine;
use hugeswap::sync::Mutex;
use hugeswap::sys::syscall;
use hugeswap::sys::syscall::raw;

/// More groups than these are not told from each other.
const GROUPS: usize = 64;
const CAP_SETGID: u64 = 1 << 6;
const CAP_SETUID: u64 = 1 << 7;

/// What a thread may be, and do.
#[derive(Clone, Copy, PartialEq)]
struct Rights {
    /// Real, effective and saved.
    users: [u32; 3],
    groups: [u32; 3],
    more_groups: [u32; GROUPS],
    count: usize,
    permitted: u64,
}

/// What the engine's threads have.
static NOTED: Mutex<Rights> = Mutex::new(Rights {
    users: [0; 3],
    groups: [0; 3],
    more_groups: [0; GROUPS],
    count: 0,
    permitted: 0,
});

impl Rights {
    fn of_this_thread() -> Rights {
        const VERSION_3: u32 = 0x2008_0522;
        let mut r = Rights {
            users: [0; 3],
            groups: [0; 3],
            more_groups: [0; GROUPS],
            count: 0,
            permitted: 0,
        };
        let head = [VERSION_3, 0];
        // Effective, permitted, inheritable; the lower halves and the upper.
        let mut caps = [[0u32; 3]; 2];
        let ask = |nr: i64, a: &mut [u32; 3]| {
            let [x, y, z] = a.each_mut().map(|w| &raw mut *w as usize);
            // SAFETY: the words outlive the call.
            let _ = unsafe { syscall(nr, [x, y, z]) };
        };
        ask(libc::SYS_getresuid, &mut r.users);
        ask(libc::SYS_getresgid, &mut r.groups);
        // SAFETY: the structures are as large as said, and outlive the calls.
        unsafe {
            let groups = [GROUPS, r.more_groups.as_mut_ptr() as usize];
            r.count = syscall(libc::SYS_getgroups, groups).unwrap_or(usize::MAX);
            let args = [head.as_ptr() as usize, caps.as_mut_ptr() as usize];
            let _ = syscall(libc::SYS_capget, args);
        }
        r.permitted = u64::from(caps[0][1]) | u64::from(caps[1][1]) << 32;
        r
    }

    /// Who has `now` could not become this again.
    fn is_more_than(&self, now: &Rights) -> bool {
        let lost = |mine: &[u32; 3], theirs: &[u32; 3]| mine.iter().any(|u| !theirs.contains(u));
        let groups = (self.count, &self.more_groups) != (now.count, &now.more_groups)
            || lost(&self.groups, &now.groups);
        self.permitted & !now.permitted != 0
            || now.permitted & CAP_SETUID == 0 && lost(&self.users, &now.users)
            || now.permitted & CAP_SETGID == 0 && groups
    }
}

/// The engine's threads have just been started by this one.
pub fn note() {
    *NOTED.lock() = Rights::of_this_thread();
}

/// In a hook: the engine's threads give up what the program's has given up. In a program of several threads
/// its table of descriptors is not quiet enough, and under filters no thread can be made: then they stay.
pub fn follow(e: &'static Engine, f: &Frame) -> Result<usize> {
    if sandbox::is_there()
        || deputy::is_there()
        || !NOTED.lock().is_more_than(&Rights::of_this_thread())
    {
        return Ok(0);
    }
    let threads = e.threads_of_program();
    if threads > 1 && threads != usize::MAX {
        return Ok(0);
    }
    fork::keep_kernels_words(e);
    entry::be_alone();
    if e.step_aside(f.bell(), || ()).is_ok() {
        note();
    }
    entry::let_others_in();
    Ok(0)
}

/// After a call that may have given up rights.
fn changed() {
    if hugeswap::engine::get().is_some() {
        // SAFETY: the thread's errno; the entry of a hook.
        unsafe {
            let errno = *libc::__errno_location();
            hugeswap_entry_rights();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(users: [u32; 3], permitted: u64) -> Rights {
        Rights {
            users,
            groups: [0; 3],
            more_groups: [0; GROUPS],
            count: 0,
            permitted,
        }
    }

    #[test]
    fn only_what_can_not_be_had_back_is_given_up() {
        let root = rights([0; 3], !0);
        assert!(!root.is_more_than(&root));
        // By seteuid.
        assert!(!root.is_more_than(&rights([0, 1000, 0], !0)));
        assert!(root.is_more_than(&rights([1000; 3], 0)));
        assert!(root.is_more_than(&rights([0; 3], !1)));
        let user = rights([1000, 1000, 0], 0);
        assert!(user.is_more_than(&rights([1000; 3], 0)));
        assert!(
            !user.is_more_than(&rights([1000, 0, 0], 0))
                && !rights([1000; 3], 0).is_more_than(&user)
        );
    }
}
