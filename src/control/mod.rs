//! The page that the supervisor shares with the processes it runs: limits down, counters up.
//!
//! `hugeswap run` makes it in a memfd; every managed process maps it. Nobody holds a lock in it,
//! so that `kill -9` of anyone leaves it usable. What is one process's alone is in a page of its own
//! (`own`); what has to be asked for goes over a socket (`link`).
#![allow(unsafe_code)]

pub mod link;
mod own;

pub use own::{keep_from_children, Clusters, Mapped, Proc, Writing};

use crate::mm::PAGE_SIZE;
use crate::seal::Mode;
use crate::sys::futex::{self, Scope};
use crate::sys::{mem, Errno};
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// Layout of this structure; a preloaded library of another build refuses to run.
pub const LAYOUT: u64 = 0x6875_6765_7377_0000 + (Control::BYTES + Proc::BYTES) as u64;

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
/// Swap space is handed to processes in pieces of this size.
pub const SEGMENT_BYTES: u64 = 32 << 20;
/// Clusters of a segment.
pub const SEGMENT_CLUSTERS: usize = SEGMENT_BYTES as usize / crate::mm::PMD_SIZE;
/// 2 TiB of swap to a device.
pub const MAX_SEGMENTS: usize = 65536;
const LOG_BYTES: usize = 64 << 10;
/// Segments whose space the supervisor gives back at once.
const DISCARD_BATCH: usize = 32;

/// Words of `DeviceEntry::owners`. Any other is 1 + the index of the process whose segment it is.
///
/// | word | meaning | becomes |
/// |---|---|---|
/// | NOBODY | free, nothing on the disk | owned (a process) |
/// | DISCARD | free, its space not given back yet | owned (a process), DISCARDING (supervisor) |
/// | DISCARDING | the supervisor gives its space back | NOBODY (supervisor) |
/// | owned | a process's | DISCARD (that process; supervisor: it is dead) |
const NOBODY: u32 = 0;
const DISCARD: u32 = u32::MAX;
const DISCARDING: u32 = u32::MAX - 1;

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
}

/// How much of a folio that left comes back at a fault: the references' `swapin_enabled`, and what
/// learns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum SwapIn {
    /// By what the program does and says.
    #[default]
    Auto = 0,
    /// All of it.
    Always = 1,
    /// All of it where the program said MADV_HUGEPAGE, else base pages.
    Madvise = 2,
    /// Base pages.
    Never = 3,
}

/// Engine settings, the same for every process of a run.
#[repr(C)]
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
    /// A `SwapIn`.
    pub swapin: u32,
    /// What goes to swap is encrypted.
    pub encrypt: u32,
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

    pub fn swap_in(&self) -> SwapIn {
        match self.swapin {
            1 => SwapIn::Always,
            2 => SwapIn::Madvise,
            3 => SwapIn::Never,
            _ => SwapIn::Auto,
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

/// An epoch and a phase, in the word `DeviceEntry::usage`.
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
    /// A `Usage`.
    usage: AtomicU32,
    /// Whose each segment is; see `NOBODY`.
    owners: [AtomicU32; MAX_SEGMENTS],
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
    /// Bumped to call the supervisor.
    pub need: AtomicU32,
    /// Bytes of the log ring ever written.
    log_at: AtomicU64,
    log: [AtomicU32; LOG_BYTES / 4],
    pub totals: Totals,
    pub devices: [DeviceEntry; MAX_DEVICES],
}

static CURRENT: AtomicPtr<Control> = AtomicPtr::new(core::ptr::null_mut());

/// The run of this process from now on.
pub fn set_current(control: &'static Control) {
    CURRENT.store(core::ptr::from_ref(control).cast_mut(), Release);
}

/// The run of this process, if it is in one.
pub fn current() -> Option<&'static Control> {
    // SAFETY: null, or made from such a reference.
    unsafe { CURRENT.load(Acquire).as_ref() }
}

const LINE: usize = 256;
const LINES: u64 = (LOG_BYTES / LINE) as u64;

impl Control {
    pub const BYTES: usize = size_of::<Control>().next_multiple_of(PAGE_SIZE);

    /// Maps the control page from a descriptor of at least `BYTES` bytes.
    ///
    /// # Safety
    /// The file must be one that only this code writes to.
    pub unsafe fn map(fd: i32) -> Result<&'static Control, Errno> {
        // Never unmapped.
        let a = mem::map_shared(fd, Self::BYTES)?;
        // SAFETY: mapped with this size; every bit pattern is valid for these fields.
        Ok(unsafe { &*(a as *const Control) })
    }

    /// For the supervisor, before anyone else maps the page.
    ///
    /// # Safety
    /// Nobody else may have the page yet.
    pub unsafe fn init(&self, settings: Settings) {
        let me = self as *const Control as *mut Control;
        // SAFETY: the caller's contract makes us the only one who looks.
        unsafe {
            (*me).settings = settings;
            (*me).magic = LAYOUT;
        }
    }

    /// For the supervisor, before anyone else maps the page.
    ///
    /// # Safety
    /// Nobody else may have the page yet.
    pub unsafe fn set_device(&self, i: usize, name: &str, max_bytes: u64, kind: u32) {
        let d = &self.devices[i] as *const DeviceEntry as *mut DeviceEntry;
        let fill = |field: &mut [u8; PATH_LEN], text: &str| {
            let n = text.len().min(PATH_LEN - 1);
            field[..n].copy_from_slice(&text.as_bytes()[..n]);
        };
        // SAFETY: the caller's contract makes us the only one who looks.
        unsafe {
            fill(&mut (*d).name, name);
            (*d).max_bytes = max_bytes;
            (*d).kind = kind;
        }
    }

    pub fn is_valid(&self) -> bool {
        self.magic == LAYOUT
    }

    /// For the supervisor, once the guard against calls that keep pages is in force.
    pub fn start_recycling(&self) {
        self.recycle.store(1, SeqCst);
    }

    /// Before a call that may keep pages takes effect.
    pub fn stop_recycling(&self) {
        self.recycle.store(0, SeqCst);
    }

    /// To be asked after a folio was moved out, of that folio.
    pub fn may_recycle(&self) -> bool {
        self.recycle.load(SeqCst) != 0
    }

    /// Calls the supervisor's attention.
    pub fn call(&self) {
        self.need.fetch_add(1, Release);
        futex::wake(&self.need, 1, Scope::Shared);
    }

    /// The devices of the run.
    pub fn devices(&self) -> &[DeviceEntry] {
        &self.devices[..(self.settings.devices as usize).min(MAX_DEVICES)]
    }

    /// Leaves a line for the supervisor to print.
    pub fn log(&self, line: &str) {
        let n = self.log_at.fetch_add(1, AcqRel) % LINES;
        let at = n as usize * LINE / 4;
        let bytes = line.as_bytes();
        for w in 0..LINE / 4 {
            let mut b = [0u8; 4];
            for (i, x) in b.iter_mut().enumerate() {
                *x = bytes.get(w * 4 + i).copied().unwrap_or(0);
            }
            if w == LINE / 4 - 1 {
                b[3] = 0;
            }
            self.log[at + w].store(u32::from_ne_bytes(b), Relaxed);
        }
        self.call();
    }

    /// Lines logged since `from` lines were; returns how many there are now.
    pub fn read_log(&self, from: u64, mut f: impl FnMut(&str)) -> u64 {
        let to = self.log_at.load(Acquire);
        for n in from.max(to.saturating_sub(LINES))..to {
            let at = (n % LINES) as usize * LINE / 4;
            let mut bytes = [0u8; LINE];
            for w in 0..LINE / 4 {
                bytes[w * 4..w * 4 + 4]
                    .copy_from_slice(&self.log[at + w].load(Relaxed).to_ne_bytes());
            }
            let len = bytes.iter().position(|&b| b == 0).unwrap_or(LINE);
            f(&String::from_utf8_lossy(&bytes[..len]));
        }
        to
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

    /// Goes from `from` to another phase; a new epoch begins with `Leaving`. None if it is not in
    /// `from` any more.
    pub fn change(&self, from: Usage, phase: Phase) -> Option<Usage> {
        let epoch = from.epoch.wrapping_add((phase == Phase::Leaving).into());
        let to = Usage {
            epoch: epoch & u32::MAX >> 2,
            phase,
        };
        self.usage
            .compare_exchange(from.word(), to.word(), AcqRel, Acquire)
            .is_ok()
            .then_some(to)
    }

    /// Segments that processes have.
    pub fn owned_segments(&self) -> usize {
        let owned = |w: &&AtomicU32| !matches!(w.load(Relaxed), NOBODY | DISCARD | DISCARDING);
        self.owners[..self.segments()].iter().filter(owned).count()
    }

    /// Segments that the device's size allows.
    pub fn segments(&self) -> usize {
        (self.max_bytes / SEGMENT_BYTES).min(MAX_SEGMENTS as u64) as usize
    }

    /// Takes a segment for process `proc`.
    pub fn claim_segment(&self, proc: usize) -> Option<usize> {
        (0..self.segments()).find(|&i| {
            let now = self.owners[i].load(Relaxed);
            matches!(now, NOBODY | DISCARD)
                && self.owners[i]
                    .compare_exchange(now, proc as u32 + 1, AcqRel, Relaxed)
                    .is_ok()
        })
    }

    /// Whether a segment will be free in a moment.
    pub fn is_discarding(&self) -> bool {
        let words = &self.owners[..self.segments()];
        words.iter().any(|w| w.load(Relaxed) == DISCARDING)
    }

    /// The owner needs nothing that is in the segment.
    pub fn release_segment(&self, seg: usize) {
        self.owners[seg].store(DISCARD, Release);
    }

    /// For the supervisor: process `proc` is gone, and nobody reads what it held in these segments.
    pub fn release_all(&self, proc: usize, which: impl Fn(usize) -> bool) {
        let its = |&seg: &usize| self.owners[seg].load(Acquire) == proc as u32 + 1 && which(seg);
        (0..self.segments())
            .filter(its)
            .for_each(|seg| self.release_segment(seg));
    }

    /// For the supervisor: has `give_back` return the space of free segments, many neighbours at a
    /// time.
    pub fn discard_free(&self, mut give_back: impl FnMut(Range<usize>)) {
        let take = |seg: usize| {
            let word = &self.owners[seg];
            word.load(Relaxed) == DISCARD
                && word
                    .compare_exchange(DISCARD, DISCARDING, AcqRel, Relaxed)
                    .is_ok()
        };
        let mut seg = 0;
        while seg < self.segments() {
            let most = self.segments().min(seg + DISCARD_BATCH);
            let end = (seg..most).find(|&s| !take(s)).unwrap_or(most);
            if end > seg {
                give_back(seg..end);
                for s in seg..end {
                    self.owners[s].store(NOBODY, Release);
                }
            }
            seg = end.max(seg + 1);
        }
    }
}

#[cfg(test)]
impl Control {
    /// A page of a test's own, with devices of so many segments.
    pub fn with_segments(devices: &[u64]) -> &'static Control {
        let page = crate::sys::mem::map_anon(Self::BYTES).unwrap() as *const Control;
        // SAFETY: mapped with this size and never unmapped; every bit pattern is valid.
        let control = unsafe { &*page };
        for (i, n) in devices.iter().enumerate() {
            // SAFETY: nobody else has it.
            unsafe { control.set_device(i, "", n * SEGMENT_BYTES, FILE) };
        }
        control
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_has_one_owner_and_is_discarded_once() {
        let d = &Control::with_segments(&[40]).devices[0];
        for seg in 0..40 {
            assert_eq!(d.claim_segment(seg % 2), Some(seg));
        }
        assert_eq!(d.claim_segment(0), None);
        d.release_segment(5);
        d.release_segment(6);
        d.release_segment(9);
        // What waits for its discard can be had.
        assert_eq!(d.claim_segment(7), Some(5));
        let mut seen = Vec::new();
        d.discard_free(|segs| {
            assert!(d.is_discarding());
            seen.push(segs);
        });
        assert_eq!(seen, [6..7, 9..10]);
        assert!(!d.is_discarding());
        assert_eq!(d.claim_segment(7), Some(6));
        d.release_all(1, |_| true);
        d.release_all(7, |_| true);
        d.release_all(0, |_| true);
        seen.clear();
        d.discard_free(|segs| seen.push(segs));
        assert_eq!(seen, [0..9, 10..40]);
        d.discard_free(|_| panic!("nothing is left"));
    }
}
