//! From a call of the C library into a hook.
//!
//! A hook runs with all signals blocked, on a stack of ours: the program's own stack may lie in
//! managed memory, and a hook that held a lock while touching a swapped page of it would wait for
//! the handler, and the handler for the lock. Signals are blocked before the first function of ours and
//! let in after the last: no handler can leave one half done.

use crate::state::state;
use crate::{advise, deputy, hooks, sandbox};
use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use hugeswap::engine::DOORBELLS;
use hugeswap::sys::futex::{self, Scope};
use hugeswap::sys::{mem, Errno};

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
pub const PROCESS_MADVISE: usize = 20;
pub const SHMAT: usize = 21;
pub const SHMDT: usize = 22;
pub const UNSHARE: usize = 23;
pub const SETNS: usize = 24;
pub const PKEY_MPROTECT: usize = 25;
/// The program may have given up rights.
pub const RIGHTS: usize = 26;
/// This thread ends: the kernel goes through its list of robust mutexes.
pub const THREAD_ENDS: usize = 17;

/// A call, on the hook's stack.
#[repr(C)]
pub struct Frame {
    pub args: [usize; 6],
    pub call: usize,
    /// What the call returns, `-errno` on failure.
    pub result: i64,
    /// The call is none of ours: it is made as it is, once the hook is over.
    direct: bool,
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
    leave();
}

fn leave() {
    ACTIVE.fetch_sub(1, AcqRel);
    if FORKING.load(Acquire) == 1 {
        futex::wake(&ACTIVE, u32::MAX, Scope::Process);
    }
}

/// On the program's stack: finds a stack for the hook.
#[no_mangle]
unsafe extern "C" fn hugeswap_hook_begin(args: *const usize) -> *mut Frame {
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
            direct: false,
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
        direct: false,
        index: take_stack(),
    };
    run(&mut frame);
    go_out(frame.index);
    finish(&frame)
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
    run(unsafe { &mut *f });
}

fn run(f: &mut Frame) {
    f.direct = state().lock().is_elsewhere(f.call, f.args);
    if !f.direct {
        hooks::run(f);
    }
}

/// After the hook: what a call gave. One that is made as it is holds neither the gate nor a stack: it may
/// wait for a thread of the program's that serves a userfaultfd, and that one may fork, or wait for us.
fn finish(f: &Frame) -> i64 {
    if f.direct {
        hooks::plain(f.call, f.args)
    } else {
        f.result
    }
}

/// Makes a call in a hook that may wait for another thread of the program's: forks do not wait for it.
/// No lock may be held.
pub fn outside<R>(call: impl FnOnce() -> R) -> R {
    leave();
    let r = call();
    come_in();
    r
}

/// On the program's stack again.
#[no_mangle]
unsafe extern "C" fn hugeswap_hook_end(f: *mut Frame) -> i64 {
    // SAFETY: the frame that `begin` made; it is not used after its stack was given back.
    let f = unsafe { f.read() };
    go_out(f.index);
    to_c(finish(&f))
}

/// The C function `syscall` ended with this error.
#[no_mangle]
extern "C-unwind" fn hugeswap_syscall_failed(result: i64) -> i64 {
    to_c(result)
}

/// As C functions return: -1 and errno.
pub fn to_c(result: i64) -> i64 {
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
    ".cfi_startproc",
    "mov eax, \\number",
    "jmp hugeswap_hook_common",
    ".cfi_endproc",
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
    "hugeswap_entry hugeswap_entry_process_madvise, 20",
    "hugeswap_entry hugeswap_entry_shmat, 21",
    "hugeswap_entry hugeswap_entry_shmdt, 22",
    "hugeswap_entry hugeswap_entry_unshare, 23",
    "hugeswap_entry hugeswap_entry_setns, 24",
    "hugeswap_entry hugeswap_entry_pkey_mprotect, 25",
    "hugeswap_entry hugeswap_entry_thread_ends, 17",
    "hugeswap_entry hugeswap_entry_rights, 26",
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
    ".cfi_startproc",
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
    "hugeswap_number 440, 20",
    "hugeswap_number 30, 21",
    "hugeswap_number 67, 22",
    "hugeswap_number 272, 23",
    "hugeswap_number 308, 24",
    "hugeswap_number 329, 25",
    "cmp rdi, 317",
    "je hugeswap_seccomp",
    // setuid, setgid, setreuid, setregid, setgroups, setresuid, setresgid, capset.
    "cmp rdi, 105",
    "je hugeswap_syscall_rights",
    "cmp rdi, 106",
    "je hugeswap_syscall_rights",
    "cmp rdi, 113",
    "je hugeswap_syscall_rights",
    "cmp rdi, 114",
    "je hugeswap_syscall_rights",
    "cmp rdi, 116",
    "je hugeswap_syscall_rights",
    "cmp rdi, 117",
    "je hugeswap_syscall_rights",
    "cmp rdi, 119",
    "je hugeswap_syscall_rights",
    "cmp rdi, 126",
    "je hugeswap_syscall_rights",
    "cmp rdi, 157",
    "je hugeswap_syscall_prctl",
    "cmp rdi, 16",
    "je hugeswap_syscall_ioctl",
    // clone, clone3, set_tid_address, set_robust_list, rseq, exit, landlock_restrict_self.
    "cmp rdi, 56",
    "je 2f",
    "cmp rdi, 435",
    "je 2f",
    "cmp rdi, 218",
    "je 2f",
    "cmp rdi, 273",
    "je 2f",
    "cmp rdi, 334",
    "je 2f",
    "cmp rdi, 60",
    "je 2f",
    "cmp rdi, 446",
    "je 2f",
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
    "2: sub rsp, 56",
    ".cfi_adjust_cfa_offset 56",
    "mov [rsp], rdi",
    "mov [rsp+8], rsi",
    "mov [rsp+16], rdx",
    "mov [rsp+24], rcx",
    "mov [rsp+32], r8",
    "mov [rsp+40], r9",
    "call hugeswap_watched",
    "mov rdi, [rsp]",
    "mov rsi, [rsp+8]",
    "mov rdx, [rsp+16]",
    "mov rcx, [rsp+24]",
    "mov r8, [rsp+32]",
    "mov r9, [rsp+40]",
    "add rsp, 56",
    ".cfi_adjust_cfa_offset -56",
    "test eax, eax",
    "jz 1b",
    "4: mov rdi, rsi",
    "mov rsi, rdx",
    "mov rdx, rcx",
    "mov rcx, r8",
    "mov r8, r9",
    "mov r9, [rsp+8]",
    "jmp hugeswap_hook_common",
    ".cfi_endproc",
    // The program's registers are kept by what this calls; what the unwinder needs is said, because a
    // handler of a signal that comes before all are blocked, or after, may end the thread.
    "hugeswap_hook_common:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "push rbx",
    ".cfi_offset rbx, -24",
    "push r12",
    ".cfi_offset r12, -32",
    // Seven words for the hook, and the signals that the program has blocked.
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
    // rt_sigprocmask(SIG_SETMASK, all, old, 8), here: no function of ours is ever interrupted.
    "5: mov eax, 14",
    "mov edi, 2",
    "lea rsi, [rip + hugeswap_all_signals]",
    "lea rdx, [rsp+56]",
    "mov r10d, 8",
    "syscall",
    "mov rdi, rsp",
    "call hugeswap_hook_begin",
    "mov rbx, rax",
    "mov r12, rsp",
    "mov rsp, rax",
    "mov rdi, rax",
    "call hugeswap_hook_run",
    "mov rsp, r12",
    "mov rdi, rbx",
    "call hugeswap_hook_end",
    "mov rbx, rax",
    "mov eax, 14",
    "mov edi, 2",
    "lea rsi, [rsp+56]",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "mov rax, rbx",
    "1:",
    "add rsp, 64",
    "pop r12",
    "pop rbx",
    "pop rbp",
    ".cfi_remember_state",
    ".cfi_restore rbp",
    ".cfi_restore rbx",
    ".cfi_restore r12",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_restore_state",
    "2: call hugeswap_hook_plain",
    "jmp 1b",
    "6: call hugeswap_hook_delegate",
    "jmp 1b",
    ".cfi_endproc",
    ".balign 8",
    "hugeswap_all_signals: .quad -1",
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
    pub fn hugeswap_entry_process_madvise();
    pub fn hugeswap_entry_shmat();
    pub fn hugeswap_entry_shmdt();
    pub fn hugeswap_entry_unshare();
    pub fn hugeswap_entry_setns();
    pub fn hugeswap_entry_pkey_mprotect();
    pub fn hugeswap_entry_clone(
        flags: usize,
        stack: usize,
        parent_tid: usize,
        child_tid: usize,
        tls: usize,
    ) -> i64;
    pub fn hugeswap_entry_sandbox(filter: usize) -> i64;
    pub fn hugeswap_entry_release(registration: usize, refused: usize) -> i64;
    pub fn hugeswap_entry_pin(addr: usize, len: usize) -> i64;
    pub fn hugeswap_entry_thread_ends() -> i64;
    pub fn hugeswap_entry_rights(rights: usize, tid: u32) -> i64;
}
