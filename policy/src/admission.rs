//! What goes into compressed memory, and how much of the limit that may take. Pure.
//!
//! Memory that the pool takes is missing elsewhere. A page is wanted again at an age: the number of pages that
//! left since it did (the kernel's refault distance). If that is less than the pages of memory that the pool
//! takes, the page would still be resident without the pool, and the fault is the pool's fault; if it is more,
//! the page would have to be read from a device. What comes by many pages at a time is read in little more time than it
//! is decompressed in, but was to be compressed before: there the pool loses even where it saves reads.
//!
//! That the pool is worth what it takes says nothing of its size: one that grows as long as it is would grow until
//! nothing is gained any more. So what counts is its last page of memory. Of the pages that are wanted soonest after they
//! left, one would be resident without it: each of their faults costs a decompression, a hand-over, and a
//! compression. At the other end the pool holds as many pages more as it stores in one, less that one: each of their
//! faults would be a read. How often pages are wanted at either end is seen in the ages.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
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
/// A step is so much larger at most, each twice the one before as long as it goes the same way.
const STRIDE: u32 = 4;
/// Faults after which that is looked at, those that had to read among them; and how many must have been the pool's.
const LOOK: u32 = 256;
const LOOK_POOL: u32 = 16;
/// Faults for so many pages at most tell what one takes, others what a page takes.
const FEW: usize = 4;
/// What a fault costs beside the handler's work: two threads are woken.
const HAND_OVER_NS: u32 = 12_000;
/// What was seen at the ends before a look weighs half as much after it.
const FORGET: u32 = 2;
/// What it costs to compress a page, wanted or not, before that was measured, and what faults do.
const OUT_NS: u32 = 4_000;
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

/// Faults on pages that were wanted soon after they left, and late.
#[derive(Default)]
struct Ends {
    soon: AtomicU32,
    late: AtomicU32,
}

impl Ends {
    /// A page of that age, where the pool stores so many: it holds none that are much older, unless few are let in.
    fn note(&self, age: usize, stored: usize) {
        if age < stored / 4 {
            self.soon.fetch_add(1, Relaxed);
        } else if age >= stored / 2 {
            self.late.fetch_add(1, Relaxed);
        }
    }

    /// How many there were lately, of ages as many at either end.
    fn take(&self) -> [u64; 2] {
        let take = |n: &AtomicU32, width: u32| {
            let seen = n.load(Relaxed);
            n.store(seen / FORGET, Relaxed);
            u64::from(seen / width)
        };
        [take(&self.soon, 1), take(&self.late, 2)]
    }
}

pub struct Admission {
    /// Size of a page in the pool, in parts of a page.
    size: AtomicU32,
    /// How much of what left the pool was wanted.
    useful: AtomicU32,
    asked: AtomicU32,
    /// Of the limit.
    share: AtomicU32,
    /// Faults since the last look, on pages that would be resident without the pool, and on others.
    lost: Tally,
    saved: Tally,
    ends: Ends,
    /// Faults that had to read.
    reads: AtomicU32,
    /// The last step, and whether it was one up.
    step: AtomicU32,
    grew: AtomicBool,
    /// Pages that were compressed and have left, wanted or not, and what compressing one takes.
    out: AtomicU32,
    out_ns: AtomicU32,
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
            share: AtomicU32::new(LEAST),
            lost: Tally::default(),
            saved: Tally::default(),
            ends: Ends::default(),
            reads: AtomicU32::new(0),
            step: AtomicU32::new(STEP),
            grew: AtomicBool::new(false),
            out: AtomicU32::new(0),
            out_ns: AtomicU32::new(OUT_NS),
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
    /// Pages that it holds.
    pub stored: usize,
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
    /// Pages that take so many bytes in all were compressed, in so much time; what did not fit counts as it is.
    pub fn compressed(&self, pages: usize, bytes: usize, ns: u64) {
        if pages > 0 {
            let part = bytes as u64 * u64::from(ONE) / (pages * PAGE_SIZE) as u64;
            mix(&self.size, part.min(ONE.into()) as u32, pages, MEMORY);
            let each = (ns / pages as u64).min(1 << 20) as u32;
            mix(&self.out_ns, each, pages, MEMORY);
        }
    }

    /// A fault on a page of that age took so many pages out of the pool.
    pub fn wanted(&self, pages: usize, age: u32, fill: Fill) {
        mix(&self.useful, ONE, pages, MEMORY);
        let lost = (age as usize) < fill.pages;
        let which = if lost { &self.lost } else { &self.saved };
        which.add(pages);
        self.ends.note(age as usize, fill.stored);
        self.out.fetch_add(pages as u32, Relaxed);
        let pool = self.lost.faults.load(Relaxed) + self.saved.faults.load(Relaxed);
        if pool >= LOOK_POOL && pool + self.reads.load(Relaxed) >= LOOK {
            self.reads.store(0, Relaxed);
            self.look(fill);
        }
    }

    /// So many pages left the pool for a device.
    pub fn written_back(&self, pages: usize) {
        self.out.fetch_add(pages as u32, Relaxed);
        mix(&self.useful, 0, pages, MEMORY);
    }

    /// A fault was served from the pool, or from a device, in so much time.
    pub fn pool_took(&self, pages: usize, ns: u64) {
        self.pool.took(pages, ns);
    }

    pub fn device_took(&self, pages: usize, ns: u64) {
        self.reads.fetch_add(1, Relaxed);
        self.device.took(pages, ns);
    }

    /// What a fault takes that has to read.
    pub fn device_ns(&self) -> u32 {
        self.device.ns.load(Relaxed)
    }

    fn look(&self, fill: Fill) {
        let pays = self.has_paid() && self.next_page_pays(fill);
        let limit = fill.limit.max(1) as u64;
        let taken = (fill.pages as u64 * u64::from(ONE) / limit).min(ONE.into()) as u32;
        let share = self.share.load(Relaxed);
        let step = match self.grew.swap(pays, Relaxed) == pays {
            true => (2 * self.step.load(Relaxed)).min(STRIDE * STEP),
            false => STEP,
        };
        self.step.store(step, Relaxed);
        let share = match pays {
            // It is no limit to what does not reach it. But at the least little is let in.
            true if taken + step < share && share > LEAST => share,
            true => share + step,
            false => share.min(taken + step).saturating_sub(step),
        };
        self.share.store(share.clamp(LEAST, MOST), Relaxed);
    }

    /// Whether what it has saved since the last look is more than what it has lost.
    fn has_paid(&self) -> bool {
        let (lost, saved) = (self.lost.take(), self.saved.take());
        let out = u64::from(self.out.swap(0, Relaxed)) * u64::from(self.out_ns.load(Relaxed));
        let took =
            |cost: &Cost, w: &Wanted| cost.of(w) + u64::from(w.faults) * u64::from(HAND_OVER_NS);
        let lost = took(&self.pool, &lost) + took(&self.pool, &saved) + out;
        took(&self.device, &saved) > lost
    }

    /// Whether one more page of memory in the pool would save more than it would lose.
    fn next_page_pays(&self, fill: Fill) -> bool {
        let [soon, late] = self.ends.take();
        let [pool, device, out] =
            [&self.pool.ns, &self.device.ns, &self.out_ns].map(|ns| u64::from(ns.load(Relaxed)));
        let more = fill.stored.saturating_sub(fill.pages) as u64;
        // Both times the pages of memory that it takes.
        let gain = late * device.saturating_sub(pool) * more;
        let loss = soon * (pool + u64::from(HAND_OVER_NS) + out) * fill.pages as u64;
        gain > loss
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
    const LEAST_PAGES: usize = LIMIT as usize / 32;

    /// What compressing 96 pages takes.
    const TOOK: u64 = 96 * 4000;

    fn admitted(a: &Admission) -> usize {
        (0..1600).filter(|_| a.admits()).count()
    }

    /// As full as it may be, with pages that become a third.
    fn full(a: &Admission) -> Fill {
        let pages = a.most(LIMIT);
        Fill {
            pages,
            stored: 3 * pages,
            limit: LIMIT,
        }
    }

    /// Pages are wanted at these ages, while the pool is as full as it may be.
    fn want(a: &Admission, ages: impl Iterator<Item = u32>) {
        for age in ages {
            a.wanted(1, age, full(a));
        }
    }

    /// A program that wants a page that it has not wanted for the last n others so often, by n. Gives the pages that the
    /// pool comes to take, and those that it had better take.
    fn settles(often: impl Fn(usize) -> f64) -> (usize, usize) {
        let (a, part) = (Admission::default(), 1000);
        let [pool, device] = [
            POOL_NS[0] + HAND_OVER_NS + OUT_NS,
            DEVICE_NS[0] + HAND_OVER_NS,
        ];
        let cost = |pages: usize| -> f64 {
            let (resident, all) = (LIMIT as usize - pages, LIMIT as usize + 2 * pages);
            let each = |n| match n {
                n if n < resident => 0.0,
                n if n < all => often(n) * f64::from(pool),
                _ => often(n) * f64::from(device),
            };
            (0..8 * LIMIT as usize).step_by(part).map(each).sum()
        };
        let least = (LEAST_PAGES..LIMIT as usize / 4 * 3)
            .step_by(part)
            .min_by(|a, b| cost(*a).total_cmp(&cost(*b)));
        for _ in 0..400 {
            let fill = full(&a);
            let resident = LIMIT as usize - fill.pages;
            let ages = (0..fill.stored).step_by(part / 4);
            let all: f64 = ages.clone().map(|age| often(resident + age)).sum();
            let mut owed = 0.0;
            for age in ages {
                owed += often(resident + age) / all * f64::from(LOOK);
                while owed >= 1.0 {
                    a.wanted(1, age as u32, fill);
                    owed -= 1.0;
                }
            }
        }
        (a.most(LIMIT), least.unwrap())
    }

    /// It does not grow until nothing is gained any more.
    #[test]
    fn it_takes_what_its_last_page_is_worth() {
        let limit = LIMIT as f64;
        for (what, steep) in [("flat", 0.0), ("falls", 2.0), ("steep", 6.0)] {
            let (got, best) = settles(|n| (-steep * n as f64 / limit).exp());
            assert!(
                got.abs_diff(best) <= LIMIT as usize / 8,
                "{what}: {got} {best}"
            );
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
            a.compressed(96, 96 * 4000, TOOK);
        }
        assert_eq!(admitted(&a), 100);
        assert_eq!(a.most(LIMIT), LEAST_PAGES);
        // And it is wanted.
        for _ in 0..100 {
            a.compressed(96, 96 * 1000, TOOK);
            want(&a, (0..32).map(|_| 100_000));
        }
        assert_eq!(admitted(&a), 1600);
    }

    #[test]
    fn what_goes_there_anyhow_is_compressed_if_anything_comes_of_it() {
        let a = Admission::default();
        let tried = |a: &Admission| (0..1600).filter(|_| a.shrinks()).count();
        (0..200).for_each(|_| a.compressed(96, 96 * 3500, TOOK));
        assert_eq!((tried(&a), admitted(&a)), (1600, 100));
        (0..200).for_each(|_| a.compressed(96, 96 * 4096, TOOK));
        assert_eq!(tried(&a), 100);
        (0..200).for_each(|_| a.compressed(96, 96 * 1000, TOOK));
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

    #[test]
    fn it_is_of_no_use_before_memory() {
        let a = Admission::default();
        for _ in 0..2000 {
            a.device_took(1, 8_000);
        }
        for _ in 0..500 {
            a.compressed(96, 96 * 1000, TOOK);
            want(&a, (0..96).map(|_| 100_000));
        }
        assert_eq!(a.most(LIMIT), LEAST_PAGES);
    }
}
