//! Filters of system calls that the program installs for itself.
//!
//! A hook makes system calls that the program does not. Where a filter forbids one of these, hooks run
//! in the deputy's thread from then on (`deputy`), which is not under the filter. Filters are noted as
//! they are installed, by prctl, syscall(2) or the seccomp call; a call that the program itself may not
//! make is made as it is, so that it ends as the filter says.

use crate::deputy::{self, RunHook};
use crate::{arch, frame, manageable};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};
use hugeswap::mm::PMD_SIZE;
use hugeswap::sys::bpf::{Call, Instruction};
use hugeswap::sys::syscall::raw;
use hugeswap::sys::{mem, task, Errno};

/// Instructions of a filter at most: BPF_MAXINSNS.
const MOST: usize = 4096;

/// A filter of the process. None is forgotten: the kernel does not forget them either.
struct Noted {
    filter: Vec<Instruction>,
    next: *const Noted,
    /// The kernel has not taken it.
    refused: AtomicBool,
}

static FILTERS: AtomicPtr<Noted> = AtomicPtr::new(core::ptr::null_mut());

/// Those that were there when an engine was started in a child, which is under them as its child is; and
/// when the deputy was.
static ENGINES: AtomicPtr<Noted> = AtomicPtr::new(core::ptr::null_mut());
static DEPUTYS: AtomicPtr<Noted> = AtomicPtr::new(core::ptr::null_mut());

/// From the last to the first.
fn from(last: &AtomicPtr<Noted>) -> impl Iterator<Item = &'static Noted> {
    let mut at = last.load(Acquire) as *const Noted;
    core::iter::from_fn(move || {
        // SAFETY: null, or a node that is never freed; its list and its filter do not change.
        let noted: &'static Noted = unsafe { at.as_ref() }?;
        at = noted.next;
        Some(noted)
    })
    .filter(|noted| !noted.refused.load(Acquire))
}

/// Whether the program has installed one.
pub fn is_there() -> bool {
    from(&FILTERS).next().is_some()
}

/// Whether no filter of the process forbids the call, as far as is known.
pub fn is_allowed(nr: i64, args: [usize; 6]) -> bool {
    allow(&FILTERS, nr, args)
}

fn allow(last: &AtomicPtr<Noted>, nr: i64, args: [usize; 6]) -> bool {
    let call = Call { nr, args };
    from(last).all(|noted| call.is_allowed(&noted.filter))
}

/// In a child, whose engine has just started.
pub fn engine_starts() {
    ENGINES.store(FILTERS.load(Acquire), Release);
}

/// Whether the engine's threads may make a call.
pub fn engine_may(nr: i64, args: [usize; 6]) -> bool {
    allow(&ENGINES, nr, args)
}

/// Whether the deputy may.
pub fn deputy_may(nr: i64, args: [usize; 6]) -> bool {
    allow(&DEPUTYS, nr, args)
}

/// Somewhere in memory.
pub const AT: usize = 1 << 40;
/// How the signal mask is set.
const MASK: [usize; 6] = [libc::SIG_SETMASK as usize, AT, AT, 8, 0, 0];

/// Whether this thread may make the two calls by which the run's guard is told something.
pub fn may_tell_guard() -> bool {
    is_allowed(libc::SYS_rt_sigprocmask, MASK)
        && is_allowed(libc::SYS_openat2, [usize::MAX, 0, 0, 0, 0, 0])
}

/// Whether an engine that starts now may move mappings, as `SwapCache::copy_shared` does.
pub fn may_remap() -> bool {
    const MOVE: usize = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
    const OVER: i32 =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let mremap = |flags| (libc::SYS_mremap, [AT, PMD_SIZE, PMD_SIZE, flags, AT, 0]);
    let over = [AT, PMD_SIZE, 0, OVER as usize, usize::MAX, 0];
    let made = [
        mremap(MOVE),
        mremap(MOVE | libc::MREMAP_DONTUNMAP as usize),
        (libc::SYS_mmap, over),
    ];
    made.into_iter().all(|(nr, args)| is_allowed(nr, args))
}

/// What hooks do beside what the program asked for.
fn hooks_may_work() -> bool {
    const RW: usize = manageable::RW as usize;
    const ANON: usize = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    const PLACED: usize = ANON | libc::MAP_FIXED_NOREPLACE as usize;
    const OVER: usize = ANON | libc::MAP_FIXED as usize;
    let private = |op: i32| (op | libc::FUTEX_PRIVATE_FLAG) as usize;
    let made = [
        (libc::SYS_mprotect, [AT, PMD_SIZE, RW, 0, 0, 0]),
        (libc::SYS_mmap, [0, PMD_SIZE, RW, ANON, usize::MAX, 0]),
        (libc::SYS_mmap, [AT, PMD_SIZE, 0, PLACED, usize::MAX, 0]),
        (libc::SYS_mmap, [AT, PMD_SIZE, RW, OVER, usize::MAX, 0]),
        (
            libc::SYS_msync,
            [AT, PMD_SIZE, libc::MS_ASYNC as usize, 0, 0, 0],
        ),
        (libc::SYS_munmap, [AT, PMD_SIZE, 0, 0, 0, 0]),
        (libc::SYS_mincore, [AT, PMD_SIZE, AT, 0, 0, 0]),
        (libc::SYS_rt_sigprocmask, MASK),
        (
            libc::SYS_getrlimit,
            [libc::RLIMIT_DATA as usize, AT, 0, 0, 0, 0],
        ),
        (libc::SYS_futex, [AT, private(libc::FUTEX_WAIT), 0, 0, 0, 0]),
        (libc::SYS_futex, [AT, private(libc::FUTEX_WAKE), 1, 0, 0, 0]),
        (libc::SYS_process_vm_readv, [1, AT, 1, AT, 1, 0]),
    ];
    let advised = [
        libc::MADV_DONTNEED,
        libc::MADV_NORMAL,
        libc::MADV_RANDOM,
        libc::MADV_DOFORK,
    ];
    let advised = advised.map(|a| (libc::SYS_madvise, [AT, PMD_SIZE, a as usize, 0, 0, 0]));
    made.into_iter()
        .chain(advised)
        .all(|(nr, args)| is_allowed(nr, args))
}

/// In a hook: a filter is about to be installed; `program` is the address of a `struct sock_fprog`, 0
/// for the strict mode. `run` is for the deputy.
pub fn note(program: usize, run: RunHook) -> Result<usize, Errno> {
    let noted = Box::leak(Box::new(Noted {
        filter: filter_at(program)?,
        next: FILTERS.load(Acquire),
        refused: AtomicBool::new(false),
    }));
    // Two threads at once.
    while let Err(now) = FILTERS.compare_exchange(noted.next.cast_mut(), noted, AcqRel, Acquire) {
        noted.next = now;
    }
    if !is_allowed(libc::SYS_rt_sigprocmask, MASK) {
        deputy::leave_signals_alone();
    }
    if !hooks_may_work() && !deputy::is_there() {
        DEPUTYS.store(noted.next.cast_mut(), Release);
        deputy::start(run)?;
    }
    Ok(0)
}

/// In a hook: the kernel has refused the filter that was noted last of those that say the same.
pub fn take_back(program: usize) -> Result<usize, Errno> {
    let filter = filter_at(program)?;
    if let Some(noted) = from(&FILTERS).find(|noted| noted.filter == filter) {
        noted.refused.store(true, Release);
    }
    if is_allowed(libc::SYS_rt_sigprocmask, MASK) {
        deputy::may_block_signals();
    }
    Ok(0)
}

fn filter_at(program: usize) -> Result<Vec<Instruction>, Errno> {
    match program {
        0 => Ok(STRICT.to_vec()),
        at => read(at),
    }
}

/// The strict mode as a filter: read, write, exit, rt_sigreturn.
static STRICT: [Instruction; 13] = {
    const ARCH: u32 = 4;
    const fn op(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
        Instruction { code, jt, jf, k }
    }
    const fn is(nr: i64) -> Instruction {
        op(0x15, 0, 1, nr as u32)
    }
    const END: Instruction = op(0x06, 0, 0, libc::SECCOMP_RET_KILL_THREAD);
    const ALLOW: Instruction = op(0x06, 0, 0, libc::SECCOMP_RET_ALLOW);
    [
        op(0x20, 0, 0, ARCH),
        op(0x15, 1, 0, arch::AUDIT),
        END,
        op(0x20, 0, 0, 0),
        is(libc::SYS_read),
        ALLOW,
        is(libc::SYS_write),
        ALLOW,
        is(libc::SYS_exit),
        ALLOW,
        is(libc::SYS_rt_sigreturn),
        ALLOW,
        END,
    ]
};

/// Puts this thread under the strict mode's filter; the result is the kernel's.
/// It ends a thread by SIGSYS and not by SIGKILL, which only the end of the process shows: that is set
/// right there.
pub fn be_strict() -> i64 {
    let program = libc::sock_fprog {
        len: STRICT.len() as u16,
        filter: STRICT.as_ptr() as *mut libc::sock_filter,
    };
    let args = [
        libc::SECCOMP_SET_MODE_FILTER as usize,
        0,
        &raw const program as usize,
        0,
        0,
        0,
    ];
    let no_new_rights = [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0];
    task::ends_by_filter_are_kills();
    // SAFETY: the structures outlive the calls. A thread that may not install filters gives a right
    // up that is of no use any more: it can never exec.
    unsafe {
        match raw(libc::SYS_seccomp, args) {
            r if r == -i64::from(libc::EACCES) => {
                raw(libc::SYS_prctl, no_new_rights);
                raw(libc::SYS_seccomp, args)
            }
            r => r,
        }
    }
}

/// The program's filter. It may be anywhere, or nowhere: the kernel says so when it looks itself.
fn read(program: usize) -> Result<Vec<Instruction>, Errno> {
    let mut head = [0usize; 2];
    // SAFETY: memory of ours, as long as said.
    unsafe { mem::copy_from_program(program, head.as_mut_ptr().cast(), size_of_val(&head)) }?;
    let len = head[0] & 0xffff;
    if len == 0 || len > MOST {
        return Err(Errno::EINVAL);
    }
    const NOTHING: Instruction = Instruction {
        code: 0,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let mut filter = vec![NOTHING; len];
    let to = filter.as_mut_ptr().cast();
    // SAFETY: memory of ours, as long as said; any bytes are instructions.
    unsafe { mem::copy_from_program(head[1], to, len * size_of::<Instruction>()) }?;
    Ok(filter)
}

/// Makes a call itself, in the program's thread, that a filter forbids; says how it ended if it did not
/// succeed. It does where this thread is not under the filter: then the hook does it over, which
/// changes nothing any more but our tables.
pub fn refused(call: usize, a: [usize; 6]) -> Option<i64> {
    let (nr, args) = match call {
        frame::MMAP => (libc::SYS_mmap, a),
        frame::MUNMAP => (libc::SYS_munmap, a),
        frame::MPROTECT => (libc::SYS_mprotect, a),
        frame::PKEY_MPROTECT => (libc::SYS_pkey_mprotect, a),
        frame::MADVISE => (libc::SYS_madvise, a),
        frame::MINCORE => (libc::SYS_mincore, a),
        frame::MLOCK => (libc::SYS_mlock, a),
        frame::MUNLOCK => (libc::SYS_munlock, a),
        frame::MLOCK2 => (libc::SYS_mlock2, a),
        frame::MLOCKALL => (libc::SYS_mlockall, a),
        frame::MUNLOCKALL => (libc::SYS_munlockall, a),
        // Done twice these would not be the same: one that does nothing.
        frame::MREMAP => (libc::SYS_mremap, [a[0], a[1], a[1], 0, 0, 0]),
        frame::BRK | frame::BRK_BY_NUMBER => (libc::SYS_brk, [0; 6]),
        _ => return None,
    };
    if is_allowed(nr, a) {
        return None;
    }
    // SAFETY: the program's own call.
    let result = unsafe { raw(nr, args) };
    if (-4095..0).contains(&result) {
        return Some(match call {
            frame::BRK => -i64::from(libc::ENOMEM),
            _ => result,
        });
    }
    if call == frame::MMAP && a[3] as i32 & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) == 0 {
        // SAFETY: just mapped, and nobody knows of it.
        let _ = unsafe { mem::munmap(result as usize, a[1]) };
    }
    None
}
