//! How many of the pages that left lately are still away. Pure.
//!
//! With some pages more of memory, the page that left longest ago of as many that are away would be the next to leave. So a page
//! would still be there if fewer than that have left since it did, *and are still away*. Where few pages come and
//! go again and again, that is less than have left since. It is known from the ages at which pages come back, which
//! are measured in pages that leave: of those that left in the last `t`, as many are away as the sum, over all times up to `t`, of the
//! part of all pages that are older than that when they come back. (The average footprint of a trace: Xiang et al., "HOTL",
//! ASPLOS 2013; for caches "AET", Hu et al., USENIX ATC 2016.)

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Each doubling of the age has so many parts.
const PARTS: usize = 4;
/// Ages below this have one each.
const EACH: u32 = 4;
const BUCKETS: usize = (u32::BITS as usize - 1) * PARTS;
/// When so many pages have been counted, half of them are forgotten.
const MEMORY: u32 = 16_384;

pub struct Ages {
    came_back: [AtomicU32; BUCKETS],
    /// Pages that nobody has waited for to the end.
    away: AtomicU32,
}

impl Default for Ages {
    fn default() -> Ages {
        Ages {
            came_back: [const { AtomicU32::new(0) }; BUCKETS],
            away: AtomicU32::new(0),
        }
    }
}

/// Where an age is counted.
fn bucket(age: u32) -> usize {
    match age {
        0..EACH => age as usize,
        _ => {
            let log = age.ilog2();
            let part = (age >> (log - 2)) as usize % PARTS;
            (log as usize - 1) * PARTS + part
        }
    }
}

/// The least age of a bucket.
fn least(bucket: usize) -> u64 {
    match bucket < EACH as usize {
        true => bucket as u64,
        false => {
            let (log, part) = (bucket / PARTS + 1, bucket % PARTS);
            ((PARTS + part) as u64) << (log - 2)
        }
    }
}

impl Ages {
    pub fn came_back(&self, age: u32, pages: usize) {
        self.came_back[bucket(age)].fetch_add(pages as u32, Relaxed);
    }

    /// These are not waited for any longer.
    pub fn stayed_away(&self, pages: usize) {
        self.away.fetch_add(pages as u32, Relaxed);
    }

    /// The time of which so many pages are away. If there are never that many, for ever.
    pub fn until_away(&self, pages: u64) -> u32 {
        let counts = self
            .came_back
            .each_ref()
            .map(|c| u64::from(c.load(Relaxed)));
        let away = u64::from(self.away.load(Relaxed));
        let all = counts.iter().sum::<u64>() + away;
        if all == 0 {
            return pages.min(u32::MAX.into()) as u32;
        }
        // In parts of one of `all`.
        let wanted = pages.saturating_mul(all);
        let (mut older, mut sum) = (all, 0);
        for (i, n) in counts.into_iter().enumerate() {
            let (from, to) = (least(i), least(i + 1));
            // Within a bucket ages are spread evenly.
            let more = (to - from) * (2 * older - n) / 2;
            if sum + more >= wanted && more > 0 {
                let part = (u128::from(wanted - sum) * u128::from(to - from)) / u128::from(more);
                return (from + part as u64).min(u32::MAX.into()) as u32;
            }
            sum += more;
            older -= n;
        }
        u32::MAX
    }

    /// What was long ago counts less and less.
    pub fn forget(&self) {
        let all = || self.came_back.iter().chain([&self.away]);
        let sum = all().map(|c| u64::from(c.load(Relaxed))).sum::<u64>();
        if sum >= u64::from(MEMORY) {
            all().for_each(|c| c.store(c.load(Relaxed) / 2, Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    #[test]
    fn each_age_has_its_place() {
        for age in (0..5000).chain([u32::MAX / 3, u32::MAX / 2, u32::MAX - 1, u32::MAX]) {
            let b = bucket(age);
            assert!(
                least(b) <= age.into() && u64::from(age) < least(b + 1),
                "{age}: {b}"
            );
        }
    }

    #[test]
    fn of_nothing_it_knows_nothing() {
        assert_eq!(Ages::default().until_away(100), 100);
    }

    #[test]
    fn what_never_comes_back_is_different_each_time() {
        let ages = Ages::default();
        ages.stayed_away(1000);
        for n in [1, 70, 5000, 100_000] {
            assert_eq!(ages.until_away(n), n as u32);
        }
    }

    #[test]
    fn what_goes_round_is_never_more() {
        let ages = Ages::default();
        ages.came_back(1000, 500);
        assert!((800..1100).contains(&ages.until_away(900)));
        assert_eq!(ages.until_away(1100), u32::MAX);
    }

    #[test]
    fn forgetting_keeps_the_proportions() {
        let ages = Ages::default();
        ages.stayed_away(20_000);
        ages.came_back(100, 20_000);
        let before = ages.until_away(1000);
        ages.forget();
        assert_eq!(ages.until_away(1000), before);
        (0..20).for_each(|_| ages.forget());
        assert_eq!(ages.until_away(1000), before);
    }

    /// How many different ones such parts of the order have, of some that are looked at.
    fn different(order: &[u16], part: usize) -> f64 {
        let looked: Vec<usize> = order
            .windows(part)
            .step_by(50)
            .map(|w| w.iter().collect::<HashSet<_>>().len())
            .collect();
        looked.iter().sum::<usize>() as f64 / looked.len() as f64
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn it_is_what_is_away(seed: u64, hot in 1u64..400, all in 400u64..3000, part in 0u64..10) {
            let mut x = seed | 1;
            let mut next = move |n: u64| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                (x >> 20) % n
            };
            let order: Vec<u16> = (0..20_000)
                .map(|_| if next(10) < part { next(hot) } else { next(all) } as u16)
                .collect();
            let (ages, mut last) = (Ages::default(), HashMap::new());
            for (i, page) in order.iter().enumerate() {
                if let Some(before) = last.insert(page, i) {
                    ages.came_back((i - before) as u32, 1);
                }
            }
            ages.stayed_away(last.len());
            for away in [20, 150, 350] {
                let t = ages.until_away(away) as usize;
                if t < order.len() / 4 {
                    let counted = different(&order, t.max(1));
                    prop_assert!((counted - away as f64).abs() < 0.12 * away as f64 + 2.0, "{away}: {counted} in {t}");
                }
            }
        }
    }
}
