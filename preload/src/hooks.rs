//! What the program asks of its address space: which hook stands for which call.
//!
//! Each does what the system call of its name does, and keeps the engine's tables true. It does
//! nothing that it can't undo before the kernel has agreed. Hooks run on a stack of their own with
//! signals blocked (see `entry`). The state's lock is not held while waiting for a transfer.

use crate::entry::{
    Frame, BRK, CLONE, CLONE3, FORK, MADVISE, MLOCK, MLOCK2, MLOCKALL, MMAP, MPROTECT, MREMAP,
    MUNLOCK, MUNLOCKALL, MUNMAP, PIN, PKEY_MPROTECT, PROCESS_MADVISE, RELEASE, RIGHTS, SANDBOX,
    SETNS, SHMAT, SHMDT, THREAD_ENDS, UNSHARE,
};
use crate::{advise, alone, brk, fork, lock, map, protect, release, remap, rights, sandbox};
use hugeswap::mm::PAGE_SIZE;
use hugeswap::sys::syscall::raw;
use hugeswap::sys::Errno;

pub type Result<T> = core::result::Result<T, Errno>;

pub const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// The system call that a function of the C library stands for, as it is.
pub fn plain(call: usize, a: [usize; 6]) -> i64 {
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
        FORK => libc::SYS_fork,
        CLONE => libc::SYS_clone,
        CLONE3 => libc::SYS_clone3,
        PROCESS_MADVISE => libc::SYS_process_madvise,
        SHMAT => libc::SYS_shmat,
        SHMDT => libc::SYS_shmdt,
        PKEY_MPROTECT => libc::SYS_pkey_mprotect,
        UNSHARE => libc::SYS_unshare,
        SETNS => libc::SYS_setns,
        _ => return -(libc::ENOSYS as i64),
    };
    // SAFETY: the kernel call that the caller asked for, with the caller's arguments.
    unsafe { raw(nr, a) }
}

pub fn run(f: &mut Frame) {
    let a = f.args;
    let bell = f.bell();
    let Some(e) = hugeswap::engine::get() else {
        f.result = plain(f.call, a);
        return;
    };
    let r = match f.call {
        MMAP => map::mmap(e, bell, a),
        MUNMAP => map::munmap(e, bell, a[0], a[1]),
        MPROTECT => protect::mprotect(e, bell, a, None),
        PKEY_MPROTECT => protect::mprotect(e, bell, a, Some(a[3] as i32)),
        MADVISE => advise::madvise(e, bell, a[0], a[1], a[2] as i32),
        PROCESS_MADVISE => advise::process_madvise(e, bell, a),
        MREMAP => remap::mremap(e, bell, a),
        BRK => brk::brk(e, bell, a[0]),
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
        SANDBOX => sandbox::note(a[0]),
        RELEASE => release::registered(e, bell, a[0], a[1] != 0),
        RIGHTS => rights::follow(e, f),
        THREAD_ENDS => crate::resident::robust_futexes(e),
        _ => Err(Errno(libc::ENOSYS)),
    };
    f.result = match r {
        Ok(v) => v as i64,
        Err(e) => -(e.0 as i64),
    };
}

/// Whole pages; None for none, or too many.
pub fn pages(len: usize) -> Option<usize> {
    (len != 0)
        .then(|| len.checked_next_multiple_of(PAGE_SIZE))
        .flatten()
}
