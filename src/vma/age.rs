//! Which pages of a range came in lately, by a clock that goes with the main list.
//!
//! A range keeps its place on the list while pages of it come and go. So when its turn comes, some of
//! them have been there for the whole way and some since a moment ago: only the former leave.

use crate::mm::PageMask;

/// Parts of the way from the tail of the main list to its head that the clock tells apart. Young is what
/// came in in the last two: a third to two thirds of the way.
pub(super) const PARTS: usize = 3;

/// What the clock says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now(pub(super) u32);

/// The young pages of a range.
#[derive(Clone, Copy, Debug, Default)]
pub struct Young {
    now: Now,
    came: [PageMask; 2],
}

impl Young {
    pub fn arrive(&mut self, now: Now, pages: PageMask) {
        self.turn_to(now);
        self.came[0] = self.came[0].or(pages);
    }

    pub fn pages(&mut self, now: Now) -> PageMask {
        self.turn_to(now);
        self.came[0].or(self.came[1])
    }

    fn turn_to(&mut self, now: Now) {
        self.came = match now.0.wrapping_sub(self.now.0) {
            0 => return,
            1 => [PageMask::EMPTY, self.came[0]],
            _ => [PageMask::EMPTY; 2],
        };
        self.now = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_grow_old() {
        let mut young = Young::default();
        let (a, b) = (PageMask::of(3..5), PageMask::of(9..10));
        young.arrive(Now(7), a);
        assert_eq!(young.pages(Now(7)), a);
        young.arrive(Now(8), b);
        assert_eq!(young.pages(Now(8)), a.or(b));
        assert_eq!(young.pages(Now(9)), b);
        assert_eq!(young.pages(Now(10)), PageMask::EMPTY);
        young.arrive(Now(10), a);
        assert_eq!(young.pages(Now(12)), PageMask::EMPTY);
    }
}
