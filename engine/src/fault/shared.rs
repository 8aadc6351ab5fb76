//! Writes to folios that are shared since a fork: the kernel copies them, or the engine.

use super::Handler;
use crate::mm::{Pmd, PMD_NR};
use crate::policy::shared::{SharedWrites, Write};
use crate::swap_cache::CopyFor;

impl Handler<'_> {
    /// A fork has ended: writes to what is shared now are told from here on.
    pub fn has_forked(&mut self) {
        self.shared_writes = SharedWrites::default();
        self.cache.tell_of_writes();
    }

    /// The first write to a folio that was shared by a fork. False if it is something else.
    pub(super) fn write_to_shared(&mut self, pmd: Pmd, page: usize) -> bool {
        let cache = self.cache;
        if !cache.is_shared_folio(pmd) {
            return false;
        }
        let write = self.shared_writes.write(
            pmd,
            cache.is_alone(pmd, page),
            |p| cache.own_pages_of(p),
            |p| cache.is_shared_folio(p),
        );
        match write {
            Write::Whole { step, folios } if self.begin_copies(pmd, page, step, folios) => {
                self.kick.kick();
            }
            Write::Own => cache.allow_writes(pmd, page),
            Write::ByPage | Write::Whole { .. } => {
                cache.stats().thp_cow_fallback.inc();
                cache.allow_writes(pmd, page);
            }
            Write::Stop => cache.tell_no_more(pmd, page),
        }
        true
    }

    /// Has the first folio copied, and those after it that can be. False if it can't be.
    fn begin_copies(&self, pmd: Pmd, page: usize, step: i32, folios: usize) -> bool {
        // One at a time is there twice. Where memory is short the kernel copies what is needed, and no more.
        if self.cache.free_pages() < self.kick.low_pages() + PMD_NR as i64 {
            return false;
        }
        if !self.cache.begin_copy(pmd, page, CopyFor::AThread) {
            return false;
        }
        let first = if step > 0 { 0 } else { PMD_NR - 1 };
        for k in 1..folios as i32 {
            let Some(next) = pmd.0.checked_add_signed(step * k) else {
                break;
            };
            if !self.cache.begin_copy(Pmd(next), first, CopyFor::Later) {
                break;
            }
        }
        true
    }
}
