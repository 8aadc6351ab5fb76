//! Calls that are looked at before they are made: `syscall(2)`, `prctl` and `ioctl`.
//!
//! They run on the program's stack, and a signal may end or leave any of them: a handler that calls
//! `pthread_exit` or `siglongjmp`, a cancellation. So they hold nothing, and have nothing to clean up;
//! `C-unwind` keeps the compiler from putting an abort in the unwinder's way.

use crate::arch::{self, hugeswap_entry_pin};
use crate::frame::{to_c, CLONE, CLONE3};
use crate::{alone, release, resident, rights, sandbox};
use hugeswap::sys::syscall::raw;
use hugeswap::sys::thread;
use hugeswap::sys::{self, mem};

/// `syscall(SYS_seccomp, ...)`. A filter for all threads is one for the caller where the program has
/// no other: the engine's threads need calls that the program does not, and refuse it.
#[no_mangle]
extern "C-unwind" fn hugeswap_seccomp(
    nr: i64,
    operation: usize,
    flags: usize,
    filter: usize,
    a3: usize,
    a4: usize,
) -> i64 {
    const FOR_ALL: usize =
        (libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_TSYNC_ESRCH) as usize;
    let for_all = operation == libc::SECCOMP_SET_MODE_FILTER as usize
        && flags & libc::SECCOMP_FILTER_FLAG_TSYNC as usize != 0;
    let alone = || hugeswap::engine::get().is_some_and(|e| e.threads_of_program() == 1);
    let flags = if for_all && alone() {
        flags & !FOR_ALL
    } else {
        flags
    };
    let args = [operation, flags, filter, a3, a4, 0];
    match operation as u32 {
        // Without one the program only asks whether there are filters, and zero means something else to us.
        libc::SECCOMP_SET_MODE_FILTER if filter != 0 => tell_of(filter, Filter::Comes),
        libc::SECCOMP_SET_MODE_STRICT if flags == 0 && filter == 0 => {
            return to_c(strict_mode(nr, args))
        }
        _ => {}
    }
    // SAFETY: the call that the program asked for, with its arguments.
    let call = || unsafe { raw(nr, args) };
    let mut result = call();
    let listens = flags & libc::SECCOMP_FILTER_FLAG_NEW_LISTENER as usize != 0;
    if listens && result == -i64::from(libc::EBUSY) && hugeswap::engine::get().is_some() {
        crate::direct::give_guard_up();
        result = call();
    }
    if operation == libc::SECCOMP_SET_MODE_FILTER as usize && filter != 0 && result < 0 {
        tell_of(filter, Filter::Refused);
    }
    to_c(result)
}

/// What becomes of a filter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Filter {
    /// It is about to be installed.
    Comes,
    /// The kernel has refused it.
    Refused,
}

/// A hook notes the filter. The kernel judges it; the result and errno stay as they are. In a child that has its
/// parent's memory (`vfork`) nothing is noted: the filter is not the parent's, whose hooks go by what is noted.
fn tell_of(filter: usize, what: Filter) {
    if hugeswap::engine::get().is_none() || !rights::is_of_engines_process() {
        return;
    }
    // SAFETY: the thread's errno; the entry of a hook, which reads the filter with care.
    unsafe {
        let errno = *libc::__errno_location();
        arch::hugeswap_entry_sandbox(filter, usize::from(what == Filter::Refused));
        *libc::__errno_location() = errno;
    }
}

/// The kernel has the strict mode for processes without a filter only, and the run's guard is one:
/// then a filter that says the same takes its place.
fn strict_mode(nr: i64, args: [usize; 6]) -> i64 {
    // SAFETY: the call that the program asked for, with its arguments.
    let call = || unsafe { raw(nr, args) };
    // With a filter of its own the kernel refuses the program, as it does without us.
    if hugeswap::engine::get().is_none() || sandbox::is_there() {
        return call();
    }
    tell_of(0, Filter::Comes);
    let result = match call() {
        r if r == -i64::from(libc::EINVAL) => sandbox::be_strict(),
        r => r,
    };
    if result < 0 {
        tell_of(0, Filter::Refused);
    }
    result
}

/// PR_SET_SYSCALL_USER_DISPATCH and PR_SYS_DISPATCH_ON.
const SET_USER_DISPATCH: i32 = 59;
const DISPATCH_ALL_BUT: usize = 1;

/// The thread's system calls are about to become signals, except those that are made by instructions in
/// these `len` bytes. The hooks do the C library's work: where its instructions are allowed, they use one.
fn be_allowed(from: usize, len: usize) {
    let has = sys::arch::CALL_AND_RETURN;
    let function = libc::getppid as *const () as usize;
    let mut bytes = [0u8; 32];
    // SAFETY: memory of ours, as long as said.
    let read = unsafe { mem::copy_from_program(function, bytes.as_mut_ptr(), bytes.len()) };
    let Some(at) = bytes.windows(has.len()).position(|w| w == has) else {
        return;
    };
    if read.is_ok() && (function + at).wrapping_sub(from) < len {
        // SAFETY: the bytes were just seen there, and the C library is never unloaded.
        unsafe { sys::syscall::borrow(function + at) };
    }
}

/// `prctl`, and below it `syscall(SYS_prctl, ...)`.
#[no_mangle]
extern "C-unwind" fn hugeswap_prctl(
    option: i32,
    a1: usize,
    a2: usize,
    a3: usize,
    a4: usize,
) -> i64 {
    let args = [option as usize, a1, a2, a3, a4, 0];
    let is_filter =
        option == libc::PR_SET_SECCOMP && a1 == libc::SECCOMP_MODE_FILTER as usize && a2 != 0;
    if is_filter {
        tell_of(a2, Filter::Comes);
    } else if option == libc::PR_SET_SECCOMP && a1 == libc::SECCOMP_MODE_STRICT as usize {
        return to_c(strict_mode(libc::SYS_prctl, args));
    }
    if option == SET_USER_DISPATCH && a1 == DISPATCH_ALL_BUT {
        be_allowed(a2, a3);
    }
    if option == libc::PR_SET_TSC && a1 == libc::PR_TSC_SIGSEGV as usize {
        thread::ask_kernel_for_time();
    }
    // SAFETY: the call that the program asked for, with its arguments.
    let result = unsafe { raw(libc::SYS_prctl, args) };
    if is_filter && result < 0 {
        tell_of(a2, Filter::Refused);
    }
    to_c(result)
}

/// The address of what stands for the C library's `prctl`.
pub fn prctl() -> usize {
    hugeswap_prctl as extern "C-unwind" fn(i32, usize, usize, usize, usize) -> i64 as usize
}

#[no_mangle]
extern "C-unwind" fn hugeswap_syscall_prctl(
    _nr: i64,
    option: i32,
    a1: usize,
    a2: usize,
    a3: usize,
    a4: usize,
) -> i64 {
    hugeswap_prctl(option, a1, a2, a3, a4)
}

/// The address of what stands for the C library's `posix_madvise`, which makes the system call itself.
pub fn posix_madvise() -> usize {
    hugeswap_posix_madvise as extern "C" fn(*mut libc::c_void, usize, i32) -> i32 as usize
}

/// Gives the error, and leaves errno as it is.
extern "C" fn hugeswap_posix_madvise(addr: *mut libc::c_void, len: usize, advice: i32) -> i32 {
    if advice == libc::POSIX_MADV_DONTNEED {
        // What Linux does then would drop contents.
        return 0;
    }
    // SAFETY: this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    type Madvise = unsafe extern "C" fn(*mut libc::c_void, usize, i32) -> i32;
    // SAFETY: the entry stands for the function of this type.
    let madvise: Madvise =
        unsafe { core::mem::transmute(arch::hugeswap_entry_madvise as *const ()) };
    // SAFETY: the program's own call.
    let failed = unsafe { madvise(addr, len, advice) } != 0;
    // SAFETY: this thread's own.
    let said = unsafe { core::mem::replace(&mut *errno, before) };
    match failed {
        true => said,
        false => 0,
    }
}

/// `ioctl`, and below it `syscall(SYS_ioctl, ...)`.
#[no_mangle]
extern "C-unwind" fn hugeswap_ioctl(fd: i32, request: usize, arg: usize) -> i64 {
    let args = [fd as usize, request, arg, 0, 0, 0];
    // SAFETY: the call that the program asked for, with its arguments.
    let call = || unsafe { raw(libc::SYS_ioctl, args) };
    let mut result = call();
    // It says this of memory that is ours, where it finds nothing else wrong.
    let busy = request == release::REGISTER && result == -i64::from(libc::EBUSY);
    if !busy || hugeswap::engine::get().is_none() {
        return to_c(result);
    }
    // SAFETY: the thread's errno; the entry of a hook, which reads the argument with care.
    let tell = |refused: usize| unsafe {
        let errno = *libc::__errno_location();
        arch::hugeswap_entry_release(arg, refused);
        *libc::__errno_location() = errno;
    };
    tell(0);
    result = call();
    if result < 0 {
        tell(1);
    }
    to_c(result)
}

/// The address of what stands for the C library's `ioctl`.
pub fn ioctl() -> usize {
    hugeswap_ioctl as extern "C-unwind" fn(i32, usize, usize) -> i64 as usize
}

#[no_mangle]
extern "C-unwind" fn hugeswap_syscall_ioctl(_nr: i64, fd: i32, request: usize, arg: usize) -> i64 {
    hugeswap_ioctl(fd, request, arg)
}

/// `syscall(2)` is about to make a call of this number: says by which hook, 0 for none. What the kernel
/// will write when the thread ends, or returns to the program, is kept resident from here on.
#[no_mangle]
extern "C-unwind" fn hugeswap_watched(
    nr: i64,
    a0: usize,
    a1: usize,
    a2: usize,
    a3: usize,
    a4: usize,
) -> usize {
    let args = [a0, a1, a2, a3, a4];
    match nr {
        libc::SYS_clone => clone(a0, a1, args[arch::CLONE_CHILD_TID], CLONE),
        libc::SYS_clone3 => {
            // The first eight words are there in every version: flags, pidfd, child_tid, parent_tid,
            // exit_signal, stack, stack_size, tls.
            let mut words = [0usize; 8];
            let readable = a1 >= size_of_val(&words)
                // SAFETY: memory of ours, as long as said.
                && unsafe { mem::copy_from_program(a0, words.as_mut_ptr().cast(), 64) }.is_ok();
            if !readable {
                // The kernel says what is wrong with it.
                return 0;
            }
            clone(words[0], words[5], words[2], CLONE3)
        }
        libc::SYS_set_tid_address => keep(a0, size_of::<i32>()),
        libc::SYS_set_robust_list => {
            keep(a0, a1.min(resident::ROBUST_HEAD));
            resident::has_robust_list();
            0
        }
        // Not to end the registration.
        libc::SYS_rseq if a2 == 0 => keep(a0, a1 as u32 as usize),
        libc::SYS_landlock_restrict_self => {
            alone::go_apart();
            0
        }
        libc::SYS_exit => {
            resident::thread_ends();
            0
        }
        _ => 0,
    }
}

/// A child with memory of its own goes by a hook, unless it brings a stack.
fn clone(flags: usize, stack: usize, child_tid: usize, hook: usize) -> usize {
    if flags & libc::CLONE_VM as usize == 0 && stack == 0 {
        return hook;
    }
    if flags & libc::CLONE_CHILD_CLEARTID as usize != 0 {
        keep(child_tid, size_of::<i32>());
    }
    0
}

/// The stretch stays resident, if it is managed.
pub fn keep(addr: usize, len: usize) -> usize {
    if addr != 0 && len != 0 && hugeswap::engine::get().is_some() {
        // SAFETY: the thread's errno; the entry of a hook, which takes any addresses.
        unsafe {
            let errno = *libc::__errno_location();
            hugeswap_entry_pin(addr, len);
            *libc::__errno_location() = errno;
        }
    }
    0
}
