//! What is taken out of the program ahead of being written: its second chance.

use hugeswap_mm::PMD_NR;

/// This part of memory is inactive: long enough for what is hot to be touched there. With more, what is
/// touched now and then is taken for hot as well.
const PART: i64 = 12;
/// The same where what leaves may stay until the kernel takes it: that is another chance, at which reads cost nothing.
const PART_IF_IT_STAYS: i64 = 48;
/// Ranges that are inactive at least.
const LEAST: usize = 2;
/// Times that pages can be spared when their turn comes, and once more.
const TURNS: usize = 4;
/// This part of all ranges is asked in vain for more to be inactive.
const PATIENCE: usize = 8;
/// An inactive folio of which so many pages were touched is hot as a whole.
const HOT: usize = PMD_NR * 3 / 4;

/// Whether more is to be taken out, of so many pages that are charged, where this much is. `stays`: what leaves may stay.
pub fn wants_more(charged: i64, staged: usize, ranges: usize, stays: bool) -> bool {
    let part = if stays { PART_IF_IT_STAYS } else { PART };
    staged < (charged.max(0) / part) as usize || ranges < LEAST
}

/// How many ranges in a row, of all, are asked in vain. As long as something is inactive more of it is only to be
/// wished for: many ranges may be inactive in part already, or have pages that are spared.
pub fn patience(inactive: usize, all: usize) -> usize {
    match inactive {
        0 => all * TURNS,
        _ => all / PATIENCE + 1,
    }
}

/// Whether a folio of which so many pages were touched in time is to come back whole.
pub fn is_hot(touched: usize) -> bool {
    touched >= HOT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twelfth_is_staged_and_two_ranges_at_least() {
        let more = |charged, staged, ranges| wants_more(charged, staged, ranges, false);
        assert!(more(12_000, 999, 9) && !more(12_000, 1000, 2));
        assert!(more(12_000, 1000, 1) && more(-5, 0, 0));
        assert!(!wants_more(12_000, 250, 9, true) && wants_more(12_000, 249, 9, true));
    }

    #[test]
    fn all_are_asked_more_than_once_where_nothing_else_is_left() {
        assert_eq!(
            [patience(0, 10), patience(1, 16), patience(1, 0)],
            [40, 3, 1]
        );
    }
}
