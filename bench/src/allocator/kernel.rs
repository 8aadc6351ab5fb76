//! The same test on the swap of the kernel that runs: a zram of 64 MiB as the
//! swap device of highest priority, 64 KiB folios on, 2 MiB folios off. All of
//! it is put back afterwards, also after Ctrl-C and after an error.
#![allow(unsafe_code)]

use super::thp_test::{Iteration, Rand, ThpTestConfig};
use hugeswap_mm::PAGE_SIZE;
use std::ffi::CString;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const DEVICE_BYTES: usize = 64 << 20;
const FOLIO: usize = 64 << 10;
const MEM1: usize = 60 << 20;
const MEM2: usize = 4 << 20;
const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const ZRAM_CONTROL: &str = "/sys/class/zram-control";
/// Use this priority; the highest a user can give is the mask.
const SWAP_FLAG_PREFER: i32 = 0x8000;
const SWAP_FLAG_PRIO_MASK: i32 = 0x7fff;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_signal(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Runs the test; fewer iterations come back if it was interrupted. A kernel that
/// can bring in a whole folio for one touch of it does so only where folios of
/// that size are enabled: with `base_swapin` they are not, while pages come in.
pub fn run(
    config: &ThpTestConfig,
    iterations: u32,
    base_swapin: bool,
) -> Result<Vec<Iteration>, String> {
    // SAFETY: no arguments, no memory of ours.
    if unsafe { libc::geteuid() } != 0 {
        return Err("--against kernel needs root: it sets up a swap device".into());
    }
    if read(Path::new("/proc/swaps"))?.lines().count() > 1 {
        errln!("hugeswap: other swap is in use: some folios may go there instead");
    }
    INTERRUPTED.store(false, Ordering::Relaxed);
    // Signals first and back last: none must end us between the two.
    let _signals = Signals::catch();
    let folios = [
        Setting::set(format!("{THP}/hugepages-64kB/enabled").into(), "always")?,
        Setting::set(format!("{THP}/hugepages-2048kB/enabled").into(), "never")?,
    ];
    let _swap = ZramSwap::new()?;
    // Declared last, so unmapped first: what it has in swap is then gone.
    let mem1 = Region::new(MEM1, libc::MADV_HUGEPAGE)?;
    let mem2 = match config.small_folios {
        true => Some(Region::new(MEM2, libc::MADV_NOHUGEPAGE)?),
        false => None,
    };
    let memory = Memory { mem1, mem2 };
    memory.fill();
    memory.page_out()?;
    let unit = match config.aligned_swapin {
        true => FOLIO,
        false => PAGE_SIZE,
    };
    let mut rand = Rand::new();
    let mut done = Vec::new();
    while done.len() < iterations as usize && !INTERRUPTED.load(Ordering::Relaxed) {
        let (swpout, fallback) = (counter("swpout")?, counter("swpout_fallback")?);
        if base_swapin {
            write(&folios[0].path, "never")?;
        }
        memory.swap_in(&mut rand, unit);
        if base_swapin {
            write(&folios[0].path, "always")?;
        }
        memory.make_anew(&mut rand)?;
        memory.page_out()?;
        done.push(Iteration {
            swpout: counter("swpout")? - swpout,
            fallback: counter("swpout_fallback")? - fallback,
            ..Iteration::default()
        });
    }
    Ok(done)
}

/// The test's memory: large folios, and beside them small ones if the test has any.
struct Memory {
    mem1: Region,
    mem2: Option<Region>,
}

impl Memory {
    fn fill(&self) {
        self.mem1.write(0, MEM1, 0x11);
        if let Some(mem2) = &self.mem2 {
            mem2.write(0, MEM2, 0x11);
        }
    }

    fn page_out(&self) -> Result<(), String> {
        self.mem1.page_out()?;
        self.mem2.as_ref().map_or(Ok(()), Region::page_out)
    }

    /// Writes 16 MiB of large folios, in units at random places.
    fn swap_in(&self, rand: &mut Rand, unit: usize) {
        for _ in 0..(16 << 20) / unit {
            self.mem1
                .write(rand.next() % (MEM1 / unit) * unit, unit, 0x11);
        }
    }

    /// Drops large folios and writes them anew; then writes small ones.
    fn make_anew(&self, rand: &mut Rand) -> Result<(), String> {
        for _ in 0..256 {
            let at = rand.next() % (MEM1 / FOLIO) * FOLIO;
            self.mem1.drop_pages(at, FOLIO)?;
            self.mem1.write(at, FOLIO, 0x11);
        }
        if let Some(mem2) = &self.mem2 {
            for _ in 0..256 {
                let at = rand.next() % (MEM2 / PAGE_SIZE) * PAGE_SIZE;
                mem2.write(at, PAGE_SIZE, 0x11);
            }
        }
        Ok(())
    }
}

fn counter(name: &str) -> Result<u64, String> {
    let path = format!("{THP}/hugepages-64kB/stats/{name}");
    read(Path::new(&path))?
        .trim()
        .parse()
        .map_err(|_| format!("{path}: not a number"))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn write(path: &Path, value: &str) -> Result<(), String> {
    fs::write(path, value).map_err(|e| format!("{} <- {value}: {e}", path.display()))
}

fn last_error(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}

/// Notes the signals that would end the program; the old handling comes back.
struct Signals([(libc::c_int, libc::sighandler_t); 3]);

impl Signals {
    fn catch() -> Self {
        let handler = note_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
        Signals([libc::SIGINT, libc::SIGTERM, libc::SIGHUP].map(|signal| {
            // SAFETY: the handler only stores to an atomic.
            (signal, unsafe { libc::signal(signal, handler) })
        }))
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (signal, old) in self.0 {
            // SAFETY: what was there before.
            unsafe { libc::signal(signal, old) };
        }
    }
}

/// A kernel setting of the form `always [madvise] never`.
struct Setting {
    path: PathBuf,
    old: String,
}

impl Setting {
    fn set(path: PathBuf, value: &str) -> Result<Self, String> {
        let choices = read(&path)?;
        let old = choices
            .split_whitespace()
            .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
            .ok_or_else(|| format!("{}: nothing chosen in {choices:?}", path.display()))?
            .to_string();
        write(&path, value)?;
        Ok(Setting { path, old })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if let Err(e) = write(&self.path, &self.old) {
            errln!("hugeswap: not restored: {e}");
        }
    }
}

/// A zram device of our own, in use as swap.
struct ZramSwap {
    id: u32,
    node: PathBuf,
    on: bool,
}

impl ZramSwap {
    fn new() -> Result<Self, String> {
        let add = Path::new(ZRAM_CONTROL).join("hot_add");
        let id = read(&add)?
            .trim()
            .parse()
            .map_err(|_| format!("{}: not a number", add.display()))?;
        let mut swap = ZramSwap {
            id,
            node: format!("/dev/zram{id}").into(),
            on: false,
        };
        let size = format!("/sys/block/zram{id}/disksize");
        write(Path::new(&size), &DEVICE_BYTES.to_string())?;
        swap.wait_for_node()?;
        swap.write_header()?;
        let flags = SWAP_FLAG_PREFER | SWAP_FLAG_PRIO_MASK;
        let path = swap.path()?;
        // SAFETY: a path that ends in a zero byte.
        if unsafe { libc::swapon(path.as_ptr(), flags) } != 0 {
            return Err(last_error("swapon"));
        }
        swap.on = true;
        Ok(swap)
    }

    fn path(&self) -> Result<CString, String> {
        CString::new(self.node.as_os_str().as_bytes()).map_err(|e| e.to_string())
    }

    /// The node may come by way of udev.
    fn wait_for_node(&self) -> Result<(), String> {
        let start = Instant::now();
        while !self.node.exists() {
            if start.elapsed() > Duration::from_secs(2) {
                return Err(format!("{} does not appear", self.node.display()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// What `mkswap` writes: version, last page, and the magic at the end of the page.
    fn write_header(&self) -> Result<(), String> {
        let mut page = vec![0u8; PAGE_SIZE];
        let last_page = (DEVICE_BYTES / PAGE_SIZE - 1) as u32;
        page[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
        page[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
        page[PAGE_SIZE - 10..].copy_from_slice(b"SWAPSPACE2");
        let text = |e| format!("{}: {e}", self.node.display());
        let mut file = fs::OpenOptions::new()
            .write(true)
            .open(&self.node)
            .map_err(text)?;
        file.write_all(&page).map_err(text)?;
        file.sync_all().map_err(text)
    }
}

impl Drop for ZramSwap {
    fn drop(&mut self) {
        if self.on {
            if let Ok(path) = self.path() {
                // SAFETY: a path that ends in a zero byte.
                if unsafe { libc::swapoff(path.as_ptr()) } != 0 {
                    errln!("hugeswap: {}", last_error("swapoff"));
                    return;
                }
            }
        }
        let remove = Path::new(ZRAM_CONTROL).join("hot_remove");
        if let Err(e) = write(&remove, &self.id.to_string()) {
            errln!("hugeswap: not removed: {e}");
        }
    }
}

/// Anonymous memory at a multiple of a folio.
struct Region {
    map: *mut u8,
    map_len: usize,
    base: *mut u8,
    len: usize,
}

impl Region {
    fn new(len: usize, advice: libc::c_int) -> Result<Self, String> {
        let map_len = len + FOLIO;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                map_len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(last_error("mmap"));
        }
        let map = map.cast::<u8>();
        let skip = map.align_offset(FOLIO);
        let region = Region {
            map,
            map_len,
            // SAFETY: `skip` is below `FOLIO`, by which the mapping is longer.
            base: unsafe { map.add(skip) },
            len,
        };
        region.advise(0, len, advice)?;
        Ok(region)
    }

    fn advise(&self, at: usize, len: usize, advice: libc::c_int) -> Result<(), String> {
        assert!(at + len <= self.len);
        // SAFETY: within our mapping, to which no reference is ever made.
        let result = unsafe { libc::madvise(self.base.add(at).cast(), len, advice) };
        match result {
            0 => Ok(()),
            _ => Err(last_error("madvise")),
        }
    }

    fn page_out(&self) -> Result<(), String> {
        self.advise(0, self.len, libc::MADV_PAGEOUT)
    }

    fn drop_pages(&self, at: usize, len: usize) -> Result<(), String> {
        self.advise(at, len, libc::MADV_DONTNEED)
    }

    fn write(&self, at: usize, len: usize, byte: u8) {
        assert!(at + len <= self.len);
        // SAFETY: within our mapping, to which no reference is ever made.
        unsafe { self.base.add(at).write_bytes(byte, len) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: our mapping; nothing points into it any more.
        unsafe { libc::munmap(self.map.cast(), self.map_len) };
    }
}
