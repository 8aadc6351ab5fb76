//! Ranges that are used here and there: a table by its columns, a hash that is nearly empty.
//!
//! Who touches a page first gets zeros with it, up to a whole folio. Where most of them are still zeros when they leave, nobody wanted
//! them, and they made others leave. So the next time the range gets what is touched and little else, and more of its like fit into memory.
//! Where many did, and they leave again even so, folios were better: one fault brings what takes hundreds. Then it has folios again, for longer
//! each time.

use crate::{ZERO_FILL, ZERO_FILL_MAX};
use hugeswap_mm::{PageMask, PMD_NR};

/// So many pages of a range by themselves take longer than a folio.
const MANY: usize = PMD_NR / 8 * 3;
/// For how many leavings folios are had before a few pages are tried again: at first, and at most. (What is used in pieces leaves in several.)
const PAUSE: u8 = 7;
const LONGEST: u8 = 63;

/// Whether a range is taken to be one, and what came of that.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Sparse {
    is: bool,
    /// It left even so: how often it has folios then.
    pause: u8,
    /// How often it still has.
    left: u8,
}

impl Sparse {
    pub fn is(self) -> bool {
        self.is
    }

    /// Of so many pages that were in memory so many leave together, and so many of those are zeros. A few say nothing.
    #[must_use]
    pub fn left(self, held: usize, leaving: usize, zeros: usize) -> Sparse {
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
                    left: pause,
                }
            }
            _ if !hardly_used => self,
            Sparse { left: 0, .. } => Sparse { is: true, ..self },
            Sparse { left, .. } => Sparse {
                left: left - 1,
                ..self
            },
        }
    }
}

/// Pages of zeros for a place in such a range: as many as are there beside it already, a power of two. So a walk soon gets many,
/// and who goes through a table by its columns gets one of each row.
pub fn sparse_fill(present: PageMask, page: usize) -> usize {
    let beside = |mut next: usize, step: isize| {
        let mut n = 0;
        while n < ZERO_FILL_MAX {
            next = next.wrapping_add_signed(step);
            if next >= PMD_NR || !present.has(next) {
                break;
            }
            n += 1;
        }
        n
    };
    let n: usize = beside(page, -1).max(beside(page, 1)).max(1);
    1 << n.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_sparse_until_they_are_really_used() {
        let new = Sparse::default();
        let whole = |zeros| new.left(PMD_NR, PMD_NR, zeros);
        assert!(whole(512).is() && whole(256).is() && !whole(255).is() && !whole(0).is());
        let sparse = whole(512);
        assert_eq!(sparse.left(100, 100, 25), new);
        // One page of each row, which has to leave now and then.
        assert_eq!(sparse.left(120, 96, 96), sparse);
        // A few say nothing.
        assert_eq!(new.left(8, 8, 8), new);
        assert_eq!(sparse.left(8, 8, 0), sparse);
    }

    #[test]
    fn what_leaves_even_so_is_seldom_tried() {
        let mut range = Sparse::default();
        let mut tries = 0;
        for _ in 0..1000 {
            if range.is() {
                tries += 1;
                for (held, leaving) in [(256, 96), (160, 96), (64, 64)] {
                    range = range.left(held, leaving, leaving);
                }
            } else {
                range = range.left(PMD_NR, PMD_NR, PMD_NR);
            }
        }
        assert!((15..=20).contains(&tries), "{tries}");
        // What is written to begins anew.
        assert_eq!(range.left(PMD_NR, PMD_NR, 0), Sparse::default());
    }

    #[test]
    fn walks_get_more_and_more() {
        let walk = |pages: &mut dyn Iterator<Item = usize>| {
            let mut present = PageMask::EMPTY;
            let mut faults = 0;
            for page in pages {
                if !present.has(page) {
                    let n = sparse_fill(present, page);
                    let there = PageMask::FULL.minus(present).run_around(page, n);
                    present = present.or(PageMask::of(there));
                    faults += 1;
                }
            }
            (faults, present.count())
        };
        assert_eq!(walk(&mut (0..PMD_NR)), (14, PMD_NR));
        assert_eq!(walk(&mut (0..PMD_NR).rev()), (14, PMD_NR));
        assert_eq!(walk(&mut (0..PMD_NR).step_by(16)), (32, 32));
        // Rows that do not begin at a page's start.
        assert_eq!(walk(&mut (3..PMD_NR).step_by(31)), (17, 17));
    }
}
