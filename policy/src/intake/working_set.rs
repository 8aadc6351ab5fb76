//! Whether the ranges in which a program jumps fit into memory as wholes.
//!
//! Where they do, a range that has had several faults is brought in altogether, and is one huge page
//! from then on: its next faults would come one by one, and nothing is lost by having it. Where they
//! do not, each page that nobody asked for takes the place of one that somebody will.
//!
//! The number of ranges that the faults meet is a guess: resident ranges do not fault. What speaks
//! against it is
//! ranges that come back soon after they left. That stays known after a wrong guess, and shows
//! while one is made.

use hugeswap_mm::PMD_NR;

/// Faults after which the rest of a range comes too.
const MANY: u8 = 8;
/// The least faults of an epoch, and the most.
const EPOCH: (i64, i64) = (64, 1 << 20);
/// Epochs that must fit, one after another.
const STEADY: usize = 2;
/// Threads that are told apart.
const THREADS: usize = 8;
/// Epochs after which a thread that had faults is taken to have none any more. Of several threads
/// one may have the processors to itself for a while, and alone it meets fewer ranges.
const ABSENT: u32 = 32;
/// What one range that comes back soon weighs, and how many faults without one halve what is known, nearly.
const BACK: u32 = 2;
const FORGET: u32 = 1024;
const CERTAIN: u32 = 1 << 16;
/// The fewest epochs to let pass after a wrong guess, and the most.
const PENALTY: (u32, u32) = (16, 4096);

/// Small fills of a range since it last left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fills {
    /// Of the working set's, in which the last was.
    pub epoch: u16,
    pub count: u8,
}

/// A page that has to be read.
pub struct Miss<'g> {
    /// Of its range.
    pub fills: &'g mut Fills,
    /// It is the first of them since the range left, and that was not long ago.
    pub left_lately: bool,
}

pub struct WorkingSet {
    /// Counts from 1; a range that was never filled has 0.
    epoch: u16,
    left: u32,
    /// Ranges that had faults in this epoch.
    ranges: u32,
    /// The threads that had them, and how many had some in one of the last epochs.
    threads: [u32; THREADS],
    usual: usize,
    /// Epochs since it was so many.
    fewer: u32,
    /// How many ranges were seen in each of the last epochs, the latest first.
    ranges_seen: [u32; STEADY],
    /// The most of these fit.
    fits: bool,
    /// Ranges come back that left lately: an average that forgets, of `CERTAIN`.
    back: u32,
    /// Ranges that may be brought in before it must have shown.
    credit: u32,
    /// When that began, and how long faults have been waited for since.
    since_ns: u64,
    waited_ns: u64,
    /// Epochs to let pass after it did not, and how many the next time.
    pause: u32,
    penalty: u32,
}

impl Default for WorkingSet {
    fn default() -> WorkingSet {
        WorkingSet {
            epoch: 0,
            left: 0,
            ranges: 0,
            threads: [0; THREADS],
            usual: 0,
            fewer: 0,
            ranges_seen: [u32::MAX; STEADY],
            fits: false,
            back: 0,
            credit: 0,
            since_ns: 0,
            waited_ns: 0,
            pause: 0,
            penalty: PENALTY.0,
        }
    }
}

impl WorkingSet {
    /// Notes a fault of a jump of thread `tid`, with so many pages allowed. True if all of the range is
    /// wanted.
    pub fn jumped(&mut self, tid: u32, miss: Miss, limit: i64, now_ns: u64) -> bool {
        let fills = miss.fills;
        self.back = match miss.left_lately {
            true => self.back + (CERTAIN - self.back) / BACK,
            false => self.back - self.back.div_ceil(FORGET),
        };
        if self.left == 0 {
            self.next_epoch(limit / PMD_NR as i64, now_ns);
        }
        self.left -= 1;
        if let Some(place) = self.threads.iter_mut().find(|t| **t == tid || **t == 0) {
            *place = tid;
        }
        if fills.epoch != self.epoch {
            fills.epoch = self.epoch;
            self.ranges += 1;
        }
        fills.count = fills.count.saturating_add(1);
        if !self.fits || self.pause > 0 || fills.count < MANY || self.back > CERTAIN / 2 {
            return false;
        }
        if self.credit == 0 && self.waits_still(now_ns) {
            // What is resident is wanted as well, and does not fault while it is.
            self.pause = self.penalty;
            self.penalty = (self.penalty * 2).min(PENALTY.1);
            return false;
        }
        if self.credit == 0 {
            self.grant(now_ns);
        }
        self.credit -= 1;
        true
    }

    /// A fault was waited for that long.
    pub fn waited(&mut self, ns: u64) {
        self.waited_ns += ns;
    }

    /// Half of the time went by in waiting, though all that was wanted should be here.
    fn waits_still(&self, now_ns: u64) -> bool {
        self.waited_ns * 2 > now_ns.saturating_sub(self.since_ns)
    }

    /// The ranges that the program jumps about in, as far as is known.
    fn known(&self) -> u32 {
        self.ranges_seen.into_iter().max().unwrap_or(u32::MAX)
    }

    fn grant(&mut self, now_ns: u64) {
        let ranges = self.known();
        self.credit = ranges + ranges / 4 + u32::from(MANY);
        self.since_ns = now_ns;
        self.waited_ns = 0;
    }

    /// In this epoch all threads had faults that have had them lately.
    fn all_took_part(&mut self) -> bool {
        let threads = self.threads.iter().filter(|t| **t != 0).count();
        self.threads = [0; THREADS];
        self.fewer += 1;
        if threads >= self.usual || self.fewer > ABSENT {
            self.usual = threads;
            self.fewer = 0;
        }
        threads >= self.usual
    }

    /// Twice as many faults as ranges fit: jumps over twice the memory meet more ranges than that
    /// meanwhile.
    fn next_epoch(&mut self, room: i64, now_ns: u64) {
        if self.epoch > 0 {
            self.ranges_seen.rotate_right(1);
            self.ranges_seen[0] = if self.all_took_part() {
                self.ranges
            } else {
                u32::MAX
            };
        }
        let fits = i64::from(self.known()) * 4 <= room * 3;
        let paused = self.pause > 0;
        self.pause = self.pause.saturating_sub(1);
        if self.fits && !fits && !paused && !self.waits_still(now_ns) {
            // It was right, and something else begins.
            self.penalty = PENALTY.0;
            self.credit = 0;
        }
        if fits && (paused && self.pause == 0 || !paused && self.credit == 0 && !self.fits) {
            self.grant(now_ns);
        }
        self.fits = fits;
        self.epoch = self.epoch.checked_add(1).unwrap_or(1);
        self.left = (2 * room).clamp(EPOCH.0, EPOCH.1) as u32;
        self.ranges = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ_NS: u64 = 50_000;

    fn first(fills: &mut Fills) -> Miss<'_> {
        Miss {
            fills,
            left_lately: false,
        }
    }

    /// Jumps over so many ranges, of which `room` fit: the share that want all, of the first half of
    /// them and of the second.
    fn wanted(ranges: usize, room: usize) -> [f64; 2] {
        let mut set = WorkingSet::default();
        let mut fills = vec![Fills::default(); ranges];
        // Pages that are resident, and who came last.
        let mut resident = vec![0; ranges];
        let mut order: std::collections::VecDeque<usize> = (0..room).collect();
        order.iter().for_each(|&r| resident[r] = PMD_NR);
        let (mut x, mut now) = (1u64, 0);
        let mut all = [0; 2];
        let n = 2000 * room;
        for i in 0..n {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
            let at = (x >> 33) as usize % ranges;
            now += 100;
            if (x >> 20) as usize % PMD_NR < resident[at] {
                continue;
            }
            let whole = set.jumped(1, first(&mut fills[at]), (room * PMD_NR) as i64, now);
            all[i * 2 / n] += usize::from(whole);
            let took = if whole { 20 * READ_NS } else { READ_NS };
            now += took;
            set.waited(took);
            if resident[at] == 0 {
                order.push_back(at);
            }
            resident[at] = if whole { PMD_NR } else { resident[at] + 1 };
            while resident.iter().sum::<usize>() > room * PMD_NR {
                let gone = order.pop_front().unwrap();
                resident[gone] = 0;
                fills[gone].count = 0;
            }
        }
        all.map(|a| a as f64 / (n / 2) as f64)
    }

    #[test]
    fn all_is_wanted_where_all_fits() {
        // The first ranges are resident, and not wanted any more.
        let mut set = WorkingSet::default();
        let mut fills = [Fills::default(); 32];
        let mut now = 0;
        let mut whole = 0;
        for i in 0..2000 {
            now += READ_NS;
            whole += usize::from(set.jumped(1, first(&mut fills[i % 32]), 64 * PMD_NR as i64, now));
            if whole == 32 {
                break;
            }
        }
        assert_eq!(whole, 32);
    }

    #[test]
    fn little_is_wanted_where_it_does_not_fit() {
        for (ranges, room) in [(48, 32), (36, 32), (64, 32), (640, 32), (160, 128)] {
            let [first, second] = wanted(ranges, room);
            assert!(
                first < 0.02 && second < 0.004,
                "{ranges} {room}: {first} {second}"
            );
        }
    }

    /// Two threads jump about in 32 ranges each, and for a while only one of them gets to run.
    #[test]
    fn one_thread_of_two_alone_proves_nothing() {
        let mut set = WorkingSet::default();
        let mut fills = [Fills::default(); 64];
        let mut x = 1u64;
        for i in 0..40 * 128 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
            let alone = i / 128 % 32 > 2;
            let at = (x >> 33) as usize % if alone { 32 } else { 64 };
            let tid = 1 + at as u32 / 32;
            let whole = set.jumped(tid, first(&mut fills[at]), 64 * PMD_NR as i64, i * READ_NS);
            assert!(!whole, "{i}");
        }
    }

    #[test]
    fn a_thread_that_ended_is_not_waited_for() {
        let mut set = WorkingSet::default();
        let mut fills = [Fills::default(); 32];
        let mut whole = |tid: u32, i: u64| {
            let at = i as usize % 32;
            set.jumped(tid, first(&mut fills[at]), 64 * PMD_NR as i64, i * READ_NS)
        };
        assert!(!(0..128).any(|i| whole(i as u32 % 2 + 1, i)));
        assert!((128..50 * 128).any(|i| whole(1, i)));
    }

    /// One range in which a single page was wanted is left alone.
    #[test]
    fn what_was_wanted_once_stays() {
        let limit = 64 * PMD_NR as i64;
        let mut set = WorkingSet::default();
        let mut hot = Fills::default();
        for _ in 0..800 {
            set.jumped(1, first(&mut hot), limit, 0);
        }
        assert!(!set.jumped(1, first(&mut Fills::default()), limit, 0));
        assert!(set.jumped(1, first(&mut hot), limit, 0));
    }

    /// Few ranges are met at a time, but those that leave come back: then there are others that are
    /// resident and wanted.
    #[test]
    fn what_comes_back_soon_does_not_fit() {
        let limit = 64 * PMD_NR as i64;
        let mut set = WorkingSet::default();
        let mut fills = [Fills::default(); 32];
        let mut now = 0;
        let mut whole = |faults: u64, each: u64| {
            let mut whole = 0;
            for i in 0..faults {
                now += READ_NS;
                let fills = &mut fills[i as usize % 32];
                let left_lately = each > 0 && i % each == 0;
                if left_lately {
                    fills.count = 0;
                }
                let miss = Miss { fills, left_lately };
                whole += usize::from(set.jumped(1, miss, limit, now));
            }
            whole
        };
        // Ranges that leave in parts come back more often than once in 512 faults.
        assert_eq!(whole(100, 7), 0);
        assert_eq!(whole(200_000, 256), 0);
        // And when nothing comes back any more, it may be tried.
        assert!(whole(6000, 0) > 32);
    }
}
