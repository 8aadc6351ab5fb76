//! Users of slots: the reference count, the swap-cache bit, bad slots.
//!
//! The first user of a slot is a bit of its cluster. Only the further ones, who
//! come by fork(2), are counted in the slot's word of `swap_map`:
//!
//! ```text
//!   15               14                                0
//! +-----------------+-----------------------------------+
//! | bad, once free  |      users beyond the first       |
//! +-----------------+-----------------------------------+
//! ```

use super::bitmap::Bitmap;
use super::cluster::ClusterState;
use super::error::EntryError;
use super::shard::Shard;
use hugeswap_mm::SWAPFILE_CLUSTER;

/// The device failed on this slot: it is not to be used again.
pub const BAD_ONCE_FREE: u16 = 1 << 15;
const USERS: u16 = BAD_ONCE_FREE - 1;

impl Shard {
    #[inline]
    fn word(&self, idx: u32, offset: usize) -> usize {
        idx as usize * SWAPFILE_CLUSTER + offset
    }

    /// Changes a slot's word and keeps count of those that are not zero.
    fn set_word(&mut self, idx: u32, offset: usize, value: u16) {
        let at = self.word(idx, offset);
        let old = core::mem::replace(&mut self.swap_map[at], value);
        let ci = &mut self.clusters[idx as usize];
        match (old, value) {
            (0, 0) => {}
            (0, _) => ci.marked += 1,
            (_, 0) => ci.marked -= 1,
            _ => {}
        }
    }

    /// Adds a user to each slot, or to none.
    pub fn dup(&mut self, idx: u32, start: usize, nr: usize) -> Result<(), EntryError> {
        let ci = &self.clusters[idx as usize];
        if !ci.held.all(start, nr) {
            return Err(EntryError::NotInUse);
        }
        let from = self.word(idx, start);
        let words = &self.swap_map[from..from + nr];
        if ci.marked != 0 && words.iter().any(|word| word & USERS == USERS) {
            return Err(EntryError::TooManyUsers);
        }
        for offset in start..start + nr {
            let word = self.swap_map[self.word(idx, offset)];
            self.set_word(idx, offset, word + 1);
        }
        Ok(())
    }

    /// Takes a user from each slot, or from none; returns how many got free.
    #[inline]
    pub fn free(&mut self, idx: u32, start: usize, nr: usize) -> Result<u32, EntryError> {
        self.catch_up(idx);
        let ci = &mut self.clusters[idx as usize];
        if !ci.held.all(start, nr) {
            return Err(EntryError::NotInUse);
        }
        if ci.marked == 0 && !ci.cached.any(start, nr) {
            ci.held.clear(start, nr);
            self.release(idx, start, nr);
            return Ok(nr as u32);
        }
        Ok(self.free_one_by_one(idx, start, nr))
    }

    #[cold]
    fn free_one_by_one(&mut self, idx: u32, start: usize, nr: usize) -> u32 {
        let mut freed = 0;
        for offset in start..start + nr {
            let word = self.swap_map[self.word(idx, offset)];
            if word & USERS != 0 {
                self.set_word(idx, offset, word - 1);
                continue;
            }
            let ci = &mut self.clusters[idx as usize];
            ci.held.clear(offset, 1);
            if !ci.cached.get(offset) {
                freed += self.let_go(idx, offset);
            }
        }
        freed
    }

    /// Neither users nor the cache have the slot any more. 1 if it can be had
    /// again, 0 if it is bad.
    pub(super) fn let_go(&mut self, idx: u32, offset: usize) -> u32 {
        if self.swap_map[self.word(idx, offset)] & BAD_ONCE_FREE == 0 {
            self.release(idx, offset, 1);
            return 1;
        }
        self.set_word(idx, offset, 0);
        let ci = &mut self.clusters[idx as usize];
        // `used` stays set without `held` and `cached`: that is a bad slot.
        ci.count -= 1;
        ci.bad += 1;
        self.used -= 1;
        self.bad += 1;
        if ci.count == 0 {
            ci.order = 0;
        }
        self.settle(idx);
        0
    }

    /// Users of a slot, not counting the swap cache.
    pub fn users(&self, idx: u32, offset: usize) -> u32 {
        if !self.clusters[idx as usize].held.get(offset) {
            return 0;
        }
        1 + u32::from(self.swap_map[self.word(idx, offset)] & USERS)
    }

    pub fn is_cached(&self, idx: u32, offset: usize) -> bool {
        self.clusters[idx as usize].cached.get(offset)
    }

    /// The swap cache holds a folio for these slots; they are in use.
    pub fn cache_set(&mut self, idx: u32, start: usize, nr: usize) -> Result<(), EntryError> {
        let ci = &mut self.clusters[idx as usize];
        let taken = ci.held.zip(&ci.cached, |held, cached| held | cached);
        if !taken.all(start, nr) {
            return Err(EntryError::NotInUse);
        }
        ci.cached.set(start, nr);
        Ok(())
    }

    /// The swap cache lets go of them; returns how many got free by that.
    pub fn cache_clear(&mut self, idx: u32, start: usize, nr: usize) -> Result<u32, EntryError> {
        let ci = &mut self.clusters[idx as usize];
        if !ci.cached.all(start, nr) {
            return Err(EntryError::NotCached);
        }
        ci.cached.clear(start, nr);
        let (held, marked) = (ci.held, ci.marked);
        if marked == 0 && !held.any(start, nr) {
            self.release(idx, start, nr);
            return Ok(nr as u32);
        }
        let mut freed = 0;
        for offset in (start..start + nr).filter(|&offset| !held.get(offset)) {
            freed += self.let_go(idx, offset);
        }
        Ok(freed)
    }

    /// Never hand these slots out again: now if they are free, else once they are.
    pub fn mark_bad(&mut self, idx: u32, start: usize, nr: usize) {
        if self.is_offline(idx) {
            return;
        }
        for offset in start..start + nr {
            let ci = &mut self.clusters[idx as usize];
            if ci.held.get(offset) || ci.cached.get(offset) {
                let word = self.swap_map[self.word(idx, offset)];
                self.set_word(idx, offset, word | BAD_ONCE_FREE);
            } else if !ci.used.get(offset) {
                ci.used.set(offset, 1);
                ci.bad += 1;
                self.bad += 1;
                match ci.state {
                    ClusterState::Untouched => self.nr_untouched -= 1,
                    ClusterState::Discarding => self.discarding -= 1,
                    _ => {}
                }
                ci.recompute_top();
                self.settle(idx);
            }
        }
    }

    /// Bad slots from `from` to the end of the cluster become good: the device grew.
    pub(super) fn forgive(&mut self, idx: u32, from: usize) {
        let nr = SWAPFILE_CLUSTER - from;
        let ci = &mut self.clusters[idx as usize];
        let gone = ci.bad_slots().within(from, nr).count();
        if gone == 0 {
            return;
        }
        let keep = ci.held.zip(&ci.cached, |held, cached| held | cached);
        let tail = Bitmap::EMPTY.with(from, nr);
        ci.used = ci
            .used
            .zip(&tail.zip(&keep, |tail, keep| tail & !keep), |used, gone| {
                used & !gone
            });
        ci.bad -= gone as u16;
        self.releases += 1;
        self.bad -= u64::from(gone);
        if ci.is_empty() {
            self.empty(idx);
        } else {
            ci.recompute_top();
            self.settle(idx);
        }
    }
}
