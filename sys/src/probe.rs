//! What this kernel, this user and this container allow, found out by doing
//! it: version numbers lie where features are backported or forbidden.
//!
//! Every probe cleans up after itself and may be called from any thread.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use hugeswap_mm::{PAGE_SIZE, PMD_SIZE};

/// Linux major and minor version, and the full release string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    pub major: u32,
    pub minor: u32,
    pub release: String,
}

pub fn kernel() -> io::Result<Kernel> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?
        .trim()
        .to_owned();
    parse_release(&release).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse_release(release: &str) -> Option<Kernel> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let major = numbers.next()?.ok()?;
    let minor = numbers.next()?.ok()?;
    Some(Kernel {
        major,
        minor,
        release: release.to_owned(),
    })
}

/// Which faults a userfaultfd is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// Also those of system calls that access the program's memory.
    All,
    /// Only those of the program's own instructions.
    UserMode,
}

const UFFD_USER_MODE_ONLY: libc::c_int = 1;
const UFFD_API: u64 = 0xAA;
// _IOWR(0xAA, number, structure) and _IO(0xAA, 0).
const UFFDIO_API: libc::c_ulong = 0xC018_AA3F;
const UFFDIO_REGISTER: libc::c_ulong = 0xC020_AA00;
const UFFDIO_MOVE: libc::c_ulong = 0xC028_AA05;
const USERFAULTFD_IOC_NEW: libc::c_ulong = 0xAA00;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;

/// Opens a userfaultfd by the system call. EPERM without the right to all
/// faults; ENOSYS where the kernel has none or a filter hides it.
pub fn userfaultfd_by_syscall(faults: Faults) -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC
        | libc::O_NONBLOCK
        | match faults {
            Faults::All => 0,
            Faults::UserMode => UFFD_USER_MODE_ONLY,
        };
    // SAFETY: the call takes flags only.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    owned(fd as libc::c_int)
}

/// Opens one through /dev/userfaultfd, which gives all faults to whoever may
/// open it. ENOENT before Linux 6.1.
pub fn userfaultfd_by_device() -> io::Result<OwnedFd> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/userfaultfd")?;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: this ioctl takes its flags by value.
    owned(unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, flags) })
}

/// The way that gives most: all faults by whichever way is open, else
/// user-mode faults only.
pub fn userfaultfd() -> io::Result<(OwnedFd, Faults)> {
    userfaultfd_by_syscall(Faults::All)
        .or_else(|_| userfaultfd_by_device())
        .map(|fd| (fd, Faults::All))
        .or_else(|_| userfaultfd_by_syscall(Faults::UserMode).map(|fd| (fd, Faults::UserMode)))
}

fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The sysctl vm.unprivileged_userfaultfd; `None` where there is none.
pub fn unprivileged_userfaultfd() -> Option<bool> {
    let text = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").ok()?;
    Some(text.trim() == "1")
}

/// Feature bits of userfaultfd, as in linux/userfaultfd.h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    pub const WRITE_PROTECT: Features = Features(1 << 0);
    pub const EVENT_FORK: Features = Features(1 << 1);
    pub const EVENT_REMAP: Features = Features(1 << 2);
    pub const EVENT_REMOVE: Features = Features(1 << 3);
    pub const EVENT_UNMAP: Features = Features(1 << 6);
    pub const SIGBUS: Features = Features(1 << 7);
    pub const THREAD_ID: Features = Features(1 << 8);
    pub const EXACT_ADDRESS: Features = Features(1 << 11);
    pub const POISON: Features = Features(1 << 14);
    pub const WP_ASYNC: Features = Features(1 << 15);
    pub const MOVE: Features = Features(1 << 16);

    pub fn has(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Asks a fresh userfaultfd what the kernel can do, and turns nothing on. The
/// descriptor is ready for use afterwards, and can't be asked again.
pub fn features(uffd: &OwnedFd) -> io::Result<Features> {
    // struct uffdio_api: api, features, ioctls.
    let mut api = [UFFD_API, 0, 0];
    ioctl(uffd, UFFDIO_API, &mut api)?;
    Ok(Features(api[1]))
}

/// All of userfaultfd's structures are a few u64.
fn ioctl<const N: usize>(
    uffd: &OwnedFd,
    request: libc::c_ulong,
    words: &mut [u64; N],
) -> io::Result<()> {
    // The size is in bits 16..30 of the request.
    assert_eq!((request >> 16 & 0x3FFF) as usize, size_of_val(words));
    // SAFETY: the kernel reads and writes as many bytes as the request says,
    // which is the size of the array, as asserted.
    let result = unsafe { libc::ioctl(uffd.as_raw_fd(), request, words.as_mut_ptr()) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// What a real move of a huge page was like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveProbe {
    /// The kernel gave a huge page to move at all.
    pub huge: bool,
    /// It arrived as a huge page, not split.
    pub whole: bool,
    /// Median of several moves.
    pub time: Duration,
}

/// Moves 2 MiB to and fro between two ranges with UFFDIO_MOVE and looks what
/// became of it. Must be given a fresh userfaultfd.
pub fn move_huge_page(uffd: &OwnedFd) -> io::Result<MoveProbe> {
    const ROUNDS: usize = 9;
    const MARK: u64 = 0x6875_6765_7377_6170;
    features(uffd)?;
    let map = Mapping::new(3 * PMD_SIZE)?;
    let here = map.start().next_multiple_of(PMD_SIZE);
    let there = here + PMD_SIZE;
    map.advise(here, PMD_SIZE, libc::MADV_HUGEPAGE)?;
    map.write(here, MARK);
    map.write(there - 8, MARK);
    let huge = is_huge(here)?;
    // struct uffdio_register: start, len, mode, ioctls. A destination must be
    // registered; each half is one in turn.
    let mut register = [
        here as u64,
        2 * PMD_SIZE as u64,
        UFFDIO_REGISTER_MODE_MISSING,
        0,
    ];
    ioctl(uffd, UFFDIO_REGISTER, &mut register)?;
    let mut times = [Duration::ZERO; ROUNDS];
    let (mut from, mut to) = (here, there);
    for time in &mut times {
        let start = Instant::now();
        move_all(uffd, from, to, PMD_SIZE)?;
        *time = start.elapsed();
        (from, to) = (to, from);
    }
    // `from` is where the last move put it.
    let whole = huge && is_huge(from)?;
    if map.read(from) != MARK || map.read(from + PMD_SIZE - 8) != MARK {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a moved page lost its contents",
        ));
    }
    times.sort();
    Ok(MoveProbe {
        huge,
        whole,
        time: times[ROUNDS / 2],
    })
}

/// UFFDIO_MOVE until all is moved: it may stop early with EAGAIN and say how
/// far it came, and a page may be busy for a moment.
fn move_all(uffd: &OwnedFd, from: usize, to: usize, len: usize) -> io::Result<()> {
    const TRIES: usize = 100;
    let mut done = 0;
    for _ in 0..TRIES {
        // struct uffdio_move: dst, src, len, mode, moved or -errno.
        let mut args = [
            (to + done) as u64,
            (from + done) as u64,
            (len - done) as u64,
            0,
            0,
        ];
        let result = ioctl(uffd, UFFDIO_MOVE, &mut args);
        done += usize::try_from(args[4] as i64).unwrap_or(0);
        match result {
            Ok(()) if done >= len => return Ok(()),
            Err(err) if !matches!(err.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                return Err(err)
            }
            _ => {}
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// Is the mapping that holds `address` backed by a huge page?
fn is_huge(address: usize) -> io::Result<bool> {
    Ok(is_huge_in(
        &fs::read_to_string("/proc/self/smaps")?,
        address,
    ))
}

fn is_huge_in(smaps: &str, address: usize) -> bool {
    let mut inside = false;
    for line in smaps.lines() {
        let Some((first, rest)) = line.split_once(' ') else {
            continue;
        };
        if let Some((from, to)) = first.split_once('-') {
            let hex = |text| usize::from_str_radix(text, 16);
            if let (Ok(from), Ok(to)) = (hex(from), hex(to)) {
                inside = (from..to).contains(&address);
            }
        } else if inside && first == "AnonHugePages:" {
            return !rest.trim_start().starts_with("0 ");
        }
    }
    false
}

/// Private anonymous memory, unmapped on drop.
struct Mapping {
    start: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    fn new(len: usize) -> io::Result<Mapping> {
        // SAFETY: a new mapping where the kernel likes touches nothing.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { start, len })
    }

    fn start(&self) -> usize {
        self.start as usize
    }

    fn pointer(&self, address: usize, len: usize) -> *mut u8 {
        let offset = address - self.start();
        assert!(offset + len <= self.len);
        self.start.cast::<u8>().wrapping_add(offset)
    }

    fn advise(&self, address: usize, len: usize, advice: libc::c_int) -> io::Result<()> {
        let pointer = self.pointer(address, len);
        // SAFETY: within the mapping, as asserted; only advice that keeps the
        // contents is given in this file.
        match unsafe { libc::madvise(pointer.cast(), len, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn write(&self, address: usize, value: u64) {
        let pointer = self.pointer(address, 8).cast::<u64>();
        // SAFETY: within the mapping, which nobody else knows.
        unsafe { pointer.write_unaligned(value) }
    }

    fn read(&self, address: usize) -> u64 {
        let pointer = self.pointer(address, 8).cast::<u64>();
        // SAFETY: as in `write`. Volatile: the kernel moves pages below us.
        unsafe { pointer.read_volatile() }
    }

    fn bytes(&mut self, address: usize, len: usize) -> &mut [u8] {
        let pointer = self.pointer(address, len);
        // SAFETY: within the mapping, initialised to zero by the kernel, and
        // borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(pointer, len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no pointer into it is left.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// Sets up a small io_uring and closes it. EPERM: forbidden by the sysctl or a
/// filter; ENOSYS: not there, or hidden.
pub fn io_uring() -> io::Result<()> {
    // struct io_uring_params.
    let mut params = [0u8; 120];
    const ENTRIES: libc::c_uint = 4;
    // SAFETY: `params` has the size that the kernel reads and writes.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, params.as_mut_ptr()) };
    owned(fd as libc::c_int).map(drop)
}

/// The sysctl kernel.io_uring_disabled: 0, 1 (unprivileged), 2 (all); `None`
/// before Linux 6.6.
pub fn io_uring_disabled() -> Option<u32> {
    fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// The chosen words of transparent_hugepage/enabled and /defrag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thp {
    pub enabled: String,
    pub defrag: String,
}

/// `None` for a kernel without transparent huge pages.
pub fn thp() -> Option<Thp> {
    let chosen = |name: &str| {
        let path = format!("/sys/kernel/mm/transparent_hugepage/{name}");
        let text = fs::read_to_string(path).ok()?;
        let (_, rest) = text.split_once('[')?;
        rest.split_once(']').map(|(word, _)| word.to_owned())
    };
    Some(Thp {
        enabled: chosen("enabled")?,
        defrag: chosen("defrag")?,
    })
}

/// Writes 2 MiB with O_DIRECT to a file without a name in `dir`, reads them
/// back and compares. The time is that of both.
pub fn direct_io(dir: &Path) -> io::Result<Duration> {
    let mut file = nameless_file(dir)?;
    let mut map = Mapping::new(2 * PMD_SIZE)?;
    let (out, back) = (map.start(), map.start() + PMD_SIZE);
    for (index, byte) in map.bytes(out, PMD_SIZE).iter_mut().enumerate() {
        *byte = (index / PAGE_SIZE) as u8 ^ index as u8;
    }
    let start = Instant::now();
    file.write_all(map.bytes(out, PMD_SIZE))?;
    file.rewind()?;
    file.read_exact(map.bytes(back, PMD_SIZE))?;
    let time = start.elapsed();
    let written = map.bytes(out, PMD_SIZE).to_vec();
    if map.bytes(back, PMD_SIZE) != written {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "read back other data",
        ));
    }
    Ok(time)
}

/// Reads one page of a block device with O_DIRECT, with the right to write.
pub fn direct_io_device(device: &Path) -> io::Result<Duration> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(device)?;
    let mut map = Mapping::new(PAGE_SIZE)?;
    let buffer = map.start();
    let start = Instant::now();
    file.read_exact(map.bytes(buffer, PAGE_SIZE))?;
    Ok(start.elapsed())
}

/// O_TMPFILE where the file system has it: nothing is left behind whatever
/// happens. Elsewhere a file that is unlinked at once.
fn nameless_file(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let nameless = options
        .clone()
        .custom_flags(libc::O_DIRECT | libc::O_TMPFILE)
        .open(dir);
    match nameless {
        Err(err) if matches!(err.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {}
        other => return other,
    }
    let path = dir.join(format!(".hugeswap-probe-{}", std::process::id()));
    let file = options
        .create_new(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path);
    // open may fail after it has made the file: O_DIRECT is checked late.
    match fs::remove_file(&path) {
        Err(err) if file.is_ok() => Err(err),
        _ => file,
    }
}

/// The mode of seccomp for this process: 0 off, 1 strict, 2 filter.
pub fn seccomp() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:")?.trim().parse().ok())
}

/// A soft limit, in bytes or a number; `None` for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    AddressSpace,
    Data,
    Descriptors,
    FileSize,
    LockedMemory,
    /// Processes and threads of the user.
    Tasks,
}

pub fn limit(which: Limit) -> io::Result<Option<u64>> {
    let resource = match which {
        Limit::AddressSpace => libc::RLIMIT_AS,
        Limit::Data => libc::RLIMIT_DATA,
        Limit::Descriptors => libc::RLIMIT_NOFILE,
        Limit::FileSize => libc::RLIMIT_FSIZE,
        Limit::LockedMemory => libc::RLIMIT_MEMLOCK,
        Limit::Tasks => libc::RLIMIT_NPROC,
    };
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: `limit` is large enough, and only read if the call succeeded.
    let limit = unsafe {
        if libc::getrlimit(resource, limit.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        limit.assume_init()
    };
    Ok((limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        let kernel = parse_release("6.18.44-fc-v657").unwrap();
        assert_eq!((kernel.major, kernel.minor), (6, 18));
        assert_eq!(parse_release("6.1-rc1").map(|k| k.minor), Some(1));
        assert_eq!(parse_release("x"), None);
        super::kernel().unwrap();
    }

    #[test]
    fn smaps() {
        let text = "\
200000-400000 rw-p 00000000 00:00 0
AnonHugePages:         0 kB
400000-600000 rw-p 00000000 00:00 0
AnonHugePages:      2048 kB
VmFlags: rd";
        assert!(!is_huge_in(text, 0x200000));
        assert!(is_huge_in(text, 0x400000));
        assert!(!is_huge_in(text, 0x600000));
    }

    #[test]
    fn a_huge_page_moves_whole() {
        let (uffd, _) = userfaultfd().expect("these tests need userfaultfd: run them as root");
        let available = features(&uffd).unwrap();
        assert!(
            available.has(Features::MOVE),
            "these tests need UFFDIO_MOVE: run them on Linux 6.8 or later"
        );
        let (uffd, _) = userfaultfd().unwrap();
        let probe = move_huge_page(&uffd).unwrap();
        assert!(!probe.huge || probe.whole, "{probe:?}");
    }

    #[test]
    fn direct_io_where_there_is_none() {
        assert!(direct_io(Path::new("/proc")).is_err());
        assert!(direct_io(Path::new("/nowhere/at/all")).is_err());
        assert!(direct_io_device(Path::new("/dev/null")).is_err());
    }
}
