//! The system calls, and the only unsafe code.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

use crate::page::PAGE;

fn check(ret: libc::c_long) -> io::Result<libc::c_long> {
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(ret)
    }
}

fn owned(ret: libc::c_long) -> io::Result<OwnedFd> {
    let fd = check(ret)? as RawFd;
    // SAFETY: the kernel has just given it to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

// --- tracefs -----------------------------------------------------------------

const FSCONFIG_CMD_CREATE: libc::c_uint = 6;

/// The directory of a tracefs that is mounted nowhere: nothing is left behind,
/// and it does not matter whether the machine has one mounted.
pub fn tracefs() -> io::Result<OwnedFd> {
    // SAFETY: fsopen, fsconfig and fsmount take integers and strings that end in 0.
    unsafe {
        let context = owned(libc::syscall(
            libc::SYS_fsopen,
            c"tracefs".as_ptr(),
            1 as libc::c_uint, // FSOPEN_CLOEXEC
        ))?;
        check(libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            FSCONFIG_CMD_CREATE,
            ptr::null::<libc::c_char>(),
            ptr::null::<libc::c_void>(),
            0,
        ))?;
        owned(libc::syscall(
            libc::SYS_fsmount,
            context.as_raw_fd(),
            1 as libc::c_uint, // FSMOUNT_CLOEXEC
            0 as libc::c_uint,
        ))
    }
}

/// Reads a small file below a directory.
pub fn read_at(dir: BorrowedFd, path: &str) -> io::Result<String> {
    let path = CString::new(path)?;
    // SAFETY: the path ends in 0.
    let fd = unsafe {
        owned(libc::openat(
            dir.as_raw_fd(),
            path.as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        ) as libc::c_long)?
    };
    io::read_to_string(std::fs::File::from(fd))
}

/// Appends to a small file below a directory, in one write.
pub fn append_at(dir: BorrowedFd, path: &str, text: &str) -> io::Result<()> {
    let path = CString::new(path)?;
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC;
    // SAFETY: the path ends in 0.
    let fd = unsafe { owned(libc::openat(dir.as_raw_fd(), path.as_ptr(), flags) as libc::c_long)? };
    let line = format!("{text}\n");
    io::Write::write_all(&mut std::fs::File::from(fd), line.as_bytes())
}

// --- perf --------------------------------------------------------------------

/// `struct perf_event_attr`, as far as its fifth version.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_COUNT_SW_DUMMY: u64 = 9;
const PERF_SAMPLE_TID: u64 = 1 << 1;
const PERF_SAMPLE_TIME: u64 = 1 << 2;
const PERF_SAMPLE_RAW: u64 = 1 << 10;
/// Not with PERF_SAMPLE_PERIOD: with it every hit would become a record,
/// whatever the period.
const SAMPLE: u64 = PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_RAW;
const PERF_ATTR_USE_CLOCKID: u64 = 1 << 25;
const PERF_ATTR_WATERMARK: u64 = 1 << 14;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_EVENT_IOC_SET_OUTPUT: libc::c_ulong = 0x2405;
const PERF_EVENT_IOC_SET_FILTER: libc::c_ulong = 0x4008_2406;

pub enum Perf {
    /// Counts nothing; carries the ring, which is woken when a quarter of its
    /// `bytes` is full.
    Ring { bytes: u32 },
    /// Counts a tracepoint.
    Count { id: u64 },
    /// One of `period` hits of a tracepoint becomes a record.
    Sample { id: u64, period: u64 },
}

/// One event on one CPU, for all processes.
pub fn perf_event(what: Perf, cpu: u32) -> io::Result<OwnedFd> {
    let mut attr = PerfEventAttr {
        size: size_of::<PerfEventAttr>() as u32,
        clockid: libc::CLOCK_MONOTONIC,
        ..PerfEventAttr::default()
    };
    match what {
        Perf::Ring { bytes } => {
            attr.kind = PERF_TYPE_SOFTWARE;
            attr.config = PERF_COUNT_SW_DUMMY;
            attr.sample_type = SAMPLE;
            attr.flags = PERF_ATTR_WATERMARK | PERF_ATTR_USE_CLOCKID;
            attr.wakeup_watermark = bytes / 4;
        }
        Perf::Count { id } => {
            attr.kind = PERF_TYPE_TRACEPOINT;
            attr.config = id;
        }
        Perf::Sample { id, period } => {
            attr.kind = PERF_TYPE_TRACEPOINT;
            attr.config = id;
            attr.sample_period = period;
            attr.sample_type = SAMPLE;
            attr.flags = PERF_ATTR_WATERMARK | PERF_ATTR_USE_CLOCKID;
            attr.wakeup_watermark = u32::MAX;
        }
    }
    // SAFETY: the attributes are a whole structure of the size that they say.
    unsafe {
        owned(libc::syscall(
            libc::SYS_perf_event_open,
            &attr,
            -1,
            cpu as libc::c_int,
            -1,
            PERF_FLAG_FD_CLOEXEC,
        ))
    }
}

/// Records of `event` go to the ring of `to`.
pub fn perf_redirect(event: BorrowedFd, to: BorrowedFd) -> io::Result<()> {
    // SAFETY: the request takes a descriptor.
    let ret = unsafe { libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_SET_OUTPUT, to.as_raw_fd()) };
    check(ret.into()).map(drop)
}

pub fn perf_filter(event: BorrowedFd, filter: &str) -> io::Result<()> {
    let filter = CString::new(filter)?;
    // SAFETY: the request takes a string that ends in 0.
    let ret = unsafe {
        libc::ioctl(
            event.as_raw_fd(),
            PERF_EVENT_IOC_SET_FILTER,
            filter.as_ptr(),
        )
    };
    check(ret.into()).map(drop)
}

/// A mapped ring of records that the kernel writes and we read.
pub struct Ring {
    base: *mut u8,
    /// Bytes of the data behind the first page; a power of two.
    size: usize,
}

/// Where in the first page of a ring the kernel keeps the two ends.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

impl Ring {
    pub fn map(event: BorrowedFd, pages: usize) -> io::Result<Ring> {
        assert!(pages.is_power_of_two());
        let size = pages * PAGE as usize;
        // SAFETY: a new mapping; nothing is replaced.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size + PAGE as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Ring {
            base: base.cast(),
            size,
        })
    }

    fn end(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: within the mapped first page, aligned to 8; the kernel
        // writes it as a whole word.
        unsafe { &*self.base.add(offset).cast::<AtomicU64>() }
    }

    /// Hands every record that waits to `each`: its type and what is behind
    /// its header. `buffer` is for those that wrap round the end.
    pub fn drain(&mut self, buffer: &mut Vec<u8>, mut each: impl FnMut(u32, &[u8])) {
        let head = self.end(DATA_HEAD).load(Ordering::Acquire);
        let mut tail = self.end(DATA_TAIL).load(Ordering::Relaxed);
        while tail < head {
            let mut header = [0u8; 8];
            self.copy(tail, &mut header);
            let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
            let size = u64::from(u16::from_ne_bytes([header[6], header[7]]));
            if size < 8 || size > head - tail {
                // Not what the kernel writes: give the rest up, not the process.
                tail = head;
                break;
            }
            buffer.resize(size as usize - 8, 0);
            self.copy(tail + 8, buffer);
            each(kind, buffer);
            tail += size;
        }
        self.end(DATA_TAIL).store(tail, Ordering::Release);
    }

    fn copy(&self, from: u64, to: &mut [u8]) {
        let start = from as usize & (self.size - 1);
        let first = to.len().min(self.size - start);
        // SAFETY: both parts lie within the data of the ring, which the kernel
        // does not write between tail and head.
        unsafe {
            let data = self.base.add(PAGE as usize);
            ptr::copy_nonoverlapping(data.add(start), to.as_mut_ptr(), first);
            ptr::copy_nonoverlapping(data, to.as_mut_ptr().add(first), to.len() - first);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: our own mapping; no reference into it outlives us.
        unsafe { libc::munmap(self.base.cast(), self.size + PAGE as usize) };
    }
}

// --- a file's pages ----------------------------------------------------------

const MPOL_MF_MOVE: libc::c_int = 1 << 1;
const MPOL_MF_MOVE_ALL: libc::c_int = 1 << 2;

/// A file in memory that what is read is written to; a page of it.
fn sink() -> io::Result<BorrowedFd<'static>> {
    static SINK: OnceLock<std::fs::File> = OnceLock::new();
    if let Some(sink) = SINK.get() {
        return Ok(sink.as_fd());
    }
    let file = memory_file(0)?;
    Ok(SINK.get_or_init(|| file).as_fd())
}

/// A file of so many bytes in memory, as tmpfs has them.
pub fn memory_file(size: u64) -> io::Result<std::fs::File> {
    // SAFETY: the name ends in 0.
    let fd = unsafe { owned(libc::memfd_create(c"hugeswap".as_ptr(), libc::MFD_CLOEXEC).into())? };
    let file = std::fs::File::from(fd);
    file.set_len(size)?;
    Ok(file)
}

/// A part of a file, mapped to be looked at.
pub struct Mapping {
    base: *mut libc::c_void,
    pages: usize,
}

impl Mapping {
    /// `first` counts pages.
    pub fn new(file: BorrowedFd, first: u64, pages: usize) -> io::Result<Mapping> {
        // SAFETY: a new mapping; nothing is replaced.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                pages * PAGE as usize,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                (first * PAGE) as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Mapping { base, pages };
        // No readahead, whatever the file's pages are marked with: nothing is
        // read from the disk because we look.
        mapping.advise(0, pages, libc::MADV_RANDOM)?;
        Ok(mapping)
    }

    fn advise(&self, first: usize, pages: usize, advice: libc::c_int) -> io::Result<()> {
        assert!(first + pages <= self.pages);
        // SAFETY: within our mapping, and no advice of ours changes memory.
        let ret = unsafe { libc::madvise(self.address(first), pages * PAGE as usize, advice) };
        check(ret.into()).map(drop)
    }

    fn address(&self, page: usize) -> *mut libc::c_void {
        assert!(page <= self.pages);
        self.base.wrapping_byte_add(page * PAGE as usize)
    }

    /// The virtual page number of a page.
    pub fn vpn(&self, page: usize) -> u64 {
        self.address(page) as u64 / PAGE
    }

    /// Which pages the page cache has, as `mincore` says: bit 0.
    pub fn resident(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0u8; self.pages];
        // SAFETY: the vector has a byte for each page of our mapping.
        let ret = unsafe {
            libc::mincore(
                self.base,
                self.pages * PAGE as usize,
                bytes.as_mut_ptr().cast(),
            )
        };
        check(ret.into())?;
        Ok(bytes)
    }

    /// Enters pages into our page table, with what the kernel enters around
    /// them. A byte of each is written to a file in memory: the kernel reads
    /// it, so a file that has become shorter is an error and not a SIGBUS.
    /// (MADV_POPULATE_READ would be simpler, but marks pages accessed.)
    pub fn enter(&self, pages: &[usize]) -> io::Result<()> {
        let sink = sink()?;
        let bytes: Vec<libc::iovec> = pages
            .iter()
            .map(|&page| libc::iovec {
                iov_base: self.address(page),
                iov_len: 1,
            })
            .collect();
        for mut some in bytes.chunks(512) {
            while !some.is_empty() {
                // SAFETY: each byte is in our mapping, which the kernel reads
                // as it would any address.
                let ret = unsafe {
                    libc::pwritev(
                        sink.as_raw_fd(),
                        some.as_ptr(),
                        some.len() as libc::c_int,
                        0,
                    )
                };
                // What comes after those that were read can't be.
                let read = usize::try_from(ret).unwrap_or(0);
                some = some.get(read + 1..).unwrap_or_default();
            }
        }
        Ok(())
    }

    /// On which node each of `pages` is; a negative number is an errno.
    pub fn nodes(&self, pages: &[usize]) -> io::Result<Vec<i32>> {
        self.move_pages(pages, None, 0)
    }

    /// Moves the folios of `pages` to `node`, whoever has mapped them; gives
    /// their nodes or errnos, as far as the kernel has written them.
    pub fn migrate(&self, pages: &[usize], node: i32, all: bool) -> io::Result<Vec<i32>> {
        let flags = if all { MPOL_MF_MOVE_ALL } else { MPOL_MF_MOVE };
        self.move_pages(pages, Some(&vec![node; pages.len()]), flags)
    }

    fn move_pages(
        &self,
        pages: &[usize],
        nodes: Option<&[libc::c_int]>,
        flags: libc::c_int,
    ) -> io::Result<Vec<i32>> {
        let addresses: Vec<_> = pages.iter().map(|&page| self.address(page)).collect();
        // What the kernel does not write was not moved.
        let mut status = vec![-libc::EBUSY; pages.len()];
        // SAFETY: all three arrays have one entry for each page.
        let ret = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                pages.len(),
                addresses.as_ptr(),
                nodes.map_or(ptr::null(), <[_]>::as_ptr),
                status.as_mut_ptr(),
                flags,
            )
        };
        // A positive result is how many were not moved; their status says so.
        check(ret)?;
        Ok(status)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Unmapping marks pages accessed that the hardware has marked in our
        // page table, except in mappings that are read from begin to end
        // (before Linux 6.3 those with MADV_RANDOM are marked too). So that
        // is what this is, from here on, and the pages' age stays theirs.
        let _ = self.advise(0, self.pages, libc::MADV_SEQUENTIAL);
        // SAFETY: our own mapping; nothing points into it.
        unsafe { libc::munmap(self.base, self.pages * PAGE as usize) };
    }
}

/// Major faults of this thread so far: reads from a disk that we have caused.
pub fn major_faults() -> u64 {
    usage(libc::RUSAGE_THREAD).ru_majflt as u64
}

/// Processor time of this thread, in nanoseconds.
pub fn cpu_nanos() -> u64 {
    nanos(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The clock that the records are stamped with, in microseconds.
pub fn monotonic_micros() -> u64 {
    nanos(libc::CLOCK_MONOTONIC) / 1000
}

fn nanos(clock: libc::clockid_t) -> u64 {
    // SAFETY: the kernel fills the timespec.
    let time = unsafe {
        let mut time = std::mem::zeroed::<libc::timespec>();
        libc::clock_gettime(clock, &mut time);
        time
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn usage(who: libc::c_int) -> libc::rusage {
    // SAFETY: all zeroes is a valid rusage, and the kernel fills it.
    unsafe {
        let mut usage = std::mem::zeroed();
        libc::getrusage(who, &mut usage);
        usage
    }
}

// --- files by handle ---------------------------------------------------------

/// What `name_to_handle_at` gives: a file's name without a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    kind: libc::c_int,
    bytes: Vec<u8>,
}

const HANDLE_BYTES: usize = 128;

#[repr(C)]
struct FileHandle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    handle: [u8; HANDLE_BYTES],
}

impl Handle {
    /// The handle of an inode on ext4, any generation of it.
    pub fn ext4(ino: u64) -> Option<Handle> {
        let mut bytes = u32::try_from(ino).ok()?.to_ne_bytes().to_vec();
        bytes.extend([0; 4]);
        Some(Handle { kind: 1, bytes })
    }

    pub fn of(file: BorrowedFd) -> io::Result<Handle> {
        let mut raw = FileHandle {
            bytes: HANDLE_BYTES as libc::c_uint,
            kind: 0,
            handle: [0; HANDLE_BYTES],
        };
        let mut mount = 0;
        // SAFETY: the structure has room for as many bytes as it says.
        let ret = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                file.as_raw_fd(),
                c"".as_ptr(),
                &mut raw,
                &mut mount as *mut libc::c_int,
                libc::AT_EMPTY_PATH,
            )
        };
        check(ret)?;
        let bytes = raw.handle.get(..raw.bytes as usize);
        Ok(Handle {
            kind: raw.kind,
            bytes: bytes.ok_or(io::ErrorKind::InvalidData)?.to_vec(),
        })
    }

    /// Opens it for reading; `mount` is any directory of its file system.
    pub fn open(&self, mount: BorrowedFd, flags: libc::c_int) -> io::Result<OwnedFd> {
        let mut raw = FileHandle {
            bytes: self.bytes.len() as libc::c_uint,
            kind: self.kind,
            handle: [0; HANDLE_BYTES],
        };
        raw.handle[..self.bytes.len()].copy_from_slice(&self.bytes);
        // SAFETY: the structure has the bytes that it says.
        unsafe {
            owned(libc::syscall(
                libc::SYS_open_by_handle_at,
                mount.as_raw_fd(),
                &raw,
                flags,
            ))
        }
    }
}

// --- waiting -----------------------------------------------------------------

/// A descriptor that is readable when one of `signals` has come; they are
/// blocked otherwise.
pub fn signals(signals: &[libc::c_int]) -> io::Result<OwnedFd> {
    // SAFETY: a set of signals is initialised before it is used.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for &signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        check(libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut()).into())?;
        owned(libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK).into())
    }
}

/// Waits until one of `fds`, of which there is one at least, is readable or the time is over; says which are.
pub fn wait(fds: &[BorrowedFd], timeout: std::time::Duration) -> io::Result<Vec<bool>> {
    let mut polled: Vec<libc::pollfd> = fds
        .iter()
        .map(|fd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: the array is as long as it is said to be.
    let ret = unsafe {
        libc::ppoll(
            polled.as_mut_ptr(),
            polled.len() as libc::nfds_t,
            &timeout,
            ptr::null(),
        )
    };
    match check(ret.into()) {
        Err(err) if err.kind() != io::ErrorKind::Interrupted => Err(err),
        Err(_) | Ok(0) => Ok(vec![false; fds.len()]),
        Ok(_) => {
            // A processor that went offline hangs up for good: its ring must
            // not keep us awake.
            let readable = |fd: &libc::pollfd| fd.revents & libc::POLLIN != 0;
            if polled.iter().any(readable) {
                return Ok(polled.iter().map(readable).collect());
            }
            // SAFETY: the first of the array.
            unsafe { libc::ppoll(polled.as_mut_ptr(), 1, &timeout, ptr::null()) };
            let mut ready = vec![false; fds.len()];
            ready[0] = readable(&polled[0]);
            Ok(ready)
        }
    }
}

/// Five descriptors for each processor may be more than a process may have
/// by default.
pub fn allow_descriptors() {
    // SAFETY: the kernel fills the limits, and takes those that it gave.
    unsafe {
        let mut limits = std::mem::zeroed::<libc::rlimit>();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limits) == 0 {
            limits.rlim_cur = limits.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limits);
        }
    }
}

pub fn is_root() -> bool {
    // SAFETY: always succeeds.
    unsafe { libc::geteuid() == 0 }
}
