//! Pages that come along with the read of another, and go to compressed memory: as long as much of it is free. A
//! read of some pages more takes little longer, and each of them would be a read of its own.
#![allow(unsafe_code)]

use super::{Memory, SwapCache, FEW};
use crate::mm::{Page, PageMask, Pmd, SwapPlace};
use crate::policy::{Pattern, Unit};
use crate::vma::{Had, RangeGuard};
use crate::zpool::{By, How, Owner};

impl<M: Memory> SwapCache<M> {
    /// Of `there`, which is in swap and nowhere else, what comes along with `pages`: what is beside them in the same
    /// cluster.
    pub(in crate::swap_cache) fn beside(
        &self,
        pmd: Pmd,
        g: &RangeGuard<'_>,
        entry: SwapPlace,
        there: PageMask,
        pages: PageMask,
    ) -> PageMask {
        let z = &self.zswap;
        let is_jump = pages.count() <= FEW && !g.salvage;
        let wanted = is_jump && g.hints.pattern != Pattern::Random && !z.alone;
        let (Some(pool), Some(page)) = (z.pool.as_ref().filter(|_| wanted), pages.next_from(0))
        else {
            return PageMask::EMPTY;
        };
        let n = match z.most(self.charge.limit()) {
            0 => 0,
            most => z.admission.brings(self.fill(pool), most),
        };
        if n == 0 || self.charge.room() <= n as i64 {
            return PageMask::EMPTY;
        }
        let near = Unit::Pages(n).of(there, page);
        let mut pieces = self.pieces(pmd, entry, near);
        let piece = pieces.find(|piece| piece.pages.contains(&page));
        let piece = piece.map_or(PageMask::EMPTY, |piece| PageMask::of(piece.pages));
        piece.minus(pages)
    }

    /// They go to compressed memory. They keep their slots.
    pub(in crate::swap_cache) fn take_beside(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        pages: PageMask,
        at: impl Fn(usize) -> *const u8,
    ) {
        let pool = self.zswap.pool.as_ref().filter(|_| !pages.is_empty());
        let (Some(pool), Some(table)) = (pool, self.ranges.handles(pmd)) else {
            return;
        };
        let most = self.zswap.most(self.charge.limit());
        // What the program has dropped meanwhile has no slot any more.
        let pages = pages.and(g.swapped).minus(g.present);
        let mut stored = PageMask::EMPTY;
        for page in pages.runs().flatten() {
            // SAFETY: the page was read into a buffer, which is this thread's until it is put back.
            let from = unsafe { &*(at(page) as *const Page) };
            let owner = Owner { pmd, page };
            if let Some(s) = pool.store(from, owner, How::Quickly, most, By::Handler) {
                self.charge.charge(s.grown.0);
                table.set(page, Some(s.handle));
                stored.insert(page);
            }
        }
        if !stored.is_empty() && g.tables.insert(Had::HANDLES) {
            self.charge.charge(1);
        }
        g.compressed = g.compressed.or(stored);
        self.enqueue(pmd, g);
        self.stats().zswap_ra.add(stored.count() as u64);
    }
}
