//! Which slots this process may read, for those from whom it borrows.

use super::{Memory, SwapCache};
use crate::control::Clusters;
use crate::mm::{Pmd, PMD_SIZE};

impl<M: Memory> SwapCache<M> {
    /// Adds every cluster in which a range has a slot: what it may read, or is reading. Slots leave
    /// ranges meanwhile, and none of others' comes to one; but they move from range to range, and then
    /// this is to be done again: false.
    pub fn mark(&self, marks: &Clusters) -> bool {
        let then = self.moves.now();
        let mut next = self.ranges.next(Pmd(0));
        while let Some(pmd) = next {
            next = self.ranges.next(Pmd(pmd.0 + 1));
            let Some(r) = self.ranges.get(pmd) else {
                continue;
            };
            let g = r.lock();
            let Some(place) = g.entry.filter(|_| !g.swapped.is_empty()) else {
                continue;
            };
            for piece in self.pieces(pmd, place, g.swapped) {
                let cluster = piece.entry.byte_offset() / PMD_SIZE as u64;
                marks.add(piece.entry.device().index(), cluster as usize);
            }
        }
        self.moves.none_since(then)
    }
}
