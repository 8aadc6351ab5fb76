//! The table of 2 MiB ranges: two levels, lazily touched, found without a lock.
#![allow(unsafe_code)]

use super::phase::{IoState, UnderWay, HELD};
use super::words::{HandleTable, Nonces, SlotTable, Stored, Table, Tags};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU8, Ordering::*};
use hugeswap_mm::{PageMask, Pmd, SwapPlace, PMD_NR};
use hugeswap_policy::intake::Fills;
use hugeswap_policy::{Credit, Hints, List, Shadow, Sparse};
use hugeswap_seal::Nonce;
use hugeswap_sys::gate;
use hugeswap_sys::sync::RawLock;
use hugeswap_sys::{mem, Errno};

/// A set of tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Had(u8);

impl Had {
    pub const TAGS: Had = Had(1);
    pub const NONCES: Had = Had(2);
    pub const SLOTS: Had = Had(4);
    pub const HANDLES: Had = Had(8);

    /// False if it was there.
    pub fn insert(&mut self, table: Had) -> bool {
        let new = self.0 & table.0 == 0;
        self.0 |= table.0;
        new
    }
}

/// What is known of one 2 MiB range; fields are read and written under its lock.
pub struct State {
    pub present: PageMask,
    pub swapped: PageMask,
    /// Pages in compressed memory. None of them is in `present` or `moving`; what has a slot too has the
    /// same there.
    pub compressed: PageMask,
    pub writable: PageMask,
    /// Pages in `swapped` that are still mapped, or were lately: protected against being written to, the same as in their
    /// slots, and freed lazily.
    pub lazy: PageMask,
    /// Pages that could not be read back: neither present nor swapped, and poisoned until the
    /// program drops them.
    pub lost: PageMask,
    /// See `phase`.
    pub(super) under_way: UnderWay,
    /// The place in swap of the pages in `swapped`; while io is Writing, of those being written too.
    pub entry: Option<SwapPlace>,
    /// A read of the whole failed: bring it in page by page, so that only what is bad is lost.
    pub salvage: bool,
    /// What all pages in `swapped`, and those being written, were sealed with; none where the range's
    /// table has a nonce for each.
    pub nonce: Nonce,
    /// Which tables the range has had: their memory is charged.
    pub tables: Had,
    /// In the queue of ranges with pages in compressed memory.
    pub queued: bool,
    /// On the LRU list `list`.
    pub listed: bool,
    pub list: List,
    /// Of its last eviction.
    pub shadow: Shadow,
    /// Of the pages in `present` and `moving`, where they are used in pieces.
    pub credit: Credit,
    /// Whether it is used here and there, by what was zeros when it left.
    pub sparse: Sparse,
    /// All of it is to leave when its turn comes, and not a part.
    pub asked: bool,
    /// In memory as one huge page, as far as we know.
    pub huge: bool,
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
    pub(super) lru_turn: AtomicU32,
    pub(super) queue_next: AtomicU32,
    pub(super) state: UnsafeCell<State>,
}

// SAFETY: `state` is only reached through a guard, which holds the lock.
unsafe impl Sync for Range {}

impl Range {
    #[inline]
    pub fn lock(&self) -> RangeGuard<'_> {
        self.lock.lock();
        RangeGuard { range: self }
    }

    /// For whoever has another range's lock already.
    #[inline]
    pub fn try_lock(&self) -> Option<RangeGuard<'_>> {
        self.lock.try_lock().then(|| RangeGuard { range: self })
    }

    /// Sleeps until no transfer is in flight and nobody holds the range, and returns with the lock;
    /// there may still be a frame that holds pages (see `swap_cache::settle`). For hooks: an engine
    /// thread that ends transfers must not call it.
    pub fn lock_settled(&self) -> RangeGuard<'_> {
        loop {
            let g = self.lock();
            let io = self.io.load(Relaxed);
            if IoState::from_word(io).is_settled() {
                return g;
            }
            drop(g);
            gate::sleep(&self.io, &WAITERS, io);
        }
    }
}

/// Threads in `lock_settled` that sleep or are about to. Nearly always none: a transfer's end then
/// needs no system call.
static WAITERS: AtomicU32 = AtomicU32::new(0);

#[clippy::has_significant_drop]
pub struct RangeGuard<'a> {
    range: &'a Range,
}

impl RangeGuard<'_> {
    #[inline]
    pub fn io(&self) -> IoState {
        IoState::from_word(self.range.io.load(Relaxed))
    }

    #[inline]
    pub(super) fn set_io(&mut self, io: IoState) {
        self.range.io.store(io as u32, SeqCst);
        if io.is_settled() {
            gate::opened(&self.range.io, &WAITERS);
        }
    }

    /// Faults wait from now on, and the engine leaves the range alone. It is settled.
    pub fn hold(&mut self) {
        debug_assert!(self.io().is_settled());
        self.range.io.fetch_or(HELD, SeqCst);
    }

    /// The end of `hold`; false if the range was not held.
    pub fn let_go(&mut self) -> bool {
        let was = self.range.io.fetch_and(!HELD, SeqCst);
        if was & HELD != 0 {
            gate::opened(&self.range.io, &WAITERS);
        }
        was & HELD != 0
    }

    /// The LRU list that the range will be on, if it is on none now.
    #[inline]
    pub fn belongs_to(&mut self, list: List) {
        if !self.listed {
            self.list = list;
        }
    }

    /// Pages that are something else than zeros, or may be.
    #[inline]
    pub fn used(&self) -> PageMask {
        let somewhere = self.present.or(self.swapped).or(self.compressed);
        somewhere.or(self.lost).or(self.moving())
    }

    /// What is mapped there next is another's: what was learned of its use and said of it is not for that.
    pub fn becomes_anothers(&mut self) {
        self.hints = Hints::default();
        self.sparse = Sparse::default();
    }

    /// A walk goes through it without a fault; unless the kernel has taken some of what is lazy, and then there is one.
    pub fn is_all_there(&self) -> bool {
        self.present.or(self.lazy).is_full()
    }

    /// Whole in memory and movable as a whole.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.present.is_full() && self.writable.is_full()
    }
}

impl core::ops::Deref for RangeGuard<'_> {
    type Target = State;
    #[inline]
    fn deref(&self) -> &State {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.range.state.get() }
    }
}
impl core::ops::DerefMut for RangeGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        // SAFETY: the guard holds the lock and is borrowed mutably.
        unsafe { &mut *self.range.state.get() }
    }
}
impl Drop for RangeGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.range.lock.unlock();
    }
}

const LEAF_BITS: u32 = 13;
/// Ranges of a leaf.
pub const LEAF: usize = 1 << LEAF_BITS;
/// Leaves. 47 bits of addresses, 21 of them inside a range.
pub const ROOT: usize = 1 << (47 - 21 - LEAF_BITS);

/// Where the nonces are behind a leaf's tags, and the slots; in bytes.
pub const NONCES_AT: usize = LEAF * size_of::<Tags>();
pub const SLOTS_AT: usize = NONCES_AT + LEAF * size_of::<Nonces>();
pub const HANDLES_AT: usize = SLOTS_AT + LEAF * size_of::<SlotTable>();
const TABLES: usize = HANDLES_AT + LEAF * size_of::<HandleTable>();

/// What is known of a range without its descriptor. A mapping of many GiB would touch as many
/// descriptors as it has ranges, and most of them may never be used.
mod mark {
    /// Never managed.
    pub const NONE: u8 = 0;
    /// All of it is writable and nothing else is to be said; the descriptor is still empty.
    pub const FRESH: u8 = 1;
    /// The descriptor says all.
    pub const USED: u8 = 2;
}

/// All ranges that were ever managed. Leaves (16 GiB of addresses each) are mapped when first
/// needed and never freed; all-zero bytes are a valid empty descriptor.
pub struct Ranges {
    /// A mark for each range that there can be; touched only as used.
    marks: &'static [AtomicU8],
    root: *mut AtomicPtr<Range>,
    /// Tags, nonces, slots and handles, mapped beside the leaves: of all ranges of the leaf first the tags,
    /// then the nonces, then the slots, then the handles.
    tables: *mut AtomicPtr<Tags>,
}

// SAFETY: the root is only read and written through atomics.
unsafe impl Sync for Ranges {}
// SAFETY: as above.
unsafe impl Send for Ranges {}

impl Ranges {
    pub fn new() -> Result<Ranges, Errno> {
        // SAFETY: zero is a valid mark.
        let marks = unsafe { mem::map_table(ROOT * LEAF) }?;
        let root = mem::map_anon(ROOT * size_of::<AtomicPtr<Range>>())?;
        let tables = mem::map_anon(ROOT * size_of::<AtomicPtr<Tags>>())?;
        Ok(Ranges {
            marks,
            root: root as *mut AtomicPtr<Range>,
            tables: tables as *mut AtomicPtr<Tags>,
        })
    }

    /// Where the pointers to the leaves are, and those to the leaves' tables: `ROOT` of each.
    pub fn roots(&self) -> [usize; 2] {
        [self.root as usize, self.tables as usize]
    }

    fn root(&self, pmd: Pmd) -> Option<&AtomicPtr<Range>> {
        let i = (pmd.0 >> LEAF_BITS) as usize;
        // SAFETY: inside the root table, which is never unmapped; zero is a null pointer.
        (i < ROOT).then(|| unsafe { &*self.root.add(i) })
    }

    fn mark(&self, pmd: Pmd) -> Option<&AtomicU8> {
        self.marks.get(pmd.0 as usize)
    }

    /// The descriptor, whatever it says, where there is memory for it.
    #[inline]
    fn place(&self, pmd: Pmd) -> Option<&Range> {
        let leaf = self.root(pmd)?.load(Acquire);
        if leaf.is_null() {
            return None;
        }
        // SAFETY: leaves are never unmapped and hold LEAF descriptors.
        Some(unsafe { &*leaf.add(pmd.0 as usize & (LEAF - 1)) })
    }

    /// The descriptor of a range that is in use: that has contents, or has had some, or hints.
    #[inline]
    pub fn get(&self, pmd: Pmd) -> Option<&Range> {
        let used = self.mark(pmd)?.load(Acquire) == mark::USED;
        used.then(|| self.place(pmd)).flatten()
    }

    /// As `get`, making what is missing.
    pub fn get_or_map(&self, pmd: Pmd) -> Result<&Range, Errno> {
        let mark = self.mark(pmd).ok_or(Errno::EINVAL)?;
        if mark.load(Acquire) == mark::USED {
            return self.place(pmd).ok_or(Errno::ENOMEM);
        }
        self.map_leaf(pmd)?;
        let range = self.place(pmd).ok_or(Errno::ENOMEM)?;
        // Both change under the descriptor's lock, which nobody has for long that does not know it yet.
        let mut g = range.lock();
        loop {
            let was = mark.load(Acquire);
            if was == mark::USED {
                return Ok(range);
            }
            g.writable = if was == mark::FRESH {
                PageMask::FULL
            } else {
                PageMask::EMPTY
            };
            // Unless it was mapped or unmapped just now.
            if mark
                .compare_exchange(was, mark::USED, AcqRel, Acquire)
                .is_ok()
            {
                return Ok(range);
            }
        }
    }

    /// All of the range is writable now. False if it is in use: then its descriptor has to say so.
    pub fn begin_fresh(&self, pmd: Pmd) -> bool {
        self.change(pmd, mark::NONE, mark::FRESH)
    }

    /// Nothing of the range is writable any more. False if it was not fresh.
    pub fn end_fresh(&self, pmd: Pmd) -> bool {
        self.change(pmd, mark::FRESH, mark::NONE)
    }

    fn change(&self, pmd: Pmd, from: u8, to: u8) -> bool {
        self.mark(pmd)
            .is_some_and(|m| m.compare_exchange(from, to, AcqRel, Relaxed).is_ok())
    }

    /// Whether anything is writable there, or was.
    pub fn is_known(&self, pmd: Pmd) -> bool {
        self.mark(pmd)
            .is_some_and(|m| m.load(Acquire) != mark::NONE)
    }

    fn map_leaf(&self, pmd: Pmd) -> Result<(), Errno> {
        let slot = self.root(pmd).ok_or(Errno::EINVAL)?;
        if !slot.load(Acquire).is_null() {
            return Ok(());
        }
        let bytes = LEAF * size_of::<Range>();
        let leaf = mem::map_anon(bytes)? as *mut Range;
        if slot
            .compare_exchange(core::ptr::null_mut(), leaf, AcqRel, Acquire)
            .is_err()
        {
            // SAFETY: another thread was first; nobody saw ours.
            unsafe { mem::unmap_own(leaf as usize, bytes) };
        }
        Ok(())
    }

    /// A range's tags; none if there is no memory for them. As the other three.
    pub fn tags(&self, pmd: Pmd) -> Option<&Tags> {
        // SAFETY: the tables begin with LEAF elements of tags.
        unsafe { self.table(pmd, 0) }
    }

    pub fn nonces(&self, pmd: Pmd) -> Option<&Nonces> {
        // SAFETY: behind LEAF elements of tags the tables have LEAF of nonces.
        unsafe { self.table(pmd, NONCES_AT) }
    }

    pub fn slots(&self, pmd: Pmd) -> Option<&SlotTable> {
        // SAFETY: behind LEAF elements of nonces the tables have LEAF of slots.
        unsafe { self.table(pmd, SLOTS_AT) }
    }

    pub fn handles(&self, pmd: Pmd) -> Option<&HandleTable> {
        // SAFETY: behind LEAF elements of slots the tables have LEAF of handles.
        unsafe { self.table(pmd, HANDLES_AT) }
    }

    /// # Safety
    /// So many bytes behind a leaf's tables are LEAF elements of that kind.
    unsafe fn table<T: Stored>(&self, pmd: Pmd, behind: usize) -> Option<&Table<T>> {
        let leaf = self.tables(pmd)?;
        // SAFETY: the caller's contract; tables are never unmapped, and are reached by such references only.
        unsafe {
            let all = leaf.byte_add(behind) as *const Table<T>;
            Some(&*all.add(pmd.0 as usize & (LEAF - 1)))
        }
    }

    fn tables(&self, pmd: Pmd) -> Option<*mut Tags> {
        let i = (pmd.0 >> LEAF_BITS) as usize;
        if i >= ROOT {
            return None;
        }
        // SAFETY: inside the table, which is never unmapped.
        let slot = unsafe { &*self.tables.add(i) };
        if slot.load(Acquire).is_null() {
            let leaf = mem::map_anon(TABLES).ok()?;
            if slot
                .compare_exchange(core::ptr::null_mut(), leaf as *mut Tags, AcqRel, Acquire)
                .is_err()
            {
                // SAFETY: another thread was first; nobody saw ours.
                unsafe { mem::unmap_own(leaf as usize, TABLES) };
            }
        }
        Some(slot.load(Acquire))
    }

    /// The first range at or after `from` that is in use.
    pub fn next(&self, from: Pmd) -> Option<Pmd> {
        let from = from.0 as usize;
        (from >> LEAF_BITS..ROOT).find_map(|i| {
            // SAFETY: inside the root table.
            let leaf = unsafe { &*self.root.add(i) }.load(Acquire);
            if leaf.is_null() {
                return None;
            }
            (from.max(i * LEAF)..(i + 1) * LEAF)
                .map(|pmd| Pmd(pmd as u32))
                .find(|pmd| self.get(*pmd).is_some())
        })
    }

    /// Every descriptor that is in use.
    pub fn for_each(&self, mut f: impl FnMut(Pmd, &Range)) {
        let mut next = self.next(Pmd(0));
        while let Some(pmd) = next {
            if let Some(r) = self.get(pmd) {
                f(pmd, r);
            }
            next = self.next(Pmd(pmd.0 + 1));
        }
    }
}

const _: () = assert!(PMD_NR == 512);
const _: () = assert!(size_of::<Range>() <= 832);
/// With a mark at most 0.83 % of 2 MiB; 0.43 % where a folio comes and goes whole.
const _: () = assert!(size_of::<Range>() + TABLES / LEAF < 17_407);

#[cfg(test)]
mod tests {
    use super::*;

    fn used(t: &Ranges) -> Vec<Pmd> {
        let mut all = Vec::new();
        t.for_each(|pmd, _| all.push(pmd));
        all
    }

    #[test]
    fn a_fresh_range_needs_no_descriptor_until_it_is_used() {
        let t = Ranges::new().unwrap();
        let (one, two) = (Pmd(5), Pmd(3 * LEAF as u32 + 7));
        assert!(t.begin_fresh(one) && !t.begin_fresh(one) && t.begin_fresh(two));
        assert!(t.is_known(one) && t.get(one).is_none() && t.next(Pmd(0)).is_none());
        t.get_or_map(two).unwrap();
        assert!(t.get(two).unwrap().lock().writable.is_full());
        assert_eq!(used(&t), [two]);
        // One that is used says for itself what is writable.
        assert!(!t.end_fresh(two) && !t.begin_fresh(two));
        assert!(t.end_fresh(one) && !t.end_fresh(one) && !t.is_known(one));
        assert!(t.get_or_map(one).unwrap().lock().writable.is_empty());
        assert_eq!(used(&t), [one, two]);
        assert_eq!(t.next(Pmd(6)), Some(two));
        assert_eq!(t.next(Pmd(two.0 + 1)), None);
    }

    #[test]
    fn whoever_comes_first_all_of_it_is_writable_once() {
        let t = Ranges::new().unwrap();
        for i in 0..2000 {
            let pmd = Pmd(i);
            std::thread::scope(|s| {
                let user = s.spawn(|| {
                    t.get_or_map(pmd).unwrap();
                });
                let fresh = t.begin_fresh(pmd);
                user.join().unwrap();
                let writable = t.get_or_map(pmd).unwrap().lock().writable;
                assert_eq!(writable.is_full(), fresh, "{i}");
            });
        }
    }
}
