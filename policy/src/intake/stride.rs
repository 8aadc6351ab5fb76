//! Threads that go through memory in steps of more than a few pages.
//!
//! A walk (`stream`) touches what lies beside; a stride leaves most of it out, as who reads one column
//! of a table row by row. Each thread's last fault is remembered, and the step from it. Pages that are
//! resident do not fault, so a step is seen as itself or as a multiple; what two such have in common
//! is the step. Steps that repeat bring in what comes next, 4, 8, 16, up to 128 pages of it, so that
//! a disk has something to do beside what is waited for; the first that does not fit ends it.

use super::stream::number;
use hugeswap_mm::{PageMask, Pmd, PMD_NR};

const THREADS: usize = 16;
/// A longer step than 16 MiB is a jump.
const STEP_MAX: u64 = 4096;
/// A shorter one is a walk.
const STEP_MIN: u64 = 5;
/// Steps over resident pages that a stride can pass without a fault.
const PASS_MAX: u64 = 64;
/// Repetitions before it is believed: jumps share a step of 5 pages or more one time in eight.
const REPEAT: u32 = 3;
const PAGES_MAX: u32 = 128;

#[derive(Clone, Copy, Default)]
struct Thread {
    tid: u32,
    /// Number of the page that faulted last, over all memory.
    at: u64,
    /// The step, as far as is known; 0 for none.
    step: i64,
    /// Times that it was repeated.
    times: u32,
    /// Pages that were brought in beyond `at`.
    beyond: u32,
}

#[derive(Default)]
pub struct Strides {
    threads: [Thread; THREADS],
    next: usize,
}

/// Where a thread will be next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stride {
    /// In pages.
    pub step: i64,
    /// Steps to bring in beyond this one.
    pub beyond: u32,
    /// Of those brought in the last time, how many were passed.
    pub passed: u32,
}

impl Stride {
    /// The pages, numbered over all memory, that come after this one.
    fn after(self, pmd: Pmd, page: usize) -> impl Iterator<Item = i64> {
        let at = number(pmd, page) as i64;
        (1..=i64::from(self.beyond)).map(move |k| at + k * self.step)
    }

    /// The ranges that they are in, as often as they have pages of them.
    pub fn ranges(self, pmd: Pmd, page: usize) -> impl Iterator<Item = Pmd> {
        let of = |at: i64| u32::try_from(at.div_euclid(PMD_NR as i64)).ok();
        self.after(pmd, page).map_while(of).map(Pmd)
    }

    /// Those of them that are in `range`.
    pub fn pages_of(self, pmd: Pmd, page: usize, range: Pmd) -> PageMask {
        let first = i64::from(range.0) * PMD_NR as i64;
        let mut pages = PageMask::EMPTY;
        for at in self.after(pmd, page) {
            if (0..PMD_NR as i64).contains(&(at - first)) {
                pages.insert((at - first) as usize);
            }
        }
        pages
    }
}

impl Strides {
    /// The thread's fault at page `at` was part of a walk.
    pub fn walks(&mut self, tid: u32, at: u64) {
        if let Some(t) = self.threads.iter_mut().find(|t| t.tid == tid) {
            *t = Thread {
                tid,
                at,
                ..Thread::default()
            };
        }
    }

    /// Where the thread that faulted at page `at` goes on, if it strides.
    pub fn seen(&mut self, tid: u32, at: u64) -> Option<Stride> {
        let known = self.threads.iter().position(|t| t.tid == tid);
        let i = known.unwrap_or_else(|| {
            self.next = (self.next + 1) % THREADS;
            self.threads[self.next] = Thread {
                tid,
                at,
                ..Thread::default()
            };
            self.next
        });
        self.threads[i].faults(at)
    }
}

impl Thread {
    fn faults(&mut self, at: u64) -> Option<Stride> {
        let moved = at as i64 - self.at as i64;
        if moved == 0 {
            return None;
        }
        self.at = at;
        let beyond = core::mem::take(&mut self.beyond);
        if self.goes_on(moved, beyond) {
            self.times = self.times.saturating_add(1);
        } else {
            self.step = self.common(moved);
            self.times = 0;
        }
        let more = self.times.checked_sub(REPEAT)?;
        self.beyond = (4 << more.min(5)).min(PAGES_MAX);
        Some(Stride {
            step: self.step,
            beyond: self.beyond,
            passed: beyond,
        })
    }

    fn goes_on(&self, moved: i64, beyond: u32) -> bool {
        self.step != 0
            && moved % self.step == 0
            && (1..=(PASS_MAX + u64::from(beyond)) as i64).contains(&(moved / self.step))
    }

    /// The largest step of which both the last and this one are multiples; else this one.
    fn common(&self, moved: i64) -> i64 {
        if moved.unsigned_abs() > STEP_MAX {
            return 0;
        }
        let both = gcd(moved.unsigned_abs(), self.step.unsigned_abs());
        let step = if self.step.signum() == moved.signum() && both >= STEP_MIN {
            both
        } else {
            moved.unsigned_abs()
        };
        if step < STEP_MIN {
            return 0;
        }
        step as i64 * moved.signum()
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults of one thread that touches `pages` in this order and has those of `there` resident;
    /// how many of its pages did not come alone.
    fn ahead(pages: impl Iterator<Item = u64>, there: impl Fn(u64) -> bool) -> (usize, usize) {
        let mut strides = Strides::default();
        let mut brought = std::collections::HashSet::new();
        let (mut hits, mut faults) = (0, 0);
        for page in pages {
            if brought.contains(&page) {
                hits += 1;
            } else if !there(page) {
                faults += 1;
                if let Some(s) = strides.seen(7, page) {
                    let beyond = (1..=i64::from(s.beyond)).map(|k| page as i64 + k * s.step);
                    brought.extend(beyond.map(|p| p as u64));
                }
            }
        }
        (hits, faults)
    }

    #[test]
    fn strides_up_and_down() {
        for step in [5, 8, 16, 33, 512, 4000] {
            let (hits, faults) = ahead((0..1000).map(|k| k * step), |_| false);
            assert!(hits > 950 && faults < 50, "{step}: {hits} {faults}");
            let (hits, _) = ahead((0..1000).rev().map(|k| k * step), |_| false);
            assert!(hits > 950, "{step}: {hits}");
        }
    }

    #[test]
    fn what_is_resident_is_passed() {
        // Every other step, and at random half of them.
        let (hits, faults) = ahead((0..1000).map(|k| k * 24), |p| p / 24 % 2 == 1);
        assert!(hits > 450 && faults < 40, "{hits} {faults}");
        let (hits, faults) = ahead((0..1000).map(|k| k * 24), |p| mix(p) % 2 == 1);
        assert!(hits > 400 && faults < 80, "{hits} {faults}");
    }

    #[test]
    fn jumps_are_no_strides() {
        for pages in [3_000, 65_536, 10_000_000] {
            let mut strides = Strides::default();
            let jumps = (0..100_000).filter_map(|k| strides.seen(1, mix(k) % pages));
            let wrong = jumps.count();
            assert!(wrong < 100, "{pages}: {wrong}");
        }
    }

    #[test]
    fn two_threads_are_told_apart() {
        let mut strides = Strides::default();
        for k in 0..20 {
            strides.seen(1, k * 40);
            strides.seen(2, 1_000_000 - k * 7);
        }
        let beyond = PAGES_MAX;
        let first = strides.seen(1, 20 * 40).unwrap();
        assert_eq!((first.step, first.beyond), (40, beyond));
        let second = strides.seen(2, 1_000_000 - 20 * 7).unwrap();
        assert_eq!((second.step, second.beyond), (-7, beyond));
    }

    fn mix(x: u64) -> u64 {
        let x = (x ^ x >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^ x >> 32
    }
}
