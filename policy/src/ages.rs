//! After how many others pages come back that have left memory. Pure.
//!
//! Of the pages that leave a sample is remembered, as the kernel's workingset remembers an evicted folio by a shadow entry: when it left,
//! in pages that leave. When it comes back its age is counted. With some pages more of memory, the page that left longest
//! ago of as many that are away would be the next to leave. So a page would still be there if fewer than that have left since it did,
//! *and are still away*: that is its distance. Of those that left in the last `t`, as many are away as the sum, over all times up to
//! `t`, of the part of all pages that are older than that when they come back. (Samples: Waldspurger et al., "SHARDS", FAST 2015. The
//! average footprint of a trace: Xiang et al., "HOTL", ASPLOS 2013; for caches "AET", Hu et al., USENIX ATC 2016.)

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use hugeswap_mm::Pmd;

/// Each doubling of the age has so many parts.
const PARTS: usize = 4;
/// Ages below this have one each.
const EACH: u32 = 4;
const BUCKETS: usize = (u32::BITS as usize - 1) * PARTS;
/// When so many have left, half of what was counted is forgotten.
const MEMORY: u32 = 1024;
/// Pages that are remembered: 64 KiB. Each has one of so many places side by side.
const SHADOWS: usize = 8192;
const WAYS: usize = 8;

pub struct Ages {
    /// Pages that have left: some bits of their hash, and when. Zero where there is none.
    shadows: Box<[AtomicU64]>,
    /// Only pages are remembered in whose hash these bits are zero.
    others: u64,
    came_back: [AtomicU32; BUCKETS],
    left: AtomicU32,
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

/// Splitmix64's last steps.
fn hash(pmd: Pmd, page: usize) -> u64 {
    let x = u64::from(pmd.0) << 9 | page as u64;
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

impl Ages {
    /// For a process that may have so many pages.
    pub fn new(limit: u64) -> Ages {
        let one_in = (limit * 4 / SHADOWS as u64).max(1).next_power_of_two();
        Ages {
            shadows: (0..SHADOWS).map(|_| AtomicU64::new(0)).collect(),
            others: one_in - 1,
            came_back: [const { AtomicU32::new(0) }; BUCKETS],
            left: AtomicU32::new(0),
        }
    }

    /// Remembers nothing, and takes no memory.
    pub fn none() -> Ages {
        Ages {
            shadows: Box::default(),
            others: 0,
            came_back: [const { AtomicU32::new(0) }; BUCKETS],
            left: AtomicU32::new(0),
        }
    }

    /// Where the page may be remembered, if it is of the sample, and as what.
    fn places(&self, pmd: Pmd, page: usize) -> Option<(&[AtomicU64], u64)> {
        let hash = hash(pmd, page);
        let first = hash as usize >> 20 & (SHADOWS - WAYS);
        let what = hash >> 32 << 32 | 1 << 32;
        let places = self.shadows.get(first..first + WAYS)?;
        (hash & self.others == 0).then_some((places, what))
    }

    /// The page leaves. Whether it is of the sample.
    pub fn leaves(&self, pmd: Pmd, page: usize, now: u32) -> bool {
        let Some((places, what)) = self.places(pmd, page) else {
            return false;
        };
        // In its own place if it has one, else in that of the one that left first.
        let age = |is: u64| match is {
            is if is >> 32 == what >> 32 => u64::MAX,
            0 => u64::from(u32::MAX) + 1,
            is => now.wrapping_sub(is as u32).into(),
        };
        let place = places.iter().max_by_key(|place| age(place.load(Relaxed)));
        if let Some(place) = place {
            place.store(what | u64::from(now), Relaxed);
        }
        if self.left.fetch_add(1, Relaxed) >= MEMORY {
            let counts = self.came_back.iter().chain([&self.left]);
            counts.for_each(|c| c.store(c.load(Relaxed) / 2, Relaxed));
        }
        true
    }

    /// The page is there again. Whether it is remembered.
    pub fn comes_back(&self, pmd: Pmd, page: usize, now: impl FnOnce() -> u32) -> bool {
        let then = self.take(pmd, page);
        if let Some(then) = then {
            let age = now().wrapping_sub(then);
            self.came_back[bucket(age)].fetch_add(1, Relaxed);
        }
        then.is_some()
    }

    /// It had never left.
    pub fn stayed(&self, pmd: Pmd, page: usize) {
        if self.take(pmd, page).is_some() {
            let _ = self
                .left
                .fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
        }
    }

    fn take(&self, pmd: Pmd, page: usize) -> Option<u32> {
        let (places, what) = self.places(pmd, page)?;
        let is = |place: &&AtomicU64| place.load(Relaxed) >> 32 == what >> 32;
        let place = places.iter().find(is)?;
        Some(place.swap(0, Relaxed) as u32)
    }

    /// Of the pages that leave, the part that comes back at no more than that distance.
    pub fn within(&self, distance: f64) -> f64 {
        let counts = self
            .came_back
            .each_ref()
            .map(|c| f64::from(c.load(Relaxed)));
        let back = counts.iter().sum::<f64>();
        let left = f64::from(self.left.load(Relaxed)).max(back).max(1.0);
        let (mut older, mut away) = (left, 0.0);
        for (i, n) in counts.into_iter().enumerate() {
            // Within a bucket ages are spread evenly.
            let more = (least(i + 1) - least(i)) as f64 * (older - n / 2.0) / left;
            if distance < away + more {
                let part = ((distance - away) / more).max(0.0);
                return (left - older + n * part) / left;
            }
            away += more;
            older -= n;
        }
        back / left
    }

    /// The part that comes back at all.
    pub fn ever(&self) -> f64 {
        self.within(f64::INFINITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    /// Pages are wanted in this order, and leave at once.
    fn seen(ages: &Ages, order: impl IntoIterator<Item = usize>) {
        for (now, i) in order.into_iter().enumerate() {
            let (pmd, page) = (Pmd(i as u32 >> 9), i & 511);
            ages.comes_back(pmd, page, || now as u32);
            ages.leaves(pmd, page, now as u32);
        }
    }

    #[test]
    fn of_nothing_it_knows_nothing() {
        assert_eq!(
            (Ages::new(0).within(100.0), Ages::new(0).ever()),
            (0.0, 0.0)
        );
    }

    #[test]
    fn it_can_do_without_memory() {
        let ages = Ages::none();
        seen(&ages, (0..10_000).map(|i| i % 100));
        assert_eq!((ages.within(100.0), ages.ever()), (0.0, 0.0));
    }

    #[test]
    fn what_never_comes_back_is_never_near() {
        let ages = Ages::new(0);
        seen(&ages, 0..100_000);
        assert_eq!((ages.within(50_000.0), ages.ever()), (0.0, 0.0));
    }

    #[test]
    fn what_goes_round_is_as_far_as_there_are_others() {
        for one_in in [1, 4] {
            let ages = Ages::new(one_in * SHADOWS as u64 / 4);
            seen(&ages, (0..100_000).map(|i| i % 2500));
            assert!(ages.within(2000.0) < 0.01 && ages.within(3000.0) > 0.98);
        }
    }

    #[test]
    fn what_was_is_forgotten() {
        let ages = Ages::new(0);
        seen(&ages, (0..10_000).map(|i| i % 100));
        assert!(ages.ever() > 0.98);
        seen(&ages, 1000..11_000);
        assert!(ages.ever() < 0.02);
    }

    #[test]
    fn what_stayed_has_not_left() {
        let ages = Ages::new(0);
        for page in 0..512 {
            ages.leaves(Pmd(7), page, 0);
            ages.stayed(Pmd(7), page);
            assert!(!ages.comes_back(Pmd(7), page, || 1));
        }
        assert_eq!(ages.left.load(Relaxed), 0);
    }

    /// The part of an order in which no more than so many others came since.
    fn near(order: &[usize], distance: usize) -> f64 {
        let mut last = Vec::new();
        let mut n = 0;
        for page in order {
            if let Some(at) = last.iter().rposition(|p| p == page) {
                n += usize::from(last.len() - at <= distance);
                last.remove(at);
            }
            last.push(*page);
        }
        n as f64 / order.len() as f64
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn it_is_the_distance(seed: u64, hot in 1u64..400, all in 400u64..2000, part in 0u64..10) {
            let mut x = seed | 1;
            let mut next = move |n: u64| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                (x >> 20) % n
            };
            let order: Vec<usize> = (0..20_000)
                .map(|_| if next(10) < part { next(hot) } else { next(all) } as usize)
                .collect();
            let ages = Ages::new(0);
            seen(&ages, order.iter().copied());
            let late = &order[10_000..];
            for distance in [100, 300, 1000] {
                let (counted, said) = (near(late, distance), ages.within(distance as f64));
                prop_assert!((counted - said).abs() < 0.15, "{distance}: {counted} {said}");
            }
        }
    }
}
