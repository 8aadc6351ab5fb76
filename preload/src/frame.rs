//! A call on its way to a hook and back: which it is, with what, and what comes of it.

use hugeswap::sys::Errno;

/// What comes of a call.
pub type Result<T> = core::result::Result<T, Errno>;

/// Which function of the C library was called, or what else is asked for.
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
pub const MINCORE: usize = 27;
/// The supervisor is to get a socket.
pub const DOOR: usize = 28;
/// brk by syscall(2), which says where the break is.
pub const BRK_BY_NUMBER: usize = 29;
/// mseal and mbind, by syscall(2): what lies there is asked of the kernel.
pub const MSEAL: usize = 30;
pub const MBIND: usize = 31;

/// What a call gives that is to begin again when the program's signals have been let in: the kernel's ERESTARTNOINTR, which
/// no call of the kernel's gives.
pub const RESTART: i64 = -513;
/// The same to the entry. No result is that.
pub const BEGIN_AGAIN: i64 = i64::MIN;

/// A call, on the hook's stack.
#[repr(C)]
pub struct Frame {
    pub args: [usize; 6],
    pub call: usize,
    /// What the call returns, `-errno` on failure.
    pub result: i64,
    /// The call is none of ours: it is made as it is, once the hook is over.
    pub direct: bool,
    /// Which of the stacks it is on.
    pub index: usize,
    /// Where the program goes on after it; 0 where that is not known.
    pub caller: usize,
    /// The signals that the program has blocked, a bit to each; all, where that is not known.
    pub blocked: u64,
    /// How often the call began again, for signals.
    pub begun_again: usize,
}

impl Frame {
    /// Of a hook on the stack `index`.
    pub fn new(call: usize, args: [usize; 6], index: usize) -> Frame {
        Frame {
            args,
            call,
            result: 0,
            direct: false,
            index,
            caller: 0,
            blocked: !0,
            begun_again: 0,
        }
    }

    /// The hook's doorbell.
    pub fn bell(&self) -> usize {
        self.index
    }
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
