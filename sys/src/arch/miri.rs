//! System calls under Miri, which runs no instructions of the processor: the few that the tables of the pure rooms
//! need, by the C library's functions, which Miri has.

use core::ptr;

/// As the other `raw`; what is not here is refused (ENOSYS).
///
/// # Safety
/// The caller's contract with the kernel.
pub unsafe fn raw(nr: i64, a: [usize; 6]) -> i64 {
    let addr = ptr::with_exposed_provenance_mut::<u8>(a[0]);
    // SAFETY: passed on.
    unsafe {
        match nr {
            libc::SYS_mmap => mmap(a),
            libc::SYS_munmap => libc::munmap(addr.cast(), a[1]).into(),
            libc::SYS_madvise if a[2] == libc::MADV_DONTNEED as usize => {
                ptr::write_bytes(addr, 0, a[1]);
                0
            }
            libc::SYS_madvise | libc::SYS_mprotect => 0,
            libc::SYS_futex => libc::syscall(nr, addr, a[1], a[2], a[3]),
            libc::SYS_gettid => std::process::id().into(),
            _ => (-libc::ENOSYS).into(),
        }
    }
}

/// Where the interpreter likes, readable and writable.
///
/// # Safety
/// Passed on.
unsafe fn mmap(a: [usize; 6]) -> i64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    if a[3] as i32 & flags != flags {
        return (-libc::ENOSYS).into();
    }
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller's contract.
    match unsafe { libc::mmap(ptr::null_mut(), a[1], rw, flags, -1, 0) } {
        libc::MAP_FAILED => (-libc::ENOMEM).into(),
        at => at.expose_provenance() as i64,
    }
}
