//! Ranges that are used here and there: a table by its columns, a hash that is nearly empty.
//!
//! Who touches a page first gets zeros with it, up to a whole folio. Where most of them are still zeros when they leave, nobody wanted
//! them, and they made others leave. So the next time the range gets what is touched and little else, and more of its like fit into memory.
//! Where many did, and they leave again even so, folios were better: one fault brings what takes hundreds. Then it has folios again, for longer
//! each time.

use crate::ZERO_FILL;
use hugeswap_mm::PMD_NR;

/// So many pages of a range by themselves take longer than a folio.
const MANY: usize = PMD_NR / 8 * 3;
/// For how many leavings folios are had before a few pages are tried again: at first, and at most. (What is used in pieces leaves in several.)
const PAUSE: u8 = 7;
const LONGEST: u8 = 63;

/// Whether a range is taken to be one, and what came of that.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Sparse {
    is: bool,
    /// It left even so: for how many leavings it has folios then.
    pause: u8,
    /// And for how many more it has.
    rest: u8,
}

impl Sparse {
    pub fn is(self) -> bool {
        self.is
    }

    /// Of so many pages that were in memory so many leave together, and so many of those are zeros. A few say nothing.
    #[must_use]
    pub fn leaves(self, held: usize, leaving: usize, zeros: usize) -> Sparse {
        let (hardly_used, used) = (2 * zeros >= leaving, 4 * zeros <= leaving);
        match self {
            _ if leaving < ZERO_FILL => self,
            _ if used => Sparse::default(),
            Sparse { is: true, .. } if held < MANY => self,
            Sparse { is: true, .. } => {
                let pause = (2 * self.pause + PAUSE).min(LONGEST);
                Sparse {
                    is: false,
                    pause,
                    rest: pause,
                }
            }
            _ if !hardly_used => self,
            Sparse { rest: 0, .. } => Sparse { is: true, ..self },
            Sparse { rest, .. } => Sparse {
                rest: rest - 1,
                ..self
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_sparse_until_they_are_really_used() {
        let new = Sparse::default();
        let whole = |zeros| new.leaves(PMD_NR, PMD_NR, zeros);
        assert!(whole(512).is() && whole(256).is() && !whole(255).is() && !whole(0).is());
        let sparse = whole(512);
        assert_eq!(sparse.leaves(100, 100, 25), new);
        // One page of each row, which has to leave now and then.
        assert_eq!(sparse.leaves(120, 96, 96), sparse);
        // A few say nothing.
        assert_eq!(new.leaves(8, 8, 8), new);
        assert_eq!(sparse.leaves(8, 8, 0), sparse);
    }

    #[test]
    fn what_leaves_even_so_is_seldom_tried() {
        let mut range = Sparse::default();
        let mut tries = 0;
        for _ in 0..1000 {
            if range.is() {
                tries += 1;
                for (held, leaving) in [(256, 96), (160, 96), (64, 64)] {
                    range = range.leaves(held, leaving, leaving);
                }
            } else {
                range = range.leaves(PMD_NR, PMD_NR, PMD_NR);
            }
        }
        assert!((15..=20).contains(&tries), "{tries}");
        // What is written to begins anew.
        assert_eq!(range.leaves(PMD_NR, PMD_NR, 0), Sparse::default());
    }
}
