//! Threads that do not exist for the C library.
//!
//! A thread made by `pthread_create` keeps its TLS vector on the program's heap, which is
//! managed: if that page is out when the fault handler touches it, the handler waits for itself.
//! Engine threads are therefore made by `clone(2)`, on a stack and a TLS block that the engine
//! maps, with all signals blocked, a descriptor table, a root and a working directory of their own.

use super::arch;
use super::mem::{madvise, map_threads_own};
pub use super::sleep::pause;
pub use super::syscall::gettid;
use super::syscall::{syscall, Errno};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

const STACK: usize = 256 << 10;
/// Below the thread pointer: room for every static TLS variable a stray call into the C library
/// might touch (errno is one). Above: the thread control block.
const TLS_BELOW: usize = 64 << 10;
const TLS_ABOVE: usize = 16 << 10;

/// Which descriptor table the new thread works on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Files {
    /// A copy of the caller's, its own from then on.
    Own,
    /// The caller's.
    Shared,
}

/// Starts an engine thread; `entry` must never unwind.
///
/// # Safety
/// `entry(arg)` must be sound on a thread unknown to the C library: no calls that need a
/// `struct pthread` or dynamic TLS.
pub unsafe fn spawn(
    entry: extern "C" fn(*mut u8),
    arg: *mut u8,
    files: Files,
) -> Result<u32, Errno> {
    let block = map_threads_own(STACK + TLS_BELOW + TLS_ABOVE)?;
    // What seals and opens leaves copies of keys on its stack: not for core files.
    // SAFETY: contents do not change.
    unsafe { madvise(block as usize, STACK, libc::MADV_DONTDUMP) }?;
    // SAFETY: the block was just mapped with this size; addresses stay inside it.
    unsafe {
        let tp = block.add(STACK + TLS_BELOW);
        arch::lay_thread_block(tp);
        let top = arch::lay_stack(block.add(STACK), entry, arg);

        // Root and working directory are its own: a thread that shares them may not change its mount
        // namespace. Who traces the program and follows its threads is not given this one.
        let mut flags = libc::CLONE_VM
            | libc::CLONE_UNTRACED
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM
            | libc::CLONE_SETTLS;
        if files == Files::Shared {
            flags |= libc::CLONE_FILES;
        }
        let saved = block_signals();
        let r = arch::clone_thread(flags as usize, top, tp);
        restore_signals(saved);
        super::syscall::check(r).map(|t| t as u32)
    }
}

/// A filter of system calls that the program installs for all threads (SECCOMP_FILTER_FLAG_TSYNC)
/// would take from this one what it needs. A thread with a filter of its own refuses: the program is
/// told that its filter could not be installed.
pub fn refuse_filters() {
    let allow = libc::sock_filter {
        code: 0x06, // BPF_RET | BPF_K
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ALLOW,
    };
    let program = libc::sock_fprog {
        len: 1,
        filter: &raw const allow as *mut libc::sock_filter,
    };
    // SAFETY: the structures outlive the calls. The first is for this thread only, which never execs;
    // without it the second takes a right. Where either is refused it is as before.
    unsafe {
        let _ = syscall(
            libc::SYS_prctl,
            [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0],
        );
        let _ = syscall(
            libc::SYS_seccomp,
            [
                libc::SECCOMP_SET_MODE_FILTER as usize,
                0,
                &raw const program as usize,
            ],
        );
    }
}

/// Blocks every signal for this thread; returns the mask that was in force.
pub fn block_signals() -> u64 {
    let all = u64::MAX;
    let mut old = 0u64;
    // SAFETY: both masks are 8 bytes, as the kernel's sigset is.
    let _ = unsafe {
        syscall(
            libc::SYS_rt_sigprocmask,
            [
                libc::SIG_SETMASK as usize,
                &all as *const u64 as usize,
                &mut old as *mut u64 as usize,
                8,
            ],
        )
    };
    old
}

pub fn restore_signals(mask: u64) {
    // SAFETY: the mask is 8 bytes.
    let _ = unsafe {
        syscall(
            libc::SYS_rt_sigprocmask,
            [
                libc::SIG_SETMASK as usize,
                &mask as *const u64 as usize,
                0,
                8,
            ],
        )
    };
}

/// Signals that have come and wait for this thread to let them in, a bit to each.
pub fn pending_signals() -> u64 {
    let mut pending = 0u64;
    // SAFETY: the mask is 8 bytes.
    let asked = unsafe {
        syscall(
            libc::SYS_rt_sigpending,
            [&raw mut pending as usize, size_of_val(&pending)],
        )
    };
    asked.map_or(0, |_| pending)
}

pub fn getpid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_getpid, []) }.unwrap_or(0) as u32
}

/// Fills `bytes` with what nobody can guess.
pub fn random_bytes(bytes: &mut [u8]) -> Result<(), Errno> {
    let mut rest = bytes;
    while !rest.is_empty() {
        // SAFETY: the buffer outlives the call.
        let got = unsafe {
            let (at, len) = (rest.as_mut_ptr() as usize, rest.len());
            syscall(libc::SYS_getrandom, [at, len, 0])
        };
        match got {
            Ok(n) => rest = rest.get_mut(n..).unwrap_or_default(),
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A number that nobody can guess.
pub fn random() -> u64 {
    let mut v = 0u64;
    // SAFETY: the variable outlives the call.
    let _ = unsafe { syscall(libc::SYS_getrandom, [&mut v as *mut u64 as usize, 8, 0]) };
    v ^ now_ns()
}

/// Ends the whole process.
pub fn exit_group(code: i32) -> ! {
    loop {
        // SAFETY: does not return.
        let _ = unsafe { syscall(libc::SYS_exit_group, [code as usize]) };
    }
}

/// Ends the whole process as if somebody had killed it.
pub fn end_killed() -> ! {
    // SAFETY: no memory is passed. The first process of a namespace can't be killed by itself.
    let _ = unsafe { syscall(libc::SYS_kill, [getpid() as usize, libc::SIGKILL as usize]) };
    exit_group(128 + libc::SIGKILL)
}

/// Set where the program has forbidden itself to read the processor's counter.
static ASK_KERNEL: AtomicBool = AtomicBool::new(false);

/// The program is about to forbid itself to read the processor's counter (PR_SET_TSC): its threads get a signal where
/// they do, and so do those that they start. From here on the time is asked of the kernel.
pub fn ask_kernel_for_time() {
    ASK_KERNEL.store(true, Release);
}

/// Whose processor time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Whose {
    Process = libc::RUSAGE_SELF,
    Thread = libc::RUSAGE_THREAD,
}

/// What the kernel has counted of it.
pub(crate) fn usage(whose: Whose) -> Result<libc::rusage, Errno> {
    // SAFETY: numbers, for which zeros stand too.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    let args = [whose as i32 as usize, &raw mut usage as usize];
    // SAFETY: the structure outlives the call.
    unsafe { syscall(libc::SYS_getrusage, args) }.map(|_| usage)
}

/// Nanoseconds that it has run outside of the kernel; 0 where that is not told.
pub fn user_ns(whose: Whose) -> u64 {
    let time = usage(whose).map(|u| u.ru_utime);
    time.map_or(0, |t| {
        t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1000
    })
}

type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> i32;

/// The C library's own `clock_gettime`; 0 where it was not looked for.
static CLOCK: AtomicUsize = AtomicUsize::new(0);

/// From here on the time is asked of this function. The program may have loaded another of that name, which does more than
/// a thread of ours can.
///
/// # Safety
/// It is the C library's `clock_gettime`.
pub unsafe fn ask_for_time(clock_gettime: usize) {
    CLOCK.store(clock_gettime, Release);
}

/// Nanoseconds for which this thread has had a processor. A system call.
pub fn cpu_ns() -> u64 {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let args = [libc::CLOCK_THREAD_CPUTIME_ID as usize, &raw mut ts as usize];
    // SAFETY: the structure outlives the call.
    let _ = unsafe { syscall(libc::SYS_clock_gettime, args) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// Nanoseconds of the monotonic clock.
pub fn now_ns() -> u64 {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    if ASK_KERNEL.load(Relaxed) {
        let args = [libc::CLOCK_MONOTONIC as usize, &raw mut ts as usize];
        // SAFETY: the structure outlives the call.
        let _ = unsafe { syscall(libc::SYS_clock_gettime, args) };
        return ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64;
    }
    // The C library answers from the vDSO without a system call and touches no TLS.
    let clock: ClockGettime = match CLOCK.load(Acquire) {
        0 => libc::clock_gettime,
        // SAFETY: said of it where it was stored.
        at => unsafe { core::mem::transmute::<usize, ClockGettime>(at) },
    };
    // SAFETY: the structure outlives the call.
    unsafe { clock(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}
