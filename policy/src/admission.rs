//! How much of the limit compressed memory may take. Pure.
//!
//! Memory that the pool takes is missing elsewhere. What a pool of some size would cost follows from the distances at which
//! pages come back ([`Ages`]), and from what was measured: how small pages become, and what it takes to compress one, to have one back
//! from the pool, and to read one. Without the pool those that come back at a short distance would never have left. In
//! it there is room for the next, more of them than it takes memory by as much as they become smaller. The others are read. Every
//! page that leaves is compressed, but for those that walks brought in, and those that nobody wants in time go on to the device. All
//! sizes are compared, with either codec; what costs least is the aim, if that is worth a change.
//!
//! A read brings several pages, of which the program may want one alone: each that comes along costs little, and counts as half of one
//! that is wanted. From the pool pages come one by one, as they are wanted; so it has less to do than the device by as much.

use crate::ages::{Ages, Curve};
use crate::turns::List;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use hugeswap_mm::{PageMask, Pmd, PAGE_SIZE};

/// Averages forget: this many pages count as much as all before. What is thought before anything was tried counts as `FEW`.
const MEMORY: u64 = 2048;
/// The same for the way by which pages of the sample leave.
const LATELY: u64 = 256;
const FEW: u64 = 4;
/// What "all" is in an average.
const ONE: u32 = 1 << 16;
/// Where nothing else can be done with them, pages are worth a try as long as they become smaller than this.
const ANY_SMALLER: u32 = ONE / 10 * 9;
/// The part of the limit that the pool may take at most, where it is not given, and in which steps sizes are compared.
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
const POOL_NS: u32 = 9_000;
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

    /// It has not been tried for a while: what is thought of it gets nearer to this.
    fn forget(&self, ns: u32) {
        mix(&self.ns, ns, 1, 63);
        mix(&self.pages, ONE, 1, 63);
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
    /// How many of those that leave no walk has brought in.
    main: AtomicU32,
    /// How many of those that come back are wanted.
    wanted: AtomicU32,
    /// Of the sample, since the last look.
    seen: AtomicU32,
    /// Of the limit. It is no larger than `most`, which it always is if it is given.
    share: AtomicU32,
    most: u32,
    is_given: bool,
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
    /// Of the codec that is in use, and of the other. None where there is no choice.
    pub codecs: Option<[Effort; 2]>,
}

/// What a codec makes of a page: bytes, and the time that this takes, out and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    pub bytes: u32,
    pub out_ns: u32,
    pub back_ns: u32,
}

/// What is to become of the codec.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Use {
    This,
    /// The other one costs less.
    Other,
}

/// What becomes of pages with one of the codecs: how many take the room of one, and what they cost.
struct Way {
    dense: f64,
    compress_ns: f64,
    hit_ns: f64,
}

impl Way {
    /// The same by the other codec.
    fn by_other(&self, [this, other]: [Effort; 2]) -> Way {
        let more = |a: u32, b: u32| f64::from(b) - f64::from(a);
        Way {
            dense: self.dense * f64::from(this.bytes.max(1)) / f64::from(other.bytes.max(1)),
            compress_ns: (self.compress_ns + more(this.out_ns, other.out_ns)).max(0.0),
            hit_ns: (self.hit_ns + more(this.back_ns, other.back_ns)).max(0.0),
        }
    }
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
        Admission::by(Ages::new(limit), MOST, false)
    }

    /// The pool has so much of the limit. The codec is to be found out.
    pub fn of_share(limit: u64, percent: u32) -> Admission {
        Admission::by(Ages::new(limit), ONE / 100 * percent, true)
    }

    /// Nothing is to be found out.
    pub fn none() -> Admission {
        Admission::by(Ages::none(), 0, true)
    }

    fn by(ages: Ages, most: u32, is_given: bool) -> Admission {
        Admission {
            size: AtomicU32::new(ONE / 2),
            small: AtomicU32::new(ONE),
            compress_ns: AtomicU32::new(COMPRESS_NS),
            tried: AtomicU32::new(FEW as u32),
            asked: AtomicU32::new(0),
            ages,
            main: AtomicU32::new(ONE),
            wanted: AtomicU32::new(ONE),
            seen: AtomicU32::new(0),
            share: AtomicU32::new(if is_given { most } else { 0 }),
            most,
            is_given,
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
    pub fn leave(
        &self,
        pmd: Pmd,
        pages: PageMask,
        list: List,
        now: u32,
        fill: impl FnOnce() -> Fill,
    ) -> Use {
        let all = pages.runs().flatten();
        let n = all.filter(|page| self.ages.leaves(pmd, *page, now)).count();
        let main = if list == List::Main { ONE } else { 0 };
        mix(&self.main, main, n, LATELY);
        self.saw(n, fill)
    }

    /// Pages are there again.
    pub fn come_back(
        &self,
        pmd: Pmd,
        pages: PageMask,
        now: impl Fn() -> u32,
        fill: impl FnOnce() -> Fill,
    ) -> Use {
        let walks = pages.count() >= WALK;
        let all = pages.runs().flatten();
        let n = all
            .filter(|page| self.ages.comes_back(pmd, *page, walks, &now))
            .count();
        if !walks {
            let all = pages.count().max(1) as u32;
            mix(&self.wanted, ONE / 2 + ONE / 2 / all, n, LATELY);
        }
        self.saw(n, fill)
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

    fn saw(&self, n: usize, fill: impl FnOnce() -> Fill) -> Use {
        let n = n as u32;
        if n == 0 || self.seen.fetch_add(n, Relaxed) + n < LOOK {
            return Use::This;
        }
        self.seen.store(0, Relaxed);
        let (aim, codec) = self.aim(&fill());
        if !self.is_given {
            let share = self.share.load(Relaxed);
            let share = aim.clamp(share.saturating_sub(SHRINK), share + GROW);
            self.share.store(share, Relaxed);
        }
        codec
    }

    /// The share of the limit that would cost least, and by which codec, if that is worth a change.
    fn aim(&self, fill: &Fill) -> (u32, Use) {
        let share = self.share.load(Relaxed);
        if fill.stored == 0 {
            self.pool.forget(POOL_NS);
        }
        let curve = self.ages.curve();
        let this = self.way(fill);
        let other = fill.codecs.map(|codecs| this.by_other(codecs));
        let least = |way: &Way| {
            let sizes = (0..=self.most / STEP).map(|i| i * STEP);
            let costs = sizes.map(|share| (share, self.cost(share, way, fill, &curve)));
            costs.reduce(|a, b| if b.1 < a.1 { b } else { a })
        };
        let (aim, by_this) = least(&this).unwrap_or((0, 0.0));
        // A pool of given size takes no more of that than it needs.
        let now = match self.is_given {
            true => by_this,
            false => self.cost(share, &this, fill, &curve),
        };
        let is_worth = |cost: f64| cost + now * WORTH < now;
        match other.and_then(|way| least(&way)) {
            Some((aim, cost)) if cost < by_this && is_worth(cost) => (aim, Use::Other),
            _ if is_worth(by_this) => (aim, Use::This),
            _ => (share, Use::This),
        }
    }

    /// What becomes of pages as things are.
    fn way(&self, fill: &Fill) -> Way {
        Way {
            dense: match fill.stored >= PACKED {
                // Free places between them are to be had.
                true => (fill.stored * PAGE_SIZE) as f64 / fill.bytes.max(1) as f64,
                false => 1.0 / part(&self.size).max(0.01),
            },
            compress_ns: f64::from(self.compress_ns.load(Relaxed)),
            hit_ns: self.pool.page(),
        }
    }

    /// What a page that leaves costs, in ns, with a pool that takes this share of the limit.
    fn cost(&self, share: u32, way: &Way, fill: &Fill, curve: &Curve) -> f64 {
        let limit = fill.limit.max(1) as f64;
        let (size, now) = (limit * f64::from(share) / f64::from(ONE), fill.pages as f64);
        let back = curve.ever();
        let more = match size - now {
            more if more > 0.0 => would_leave(curve, more, limit),
            less => -curve.within(-less),
        };
        let wanted = back + more;
        if share == 0 {
            return wanted * self.device.page();
        }
        let small = part(&self.small).max(0.01);
        // Those that are not stored do not take up room.
        let reach = size * way.dense / small - (size - now);
        let in_reach = (curve.within(reach.max(0.0)) + more).max(0.0);
        let hits = in_reach * small;
        let tried = (part(&self.main) + more).max(0.0);
        let in_vain = (tried * small - hits).max(0.0);
        let out = f64::from(OUT_NS);
        let pool = hits * way.hit_ns + tried * (way.compress_ns + out) + in_vain * out;
        (wanted - hits) * self.device.page() + pool * part(&self.wanted)
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
    use hugeswap_mm::PMD_NR;
    use std::collections::BTreeMap;

    const MEMORY: usize = 1280;
    /// What things take: a hit, a read, to compress a page.
    const POOL: u32 = 12_000;
    const DEVICE: u32 = 85_000;
    const COMPRESS: u64 = 10_000;

    fn fill_of(pages: usize, stored: usize) -> Fill {
        Fill {
            pages,
            stored,
            bytes: pages * PAGE_SIZE,
            limit: MEMORY as i64,
            codecs: None,
        }
    }

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
                bytes: pool.len() * PAGE_SIZE / ratio,
                ..fill_of(pool.len() / ratio, pool.len())
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
                let _ = a.come_back(pmd, one, || clock, || fill);
                let hit = pool.remove(&left[page]).is_some();
                ns += u64::from(HAND_OVER_NS + if hit { POOL } else { DEVICE });
            }
            let now = MEMORY - pool.len() / ratio;
            let had = resident + usize::from(at >= resident);
            for page in order[now.min(had)..had].iter().copied() {
                clock += 1;
                let (pmd, one) = place(page);
                let _ = a.leave(pmd, one, List::Main, clock, || fill);
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
        let at = |pages| a.brings(fill_of(pages, 0), 320);
        assert_eq!([0, 299, 300, 320, 400].map(at), [BRINGS, BRINGS, 0, 0, 0]);
        assert_eq!(a.brings(fill_of(0, 0), 0), 0);
        a.compressed(0, 0, 1000, 0);
        assert_eq!(a.brings(fill_of(0, 0), 320), 0);
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

    /// A read brings four pages, and jumps want one of them.
    #[test]
    fn what_comes_along_is_not_wanted_as_much() {
        let share = |together: usize| {
            let a = new();
            (0..3000).for_each(|_| a.device_took(together, 110_000));
            for i in 0..4000 {
                let (pmd, now) = (Pmd(i % 64), 64 * i);
                let pages = |from: usize, n| PageMask::of(from..from + n);
                let _ = a.leave(pmd, pages(0, 64), List::Main, now, || fill_of(0, 0));
                for from in (0..64).step_by(4) {
                    for at in (from..from + 4).step_by(together) {
                        let fill = || fill_of(0, 0);
                        let _ = a.come_back(pmd, pages(at, together), || now + 1300, fill);
                    }
                }
            }
            a.wanted.load(Relaxed)
        };
        assert_eq!(share(1), ONE);
        assert!((ONE / 8 * 5).abs_diff(share(4)) < ONE / 100);
    }

    /// What was measured when hardly anything was there is not kept for ever.
    #[test]
    fn hits_that_took_long_are_forgotten() {
        let a = new();
        (0..3000).for_each(|_| a.pool_took(1, 90_000));
        assert!(pool_after(&a, even) > 0, "after a while");
    }

    /// Half of the size is worth some time where reads take long, and a little of it is not.
    #[test]
    fn the_codec_is_the_one_that_costs_less() {
        let by = |bytes, out_ns| Effort {
            bytes,
            out_ns,
            back_ns: out_ns / 3,
        };
        let quick = by(1200, 4000);
        for (ratio, device, slow, is_worth) in [
            (6, 85_000, by(1100, 16_000), false),
            (3, 200_000, by(600, 16_000), true),
        ] {
            for (codecs, changes) in [([quick, slow], is_worth), ([slow, quick], !is_worth)] {
                let a = new();
                (0..3000).for_each(|_| a.device_took(1, device));
                lru(&a, even, ratio, None);
                let pool = a.most(MEMORY as i64);
                let fill = Fill {
                    codecs: Some(codecs),
                    ..fill_of(pool, ratio * pool)
                };
                let changed = a.aim(&fill).1 == Use::Other;
                assert_eq!(changed, changes, "{codecs:?}");
            }
        }
    }

    /// Pages that walks have brought in are not compressed when they leave, so that costs nothing.
    #[test]
    fn a_few_jumps_among_walks_are_worth_a_pool() {
        for (list, expected) in [(List::Main, false), (List::Walk, true)] {
            let a = new();
            for i in 0..2000 {
                let (pmd, now) = (Pmd(i % 8), 512 * i);
                let _ = a.leave(pmd, PageMask::FULL, list, now, || fill_of(0, 0));
                for page in (0..PMD_NR).step_by(32) {
                    let one = PageMask::of(page..page + 1);
                    let _ = a.come_back(pmd, one, || now + 400, || fill_of(0, 0));
                }
                let rest = PageMask::FULL;
                let _ = a.come_back(pmd, rest, || now + 500, || fill_of(0, 0));
            }
            assert_eq!(a.most(MEMORY as i64) > 0, expected, "{list:?}");
        }
    }

    #[test]
    fn what_stays_large_is_left_alone_but_tried() {
        let a = new();
        a.compressed(0, 0, 1_000_000, 1_000_000 * COMPRESS);
        let all = (0..3200).map(|i| {
            let fill = || fill_of(0, 0);
            let _ = a.leave(Pmd(i), PageMask::FULL, List::Main, 512 * i, fill);
            let _ = a.come_back(Pmd(i), PageMask::FULL, || 512 * i + 700, fill);
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
            let (pmd, now) = (Pmd(1000 + i), (1 << 20) + 512 * i);
            let _ = a.leave(pmd, PageMask::FULL, List::Main, now, || fill_of(100, 500));
        }
        assert_eq!(
            (a.most(MEMORY as i64), a.admits() == Admits::All),
            (0, false)
        );
    }
}
