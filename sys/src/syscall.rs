//! One system call, without the C library.

pub use crate::arch::raw;
pub use crate::borrowed::{borrow, BORROWED};

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

/// Repeats a call for as long as signals interrupt it.
pub fn uninterrupted<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            result => return result,
        }
    }
}

/// This thread's number.
pub fn gettid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_gettid, []) }.unwrap_or(0) as u32
}
