//! x86-64.

use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::arch::{asm, global_asm};

/// The TLS vector, from the thread pointer: two words to each entry, the first its length.
const DTV: usize = 8 << 10;
const DTV_LEN: usize = 500;

/// The instruction of a system call, and a return.
pub const CALL_AND_RETURN: [u8; 3] = [0x0f, 0x05, 0xc3];

/// The system call `nr`, result as the kernel gave it (`-errno` on failure).
///
/// # Safety
/// As the system call: pointers must be valid for what the call does with them, and mappings
/// that Rust code relies on must not be changed under it.
#[cfg(not(miri))]
#[inline]
pub unsafe fn raw(nr: i64, a: [usize; 6]) -> i64 {
    let ret: i64;
    let borrowed = crate::borrowed::BORROWED.load(core::sync::atomic::Ordering::Relaxed);
    if borrowed != 0 {
        // SAFETY: as below. What is called is `CALL_AND_RETURN` (see `borrow`), which leaves the stack as it was.
        unsafe {
            asm!(
                "call {borrowed}",
                borrowed = in(reg) borrowed,
                inlateout("rax") nr => ret,
                in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
                in("r10") a[3], in("r8") a[4], in("r9") a[5],
                lateout("rcx") _, lateout("r11") _,
            );
        }
        return ret;
    }
    // SAFETY: the kernel's x86-64 calling convention; it clobbers rcx and r11 only. What the
    // call itself does is the caller's contract.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr => ret,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    ret
}

global_asm!(
    ".global hugeswap_clone_thread",
    ".hidden hugeswap_clone_thread",
    "hugeswap_clone_thread:",
    // rdi flags, rsi stack top (entry and argument stored there), rdx tls
    "mov r8, rdx",
    "xor edx, edx",
    "xor r10d, r10d",
    "mov eax, 56",
    "syscall",
    "test rax, rax",
    "jnz 2f",
    "xor ebp, ebp",
    // What the program's thread has set of its own is not for this one: exceptions of floating point that it
    // wants to see, another rounding, single steps, alignment checks.
    "push 2",
    "popfq",
    "fninit",
    "ldmxcsr [rip + hugeswap_mxcsr]",
    // Where the program was is none of its business: chdir("/"). The file system there stays free.
    "mov eax, 80",
    "lea rdi, [rip + hugeswap_root]",
    "syscall",
    "pop rax",
    "pop rdi",
    "call rax",
    "mov eax, 60",
    "xor edi, edi",
    "syscall",
    "ud2",
    "2: ret",
    ".balign 4",
    "hugeswap_mxcsr: .long 0x1f80",
    "hugeswap_root: .asciz \"/\"",
);

extern "C" {
    fn hugeswap_clone_thread(flags: usize, stack: *mut usize, tls: *mut u8) -> i64;
}

/// Makes a thread by `clone`, whose result this is; it goes on with what [`lay_stack`] has left for it.
///
/// # Safety
/// `stack` is from [`lay_stack`], `tls` has been through [`lay_thread_block`], and both stay mapped as
/// long as the thread is there. `flags` name a thread, and the signals that may not reach it are blocked.
pub unsafe fn clone_thread(flags: usize, stack: *mut usize, tls: *mut u8) -> i64 {
    // SAFETY: passed on. The caller's own registers are as the ABI wants them.
    unsafe { hugeswap_clone_thread(flags, stack, tls) }
}

/// Leaves entry and argument at the top of a new thread's stack, and returns where it begins.
///
/// # Safety
/// `end` is the end of a stack that nobody uses, aligned to 16 bytes.
pub unsafe fn lay_stack(end: *mut u8, entry: extern "C" fn(*mut u8), arg: *mut u8) -> *mut usize {
    // SAFETY: inside the stack. The entry is popped at 16-byte alignment, so that the call leaves the ABI's.
    unsafe {
        let top = (end as *mut usize).sub(4);
        top.write(entry as usize);
        top.add(1).write(arg as usize);
        top
    }
}

/// Lays out the thread control block at `tp`, as a C library that does not know the thread wants it.
///
/// # Safety
/// From `tp` on there are 16 KiB that nobody uses.
pub unsafe fn lay_thread_block(tp: *mut u8) {
    // SAFETY: inside these.
    unsafe {
        // Self pointers at 0 and 16, as x86-64 TLS wants them.
        (tp as *mut usize).write(tp as usize);
        (tp as *mut usize).add(2).write(tp as usize);
        // A TLS vector with room for every module, so that looking up a variable of ours (a panic
        // does) makes the C library fill it in rather than allocate a larger one.
        let dtv = (tp as *mut usize).byte_add(DTV);
        dtv.write(DTV_LEN);
        (tp as *mut usize).add(1).write(dtv.add(2) as usize);
    }
}

/// The address of the calling thread's control block.
#[inline]
pub fn thread_pointer() -> usize {
    let tp: usize;
    // SAFETY: reads the word that x86-64 TLS keeps at the thread pointer: its own address.
    unsafe { asm!("mov {}, fs:0x10", out(reg) tp, options(nostack, readonly)) };
    tp
}

/// Lets the calling thread read and write memory of every protection key.
pub fn open_all_keys() {
    // SAFETY: every x86-64 processor has the instruction. Newer compilers know that by themselves.
    #[allow(unused_unsafe)]
    let leaf = |leaf| unsafe {
        match __cpuid(0).eax >= leaf {
            true => __cpuid_count(leaf, 0).ecx,
            false => 0,
        }
    };
    // The operating system uses the keys.
    let has_keys = leaf(7) & 1 << 4 != 0;
    if has_keys {
        // SAFETY: the processor has the instruction; it changes what this thread may reach, and no memory.
        unsafe {
            asm!("wrpkru", in("eax") 0, in("ecx") 0, in("edx") 0, options(nostack, preserves_flags))
        };
    }
}

/// Whether qemu carries out this program's instructions, and its system calls. (qemu as a machine says the same of its processor, but
/// there a kernel knows all system calls.)
#[cfg(not(miri))]
pub fn is_emulated() -> bool {
    // SAFETY: every x86-64 processor has the instruction. Newer compilers know that by themselves.
    #[allow(unused_unsafe)]
    let said = unsafe { __cpuid(0x4000_0000) };
    let name = [b"TCGT", b"CGTC", b"GTCG"].map(|part| u32::from_le_bytes(*part));
    // SAFETY: no flags are like that: it does nothing.
    let unknown = || unsafe { raw(libc::SYS_userfaultfd, [usize::MAX, 0, 0, 0, 0, 0]) };
    [said.ebx, said.ecx, said.edx] == name && unknown() == i64::from(-libc::ENOSYS)
}
