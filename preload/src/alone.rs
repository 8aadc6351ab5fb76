//! unshare and setns. Some namespaces are for processes of one thread only; where the program is one,
//! the engine's threads must not stand in the way (`Engine::step_aside`).

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::frame::{Frame, Result};
use crate::{deputy, gate, resident, rights, sandbox};
use hugeswap::engine::Engine;
use hugeswap::sys::syscall::{check, raw};
use hugeswap::sys::{thread, Errno};

const NEWTIME: i32 = 0x80;
/// Refused to processes of several threads.
const UNSHARED_ALONE: i32 =
    libc::CLONE_NEWUSER | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_VM;
const ENTERED_ALONE: i32 = libc::CLONE_NEWUSER | NEWTIME;
/// How often the call is tried: threads of the kernel's for io_uring end a little later than ours.
const TRIES: usize = 200;

/// The process, or one before it, has entered namespaces, or a domain of Landlock's.
static APART: AtomicBool = AtomicBool::new(false);

/// Whether a child may be unable to find the run's supervisor.
pub fn may_be_apart() -> bool {
    APART.load(Relaxed)
}

pub fn go_apart() {
    APART.store(true, Relaxed);
}

pub fn unshare(e: &'static Engine, f: &Frame, flags: i32) -> Result<usize> {
    if flags & (libc::CLONE_NEWUSER | libc::CLONE_NEWNET) != 0 {
        go_apart();
    }
    // SAFETY: the program's own call.
    let call =
        |flags: i32| check(unsafe { raw(libc::SYS_unshare, [flags as usize, 0, 0, 0, 0, 0]) });
    match call(flags) {
        Err(err @ Errno::EINVAL) if flags & UNSHARED_ALONE != 0 => alone(e, f, flags, err, call),
        r => r,
    }
}

pub fn setns(e: &'static Engine, f: &Frame, fd: usize, kinds: i32) -> Result<usize> {
    go_apart();
    let call = |kinds: i32| {
        // SAFETY: the program's own call.
        check(unsafe { raw(libc::SYS_setns, [fd, kinds as usize, 0, 0, 0, 0]) })
    };
    let refused = [Errno::EINVAL, Errno(libc::EUSERS)];
    match call(kinds) {
        // Zero: of whatever kind it is.
        Err(err) if refused.contains(&err) && (kinds == 0 || kinds & ENTERED_ALONE != 0) => {
            alone(e, f, kinds, err, call)
        }
        r => r,
    }
}

/// Makes the call without threads of ours, if the program has one. `err` is what it ended with before.
fn alone(
    e: &'static Engine,
    f: &Frame,
    flags: i32,
    err: Errno,
    call: impl Fn(i32) -> Result<usize>,
) -> Result<usize> {
    let threads = e.threads_of_program();
    // A new thread would be under the program's filters. Where threads can't be counted there may be one.
    if sandbox::is_there() || deputy::is_there() || threads > 1 && threads != usize::MAX {
        return Err(err);
    }
    resident::keep_kernels_words(e);
    // After it has a pid namespace for its children a process can make no more threads: so that comes
    // last, when ours are there again.
    let later = flags & libc::CLONE_NEWPID;
    gate::be_alone();
    let made = e.step_aside(f.bell(), || {
        let mut tried = 0;
        loop {
            let r = call(flags & !later);
            tried += 1;
            if r != Err(err) || tried == TRIES {
                return r;
            }
            thread::pause();
        }
    });
    if made.is_ok() {
        rights::note();
    }
    gate::let_others_in();
    match made {
        Ok(Ok(_)) if later != 0 => call(later),
        Ok(r) => r,
        Err(_) => Err(err),
    }
}
