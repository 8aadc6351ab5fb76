//! Functions of the C library as this library itself calls them, and the crates that it is made of: system calls and nothing
//! else. Others lay theirs over the C library's (tracers, MPI's transports) or before them (`LD_PRELOAD`), and these
//! expect a thread of the C library's. The engine's threads are none.
//!
//! The names are hidden: they stand for the C library's in this library alone.

use core::arch::global_asm;
use core::ffi::{c_char, c_int, c_void};
use hugeswap::sys::syscall::syscall;

global_asm!(
    ".macro hugeswap_plain name, to",
    ".global \\name",
    ".hidden \\name",
    ".type \\name, @function",
    "\\name: jmp \\to",
    ".endm",
    "hugeswap_plain mmap, {mmap}",
    "hugeswap_plain mmap64, {mmap}",
    "hugeswap_plain munmap, {munmap}",
    "hugeswap_plain madvise, {madvise}",
    "hugeswap_plain read, {read}",
    "hugeswap_plain write, {write}",
    "hugeswap_plain writev, {writev}",
    "hugeswap_plain close, {close}",
    "hugeswap_plain lseek64, {lseek}",
    "hugeswap_plain readlink, {readlink}",
    "hugeswap_plain syscall, {any}",
    mmap = sym plain_mmap,
    munmap = sym plain_munmap,
    madvise = sym plain_madvise,
    read = sym plain_read,
    write = sym plain_write,
    writev = sym plain_writev,
    close = sym plain_close,
    lseek = sym plain_lseek,
    readlink = sym plain_readlink,
    any = sym plain_syscall,
);

/// The call, and errno where it fails.
///
/// # Safety
/// As of the system call.
unsafe fn call<const N: usize>(number: i64, args: [usize; N]) -> isize {
    // SAFETY: passed on.
    match unsafe { syscall(number, args) } {
        Ok(n) => n as isize,
        Err(e) => {
            // SAFETY: this thread's own.
            unsafe { *libc::__errno_location() = e.0 };
            -1
        }
    }
}

unsafe extern "C" fn plain_mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> isize {
    let (prot, flags) = (prot as usize, flags as usize);
    let args = [
        addr as usize,
        len,
        prot,
        flags,
        fd as usize,
        offset as usize,
    ];
    // SAFETY: the caller's affair.
    unsafe { call(libc::SYS_mmap, args) }
}

unsafe extern "C" fn plain_munmap(addr: *mut c_void, len: usize) -> c_int {
    // SAFETY: the caller's affair.
    unsafe { call(libc::SYS_munmap, [addr as usize, len]) as c_int }
}

unsafe extern "C" fn plain_madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: the caller's affair.
    unsafe { call(libc::SYS_madvise, [addr as usize, len, advice as usize]) as c_int }
}

unsafe extern "C" fn plain_read(fd: c_int, to: *mut c_void, len: usize) -> isize {
    // SAFETY: the caller's affair.
    unsafe { call(libc::SYS_read, [fd as usize, to as usize, len]) }
}

unsafe extern "C" fn plain_write(fd: c_int, from: *const c_void, len: usize) -> isize {
    // SAFETY: the caller's affair.
    unsafe { call(libc::SYS_write, [fd as usize, from as usize, len]) }
}

unsafe extern "C" fn plain_writev(fd: c_int, parts: *const libc::iovec, n: c_int) -> isize {
    // SAFETY: the caller's affair.
    unsafe { call(libc::SYS_writev, [fd as usize, parts as usize, n as usize]) }
}

unsafe extern "C" fn plain_close(fd: c_int) -> c_int {
    // SAFETY: the caller's affair.
    unsafe { call(libc::SYS_close, [fd as usize]) as c_int }
}

unsafe extern "C" fn plain_lseek(fd: c_int, offset: i64, whence: c_int) -> i64 {
    let args = [fd as usize, offset as usize, whence as usize];
    // SAFETY: the caller's affair.
    unsafe { call(libc::SYS_lseek, args) as i64 }
}

unsafe extern "C" fn plain_readlink(path: *const c_char, to: *mut c_char, len: usize) -> isize {
    // SAFETY: the caller's affair.
    unsafe { call(libc::SYS_readlink, [path as usize, to as usize, len]) }
}

unsafe extern "C" fn plain_syscall(
    number: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    // SAFETY: the caller's affair.
    unsafe { call(number, [a, b, c, d, e, f]) }
}
