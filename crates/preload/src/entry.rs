//! From a call of the C library into a hook.
//!
//! A hook runs with all signals blocked, on a stack of ours: the program's own stack may lie in
//! managed memory, and a hook that held a lock while touching a swapped page of it would wait for
//! the handler, and the handler for the lock.

use crate::{deputy, hooks, release, sandbox};
use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use hugeswap::engine::DOORBELLS;
use hugeswap::sys::futex::{self, Scope};
use hugeswap::sys::{mem, thread, Errno};

const STACK: usize = 64 << 10;
const _: () = assert!(DOORBELLS == 64);

/// Which stacks are free, a bit to each.
static FREE: AtomicU64 = AtomicU64::new(0);
static BASE: AtomicUsize = AtomicUsize::new(0);
/// Hooks that run now, and whether a fork wants to be alone.
static ACTIVE: AtomicU32 = AtomicU32::new(0);
static FORKING: AtomicU32 = AtomicU32::new(0);

/// Which function of the C library was called, or what else is asked for. The entries below use
/// the same numbers.
pub const MMAP: usize = 0;
pub const MUNMAP: usize = 1;
pub const MPROTECT: usize = 2;
pub const MADVISE: usize = 3;
pub const MREMAP: usize = 4;
pub const BRK: usize = 5;
pub const FORK: usize = 6;
pub const MLOCK: usize = 7;
pub const MUNLOCK: usize = 8;
pub const MLOCK2: usize = 9;
pub const MLOCKALL: usize = 10;
pub const MUNLOCKALL: usize = 11;
/// Not a function of the C library: the memory stays resident from now on.
pub const PIN: usize = 12;
/// clone and clone3 by syscall(2), without CLONE_VM.
pub const CLONE: usize = 13;
pub const CLONE3: usize = 14;
/// A filter of system calls is about to be installed.
pub const SANDBOX: usize = 15;
/// The program registers memory with a userfaultfd of its own.
pub const RELEASE: usize = 16;

/// A call, on the hook's stack.
#[repr(C)]
pub struct Frame {
    pub args: [usize; 6],
    pub call: usize,
    /// What the call returns, `-errno` on failure.
    pub result: i64,
    mask: u64,
    index: usize,
}

pub fn set_up() -> Result<(), Errno> {
    BASE.store(mem::map_anon(STACK * DOORBELLS)? as usize, Release);
    FREE.store(u64::MAX, Release);
    Ok(())
}

impl Frame {
    /// The hook's doorbell.
    pub fn bell(&self) -> usize {
        self.index
    }
}

/// Waits until this hook is the only one; others wait at their entry until `let_others_in`.
pub fn be_alone() {
    while FORKING.swap(1, AcqRel) == 1 {
        // Another fork is under way: it waits for our count to go away.
        ACTIVE.fetch_sub(1, AcqRel);
        futex::wake(&ACTIVE, u32::MAX, Scope::Process);
        futex::wait(&FORKING, 1, Some(10), Scope::Process);
        ACTIVE.fetch_add(1, AcqRel);
    }
    loop {
        let n = ACTIVE.load(Acquire);
        if n == 1 {
            return;
        }
        futex::wait(&ACTIVE, n, Some(10), Scope::Process);
    }
}

pub fn let_others_in() {
    FORKING.store(0, Release);
    futex::wake(&FORKING, u32::MAX, Scope::Process);
}

/// In a forked child: the only thread is in the hook with this stack.
pub fn only_me(f: &Frame) {
    ACTIVE.store(1, Release);
    FREE.store(!(1 << f.index), Release);
    deputy::forget();
}

fn take_stack() -> usize {
    loop {
        let free = FREE.load(Acquire);
        if free == 0 {
            // All hooks are busy; they are short.
            futex::wait(&ACTIVE, ACTIVE.load(Relaxed), Some(1), Scope::Process);
            continue;
        }
        let i = free.trailing_zeros() as usize;
        if FREE
            .compare_exchange(free, free & !(1 << i), AcqRel, Relaxed)
            .is_ok()
        {
            return i;
        }
    }
}

/// Where hooks wait while there is a fork.
fn come_in() {
    ACTIVE.fetch_add(1, AcqRel);
    while FORKING.load(Acquire) == 1 {
        ACTIVE.fetch_sub(1, AcqRel);
        futex::wake(&ACTIVE, u32::MAX, Scope::Process);
        futex::wait(&FORKING, 1, Some(10), Scope::Process);
        ACTIVE.fetch_add(1, AcqRel);
    }
}

/// A hook is over; its stack was `index`.
fn go_out(index: usize) {
    FREE.fetch_or(1 << index, AcqRel);
    ACTIVE.fetch_sub(1, AcqRel);
    if FORKING.load(Acquire) == 1 {
        futex::wake(&ACTIVE, u32::MAX, Scope::Process);
    }
}

/// On the program's stack: blocks signals and finds a stack for the hook.
#[no_mangle]
unsafe extern "C" fn hugeswap_hook_begin(args: *const usize) -> *mut Frame {
    let mask = thread::block_signals();
    come_in();
    let index = take_stack();
    let top = BASE.load(Relaxed) + (index + 1) * STACK;
    let frame = ((top - size_of::<Frame>()) & !15) as *mut Frame;
    // SAFETY: the stack is ours until `end`; the entry stored seven words at `args`.
    unsafe {
        frame.write(Frame {
            args: core::array::from_fn(|i| *args.add(i)),
            call: *args.add(6),
            result: 0,
            mask,
            index,
        });
    }
    frame
}

/// A hook in the deputy's thread, for one of the program's.
pub fn on_behalf(call: usize, args: [usize; 6]) -> i64 {
    come_in();
    let mut frame = Frame {
        args,
        call,
        result: 0,
        mask: 0,
        index: take_stack(),
    };
    hooks::run(&mut frame);
    go_out(frame.index);
    frame.result
}

/// On the program's stack, where a filter forbids what a hook needs: the deputy runs it.
#[no_mangle]
unsafe extern "C" fn hugeswap_hook_delegate(args: *const usize) -> i64 {
    // SAFETY: the entry stored seven words at `args`.
    let (call, a) = unsafe { (*args.add(6), core::array::from_fn(|i| *args.add(i))) };
    let refused = sandbox::refused(call, a);
    to_c(
        refused
            .or_else(|| deputy::ask(call, a))
            .unwrap_or(-i64::from(libc::ENOSYS)),
    )
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
    let (result, mask, index) = unsafe { ((*f).result, (*f).mask, (*f).index) };
    go_out(index);
    thread::restore_signals(mask);
    to_c(result)
}

/// `syscall(SYS_seccomp, ...)`. A filter for all threads is one for the caller where the program has
/// no other: the engine's threads need calls that the program does not, and refuse it.
#[no_mangle]
extern "C" fn hugeswap_seccomp(
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
    match operation as u32 {
        libc::SECCOMP_SET_MODE_FILTER => tell_of(filter),
        libc::SECCOMP_SET_MODE_STRICT => tell_of(0),
        _ => {}
    }
    // SAFETY: the call that the program asked for, with its arguments.
    to_c(unsafe { hugeswap::sys::syscall::raw(nr, [operation, flags, filter, a3, a4, 0]) })
}

/// A hook notes the filter. What it is worth the kernel says, and nothing is changed of it, nor errno.
fn tell_of(filter: usize) {
    if hugeswap::engine::get().is_none() {
        return;
    }
    // SAFETY: the thread's errno; the entry of a hook, which reads the filter with care.
    unsafe {
        let errno = *libc::__errno_location();
        hugeswap_entry_sandbox(filter);
        *libc::__errno_location() = errno;
    }
}

/// `prctl`, and below it `syscall(SYS_prctl, ...)`.
#[no_mangle]
extern "C" fn hugeswap_prctl(option: i32, a1: usize, a2: usize, a3: usize, a4: usize) -> i64 {
    if option == libc::PR_SET_SECCOMP {
        match a1 as u32 {
            libc::SECCOMP_MODE_FILTER => tell_of(a2),
            libc::SECCOMP_MODE_STRICT => tell_of(0),
            _ => {}
        }
    }
    let args = [option as usize, a1, a2, a3, a4, 0];
    // SAFETY: the call that the program asked for, with its arguments.
    to_c(unsafe { hugeswap::sys::syscall::raw(libc::SYS_prctl, args) })
}

/// The address of what stands for the C library's `prctl`.
pub fn prctl() -> usize {
    hugeswap_prctl as extern "C" fn(i32, usize, usize, usize, usize) -> i64 as usize
}

#[no_mangle]
extern "C" fn hugeswap_syscall_prctl(
    _nr: i64,
    option: i32,
    a1: usize,
    a2: usize,
    a3: usize,
    a4: usize,
) -> i64 {
    hugeswap_prctl(option, a1, a2, a3, a4)
}

/// `ioctl`, and below it `syscall(SYS_ioctl, ...)`.
#[no_mangle]
extern "C" fn hugeswap_ioctl(fd: i32, request: usize, arg: usize) -> i64 {
    if request == release::REGISTER && hugeswap::engine::get().is_some() {
        // SAFETY: the thread's errno; the entry of a hook, which reads the argument with care.
        unsafe {
            let errno = *libc::__errno_location();
            hugeswap_entry_release(arg);
            *libc::__errno_location() = errno;
        }
    }
    let args = [fd as usize, request, arg, 0, 0, 0];
    // SAFETY: the call that the program asked for, with its arguments.
    to_c(unsafe { hugeswap::sys::syscall::raw(libc::SYS_ioctl, args) })
}

/// The address of what stands for the C library's `ioctl`.
pub fn ioctl() -> usize {
    hugeswap_ioctl as extern "C" fn(i32, usize, usize) -> i64 as usize
}

#[no_mangle]
extern "C" fn hugeswap_syscall_ioctl(_nr: i64, fd: i32, request: usize, arg: usize) -> i64 {
    hugeswap_ioctl(fd, request, arg)
}

/// The C function `syscall` ended with this error.
#[no_mangle]
extern "C" fn hugeswap_syscall_failed(result: i64) -> i64 {
    to_c(result)
}

/// As C functions return: -1 and errno.
fn to_c(result: i64) -> i64 {
    if (-4095..0).contains(&result) {
        // SAFETY: the thread's errno, as the C function that we stand for sets it.
        unsafe { *libc::__errno_location() = -result as i32 };
        return -1;
    }
    result
}

global_asm!(
    ".macro hugeswap_entry name, number",
    ".global \\name",
    ".hidden \\name",
    "\\name:",
    "mov eax, \\number",
    "jmp hugeswap_hook_common",
    ".endm",
    "hugeswap_entry hugeswap_entry_mmap, 0",
    "hugeswap_entry hugeswap_entry_munmap, 1",
    "hugeswap_entry hugeswap_entry_mprotect, 2",
    "hugeswap_entry hugeswap_entry_madvise, 3",
    "hugeswap_entry hugeswap_entry_mremap, 4",
    "hugeswap_entry hugeswap_entry_brk, 5",
    "hugeswap_entry hugeswap_entry_fork, 6",
    "hugeswap_entry hugeswap_entry_mlock, 7",
    "hugeswap_entry hugeswap_entry_munlock, 8",
    "hugeswap_entry hugeswap_entry_mlock2, 9",
    "hugeswap_entry hugeswap_entry_mlockall, 10",
    "hugeswap_entry hugeswap_entry_munlockall, 11",
    "hugeswap_entry hugeswap_entry_pin, 12",
    "hugeswap_entry hugeswap_entry_clone, 13",
    "hugeswap_entry hugeswap_entry_sandbox, 15",
    "hugeswap_entry hugeswap_entry_release, 16",
    // syscall(2). Calls that change the address space go the same way as their functions: the
    // arguments move down by one. A clone that shares memory or brings a stack stays what it is.
    ".macro hugeswap_number nr, number",
    "mov eax, \\number",
    "cmp rdi, \\nr",
    "je 4f",
    ".endm",
    ".global hugeswap_entry_syscall",
    ".hidden hugeswap_entry_syscall",
    "hugeswap_entry_syscall:",
    "hugeswap_number 9, 0",
    "hugeswap_number 11, 1",
    "hugeswap_number 10, 2",
    "hugeswap_number 28, 3",
    "hugeswap_number 25, 4",
    "hugeswap_number 57, 6",
    "hugeswap_number 149, 7",
    "hugeswap_number 150, 8",
    "hugeswap_number 325, 9",
    "hugeswap_number 151, 10",
    "hugeswap_number 152, 11",
    "cmp rdi, 56",
    "je 2f",
    "cmp rdi, 435",
    "je 3f",
    "cmp rdi, 317",
    "je hugeswap_seccomp",
    "cmp rdi, 157",
    "je hugeswap_syscall_prctl",
    "cmp rdi, 16",
    "je hugeswap_syscall_ioctl",
    "1: mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "mov rdx, rcx",
    "mov r10, r8",
    "mov r8, r9",
    "mov r9, [rsp+8]",
    "syscall",
    "mov rdi, rax",
    "cmp rax, -4095",
    "jae hugeswap_syscall_failed",
    "ret",
    "2: mov eax, 13",
    "test rdx, rdx",
    "jnz 1b",
    "test rsi, 0x100",
    "jz 4f",
    "jmp 1b",
    "3: mov eax, 14",
    "cmp qword ptr [rsi+40], 0",
    "jne 1b",
    "test qword ptr [rsi], 0x100",
    "jnz 1b",
    "4: mov rdi, rsi",
    "mov rsi, rdx",
    "mov rdx, rcx",
    "mov rcx, r8",
    "mov r8, r9",
    "mov r9, [rsp+8]",
    "hugeswap_hook_common:",
    "push rbp",
    "mov rbp, rsp",
    "push rbx",
    "push r12",
    "sub rsp, 64",
    "mov [rsp], rdi",
    "mov [rsp+8], rsi",
    "mov [rsp+16], rdx",
    "mov [rsp+24], rcx",
    "mov [rsp+32], r8",
    "mov [rsp+40], r9",
    "mov eax, eax",
    "mov [rsp+48], rax",
    "mov rdi, rsp",
    // The C library knows no number of an engine thread (`fork::TID`): its mmap, called by one of
    // them, is the plain system call.
    "cmp dword ptr fs:[0x2d0], 0",
    "je 2f",
    // A fork makes its own system call, whoever runs the hook.
    "cmp byte ptr [rip + {delegating}], 0",
    "je 5f",
    "cmp eax, 6",
    "je 5f",
    "cmp eax, 13",
    "je 5f",
    "cmp eax, 14",
    "jne 6f",
    "5: call hugeswap_hook_begin",
    "mov rbx, rax",
    "mov r12, rsp",
    "mov rsp, rax",
    "mov rdi, rax",
    "call hugeswap_hook_run",
    "mov rsp, r12",
    "mov rdi, rbx",
    "call hugeswap_hook_end",
    "1:",
    "add rsp, 64",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    "2: call hugeswap_hook_plain",
    "jmp 1b",
    "6: call hugeswap_hook_delegate",
    "jmp 1b",
    delegating = sym deputy::DELEGATING,
);

extern "C" {
    pub fn hugeswap_entry_mmap();
    pub fn hugeswap_entry_munmap();
    pub fn hugeswap_entry_mprotect();
    pub fn hugeswap_entry_madvise();
    pub fn hugeswap_entry_mremap();
    pub fn hugeswap_entry_brk();
    pub fn hugeswap_entry_fork();
    pub fn hugeswap_entry_mlock();
    pub fn hugeswap_entry_munlock();
    pub fn hugeswap_entry_mlock2();
    pub fn hugeswap_entry_mlockall();
    pub fn hugeswap_entry_munlockall();
    pub fn hugeswap_entry_syscall();
    pub fn hugeswap_entry_clone(
        flags: usize,
        stack: usize,
        parent_tid: usize,
        child_tid: usize,
        tls: usize,
    ) -> i64;
    fn hugeswap_entry_sandbox(filter: usize) -> i64;
    fn hugeswap_entry_release(registration: usize) -> i64;
    pub fn hugeswap_entry_pin(addr: usize, len: usize) -> i64;
}
