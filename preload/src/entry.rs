//! From a call of the C library into a hook: what the entries call (`arch`).
//!
//! A hook runs with all signals blocked, on a stack of ours (`gate`). Signals are blocked before the first
//! function of ours and let in after the last: no handler can leave one half done.

use crate::frame::{to_c, Frame, BEGIN_AGAIN, PROCESS_MADVISE, RESTART, SETNS, UNSHARE};
use crate::{advise, deputy, gate, hooks, sandbox};
use hugeswap::sys::mem;

/// Words from what an entry stores to where it returns to: see `hugeswap_hook_common`.
const RETURNS_TO: usize = 13;
/// And to the signals that the program has blocked, and to how often the call has begun again.
const BLOCKED: usize = 7;
const BEGUN_AGAIN: usize = 8;

/// On the program's stack: finds a stack for the hook.
#[no_mangle]
unsafe extern "C" fn hugeswap_hook_begin(args: *const usize) -> *mut Frame {
    let index = gate::come_in();
    let end = gate::end_of_stack(index);
    let frame = ((end - size_of::<Frame>()) & !15) as *mut Frame;
    // SAFETY: the stack is ours until `end`; the entry stored seven words at `args`, and where it returns to lies
    // behind what else it keeps.
    unsafe {
        let a = core::array::from_fn(|i| *args.add(i));
        let caller = *args.add(RETURNS_TO);
        frame.write(Frame {
            caller,
            blocked: *args.add(BLOCKED) as u64,
            begun_again: *args.add(BEGUN_AGAIN),
            ..Frame::new(*args.add(6), a, index)
        });
    }
    frame
}

/// On the program's stack, where a filter forbids what a hook needs: the deputy runs it.
#[no_mangle]
unsafe extern "C-unwind" fn hugeswap_hook_delegate(args: *const usize) -> i64 {
    // SAFETY: the entry stored seven words at `args`.
    let (call, mut a): (usize, [usize; 6]) =
        unsafe { (*args.add(6), core::array::from_fn(|i| *args.add(i))) };
    if matches!(call, UNSHARE | SETNS) {
        // Of this thread, and of no other.
        return to_c(hooks::plain(call, a));
    }
    if call == PROCESS_MADVISE {
        // The deputy has a table of its own, in which the number is another's.
        a[0] = advise::name_self(a[0]);
    }
    let refused = sandbox::refused(call, a);
    to_c(
        refused
            .or_else(|| deputy::ask(call, a))
            .unwrap_or(-i64::from(libc::ENOSYS)),
    )
}

/// On the stack of a thread that the C library does not know: whether it is the engine's. The stacks of
/// the engine's threads, and of hooks, lie in memory of its own, and the program has none there.
#[no_mangle]
extern "C" fn hugeswap_is_engines() -> i32 {
    let here = 0u8;
    i32::from(mem::is_own(&raw const here as usize))
}

/// In an engine thread: no hook, no signals to block, a stack that is not managed.
#[no_mangle]
unsafe extern "C" fn hugeswap_hook_plain(args: *const usize) -> i64 {
    // SAFETY: the entry stored seven words at `args`; the call is the caller's.
    let result = unsafe {
        let a = core::array::from_fn(|i| *args.add(i));
        hooks::plain(*args.add(6), a)
    };
    to_c(result)
}

/// On the hook's stack.
#[no_mangle]
unsafe extern "C" fn hugeswap_hook_run(f: *mut Frame) {
    // SAFETY: the frame that `begin` made.
    hooks::run(unsafe { &mut *f });
}

/// On the program's stack again.
#[no_mangle]
unsafe extern "C" fn hugeswap_hook_end(f: *mut Frame) -> i64 {
    // SAFETY: the frame that `begin` made; it is not used after its stack was given back.
    let f = unsafe { f.read() };
    gate::go_out(f.index);
    match hooks::finish(&f) {
        RESTART => BEGIN_AGAIN,
        result => to_c(result),
    }
}

/// The C function `syscall` ended with this error.
#[no_mangle]
extern "C-unwind" fn hugeswap_syscall_failed(result: i64) -> i64 {
    to_c(result)
}
