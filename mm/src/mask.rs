//! Which of the 512 base pages of a 2 MiB range.

use super::PMD_NR;
use core::ops::Range;

/// A set of base pages of one 2 MiB range.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct PageMask([u64; 8]);

impl core::fmt::Debug for PageMask {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.runs()).finish()
    }
}

impl PageMask {
    pub const EMPTY: PageMask = PageMask([0; 8]);
    pub const FULL: PageMask = PageMask([u64::MAX; 8]);

    /// Page `i` is bit `i % 64` of word `i / 64`.
    #[inline]
    pub const fn from_words(words: [u64; 8]) -> PageMask {
        PageMask(words)
    }

    #[inline]
    pub fn of(r: Range<usize>) -> PageMask {
        let mut m = PageMask::EMPTY;
        let end = r.end.min(PMD_NR);
        let mut at = r.start;
        while at < end {
            let stop = end.min((at / 64 + 1) * 64);
            let n = stop - at;
            let bits = if n == 64 { u64::MAX } else { (1u64 << n) - 1 };
            m.0[at / 64] |= bits << (at % 64);
            at = stop;
        }
        m
    }

    #[inline]
    pub fn has(&self, page: usize) -> bool {
        self.0[page / 64] >> (page % 64) & 1 != 0
    }
    #[inline]
    pub fn insert(&mut self, page: usize) {
        self.0[page / 64] |= 1 << (page % 64);
    }
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 8]
    }
    #[inline]
    pub fn is_full(&self) -> bool {
        self.0 == [u64::MAX; 8]
    }
    #[inline]
    pub fn count(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Pages of the set before this one.
    #[inline]
    pub fn rank(&self, page: usize) -> usize {
        let whole: u32 = self.0[..page / 64].iter().map(|w| w.count_ones()).sum();
        let rest = self.0[page / 64] & ((1 << (page % 64)) - 1);
        (whole + rest.count_ones()) as usize
    }

    #[inline]
    fn zip(self, o: PageMask, f: impl Fn(u64, u64) -> u64) -> PageMask {
        PageMask(core::array::from_fn(|i| f(self.0[i], o.0[i])))
    }
    #[inline]
    pub fn and(self, o: PageMask) -> PageMask {
        self.zip(o, |a, b| a & b)
    }
    #[inline]
    pub fn or(self, o: PageMask) -> PageMask {
        self.zip(o, |a, b| a | b)
    }
    #[inline]
    pub fn minus(self, o: PageMask) -> PageMask {
        self.zip(o, |a, b| a & !b)
    }

    /// The first page of the set at or after `from`; 512 for none.
    #[inline]
    fn next_in(&self, from: usize) -> usize {
        self.next(from, |word| word)
    }

    /// The first page outside the set at or after `from`; 512 for none.
    #[inline]
    fn next_outside(&self, from: usize) -> usize {
        self.next(from, |word| !word)
    }

    /// The same of the set whose words `of` gives.
    #[inline]
    fn next(&self, from: usize, of: impl Fn(u64) -> u64) -> usize {
        let mut at = from;
        while at < PMD_NR {
            let w = of(self.0[at / 64]) >> (at % 64);
            if w != 0 {
                return (at + w.trailing_zeros() as usize).min(PMD_NR);
            }
            at = (at / 64 + 1) * 64;
        }
        PMD_NR
    }

    /// The first page of the set at or after `from`.
    #[inline]
    pub fn next_from(&self, from: usize) -> Option<usize> {
        let page = self.next_in(from);
        (page < PMD_NR).then_some(page)
    }

    /// The first `n` of them, or all.
    pub fn first(self, n: usize) -> PageMask {
        let mut first = PageMask::EMPTY;
        let mut left = n;
        for run in self.runs() {
            let end = run.end.min(run.start + left);
            first = first.or(PageMask::of(run.start..end));
            left -= end - run.start;
        }
        first
    }

    /// The maximal runs of neighbouring pages, in order.
    #[inline]
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut at = 0;
        core::iter::from_fn(move || {
            let start = self.next_in(at);
            if start == PMD_NR {
                return None;
            }
            at = self.next_outside(start);
            Some(start..at)
        })
    }

    /// The aligned window of `window` pages around `page`.
    pub fn around(page: usize, window: usize) -> PageMask {
        let first = page / window * window;
        PageMask::of(first..(first + window).min(PMD_NR))
    }

    /// The run of the set that holds `page`, cut to the aligned window of `window` pages around it.
    #[inline]
    pub fn run_around(&self, page: usize, window: usize) -> Range<usize> {
        debug_assert!(self.has(page));
        let lo = page / window * window;
        let hi = (lo + window).min(PMD_NR);
        let mut start = page;
        while start > lo && self.has(start - 1) {
            start -= 1;
        }
        start..self.next_outside(page).min(hi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_runs_agree() {
        for (a, b) in [
            (0, 0),
            (0, 1),
            (3, 64),
            (63, 65),
            (64, 128),
            (5, 512),
            (511, 512),
            (0, 512),
        ] {
            let m = PageMask::of(a..b);
            assert_eq!(m.count(), b - a);
            let runs: Vec<_> = m.runs().collect();
            let all: Vec<_> = (a < b).then_some(a..b).into_iter().collect();
            assert_eq!(runs, all);
            for p in 0..512 {
                assert_eq!(m.has(p), (a..b).contains(&p));
            }
        }
        let m = PageMask::of(1..3)
            .or(PageMask::of(60..70))
            .or(PageMask::of(500..512));
        assert_eq!(m.runs().collect::<Vec<_>>(), vec![1..3, 60..70, 500..512]);
        assert_eq!(m.minus(PageMask::of(64..66)).runs().count(), 4);
        assert!(PageMask::of(0..512).is_full());
    }

    #[test]
    fn window_around_a_page() {
        assert_eq!(PageMask::around(9, 4), PageMask::of(8..12));
        assert_eq!(PageMask::around(511, 96), PageMask::of(480..512));
        let m = PageMask::of(2..20);
        assert_eq!(m.run_around(3, 4), 2..4);
        assert_eq!(m.run_around(17, 4), 16..20);
        assert_eq!(m.run_around(19, 8), 16..20);
        assert_eq!(m.run_around(9, 4), 8..12);
    }

    #[test]
    fn the_first_are_the_lowest() {
        let m = PageMask::of(3..5)
            .or(PageMask::of(100..200))
            .or(PageMask::of(511..512));
        for n in 0..PMD_NR {
            let (first, rest) = (m.first(n), m.minus(m.first(n)));
            assert_eq!(first.count(), n.min(m.count()));
            assert_eq!(first.or(rest), m);
            assert!(rest
                .next_from(0)
                .is_none_or(|page| first.next_from(page).is_none()));
        }
    }
}
