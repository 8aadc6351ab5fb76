//! Folios that are read ahead of their faults.

use super::plan::Plan;
use super::{Bytes, Frame, Memory, SwapCache};
use crate::mm::{Pmd, PMD_SIZE};
use crate::policy::{Huge, Pattern, Unit};
use crate::vma::{IoState, RangeGuard};

/// Why a range is read ahead of its fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ahead {
    /// The program asked for it.
    Said,
    /// A walk will come there; `rest`: also for what is missing of what is half there.
    Walk { rest: bool },
}

impl<M: Memory> SwapCache<M> {
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
            && g.lazy.is_empty()
            && !g.salvage
    }

    /// Begins to read a whole range ahead of its fault, of which `may_read_ahead` said that it may.
    /// None if that is no longer so.
    pub fn begin_ahead(&self, pmd: Pmd, frame: &mut Option<(Frame, Bytes)>) -> Option<Plan> {
        let r = self.ranges.get(pmd)?;
        let mut g = r.lock();
        let read = g.swapped.minus(g.present).minus(g.compressed);
        if g.io() != IoState::Idle || read.is_empty() {
            return None;
        }
        match self.begin_whole(pmd, &mut g, frame) {
            p @ Plan::ReadWhole { .. } => {
                g.mark_ahead();
                self.stats().swap_ra.inc();
                Some(p)
            }
            _ => None,
        }
    }

    /// The fault that a folio was read ahead for.
    pub(super) fn map_ahead(&self, pmd: Pmd, g: &mut RangeGuard<'_>) -> Plan {
        self.stats().swap_ra_hit.inc();
        self.map_frame(pmd, g);
        g.end();
        self.memory.wake(pmd.addr(), PMD_SIZE);
        Plan::Served
    }

    /// Forgets a folio that was read ahead; its slots still hold it. True if there was one.
    pub fn drop_ahead(&self, g: &mut RangeGuard<'_>) -> bool {
        if g.io() != IoState::Ahead {
            return false;
        }
        self.put_or_clear(Frame(g.buffer()));
        g.end();
        true
    }
}
