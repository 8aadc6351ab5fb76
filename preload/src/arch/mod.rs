//! What a processor's instructions, registers and calling conventions decide, and how the C library lays
//! out a thread on it: one folder each, and nothing of it outside this folder.
//!
//! | what | why |
//! |---|---|
//! | the functions `hugeswap_entry_...` below | from a call of the C library into a hook: the registers kept, signals blocked, another stack |
//! | `jump_to`, `JUMP` | what a function of the C library begins with when it is ours |
//! | `clone`, `run_on` | a child of `clone`, which goes on with a stack of its own |
//! | `CLONE_CHILD_TID` | the order of the system call's arguments is not everywhere the same |
//! | `fork` | a system call here, and not everywhere |
//! | `TID`, `ROBUST_HEAD`, `thread_number`, `thread_structure` | where the C library keeps what the kernel is told of a thread |
//! | `AUDIT` | how filters of system calls name the processor |
//! | `plain` | names of the C library's functions that lead to system calls, for this library's own code |
//! | `MAP_SPECIAL` | flags of `mmap` that only this processor has |

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{
    clone, fork, jump_to, run_on, thread_number, thread_structure, AUDIT, CLONE_CHILD_TID, JUMP,
    MAP_SPECIAL, ROBUST_HEAD, TID,
};

#[cfg(not(target_arch = "x86_64"))]
compile_error!(
    "this processor has no folder beside `arch/x86_64` yet: the table above says what it needs"
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
    pub fn hugeswap_entry_mincore();
    pub fn hugeswap_entry_syscall();
    pub fn hugeswap_entry_process_madvise();
    pub fn hugeswap_entry_shmat();
    pub fn hugeswap_entry_shmdt();
    pub fn hugeswap_entry_unshare();
    pub fn hugeswap_entry_setns();
    pub fn hugeswap_entry_pkey_mprotect();
    pub fn hugeswap_entry_sandbox(filter: usize, refused: usize) -> i64;
    pub fn hugeswap_entry_release(registration: usize, refused: usize) -> i64;
    pub fn hugeswap_entry_pin(addr: usize, len: usize) -> i64;
    pub fn hugeswap_entry_door(socket: i32, inode: u64) -> i64;
    pub fn hugeswap_entry_thread_ends() -> i64;
    pub fn hugeswap_entry_rights(rights: usize, tid: u32) -> i64;
}
