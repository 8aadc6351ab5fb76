//! The table of 2 MiB ranges: two levels, lazily touched, found without a lock.

use super::lru::{List, Shadow};
use crate::mm::{PageMask, Pmd, SlotWord, SwapPlace, PMD_NR};
use crate::sync::RawLock;
use crate::sys::futex::{self, Scope};
use crate::sys::{mem, Errno};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// The transfer in flight for a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum IoState {
    Idle = 0,
    Reading = 1,
    Filling = 2,
    Writing = 3,
    Ahead = 4,
    Inactive = 5,
}

impl IoState {
    /// No transfer is in flight.
    pub fn is_settled(self) -> bool {
        matches!(self, IoState::Idle | IoState::Ahead | IoState::Inactive)
    }
}

impl IoState {
    pub(super) fn from_word(w: u32) -> IoState {
        match w {
            0 => IoState::Idle,
            1 => IoState::Reading,
            2 => IoState::Filling,
            3 => IoState::Writing,
            4 => IoState::Ahead,
            _ => IoState::Inactive,
        }
    }
}

/// Small fills of a range since it last left; `epoch` is `fault::working_set`'s.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fills {
    pub epoch: u16,
    pub count: u8,
}

/// What the program said of how it will use a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hints {
    pub pattern: Pattern,
    pub huge: Huge,
}

/// MADV_NORMAL, MADV_SEQUENTIAL, MADV_RANDOM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Pattern {
    #[default]
    Normal = 0,
    Sequential = 1,
    Random = 2,
}

/// MADV_HUGEPAGE, MADV_NOHUGEPAGE.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Huge {
    #[default]
    Unsaid = 0,
    Wanted = 1,
    Unwanted = 2,
}

/// What is known of one 2 MiB range; fields are read and written under its lock.
pub struct State {
    pub present: PageMask,
    pub swapped: PageMask,
    pub writable: PageMask,
    /// Pages that could not be read back: neither present nor swapped, and poisoned until the
    /// program drops them.
    pub lost: PageMask,
    /// Pages of the transfer in flight, or in the frame.
    pub moving: PageMask,
    /// Pages that may be in the frame `frame`: see the module.
    pub held: PageMask,
    pub frame: u32,
    /// The place in swap of the pages in `swapped`; while io is Writing, of those being written too.
    pub entry: Option<SwapPlace>,
    /// Staging frame or fill buffer of the transfer in flight.
    pub buffer: u32,
    /// Somebody faulted while the transfer was in flight.
    pub wanted: bool,
    /// A read of the whole failed: bring it in page by page, so that only what is bad is lost.
    pub salvage: bool,
    /// The range has had checksums: their table's page is charged.
    pub summed: bool,
    /// The range has had a table of slots: its memory is charged.
    pub tabled: bool,
    /// On the LRU list `list`.
    pub listed: bool,
    pub list: List,
    /// Of its last eviction.
    pub shadow: Shadow,
    /// In memory as one huge page, as far as we know.
    pub huge: bool,
    /// The read in flight is ahead of its fault.
    pub ahead: bool,
    pub hints: Hints,
    pub fills: Fills,
}

/// A range's descriptor: 64-byte head and the masks.
#[repr(C, align(64))]
pub struct Range {
    lock: RawLock,
    pub(super) io: AtomicU32,
    pub(super) lru_next: AtomicU32,
    pub(super) lru_prev: AtomicU32,
    pub(super) state: UnsafeCell<State>,
}

// SAFETY: `state` is only reached through a guard, which holds the lock.
unsafe impl Sync for Range {}

impl Range {
    pub fn lock(&self) -> RangeGuard<'_> {
        self.lock.lock();
        RangeGuard { range: self }
    }

    /// Sleeps until no transfer is in flight, and returns with the lock; there may still be a
    /// frame that holds pages (see `swap_cache::settle`). For hooks: an engine thread that ends transfers must not call it.
    pub fn lock_settled(&self) -> RangeGuard<'_> {
        loop {
            let g = self.lock();
            let io = self.io.load(Relaxed);
            if IoState::from_word(io).is_settled() {
                return g;
            }
            drop(g);
            WAITERS.fetch_add(1, SeqCst);
            futex::wait(&self.io, io, None, Scope::Process);
            WAITERS.fetch_sub(1, SeqCst);
        }
    }
}

/// Threads in `lock_settled` that sleep or are about to. Nearly always none: a transfer's end then
/// needs no system call.
static WAITERS: AtomicU32 = AtomicU32::new(0);

pub struct RangeGuard<'a> {
    range: &'a Range,
}

impl RangeGuard<'_> {
    pub fn io(&self) -> IoState {
        IoState::from_word(self.range.io.load(Relaxed))
    }

    pub fn set_io(&mut self, io: IoState) {
        // Either we see the waiter here, or it sees the new word before it sleeps.
        self.range.io.store(io as u32, SeqCst);
        if io.is_settled() && WAITERS.load(SeqCst) > 0 {
            futex::wake(&self.range.io, u32::MAX, Scope::Process);
        }
    }

    /// The LRU list that the range will be on, if it is on none now.
    pub fn belongs_to(&mut self, list: List) {
        if !self.listed {
            self.list = list;
        }
    }

    /// Whole in memory and movable as a whole.
    pub fn is_whole(&self) -> bool {
        self.present.is_full() && self.writable.is_full()
    }
}

impl core::ops::Deref for RangeGuard<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.range.state.get() }
    }
}
impl core::ops::DerefMut for RangeGuard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        // SAFETY: the guard holds the lock and is borrowed mutably.
        unsafe { &mut *self.range.state.get() }
    }
}
impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.range.lock.unlock();
    }
}

const LEAF_BITS: u32 = 13;
/// Ranges of a leaf.
pub const LEAF: usize = 1 << LEAF_BITS;
/// Leaves. 47 bits of addresses, 21 of them inside a range.
pub const ROOT: usize = 1 << (47 - 21 - LEAF_BITS);

/// All ranges that were ever managed. Leaves (16 GiB of addresses each) are mapped when first
/// needed and never freed; all-zero bytes are a valid empty descriptor.
pub struct Ranges {
    root: *mut AtomicPtr<Range>,
    /// Checksums and slots, mapped beside the leaves: first the sums of all ranges of the leaf, a
    /// page of them to each, then the slots.
    sums: *mut AtomicPtr<Sums>,
}

/// Checksums of the pages of a range, as they were when they were read from swap.
pub type Sums = [u64; PMD_NR];

/// Slots of the pages of a range that is not in one cluster. All-zero bytes are valid words.
pub type SlotTable = [SlotWord; PMD_NR];

// SAFETY: the root is only read and written through atomics.
unsafe impl Sync for Ranges {}
// SAFETY: as above.
unsafe impl Send for Ranges {}

impl Ranges {
    pub fn new() -> Result<Ranges, Errno> {
        let root = mem::map_anon(ROOT * size_of::<AtomicPtr<Range>>())?;
        let sums = mem::map_anon(ROOT * size_of::<AtomicPtr<Sums>>())?;
        Ok(Ranges {
            root: root as *mut AtomicPtr<Range>,
            sums: sums as *mut AtomicPtr<Sums>,
        })
    }

    /// Where the pointers to the leaves are, and those to the leaves' checksums and slots: `ROOT` of each.
    pub fn roots(&self) -> [usize; 2] {
        [self.root as usize, self.sums as usize]
    }

    fn root(&self, pmd: Pmd) -> Option<&AtomicPtr<Range>> {
        let i = (pmd.0 >> LEAF_BITS) as usize;
        // SAFETY: inside the root table, which is never unmapped; zero is a null pointer.
        (i < ROOT).then(|| unsafe { &*self.root.add(i) })
    }

    /// The descriptor of a range, where one was ever made in its neighbourhood.
    #[inline]
    pub fn get(&self, pmd: Pmd) -> Option<&Range> {
        let leaf = self.root(pmd)?.load(Acquire);
        if leaf.is_null() {
            return None;
        }
        // SAFETY: leaves are never unmapped and hold LEAF descriptors.
        Some(unsafe { &*leaf.add(pmd.0 as usize & (LEAF - 1)) })
    }

    /// As `get`, making what is missing.
    pub fn get_or_map(&self, pmd: Pmd) -> Result<&Range, Errno> {
        let slot = self.root(pmd).ok_or(Errno::EINVAL)?;
        if slot.load(Acquire).is_null() {
            let bytes = LEAF * size_of::<Range>();
            let leaf = mem::map_anon(bytes)? as *mut Range;
            if slot
                .compare_exchange(core::ptr::null_mut(), leaf, AcqRel, Acquire)
                .is_err()
            {
                // SAFETY: another thread was first; nobody saw ours.
                let _ = unsafe { mem::munmap(leaf as usize, bytes) };
            }
        }
        self.get(pmd).ok_or(Errno::ENOMEM)
    }

    /// The place for a range's checksums; null if there is no memory for them. Only whoever has
    /// the range's transfer, or its lock while it has none, may use it.
    pub fn sums(&self, pmd: Pmd) -> *mut Sums {
        match self.tables(pmd) {
            // SAFETY: the tables begin with LEAF elements of sums.
            Some(leaf) => unsafe { leaf.add(pmd.0 as usize & (LEAF - 1)) },
            None => core::ptr::null_mut(),
        }
    }

    /// The place for a range's table of slots, as `sums`.
    pub fn slots(&self, pmd: Pmd) -> *mut SlotTable {
        match self.tables(pmd) {
            // SAFETY: behind LEAF elements of sums the tables have LEAF of slots.
            Some(leaf) => unsafe {
                let slots = leaf.add(LEAF) as *mut SlotTable;
                slots.add(pmd.0 as usize & (LEAF - 1))
            },
            None => core::ptr::null_mut(),
        }
    }

    fn tables(&self, pmd: Pmd) -> Option<*mut Sums> {
        let i = (pmd.0 >> LEAF_BITS) as usize;
        if i >= ROOT {
            return None;
        }
        // SAFETY: inside the table, which is never unmapped.
        let slot = unsafe { &*self.sums.add(i) };
        if slot.load(Acquire).is_null() {
            let bytes = LEAF * (size_of::<Sums>() + size_of::<SlotTable>());
            let leaf = mem::map_anon(bytes).ok()?;
            if slot
                .compare_exchange(core::ptr::null_mut(), leaf as *mut Sums, AcqRel, Acquire)
                .is_err()
            {
                // SAFETY: another thread was first; nobody saw ours.
                let _ = unsafe { mem::munmap(leaf as usize, bytes) };
            }
        }
        Some(slot.load(Acquire))
    }

    /// The first range at or after `from` that has a descriptor.
    pub fn next(&self, from: Pmd) -> Option<Pmd> {
        let from = from.0 as usize;
        (from >> LEAF_BITS..ROOT).find_map(|i| {
            // SAFETY: inside the root table.
            let leaf = unsafe { &*self.root.add(i) }.load(Acquire);
            (!leaf.is_null()).then(|| Pmd(from.max(i * LEAF) as u32))
        })
    }

    /// Every descriptor that may be in use. For fork and statistics.
    pub fn for_each(&self, mut f: impl FnMut(Pmd, &Range)) {
        for i in 0..ROOT {
            // SAFETY: inside the root table.
            let leaf = unsafe { &*self.root.add(i) }.load(Acquire);
            if leaf.is_null() {
                continue;
            }
            for j in 0..LEAF {
                // SAFETY: leaves are never unmapped and hold LEAF descriptors.
                f(Pmd((i * LEAF + j) as u32), unsafe { &*leaf.add(j) });
            }
        }
    }
}

const _: () = assert!(PMD_NR == 512);
const _: () = assert!(size_of::<Range>() <= 448);
