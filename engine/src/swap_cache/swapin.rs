//! The way down: a page is needed.

use super::{Dir, FillBuffers, Frame, SwapCache};
use crate::mm::{copy, PageMask, Pmd, SwapPlace, PAGE_SIZE, PMD_NR, PMD_SIZE};
use crate::sys::thread::now_ns;
use crate::sys::uffd::{PageFault, Refused};
use crate::sys::Errno;
use crate::vma::{Fills, Hints, Huge, IoState, List, Pattern, RangeGuard};
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

/// Pages of a small fill with zeros, and at most.
pub const ZERO_FILL: usize = 16;
const ZERO_FILL_MAX: usize = 64;
/// A range comes in whole only if so many of its pages are in swap: the rest would be zeros.
const WHOLE_MIN: usize = PMD_NR / 2;
/// What is touched on its second chance comes back with its neighbours, so many pages together.
const RESCUE: usize = 16;
/// An inactive folio of which so many pages were touched is hot as a whole.
const HOT: usize = PMD_NR * 3 / 4;
/// A range that comes back before this part of memory was evicted left too early.
const SOON: i64 = 8;
/// What a walk finds half there comes with the rest of it, if that is so many pages.
const REST_MIN: usize = 64;

/// What has to be done for a fault.
#[derive(Clone, Debug)]
pub enum Plan {
    /// The page is there now and whoever waited was woken.
    Served,
    /// As `Served`, so many pages out of compressed memory.
    Loaded(usize),
    /// A transfer is in flight for the range; its end wakes everybody.
    Wait,
    /// Ask again with a ready frame.
    NeedFrame { zeroed: bool },
    /// Ask again when the limit has room for so many pages.
    NeedRoom(usize),
    /// Ask again when a fill buffer is free.
    NeedBuffer,
    /// Read the pages into their places in the frame, then call `swapin_done`.
    ReadWhole {
        frame: Frame,
        pages: PageMask,
        entry: SwapPlace,
    },
    /// Read the pages into the buffer, one behind the other, then call `fill_done`.
    Fill {
        buffer: u32,
        pages: PageMask,
        entry: SwapPlace,
    },
    /// Nothing of ours is at that address; the thread was woken to find out for itself.
    Unknown,
}

/// How much to bring in for a page that is in swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    Whole,
    /// The aligned window of so many pages around the fault.
    Pages(usize),
    /// These and no others, with the page of the fault.
    Set(PageMask),
    /// All that is not resident, however little or much that is.
    Rest,
}

/// A page that has to be read.
pub struct Miss<'g> {
    /// Of its range.
    pub fills: &'g mut Fills,
    /// It is the first of them since the range left, and that was not long ago.
    pub left_lately: bool,
}

/// See [`SwapCache::find`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// It was never touched, or was dropped.
    Nowhere,
    Swap,
    /// The program's or a frame's.
    Memory,
}

/// Why a range is read ahead of its fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ahead {
    /// The program asked for it.
    Said,
    /// A walk will come there; `rest`: also for what is missing of what is half there.
    Walk { rest: bool },
}

/// What became of moving a frame in as a whole.
enum Whole {
    Moved,
    /// The first pages are in the program, present and charged; the frame still has its charge.
    Part,
    Nothing,
}

impl SwapCache {
    /// Serves the fault, or says what is needed to do so. `new`: how many pages of zeros there are to be
    /// for a range that was never touched, a folio or a power of two. `unit` chooses how much of a swapped
    /// range to bring in, given what is resident of it, what the program said of it, and, if it is to be
    /// read, its small fills. A frame that was handed in and not used is put back.
    pub fn fault(
        &self,
        f: &PageFault,
        new: usize,
        unit: impl FnOnce(&PageMask, Hints, Option<Miss>) -> Unit,
        frame: &mut Option<(Frame, bool)>,
        buffers: &mut FillBuffers,
    ) -> Plan {
        let (pmd, page) = (Pmd::of(f.addr), crate::mm::page_in_pmd(f.addr));
        let r = match self.ranges.get_or_map(pmd) {
            Ok(r) => r,
            Err(_) => {
                self.has_no_descriptor(pmd);
                self.program().wake(pmd.page_addr(page), PAGE_SIZE);
                return Plan::Unknown;
            }
        };
        let mut g = r.lock();
        let compressed = g.compressed.has(page) && !f.wp;
        match g.io() {
            IoState::Idle | IoState::Inactive | IoState::Filling | IoState::Writing
                if compressed =>
            {
                let unit = self.ask(&mut g, unit);
                if g.io() == IoState::Idle && !g.salvage && Self::is_whole(unit, &g) {
                    return self.begin_whole(&mut g, frame);
                }
                return self.load(pmd, &mut g, page, unit, buffers);
            }
            IoState::Idle => {}
            IoState::Ahead if compressed || g.moving.has(page) => {
                return self.map_ahead(pmd, &mut g)
            }
            IoState::Inactive | IoState::Writing
                if !f.wp && g.moving.minus(g.present).has(page) =>
            {
                let unit = unit(&g.present, g.hints, None);
                return match g.io() {
                    IoState::Writing => self.touch_writing(pmd, &mut g, page, unit),
                    _ => self.touch_inactive(pmd, &mut g, page, unit),
                };
            }
            // What needs no read has nothing to do with what the frame holds.
            IoState::Inactive | IoState::Writing if !g.swapped.minus(g.present).has(page) => {}
            IoState::Inactive if self.may_fill_inactive(&g, page) => {
                let unit = self.ask(&mut g, unit);
                if Self::is_whole(unit, &g) {
                    self.settle(pmd, &mut g);
                    return self.begin_whole(&mut g, frame);
                }
                return self.begin_fill(&mut g, pmd, page, unit, buffers);
            }
            IoState::Inactive => self.settle(pmd, &mut g),
            IoState::Ahead => {
                self.drop_ahead(&mut g);
            }
            io => {
                if io == IoState::Writing {
                    self.stats().writeback_wait.inc();
                }
                g.wanted = true;
                return Plan::Wait;
            }
        }
        if f.wp || g.present.has(page) {
            return self.recheck(pmd, page, f.wp);
        }
        if g.swapped.has(page) {
            let unit = if g.salvage {
                Unit::Pages(1)
            } else {
                self.ask(&mut g, unit)
            };
            if Self::is_whole(unit, &g) {
                return self.begin_whole(&mut g, frame);
            }
            return self.begin_fill(&mut g, pmd, page, unit, buffers);
        }
        if g.lost.has(page) {
            // A message from before the page was poisoned, or the program dropped the marker by a
            // call that we do not see: either way it finds the poison when it looks again.
            let _ = self.poison(pmd, PageMask::of(page..page + 1));
            self.program().wake(pmd.page_addr(page), PAGE_SIZE);
            return Plan::Served;
        }
        let used = g.used();
        let folio = used.is_empty() && g.writable.is_full() && g.hints.huge != Huge::Unwanted;
        if folio && new >= PMD_NR {
            return self.first_touch(pmd, &mut g, page, frame);
        }
        self.zero_fill(pmd, &mut g, page, new.min(ZERO_FILL_MAX))
    }

    /// Where a page is that a fault has come for.
    pub fn find(&self, pmd: Pmd, page: usize) -> Found {
        let Some(r) = self.ranges.get(pmd) else {
            return Found::Nowhere;
        };
        let g = r.lock();
        if g.present.or(g.moving).has(page) {
            Found::Memory
        } else if g.swapped.or(g.compressed).has(page) {
            Found::Swap
        } else {
            Found::Nowhere
        }
    }

    fn ask(
        &self,
        g: &mut RangeGuard<'_>,
        unit: impl FnOnce(&PageMask, Hints, Option<Miss>) -> Unit,
    ) -> Unit {
        let (present, hints) = (g.present, g.hints);
        let soon = self.charge.limit() / SOON;
        let left_lately = g.fills.count == 0 && self.lru.left_lately(g.shadow, soon);
        let fills = &mut g.fills;
        unit(&present, hints, Some(Miss { fills, left_lately }))
    }

    /// Whether that much comes by way of a frame.
    fn is_whole(unit: Unit, g: &RangeGuard<'_>) -> bool {
        let out = g.swapped.or(g.compressed);
        match unit {
            Unit::Whole if g.present.is_empty() => out.count() >= WHOLE_MIN,
            Unit::Whole => out.minus(g.present).count() >= REST_MIN,
            Unit::Rest => true,
            Unit::Pages(_) | Unit::Set(_) => false,
        }
    }

    /// Whether a page of an inactive range can be read while the frame goes on holding others: the
    /// rest of a range that is used in pieces may leave.
    fn may_fill_inactive(&self, g: &RangeGuard<'_>, page: usize) -> bool {
        !g.huge && !g.salvage && g.swapped.minus(g.present).minus(g.moving).has(page)
    }

    /// A fault on a page of a range that reclaim has made inactive: the page comes back with its
    /// neighbours, and the rest may leave. Of a huge page they come by copy, for a move would take it apart;
    /// it goes back whole if a walk enters it, or much of it was touched.
    fn touch_inactive(&self, pmd: Pmd, g: &mut RangeGuard<'_>, page: usize, unit: Unit) -> Plan {
        self.stats().pgactivate.inc();
        g.credit.earn(page);
        let there = g.moving.minus(g.present);
        let pages = match unit {
            Unit::Pages(n) => Unit::Pages(n.max(RESCUE)).of(there, page),
            unit => unit.of(there, page),
        };
        let whole = there.is_full() && matches!(unit, Unit::Whole | Unit::Rest);
        let hot = g.huge && PMD_NR - there.count() >= HOT;
        if !(hot && self.rejoin(pmd, g)) {
            if g.huge && !whole {
                return self.copy_back(pmd, g, page, pages);
            }
            g.belongs_to(List::Main);
            if !g.huge && self.move_back(pmd, g, pages) {
                return Plan::Served;
            }
            self.settle(pmd, g);
        }
        self.program().wake(pmd.addr(), PMD_SIZE);
        Plan::Served
    }

    /// Moves pages of an inactive range to the program; false if some of them can't be.
    fn move_back(&self, pmd: Pmd, g: &mut RangeGuard<'_>, pages: PageMask) -> bool {
        let frame = Frame(g.buffer);
        let back = self.move_pages(Dir::In, pmd, frame, pages).moved;
        self.stats().pgrescue.add(back.count() as u64);
        g.moving = g.moving.minus(back);
        self.became_present(pmd, g, back);
        if g.moving.is_empty() {
            self.frames.clear(frame, true, self.staging());
            self.frames.put_empty(frame);
            g.set_io(IoState::Idle);
        }
        back == pages
    }

    /// Copies pages of the frame to the program; the frame keeps them.
    fn copy_back(&self, pmd: Pmd, g: &mut RangeGuard<'_>, page: usize, pages: PageMask) -> Plan {
        let n = pages.count();
        if !self.charge_for_fault(n) {
            return Plan::NeedRoom(n);
        }
        g.belongs_to(List::Main);
        let got = self.copy_in(pmd, pages, self.frames.addr(Frame(g.buffer)) as *const u8);
        self.charge.uncharge(pages.minus(got).count());
        self.became_present(pmd, g, got);
        self.stats().writeback_copied.add(got.count() as u64);
        if !got.has(page) {
            self.program().wake(pmd.page_addr(page), PAGE_SIZE);
        }
        Plan::Served
    }

    /// A fault on a page that is being written: it comes back at once, as a copy, with others of a
    /// walk; the frame's pages stay as they are until the write is done. (A page cannot be moved
    /// while a device reads it.) A whole folio that is wanted as a whole comes back as such, when the
    /// write is done: that is sooner than copying it.
    fn touch_writing(&self, pmd: Pmd, g: &mut RangeGuard<'_>, page: usize, unit: Unit) -> Plan {
        let there = g.moving.minus(g.present);
        let whole = g.huge && there.is_full() && matches!(unit, Unit::Whole | Unit::Rest);
        if whole || g.back {
            g.back = true;
            g.wanted = true;
            self.stats().writeback_wait.inc();
            return Plan::Wait;
        }
        self.stats().swap_cache_hit.inc();
        self.copy_back(pmd, g, page, unit.of(there, page))
    }

    /// The reclaim thread touched a page that was dropped behind our back: it reads as zeros.
    pub fn serve_reclaim(&self, f: &PageFault) {
        self.stats().fault_own.inc();
        let addr = f.addr & !(PAGE_SIZE - 1);
        // SAFETY: the zero page is readable; only a missing page is filled.
        if unsafe { self.program().copy(addr, self.zeros.0, PAGE_SIZE) }.is_err() {
            self.program().wake(addr, PAGE_SIZE);
        }
    }

    /// A fault on a page that should be there: an old message, or the page was dropped by a
    /// system call that we do not see. A missing page reads as zeros then.
    fn recheck(&self, pmd: Pmd, page: usize, wp: bool) -> Plan {
        let addr = pmd.page_addr(page);
        if wp {
            let _ = self.program().write_protect(addr, PAGE_SIZE, false);
            return Plan::Served;
        }
        // SAFETY: the zero page is readable; only a missing page is filled.
        match unsafe { self.program().copy(addr, self.zeros.0, PAGE_SIZE) } {
            Ok(()) => self.stats().move_hole.inc(),
            Err(_) => {
                self.stats().fault_stale.inc();
                self.program().wake(addr, PAGE_SIZE);
            }
        }
        Plan::Served
    }

    /// A zeroed huge page for a range that was never touched.
    fn first_touch(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        page: usize,
        frame: &mut Option<(Frame, bool)>,
    ) -> Plan {
        if !self.abilities.mv {
            return self.zero_fill(pmd, g, page, ZERO_FILL);
        }
        let Some((fr, zeroed)) = frame.take() else {
            return Plan::NeedFrame { zeroed: true };
        };
        if !zeroed {
            self.clear_pages(fr, PageMask::FULL, page);
        }
        g.belongs_to(List::Main);
        match self.move_whole_in(pmd, g, fr) {
            Whole::Moved => {
                self.stats().thp_fault_alloc.inc();
                return Plan::Served;
            }
            Whole::Part => {
                self.copy_rest(pmd, g, fr, PageMask::FULL);
                self.stats().thp_fault_fallback.inc();
                return Plan::Served;
            }
            Whole::Nothing => *frame = Some((fr, true)),
        }
        self.stats().thp_fault_fallback.inc();
        self.zero_fill(pmd, g, page, ZERO_FILL)
    }

    /// Moves a complete frame into a range of which nothing is present. On success the frame is
    /// empty, the program has the pages, and the charge went with them.
    fn move_whole_in(&self, pmd: Pmd, g: &mut RangeGuard<'_>, frame: Frame) -> Whole {
        self.drop_page_table(pmd, g);
        match self.move_run(Dir::In, pmd, frame, 0, PMD_NR) {
            Ok(()) => {
                self.became_present(pmd, g, PageMask::FULL);
                g.huge = true;
                self.frames.put_empty(frame);
                Whole::Moved
            }
            Err(e) => {
                let done = self.note_refusal(e);
                if done == 0 {
                    return Whole::Nothing;
                }
                // The program may have written to these already: they stay.
                self.charge.charge(done);
                self.became_present(pmd, g, PageMask::of(0..done));
                Whole::Part
            }
        }
    }

    /// Copies what a partial move left of `pages` in the frame, and gives the frame back.
    fn copy_rest(&self, pmd: Pmd, g: &mut RangeGuard<'_>, frame: Frame, pages: PageMask) {
        let rest = pages.minus(g.present).minus(g.lost);
        self.charge.charge(rest.count());
        let got = self.copy_in(pmd, rest, self.frames.addr(frame) as *const u8);
        self.charge.uncharge(rest.minus(got).count());
        self.became_present(pmd, g, got);
        self.frames.clear(frame, true, self.staging());
        self.frames.put_empty(frame);
        self.charge.uncharge(PMD_NR);
    }

    /// Zeros for the page and those of its neighbours, `n` in all, that were never touched either.
    fn zero_fill(&self, pmd: Pmd, g: &mut RangeGuard<'_>, page: usize, n: usize) -> Plan {
        let used = g.used();
        let untouched = PageMask::FULL.minus(used);
        let run = if g.writable.has(page) {
            untouched.and(g.writable).run_around(page, n)
        } else {
            page..page + 1
        };
        if !self.charge_for_fault(run.len()) {
            return Plan::NeedRoom(run.len());
        }
        let want = PageMask::of(run);
        g.belongs_to(List::Main);
        let got = self.copy_zeros(pmd, want);
        self.charge.uncharge(want.minus(got).count());
        self.stats().anon_fault_alloc.add(got.count() as u64);
        self.became_present(pmd, g, got);
        if !got.has(page) {
            self.program().wake(pmd.page_addr(page), PAGE_SIZE);
        }
        Plan::Served
    }

    fn begin_whole(&self, g: &mut RangeGuard<'_>, frame: &mut Option<(Frame, bool)>) -> Plan {
        let pages = g.swapped.minus(g.present).minus(g.compressed);
        // Where nothing is to be read, all comes out of compressed memory.
        let entry = match g.entry {
            Some(entry) => entry,
            None if pages.is_empty() => SwapPlace::SCATTERED,
            None => return Plan::Wait,
        };
        let Some((fr, _)) = frame.take() else {
            return Plan::NeedFrame { zeroed: false };
        };
        g.moving = pages;
        g.buffer = fr.0;
        g.set_io(IoState::Reading);
        // Of a cluster one read from the first page to the last; what lies between and is not in
        // swap is cleared when the read is done.
        let first = pages.runs().next().map_or(0, |r| r.start);
        let end = pages.runs().last().map_or(0, |r| r.end);
        let read = match entry.first() {
            Some(_) => PageMask::of(first..end),
            None => pages,
        };
        Plan::ReadWhole {
            frame: fr,
            pages: read,
            entry,
        }
    }

    /// Whether reading the range ahead makes sense; asked before a frame is taken for it. Not for a walk
    /// where the program said that it jumps or that it has no use for huge pages.
    pub fn may_read_ahead(&self, r: &crate::vma::Range, why: Ahead) -> bool {
        let g = r.lock();
        let against = g.hints.pattern == Pattern::Random || g.hints.huge == Huge::Unwanted;
        let wanted = match why {
            Ahead::Said => true,
            Ahead::Walk { rest } => !against && (rest || g.present.is_empty()),
        };
        g.io() == IoState::Idle
            && wanted
            && Self::is_whole(Unit::Whole, &g)
            && g.writable.is_full()
            && g.lost.is_empty()
            && !g.salvage
    }

    /// Begins to read a whole range ahead of its fault, of which `may_read_ahead` said that it may.
    /// None if that is no longer so.
    pub fn begin_ahead(&self, pmd: Pmd, frame: &mut Option<(Frame, bool)>) -> Option<Plan> {
        let r = self.ranges.get(pmd)?;
        let mut g = r.lock();
        let read = g.swapped.minus(g.present).minus(g.compressed);
        if g.io() != IoState::Idle || read.is_empty() {
            return None;
        }
        match self.begin_whole(&mut g, frame) {
            p @ Plan::ReadWhole { .. } => {
                g.ahead = true;
                self.stats().swap_ra.inc();
                Some(p)
            }
            _ => None,
        }
    }

    /// The read of a whole range ended. A folio that was read ahead and that nobody waits for
    /// stays in its frame; true if so.
    pub fn swapin_done(&self, pmd: Pmd, ok: bool) -> bool {
        let Some(r) = self.ranges.get(pmd) else {
            return false;
        };
        let place = |frame: u32, _: &PageMask, page: usize| {
            (self.frames.addr(Frame(frame)) + page * PAGE_SIZE) as *mut u8
        };
        let ok = ok && self.open(pmd, r, |moving| moving, place).is_empty();
        let mut g = r.lock();
        if ok {
            if !g.moving.is_empty() {
                self.stats().pswpin.add(g.moving.count() as u64);
                self.stats().count_swpin(g.moving.count());
            }
            if g.ahead && !g.wanted {
                g.set_io(IoState::Ahead);
                return true;
            }
            if g.ahead {
                self.stats().swap_ra_hit.inc();
            }
            self.map_frame(pmd, &mut g);
        } else {
            // What of it can be read is found out page by page.
            self.stats().swap_read_errors.inc();
            g.salvage = true;
            self.put_or_clear(Frame(g.buffer));
        }
        g.moving = PageMask::EMPTY;
        g.ahead = false;
        g.wanted = false;
        g.set_io(IoState::Idle);
        drop(g);
        self.program().wake(pmd.addr(), PMD_SIZE);
        false
    }

    /// Gives the program the pages of a frame that was read completely, and with them what of the range is in
    /// compressed memory.
    fn map_frame(&self, pmd: Pmd, g: &mut RangeGuard<'_>) {
        let frame = Frame(g.buffer);
        let pages = g.moving.or(self.load_into(pmd, g, frame));
        self.map_pages(pmd, g, frame, pages);
        let here = g.present;
        self.drop_compressed(pmd, g, here);
    }

    /// Gives the program these pages, which the frame holds.
    fn map_pages(&self, pmd: Pmd, g: &mut RangeGuard<'_>, frame: Frame, pages: PageMask) {
        // Who jumps about in what fits gets wholes too: such a range stays on the list that it is on.
        let list = self.lru.arrive(g.shadow, self.charge.limit());
        g.belongs_to(list);
        // What is elsewhere must not become zeros.
        let complete = g.swapped.or(g.compressed).minus(pages).minus(g.present);
        let complete = complete.is_empty();
        let vacant = g.present.is_empty() && g.lost.is_empty();
        if complete && vacant && g.writable.is_full() && self.abilities.mv {
            self.clear_pages(frame, PageMask::FULL.minus(pages), 0);
            let keep = self.keeps_folio(g);
            let whole = self.move_whole_in(pmd, g, frame);
            match whole {
                Whole::Moved => self.stats().thp_swpin.inc(),
                Whole::Part => {
                    self.stats().thp_swpin_fallback.inc();
                    self.copy_rest(pmd, g, frame, PageMask::FULL);
                }
                Whole::Nothing => {}
            }
            if !matches!(whole, Whole::Nothing) {
                if !keep {
                    let here = g.present;
                    self.forget_slots(pmd, g, here);
                }
                return;
            }
        }
        if complete && self.collapse(pmd, g, frame, pages) {
            return;
        }
        self.stats().thp_swpin_fallback.inc();
        self.charge.charge(pages.count());
        let got = self.copy_in(pmd, pages, self.frames.addr(frame) as *const u8);
        self.charge.uncharge(pages.minus(got).count());
        self.became_present(pmd, g, got);
        self.forget_slots(pmd, g, got);
        self.put_or_clear(frame);
    }

    /// The fault that a folio was read ahead for.
    fn map_ahead(&self, pmd: Pmd, g: &mut RangeGuard<'_>) -> Plan {
        self.stats().swap_ra_hit.inc();
        self.map_frame(pmd, g);
        self.end_ahead(g);
        self.program().wake(pmd.addr(), PMD_SIZE);
        Plan::Served
    }

    fn end_ahead(&self, g: &mut RangeGuard<'_>) {
        g.moving = PageMask::EMPTY;
        g.ahead = false;
        g.set_io(IoState::Idle);
    }

    /// Forgets a folio that was read ahead; its slots still hold it. True if there was one.
    pub fn drop_ahead(&self, g: &mut RangeGuard<'_>) -> bool {
        if g.io() != IoState::Ahead {
            return false;
        }
        self.put_or_clear(Frame(g.buffer));
        self.end_ahead(g);
        true
    }

    /// A ready frame that was not used up.
    pub fn put_or_clear(&self, frame: Frame) {
        if self.charge.room() >= 0 {
            self.frames.put_ready(frame, false);
        } else {
            self.frames.clear(frame, false, self.staging());
            self.frames.put_empty(frame);
            self.charge.uncharge(PMD_NR);
        }
    }

    /// Who touches the range faults again, and again; not for ever.
    #[cold]
    fn has_no_descriptor(&self, pmd: Pmd) {
        const PATIENCE_NS: u64 = 2_000_000_000;
        const LATELY_NS: u64 = 100_000_000;
        let [which, since, last] = &self.without;
        let (now, mine) = (now_ns(), pmd.0 as u64 + 1);
        let lately = now - last.load(Relaxed) < LATELY_NS;
        if which.load(Relaxed) != mine {
            if !lately {
                which.store(mine, Relaxed);
                since.store(now, Relaxed);
                last.store(now, Relaxed);
            }
            return;
        }
        if !lately {
            since.store(now, Relaxed);
        }
        last.store(now, Relaxed);
        if now - since.load(Relaxed) > PATIENCE_NS {
            self.charge.log(
                "the limit of the program's data (RLIMIT_DATA) leaves no memory for the engine's tables: \
                 ending the program",
            );
            crate::sys::thread::exit_group(super::EXIT_LOST);
        }
    }

    /// A page cannot be read from the device: whoever touches it gets SIGBUS.
    pub(super) fn lose(&self, pmd: Pmd, g: &mut RangeGuard<'_>, pages: PageMask) {
        // Counted and told first: poisoning wakes the program, and it may die of it.
        self.stats().pages_poisoned.add(pages.count() as u64);
        if !self.warned_lost.swap(true, Relaxed) {
            self.charge.log(
                "warning: a page could not be read back from swap; whoever touches it gets SIGBUS. \
                 See pages_poisoned in the statistics",
            );
        }
        if !self.abilities.poison || self.poison(pmd, pages).is_err() {
            self.charge.log("a page could not be read back from swap, and this kernel cannot poison it: ending the program");
            crate::sys::thread::exit_group(super::EXIT_LOST);
        }
        g.lost = g.lost.or(pages);
        self.give_slots_up(pmd, g, pages);
    }

    /// Poisons missing pages of the program; ones that are poisoned already stay so.
    pub(super) fn poison(&self, pmd: Pmd, pages: PageMask) -> Result<(), Errno> {
        for page in pages.runs().flatten() {
            match self.program().poison(pmd.page_addr(page), PAGE_SIZE) {
                Ok(()) | Err(Refused::Exists { .. }) => {}
                Err(_) => return Err(Errno::EBUSY),
            }
        }
        Ok(())
    }

    /// Fills missing pages of the range from `src`, which holds the whole range's bytes as far as
    /// `pages` need them. Returns the pages that are there now.
    pub(super) fn copy_in(&self, pmd: Pmd, pages: PageMask, src: *const u8) -> PageMask {
        let mut got = PageMask::EMPTY;
        for run in pages.runs() {
            got = got.or(self.copy_run(pmd, run, |page| src.wrapping_add(page * PAGE_SIZE)));
        }
        got
    }

    fn copy_zeros(&self, pmd: Pmd, pages: PageMask) -> PageMask {
        let mut got = PageMask::EMPTY;
        for run in pages.runs() {
            got = got.or(self.copy_run(pmd, run, |_| self.zeros.0));
        }
        got
    }

    pub(super) fn copy_run(
        &self,
        pmd: Pmd,
        run: Range<usize>,
        src: impl Fn(usize) -> *const u8,
    ) -> PageMask {
        let mut got = PageMask::EMPTY;
        let mut at = run.start;
        let mut step = run.len();
        let mut tries = 0;
        while at < run.end {
            let n = step.min(run.end - at);
            // SAFETY: the source is memory of the engine's own that holds at least the run.
            let e = match unsafe {
                self.program()
                    .copy(pmd.page_addr(at), src(at), n * PAGE_SIZE)
            } {
                Ok(()) => {
                    got = got.or(PageMask::of(at..at + n));
                    at += n;
                    continue;
                }
                Err(e) => e,
            };
            let done = (e.done() / PAGE_SIZE).min(n);
            got = got.or(PageMask::of(at..at + done));
            at += done;
            match e {
                // A page that is there already is newer than ours.
                Refused::Exists { .. } if n == 1 => {
                    got = got.or(PageMask::of(at..at + 1));
                    at += 1;
                }
                Refused::Again { .. } if tries < 1000 => tries += 1,
                _ if n > 1 && done < n => step = 1,
                _ => at += 1,
            }
        }
        got
    }

    /// Zeros pages of a frame that is ready and ours.
    /// The page `target` is the hottest in the CPU's cache afterwards, where it is among them.
    pub(super) fn clear_pages(&self, frame: Frame, pages: PageMask, target: usize) {
        for run in pages.runs() {
            let p = (self.frames.addr(frame) + run.start * PAGE_SIZE) as *mut u8;
            let at = target.clamp(run.start, run.end - 1) - run.start;
            // SAFETY: the frame is mapped, ready, and nobody else has it.
            let cleared =
                unsafe { copy::clear_raw(p, run.len() * PAGE_SIZE, at, copy::Strategy::default()) };
            debug_assert!(cleared.is_ok(), "runs are whole pages of the frame");
        }
    }
}

const _: () = assert!(PMD_SIZE == PMD_NR * PAGE_SIZE);
