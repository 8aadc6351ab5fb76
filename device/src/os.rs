//! The system calls of swap devices, as raw as they come: by number, because libc's wrappers are
//! cancellation points and may be interposed by the program; `Err` is the errno.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use libc::{c_int, c_long};

pub(super) type Errno = i32;

fn check(ret: c_long) -> Result<c_long, Errno> {
    if ret >= 0 {
        return Ok(ret);
    }
    // SAFETY: returns the address of this thread's errno, which always exists.
    Err(unsafe { *libc::__errno_location() })
}

/// `fd` for a system call's argument.
fn raw(fd: BorrowedFd<'_>) -> c_long {
    c_long::from(fd.as_raw_fd())
}

fn owned(ret: c_long) -> Result<OwnedFd, Errno> {
    let fd = RawFd::try_from(ret).map_err(|_| libc::EBADF)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens relative to `dir`, or to the working directory; always close-on-exec.
pub(super) fn open(
    dir: Option<BorrowedFd<'_>>,
    path: &CStr,
    flags: c_int,
    mode: libc::mode_t,
) -> Result<OwnedFd, Errno> {
    let dir = dir.map_or(c_long::from(libc::AT_FDCWD), raw);
    loop {
        // SAFETY: `path` is NUL-terminated and outlives the call.
        let ret = unsafe {
            libc::syscall(
                libc::SYS_openat,
                dir,
                path.as_ptr(),
                flags | libc::O_CLOEXEC,
                mode,
            )
        };
        match check(ret) {
            Err(libc::EINTR) => {}
            Err(errno) => return Err(errno),
            Ok(fd) => return owned(fd),
        }
    }
}

pub(super) fn unlink(dir: Option<BorrowedFd<'_>>, path: &CStr) -> Result<(), Errno> {
    let dir = dir.map_or(c_long::from(libc::AT_FDCWD), raw);
    // SAFETY: `path` is NUL-terminated and outlives the call.
    check(unsafe { libc::syscall(libc::SYS_unlinkat, dir, path.as_ptr(), 0) }).map(drop)
}

pub(super) fn memfd(name: &CStr) -> Result<OwnedFd, Errno> {
    // SAFETY: `name` is NUL-terminated and outlives the call.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_memfd_create,
            name.as_ptr(),
            libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
        )
    };
    owned(check(ret)?)
}

/// Reads into `addr..addr + len`.
///
/// # Safety
///
/// The memory is valid for writes of `len` bytes and nobody else uses it during the call.
pub(super) unsafe fn pread(
    fd: BorrowedFd<'_>,
    addr: *mut u8,
    len: usize,
    offset: u64,
) -> Result<usize, Errno> {
    // SAFETY: the caller vouches for the memory.
    check(unsafe { libc::syscall(libc::SYS_pread64, raw(fd), addr, len, offset) })
        .map(|n| n as usize)
}

/// Writes from `addr..addr + len`.
///
/// # Safety
///
/// The memory is valid for reads of `len` bytes during the call.
pub(super) unsafe fn pwrite(
    fd: BorrowedFd<'_>,
    addr: *const u8,
    len: usize,
    offset: u64,
) -> Result<usize, Errno> {
    // SAFETY: the caller vouches for the memory.
    check(unsafe { libc::syscall(libc::SYS_pwrite64, raw(fd), addr, len, offset) })
        .map(|n| n as usize)
}

pub(super) fn fallocate(
    fd: BorrowedFd<'_>,
    mode: c_int,
    offset: u64,
    len: u64,
) -> Result<(), Errno> {
    loop {
        // SAFETY: no memory is involved.
        let ret = unsafe { libc::syscall(libc::SYS_fallocate, raw(fd), mode, offset, len) };
        match check(ret) {
            Err(libc::EINTR) => {}
            other => return other.map(drop),
        }
    }
}

pub(super) fn ftruncate(fd: BorrowedFd<'_>, len: u64) -> Result<(), Errno> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::syscall(libc::SYS_ftruncate, raw(fd), len) }).map(drop)
}

pub(super) fn fstat(fd: BorrowedFd<'_>) -> Result<libc::stat, Errno> {
    fstat_number(fd.as_raw_fd())
}

fn fstat_number(fd: RawFd) -> Result<libc::stat, Errno> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills the structure, which is large enough, if it returns 0.
    unsafe {
        check(libc::syscall(
            libc::SYS_fstat,
            c_long::from(fd),
            stat.as_mut_ptr(),
        ))?;
        Ok(stat.assume_init())
    }
}

/// What a descriptor stands for: device and inode number.
pub(super) type Identity = (u64, u64);

/// What the number stands for now; it need not be open.
pub(super) fn identity(fd: RawFd) -> Result<Identity, Errno> {
    fstat_number(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

pub(super) fn fstatfs(fd: BorrowedFd<'_>) -> Result<libc::statfs, Errno> {
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel fills the structure, which is large enough, if it returns 0.
    unsafe {
        check(libc::syscall(libc::SYS_fstatfs, raw(fd), stat.as_mut_ptr()))?;
        Ok(stat.assume_init())
    }
}

/// Offset of the first data at or after `offset`; `None` when the rest of the file is a hole.
pub(super) fn seek_data(fd: BorrowedFd<'_>, offset: u64) -> Result<Option<u64>, Errno> {
    // SAFETY: no memory is involved.
    let ret = unsafe { libc::syscall(libc::SYS_lseek, raw(fd), offset, libc::SEEK_DATA) };
    match check(ret) {
        Err(libc::ENXIO) => Ok(None),
        other => other.map(|at| Some(at as u64)),
    }
}

/// Takes the exclusive lock of an open file; EWOULDBLOCK when another holds it.
pub(super) fn try_lock(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::syscall(libc::SYS_flock, raw(fd), libc::LOCK_EX | libc::LOCK_NB) })
        .map(drop)
}

pub(super) fn set_xattr(fd: BorrowedFd<'_>, name: &CStr, value: &[u8]) -> Result<(), Errno> {
    // SAFETY: name and value outlive the call, and the length is the value's.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_fsetxattr,
            raw(fd),
            name.as_ptr(),
            value.as_ptr(),
            value.len(),
            0,
        )
    };
    check(ret).map(drop)
}

pub(super) fn has_xattr(fd: BorrowedFd<'_>, name: &CStr) -> bool {
    let null = std::ptr::null_mut::<u8>();
    // SAFETY: with length 0 the kernel only reports the size and writes nothing.
    check(unsafe { libc::syscall(libc::SYS_fgetxattr, raw(fd), name.as_ptr(), null, 0_usize) })
        .is_ok()
}

/// Size of a block device in bytes.
pub(super) fn block_size_bytes(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    const BLKGETSIZE64: c_long = 0x8008_1272;
    let mut bytes = 0_u64;
    // SAFETY: this ioctl stores one u64 at the address.
    check(unsafe { libc::syscall(libc::SYS_ioctl, raw(fd), BLKGETSIZE64, &raw mut bytes) })?;
    Ok(bytes)
}

/// Logical block size of a block device.
pub(super) fn block_logical(fd: BorrowedFd<'_>) -> Result<u32, Errno> {
    const BLKSSZGET: c_long = 0x1268;
    let mut bytes: c_int = 0;
    // SAFETY: this ioctl stores one int at the address.
    check(unsafe { libc::syscall(libc::SYS_ioctl, raw(fd), BLKSSZGET, &raw mut bytes) })?;
    Ok(bytes.unsigned_abs())
}

pub(super) fn block_discard(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    const BLKDISCARD: c_long = 0x1277;
    let range = [offset, len];
    // SAFETY: this ioctl reads two u64 at the address.
    check(unsafe { libc::syscall(libc::SYS_ioctl, raw(fd), BLKDISCARD, range.as_ptr()) }).map(drop)
}

/// Alignment direct I/O demands of offsets and memory; `None` where the kernel does not say,
/// `Some(0)` where it refuses direct I/O.
pub(super) fn direct_alignment(fd: BorrowedFd<'_>) -> Option<u32> {
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH;
    // SAFETY: the path is empty and NUL-terminated; the kernel fills the structure, which is
    // large enough and was zeroed.
    let stat = unsafe {
        check(libc::syscall(
            libc::SYS_statx,
            raw(fd),
            c"".as_ptr(),
            flags,
            libc::STATX_DIOALIGN,
            stat.as_mut_ptr(),
        ))
        .ok()?;
        stat.assume_init()
    };
    if stat.stx_mask & libc::STATX_DIOALIGN == 0 {
        return None;
    }
    if stat.stx_dio_offset_align == 0 {
        return Some(0);
    }
    Some(stat.stx_dio_offset_align.max(stat.stx_dio_mem_align))
}

pub(super) fn random(bytes: &mut [u8]) -> Result<(), Errno> {
    // SAFETY: the kernel writes at most the slice's length.
    let ret = unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) };
    match check(ret)? as usize {
        n if n == bytes.len() => Ok(()),
        _ => Err(libc::EIO),
    }
}

pub(super) fn effective_uid() -> libc::uid_t {
    // SAFETY: always succeeds, touches no memory.
    unsafe { libc::geteuid() }
}

/// Sleeps; a signal may end it early.
pub(super) fn sleep_micros(micros: u32) {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: i64::from(micros.min(999_999)) * 1000,
    };
    let null = std::ptr::null_mut::<libc::timespec>();
    // SAFETY: `time` outlives the call; a null remainder is allowed.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, null) };
}

/// Fills the whole slice.
pub(super) fn pread_slice(fd: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> Result<(), Errno> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        // SAFETY: the memory is the slice's, borrowed for us alone.
        match unsafe { pread(fd, rest.as_mut_ptr(), rest.len(), offset + done as u64) } {
            Ok(0) => return Err(libc::EIO),
            Ok(n) => done += n,
            Err(libc::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Writes the whole slice.
pub(super) fn pwrite_slice(fd: BorrowedFd<'_>, buffer: &[u8], offset: u64) -> Result<(), Errno> {
    let mut done = 0;
    while let Some(rest) = buffer.get(done..).filter(|rest| !rest.is_empty()) {
        // SAFETY: the memory is the slice's.
        match unsafe { pwrite(fd, rest.as_ptr(), rest.len(), offset + done as u64) } {
            Ok(0) => return Err(libc::EIO),
            Ok(n) => done += n,
            Err(libc::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Waits until what was written is on the medium.
pub(super) fn sync_data(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::syscall(libc::SYS_fdatasync, raw(fd)) }).map(drop)
}

/// Whether the kernel refuses writes to a block device, however it was opened.
pub(super) fn block_is_read_only(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    const BLKROGET: c_long = 0x125e;
    let mut answer: c_int = 0;
    // SAFETY: this ioctl stores one int at the address.
    check(unsafe { libc::syscall(libc::SYS_ioctl, raw(fd), BLKROGET, &raw mut answer) })?;
    Ok(answer != 0)
}

/// The flags of an open file (`O_DIRECT`, ...).
pub(super) fn status_flags(fd: BorrowedFd<'_>) -> Result<c_int, Errno> {
    // SAFETY: no memory is involved.
    let flags = check(unsafe { libc::syscall(libc::SYS_fcntl, raw(fd), libc::F_GETFL) })?;
    Ok(flags as c_int)
}

pub(super) fn set_status_flags(fd: BorrowedFd<'_>, flags: c_int) -> Result<(), Errno> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::syscall(libc::SYS_fcntl, raw(fd), libc::F_SETFL, flags) }).map(drop)
}

/// Forbids changing the length of a memory file from now on.
pub(super) fn seal_size(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: no memory is involved.
    check(unsafe { libc::syscall(libc::SYS_fcntl, raw(fd), libc::F_ADD_SEALS, seals) }).map(drop)
}

/// Maps `len` bytes of a file from its start, readable, writable and shared; at an address if that is not 0.
///
/// # Safety
///
/// What is at that address must be nobody's.
pub(super) unsafe fn map_shared(
    fd: BorrowedFd<'_>,
    len: usize,
    at: usize,
) -> Result<*mut u8, Errno> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | fixed;
    // SAFETY: the caller's contract; a new mapping at a place the kernel chooses disturbs nothing.
    let ret = unsafe { libc::syscall(libc::SYS_mmap, at, len, prot, flags, raw(fd), 0_usize) };
    check(ret).map(|addr| std::ptr::with_exposed_provenance_mut(addr as usize))
}

/// # Safety
///
/// The range is a mapping of the caller's that nobody uses any more.
pub(super) unsafe fn unmap(addr: *mut u8, len: usize) {
    // SAFETY: the caller vouches for it. It can't fail in a way that matters.
    unsafe { libc::syscall(libc::SYS_munmap, addr, len) };
}

/// # Safety
///
/// The range is part of a mapping of the caller's, and what the advice does to its data is
/// intended.
pub(super) unsafe fn advise(addr: *mut u8, len: usize, advice: c_int) -> Result<(), Errno> {
    // SAFETY: the caller vouches for it.
    check(unsafe { libc::syscall(libc::SYS_madvise, addr, len, advice) }).map(drop)
}

pub(super) fn epoll() -> Result<OwnedFd, Errno> {
    // SAFETY: no memory is involved.
    owned(check(unsafe {
        libc::syscall(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC)
    })?)
}

/// Has `epoll` watch `fd` for being readable.
pub(super) fn epoll_add(epoll: BorrowedFd<'_>, fd: RawFd) -> Result<(), Errno> {
    let event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: 0,
    };
    let add = libc::EPOLL_CTL_ADD;
    // SAFETY: the event outlives the call.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_epoll_ctl,
            raw(epoll),
            add,
            c_long::from(fd),
            &raw const event,
        )
    };
    check(ret).map(drop)
}

pub(super) fn eventfd() -> Result<OwnedFd, Errno> {
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    // SAFETY: no memory is involved.
    owned(check(unsafe {
        libc::syscall(libc::SYS_eventfd2, 0, flags)
    })?)
}

/// Makes an eventfd readable, or not.
pub(super) fn eventfd_set(fd: BorrowedFd<'_>, on: bool) {
    let mut count = 0_u64;
    // Drained first, so that it never overflows.
    // SAFETY: an eventfd reads and writes exactly one u64.
    unsafe { libc::syscall(libc::SYS_read, raw(fd), &raw mut count, 8_usize) };
    if on {
        count = 1;
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_write, raw(fd), &raw const count, 8_usize) };
    }
}
