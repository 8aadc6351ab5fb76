//! What is true of the range, and whether memory and tables say the same.

use super::super::*;
use super::fake::{At, Fake};
use crate::mm::PAGE_SIZE;
use crate::vma::{Had, Snapshot};
use core::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

/// What differs between worlds.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Pages that are managed, from the first on.
    pub pages: usize,
    pub encrypt: bool,
    /// Per cent of memory that may be compressed.
    pub compress: u32,
    /// Pages can be moved; else they are copied.
    pub mv: bool,
    /// There are two devices, or none.
    pub devices: bool,
    /// What has left may stay where it is.
    pub lazyfree: bool,
}

/// What a page has in it: this word in three places, and zeros. 0: nothing but zeros.
pub(super) type Content = u64;

pub(super) const WORDS: [usize; 3] = [0, PAGE_SIZE / 2, PAGE_SIZE - 8];

/// # Safety
/// A page that is mapped.
pub(super) unsafe fn content(at: usize) -> Option<Content> {
    // SAFETY: the caller's contract.
    let words = WORDS.map(|o| unsafe { *((at + o) as *const u64) });
    (words[0] == words[1] && words[1] == words[2]).then_some(words[0])
}

/// What a device has in a slot, and what page that is.
#[derive(Default)]
pub(super) struct Slot {
    pub bytes: Vec<u8>,
    pub content: Content,
}

/// What the program and the device must have.
pub(super) struct Truth {
    pub pages: [Content; PMD_NR],
    /// Reads of them have failed: they may be lost.
    pub failed: PageMask,
    pub slots: HashMap<SwapEntry, Slot>,
    /// Slots that can't be read.
    pub bad: HashSet<SwapEntry>,
    pub written: u64,
}

/// The range, and what is true of it.
pub(super) struct Scene {
    pub cache: SwapCache<Fake>,
    pub pmd: Pmd,
    pub setup: Setup,
    pub truth: RefCell<Truth>,
    /// Nobody looks, since the program is in a call that changes what is true.
    pub blind: Cell<bool>,
}

/// What is charged for a range's tables.
fn pages_of_tables(mut had: Had) -> i64 {
    let tables = [
        (Had::TAGS, 2),
        (Had::NONCES, 1),
        (Had::SLOTS, 1),
        (Had::HANDLES, 1),
    ];
    let pages = tables.map(|(table, pages)| if had.insert(table) { 0 } else { pages });
    pages.into_iter().sum()
}

impl Scene {
    pub fn slots_of(
        &self,
        entry: crate::mm::SwapPlace,
        pages: PageMask,
    ) -> impl Iterator<Item = (usize, SwapEntry)> + '_ {
        let pieces = self.cache.pieces(self.pmd, entry, pages);
        pieces.flat_map(|piece| {
            let first = piece.pages.start;
            piece.pages.filter_map(move |page| {
                Some((page, piece.entry.checked_add((page - first) as u64)?))
            })
        })
    }

    /// What the program sees at a page that is there.
    pub fn look(&self, page: usize) {
        let truth = self.truth.borrow();
        match self.cache.memory.at(self.pmd.page_addr(page)) {
            At::Page => {
                // SAFETY: it is there.
                let seen = unsafe { content(self.pmd.page_addr(page)) };
                assert_eq!(seen, Some(truth.pages[page]), "page {page}");
            }
            At::Poison => assert!(truth.failed.has(page), "page {page} is lost"),
            At::Nothing => {}
        }
    }

    /// The range as a core file has it.
    pub fn snapshot(&self) -> Snapshot {
        let range: *const crate::vma::Range = self.cache.ranges.get(self.pmd).unwrap();
        // SAFETY: a descriptor of that size, which this thread alone changes.
        Snapshot::decode(unsafe { &*range.cast::<[u8; Snapshot::BYTES]>() })
    }

    /// Where the process would be killed now, a core file would have every page.
    pub fn look_after_death(&self) {
        if self.blind.get() {
            return;
        }
        let s = self.snapshot();
        let places = s.pages();
        let truth = self.truth.borrow();
        for page in 0..self.setup.pages {
            if truth.pages[page] == 0 && self.setup.pages == PMD_NR {
                // Most pages of a folio were never touched.
                continue;
            }
            if self.cache.memory.at(self.pmd.page_addr(page)) != At::Nothing {
                self.look(page);
                continue;
            }
            let in_frame = |(frame, pages): (u32, PageMask)| {
                let at = self.cache.frames.addr(Frame(frame)) + page * PAGE_SIZE;
                pages.has(page).then_some(at)
            };
            let found = match in_frame(places.in_frame).or(in_frame(places.moving)) {
                Some(at) => {
                    match self.cache.memory.at(at) {
                        // SAFETY: it is there.
                        At::Page => unsafe { content(at) },
                        // A hole.
                        _ => Some(0),
                    }
                }
                None if places.compressed.has(page) => continue,
                None if places.swapped.has(page) => {
                    let entry = s.entry.expect("a place");
                    let slot = self.slots_of(entry, PageMask::of(page..page + 1)).next();
                    let slot = slot.and_then(|(_, slot)| truth.slots.get(&slot));
                    Some(slot.expect("a slot that was written").content)
                }
                None => Some(0),
            };
            if !truth.failed.has(page) {
                assert_eq!(found, Some(truth.pages[page]), "page {page}: {s:?}");
            }
        }
    }

    /// What the table of states says of pages (`vma`).
    pub fn look_at_tables(&self) {
        let s = self.snapshot();
        let none = |a: PageMask, b: PageMask, what: &str| {
            assert!(a.and(b).is_empty(), "{what}: {s:?}");
        };
        none(s.compressed, s.present, "compressed and resident");
        none(s.compressed, s.moving, "compressed and moving");
        let lazy = self.cache.ranges.get(self.pmd).unwrap().lock().lazy;
        none(
            lazy,
            s.present.or(s.compressed).or(s.moving),
            "lazy and elsewhere",
        );
        assert!(
            lazy.minus(s.swapped).is_empty(),
            "lazy without a slot: {s:?}"
        );
        for page in 0..self.setup.pages {
            let at = self.pmd.page_addr(page);
            if self.cache.memory.is_protected(at) {
                assert!(lazy.has(page), "page {page} is protected: {s:?}");
            } else if lazy.has(page) {
                assert_eq!(self.cache.memory.at(at), At::Nothing, "page {page}: {s:?}");
            }
        }
        assert!(s.in_frame.is_empty() || s.io == IoState::Filling, "{s:?}");
        assert!(s.io != IoState::Idle || s.moving.is_empty(), "{s:?}");
        assert!(s.entry.is_some() || s.swapped.is_empty(), "{s:?}");
        let in_frame = match s.io {
            IoState::Inactive | IoState::Writing => s.moving,
            _ => PageMask::EMPTY,
        };
        for page in in_frame.runs().flatten() {
            let at = self.cache.frames.addr(Frame(s.buffer)) + page * PAGE_SIZE;
            assert_eq!(self.cache.memory.at(at), At::Page, "page {page}: {s:?}");
        }
    }

    pub fn nothing_is_left(&self, charged: i64) {
        let s = self.snapshot();
        assert_eq!(s.io, IoState::Idle);
        let somewhere = s.present.or(s.swapped).or(s.compressed);
        self.cache.settle_lazyfree();
        assert_eq!(self.cache.stats().lazyfree_bytes.get(), 0);
        assert!(somewhere.is_empty(), "{s:?}");
        if let Some(other) = self.cache.ranges.get(Pmd(self.pmd.0 + 1)) {
            let mut g = other.lock();
            g.writable = PageMask::EMPTY;
            assert!(g.used().is_empty(), "left behind: {:?}", g.used());
        }
        assert_eq!(self.cache.slots.used(), 0);
        self.cache.slots.validate().unwrap();
        while self.cache.release_ready() {}
        assert_eq!(self.cache.memory.frames_in_use(), 0, "a frame leaks");
        // Tables of the range, buffers of the engine's own.
        let own = self.cache.own_pages();
        let ranges = [self.pmd, Pmd(self.pmd.0 + 1)].map(|pmd| self.cache.ranges.get(pmd));
        let had = ranges.into_iter().flatten().map(|r| r.lock().tables);
        let tables: i64 = had.map(pages_of_tables).sum();
        let pool = self.cache.pool_pages() as i64;
        let now = self.cache.charge.charged() - own - tables - pool;
        assert_eq!(now, charged, "charges leak");
    }
}
