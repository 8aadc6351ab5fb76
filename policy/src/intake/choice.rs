//! How much to bring in for a fault: docs/swap-in.md.

use super::stream::Walk;
use crate::{Hints, Huge, Pattern, SwapIn, Unit, ZERO_FILL, ZERO_FILL_MAX};
use hugeswap_mm::{PageMask, PMD_NR};

/// What is known of the fault itself.
#[derive(Clone, Copy)]
pub struct Seen {
    /// Nothing of its range is resident.
    pub vacant: bool,
    /// It goes on with a walk that enters ranges at their edge, in this direction.
    pub walk: Option<i32>,
    /// Of the range that it came from, all is resident.
    pub left_all: bool,
    /// Pages for the place that the walk has come to; one for a jump.
    pub pages: usize,
    /// What its thread will come to in the range, if it strides.
    pub stride: Option<PageMask>,
    /// It is a jump, and where its thread jumps fits into memory.
    pub fits: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    pub unit: Unit,
    /// Read the next folios too, in this direction; and how many, where that was said.
    pub ahead: Option<(i32, Option<usize>)>,
}

/// Folios that are read ahead where the program said MADV_SEQUENTIAL.
const SEQUENTIAL: usize = 4;

pub fn choose(mode: SwapIn, hints: Hints, seen: Seen) -> Choice {
    let only = |unit| Choice { unit, ahead: None };
    let huge = match mode {
        SwapIn::Never => return only(Unit::Pages(1)),
        SwapIn::Madvise if hints.huge != Huge::Wanted => return only(Unit::Pages(1)),
        SwapIn::Always | SwapIn::Madvise => true,
        // MADV_HUGEPAGE says nothing here: numpy says it of every large array, however it is used.
        SwapIn::Auto => false,
    };
    let walk = seen.walk.map(|step| (step, None));
    if huge {
        return Choice {
            unit: Unit::Whole,
            ahead: walk,
        };
    }
    match (hints.huge, hints.pattern) {
        (_, Pattern::Random) => only(Unit::Pages(1)),
        (Huge::Unwanted, _) => only(Unit::Pages(seen.pages)),
        (_, Pattern::Sequential) if seen.vacant => Choice {
            unit: Unit::Whole,
            ahead: walk.or(Some((1, Some(SEQUENTIAL)))),
        },
        _ if walk.is_some() && (seen.vacant || seen.left_all) => Choice {
            unit: Unit::Whole,
            ahead: walk,
        },
        _ if seen.fits => only(Unit::Rest),
        _ => Choice {
            unit: seen.stride.map_or(Unit::Pages(seen.pages), Unit::Set),
            ahead: walk,
        },
    }
}

/// The same for a process that may have no whole folios.
pub fn in_parts(choice: Choice) -> Choice {
    Choice {
        unit: choice.unit.in_parts(),
        ahead: None,
    }
}

/// What is known of a place that was never touched.
#[derive(Clone, Copy)]
pub struct Untouched {
    /// Memory has been full, and little of it has been given back since.
    pub tight: bool,
    /// The range is used here and there, and nobody goes through all of it.
    pub sparse: bool,
    pub walk: Option<Walk>,
    /// See [`beside`].
    pub beside: usize,
}

/// Pages of zeros for it. A folio while there is room; when memory has been full, only for a walk that has come to another range: pages
/// that nobody wants would make others leave that are. In a sparse range as many as are there beside it.
pub fn first_touch(mode: SwapIn, at: Untouched) -> usize {
    let by_itself = match at.walk {
        _ if mode == SwapIn::Always => PMD_NR,
        _ if at.sparse => 1,
        _ if !at.tight => PMD_NR,
        Some(walk) if walk.enters.is_some() => PMD_NR,
        Some(walk) => walk.pages.max(ZERO_FILL),
        None => ZERO_FILL,
    };
    by_itself.max(at.beside)
}

/// How many pages are there one after the other, up to this one or from it on: a power of two. Who comes to their end goes on. So
/// a walk soon gets many, and who goes through a table by its columns gets one of each row.
pub fn beside(present: PageMask, page: usize) -> usize {
    let most = |pages: &mut dyn Iterator<Item = usize>| {
        pages
            .take(ZERO_FILL_MAX)
            .take_while(|&page| present.has(page))
            .count()
    };
    let n = most(&mut (0..page).rev()).max(most(&mut (page + 1..PMD_NR)));
    1 << n.max(1).ilog2()
}

/// What to read ahead for a fault that found its page without being asked how much it wants: in a
/// frame, or never touched.
pub fn passing(mode: SwapIn, walk: Option<i32>) -> Option<(i32, Option<usize>)> {
    match mode {
        SwapIn::Auto | SwapIn::Always => walk.map(|step| (step, None)),
        SwapIn::Madvise | SwapIn::Never => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hints(huge: Huge, pattern: Pattern) -> Hints {
        Hints { pattern, huge }
    }

    #[test]
    fn modes_and_hints() {
        use {Huge::*, Pattern::*, SwapIn::*};
        let walk = Seen {
            vacant: true,
            walk: Some(-1),
            left_all: false,
            pages: 16,
            stride: None,
            fits: false,
        };
        let jump = Seen {
            vacant: true,
            walk: None,
            left_all: false,
            pages: 1,
            stride: None,
            fits: false,
        };
        let on = Some((-1, None));
        for (mode, huge, pattern, seen, unit, ahead) in [
            (Auto, Unsaid, Normal, walk, Unit::Whole, on),
            (Auto, Unsaid, Normal, jump, Unit::Pages(1), None),
            (Auto, Wanted, Normal, jump, Unit::Pages(1), None),
            (Auto, Wanted, Random, jump, Unit::Pages(1), None),
            (Auto, Unwanted, Normal, walk, Unit::Pages(16), None),
            (Auto, Unsaid, Random, walk, Unit::Pages(1), None),
            (
                Auto,
                Unsaid,
                Sequential,
                jump,
                Unit::Whole,
                Some((1, Some(4))),
            ),
            (Auto, Unsaid, Sequential, walk, Unit::Whole, on),
            (Always, Unwanted, Random, jump, Unit::Whole, None),
            (Always, Unsaid, Normal, walk, Unit::Whole, on),
            (Never, Wanted, Sequential, walk, Unit::Pages(1), None),
            (Madvise, Unsaid, Sequential, walk, Unit::Pages(1), None),
            (Madvise, Wanted, Normal, jump, Unit::Whole, None),
        ] {
            let got = choose(mode, hints(huge, pattern), seen);
            assert_eq!(got, Choice { unit, ahead }, "{mode:?} {huge:?} {pattern:?}");
        }
    }

    #[test]
    fn first_touches_are_small_where_memory_is_full_and_nobody_walks() {
        let walk = |enters, pages| Some(Walk { enters, pages });
        let at = |tight, sparse, walk, beside| Untouched {
            tight,
            sparse,
            walk,
            beside,
        };
        let tight = |walk| first_touch(SwapIn::Auto, at(true, false, walk, 1));
        assert_eq!(first_touch(SwapIn::Auto, at(false, false, None, 1)), PMD_NR);
        assert_eq!(first_touch(SwapIn::Always, at(true, true, None, 1)), PMD_NR);
        assert_eq!(first_touch(SwapIn::Auto, at(true, false, None, 32)), 32);
        let sparse = |beside| first_touch(SwapIn::Auto, at(false, true, walk(Some(1), 64), beside));
        assert_eq!((sparse(1), sparse(32)), (1, 32));
        assert_eq!((tight(None), tight(walk(None, 4))), (ZERO_FILL, ZERO_FILL));
        assert_eq!(
            (tight(walk(None, 64)), tight(walk(Some(1), 4))),
            (64, PMD_NR)
        );
    }

    #[test]
    fn a_walk_takes_the_rest_of_what_is_half_there() {
        let seen = Seen {
            vacant: false,
            walk: Some(1),
            left_all: true,
            pages: 64,
            stride: None,
            fits: false,
        };
        let got = choose(SwapIn::Auto, Hints::default(), seen);
        assert_eq!(got.unit, Unit::Whole);
        assert_eq!(got.ahead, Some((1, None)));
        assert_eq!(passing(SwapIn::Auto, seen.walk), got.ahead);
        assert_eq!(passing(SwapIn::Never, seen.walk), None);
        // It may be one page of each range that is wanted.
        let in_doubt = Seen {
            left_all: false,
            ..seen
        };
        let got = choose(SwapIn::Auto, Hints::default(), in_doubt);
        assert_eq!((got.unit, got.ahead), (Unit::Pages(64), Some((1, None))));
        let within = Seen { walk: None, ..seen };
        let got = choose(SwapIn::Auto, Hints::default(), within);
        assert_eq!((got.unit, got.ahead), (Unit::Pages(64), None));
    }

    #[test]
    fn walks_get_more_and_more() {
        let walk = |pages: &mut dyn Iterator<Item = usize>| {
            let mut present = PageMask::EMPTY;
            let mut faults = 0;
            for page in pages {
                if !present.has(page) {
                    let n = beside(present, page);
                    present = present.or(PageMask::around(page, n));
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
