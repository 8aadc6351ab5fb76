//! Sealing on the way to slots, opening on the way back: the one place for each that every page
//! passes.
#![allow(unsafe_code)]

use super::{Frame, Memory, Shift, SwapCache, Transfer};
use crate::mm::{PageMask, Pmd, SwapEntry, SwapPlace, PAGE_SIZE, PMD_NR, PMD_SIZE};
use crate::policy::AT_A_TIME;
use crate::seal::{Mode, Nonce, Page, Tag};
use crate::sys::{mem, Errno};
use crate::vma::{Had, Nonces, Range, RangeGuard, Tags};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Pages of a range's tags, and of its nonces.
const TAG_PAGES: usize = size_of::<Tags>() / PAGE_SIZE;
const NONCE_PAGES: usize = size_of::<Nonces>() / PAGE_SIZE;
/// Buffers that pages are sealed into take at most this part of the limit, for the program has less of it
/// by them; but there are two: one is written while pages are sealed into the other.
const BUFFERS_SHARE: i64 = 64;
/// Small ones take no more than this part where no folios are written: what leaves in pieces is not that much.
const PIECES_SHARE: i64 = 128;
const BUFFERS_LEAST: usize = 2;
/// A process that may have fewer pages has one.
const ONE_SHARE: i64 = 8 * PMD_NR as i64;

/// So many pages are sealed into a small buffer. They may lie anywhere in memory, and what has more
/// pieces than the device takes at a time (126, of virtio disks) needs a thread of the kernel's.
const SMALL: usize = AT_A_TIME;
const SMALL_BYTES: usize = SMALL * PAGE_SIZE;

/// Where pages are sealed to be written, one behind the other: a frame's pages may go back to the program
/// meanwhile. For each write in flight there is a large buffer, of a huge page, and a small one, of base
/// pages. The first of them are used first, and each is charged when, and as far as, it is first used.
/// Where two large ones are more than their part of the limit there are small ones only, and what is more than one
/// takes is sealed and written in parts.
pub struct SealBuffers {
    large: usize,
    small: usize,
    /// Which of the large ones are charged.
    touched: AtomicU32,
    /// How many pages of each small one are.
    touched_small: [AtomicU32; Self::COUNT],
}

/// What has been written lately.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writes {
    Folios,
    Pieces,
}

impl Writes {
    /// Of so many pages.
    pub fn of(pages: usize) -> Writes {
        match pages > SMALL {
            true => Writes::Folios,
            false => Writes::Pieces,
        }
    }
}

/// Where in memory the pages of a transfer are.
pub struct Source {
    base: usize,
    /// What lies there one behind the other; else each page has its place.
    packed: Option<PageMask>,
}

impl Source {
    /// Each page in its place.
    pub(super) fn frame(base: usize) -> Source {
        Source { base, packed: None }
    }

    pub fn addr(&self, page: usize) -> usize {
        let at = self.packed.map_or(page, |pages| pages.rank(page));
        self.base + at * PAGE_SIZE
    }

    /// Those of a read lie one behind the other.
    pub fn packed(base: usize, pages: PageMask) -> Source {
        Source {
            base,
            packed: Some(pages),
        }
    }

    /// Whether pages that follow one another in the write do so in memory too.
    pub fn is_packed(&self) -> bool {
        self.packed.is_some()
    }
}

impl SealBuffers {
    pub const COUNT: usize = crate::control::WRITES;

    pub(super) fn new() -> Result<SealBuffers, Errno> {
        Ok(SealBuffers {
            // Where there are no huge pages base pages do.
            large: Self::map(Self::COUNT * PMD_SIZE, libc::MADV_HUGEPAGE)?,
            small: Self::map(Self::COUNT * SMALL_BYTES, libc::MADV_NOHUGEPAGE)?,
            touched: AtomicU32::new(0),
            touched_small: [const { AtomicU32::new(0) }; Self::COUNT],
        })
    }

    /// How many writes there may be at a time of a process that may have so many pages, each with a buffer for so many.
    fn within(limit: i64, what: Writes) -> (usize, usize) {
        let fit = |pages: usize, share| (limit.max(0) / (pages as i64 * share)) as usize;
        let share = match what {
            Writes::Folios => BUFFERS_SHARE,
            Writes::Pieces => PIECES_SHARE,
        };
        match (fit(PMD_NR, BUFFERS_SHARE), limit) {
            (large @ BUFFERS_LEAST.., _) => (large.min(Self::COUNT), PMD_NR),
            (_, ..ONE_SHARE) => (1, SMALL),
            _ => (fit(SMALL, share).clamp(BUFFERS_LEAST, Self::COUNT), SMALL),
        }
    }

    fn map(bytes: usize, pages: i32) -> Result<usize, Errno> {
        let base = mem::reserve_aligned(bytes)?;
        // SAFETY: a reservation that nobody knows of. As with frames a child's addresses stay taken.
        unsafe {
            mem::mprotect(base, bytes, libc::PROT_READ | libc::PROT_WRITE)?;
            mem::madvise(base, bytes, libc::MADV_WIPEONFORK)?;
            mem::madvise(base, bytes, libc::MADV_DONTDUMP)?;
            let _ = mem::madvise(base, bytes, pages);
        }
        Ok(base)
    }
}

/// What is needed to open pages of a range.
struct Sealed<'t> {
    entry: Option<SwapPlace>,
    /// Of all, or none: then each has its own.
    nonce: Nonce,
    tags: &'t Tags,
    nonces: &'t Nonces,
}

impl Sealed<'_> {
    fn of(&self, page: usize) -> (Nonce, Tag) {
        let nonce = match self.nonce {
            Nonce::NONE => self.nonces.get(page),
            one => one,
        };
        (nonce, self.tags.get(page))
    }
}

impl<M: Memory> SwapCache<M> {
    /// How many writes there may be at a time.
    pub fn seal_buffers(&self, lately: Writes) -> usize {
        if self.sealer.mode == Mode::Check {
            return SealBuffers::COUNT;
        }
        let (fit, pages) = SealBuffers::within(self.charge.limit(), lately);
        // Another large one comes when there is room for it: the first write makes some.
        match self.seal_buffers.touched.load(Relaxed).count_ones() as usize {
            0 => fit,
            had if pages > SMALL && self.charge.room() < PMD_NR as i64 => had.min(fit),
            _ => fit,
        }
    }

    /// Of the pages of a write, those that are sealed at once; the others when these have been written.
    pub fn seals_at_once(&self, pages: PageMask) -> PageMask {
        let at_once = match self.sealer.mode {
            Mode::Check => PMD_NR,
            Mode::Encrypt => SealBuffers::within(self.charge.limit(), Writes::Folios).1,
        };
        pages.first(at_once)
    }

    /// Memory that this process is charged for and a child does not get.
    pub fn charge_own(&self, pages: usize) {
        self.charge.charge(pages);
        self.own_pages.fetch_add(pages as i64, Relaxed);
    }

    pub fn uncharge_own(&self, pages: usize) {
        self.charge.uncharge(pages);
        self.own_pages.fetch_sub(pages as i64, Relaxed);
    }

    pub fn own_pages(&self) -> i64 {
        self.own_pages.load(Relaxed)
    }

    /// In a child, whose buffers come empty.
    pub fn forget_own(&self) {
        self.own_pages.store(0, Relaxed);
        self.seal_buffers.touched.store(0, Relaxed);
        for small in &self.seal_buffers.touched_small {
            small.store(0, Relaxed);
        }
    }

    /// The range has a place for tags; false if there is no memory for it. For the reclaim thread.
    pub(super) fn make_tags(&self, pmd: Pmd, g: &mut RangeGuard<'_>) -> bool {
        if self.ranges.tags(pmd).is_none() {
            return false;
        }
        if g.tables.insert(Had::TAGS) {
            self.charge.charge(TAG_PAGES);
        }
        true
    }

    /// `pages`, which are not in `swapped`, will be sealed with the nonce.
    pub(super) fn set_nonce(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        pages: PageMask,
        nonce: Nonce,
    ) {
        if g.swapped.is_empty() {
            g.nonce = nonce;
            return;
        }
        self.split_nonces(pmd, g);
        // What is in `swapped` was sealed, so there are tables.
        if let Some(nonces) = self.ranges.nonces(pmd) {
            pages
                .runs()
                .flatten()
                .for_each(|page| nonces.set(page, nonce));
        }
    }

    /// Gives each page in `swapped` a nonce of its own.
    fn split_nonces(&self, pmd: Pmd, g: &mut RangeGuard<'_>) {
        if g.tables.insert(Had::NONCES) {
            self.charge.charge(NONCE_PAGES);
        }
        let one = core::mem::take(&mut g.nonce);
        if one == Nonce::NONE {
            return;
        }
        if let Some(nonces) = self.ranges.nonces(pmd) {
            let swapped = g.swapped.runs().flatten();
            swapped.for_each(|page| nonces.set(page, one));
        }
    }

    /// The slots of `swapped` go to another range; so does what opens them. `nonce` is what they were all
    /// sealed with, if it is one. Both ranges are held by the caller, who has the lock `g` of the new one;
    /// there they are not in `swapped` yet. `prepare_move` has seen to it that there are tables.
    pub(super) fn move_seals(
        &self,
        s: &Shift,
        swapped: PageMask,
        nonce: Nonce,
        g: &mut RangeGuard<'_>,
    ) {
        let tables = |pmd| self.ranges.tags(pmd).zip(self.ranges.nonces(pmd));
        let (Some((tags, nonces)), Some((new_tags, new_nonces))) = (tables(s.from), tables(s.to))
        else {
            // Without tags nothing can be opened.
            return;
        };
        self.make_tags(s.to, g);
        let one = nonce != Nonce::NONE && (g.swapped.is_empty() || g.nonce == nonce);
        if one {
            g.nonce = nonce;
        } else {
            self.split_nonces(s.to, g);
        }
        for page in swapped.runs().flatten() {
            let there = page - s.pages.start + s.there;
            // Nobody else uses these tables: what is held has no transfer, and of the new range we have the lock.
            new_tags.set(there, tags.get(page));
            if !one {
                let own = match nonce {
                    Nonce::NONE => nonces.get(page),
                    nonce => nonce,
                };
                new_nonces.set(there, own);
            }
        }
    }

    /// Every slot in use, by the nonce of what is in it. While the engine stands still.
    pub fn nonces_in_use(&self, f: &mut dyn FnMut(Nonce)) {
        self.ranges.for_each(|pmd, r| {
            let g = r.lock();
            if g.swapped.is_empty() {
                return;
            }
            let Some(sealed) = self.sealed(pmd, &g) else {
                return;
            };
            for page in g.swapped.runs().flatten() {
                f(sealed.of(page).0);
                if g.nonce != Nonce::NONE {
                    break;
                }
            }
        });
    }

    /// None if nothing of the range was ever sealed, for there was no memory.
    fn sealed(&self, pmd: Pmd, g: &RangeGuard<'_>) -> Option<Sealed<'_>> {
        Some(Sealed {
            entry: g.entry,
            nonce: g.nonce,
            tags: self.ranges.tags(pmd)?,
            nonces: self.ranges.nonces(pmd)?,
        })
    }

    /// The page that lies at an address.
    ///
    /// # Safety
    /// It is memory of the engine's own that nobody else uses now.
    unsafe fn page<'p>(at: *mut u8) -> &'p mut Page {
        // SAFETY: the caller's contract.
        unsafe { &mut *(at as *mut Page) }
    }

    /// Each of `pages` with its slot, as far as they have some.
    fn each_slot(
        &self,
        pmd: Pmd,
        entry: Option<SwapPlace>,
        pages: PageMask,
    ) -> impl Iterator<Item = (usize, SwapEntry)> + '_ {
        let all = entry.map(|entry| self.pieces(pmd, entry, pages));
        all.into_iter().flatten().flat_map(|piece| {
            let first = piece.pages.start;
            piece.pages.filter_map(move |page| {
                let at = piece.entry.checked_add((page - first) as u64)?;
                Some((page, at))
            })
        })
    }

    /// Seals `pages` of a write, which `start_write` began, into the buffers of write `i`. Where they
    /// are written as they are that is their frame. For the reclaim thread.
    pub fn seal(&self, t: &Transfer, pages: PageMask, i: usize) -> Source {
        let frame = self.frames.addr(t.frame);
        let to = match self.sealer.mode {
            // Nothing is written there then.
            Mode::Check => Source::frame(frame),
            Mode::Encrypt => Source::packed(self.seal_buffer(i, pages.count()), pages),
        };
        let tags = self.ranges.tags(t.pmd);
        debug_assert!(tags.is_some(), "start_write has made them");
        for (page, at) in self.each_slot(t.pmd, Some(t.entry), pages) {
            // SAFETY: the frame is read only while it is being written; nobody else has the buffer, which is
            // large enough, or else it is the scratch page, which is the reclaim thread's.
            let (from, sealed) = unsafe {
                let sealed = match self.sealer.mode {
                    Mode::Check => self.scratch.at(0),
                    Mode::Encrypt => to.addr(page) as *mut u8,
                };
                (
                    &*((frame + page * PAGE_SIZE) as *const Page),
                    Self::page(sealed),
                )
            };
            let tag = self.sealer.seal(from, sealed, at, t.nonce);
            if let Some(tags) = tags {
                tags.set(page, tag);
            }
        }
        to
    }

    /// Where pages are read to that go through a frame.
    pub fn place_of(&self, frame: Frame) -> Source {
        Source::frame(self.frames.addr(frame))
    }

    /// Writes will begin soon: what they need first is charged before others take the room.
    pub fn prepare_seal_buffer(&self) {
        if self.sealer.mode == Mode::Encrypt {
            self.seal_buffer(
                0,
                SealBuffers::within(self.charge.limit(), Writes::Folios).1,
            );
        }
    }

    /// Gives the memory of large buffer `i` back, in which nothing is in flight.
    pub fn release_large_buffer(&self, i: usize) {
        let i = i % SealBuffers::COUNT;
        let b = &self.seal_buffers;
        if b.touched.fetch_and(!(1 << i), Relaxed) >> i & 1 != 0 {
            self.release_own(b.large + i * PMD_SIZE, PMD_NR);
        }
    }

    /// Gives the memory of small buffer `i` back, in which nothing is in flight.
    pub fn release_small_buffer(&self, i: usize) {
        let i = i % SealBuffers::COUNT;
        let b = &self.seal_buffers;
        let pages = b.touched_small[i].swap(0, Relaxed) as usize;
        if pages > 0 {
            self.release_own(b.small + i * SMALL_BYTES, pages);
        }
    }

    fn release_own(&self, at: usize, pages: usize) {
        // SAFETY: a buffer of ours, and nobody needs what is in it.
        let _ = unsafe { mem::madvise(at, pages * PAGE_SIZE, libc::MADV_DONTNEED) };
        self.uncharge_own(pages);
    }

    /// Room for so many pages that write `i` alone uses.
    fn seal_buffer(&self, i: usize, pages: usize) -> usize {
        let i = i % SealBuffers::COUNT;
        let b = &self.seal_buffers;
        if pages > SMALL {
            if b.touched.fetch_or(1 << i, Relaxed) >> i & 1 == 0 {
                self.charge_own(PMD_NR);
            }
            return b.large + i * PMD_SIZE;
        }
        let had = b.touched_small[i].fetch_max(pages as u32, Relaxed) as usize;
        if pages > had {
            self.charge_own(pages - had);
        }
        b.small + i * SMALL_BYTES
    }

    /// Opens what was read of the range: of its `moving` pages those that `read` lets through, where
    /// `place` says (given buffer, all pages and the page). Returns those that are not what was written.
    /// For the thread that has the range's transfer.
    pub(super) fn open(
        &self,
        pmd: Pmd,
        r: &Range,
        read: impl Fn(PageMask) -> PageMask,
        place: impl Fn(u32, &PageMask, usize) -> *mut u8,
    ) -> PageMask {
        let (moving, buffer, sealed) = {
            let g = r.lock();
            (g.moving(), g.buffer(), self.sealed(pmd, &g))
        };
        let pages = read(moving);
        let Some(sealed) = sealed else {
            return pages;
        };
        let mut wrong = pages;
        for (page, at) in self.each_slot(pmd, sealed.entry, pages) {
            // While it is being read nobody changes the range's tables.
            let (nonce, tag) = sealed.of(page);
            // SAFETY: nobody else has the memory that it is read into.
            let read = unsafe { Self::page(place(buffer, &moving, page)) };
            if self.sealer.open(read, at, nonce, &tag).is_ok() {
                wrong = wrong.minus(PageMask::of(page..page + 1));
            }
        }
        self.stats().swap_corrupt.add(wrong.count() as u64);
        wrong
    }

    /// Whether this is what the slot of a page holds. The caller has the range's lock.
    pub(super) fn is_in_slot(
        &self,
        pmd: Pmd,
        g: &RangeGuard<'_>,
        page: usize,
        copy: &Page,
        scratch: &mut Page,
    ) -> bool {
        let Some(sealed) = self.sealed(pmd, g) else {
            return false;
        };
        let slot = self.each_slot(pmd, sealed.entry, PageMask::of(page..page + 1));
        let Some((_, at)) = slot.last() else {
            return false;
        };
        let (nonce, tag) = sealed.of(page);
        self.sealer.is_same(copy, scratch, at, nonce, &tag)
    }

    /// Of `pages`, which are in the frame and in slots, those that are alike in both. For the reclaim
    /// thread, while it writes the range.
    pub(super) fn clean_pages(
        &self,
        pmd: Pmd,
        r: &Range,
        frame: super::Frame,
        pages: PageMask,
    ) -> PageMask {
        let sealed = self.sealed(pmd, &r.lock());
        let mut clean = PageMask::EMPTY;
        let Some(sealed) = sealed else {
            return clean;
        };
        for (page, at) in self.each_slot(pmd, sealed.entry, pages) {
            let now = (self.frames.addr(frame) + page * PAGE_SIZE) as *const Page;
            // SAFETY: the range is being written by us: nobody changes its tables or writes to the frame.
            // The scratch page is the reclaim thread's.
            let same = unsafe {
                let (nonce, tag) = sealed.of(page);
                let scratch = Self::page(self.scratch.at(0));
                self.sealer.is_same(&*now, scratch, at, nonce, &tag)
            };
            if same {
                clean.insert(page);
            }
        }
        clean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_a_small_part_of_the_limit() {
        const MIB: i64 = 256;
        for limit in (1..20_000).map(|n| n * MIB) {
            for what in [Writes::Folios, Writes::Pieces] {
                let (n, pages) = SealBuffers::within(limit, what);
                let (part, least) = (limit / BUFFERS_SHARE, (BUFFERS_LEAST * SMALL) as i64);
                let all = (n * pages) as i64;
                assert!((1..=SealBuffers::COUNT).contains(&n) && (SMALL..=PMD_NR).contains(&pages));
                let fits = all <= part.max(least) && all * 8 <= limit.max(3 * MIB);
                assert!(fits, "{limit}: {n} of {pages}");
            }
        }
        let within = |mib, what| SealBuffers::within(mib * MIB, what);
        assert_eq!(within(8, Writes::Folios), (1, SMALL));
        assert_eq!(within(120, Writes::Folios), (5, SMALL));
        assert_eq!(within(120, Writes::Pieces), (2, SMALL));
        assert_eq!(within(256, Writes::Pieces), (2, PMD_NR));
        assert_eq!(within(4096, Writes::Folios), (SealBuffers::COUNT, PMD_NR));
    }
}
