//! The system calls that the standard library has no name for. All `unsafe`
//! of the command is here and in the benchmark's mapping.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "path with a zero byte"))
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

pub fn is_root() -> bool {
    // SAFETY: geteuid has no arguments and can't fail.
    unsafe { libc::geteuid() == 0 }
}

/// May this process create files in `dir`? By its effective user, as open
/// would decide.
pub fn is_writable(dir: &Path) -> bool {
    let Ok(path) = c_path(dir) else { return false };
    // SAFETY: `path` is a C string that outlives the call.
    unsafe {
        libc::faccessat(
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::W_OK | libc::X_OK,
            libc::AT_EACCESS,
        ) == 0
    }
}

/// Of linux/magic.h.
const RAMFS_MAGIC: libc::__fsword_t = 0x8584_58f6;

/// On tmpfs or ramfs, where swapping out would free nothing.
pub fn is_memory_backed(path: &Path) -> io::Result<bool> {
    let c = c_path(path)?;
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `c` is a C string, `stat` is large enough and only read if the
    // call succeeded.
    let kind = unsafe {
        check(libc::statfs(c.as_ptr(), stat.as_mut_ptr()))?;
        stat.assume_init().f_type
    };
    Ok(kind == libc::TMPFS_MAGIC || kind == RAMFS_MAGIC)
}

/// MemAvailable: what can be used without swapping.
pub fn available_memory() -> Option<u64> {
    meminfo("MemAvailable:")
}

/// Of the machine.
pub fn total_memory() -> Option<u64> {
    meminfo("MemTotal:")
}

fn meminfo(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kilobytes * 1024)
}

/// Bytes of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    /// For an unprivileged user.
    pub free: u64,
}

/// Of the file system of `path`.
pub fn space(path: &Path) -> io::Result<Space> {
    let c = c_path(path)?;
    let mut stat = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: as in `is_memory_backed`.
    let stat = unsafe {
        check(libc::statvfs(c.as_ptr(), stat.as_mut_ptr()))?;
        stat.assume_init()
    };
    Ok(Space {
        total: stat.f_blocks * stat.f_frsize,
        free: stat.f_bavail * stat.f_frsize,
    })
}

/// Free bytes on the file system of `path`, for an unprivileged user.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    space(path).map(|space| space.free)
}

/// Reserves `len` bytes at the start of `file`.
pub fn allocate(file: &File, len: u64) -> io::Result<()> {
    let len = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) })
}

/// An anonymous file of memory (the same pages as tmpfs), closed on exec.
pub fn memory_file(name: &str) -> io::Result<File> {
    let name = CString::new(name).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: `name` is a C string; on success the descriptor is ours alone.
    unsafe {
        let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC);
        check(fd)?;
        Ok(File::from_raw_fd(fd))
    }
}

/// As `memory_file`, of so many bytes, and can be sealed.
pub fn sized_memory_file(name: &str, bytes: u64) -> io::Result<File> {
    let name = CString::new(name).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: `name` is a C string; on success the descriptor is ours alone.
    let file = unsafe {
        let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        check(fd)?;
        File::from_raw_fd(fd)
    };
    file.set_len(bytes)?;
    Ok(file)
}

/// What nobody can change any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seal {
    Size,
    /// Nor the content, but by mappings that are there already.
    SizeAndContent,
}

pub fn seal(file: &File, what: Seal) -> io::Result<()> {
    let content = match what {
        Seal::Size => 0,
        Seal::SizeAndContent => libc::F_SEAL_FUTURE_WRITE,
    };
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL | content;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })
}

/// As `memory_file`, of a size that nobody can change.
pub fn sealed_memory_file(name: &str, bytes: u64) -> io::Result<File> {
    let file = sized_memory_file(name, bytes)?;
    seal(&file, Seal::Size)?;
    Ok(file)
}

/// Of linux/swap.h.
const SWAP_FLAG_PREFER: libc::c_int = 0x8000;
const SWAP_FLAG_PRIO_MASK: libc::c_int = 0x7fff;

/// Turns swap on at `path`, preferred to what is on already.
pub fn swap_on(path: &Path, priority: u16) -> io::Result<()> {
    let path = c_path(path)?;
    let flags = SWAP_FLAG_PREFER | (libc::c_int::from(priority) & SWAP_FLAG_PRIO_MASK);
    // SAFETY: `path` is a C string that outlives the call.
    check(unsafe { libc::swapon(path.as_ptr(), flags) })
}

/// Turns swap off at `path`, which reads everything back. A pending signal
/// interrupts the kernel here; that must not leave swap on.
pub fn swap_off(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    loop {
        // SAFETY: `path` is a C string that outlives the call.
        match check(unsafe { libc::swapoff(path.as_ptr()) }) {
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// The number of a loop device that nobody uses at this moment.
pub fn loop_free_number(control: &File) -> io::Result<u32> {
    // SAFETY: this ioctl takes no argument.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    check(number)?;
    Ok(number as u32)
}

/// Puts `backing` behind the loop device. It detaches by itself when the last
/// user closes it, also after a kill.
pub fn loop_attach(device: &File, backing: &File) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid value of these integers and arrays.
    let mut config: LoopConfig = unsafe { std::mem::zeroed() };
    config.fd = backing.as_raw_fd() as u32;
    config.block_size = 4096;
    config.info.flags = LO_FLAGS_AUTOCLEAR;
    // SAFETY: the kernel reads one loop_config, which outlives the call.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) })
}

/// Kills with SIGKILL. A process that is gone is no error.
pub fn kill(pid: i32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    match check(unsafe { libc::kill(pid, libc::SIGKILL) }) {
        Err(err) if err.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}

/// Files that become larger than this process may write are an error, and not its end.
pub fn ignore_file_size_signal() {
    // SAFETY: no memory is passed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Leaves the terminal's process group, so that Ctrl-C goes to the parent
/// alone.
pub fn new_session() -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::setsid() })
}

/// Which of `fds` can be read or has ended; all false after `timeout`.
pub fn wait_readable<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    timeout: Duration,
) -> io::Result<[bool; N]> {
    let mut polled = fds.map(|fd| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    let millis = timeout.as_millis().min(i32::MAX as u128) as i32;
    // SAFETY: the array has N elements and outlives the call.
    match check(unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, millis) }) {
        Err(err) if err.kind() != io::ErrorKind::Interrupted => Err(err),
        // After a signal revents is undefined; the caller asks again.
        Err(_) => Ok([false; N]),
        Ok(()) => Ok(polled.map(|fd| fd.revents != 0)),
    }
}

/// The child joins a group by writing to `procs` (its `cgroup.procs`) between
/// fork and exec, so that all of its memory is charged there; it gets a process
/// group of its own, so that Ctrl-C reaches only the parent, which kills it.
pub fn spawn_inside(command: &mut Command, procs: OwnedFd) {
    command.process_group(0);
    // SAFETY: the closure only calls write, which is safe after fork; the
    // descriptor was opened before and lives as long as the closure.
    unsafe {
        command.pre_exec(move || {
            let me = b"0\n";
            let written = libc::write(procs.as_raw_fd(), me.as_ptr().cast(), me.len());
            if written == me.len() as isize {
                Ok(())
            } else {
                Err(io::Error::last_os_error())
            }
        });
    }
}

/// It is killed when this process is.
pub fn kill_with_me(command: &mut Command) {
    let me = std::process::id() as i32;
    // SAFETY: the closure only calls prctl and getppid, which are safe after fork.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            match libc::getppid() == me {
                true => Ok(()),
                false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            }
        });
    }
}

/// Kills a program that was started as the first of a process group, and the others of that group.
pub fn kill_process_group(first: &mut Child) -> io::Result<()> {
    if first.try_wait()?.is_some() {
        // Its number may be another's by now.
        return Ok(());
    }
    // SAFETY: no memory is passed. Until it is waited for the number is its own.
    check(unsafe { libc::kill(-(first.id() as i32), libc::SIGKILL) })
}

/// Faults of this process so far: minor, major.
pub fn faults() -> (u64, u64) {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is large enough; RUSAGE_SELF can't fail, and zeroed bytes
    // are a valid rusage.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    (usage.ru_minflt as u64, usage.ru_majflt as u64)
}

/// Private anonymous memory, advised for huge pages, unmapped on drop.
pub struct Words {
    start: *mut u64,
    len: usize,
}

impl Words {
    /// `bytes` is rounded down to whole words; at least one.
    pub fn map(bytes: u64) -> io::Result<Words> {
        let len = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)? / 8;
        if len == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: a new mapping at an address of the kernel's choosing touches
        // nothing that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let words = Words {
            start: start.cast(),
            len,
        };
        // SAFETY: the range was mapped above; advice changes no contents. A
        // kernel without huge pages says EINVAL, and then there are none.
        unsafe { libc::madvise(start, len * 8, libc::MADV_HUGEPAGE) };
        Ok(words)
    }

    pub fn as_mut_slice(&mut self) -> &mut [u64] {
        // SAFETY: mapped read-write with these bounds until drop, zero-filled
        // by the kernel, and borrowed exclusively through `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// First address and the address after the last.
    pub fn range(&self) -> (u64, u64) {
        let start = self.start as u64;
        (start, start + self.len as u64 * 8)
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no slice of it outlives `self`.
        unsafe { libc::munmap(self.start.cast(), self.len * 8) };
    }
}

/// Where the next data of a file is, at `from` or after it; none if only holes follow. A file system
/// that has no holes says that all is data.
pub fn next_data(file: &File, from: u64) -> io::Result<Option<u64>> {
    match seek(file, from, libc::SEEK_DATA) {
        Ok(at) => Ok(Some(at)),
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Where the next hole of a file is, at `from` or after it; its end is one.
pub fn next_hole(file: &File, from: u64) -> io::Result<u64> {
    match seek(file, from, libc::SEEK_HOLE) {
        // Past the end.
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(from),
        r => r,
    }
}

fn seek(file: &File, from: u64, whence: i32) -> io::Result<u64> {
    let from = i64::try_from(from).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: no memory is passed.
    let at = unsafe { libc::lseek(file.as_raw_fd(), from, whence) };
    u64::try_from(at).map_err(|_| io::Error::last_os_error())
}

/// Gives the file's blocks in the range back; it reads as zeros then.
pub fn punch_hole(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, len as i64) })
}

/// A file's pages, locked in memory until this is dropped.
#[derive(Debug)]
pub struct Pinned {
    start: *mut libc::c_void,
    len: usize,
}

impl Pinned {
    pub fn new(file: &File, len: u64) -> io::Result<Pinned> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new shared mapping that only the kernel looks at.
        unsafe {
            let start = libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            if start == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let pinned = Pinned { start, len };
            check(libc::mlock(start, len))?;
            Ok(pinned)
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it.
        unsafe { libc::munmap(self.start, self.len) };
    }
}
