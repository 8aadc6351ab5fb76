//! The kernel's own swap, set up for a comparison and taken down again.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hugeswap_device::file::{FileDevice, Options};

use crate::cgroup::{Own, Version};
use crate::in_use::wait_until_free;
use crate::os;
use crate::size::{Size, MIB};
use crate::undo::{Guard, Interrupt, Interrupted, Undo};

/// What the kernel swaps to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A swap file in this directory.
    File(PathBuf),
    /// The whole device: its contents are lost.
    BlockDevice(PathBuf),
    /// Compressed memory, with the machine's setting of huge page sizes or
    /// with every size on.
    Zram { every_size: bool },
    /// A loop device over memory: what a memory-speed block device costs.
    Loop,
    /// A swap file in this directory, with compressed memory before it.
    Zswap(PathBuf),
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backing::File(_) => "swap file",
            Backing::BlockDevice(_) => "swap device",
            Backing::Zram { every_size: false } => "zram lz4",
            Backing::Zram { every_size: true } => "zram lz4, all mTHP",
            Backing::Loop => "loop on tmpfs",
            Backing::Zswap(_) => "zswap",
        })
    }
}

#[derive(Debug)]
pub enum Error {
    NotRoot,
    /// zram is neither built in nor loadable.
    NoZram,
    NoLz4,
    NoZswap,
    /// The device is not ours to overwrite, or can't be used.
    Device(String),
    /// Swap with the highest priority there is, is on already.
    OtherSwap(String),
    NoRoom {
        dir: PathBuf,
        wanted: u64,
        free: u64,
    },
    /// swapon refuses files of this file system.
    UnfitFile(PathBuf),
    Io {
        what: &'static str,
        path: PathBuf,
        err: io::Error,
    },
    Interrupted,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotRoot => write!(
                f,
                "turning the kernel's swap on needs root: run this with sudo"
            ),
            Error::NoZram => write!(
                f,
                "this kernel has no zram: install the package with its modules \
                 (linux-modules-extra), or compare with --against loop"
            ),
            Error::NoLz4 => write!(
                f,
                "this kernel's zram can't compress with lz4: load its module with \
                 'modprobe lz4', or compare with --against loop"
            ),
            Error::NoZswap => write!(
                f,
                "this kernel has no zswap (CONFIG_ZSWAP): compare with --against zram or file"
            ),
            Error::Device(why) => f.write_str(why),
            Error::OtherSwap(path) => write!(
                f,
                "swap with the highest priority is on already: 'swapoff {path}' first"
            ),
            Error::NoRoom { dir, wanted, free } => write!(
                f,
                "{} has {} MiB free and the swap file needs {}: give another directory with --swap",
                dir.display(),
                free / MIB,
                wanted / MIB
            ),
            Error::UnfitFile(path) => write!(
                f,
                "the kernel can't swap to files in {}: give a directory on ext4 or xfs",
                path.display()
            ),
            Error::Io { what, path, err } => write!(f, "can't {what} {}: {err}", path.display()),
            Error::Interrupted => write!(f, "interrupted"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Interrupted> for Error {
    fn from(_: Interrupted) -> Error {
        Error::Interrupted
    }
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |err| match err.kind() {
        io::ErrorKind::Interrupted => Error::Interrupted,
        _ => Error::Io { what, path, err },
    }
}

/// Swap that is on until this is dropped.
#[derive(Debug)]
pub struct KernelSwap {
    path: PathBuf,
    memory: Memory,
    // Before `device`: swap goes off first, then the loop device is closed and
    // with it detached.
    _guard: Guard,
    _device: Option<File>,
    _pinned: Option<os::Pinned>,
}

impl KernelSwap {
    /// Above all swap that is on.
    pub fn set_up(backing: &Backing, room: Size, stop: &Interrupt) -> Result<KernelSwap, Error> {
        if !os::is_root() {
            return Err(Error::NotRoot);
        }
        let bytes = room.bytes().next_multiple_of(MIB);
        let priority = priority_above(&active()?)?;
        let mut setup = Setup {
            guard: Guard::new(),
            bytes,
            priority,
            stop,
            pinned: None,
        };
        let mut memory = Memory::None;
        let (path, device) = match backing {
            Backing::File(dir) => (setup.file(dir)?, None),
            Backing::BlockDevice(path) => (setup.block_device(path)?, None),
            Backing::Zram { every_size } => {
                let path = setup.zram(*every_size)?;
                memory = Memory::Zram(statistics_of_zram(&path));
                (path, None)
            }
            Backing::Loop => setup
                .loop_device()
                .map(|(path, device)| (path, Some(device)))?,
            Backing::Zswap(_) if !has_zswap() => return Err(Error::NoZswap),
            Backing::Zswap(dir) => {
                // With control groups of version 2 the group is charged for it.
                if Own::find().is_ok_and(|own| own.version == Version::V1) {
                    let before = zswap_bytes().unwrap_or(0);
                    memory = Memory::Zswap { before };
                }
                setup.change(Path::new(ZSWAP), "Y")?;
                (setup.file(dir)?, None)
            }
        };
        Ok(KernelSwap {
            path,
            memory,
            _guard: setup.guard,
            _device: device,
            _pinned: setup.pinned,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The most memory that it has taken, where it is zram.
    pub fn peak_memory(&self) -> Option<u64> {
        match &self.memory {
            Memory::Zram(statistics) => field(statistics, 4),
            Memory::Zswap { .. } | Memory::None => None,
        }
    }

    /// Bytes that it takes now, and that no group is charged for.
    pub fn uncharged(&self) -> u64 {
        match &self.memory {
            Memory::None => 0,
            Memory::Zram(statistics) => field(statistics, 2).unwrap_or(0),
            Memory::Zswap { before } => zswap_bytes().unwrap_or(0).saturating_sub(*before),
        }
    }
}

/// What says how much memory is taken beside the group.
#[derive(Debug)]
enum Memory {
    None,
    /// Its `mm_stat`: original bytes, compressed, taken, the limit, the most taken.
    Zram(PathBuf),
    /// All zswap of the machine, and what that was before.
    Zswap {
        before: u64,
    },
}

fn statistics_of_zram(device: &Path) -> PathBuf {
    let name = device.file_name().unwrap_or_default();
    Path::new("/sys/block").join(name).join("mm_stat")
}

fn field(statistics: &Path, n: usize) -> Option<u64> {
    let text = fs::read_to_string(statistics).ok()?;
    text.split_whitespace().nth(n)?.parse().ok()
}

fn zswap_bytes() -> Option<u64> {
    zswap_in(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn zswap_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("Zswap:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

const ZSWAP: &str = "/sys/module/zswap/parameters/enabled";

/// Does this kernel have zswap?
pub fn has_zswap() -> bool {
    Path::new(ZSWAP).exists()
}

struct Setup<'a> {
    guard: Guard,
    bytes: u64,
    priority: u16,
    stop: &'a Interrupt,
    pinned: Option<os::Pinned>,
}

impl Setup<'_> {
    fn file(&mut self, dir: &Path) -> Result<PathBuf, Error> {
        let free = os::free_bytes(dir).map_err(io_error("look at", dir))?;
        if free < self.bytes {
            return Err(Error::NoRoom {
                dir: dir.to_owned(),
                wanted: self.bytes,
                free,
            });
        }
        let path = dir.join(format!(".hugeswap-bench-{}.swap", std::process::id()));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(io_error("create", &path))?;
        self.guard.push(Undo::RemoveFile(path.clone()));
        // Reserved blocks are enough for ext4 and xfs; others want them written.
        if os::allocate(&file, self.bytes).is_err() {
            self.fill(&file).map_err(|err| err.at(&path))?;
        }
        self.format(&file, &path)?;
        match self.turn_on(&path) {
            Err(Error::Io { err, .. }) if err.raw_os_error() == Some(libc::EINVAL) => {
                self.fill(&file).map_err(|err| err.at(&path))?;
                self.format(&file, &path)?;
                self.turn_on(&path)
                    .map_err(|_| Error::UnfitFile(dir.to_owned()))?;
            }
            other => other?,
        }
        Ok(path)
    }

    fn block_device(&mut self, path: &Path) -> Result<PathBuf, Error> {
        // Looks what it holds, as for a run, and says on its last page that nothing there is to be kept.
        let refused = |e: &dyn fmt::Display| Error::Device(e.to_string());
        let bytes = FileDevice::bytes_of(path).map_err(|e| refused(&e))?;
        let options = Options::new(bytes);
        let device = wait_until_free(|| FileDevice::open(path, &options));
        drop(device.map_err(|e| refused(&e))?);
        // O_EXCL on a device: fails with EBUSY if it is mounted or swap.
        let device = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_EXCL)
            .open(path)
            .map_err(io_error("take", path))?;
        // That page is not the kernel's.
        self.bytes = bytes.saturating_sub(PAGE as u64);
        // Who comes next is not to take it for swap that somebody uses.
        self.guard.push(Undo::EraseSwapHeader(path.to_owned()));
        self.format(&device, path)?;
        drop(device);
        self.turn_on(path)?;
        Ok(path.to_owned())
    }

    fn zram(&mut self, every_size: bool) -> Result<PathBuf, Error> {
        let hot_add = Path::new("/sys/class/zram-control/hot_add");
        if !hot_add.exists() {
            let loaded = Command::new("modprobe")
                .arg("zram")
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success());
            if !loaded || !hot_add.exists() {
                return Err(Error::NoZram);
            }
            self.guard.push(Undo::UnloadModule("zram".to_owned()));
        }
        // Reading makes a device of our own; the machine's stay untouched.
        let id = fs::read_to_string(hot_add).map_err(io_error("read", hot_add))?;
        let id: u32 = id.trim().parse().map_err(|_| Error::NoZram)?;
        self.guard.push(Undo::RemoveZram(id));
        let settings = PathBuf::from(format!("/sys/block/zram{id}"));
        fs::write(settings.join("comp_algorithm"), "lz4").map_err(|_| Error::NoLz4)?;
        let size = settings.join("disksize");
        fs::write(&size, self.bytes.to_string()).map_err(io_error("set", &size))?;
        if every_size {
            self.every_mthp_size_on()?;
        }
        let path = PathBuf::from(format!("/dev/zram{id}"));
        let device = OpenOptions::new()
            .write(true)
            .open(&path)
            .map_err(io_error("open", &path))?;
        self.format(&device, &path)?;
        // zram must not be open for its reset when it is removed.
        drop(device);
        self.turn_on(&path)?;
        Ok(path)
    }

    fn every_mthp_size_on(&mut self) -> Result<(), Error> {
        for path in mthp_switches() {
            self.change(&path, "always")?;
        }
        Ok(())
    }

    /// Until this is over; a setting that can't be read is left alone.
    fn change(&mut self, path: &Path, value: &str) -> Result<(), Error> {
        let Ok(text) = fs::read_to_string(path) else {
            return Ok(());
        };
        self.guard.push(Undo::Restore {
            path: path.to_owned(),
            value: chosen(&text).unwrap_or(text.trim()).to_owned(),
        });
        fs::write(path, value).map_err(io_error("set", path))
    }

    fn loop_device(&mut self) -> Result<(PathBuf, File), Error> {
        let control = Path::new("/dev/loop-control");
        let memory = os::memory_file("hugeswap-bench").map_err(io_error("make", control))?;
        // All of it now: the kernel would charge later pages to the group that
        // is being measured.
        os::allocate(&memory, self.bytes)
            .map_err(io_error("reserve memory for", Path::new("the loop device")))?;
        // And kept in memory: swapped out, it would have to come in again through the very device
        // that waits for it, and the kernel would stand still.
        self.pinned = Some(
            os::Pinned::new(&memory, self.bytes)
                .map_err(io_error("lock the memory of", Path::new("the loop device")))?,
        );
        self.format(&memory, control)?;
        let control_file = File::open(control).map_err(io_error("open", control))?;
        // Somebody else may take the free one first.
        for _ in 0..8 {
            let number = os::loop_free_number(&control_file).map_err(io_error("ask", control))?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .map_err(io_error("open", &path))?;
            match os::loop_attach(&device, &memory) {
                Err(err) if err.raw_os_error() == Some(libc::EBUSY) => continue,
                other => other.map_err(io_error("attach memory to", &path))?,
            }
            self.turn_on(&path)?;
            return Ok((path, device));
        }
        Err(Error::Io {
            what: "find a free loop device at",
            path: control.to_owned(),
            err: io::ErrorKind::ResourceBusy.into(),
        })
    }

    /// What mkswap writes: version 1, the last page, and the signature at the
    /// end of the first page.
    fn format(&self, file: &File, path: &Path) -> Result<(), Error> {
        self.stop.check()?;
        let page = header(self.bytes / PAGE as u64);
        file.write_all_at(&page, 0)
            .and_then(|()| file.sync_data())
            .map_err(io_error("write the swap header to", path))
    }

    fn turn_on(&mut self, path: &Path) -> Result<(), Error> {
        self.stop.check()?;
        self.guard.push(Undo::SwapOff(path.to_owned()));
        os::swap_on(path, self.priority).map_err(io_error("turn swap on at", path))
    }

    fn fill(&self, file: &File) -> Result<(), FillError> {
        let zeros = vec![0; 4 << 20];
        let mut left = self.bytes;
        io::Seek::rewind(&mut &*file)?;
        while left > 0 {
            self.stop.check()?;
            let part = left.min(zeros.len() as u64);
            (&*file).write_all(&zeros[..part as usize])?;
            left -= part;
        }
        Ok(file.sync_data()?)
    }
}

enum FillError {
    Io(io::Error),
    Interrupted,
}

impl FillError {
    fn at(self, path: &Path) -> Error {
        match self {
            FillError::Io(err) => io_error("fill", path)(err),
            FillError::Interrupted => Error::Interrupted,
        }
    }
}

impl From<io::Error> for FillError {
    fn from(err: io::Error) -> FillError {
        FillError::Io(err)
    }
}

impl From<Interrupted> for FillError {
    fn from(_: Interrupted) -> FillError {
        FillError::Interrupted
    }
}

const PAGE: usize = 4096;

fn header(pages: u64) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    let last = u32::try_from(pages - 1).unwrap_or(u32::MAX);
    page[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&last.to_ne_bytes());
    page[PAGE - 10..].copy_from_slice(b"SWAPSPACE2");
    page
}

/// The switches of all huge page sizes below 2 MiB, which follows the general
/// switch already. None before Linux 6.8.
pub fn mthp_switches() -> Vec<PathBuf> {
    let Ok(dir) = fs::read_dir("/sys/kernel/mm/transparent_hugepage") else {
        return Vec::new();
    };
    dir.flatten()
        .filter(|entry| {
            let name = entry.file_name();
            name.to_string_lossy().starts_with("hugepages-") && name != "hugepages-2048kB"
        })
        .map(|entry| entry.path().join("enabled"))
        // Sizes that only files can have lack it.
        .filter(|path| path.exists())
        .collect()
}

/// The word in brackets: `always [madvise] never` -> `madvise`.
pub fn chosen(setting: &str) -> Option<&str> {
    let (_, rest) = setting.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Active {
    pub path: String,
    pub priority: i32,
}

/// Swap that is on.
pub fn active() -> Result<Vec<Active>, Error> {
    let path = Path::new("/proc/swaps");
    match fs::read_to_string(path) {
        Ok(text) => Ok(parse_active(&text)),
        // A kernel without swap: swapon will say so.
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(err) => Err(io_error("read", path)(err)),
    }
}

fn parse_active(swaps: &str) -> Vec<Active> {
    swaps
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let path = words.next()?.to_owned();
            let priority = words.next_back()?.parse().ok()?;
            Some(Active { path, priority })
        })
        .collect()
}

/// The kernel fills swap of a higher priority first, so that above all others
/// only ours is used.
fn priority_above(active: &[Active]) -> Result<u16, Error> {
    const MAX: i32 = 32767;
    match active.iter().max_by_key(|swap| swap.priority) {
        None => Ok(1),
        Some(top) if top.priority >= MAX => Err(Error::OtherSwap(top.path.clone())),
        Some(top) => Ok((top.priority + 1).max(1) as u16),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_what_swapon_reads() {
        let page = header(256);
        assert_eq!(page[1024..1032], [1, 0, 0, 0, 255, 0, 0, 0]);
        assert_eq!(&page[4086..], b"SWAPSPACE2");
    }

    #[test]
    fn all_zswap_of_the_machine() {
        let text = "SwapFree:  1 kB\nZswap:             12 kB\nZswapped:  36 kB\n";
        assert_eq!(zswap_in(text), Some(12 << 10));
        assert_eq!(zswap_in("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn priorities() {
        assert_eq!(priority_above(&[]).unwrap(), 1);
        let text = "Filename Type Size Used Priority\n\
                    /dev/sda2 partition 100 0 -2\n/swap\\040file file 100 0 5\n";
        let active = parse_active(text);
        assert_eq!(active.len(), 2);
        assert_eq!(priority_above(&active).unwrap(), 6);
        let top = Active {
            path: "/dev/a".into(),
            priority: 32767,
        };
        assert!(priority_above(&[top])
            .unwrap_err()
            .to_string()
            .contains("swapoff /dev/a"));
    }

    #[test]
    fn settings() {
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen("plain"), None);
    }
}
