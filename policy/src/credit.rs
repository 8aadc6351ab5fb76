//! Which pages of a range are spared when its turn comes.
//!
//! Touches of resident memory can't be seen. But a page that was taken out and touched before it was
//! written is wanted more often than the list turns: it is spared the next time, and three times if it
//! happens to it again. So what is hot settles, and costs a fault less and less often.

use hugeswap_mm::{PageMask, PMD_NR};

/// Pages of a range that is used in pieces that are taken out at a time: so that each has been there about
/// as long as others that leave with it.
pub const AT_A_TIME: usize = 96;

#[derive(Clone, Copy, Debug, Default)]
pub struct Credit {
    /// How many turns a page is still spared: the upper and the lower bit.
    turns: [PageMask; 2],
    /// What was touched in time since it came in.
    touched: PageMask,
    /// The page whose turn it is.
    hand: u16,
}

impl Credit {
    /// The page was taken out, and touched in time.
    pub fn earn(&mut self, page: usize) {
        let page = PageMask::of(page..page + 1);
        self.turns[1] = self.turns[1].or(page);
        self.turns[0] = self.turns[0].or(page.and(self.touched));
        self.touched = self.touched.or(page);
    }

    /// The pages have left.
    pub fn forget(&mut self, pages: PageMask) {
        self.turns = self.turns.map(|bit| bit.minus(pages));
        self.touched = self.touched.minus(pages);
    }

    /// Of `pages` those whose turn it is to be taken out. Those that are spared have had theirs.
    pub fn take(&mut self, pages: PageMask) -> PageMask {
        let spared = self.turns[0].or(self.turns[1]);
        let (mut out, mut left) = (PageMask::EMPTY, AT_A_TIME);
        let start = usize::from(self.hand) % PMD_NR;
        for part in [start..PMD_NR, 0..start] {
            for run in pages.and(PageMask::of(part)).runs() {
                for page in run {
                    if left == 0 {
                        self.hand = page as u16;
                        self.spend(between(start, page));
                        return out;
                    }
                    if !spared.has(page) {
                        out.insert(page);
                        left -= 1;
                    }
                }
            }
        }
        self.spend(PageMask::FULL);
        out
    }

    fn spend(&mut self, pages: PageMask) {
        let [upper, lower] = self.turns.map(|bit| bit.and(pages));
        let others = self.turns.map(|bit| bit.minus(pages));
        self.turns = [
            others[0].or(upper.and(lower)),
            others[1].or(upper.minus(lower)),
        ];
    }
}

/// From `start` up to `end`, around the end of the range if need be.
fn between(start: usize, end: usize) -> PageMask {
    if start <= end {
        PageMask::of(start..end)
    } else {
        PageMask::FULL.minus(PageMask::of(end..start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_have_their_turn() {
        let mut credit = Credit::default();
        let pages = PageMask::FULL.minus(PageMask::of(3..13));
        let mut seen = PageMask::EMPTY;
        for _ in 0..5 {
            let out = credit.take(pages);
            assert_eq!(out.count(), AT_A_TIME);
            assert!(out.and(seen).is_empty() && out.minus(pages).is_empty());
            seen = seen.or(out);
        }
        assert!(pages.minus(seen.or(credit.take(pages))).is_empty());
        // Fewer than that leave together, wherever the hand is.
        let few = PageMask::of(5..6).or(PageMask::of(300..310));
        assert_eq!(credit.take(few), few);
    }

    #[test]
    fn what_is_touched_in_time_is_spared_once_and_then_three_times() {
        let mut credit = Credit::default();
        let (pages, one) = (PageMask::of(0..4), PageMask::of(2..3));
        for spared in [1, 3, 3] {
            credit.earn(2);
            for _ in 0..spared {
                assert_eq!(credit.take(pages), pages.minus(one));
            }
            assert_eq!(credit.take(pages), pages);
        }
        credit.earn(2);
        credit.forget(one);
        assert_eq!(credit.take(pages), pages);
        credit.earn(2);
        assert_eq!(credit.take(pages), pages.minus(one));
        assert_eq!(credit.take(pages), pages);
    }

    #[test]
    fn only_what_the_hand_has_passed_has_spent() {
        let mut credit = Credit::default();
        credit.earn(400);
        for part in 0..4 {
            let start = part * AT_A_TIME;
            assert_eq!(
                credit.take(PageMask::FULL),
                PageMask::of(start..start + AT_A_TIME)
            );
        }
        // Past the one that is spared.
        let out = PageMask::of(384..512)
            .minus(PageMask::of(400..401))
            .and(PageMask::of(384..481));
        assert_eq!(credit.take(PageMask::FULL), out);
        assert_eq!(credit.take(PageMask::of(400..401)), PageMask::of(400..401));
    }
}
