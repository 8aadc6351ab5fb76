//! How much of the limit compressed memory may take. Pure.
//!
//! Memory that the pool takes is missing elsewhere. What a pool of some size would cost follows from the distances at which
//! pages come back ([`Ages`]), and from what was measured: how small pages become, and what it takes to compress one, to have one back
//! from the pool, and to read one. Without the pool those that come back at a short distance would never have left. In
//! it there is room for the next, more of them than it takes memory by as much as they become smaller. The others are read. Every
//! page that leaves is compressed, and those that nobody wants in time go on to the device. All sizes are compared; the one
//! that costs least is the aim, if that is worth a change.

use crate::ages::{Ages, Curve};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use hugeswap_mm::{PageMask, Pmd, PAGE_SIZE};

/// Averages forget: this many pages count as much as all before. What is thought before anything was tried counts as `FEW`.
const MEMORY: u64 = 2048;
const FEW: u64 = 4;
/// What "all" is in an average.
const ONE: u32 = 1 << 16;
/// Where nothing else can be done with them, pages are worth a try as long as they become smaller than this.
const ANY_SMALLER: u32 = ONE / 10 * 9;
/// The part of the limit that the pool may take at most, and in which steps sizes are compared.
const MOST: u32 = ONE / 4 * 3;
const STEP: u32 = ONE / 64;
/// By how much that changes at a time. What has been given up has to be compressed again.
const GROW: u32 = 4 * STEP;
const SHRINK: u32 = STEP / 4;
/// Where nothing goes there, so much of what leaves is compressed all the same, to see how small it becomes.
const PROBE: u32 = ONE / 32;
/// A change has to save this part of what all costs.
const WORTH: f64 = 1.0 / 16.0;
/// What is resident is wanted more often than what has just left: by no less and no more than so much, for each sixteenth of the limit.
const NEARER: (f64, f64) = (1.05, 1.5);
/// How often it is looked at: pages of the sample that left or came back.
const LOOK: u32 = 32;
/// So many pages at a time are a walk's.
const WALK: usize = 16;
/// So many pages tell how densely they are packed.
const PACKED: usize = 1024;
/// Pages that come along with a read into the pool, as long as this part of it is free.
const BRINGS: usize = 16;
const ROOM_PART: usize = 16;
/// What a fault costs beside the handler's work, and what a page costs that leaves, beside its being compressed.
const HAND_OVER_NS: u32 = 5_000;
const OUT_NS: u32 = 4_000;
/// What is thought before anything was measured.
const POOL_NS: u32 = 6_000;
const DEVICE_NS: u32 = 40_000;
const COMPRESS_NS: u32 = 6_000;

/// What faults take.
struct Cost {
    ns: AtomicU32,
    /// For how many pages they are, in parts of one.
    pages: AtomicU32,
}

impl Cost {
    fn new(ns: u32) -> Cost {
        Cost {
            ns: AtomicU32::new(ns),
            pages: AtomicU32::new(ONE),
        }
    }

    /// A fault for so many pages took so long.
    fn took(&self, pages: usize, ns: u64) {
        if (1..WALK).contains(&pages) {
            mix(&self.ns, ns.min(1 << 20) as u32, 1, 255);
            mix(&self.pages, pages as u32 * ONE, 1, 255);
        }
    }

    /// What a page takes.
    fn page(&self) -> f64 {
        let ns = self.ns.load(Relaxed) + HAND_OVER_NS;
        f64::from(ns) * f64::from(ONE) / f64::from(self.pages.load(Relaxed))
    }
}

pub struct Admission {
    /// Size of a page in the pool, and how many of those that are tried become small enough, in parts.
    size: AtomicU32,
    small: AtomicU32,
    compress_ns: AtomicU32,
    /// Pages that were tried; no more than `MEMORY`.
    tried: AtomicU32,
    asked: AtomicU32,
    ages: Ages,
    /// Of the sample, since the last look.
    seen: AtomicU32,
    /// Of the limit.
    share: AtomicU32,
    /// What a fault costs that finds its page in the pool, and one that has to read.
    pool: Cost,
    device: Cost,
}

/// What is to be done with pages that leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admits {
    /// They go there, if they become small enough.
    All,
    /// One is compressed, to see how small it becomes.
    Probe,
    Nothing,
}

/// How full the pool is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// Pages of memory that it takes.
    pub pages: usize,
    /// Pages that are in it, and bytes of their places.
    pub stored: usize,
    pub bytes: usize,
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

fn part(n: &AtomicU32) -> f64 {
    f64::from(n.load(Relaxed)) / f64::from(ONE)
}

/// With so many pages less of memory so many pages would leave and come back, for each that does so now. They are wanted more often than
/// those that come back first, by as much as those are than the next, and so on.
fn would_leave(curve: &Curve, pages: f64, limit: f64) -> f64 {
    let step = limit / 16.0;
    let first = curve.within(step);
    let next = curve.within(2.0 * step) - first;
    let nearer = (first / next.max(f64::MIN_POSITIVE)).clamp(NEARER.0, NEARER.1);
    first * nearer * (nearer.powf(pages / step) - 1.0) / (nearer - 1.0)
}

impl Admission {
    /// For a process that may have so many pages.
    pub fn new(limit: u64) -> Admission {
        Admission::by(Ages::new(limit))
    }

    /// Where the size is given.
    pub fn of_given_size() -> Admission {
        Admission::by(Ages::none())
    }

    fn by(ages: Ages) -> Admission {
        Admission {
            size: AtomicU32::new(ONE / 2),
            small: AtomicU32::new(ONE),
            compress_ns: AtomicU32::new(COMPRESS_NS),
            tried: AtomicU32::new(FEW as u32),
            asked: AtomicU32::new(0),
            ages,
            seen: AtomicU32::new(0),
            share: AtomicU32::new(0),
            pool: Cost::new(POOL_NS),
            device: Cost::new(DEVICE_NS),
        }
    }

    /// So many pages were stored, and take so many bytes; others did not become small enough. That took so long.
    pub fn compressed(&self, stored: usize, bytes: usize, poor: usize, ns: u64) {
        let tried = stored + poor;
        let before = u64::from(self.tried.load(Relaxed));
        if tried > 0 {
            let each = (ns / tried as u64).min(1 << 20);
            mix(&self.compress_ns, each as u32, tried, before);
            let small = stored as u64 * u64::from(ONE) / tried as u64;
            mix(&self.small, small as u32, tried, before);
            let all = (before + tried as u64).min(MEMORY);
            self.tried.store(all as u32, Relaxed);
        }
        if stored > 0 {
            let size = bytes as u64 * u64::from(ONE) / (stored * PAGE_SIZE) as u64;
            mix(&self.size, size.min(ONE.into()) as u32, stored, before);
        }
    }

    /// These pages leave memory for the pool or a device. Those that a walk brought in go to a device; they are away as the others
    /// are, and a jump may want them.
    pub fn leave(&self, pmd: Pmd, pages: PageMask, now: u32, fill: impl FnOnce() -> Fill) {
        let all = pages.runs().flatten();
        let n = all.filter(|page| self.ages.leaves(pmd, *page, now)).count();
        self.saw(n, fill);
    }

    /// Pages are there again.
    pub fn come_back(
        &self,
        pmd: Pmd,
        pages: PageMask,
        now: impl Fn() -> u32,
        fill: impl FnOnce() -> Fill,
    ) {
        let walks = pages.count() >= WALK;
        let all = pages.runs().flatten();
        let n = all
            .filter(|page| self.ages.comes_back(pmd, *page, walks, &now))
            .count();
        self.saw(n, fill);
    }

    /// These had not left, after all.
    pub fn stayed(&self, pmd: Pmd, pages: PageMask) {
        let all = pages.runs().flatten();
        all.for_each(|page| self.ages.stayed(pmd, page));
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

    fn saw(&self, n: usize, fill: impl FnOnce() -> Fill) {
        let n = n as u32;
        if n > 0 && self.seen.fetch_add(n, Relaxed) + n >= LOOK {
            self.seen.store(0, Relaxed);
            let aim = self.aim(fill());
            let share = self.share.load(Relaxed);
            let share = aim.clamp(share.saturating_sub(SHRINK), share + GROW);
            self.share.store(share, Relaxed);
        }
    }

    /// The share of the limit that would cost least, if that is worth a change.
    fn aim(&self, fill: Fill) -> u32 {
        let share = self.share.load(Relaxed);
        let curve = self.ages.curve();
        let cost = |share| self.cost(share, fill, &curve);
        let now = cost(share);
        let sizes = (0..=MOST / STEP).map(|i| (i * STEP, cost(i * STEP)));
        let least = |a: (u32, f64), b: (u32, f64)| if b.1 < a.1 { b } else { a };
        let (aim, cost) = sizes.fold((share, now), least);
        if cost + now * WORTH < now {
            aim
        } else {
            share
        }
    }

    /// What a page that leaves costs, in ns, with a pool that takes this share of the limit.
    fn cost(&self, share: u32, fill: Fill, curve: &Curve) -> f64 {
        let limit = fill.limit.max(1) as f64;
        let (size, now) = (limit * f64::from(share) / f64::from(ONE), fill.pages as f64);
        let dense = match fill.stored >= PACKED {
            // Free places between them are to be had.
            true => (fill.stored * PAGE_SIZE) as f64 / fill.bytes.max(1) as f64,
            false => 1.0 / part(&self.size).max(0.01),
        };
        let back = curve.ever();
        let more = match size - now {
            more if more > 0.0 => would_leave(curve, more, limit),
            less => -curve.within(-less),
        };
        let small = part(&self.small).max(0.01);
        // Those that are not stored do not take up room.
        let reach = size * dense / small - (size - now);
        let wanted = back + more;
        let in_reach = (curve.within(reach.max(0.0)) + more).max(0.0);
        let hits = match share {
            0 => 0.0,
            _ => in_reach * small,
        };
        let leave = 1.0 + more;
        let in_vain = leave * small - hits;
        let out = f64::from(OUT_NS);
        let compress = f64::from(self.compress_ns.load(Relaxed)) + out;
        let pool = match share {
            0 => 0.0,
            _ => hits * self.pool.page() + leave * compress + in_vain.max(0.0) * out,
        };
        (wanted - hits) * self.device.page() + pool
    }

    /// What is to be done with the next range that leaves.
    pub fn admits(&self) -> Admits {
        match self.share.load(Relaxed) {
            0 if self.is_probe() => Admits::Probe,
            0 => Admits::Nothing,
            _ => Admits::All,
        }
    }

    /// Whether the next range, which goes there anyhow, is worth being compressed.
    pub fn shrinks(&self) -> bool {
        let small = part(&self.small);
        let size = small * part(&self.size) + 1.0 - small;
        size < f64::from(ANY_SMALLER) / f64::from(ONE) || self.is_probe()
    }

    /// How many pages a read may bring along into the pool, which is no larger than `most`: as long as there is
    /// much room, and they become small.
    pub fn brings(&self, fill: Fill, most: usize) -> usize {
        let room = most.saturating_sub(fill.pages);
        let is_small = part(&self.small) > 0.5;
        match room > most / ROOM_PART && room > BRINGS && is_small {
            true => BRINGS,
            false => 0,
        }
    }

    fn is_probe(&self) -> bool {
        self.asked.fetch_add(PROBE, Relaxed) % ONE >= ONE - PROBE
    }

    /// Of `limit` pages, those that the pool may take.
    pub fn most(&self, limit: i64) -> usize {
        (limit.max(0) as u64 * u64::from(self.share.load(Relaxed)) / u64::from(ONE)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const MEMORY: usize = 1280;
    /// What things take: a hit, a read, to compress a page.
    const POOL: u32 = 12_000;
    const DEVICE: u32 = 85_000;
    const COMPRESS: u64 = 10_000;

    fn new() -> Admission {
        let a = Admission::new(MEMORY as u64);
        for _ in 0..2000 {
            a.pool_took(1, POOL.into());
            a.device_took(1, DEVICE.into());
        }
        a
    }

    /// Memory for 1,280 pages, some of which is the pool's, where pages become smaller by `ratio`. The page at each depth of the
    /// order of use is wanted as often as `depth` says. The pool takes what is decided, or what is `fixed`. What an access
    /// takes on average, and what the pool takes in the end.
    fn lru(
        a: &Admission,
        depth: fn(f64) -> usize,
        ratio: usize,
        fixed: Option<usize>,
    ) -> (f64, usize) {
        const ALL: usize = 4 * MEMORY;
        const TIMES: usize = 120_000;
        let mut order = (0..ALL).collect::<Vec<usize>>();
        // By the time at which they left; and that time of each page.
        let (mut pool, mut left) = (BTreeMap::new(), vec![0; ALL]);
        let (mut clock, mut took, mut resident) = (0_u32, 0, MEMORY);
        let mut x = 1_u64;
        for i in 0..TIMES {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let even = ((x >> 33) + 1) as f64 / (1_u64 << 31) as f64;
            let most = ratio * fixed.unwrap_or(a.most(MEMORY as i64));
            let fill = Fill {
                pages: pool.len() / ratio,
                stored: pool.len(),
                bytes: pool.len() * PAGE_SIZE / ratio,
                limit: MEMORY as i64,
            };
            let place = |page: usize| {
                (
                    Pmd(page as u32 >> 9),
                    PageMask::of(page & 511..(page & 511) + 1),
                )
            };
            let at = depth(even).min(ALL - 1);
            let page = order.remove(at);
            order.insert(0, page);
            let mut ns = 0;
            if at >= resident {
                let (pmd, one) = place(page);
                a.come_back(pmd, one, || clock, || fill);
                let hit = pool.remove(&left[page]).is_some();
                ns += u64::from(HAND_OVER_NS + if hit { POOL } else { DEVICE });
            }
            let now = MEMORY - pool.len() / ratio;
            let had = resident + usize::from(at >= resident);
            for page in order[now.min(had)..had].iter().copied() {
                clock += 1;
                let (pmd, one) = place(page);
                a.leave(pmd, one, clock, || fill);
                let admits = fixed.map_or_else(
                    || a.admits(),
                    |n| match n {
                        0 => Admits::Nothing,
                        _ => Admits::All,
                    },
                );
                if admits == Admits::All {
                    left[page] = clock;
                    pool.insert(clock, page);
                }
                if admits != Admits::Nothing {
                    a.compressed(1, PAGE_SIZE / ratio, 0, COMPRESS);
                    ns += COMPRESS + u64::from(OUT_NS);
                }
            }
            resident = now;
            while pool.len() > most {
                pool.pop_first();
                ns += u64::from(OUT_NS);
            }
            if i > TIMES / 2 {
                took += ns;
            }
        }
        (took as f64 / (TIMES / 2) as f64, pool.len() / ratio)
    }

    /// Every page as often as every other.
    fn even(x: f64) -> usize {
        (x * 4000.0) as usize
    }

    /// What is wanted just does not fit.
    fn cliff(x: f64) -> usize {
        (1000.0 + 200.0 * -x.ln()) as usize
    }

    fn slope(x: f64) -> usize {
        (900.0 + 500.0 * -x.ln()) as usize
    }

    /// Some much more often than others.
    fn skewed(x: f64) -> usize {
        (4000.0 * x.powi(3)) as usize
    }

    /// It costs little more than the best of some sizes, and hardly more than none.
    #[test]
    fn it_finds_a_good_size() {
        for (depth, ratio, best) in [
            (even as fn(f64) -> usize, 2, 0),
            (even, 3, 960),
            (even, 6, 640),
            (cliff, 2, 0),
            (cliff, 3, 80),
            (cliff, 6, 80),
            (slope, 2, 0),
            (slope, 6, 240),
            (skewed, 2, 0),
            (skewed, 6, 640),
        ] {
            let took = |fixed| lru(&new(), depth, ratio, fixed).0;
            let (auto, best, none) = (took(None), took(Some(best)), took(Some(0)));
            assert!(
                auto < 1.15 * best && auto < 1.08 * none,
                "{auto} {best} {none}"
            );
        }
    }

    #[test]
    fn reads_bring_others_as_long_as_there_is_room_for_what_becomes_small() {
        let a = new();
        let fill = |pages| Fill {
            pages,
            stored: 0,
            bytes: 0,
            limit: 1280,
        };
        let at = |pages| a.brings(fill(pages), 320);
        assert_eq!([0, 299, 300, 320, 400].map(at), [BRINGS, BRINGS, 0, 0, 0]);
        assert_eq!(a.brings(fill(0), 0), 0);
        a.compressed(0, 0, 1000, 0);
        assert_eq!(a.brings(fill(0), 320), 0);
    }

    /// A handful of pages says how small they become, as long as nothing else does.
    #[test]
    fn the_first_pages_count() {
        let a = new();
        (0..20).for_each(|_| a.compressed(1, PAGE_SIZE / 8, 0, 2000));
        assert!(part(&a.size) < 0.2 && a.compress_ns.load(Relaxed) < 3000);
        (0..1000).for_each(|_| a.compressed(1, PAGE_SIZE / 8, 0, 2000));
        a.compressed(1, PAGE_SIZE, 0, 2000);
        assert!(part(&a.size) < 0.13);
    }

    fn pool_after(a: &Admission, depth: fn(f64) -> usize) -> usize {
        lru(a, depth, 6, None);
        a.most(MEMORY as i64)
    }

    #[test]
    fn it_is_of_no_use_before_memory() {
        let a = new();
        assert!(pool_after(&a, even) > MEMORY / 4);
        (0..3000).for_each(|_| a.device_took(1, 5_000));
        assert_eq!(pool_after(&a, even), 0);
    }

    /// A read brings as many as a fault would have to get one by one.
    #[test]
    fn it_is_of_no_use_where_many_come_at_once() {
        let a = new();
        (0..3000).for_each(|_| a.device_took(12, DEVICE.into()));
        assert_eq!(pool_after(&a, even), 0);
    }

    #[test]
    fn what_stays_large_is_left_alone_but_tried() {
        let a = new();
        a.compressed(0, 0, 1_000_000, 1_000_000 * COMPRESS);
        let all = (0..3200).map(|i| {
            a.leave(Pmd(i), PageMask::FULL, 512 * i, || Fill {
                pages: 0,
                stored: 0,
                bytes: 0,
                limit: 1280,
            });
            a.come_back(
                Pmd(i),
                PageMask::FULL,
                || 512 * i + 700,
                || Fill {
                    pages: 0,
                    stored: 0,
                    bytes: 0,
                    limit: 1280,
                },
            );
            a.admits()
        });
        let all = all.collect::<Vec<_>>();
        let count = |what| all.iter().filter(|a| **a == what).count();
        assert_eq!((count(Admits::All), count(Admits::Probe)), (0, 100));
    }

    #[test]
    fn what_goes_there_anyhow_is_compressed_if_anything_comes_of_it() {
        let tried = |a: &Admission| (0..3200).filter(|_| a.shrinks()).count();
        let a = new();
        (0..200).for_each(|_| a.compressed(96, 96 * 3500, 0, 0));
        assert_eq!(tried(&a), 3200);
        (0..200).for_each(|_| a.compressed(0, 0, 96, 0));
        assert_eq!(tried(&a), 100);
        (0..200).for_each(|_| a.compressed(96, 96 * 1000, 0, 0));
        assert_eq!(tried(&a), 3200);
    }

    #[test]
    fn what_never_comes_back_is_left_alone() {
        let a = new();
        assert!(pool_after(&a, even) > MEMORY / 4);
        for i in 0..200 {
            a.leave(Pmd(1000 + i), PageMask::FULL, (1 << 20) + 512 * i, || {
                Fill {
                    pages: 100,
                    stored: 500,
                    bytes: 100 * PAGE_SIZE,
                    limit: 1280,
                }
            });
        }
        assert_eq!(
            (a.most(MEMORY as i64), a.admits() == Admits::All),
            (0, false)
        );
    }
}
