//! What goes into compressed memory, and how much of the limit that may take. Pure.
//!
//! Memory that the pool takes is missing elsewhere. A page is wanted again at an age: the number of pages that
//! left since it did (the kernel's refault distance). If that is less than the pages of memory that the pool
//! takes, the page would still be resident without the pool, and the fault is the pool's fault. So it is with an age
//! that is more, if no more of those that left since are still away ([`Ages`]); else
//! the page would have to be read from a device. As long as more time is saved than is lost the pool may grow,
//! else it shrinks. What is lost is the time of all faults that find their page in the pool, and of compressing all that
//! was to go there, measured. What comes by many pages at a time is read in little more time than it is decompressed in, but
//! was to be compressed before: there the pool loses even where it saves reads.

use crate::ages::Ages;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use hugeswap_mm::PAGE_SIZE;

/// Averages forget: this many pages count as much as all before.
const MEMORY: u64 = 2048;
/// What "all" is in an average.
const ONE: u32 = 1 << 16;
/// Pages must become smaller than this for the pool to be worth its work.
const SMALL_ENOUGH: u32 = ONE / 10 * 6;
/// Where nothing else can be done with them, they are worth a try up to this.
const ANY_SMALLER: u32 = ONE / 10 * 9;
/// Of what leaves the pool so much must have been wanted.
const USEFUL: u32 = ONE / 16;
/// Where it does not pay one range in so many goes there all the same, to see whether it does now.
const PROBE: u32 = 16;
/// The part of the limit that the pool may take at least, and at first, and at most; and by how much that
/// changes at a time. It begins with little, for that costs little where it saves nothing.
const LEAST: u32 = ONE / 32;
const MOST: u32 = ONE / 4 * 3;
const STEP: u32 = ONE / 64;
/// Faults after which that is looked at.
const LOOK: u32 = 256;
/// Faults for so many pages at most tell what one takes, others what a page takes.
const FEW: usize = 4;
/// What a fault costs beside the handler's work, and what a page costs that leaves, beside its being compressed.
const HAND_OVER_NS: u32 = 5_000;
const OUT_NS: u32 = 4_000;
/// What faults are thought to cost before any was measured.
const POOL_NS: [u32; 2] = [6_000, 2_000];
const DEVICE_NS: [u32; 2] = [40_000, 4_000];

/// What a fault takes.
struct Cost {
    /// For one page.
    ns: AtomicU32,
    /// For each page more.
    page_ns: AtomicU32,
}

impl Cost {
    fn new([ns, page_ns]: [u32; 2]) -> Cost {
        Cost {
            ns: AtomicU32::new(ns),
            page_ns: AtomicU32::new(page_ns),
        }
    }

    /// A fault for so many pages took so long.
    fn took(&self, pages: usize, ns: u64) {
        let ns = ns.min(1 << 20) as u32;
        match pages {
            0..=FEW => mix(&self.ns, ns, 1, 255),
            n => {
                let more = ns.saturating_sub(self.ns.load(Relaxed));
                mix(&self.page_ns, more / n as u32, 1, 63);
            }
        }
    }

    fn of(&self, all: &Wanted) -> u64 {
        let (faults, pages) = (u64::from(all.faults), u64::from(all.pages));
        let more = pages.saturating_sub(faults) * u64::from(self.page_ns.load(Relaxed));
        faults * u64::from(self.ns.load(Relaxed)) + more
    }
}

/// What was wanted.
struct Wanted {
    faults: u32,
    pages: u32,
}

#[derive(Default)]
struct Tally {
    faults: AtomicU32,
    pages: AtomicU32,
}

impl Tally {
    fn add(&self, pages: usize) {
        self.faults.fetch_add(1, Relaxed);
        self.pages.fetch_add(pages as u32, Relaxed);
    }

    fn take(&self) -> Wanted {
        Wanted {
            faults: self.faults.swap(0, Relaxed),
            pages: self.pages.swap(0, Relaxed),
        }
    }
}

pub struct Admission {
    /// Size of a page in the pool, in parts of a page.
    size: AtomicU32,
    /// How much of what left the pool was wanted.
    useful: AtomicU32,
    asked: AtomicU32,
    /// At which ages pages were wanted.
    ages: Ages,
    /// What is no older would be resident without the pool.
    horizon: AtomicU32,
    /// Of the limit.
    share: AtomicU32,
    /// Faults since the last look, on pages that would be resident without the pool, and on others.
    lost: Tally,
    saved: Tally,
    /// Pages that were compressed and have left, wanted or not.
    out: AtomicU32,
    /// Time for compressing since the last look, also what then did not go there.
    compressing_ns: AtomicU64,
    /// What a fault costs that finds its page in the pool, and one that has to read.
    pool: Cost,
    device: Cost,
}

impl Default for Admission {
    fn default() -> Admission {
        Admission {
            size: AtomicU32::new(ONE / 2),
            useful: AtomicU32::new(ONE),
            asked: AtomicU32::new(0),
            ages: Ages::default(),
            horizon: AtomicU32::new(0),
            share: AtomicU32::new(LEAST),
            lost: Tally::default(),
            saved: Tally::default(),
            out: AtomicU32::new(0),
            compressing_ns: AtomicU64::new(0),
            pool: Cost::new(POOL_NS),
            device: Cost::new(DEVICE_NS),
        }
    }
}

/// How full the pool is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// Pages of memory that it takes.
    pub pages: usize,
    /// Pages that the process may have.
    pub limit: i64,
}

/// The average with `n` more of this value.
fn mix(average: &AtomicU32, value: u32, n: usize, memory: u64) {
    let n = n as u64;
    let old = u64::from(average.load(Relaxed));
    let new = (old * memory + u64::from(value) * n) / (memory + n);
    average.store(new as u32, Relaxed);
}

impl Admission {
    /// Pages that take so many bytes in all were compressed in so much time; what did not fit counts as it is.
    pub fn compressed(&self, pages: usize, bytes: usize, ns: u64) {
        self.compressing_ns.fetch_add(ns, Relaxed);
        if pages > 0 {
            let part = bytes as u64 * u64::from(ONE) / (pages * PAGE_SIZE) as u64;
            mix(&self.size, part.min(ONE.into()) as u32, pages, MEMORY);
        }
    }

    /// A fault on a page of that age took so many pages out of the pool.
    pub fn wanted(&self, pages: usize, age: u32, fill: Fill) {
        mix(&self.useful, ONE, pages, MEMORY);
        self.ages.came_back(age, pages);
        let lost = age < self.horizon.load(Relaxed).max(fill.pages as u32);
        let which = if lost { &self.lost } else { &self.saved };
        which.add(pages);
        self.out.fetch_add(pages as u32, Relaxed);
        if self.lost.faults.load(Relaxed) + self.saved.faults.load(Relaxed) >= LOOK {
            self.look(fill);
        }
    }

    /// So many pages left the pool for a device.
    pub fn written_back(&self, pages: usize) {
        self.out.fetch_add(pages as u32, Relaxed);
        self.ages.stayed_away(pages);
        mix(&self.useful, 0, pages, MEMORY);
    }

    /// A fault was served from the pool, or from a device, in so much time.
    pub fn pool_took(&self, pages: usize, ns: u64) {
        self.pool.took(pages, ns);
    }

    pub fn device_took(&self, pages: usize, ns: u64) {
        self.device.took(pages, ns);
    }

    /// What a fault takes that has to read.
    pub fn device_ns(&self) -> u32 {
        self.device.ns.load(Relaxed)
    }

    fn look(&self, fill: Fill) {
        let horizon = self.ages.until_away(fill.pages as u64);
        self.horizon.store(horizon, Relaxed);
        self.ages.forget();
        let (lost, saved) = (self.lost.take(), self.saved.take());
        let out = u64::from(self.out.swap(0, Relaxed)) * u64::from(OUT_NS)
            + self.compressing_ns.swap(0, Relaxed);
        let took =
            |cost: &Cost, w: &Wanted| cost.of(w) + u64::from(w.faults) * u64::from(HAND_OVER_NS);
        let lost = took(&self.pool, &lost) + took(&self.pool, &saved) + out;
        let saved = took(&self.device, &saved);
        let limit = fill.limit.max(1) as u64;
        let taken = (fill.pages as u64 * u64::from(ONE) / limit).min(ONE.into()) as u32;
        let share = self.share.load(Relaxed);
        let share = match saved > lost {
            // It is no limit to what does not reach it. But at the least little is let in.
            true if taken + STEP < share && share > LEAST => share,
            true => share + STEP,
            false => share.min(taken + STEP).saturating_sub(STEP),
        };
        self.share.store(share.clamp(LEAST, MOST), Relaxed);
    }

    /// Whether the next range that leaves is to go there.
    pub fn admits(&self) -> bool {
        self.pays() || self.asked.fetch_add(1, Relaxed) % PROBE == 0
    }

    /// Whether the next range, which goes there anyhow, is worth being compressed.
    pub fn shrinks(&self) -> bool {
        self.size.load(Relaxed) < ANY_SMALLER || self.asked.fetch_add(1, Relaxed) % PROBE == 0
    }

    fn pays(&self) -> bool {
        let share = self.share.load(Relaxed);
        let small = self.size.load(Relaxed) < SMALL_ENOUGH;
        small && share > LEAST && self.useful.load(Relaxed) >= USEFUL
    }

    /// Of `limit` pages, those that the pool may take.
    pub fn most(&self, limit: i64) -> usize {
        let share = match self.pays() {
            true => self.share.load(Relaxed),
            false => LEAST,
        };
        (limit.max(0) as u64 * u64::from(share) / u64::from(ONE)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: i64 = 64_000;
    const EMPTY: Fill = Fill {
        pages: 0,
        limit: LIMIT,
    };
    const LEAST_PAGES: usize = LIMIT as usize / 32;

    fn admitted(a: &Admission) -> usize {
        (0..1600).filter(|_| a.admits()).count()
    }

    /// Pages are wanted at these ages, while the pool is as full as it may be.
    fn want(a: &Admission, ages: impl Iterator<Item = u32>) {
        for age in ages {
            let fill = Fill {
                pages: a.most(LIMIT),
                limit: LIMIT,
            };
            a.wanted(1, age, fill);
        }
    }

    #[test]
    fn at_first_it_is_tried_with_little() {
        let a = Admission::default();
        assert_eq!((admitted(&a), a.most(LIMIT)), (100, LEAST_PAGES));
        want(&a, (0..LOOK).map(|_| 100_000));
        assert_eq!(admitted(&a), 1600);
        assert!(a.most(LIMIT) > LEAST_PAGES);
    }

    #[test]
    fn what_stays_large_is_left_alone_but_tried() {
        let a = Admission::default();
        for _ in 0..100 {
            a.compressed(96, 96 * 4000, 0);
        }
        assert_eq!(admitted(&a), 100);
        assert_eq!(a.most(LIMIT), LEAST_PAGES);
        // And it is wanted.
        for _ in 0..100 {
            a.compressed(96, 96 * 1000, 0);
            (0..32).for_each(|_| a.wanted(1, 100_000, EMPTY));
        }
        assert_eq!(admitted(&a), 1600);
    }

    #[test]
    fn what_goes_there_anyhow_is_compressed_if_anything_comes_of_it() {
        let a = Admission::default();
        let tried = |a: &Admission| (0..1600).filter(|_| a.shrinks()).count();
        (0..200).for_each(|_| a.compressed(96, 96 * 3500, 0));
        assert_eq!((tried(&a), admitted(&a)), (1600, 100));
        (0..200).for_each(|_| a.compressed(96, 96 * 4096, 0));
        assert_eq!(tried(&a), 100);
        (0..200).for_each(|_| a.compressed(96, 96 * 1000, 0));
        assert_eq!(tried(&a), 1600);
    }

    #[test]
    fn what_only_passes_through_is_left_alone_but_tried() {
        let a = Admission::default();
        for _ in 0..200 {
            a.written_back(96);
        }
        assert_eq!(admitted(&a), 100);
        want(&a, (0..2000).map(|_| 100_000));
        assert_eq!(admitted(&a), 1600);
    }

    /// Hardly anything of it is wanted before it has to make way.
    #[test]
    fn what_is_not_wanted_again_is_left_alone() {
        let a = Admission::default();
        for _ in 0..10_000 {
            a.written_back(15);
            want(&a, [100_000].into_iter());
        }
        assert_eq!((admitted(&a), a.most(LIMIT)), (100, LEAST_PAGES));
    }

    #[test]
    fn it_grows_while_it_holds_what_memory_could_not() {
        let a = Admission::default();
        // Half of it soon, half of it late.
        want(&a, (0..50_000).map(|i| i % 2 * 100_000));
        assert_eq!(a.most(LIMIT), LIMIT as usize / 4 * 3);
    }

    #[test]
    fn it_shrinks_until_what_is_wanted_would_not_be_resident_without_it() {
        let a = Admission::default();
        // Without the pool some 40,000 pages would hold most of them.
        want(
            &a,
            (0..50_000).map(|i| if i % 8 == 0 { 30_000 } else { i % 4_000 }),
        );
        let most = a.most(LIMIT);
        assert!((1_500..4_500).contains(&most), "{most}");
        want(&a, (0..50_000).map(|_| 10));
        assert_eq!(a.most(LIMIT), LEAST_PAGES);
    }

    /// Pages are away for 7,000 others, some for several times as many; reads are slow. With 7,000 pages of memory more
    /// none would leave.
    #[test]
    fn it_is_no_larger_than_what_comes_and_goes() {
        let a = Admission::default();
        (0..2000).for_each(|_| a.device_took(1, 140_000));
        let mut x = 1_u64;
        let mut even = || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((x >> 33) + 1) as f64 / (1_u64 << 31) as f64
        };
        want(&a, (0..100_000).map(|_| (-7_000.0 * even().ln()) as u32));
        let most = a.most(LIMIT);
        assert!((4_000..9_000).contains(&most), "{most}");
    }

    /// Half of it saves a read of 40 us, and all of it had to be compressed.
    #[test]
    fn what_takes_long_to_compress_has_to_save_more() {
        let most = |ns: u64| {
            let a = Admission::default();
            for _ in 0..2000 {
                a.compressed(96, 96 * 1000, 96 * ns);
                want(&a, (0..96).map(|i| if i % 2 == 0 { 100_000 } else { 10 }));
            }
            a.most(LIMIT)
        };
        assert_eq!(most(2_000), LIMIT as usize / 4 * 3);
        assert_eq!(most(20_000), LEAST_PAGES);
    }

    #[test]
    fn it_is_of_no_use_before_memory() {
        let a = Admission::default();
        for _ in 0..2000 {
            a.device_took(1, 8_000);
        }
        for _ in 0..500 {
            a.compressed(96, 96 * 1000, 0);
            want(&a, (0..96).map(|_| 100_000));
        }
        assert_eq!(a.most(LIMIT), LEAST_PAGES);
    }
}
