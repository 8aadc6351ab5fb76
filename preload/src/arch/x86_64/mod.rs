//! x86-64.

mod entry;
mod plain;

use core::arch::asm;
use core::ffi::c_void;
use hugeswap::sys::arch::thread_pointer;
use hugeswap::sys::syscall::raw;

/// Where glibc keeps the thread's number, from the thread pointer. Checked at start.
pub const TID: usize = 0x2d0;
/// And the head of its robust mutexes.
pub const ROBUST_HEAD: usize = TID + 16;

/// Where glibc's structure of the calling thread begins: at the thread pointer.
pub fn thread_structure() -> usize {
    thread_pointer()
}

/// The number of the calling thread that glibc keeps. Read from the thread pointer itself: what a thread has
/// at its start that the program has made is the program's.
pub fn thread_number() -> u32 {
    let tid: u32;
    // SAFETY: reads thread-local memory at an offset where the entries of hooks have read before.
    unsafe { asm!("mov {:e}, fs:[{}]", out(reg) tid, const TID, options(nostack, readonly)) };
    tid
}

/// AUDIT_ARCH_X86_64.
pub const AUDIT: u32 = 0xc000_003e;

/// In the first 2 GiB, which the window is not.
pub const MAP_SPECIAL: i32 = libc::MAP_32BIT;

/// The system call `clone` takes flags, stack, parent_tid, child_tid, tls.
pub const CLONE_CHILD_TID: usize = 3;

/// The bytes of [`jump_to`].
pub const JUMP: usize = 16;

/// `jmp [rip+2]`, two bytes that nobody runs, and the address, which is aligned as functions are: the program may
/// want a signal for what is not.
pub fn jump_to(to: usize) -> [u8; JUMP] {
    let mut code = [0xccu8; JUMP];
    code[..6].copy_from_slice(&[0xff, 0x25, 2, 0, 0, 0]);
    code[8..].copy_from_slice(&to.to_le_bytes());
    code
}

/// The system call fork, as it is.
///
/// # Safety
/// The child goes on here too, with this thread alone: nothing may wait for another there.
pub unsafe fn fork() -> i64 {
    // SAFETY: the caller's contract; it has no arguments.
    unsafe { raw(libc::SYS_fork, [0; 6]) }
}

extern "C" {
    fn hugeswap_entry_clone(
        flags: usize,
        stack: usize,
        parent_tid: usize,
        child_tid: usize,
        tls: usize,
    ) -> i64;
}

/// `clone` by its hook, without another stack.
///
/// # Safety
/// As clone(2), without CLONE_VM: the child goes on here with a copy of this stack.
pub unsafe fn clone(flags: usize, parent_tid: usize, child_tid: usize, tls: usize) -> i64 {
    // SAFETY: the entry of a hook; the caller's contract.
    unsafe { hugeswap_entry_clone(flags, 0, parent_tid, child_tid, tls) }
}

/// Goes on with `body` at the end of another stack, and ends the process with what it returns.
///
/// # Safety
/// `stack` is the end of memory that is large enough for `body`, and nobody else's. What is on this stack is
/// never dropped.
pub unsafe fn run_on(
    stack: *mut c_void,
    body: unsafe extern "C" fn(*mut c_void) -> i32,
    arg: *mut c_void,
) -> ! {
    // SAFETY: the caller's contract. The stack is aligned as the ABI wants it at a call, and nothing of the
    // old one is used any more: `body` may return, `_exit` does not.
    unsafe {
        asm!(
            "mov rsp, {stack}",
            "xor ebp, ebp",
            "call {body}",
            "mov edi, eax",
            "call {exit}",
            "ud2",
            stack = in(reg) stack as usize & !15,
            body = in(reg) body,
            exit = sym libc::_exit,
            in("rdi") arg,
            options(noreturn)
        )
    }
}
