//! x86-64.
#![allow(unsafe_code)]

use core::arch::global_asm;

global_asm!(
    ".global difftest_probe_read",
    "difftest_probe_read: mov al, byte ptr [rdi]",
    "mov eax, 0",
    "ret",
    ".global difftest_probe_write",
    "difftest_probe_write: mov byte ptr [rdi], 0",
    "mov eax, 0",
    "ret",
    ".global difftest_probe_failed",
    "difftest_probe_failed: mov eax, 1",
    "ret",
);

/// Where the signal came.
///
/// # Safety
/// `context` is what the kernel gave the signal's handler, which has not returned.
pub unsafe fn instruction(context: *mut libc::c_void) -> usize {
    // SAFETY: the kernel's own structure.
    unsafe {
        (*(context as *mut libc::ucontext_t)).uc_mcontext.gregs[libc::REG_RIP as usize] as usize
    }
}

/// What was interrupted goes on there.
///
/// # Safety
/// As [`instruction`]; and the code at `at` may run with the registers as they are.
pub unsafe fn go_on_at(context: *mut libc::c_void, at: usize) {
    // SAFETY: the kernel's own structure.
    unsafe {
        (*(context as *mut libc::ucontext_t)).uc_mcontext.gregs[libc::REG_RIP as usize] = at as i64;
    }
}
