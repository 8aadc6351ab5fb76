//! The C library's `clone` without CLONE_VM: a fork on another stack. It stands before the C
//! library's function, for programs that call it by name; with CLONE_VM that is called.

use crate::arch;
use core::ffi::c_void;

type Body = unsafe extern "C" fn(*mut c_void) -> i32;
type Clone = unsafe extern "C" fn(
    Option<Body>,
    *mut c_void,
    i32,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> i32;

/// # Safety
/// As clone(2).
#[no_mangle]
pub unsafe extern "C" fn clone(
    body: Option<Body>,
    stack: *mut c_void,
    flags: i32,
    arg: *mut c_void,
    parent_tid: *mut c_void,
    tls: *mut c_void,
    child_tid: *mut c_void,
) -> i32 {
    let plain = flags & libc::CLONE_VM != 0 || hugeswap::engine::get().is_none();
    let (Some(body), false, false) = (body, stack.is_null(), plain) else {
        if flags & libc::CLONE_CHILD_CLEARTID != 0 {
            crate::calls::keep(child_tid as usize, size_of::<i32>());
        }
        // SAFETY: a plain look-up; the function of that name, with the caller's arguments.
        unsafe {
            let real = libc::dlsym(libc::RTLD_NEXT, c"clone".as_ptr());
            if real.is_null() {
                return -1;
            }
            let real: Clone = core::mem::transmute(real);
            return real(body, stack, flags, arg, parent_tid, tls, child_tid);
        }
    };
    // SAFETY: a fork: the child goes on here with a copy of this stack, and then on the caller's, which is
    // `body`'s from there on. Nothing here has to be dropped.
    unsafe {
        let pid = arch::clone(
            flags as u32 as usize,
            parent_tid as usize,
            child_tid as usize,
            tls as usize,
        );
        if pid != 0 {
            return pid as i32;
        }
        arch::run_on(stack, body, arg)
    }
}
