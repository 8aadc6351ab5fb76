//! What the program asks of its address space: which hook stands for which call.
//!
//! Each does what the system call of its name does, and keeps the engine's tables true. It does
//! nothing that it can't undo before the kernel has agreed. Hooks run on a stack of their own with
//! signals blocked (see `entry`, `gate`). The state's lock is not held while waiting for a transfer.

use crate::frame::{
    Frame, Result, BRK, BRK_BY_NUMBER, CLONE, CLONE3, DOOR, FORK, MADVISE, MBIND, MINCORE, MLOCK,
    MLOCK2, MLOCKALL, MMAP, MPROTECT, MREMAP, MSEAL, MUNLOCK, MUNLOCKALL, MUNMAP, PIN,
    PKEY_MPROTECT, PROCESS_MADVISE, RELEASE, RIGHTS, SANDBOX, SETNS, SHMAT, SHMDT, THREAD_ENDS,
    UNSHARE,
};
use crate::manageable::{PROT, RX};
use crate::own::{self, Rest};
use crate::state::state;
use crate::{
    advise, alone, arch, brk, fork, gate, go, lock, look, map, protect, release, remap, rights,
    sandbox,
};
use hugeswap::sys::syscall::{check, raw};
use hugeswap::sys::Errno;

/// The system call that a function of the C library stands for, as it is.
pub fn plain(call: usize, a: [usize; 6]) -> i64 {
    if call == FORK {
        // SAFETY: the kernel call that the caller asked for.
        return unsafe { arch::fork() };
    }
    let nr = match call {
        MMAP => libc::SYS_mmap,
        MUNMAP => libc::SYS_munmap,
        MPROTECT => libc::SYS_mprotect,
        MADVISE => libc::SYS_madvise,
        MREMAP => libc::SYS_mremap,
        MLOCK => libc::SYS_mlock,
        MUNLOCK => libc::SYS_munlock,
        MLOCK2 => libc::SYS_mlock2,
        MLOCKALL => libc::SYS_mlockall,
        MUNLOCKALL => libc::SYS_munlockall,
        CLONE => libc::SYS_clone,
        CLONE3 => libc::SYS_clone3,
        MINCORE => libc::SYS_mincore,
        PROCESS_MADVISE => libc::SYS_process_madvise,
        SHMAT => libc::SYS_shmat,
        SHMDT => libc::SYS_shmdt,
        PKEY_MPROTECT => libc::SYS_pkey_mprotect,
        UNSHARE => libc::SYS_unshare,
        SETNS => libc::SYS_setns,
        BRK_BY_NUMBER => libc::SYS_brk,
        MSEAL => look::SYS_MSEAL,
        MBIND => libc::SYS_mbind,
        _ => return -(libc::ENOSYS as i64),
    };
    // SAFETY: the kernel call that the caller asked for, with the caller's arguments.
    unsafe { raw(nr, a) }
}

/// Runs the hook, unless the call is none of ours.
pub fn run(f: &mut Frame) {
    if let Some(rest) = own::rest(f.call, f.args) {
        f.result = as_result(run_rest(f, rest));
        return;
    }
    f.direct = state().lock().is_elsewhere(f.call, f.args);
    if !f.direct {
        dispatch(f);
    }
}

/// The call, for what of it is not about the engine's addresses.
fn run_rest(f: &Frame, rest: Rest) -> Result<usize> {
    for (start, end) in rest.parts.into_iter().flatten() {
        let mut args = f.args;
        [args[0], args[1]] = [start, end - start];
        match ask(f.index, f.call, args) {
            // Of madvise: there are other holes, and it has gone on behind them.
            Err(Errno::ENOMEM) if f.call == MADVISE => {}
            Err(err) => return Err(err),
            Ok(_) => {}
        }
    }
    rest.said
}

/// Another call, in a hook on the stack `index`.
fn ask(index: usize, call: usize, args: [usize; 6]) -> Result<usize> {
    let mut f = Frame::new(call, args, index);
    run(&mut f);
    check(finish(&f))
}

/// After the hook: what a call gave. One that is made as it is holds neither the gate nor a stack: it may
/// wait for a thread of the program's that serves a userfaultfd, and that one may fork, or wait for us.
pub fn finish(f: &Frame) -> i64 {
    if f.direct {
        let result = plain(f.call, f.args);
        let [start, len, prot, ..] = f.args;
        if f.call == MPROTECT && result == 0 && prot as i32 & PROT == RX {
            brk::keep_entries(start, start.saturating_add(len));
        }
        result
    } else {
        f.result
    }
}

/// A hook in the deputy's thread, for one of the program's.
fn on_behalf(call: usize, args: [usize; 6]) -> i64 {
    let mut frame = Frame::new(call, args, gate::come_in());
    run(&mut frame);
    gate::go_out(frame.index);
    finish(&frame)
}

fn dispatch(f: &mut Frame) {
    let a = f.args;
    let bell = f.bell();
    let Some(e) = hugeswap::engine::get() else {
        f.result = plain(f.call, a);
        return;
    };
    let r = match f.call {
        MMAP => map::mmap(e, bell, a, go::must_be_left_alone(f.caller)),
        MUNMAP => map::munmap(e, bell, a[0], a[1]),
        MPROTECT => protect::mprotect(e, bell, a, None),
        PKEY_MPROTECT => protect::mprotect(e, bell, a, Some(a[3] as i32)),
        MADVISE => advise::madvise(e, bell, a[0], a[1], a[2] as i32),
        PROCESS_MADVISE => advise::process_madvise(a, |args| ask(f.index, MADVISE, args)),
        MREMAP => remap::mremap(e, bell, a),
        BRK => brk::brk(e, bell, a[0]),
        BRK_BY_NUMBER => Ok(brk::by_number(e, bell, a[0])),
        MINCORE => look::mincore(a),
        MSEAL => look::with_holes(look::SYS_MSEAL, a),
        MBIND => look::with_holes(libc::SYS_mbind, a),
        SHMAT => map::attach(e, bell, a),
        SHMDT => map::detach(e, bell, a[0]),
        UNSHARE => alone::unshare(e, f, a[0] as i32),
        SETNS => alone::setns(e, f, a[0], a[1] as i32),
        FORK => fork::fork(e, f),
        CLONE => fork::clone(e, f, libc::SYS_clone),
        CLONE3 => fork::clone(e, f, libc::SYS_clone3),
        MLOCK => lock::lock(e, a[0], a[1], 0),
        MUNLOCK => lock::unlock(e, bell, a[0], a[1]),
        MLOCK2 => lock::lock(e, a[0], a[1], a[2] as i32),
        MLOCKALL => lock::lock_all(e, bell, a[0] as i32),
        MUNLOCKALL => lock::unlock_all(e, bell),
        PIN => lock::pin(e, a[0], a[1]),
        DOOR => e.hand_door(bell, a[0] as i32, a[1] as u64).map(|()| 0),
        SANDBOX if a[1] != 0 => sandbox::take_back(a[0]),
        SANDBOX => sandbox::note(a[0], on_behalf),
        RELEASE => release::registered(e, bell, a[0], a[1] != 0),
        RIGHTS => rights::follow(e, f),
        THREAD_ENDS => crate::resident::robust_futexes(e),
        _ => Err(Errno(libc::ENOSYS)),
    };
    f.result = as_result(r);
}

fn as_result(r: Result<usize>) -> i64 {
    match r {
        Ok(v) => v as i64,
        Err(e) => -(e.0 as i64),
    }
}
