//! Faults on pages that reclaim has taken out and that are still in their frame: inactive, or being written.

use super::frames::Left;
use super::plan::Plan;
use super::{Dir, Frame, Memory, SwapCache};
use crate::mm::{PageMask, Pmd, PAGE_SIZE, PMD_NR, PMD_SIZE};
use crate::policy::{staging, List, Unit};
use crate::vma::RangeGuard;

impl<M: Memory> SwapCache<M> {
    /// A fault on a page of a range that reclaim has made inactive: the page comes back with its
    /// neighbours, and the rest may leave. Of a huge page they come by copy, for a move would take it apart;
    /// it goes back whole if a walk enters it, or much of it was touched.
    pub(super) fn touch_inactive(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        page: usize,
        unit: Unit,
    ) -> Plan {
        self.stats().pgactivate.inc();
        g.credit.earn(page);
        let there = g.moving().minus(g.present);
        let pages = unit.rescued(there, page);
        let whole = there.is_full() && matches!(unit, Unit::Whole | Unit::Rest);
        let hot = g.huge && staging::is_hot(PMD_NR - there.count());
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
        self.memory.wake(pmd.addr(), PMD_SIZE);
        Plan::Served
    }

    /// A fault on a page that is being written: it comes back at once, as a copy, with others of a
    /// walk; the frame's pages stay as they are until the write is done. (A page cannot be moved
    /// while a device reads it.) A whole folio that is wanted as a whole comes back as such, when the
    /// write is done: that is sooner than copying it.
    pub(super) fn touch_writing(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        page: usize,
        unit: Unit,
    ) -> Plan {
        let there = g.moving().minus(g.present);
        let whole = g.huge && there.is_full() && matches!(unit, Unit::Whole | Unit::Rest);
        if whole || g.is_wanted_back() {
            g.want_back();
            self.stats().writeback_wait.inc();
            return Plan::Wait;
        }
        self.stats().swap_cache_hit.inc();
        self.copy_back(pmd, g, page, unit.of(there, page))
    }

    /// Moves pages of an inactive range to the program; false if some of them can't be.
    fn move_back(&self, pmd: Pmd, g: &mut RangeGuard<'_>, pages: PageMask) -> bool {
        let frame = Frame(g.buffer());
        let back = self.move_pages(Dir::In, pmd, frame, pages).moved;
        self.stats().pgrescue.add(back.count() as u64);
        g.leave_frame(back);
        self.became_present(pmd, g, back);
        if g.moving().is_empty() {
            self.empty(frame, Left::Pieces);
            g.end();
        }
        back == pages
    }

    /// Copies pages of the frame to the program; the frame keeps them.
    fn copy_back(&self, pmd: Pmd, g: &mut RangeGuard<'_>, page: usize, pages: PageMask) -> Plan {
        let n = pages.count();
        if !self.charge_for_fault(n) {
            return Plan::NeedRoom;
        }
        g.belongs_to(List::Main);
        let got = self.copy_in(pmd, pages, self.frames.addr(Frame(g.buffer())) as *const u8);
        self.charge.uncharge(pages.minus(got).count());
        self.became_present(pmd, g, got);
        self.stats().writeback_copied.add(got.count() as u64);
        if !got.has(page) {
            self.memory.wake(pmd.page_addr(page), PAGE_SIZE);
        }
        Plan::Served
    }
}
