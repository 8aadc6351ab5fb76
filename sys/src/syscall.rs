//! One system call, without the C library.

use core::arch::asm;

/// An error number as the kernel returned it. It is turned into a meaning where it is received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl Errno {
    pub const EPERM: Errno = Errno(libc::EPERM);
    pub const EINTR: Errno = Errno(libc::EINTR);
    pub const EAGAIN: Errno = Errno(libc::EAGAIN);
    pub const ENOENT: Errno = Errno(libc::ENOENT);
    pub const EBUSY: Errno = Errno(libc::EBUSY);
    pub const EEXIST: Errno = Errno(libc::EEXIST);
    pub const EINVAL: Errno = Errno(libc::EINVAL);
    pub const ESRCH: Errno = Errno(libc::ESRCH);
    pub const EFAULT: Errno = Errno(libc::EFAULT);
    pub const ENOMEM: Errno = Errno(libc::ENOMEM);
    pub const EBADF: Errno = Errno(libc::EBADF);
}

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

/// Splits the kernel's return value.
pub fn check(ret: i64) -> Result<usize, Errno> {
    if (-4095..0).contains(&ret) {
        Err(Errno(-ret as i32))
    } else {
        Ok(ret as usize)
    }
}

/// The system call `nr`, result as the kernel gave it (`-errno` on failure).
///
/// # Safety
/// As the system call: pointers must be valid for what the call does with them, and mappings
/// that Rust code relies on must not be changed under it.
#[inline]
pub unsafe fn raw(nr: i64, a: [usize; 6]) -> i64 {
    let ret: i64;
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

/// The system call `nr` with up to six arguments.
///
/// # Safety
/// See [`raw`].
#[inline]
pub unsafe fn syscall<const N: usize>(nr: i64, args: [usize; N]) -> Result<usize, Errno> {
    let mut a = [0usize; 6];
    a[..N].copy_from_slice(&args);
    // SAFETY: passed on.
    check(unsafe { raw(nr, a) })
}
