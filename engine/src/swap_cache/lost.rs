//! What cannot be read back, and ranges without a descriptor.

use super::{Memory, SwapCache};
use crate::mm::{PageMask, Pmd, PAGE_SIZE};
use crate::sys::thread::{exit_group, now_ns};
use crate::sys::uffd::Refused;
use crate::sys::Errno;
use crate::vma::RangeGuard;
use core::sync::atomic::Ordering::Relaxed;

impl<M: Memory> SwapCache<M> {
    /// A page cannot be read from the device: a thread that touches it gets SIGBUS.
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
            exit_group(super::EXIT_LOST);
        }
        g.lost = g.lost.or(pages);
        self.give_slots_up(pmd, g, pages);
    }

    /// Poisons missing pages of the program; ones that are poisoned already stay so.
    pub(super) fn poison(&self, pmd: Pmd, pages: PageMask) -> Result<(), Errno> {
        for page in pages.runs().flatten() {
            match self.memory.poison(pmd.page_addr(page), PAGE_SIZE) {
                Ok(()) | Err(Refused::Exists { .. }) => {}
                Err(_) => return Err(Errno::EBUSY),
            }
        }
        Ok(())
    }

    /// Who touches the range faults again, and again; not for ever.
    #[cold]
    pub(super) fn has_no_descriptor(&self, pmd: Pmd) {
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
            exit_group(super::EXIT_LOST);
        }
    }
}
