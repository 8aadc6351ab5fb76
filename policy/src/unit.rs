//! How many pages come in for one fault.

use hugeswap_mm::{PageMask, PMD_NR};

/// The most that comes by a buffer or a copy.
pub const FILL_MAX: usize = 64;
/// Pages of zeros that come at a time, and at most.
pub const ZERO_FILL: usize = 16;
pub const ZERO_FILL_MAX: usize = 64;
/// A range comes in whole only if so many of its pages are in swap: the rest would be zeros.
const WHOLE_MIN: usize = PMD_NR / 2;
/// What a walk finds half there comes with the rest of it, if that is so many pages.
const REST_MIN: usize = 64;
/// What is touched on its second chance comes back with its neighbours, so many pages together.
const RESCUE: usize = 16;
/// A fill of so many pages is a walk's.
const WALK_FILL: usize = 16;

/// How much to bring in for a page that is in swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    Whole,
    /// The aligned window of so many pages around the fault.
    Pages(usize),
    /// These and no others, with the page of the fault.
    Set(PageMask),
    /// All that is not resident, however little or much that is.
    Rest,
}

impl Unit {
    /// Of the pages that are there to be had, those to come by a buffer or a copy for a fault on `page`,
    /// which is one of them.
    pub fn of(self, there: PageMask, page: usize) -> PageMask {
        let window = |n: usize| PageMask::of(there.run_around(page, n.clamp(1, FILL_MAX)));
        match self {
            Unit::Whole | Unit::Rest => window(FILL_MAX),
            Unit::Pages(n) => window(n),
            Unit::Set(set) => as_fit(set.and(there).or(window(1)), page),
        }
    }

    /// The same without a frame.
    pub fn in_parts(self) -> Unit {
        match self {
            Unit::Whole | Unit::Rest => Unit::Pages(FILL_MAX),
            unit => unit,
        }
    }

    /// As `of`, for pages that have been taken out and not written yet.
    pub fn rescued(self, there: PageMask, page: usize) -> PageMask {
        match self {
            Unit::Pages(n) => Unit::Pages(n.max(RESCUE)).of(there, page),
            unit => unit.of(there, page),
        }
    }

    /// Whether that much of a range, of which these pages are resident and those are in swap, comes by way of
    /// a frame.
    pub fn is_whole(self, present: PageMask, swapped: PageMask) -> bool {
        match self {
            Unit::Whole if present.is_empty() => swapped.count() >= WHOLE_MIN,
            Unit::Whole => swapped.minus(present).count() >= REST_MIN,
            Unit::Rest => true,
            Unit::Pages(_) | Unit::Set(_) => false,
        }
    }

    /// The pages that a walk gets at a time, if it is one that does.
    pub fn walks(self) -> Option<usize> {
        match self {
            Unit::Pages(n) => (n >= WALK_FILL).then_some(n),
            Unit::Whole | Unit::Rest | Unit::Set(_) => None,
        }
    }
}

/// As many of the pages as fit into a buffer: `page`, which is one of them, those above it, and of
/// those below it the nearest.
fn as_fit(pages: PageMask, page: usize) -> PageMask {
    let mut fit = PageMask::EMPTY;
    let mut left = FILL_MAX;
    let outwards = (page..PMD_NR).chain((0..page).rev());
    for page in outwards.filter(|&page| pages.has(page)) {
        if left == 0 {
            break;
        }
        fit.insert(page);
        left -= 1;
    }
    fit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_cut_to_the_buffer() {
        let step = |step: usize| {
            let mut pages = PageMask::EMPTY;
            (0..PMD_NR)
                .step_by(step)
                .for_each(|page| pages.insert(page));
            pages
        };
        assert_eq!(as_fit(step(8), 0), step(8));
        // Upwards, downwards, and both.
        assert_eq!(as_fit(step(5), 0), step(5).and(PageMask::of(0..64 * 5)));
        assert_eq!(as_fit(step(5), 510), step(5).and(PageMask::of(195..511)));
        let both = as_fit(step(5), 255);
        assert_eq!(both, step(5).and(PageMask::of(195..512)));
        for page in (0..PMD_NR).step_by(5) {
            let fit = as_fit(step(5), page);
            assert!(fit.has(page) && fit.count() == FILL_MAX, "{page}");
        }
    }

    #[test]
    fn ranges_come_whole_where_enough_of_them_is_in_swap() {
        let (none, half) = (PageMask::EMPTY, PageMask::of(0..PMD_NR / 2));
        let less = PageMask::of(1..PMD_NR / 2);
        assert!(Unit::Whole.is_whole(none, half) && !Unit::Whole.is_whole(none, less));
        // What is resident is in swap as well.
        assert!(!Unit::Whole.is_whole(PageMask::of(63..PMD_NR), half));
        assert!(Unit::Whole.is_whole(PageMask::of(64..PMD_NR), half));
        assert!(Unit::Rest.is_whole(half, PageMask::of(0..PMD_NR / 2 + 1)));
        assert!(!Unit::Pages(64).is_whole(none, PageMask::FULL));
    }

    #[test]
    fn what_was_taken_out_comes_back_with_its_neighbours() {
        let count = |unit: Unit| unit.rescued(PageMask::FULL, 100).count();
        assert_eq!(
            [Unit::Pages(1), Unit::Pages(32), Unit::Whole].map(count),
            [RESCUE, 32, FILL_MAX]
        );
    }
}
