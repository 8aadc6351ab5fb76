//! After how many others pages come back that have left memory. Pure.
//!
//! Of the pages that leave a sample is remembered, as the kernel's workingset remembers an evicted folio by a shadow entry: when it left,
//! in pages that leave. When it comes back its age is counted. With some pages more of memory, the page that left longest
//! ago of as many that are away would be the next to leave. So a page would still be there if fewer than that have left since it did,
//! *and are still away*: that is its distance. Of those that left in the last `t`, as many are away as the sum, over all times up to
//! `t`, of the part of all pages that are older than that when they come back. (Samples: Waldspurger et al., "SHARDS", FAST 2015. The
//! average footprint of a trace: Xiang et al., "HOTL", ASPLOS 2013; for caches "AET", Hu et al., USENIX ATC 2016.)
//!
//! Most of what has left lately has not come back yet, and may. So it is counted how many come back at an age *of those that reach it*, as
//! a life table does: at each age the pages that came back, by the time that pages were away at that age. Time passes only while pages come
//! back: a program that fills memory says nothing of which pages it will want. What is older than all that was seen is taken to
//! come back as what is a little younger does. How many come back at all, of those that leave, is counted by itself.
//!
//! Pages that a walk brings back come many at a time, so that they cost little wherever they are: they are away no
//! longer, and do not count as come back.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use hugeswap_mm::Pmd;

/// Each doubling of the age has so many parts.
const PARTS: usize = 4;
/// Ages below this have one each.
const EACH: u32 = 4;
const BUCKETS: usize = (u32::BITS as usize - 1) * PARTS;
/// When so many have left, and as many come back, half of what was counted is forgotten. With fewer, the pages that are
/// away longest are too few to tell where a program's memory ends.
const MEMORY: u32 = 1024;
/// How many come back at all is forgotten sooner: what leaves while a program fills its memory says nothing of that.
const LATELY: u32 = 256;
/// One that came back, in parts: halves are to be counted, too.
const ONE: u32 = 16;
/// After how many that left it is noted how old those are that are away.
const NOTE: u32 = 32;
/// So many may have come back before others leave in their place.
const BATCH: u32 = 2 * NOTE;
/// Pages that are remembered: 64 KiB. Each has one of so many places side by side.
const SHADOWS: usize = 8192;
const WAYS: usize = 8;

pub struct Ages {
    /// Pages that have left: some bits of their hash, and when. Zero where there is none.
    shadows: Box<[AtomicU64]>,
    /// Only pages are remembered in whose hash these bits are zero.
    others: u64,
    /// Of each age, those that came back, those that walks brought back, and for how long pages were away at that age.
    came_back: [AtomicU32; BUCKETS],
    walked: [AtomicU32; BUCKETS],
    away: [AtomicU64; BUCKETS],
    /// How many have left and come back since half was forgotten.
    seen: AtomicU32,
    /// Lately.
    left: AtomicU32,
    came: AtomicU32,
    /// When it was last noted who is away, and how many have left and come back since.
    noted: AtomicU32,
    left_since: AtomicU32,
    came_since: AtomicU32,
}

/// Of pages that leave, how many come back at what distance.
pub struct Curve {
    /// Up to each age: how many are away, and how many have come back by themselves.
    upto: [(f64, f64); BUCKETS + 1],
    /// How many do, of those that leave.
    back: f64,
}

impl Curve {
    /// The part that comes back at no more than that distance.
    pub fn within(&self, distance: f64) -> f64 {
        let i = self.upto.partition_point(|&(away, _)| away <= distance);
        let at = match (
            i.checked_sub(1).and_then(|i| self.upto.get(i)),
            self.upto.get(i),
        ) {
            (Some(a), Some(b)) => a.1 + (b.1 - a.1) * (distance - a.0) / (b.0 - a.0),
            (Some(last), None) => last.1,
            (None, _) => 0.0,
        };
        at * self.back
    }

    /// The part that comes back at all.
    pub fn ever(&self) -> f64 {
        self.within(f64::INFINITY)
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
            ..Ages::none()
        }
    }

    /// Remembers nothing, and takes no memory.
    pub fn none() -> Ages {
        Ages {
            shadows: Box::default(),
            others: 0,
            came_back: [const { AtomicU32::new(0) }; BUCKETS],
            walked: [const { AtomicU32::new(0) }; BUCKETS],
            away: [const { AtomicU64::new(0) }; BUCKETS],
            seen: AtomicU32::new(0),
            left: AtomicU32::new(0),
            came: AtomicU32::new(0),
            noted: AtomicU32::new(0),
            left_since: AtomicU32::new(0),
            came_since: AtomicU32::new(0),
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
        if self.left.fetch_add(1, Relaxed) + 1 >= LATELY {
            halve(&self.left);
            halve(&self.came);
        }
        if self.left_since.fetch_add(1, Relaxed) + 1 >= NOTE {
            self.note(now);
        }
        self.forget();
        true
    }

    /// One more has left or come back.
    fn forget(&self) {
        if self.seen.fetch_add(1, Relaxed) + 1 >= 2 * MEMORY {
            self.seen.store(0, Relaxed);
            self.came_back.iter().chain(&self.walked).for_each(halve);
            let halve = |n: &AtomicU64| n.store(n.load(Relaxed) / 2, Relaxed);
            self.away.iter().for_each(halve);
        }
    }

    /// For how long pages were away since it was last noted: as long as others came back in their place.
    fn since(&self, now: u32) -> u32 {
        let passed = u64::from(now.wrapping_sub(self.noted.load(Relaxed)));
        let left = u64::from(self.left_since.load(Relaxed)).max(1);
        let came = u64::from(self.came_since.load(Relaxed)).min(left);
        (passed * came / left) as u32
    }

    /// Notes for how long those that are away have been so.
    fn note(&self, now: u32) {
        let since = self.since(now);
        self.noted.store(now, Relaxed);
        let left = self.left_since.swap(0, Relaxed);
        // Pages leave in batches: what came back beyond those that left counts with the next.
        let more = self.came_since.load(Relaxed).saturating_sub(left);
        self.came_since.store(more.min(BATCH), Relaxed);
        for shadow in &self.shadows {
            match shadow.load(Relaxed) {
                0 => {}
                is => self.was_away(now.wrapping_sub(is as u32), since),
            }
        }
    }

    /// One of that age was away, of the last `since`.
    fn was_away(&self, age: u32, since: u32) {
        let mut to = u64::from(age);
        let from = u64::from(age.saturating_sub(since));
        while from < to {
            let bucket = bucket((to - 1) as u32);
            let start = least(bucket).max(from);
            self.away[bucket].fetch_add(to - start, Relaxed);
            to = start;
        }
    }

    /// The page is there again, by itself or by a walk. Whether it is remembered.
    pub fn comes_back(
        &self,
        pmd: Pmd,
        page: usize,
        walks: bool,
        now: impl FnOnce() -> u32,
    ) -> bool {
        let then = self.take(pmd, page);
        if let Some(then) = then {
            let now = now();
            let age = now.wrapping_sub(then);
            let counts = if walks { &self.walked } else { &self.came_back };
            counts[bucket(age)].fetch_add(ONE, Relaxed);
            self.came.fetch_add(1, Relaxed);
            self.came_since.fetch_add(1, Relaxed);
            self.was_away(age, self.since(now));
            self.forget();
        }
        then.is_some()
    }

    /// It had never left.
    pub fn stayed(&self, pmd: Pmd, page: usize) {
        self.take(pmd, page);
    }

    fn take(&self, pmd: Pmd, page: usize) -> Option<u32> {
        let (places, what) = self.places(pmd, page)?;
        let is = |place: &&AtomicU64| place.load(Relaxed) >> 32 == what >> 32;
        let place = places.iter().find(is)?;
        Some(place.swap(0, Relaxed) as u32)
    }

    /// What is known now.
    pub fn curve(&self) -> Curve {
        let mut upto = [(0.0, 0.0); BUCKETS + 1];
        // The part that is still away, for how long pages were so, and the part that came back by itself.
        let (mut still, mut away, mut back) = (1.0, 0.0, 0.0);
        // How many of them do at a time, by themselves and at all.
        let (mut alone, mut any) = (0.0, 0.0);
        let counts = self.came_back.iter().zip(&self.walked).zip(&self.away);
        for (i, ((came_back, walked), time)) in counts.enumerate() {
            let n = |c: &AtomicU32| f64::from(c.load(Relaxed)) / f64::from(ONE);
            let time = time.load(Relaxed) as f64;
            if time > 0.0 {
                alone = n(came_back) / time;
                any = alone + n(walked) / time;
            }
            let width = (least(i + 1) - least(i)) as f64;
            let goes = still * (1.0 - (-any * width).exp());
            let more = if any > 0.0 { goes / any } else { still * width };
            away += more;
            still -= goes;
            back += alone * more;
            upto[i + 1] = (away, back);
        }
        let ever = 1.0 - still;
        let left = f64::from(self.left.load(Relaxed)).max(1.0);
        let came = f64::from(self.came.load(Relaxed)).min(left);
        Curve {
            upto,
            back: if ever > 0.0 { came / left / ever } else { 0.0 },
        }
    }
}

/// Half of it is forgotten.
fn halve(n: &AtomicU32) {
    n.store(n.load(Relaxed) / 2, Relaxed);
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
            ages.comes_back(pmd, page, false, || now as u32);
            ages.leaves(pmd, page, now as u32);
        }
    }

    #[test]
    fn of_nothing_it_knows_nothing() {
        assert_eq!(
            (
                Ages::new(0).curve().within(100.0),
                Ages::new(0).curve().ever()
            ),
            (0.0, 0.0)
        );
    }

    #[test]
    fn it_can_do_without_memory() {
        let ages = Ages::none();
        seen(&ages, (0..10_000).map(|i| i % 100));
        assert_eq!(
            (ages.curve().within(100.0), ages.curve().ever()),
            (0.0, 0.0)
        );
    }

    #[test]
    fn what_never_comes_back_is_never_near() {
        let ages = Ages::new(0);
        seen(&ages, 0..100_000);
        assert_eq!(
            (ages.curve().within(50_000.0), ages.curve().ever()),
            (0.0, 0.0)
        );
    }

    #[test]
    fn what_goes_round_is_as_far_as_there_are_others() {
        for one_in in [1, 4] {
            let ages = Ages::new(one_in * SHADOWS as u64 / 4);
            seen(&ages, (0..100_000).map(|i| i % 2500));
            assert!(ages.curve().within(2000.0) < 0.01 && ages.curve().within(3000.0) > 0.98);
        }
    }

    /// Pages are wanted at random, and others leave for them many at a time: as many are away as there are.
    #[test]
    fn it_is_known_how_many_are_away() {
        for batch in [1, 8, 64] {
            let ages = Ages::new(0);
            const ALL: usize = 2500;
            let mut rng = fastrand::Rng::with_seed(1);
            let (mut resident, mut away) = (Vec::new(), (0..ALL).collect::<Vec<_>>());
            let mut now = 0;
            for _ in 0..30_000 {
                let page = away.swap_remove(rng.usize(..away.len()));
                ages.comes_back(Pmd(0), page, false, || now);
                resident.push(page);
                if resident.len() >= 300 + batch {
                    for _ in 0..batch {
                        let page = resident.swap_remove(rng.usize(..resident.len()));
                        now += 1;
                        ages.leaves(Pmd(0), page, now);
                        away.push(page);
                    }
                }
            }
            let within = ages.curve().within(away.len() as f64 * 0.9);
            assert!((0.85..0.95).contains(&within), "{batch} {within}");
        }
    }

    /// What left while memory was filled is as far away as what left since.
    #[test]
    fn while_nothing_comes_back_nothing_is_known() {
        let ages = Ages::new(0);
        let left = |i: u32| ages.leaves(Pmd(i >> 9), i as usize & 511, i);
        (0..4000).for_each(|i| assert!(left(i)));
        assert_eq!(ages.curve().ever(), 0.0);
        let mut x = 1_u32;
        for now in 4000..4400 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let i = (x >> 16) % 4000;
            ages.comes_back(Pmd(i >> 9), i as usize & 511, false, || now);
            ages.leaves(Pmd(i >> 9), i as usize & 511, now);
        }
        let within = ages.curve().within(1000.0);
        assert!((0.15..0.35).contains(&within), "{within}");
    }

    #[test]
    fn what_a_walk_brings_back_has_not_come_back_by_itself() {
        let ages = Ages::new(0);
        let order = (0..20_000).map(|i| i % 2000);
        for (now, i) in order.enumerate() {
            let (pmd, page) = (Pmd(i as u32 >> 9), i & 511);
            ages.comes_back(pmd, page, i % 4 > 0, || now as u32);
            ages.leaves(pmd, page, now as u32);
        }
        let ever = ages.curve().ever();
        assert!((0.15..0.35).contains(&ever), "{ever}");
    }

    #[test]
    fn what_was_is_forgotten() {
        let ages = Ages::new(0);
        seen(&ages, (0..10_000).map(|i| i % 100));
        assert!(ages.curve().ever() > 0.98);
        seen(&ages, 1000..11_000);
        assert!(ages.curve().ever() < 0.02);
    }

    #[test]
    fn what_stayed_has_not_left() {
        let ages = Ages::new(0);
        for page in 0..512 {
            ages.leaves(Pmd(7), page, 0);
            ages.stayed(Pmd(7), page);
            assert!(!ages.comes_back(Pmd(7), page, false, || 1));
        }
        assert_eq!(ages.curve().ever(), 0.0);
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
                let (counted, said) = (near(late, distance), ages.curve().within(distance as f64));
                prop_assert!((counted - said).abs() < 0.15, "{distance}: {counted} {said}");
            }
        }
    }
}
