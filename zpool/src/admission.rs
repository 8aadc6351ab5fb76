//! What goes into compressed memory, and how much of the limit that may take. Pure.
//!
//! Memory that the pool takes is missing elsewhere. A page is wanted again at an age: the number of pages that
//! left since it did (the kernel's refault distance). If that is less than the pages of memory that the pool
//! takes, the page would still be resident without the pool, and the fault is the pool's fault; if it is more,
//! the page would have to be read from a device. As long as more time is saved than is lost the pool may grow,
//! else it shrinks.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
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
/// The part of the limit that the pool may take at first, at least, and at most; and by how much that
/// changes at a time.
const FIRST: u32 = ONE / 3;
const LEAST: u32 = ONE / 32;
const MOST: u32 = ONE / 4 * 3;
const STEP: u32 = ONE / 64;
/// Faults after which that is looked at.
const LOOK: u32 = 512;
/// So many times what is lost must be saved: the last page that the pool takes saves less than the average.
const CAUTION: u64 = 1;
/// What a fault costs beside the handler's work, and what it costs to compress a page and to move it out.
const HAND_OVER_NS: u32 = 5_000;
const OUT_NS: u32 = 4_000;
/// What faults are thought to cost before any was measured.
const POOL_NS: u32 = 12_000;
const DEVICE_NS: u32 = 80_000;

pub struct Admission {
    /// Size of a page in the pool, in parts of a page.
    size: AtomicU32,
    /// How much of what left the pool was wanted.
    useful: AtomicU32,
    asked: AtomicU32,
    /// Of the limit.
    share: AtomicU32,
    /// Faults since the last look, on pages that would be resident without the pool, and on others.
    lost: AtomicU32,
    saved: AtomicU32,
    /// What a fault costs that finds its page in the pool, and one that has to read.
    pool_ns: AtomicU32,
    device_ns: AtomicU32,
}

impl Default for Admission {
    fn default() -> Admission {
        Admission {
            size: AtomicU32::new(ONE / 2),
            useful: AtomicU32::new(ONE),
            asked: AtomicU32::new(0),
            share: AtomicU32::new(FIRST),
            lost: AtomicU32::new(0),
            saved: AtomicU32::new(0),
            pool_ns: AtomicU32::new(POOL_NS),
            device_ns: AtomicU32::new(DEVICE_NS),
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
    /// Pages that take so many bytes in all were compressed; what did not fit counts as it is.
    pub fn compressed(&self, pages: usize, bytes: usize) {
        if pages > 0 {
            let part = bytes as u64 * u64::from(ONE) / (pages * PAGE_SIZE) as u64;
            mix(&self.size, part.min(ONE.into()) as u32, pages, MEMORY);
        }
    }

    /// A fault on a page of that age took so many pages out of the pool.
    pub fn wanted(&self, pages: usize, age: u32, fill: Fill) {
        mix(&self.useful, ONE, pages, MEMORY);
        let lost = (age as usize) < fill.pages;
        let which = if lost { &self.lost } else { &self.saved };
        which.fetch_add(1, Relaxed);
        if self.lost.load(Relaxed) + self.saved.load(Relaxed) >= LOOK {
            self.look(fill);
        }
    }

    /// So many pages left the pool for a device.
    pub fn written_back(&self, pages: usize) {
        mix(&self.useful, 0, pages, MEMORY);
    }

    /// A fault was served from the pool, or from a device, in so much time.
    pub fn pool_took(&self, ns: u64) {
        mix(&self.pool_ns, ns.min(1 << 20) as u32, 1, 255);
    }

    pub fn device_took(&self, ns: u64) {
        mix(&self.device_ns, ns.min(1 << 20) as u32, 1, 255);
    }

    /// What a fault takes that has to read.
    pub fn device_ns(&self) -> u32 {
        self.device_ns.load(Relaxed)
    }

    fn look(&self, fill: Fill) {
        let (lost, saved) = (self.lost.swap(0, Relaxed), self.saved.swap(0, Relaxed));
        let pool_ns = u64::from(self.pool_ns.load(Relaxed) + HAND_OVER_NS + OUT_NS);
        let device_ns = u64::from(self.device_ns.load(Relaxed) + HAND_OVER_NS);
        let lost = u64::from(lost) * pool_ns * CAUTION;
        let saved = u64::from(saved) * device_ns.saturating_sub(pool_ns);
        let limit = fill.limit.max(1) as u64;
        let taken = (fill.pages as u64 * u64::from(ONE) / limit).min(ONE.into()) as u32;
        let share = self.share.load(Relaxed);
        let share = match saved > lost {
            // It is no limit to what does not reach it.
            true if taken + STEP < share => share,
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
        self.size.load(Relaxed) < SMALL_ENOUGH && self.useful.load(Relaxed) >= USEFUL
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
    fn what_stays_large_is_left_alone_but_tried() {
        let a = Admission::default();
        assert_eq!(admitted(&a), 1600);
        for _ in 0..100 {
            a.compressed(96, 96 * 4000);
        }
        assert_eq!(admitted(&a), 100);
        assert_eq!(a.most(LIMIT), LEAST_PAGES);
        for _ in 0..100 {
            a.compressed(96, 96 * 1000);
        }
        assert_eq!(admitted(&a), 1600);
    }

    #[test]
    fn what_goes_there_anyhow_is_compressed_if_anything_comes_of_it() {
        let a = Admission::default();
        let tried = |a: &Admission| (0..1600).filter(|_| a.shrinks()).count();
        (0..200).for_each(|_| a.compressed(96, 96 * 3500));
        assert_eq!((tried(&a), admitted(&a)), (1600, 100));
        (0..200).for_each(|_| a.compressed(96, 96 * 4096));
        assert_eq!(tried(&a), 100);
        (0..200).for_each(|_| a.compressed(96, 96 * 1000));
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

    #[test]
    fn it_is_of_no_use_before_memory() {
        let a = Admission::default();
        for _ in 0..2000 {
            a.device_took(15_000);
        }
        want(&a, (0..50_000).map(|_| 100_000));
        assert_eq!(a.most(LIMIT), LEAST_PAGES);
    }
}
