//! The way down: a page is needed.

use super::frames::Left;
use super::plan::Plan;
use super::way::{First, Seen, Way};
use super::{Bytes, Dir, FillBuffers, Frame, Memory, SwapCache};
use crate::mm::{PageMask, Pmd, SwapPlace, PAGE_SIZE, PMD_NR, PMD_SIZE};
use crate::policy::intake::{soon, Amount, Found, Miss, Place, Source};
use crate::policy::Unit;
use crate::sys::uffd::PageFault;
use crate::vma::{IoState, RangeGuard};

/// What became of moving a frame in as a whole.
pub(super) enum Whole {
    Moved,
    /// The first pages are in the program, present and charged; the frame still has its charge.
    Part,
    Nothing,
}

impl<M: Memory> SwapCache<M> {
    /// Serves the fault, or says what is needed to do so. `decide` says how much comes in, by what is known of the
    /// range. A frame that was handed in and not used is put back.
    pub fn fault(
        &self,
        f: &PageFault,
        decide: impl FnOnce(Place) -> Amount,
        frame: &mut Option<(Frame, Bytes)>,
        buffers: &mut FillBuffers,
    ) -> Plan {
        let (pmd, page) = (Pmd::of(f.addr), crate::mm::page_in_pmd(f.addr));
        let r = match self.ranges.get_or_map(pmd) {
            Ok(r) => r,
            Err(_) => {
                self.has_no_descriptor(pmd);
                return self.send_back(pmd, page, Plan::Unknown);
            }
        };
        let mut g = r.lock();
        let (first, way) = Seen::of(&g, page, f.wp).way();
        self.prepare(first, pmd, &mut g);
        let Amount { zeros, unit } = decide(self.place(&mut g, page, way));
        match way {
            Way::Wait => self.await_io(&mut g),
            Way::Decompress
                if !g.salvage && g.io() == IoState::Idle && Self::is_whole(unit, &g) =>
            {
                self.begin_whole(pmd, &mut g, frame)
            }
            Way::Decompress => self.load(pmd, &mut g, page, unit, buffers),
            Way::MapAhead => self.map_ahead(pmd, &mut g),
            Way::Rescue => self.touch_inactive(pmd, &mut g, page, unit),
            Way::CopyBack => self.touch_writing(pmd, &mut g, page, unit),
            Way::ReadBeside => {
                if Self::is_whole(unit, &g) {
                    self.settle(pmd, &mut g);
                }
                self.begin_read(pmd, &mut g, page, unit, frame, buffers)
            }
            Way::Read => self.begin_read(pmd, &mut g, page, unit, frame, buffers),
            Way::Reuse => self.reuse(pmd, &mut g, page, unit, buffers),
            Way::Recheck => self.recheck(pmd, &g, page, f.wp),
            Way::Poison => {
                // A message from before the page was poisoned, or the program dropped the marker by a
                // call that we do not see: either way it finds the poison when it looks again.
                let _ = self.poison(pmd, PageMask::of(page..page + 1));
                self.send_back(pmd, page, Plan::Served)
            }
            Way::New => self.touch_new(pmd, &mut g, page, zeros, frame),
        }
    }

    /// The whole range by way of a frame, or some pages by themselves.
    fn begin_read(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        page: usize,
        unit: Unit,
        frame: &mut Option<(Frame, Bytes)>,
        buffers: &mut FillBuffers,
    ) -> Plan {
        // Of a range that could not be read as a whole each page comes by itself.
        let unit = if g.salvage { Unit::Pages(1) } else { unit };
        match Self::is_whole(unit, g) {
            true => self.begin_whole(pmd, g, frame),
            false => self.begin_fill(g, pmd, page, unit, buffers),
        }
    }

    fn prepare(&self, first: First, pmd: Pmd, g: &mut RangeGuard<'_>) {
        match first {
            First::Nothing => {}
            First::Settle => self.settle(pmd, g),
            First::Forget => {
                self.drop_ahead(g);
            }
        }
    }

    /// The end of what is under way wakes the thread.
    fn await_io(&self, g: &mut RangeGuard<'_>) -> Plan {
        if g.io() == IoState::Writing {
            self.stats().writeback_wait.inc();
        }
        g.want();
        Plan::Wait
    }

    /// The thread looks at the page again.
    fn send_back(&self, pmd: Pmd, page: usize, plan: Plan) -> Plan {
        self.memory.wake(pmd.page_addr(page), PAGE_SIZE);
        plan
    }

    /// What is known of the range, for the decision.
    fn place<'g>(&self, g: &'g mut RangeGuard<'_>, page: usize, way: Way) -> Place<'g> {
        let found = match () {
            () if way == Way::Reuse || g.present.or(g.moving()).has(page) => Found::Memory,
            () if g.swapped.or(g.compressed).has(page) => Found::Swap,
            () => Found::Nowhere,
        };
        let (present, sparse, hints) = (g.present, g.sparse.is(), g.hints);
        let source = match way {
            Way::Rescue | Way::CopyBack | Way::Reuse => Source::Frame,
            Way::Read if g.salvage => Source::Given,
            Way::Read | Way::ReadBeside | Way::Decompress => {
                let soon = soon(self.charge.limit());
                let left_lately = g.fills.count == 0 && self.lru.left_lately(g.shadow, soon);
                Source::Swap(Miss {
                    fills: &mut g.fills,
                    left_lately,
                })
            }
            Way::Wait | Way::MapAhead | Way::Recheck | Way::Poison | Way::New => Source::Given,
        };
        Place {
            found,
            present,
            sparse,
            hints,
            source,
        }
    }

    /// Whether that much comes by way of a frame.
    pub(super) fn is_whole(unit: Unit, g: &RangeGuard<'_>) -> bool {
        unit.is_whole(g.present, g.swapped.or(g.compressed))
    }

    /// The reclaim thread touched a page that was dropped behind our back: it reads as zeros.
    pub fn serve_reclaim(&self, f: &PageFault) {
        self.stats().fault_own.inc();
        if f.wp {
            return self.allow_writes(Pmd::of(f.addr), crate::mm::page_in_pmd(f.addr));
        }
        let addr = f.addr & !(PAGE_SIZE - 1);
        let filled = self.memory.copy(Dir::In, addr, self.zeros.at(0), PAGE_SIZE);
        if filled.is_err() {
            self.memory.wake(addr, PAGE_SIZE);
        }
    }

    /// A fault on a page that should be there: an old message, or the page was dropped by a
    /// system call that we do not see. A missing page reads as zeros then.
    fn recheck(&self, pmd: Pmd, g: &RangeGuard<'_>, page: usize, wp: bool) -> Plan {
        let addr = pmd.page_addr(page);
        if wp {
            self.allow_writes_to(pmd, g, page);
            return Plan::Served;
        }
        let filled = self.memory.copy(Dir::In, addr, self.zeros.at(0), PAGE_SIZE);
        match filled {
            Ok(()) => self.stats().move_hole.inc(),
            Err(_) => {
                self.stats().fault_stale.inc();
                self.memory.wake(addr, PAGE_SIZE);
            }
        }
        Plan::Served
    }

    /// Moves a complete frame into a range of which nothing is present. On success the frame is
    /// empty, the program has the pages, and the charge went with them.
    pub(super) fn move_whole_in(&self, pmd: Pmd, g: &mut RangeGuard<'_>, frame: Frame) -> Whole {
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
    pub(super) fn copy_rest(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        frame: Frame,
        pages: PageMask,
    ) {
        let rest = pages.minus(g.present).minus(g.lost);
        self.charge.charge(rest.count());
        let got = self.copy_in(pmd, rest, self.frames.addr(frame) as *const u8);
        self.charge.uncharge(rest.minus(got).count());
        self.became_present(pmd, g, got);
        self.empty(frame, Left::Pieces);
        self.charge.uncharge(PMD_NR);
    }

    pub(super) fn begin_whole(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        frame: &mut Option<(Frame, Bytes)>,
    ) -> Plan {
        let pages = g.swapped.minus(g.present).minus(g.compressed);
        // Where nothing is to be read, all comes out of compressed memory.
        let entry = match g.entry {
            Some(entry) => entry,
            None if pages.is_empty() => SwapPlace::SCATTERED,
            None => return Plan::Wait,
        };
        let Some((fr, _)) = frame.take() else {
            return Plan::NeedFrame { bytes: Bytes::Old };
        };
        self.drop_lazy(pmd, g, PageMask::FULL);
        g.begin_reading(fr.0, pages);
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
            if !g.moving().is_empty() {
                self.stats().pswpin.add(g.moving().count() as u64);
                self.stats().count_swpin(g.moving().count());
            }
            if g.is_ahead() && !g.is_wanted() {
                g.keep_ahead();
                return true;
            }
            if g.is_ahead() {
                self.stats().swap_ra_hit.inc();
            }
            self.map_frame(pmd, &mut g);
        } else {
            // What of it can be read is found out page by page.
            self.stats().swap_read_errors.inc();
            g.salvage = true;
            self.put_or_clear(Frame(g.buffer()));
        }
        g.end();
        g.take_wanted();
        drop(g);
        self.memory.wake(pmd.addr(), PMD_SIZE);
        false
    }

    /// Gives the program the pages of a frame that was read completely, and with them what of the range is in
    /// compressed memory.
    pub(super) fn map_frame(&self, pmd: Pmd, g: &mut RangeGuard<'_>) {
        let frame = Frame(g.buffer());
        let pages = g.moving().or(self.load_into(pmd, g, frame));
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

    /// A ready frame that was not used up.
    pub fn put_or_clear(&self, frame: Frame) {
        if self.charge.room() >= 0 {
            self.frames.put_ready(frame, Bytes::Old);
        } else {
            self.empty(frame, Left::Folio);
            self.charge.uncharge(PMD_NR);
        }
    }
}

const _: () = assert!(PMD_SIZE == PMD_NR * PAGE_SIZE);
