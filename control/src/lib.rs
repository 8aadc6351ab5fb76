//! What the supervisor tells the processes that it runs: settings, devices, sums.
//!
//! It uses `mm`, `sys` and `seal`, and is used on both sides, by the engine and by `supervise`: it says how they
//! talk, and decides nothing for either.
//!
//! `hugeswap run` makes the control page in a memory file that nobody can write but by the mapping that
//! the supervisor had before; every managed process maps it to read. What is between one process and the
//! supervisor is in a page of that process's own (`own`); what has to be asked for with descriptors goes
//! over a socket (`link`); what `hugeswap swapoff` and `set` want is in a page that no process has (`orders`).
//! Nobody holds a lock in any of them, so that `kill -9` of anyone leaves them usable.
#![allow(unsafe_code)]

pub mod go;
pub mod link;
mod orders;
mod own;
pub mod stats;

pub use orders::Orders;
pub use own::{
    is_loader, keep_from_children, log, say_unmanaged, set_current, take_back, Answer, Clusters,
    Grant, Mapped, More, MoreAsked, Pressed, Proc, Said, Unmanaged, Writing,
};

use core::ops::Deref;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use hugeswap_mm::{PAGE_SIZE, PMD_NR};
pub use hugeswap_policy::SwapIn;
use hugeswap_seal::Mode;
use hugeswap_sys::{mem, Errno};

/// One page in so many is needed beside the memory itself: the page table of a 2 MiB range, or the
/// one that the kernel keeps in reserve for a huge page.
pub const OVERHEAD_SHARE: u64 = PMD_NR as u64;

/// Layout of these structures; a preloaded library of another build refuses to run. Counted up where
/// their sizes stay.
pub const LAYOUT: u64 =
    0x6875_6765_7377_0003 + (Control::BYTES + Proc::BYTES + Orders::BYTES) as u64;

/// Names of the supervisor's memory files, by which `hugeswap swapoff` finds them.
pub const CONTROL_FILE: &str = "hugeswap-control";
pub const ORDERS_FILE: &str = "hugeswap-orders";

/// Protection, as `/proc/PID/maps` shows it, of a page that a program maps where the library does nothing in it. It needs
/// no connection. Nothing else has it: what can be written can be read elsewhere.
pub const DOES_WITHOUT: &str = "-w-p";

/// Kinds of devices: a file or block device; memory; memory that the supervisor filled and that
/// must not be given back.
pub const FILE: u32 = 0;
pub const RAM: u32 = 1;
pub const FILLED_RAM: u32 = 2;

/// The last argument of an `openat` that the run's guard was told of before, and lets pass; and of an
/// `openat2` by which a program of the run gives the guard up. The kernel looks at neither.
pub const GUARD_PASS: usize = 0x6875_6765;
pub const GUARD_STOP: usize = 0x6875_6766;

pub const MAX_DEVICES: usize = 8;
/// Ranges that a process writes at a time, at most.
pub const WRITES: usize = 8;
pub const PATH_LEN: usize = 256;
/// Swap space is handed to processes in pieces of this size at most.
pub const SEGMENT_BYTES: u64 = 32 << 20;
/// Clusters of a segment.
pub const SEGMENT_CLUSTERS: usize = SEGMENT_BYTES as usize / hugeswap_mm::PMD_SIZE;
/// 2 TiB of swap to a device.
pub const MAX_SEGMENTS: usize = 65536;

/// Faults of the swap devices, for tests; all zero for none. Each process counts its own requests.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The one read that fails, counted from 1.
    pub read_nth: u64,
    /// Of so many reads one fails.
    pub read_every: u64,
    pub write_nth: u64,
    pub write_every: u64,
    /// Every page of the device whose number is a multiple of this can't be read.
    pub bad_page_every: u64,
    /// Of so many system calls for transfers one is short or passingly refused. Files only.
    pub short_every: u64,
    /// One more than the bytes of a device that can be reserved.
    pub full_at_plus_1: u64,
    /// A finished request is kept back until so many have finished after it.
    pub hold: u64,
    /// Completions come in an order drawn from the seed.
    pub reorder: u64,
    pub seed: u64,
    /// Processes wait for their turns at random.
    pub turns: u64,
}

/// How much of the limit compressed memory may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compress {
    Off,
    /// What it is worth.
    Auto,
    Percent(u32),
}

/// What compressed memory is compressed with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum CompressCodec {
    /// By what comes of either.
    #[default]
    Auto = 0,
    Lz4 = 1,
    Zstd = 2,
}

impl Compress {
    const AUTO: u32 = u32::MAX;

    pub fn to_word(self) -> u32 {
        match self {
            Compress::Off => 0,
            Compress::Auto => Self::AUTO,
            Compress::Percent(n) => n,
        }
    }
}

/// Engine settings, the same for every process of a run.
#[repr(C)]
#[derive(Clone, Default)]
pub struct Settings {
    /// Bytes that all processes together may keep resident.
    pub limit_bytes: u64,
    /// End the program when swap is full.
    pub strict: u32,
    pub user_mode_only: u32,
    pub devices: u32,
    /// What `doctor` would call a feature test: leave io_uring alone.
    pub no_io_uring: u32,
    /// Without UFFDIO_MOVE, as before Linux 6.8. For tests.
    pub no_move: u32,
    /// A `SwapIn`, at the start; `Control::swap_in` says what it is now.
    pub swapin: u32,
    /// What goes to swap is encrypted.
    pub encrypt: u32,
    /// A `Compress`.
    pub compress: u32,
    /// A `CompressCodec`.
    pub codec: u32,
    /// `MADV_DONTNEED` frees page tables (Linux 6.14). 0: not known.
    pub frees_page_tables: u32,
    /// The most that may go to swap, over all devices that share this.
    pub swap_bytes: u64,
    /// For tests.
    pub faults: Faults,
}

impl Settings {
    pub fn seal_mode(&self) -> Mode {
        match self.encrypt {
            0 => Mode::Check,
            _ => Mode::Encrypt,
        }
    }

    pub fn codec(&self) -> CompressCodec {
        match self.codec {
            1 => CompressCodec::Lz4,
            2 => CompressCodec::Zstd,
            _ => CompressCodec::Auto,
        }
    }

    pub fn compress(&self) -> Compress {
        match self.compress {
            0 => Compress::Off,
            Compress::AUTO => Compress::Auto,
            percent => Compress::Percent(percent.min(100)),
        }
    }
}

/// Whether a device is in use. Each change to `Leaving` counts the epoch up, so that what a process
/// says of one swapoff is not taken for another.
///
/// | phase | meaning | becomes |
/// |---|---|---|
/// | On | gives slots | Leaving (`hugeswap swapoff`) |
/// | Leaving | gives none; processes move away what they have there | On (`swapoff` was interrupted; `swapon`), Releasing (supervisor: no living process has anything there) |
/// | Releasing | the supervisor gives the space back | Off (supervisor) |
/// | Off | nobody has anything there | On (`hugeswap swapon`) |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    On,
    Leaving,
    Releasing,
    Off,
}

/// An epoch and a phase, in one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    pub epoch: u32,
    pub phase: Phase,
}

impl Usage {
    fn word(self) -> u32 {
        self.epoch << 2 | self.phase as u32
    }

    fn of_word(w: u32) -> Usage {
        Usage {
            epoch: w >> 2,
            phase: match w & 3 {
                0 => Phase::On,
                1 => Phase::Leaving,
                2 => Phase::Releasing,
                _ => Phase::Off,
            },
        }
    }
}

#[repr(C)]
pub struct DeviceEntry {
    /// What the user calls it.
    name: [u8; PATH_LEN],
    pub max_bytes: u64,
    /// `FILE`, `RAM` or `FILLED_RAM`.
    pub kind: u32,
    /// Nonzero if it is under the total of all.
    pub shares: u32,
    /// Devices of one rank are used in turn, a lower one before a higher one.
    pub rank: u32,
    /// A `Usage`: what the orders say, as the supervisor last saw it.
    usage: AtomicU32,
    /// Clusters that processes have.
    taken: AtomicU32,
}

/// Sums over the processes that live, as the supervisor last saw them.
#[repr(C)]
#[derive(Default)]
pub struct Totals {
    pub charged_pages: AtomicU64,
    pub swapped_bytes: AtomicU64,
    pub swapoff_pages: AtomicU64,
}

#[repr(C)]
pub struct Control {
    magic: u64,
    pub settings: Settings,
    /// Nonzero while staging folios may be used again with old bytes in them: no program of the
    /// run can have a hold of pages that left it. Never set again once it was cleared.
    recycle: AtomicU32,
    /// A `SwapIn`.
    swapin: AtomicU32,
    pub totals: Totals,
    devices: [DeviceEntry; MAX_DEVICES],
}

/// A device as the supervisor opened it.
#[derive(Clone, Copy)]
pub struct NewDevice<'a> {
    pub name: &'a str,
    pub max_bytes: u64,
    /// It is under the total of all.
    pub shares: bool,
    /// `FILE`, `RAM` or `FILLED_RAM`.
    pub kind: u32,
    /// Not below that of the device before it.
    pub rank: u32,
}

impl Control {
    pub const BYTES: usize = size_of::<Control>().next_multiple_of(PAGE_SIZE);

    /// Maps the control page to read it, from a descriptor of at least `BYTES` bytes.
    ///
    /// # Safety
    /// The file must be one that only the supervisor of a run writes to.
    pub unsafe fn map(fd: i32) -> Result<&'static Control, Errno> {
        // Never unmapped.
        let a = mem::map_shared(fd, Self::BYTES, mem::Access::Read)?;
        // SAFETY: mapped with this size; every bit pattern is valid for these fields.
        Ok(unsafe { &*(a as *const Control) })
    }

    pub fn is_valid(&self) -> bool {
        self.magic == LAYOUT
    }

    /// To be asked after a folio was moved out, of that folio.
    #[inline]
    pub fn may_recycle(&self) -> bool {
        self.recycle.load(SeqCst) != 0
    }

    /// May change at any time.
    #[inline]
    pub fn swap_in(&self) -> SwapIn {
        SwapIn::of_word(self.swapin.load(Relaxed))
    }

    /// The devices of the run.
    pub fn devices(&self) -> &[DeviceEntry] {
        &self.devices[..(self.settings.devices as usize).min(MAX_DEVICES)]
    }
}

/// The control page as the supervisor has it, which alone can write there.
#[derive(Clone, Copy)]
pub struct Writer(&'static Control);

impl Writer {
    /// Fills a file of `Control::BYTES` bytes, all zero, and keeps it mapped. `settings.devices` becomes
    /// the number of devices.
    ///
    /// # Safety
    /// Nobody else may have the file yet, and nobody else may ever be able to write to it.
    pub unsafe fn new(
        fd: i32,
        settings: Settings,
        devices: &[NewDevice<'_>],
    ) -> Result<Writer, Errno> {
        let page = mem::map_shared(fd, Control::BYTES, mem::Access::Write)? as *mut Control;
        // SAFETY: mapped with this size, never unmapped, and nobody else looks yet; every bit pattern is
        // valid.
        Ok(unsafe { Writer::fill(&mut *page, settings, devices) })
    }

    fn fill(page: &'static mut Control, settings: Settings, devices: &[NewDevice<'_>]) -> Writer {
        page.settings = Settings {
            devices: devices.len().min(MAX_DEVICES) as u32,
            ..settings
        };
        page.swapin = AtomicU32::new(page.settings.swapin);
        for (entry, d) in page.devices.iter_mut().zip(devices) {
            let n = d.name.len().min(PATH_LEN - 1);
            entry.name[..n].copy_from_slice(&d.name.as_bytes()[..n]);
            (entry.max_bytes, entry.kind) = (d.max_bytes, d.kind);
            entry.shares = d.shares.into();
            entry.rank = d.rank;
        }
        page.magic = LAYOUT;
        Writer(page)
    }

    /// As who reads it has it.
    pub fn page(self) -> &'static Control {
        self.0
    }

    /// Once the guard against calls that keep pages is in force.
    pub fn start_recycling(self) {
        self.0.recycle.store(1, SeqCst);
    }

    /// Before a call that may keep pages takes effect.
    pub fn stop_recycling(self) {
        self.0.recycle.store(0, SeqCst);
    }

    pub fn set_swap_in(self, mode: SwapIn) {
        self.0.swapin.store(mode as u32, Relaxed);
    }

    pub fn set_totals(self, charged_pages: u64, swapped_bytes: u64, swapoff_pages: u64) {
        let t = &self.0.totals;
        t.charged_pages.store(charged_pages, Relaxed);
        t.swapped_bytes.store(swapped_bytes, Relaxed);
        t.swapoff_pages.store(swapoff_pages, Relaxed);
    }

    /// What is to be known of a device.
    pub fn set_device(self, device: usize, usage: Usage, taken: usize) {
        let entry = &self.0.devices[device];
        entry.usage.store(usage.word(), Release);
        entry.taken.store(taken as u32, Relaxed);
    }
}

impl Deref for Writer {
    type Target = Control;
    fn deref(&self) -> &Control {
        self.0
    }
}

impl DeviceEntry {
    /// What the user calls it.
    pub fn name(&self) -> &[u8] {
        let n = self.name.iter().position(|&b| b == 0).unwrap_or(0);
        &self.name[..n]
    }

    pub fn usage(&self) -> Usage {
        Usage::of_word(self.usage.load(Acquire))
    }

    /// Clusters that processes have.
    pub fn taken_clusters(&self) -> usize {
        self.taken.load(Relaxed) as usize
    }

    /// Segments that the device's size allows.
    pub fn segments(&self) -> usize {
        (self.max_bytes / SEGMENT_BYTES).min(MAX_SEGMENTS as u64) as usize
    }
}

impl Writer {
    /// A page of a test's own, with devices of so many segments, one used up before the other; the engine's
    /// tests use it too.
    #[doc(hidden)]
    pub fn with_segments(devices: &[u64]) -> Writer {
        let ranked = devices.iter().zip(0..).map(|(&n, rank)| (n, rank));
        Writer::with_ranks(&ranked.collect::<Vec<_>>())
    }

    /// The same with devices of so many segments and these ranks.
    #[doc(hidden)]
    pub fn with_ranks(devices: &[(u64, u32)]) -> Writer {
        Writer::with_settings(Settings::default(), devices)
    }

    /// The same with these settings.
    #[doc(hidden)]
    pub fn with_settings(settings: Settings, devices: &[(u64, u32)]) -> Writer {
        let page = mem::map_anon(Control::BYTES).unwrap() as *mut Control;
        let devices: Vec<_> = devices
            .iter()
            .map(|&(n, rank)| NewDevice {
                name: "",
                max_bytes: n * SEGMENT_BYTES,
                shares: false,
                kind: FILE,
                rank,
            })
            .collect();
        // SAFETY: mapped with this size and never unmapped; every bit pattern is valid.
        unsafe { Writer::fill(&mut *page, settings, &devices) }
    }
}
