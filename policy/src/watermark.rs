//! How much memory is kept free ahead of demand.

use crate::FILL_MAX;
use hugeswap_mm::PMD_NR;

/// Free pages for a program that jumps: it needs them one by one, and what is free is of no use to it.
const LOW_JUMPING: i64 = 128;

/// A process that may have fewer folios than this gets its pages in parts of a range: one that is used, one that
/// comes and one that leaves would be more than it may have.
const FOLIOS: i64 = 3;

/// Whether memory comes as whole folios to a process that may have so many pages. Before the supervisor has given a
/// limit (0) it does.
pub fn is_for_folios(limit: i64) -> bool {
    limit == 0 || limit >= FOLIOS * PMD_NR as i64
}

/// How much of a range the last faults took for walks and first touches: an average that forgets. All of a
/// range each time is [`Walking::ALL`]; jumps take nothing. It rises faster than it falls: a walk needs what
/// is to be read ahead at once, and jumps are many.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Walking(u32);

impl Walking {
    const RISE: u32 = 4;
    const FALL: u32 = 64;
    const ALL: u32 = 1 << 16;

    /// After one more fault that took so many pages.
    pub fn after(self, pages: usize) -> Walking {
        let took = pages.min(PMD_NR) as u32 * (Self::ALL / PMD_NR as u32);
        // Rounded so that it can reach both ends.
        Walking(match took.checked_sub(self.0) {
            Some(more) => self.0 + more.div_ceil(Self::RISE),
            None => self.0 - (self.0 - took).div_ceil(Self::FALL),
        })
    }

    /// As one word, for those who share it.
    pub fn to_word(self) -> u32 {
        self.0
    }

    pub fn of_word(word: u32) -> Walking {
        Walking(word)
    }

    /// Of `most` folios to hold ready, those that are worth their memory now, where so many pages are the limit.
    pub fn ready_folios(self, most: usize, limit: i64) -> usize {
        if !is_for_folios(limit) {
            return 0;
        }
        self.of(2 * most as i64 + 1) as usize / 2
    }

    /// Below this many free pages, of so many that the process may have, reclaim is called. Of a small
    /// share of a run's limit, as one of many processes has it, most must be there to be used.
    pub fn low_pages(self, limit: i64) -> i64 {
        if !is_for_folios(limit) {
            return (limit / 4).min(LOW_JUMPING);
        }
        let part = |n: i64| limit / (n * PMD_NR as i64);
        let all = part(32).clamp(4, 32).min(part(4).max(1)) * PMD_NR as i64;
        LOW_JUMPING + self.of(all - LOW_JUMPING)
    }

    /// Up to this many it works.
    pub fn high_pages(self, limit: i64) -> i64 {
        self.low_pages(limit) * 3 / 2
    }

    /// The same while a fault waits, perhaps for the most that it can come for.
    pub fn high_pages_for_fault(self, limit: i64) -> i64 {
        let most = match is_for_folios(limit) {
            false => FILL_MAX,
            true => PMD_NR,
        };
        self.high_pages(limit).max(most as i64)
    }

    /// That part of `n`.
    fn of(self, n: i64) -> i64 {
        n * i64::from(self.0) / i64::from(Self::ALL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(faults: usize, mut walking: Walking, pages: impl Fn(usize) -> usize) -> Walking {
        for i in 0..faults {
            walking = walking.after(pages(i));
        }
        walking
    }

    const NONE: Walking = Walking(0);
    const ALL: Walking = Walking(Walking::ALL);

    #[test]
    fn watermarks_leave_most_of_the_limit() {
        let limits = [2, 6, 9, 16, 32, 63, 256, 1024, 65536];
        let low = |walking: Walking| {
            let pages = |mib: i64| (mib << 20) / hugeswap_mm::PAGE_SIZE as i64;
            limits.map(|mib| walking.low_pages(pages(mib)))
        };
        let pages = [128, 512, 512, 1024, 2048, 2048, 2048, 8192, 16384];
        assert_eq!(low(ALL), pages);
        assert_eq!(low(NONE), [LOW_JUMPING; 9]);
    }

    /// Else reclaim would look for more than there can be. Where a fault may wait for more than that, it does: when
    /// nothing is left to leave the fault goes above the limit.
    #[test]
    fn what_is_to_be_free_is_less_than_the_limit() {
        for limit in (1..20_000).chain([1 << 20]) {
            for walking in [NONE, ALL] {
                assert!(walking.high_pages(limit) < limit, "{limit}");
                let for_fault = walking.high_pages_for_fault(limit);
                let least = FILL_MAX as i64;
                assert!(for_fault < limit || limit <= least, "{limit}");
                assert!(for_fault >= least, "{limit}");
            }
        }
    }

    #[test]
    fn walks_raise_what_is_free_and_jumps_lower_it() {
        assert_eq!(after(1000, NONE, |_| PMD_NR), ALL);
        assert_eq!(after(1000, ALL, |_| 0), NONE);
        let begun = after(3, NONE, |_| PMD_NR);
        assert!((32_000..40_000).contains(&begun.0), "{begun:?}");
        // One range that is entered among many jumps changes little, and not for long.
        let jumps = after(1100, ALL, |i| if i % 100 == 0 { PMD_NR } else { 0 });
        assert!(jumps.low_pages(1 << 15) < 2 * LOW_JUMPING, "{jumps:?}");
        // A walk that gets a part of a range at each fault.
        let windows = after(1000, NONE, |_| 64);
        assert!(windows.0.abs_diff(Walking::ALL / 8) < 64, "{windows:?}");
    }
}
