//! Which codec the next page gets. Pure.
//!
//! Now and then a page is compressed by both, and what comes of it is remembered: sizes and times. Zstandard
//! makes a page of a real program about half as large as LZ4 does, and takes some 15 microseconds more for it.
//! A page that does not become small enough by LZ4 often does so by Zstandard: as long as that is so it is tried.
//! Where there is no device Zstandard is taken if it saves enough. Beside a device the owner of the pool says which is better:
//! that depends on what a read takes, and on which pages are wanted.

use super::codec::Codec;
use core::sync::atomic::{AtomicU32, AtomicU8, Ordering::Relaxed};

/// So many of the first pages are compressed by both, and later one in so many.
const FIRST: u32 = 64;
const PROBE: u32 = 64;
/// Averages forget: this many probes count as much as all before.
const MEMORY: u64 = 64;
/// Of what a page takes with LZ4 at least this part must be saved.
const SAVES_PART: u32 = 5;
/// Where LZ4 has failed Zstandard is tried, as long as one in so many pages becomes small enough by it; and otherwise for one in
/// so many. So many tries count as much as all before.
const AGAIN_PART: u32 = 8;
const AGAIN_PROBE: u32 = 16;
const AGAIN_MEMORY: u64 = 32;
/// What "all" is in an average.
const ONE: u32 = 1 << 16;
/// What Zstandard may take longer than LZ4, out and back, where there is no device.
const LONGER_NS: u32 = 25_000;

/// What came of a page: bytes, and nanoseconds of processor time to make it, and to get it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    pub bytes: u32,
    pub out_ns: u32,
    pub back_ns: u32,
}

#[derive(Default)]
struct Average {
    bytes: AtomicU32,
    out_ns: AtomicU32,
    back_ns: AtomicU32,
}

impl Average {
    fn add(&self, outcome: Outcome, first: bool) {
        let memory = if first { 1 } else { MEMORY };
        mix(&self.bytes, outcome.bytes, memory);
        mix(&self.out_ns, outcome.out_ns, memory);
        mix(&self.back_ns, outcome.back_ns, memory);
    }

    fn get(&self) -> Outcome {
        Outcome {
            bytes: self.bytes.load(Relaxed),
            out_ns: self.out_ns.load(Relaxed),
            back_ns: self.back_ns.load(Relaxed),
        }
    }
}

/// The average with this value more, where `memory` of them count.
fn mix(average: &AtomicU32, value: u32, memory: u64) {
    let old = u64::from(average.load(Relaxed));
    let new = (old * (memory - 1) + u64::from(value)) / memory;
    average.store(new as u32, Relaxed);
}

/// Only the reclaim thread learns.
pub struct Choice {
    /// As the user wants it.
    fixed: Option<Codec>,
    /// As the pool's owner has said, by its number.
    told: AtomicU8,
    pages: AtomicU32,
    probes: AtomicU32,
    lz4: Average,
    zstd: Average,
    /// Pages for which LZ4 has failed, and the part of them that became small by Zstandard.
    failed: AtomicU32,
    small_after: AtomicU32,
}

/// Nobody has said anything.
const NOT_TOLD: u8 = u8::MAX;

impl Choice {
    pub fn new(fixed: Option<Codec>) -> Choice {
        Choice {
            fixed,
            told: AtomicU8::new(NOT_TOLD),
            pages: AtomicU32::new(0),
            probes: AtomicU32::new(0),
            lz4: Average::default(),
            zstd: Average::default(),
            failed: AtomicU32::new(0),
            small_after: AtomicU32::new(ONE / AGAIN_PART),
        }
    }

    /// What has come of the codec in use, and of the other. None where that is not known, or where there is no choice.
    pub fn outcomes(&self) -> Option<[Outcome; 2]> {
        if self.fixed.is_some() || self.probes.load(Relaxed) == 0 {
            return None;
        }
        let (lz4, zstd) = (self.lz4.get(), self.zstd.get());
        match self.codec() {
            Codec::Zstd => Some([zstd, lz4]),
            _ => Some([lz4, zstd]),
        }
    }

    /// The next pages are for the codec that is not in use.
    pub fn take_other(&self) {
        let other = match self.codec() {
            Codec::Zstd => Codec::Lz4,
            _ => Codec::Zstd,
        };
        self.told.store(other as u8, Relaxed);
    }

    /// Whether the next page is to be compressed by both.
    pub fn probes(&self) -> bool {
        let n = self.pages.fetch_add(1, Relaxed);
        self.fixed.is_none() && (n < FIRST || n % PROBE == 0)
    }

    /// Whether a page for which LZ4 has failed is to be tried by Zstandard.
    pub fn tries_again(&self) -> bool {
        let n = self.failed.fetch_add(1, Relaxed);
        let pays = self.small_after.load(Relaxed) >= ONE / AGAIN_PART;
        self.fixed.is_none() && (pays || n % AGAIN_PROBE == 0)
    }

    /// That was done.
    pub fn tried_again(&self, is_small: bool) {
        let value = if is_small { ONE } else { 0 };
        mix(&self.small_after, value, AGAIN_MEMORY);
    }

    /// A page was compressed by both.
    pub fn learn(&self, lz4: Outcome, zstd: Outcome) {
        let first = self.probes.fetch_add(1, Relaxed) == 0;
        self.lz4.add(lz4, first);
        self.zstd.add(zstd, first);
    }

    pub fn codec(&self) -> Codec {
        let told = || Codec::from_number(self.told.load(Relaxed));
        self.fixed
            .or_else(told)
            .unwrap_or_else(|| self.best_alone())
    }

    /// Zstandard, if it saves enough and is quick enough.
    fn best_alone(&self) -> Codec {
        let (lz4, zstd) = (self.lz4.get(), self.zstd.get());
        let saves = zstd.bytes + lz4.bytes / SAVES_PART <= lz4.bytes && lz4.bytes > 0;
        let ns = |o: Outcome| o.out_ns.saturating_add(o.back_ns);
        match saves && ns(zstd) <= ns(lz4).saturating_add(LONGER_NS) {
            true => Codec::Zstd,
            false => Codec::Lz4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(bytes: u32, ns: u32) -> Outcome {
        Outcome {
            bytes,
            out_ns: ns / 3 * 2,
            back_ns: ns / 3,
        }
    }

    fn learn(c: &Choice, n: usize, lz4: Outcome, zstd: Outcome) {
        (0..n).for_each(|_| c.learn(lz4, zstd));
    }

    #[test]
    fn what_saves_enough_is_taken() {
        let c = Choice::new(None);
        assert_eq!(c.codec(), Codec::Lz4);
        learn(&c, 10, outcome(1300, 3000), outcome(600, 12_000));
        assert_eq!(c.codec(), Codec::Zstd);
        learn(&c, 500, outcome(1300, 3000), outcome(1200, 12_000));
        assert_eq!(c.codec(), Codec::Lz4);
    }

    #[test]
    fn what_takes_too_long_is_not() {
        let c = Choice::new(None);
        learn(&c, 10, outcome(1300, 3000), outcome(600, 90_000));
        assert_eq!(c.codec(), Codec::Lz4);
        learn(&c, 500, outcome(1300, 3000), outcome(600, 12_000));
        assert_eq!(c.codec(), Codec::Zstd);
    }

    #[test]
    fn what_was_said_holds() {
        let c = Choice::new(None);
        assert_eq!(c.outcomes(), None);
        let (lz4, zstd) = (outcome(1300, 3000), outcome(600, 12_000));
        learn(&c, 10, lz4, zstd);
        assert_eq!((c.codec(), c.outcomes()), (Codec::Zstd, Some([zstd, lz4])));
        c.take_other();
        assert_eq!((c.codec(), c.outcomes()), (Codec::Lz4, Some([lz4, zstd])));
        learn(&c, 10, lz4, zstd);
        assert_eq!(c.codec(), Codec::Lz4);
        c.take_other();
        assert_eq!(c.codec(), Codec::Zstd);
    }

    #[test]
    fn what_fails_is_tried_again_as_long_as_something_comes_of_it() {
        let tried = |c: &Choice, is_small: bool| {
            let all = (0..1600).filter(|_| c.tries_again());
            all.map(|_| c.tried_again(is_small)).count()
        };
        let c = Choice::new(None);
        assert_eq!(tried(&c, true), 1600);
        assert!((100..240).contains(&tried(&c, false)));
        assert_eq!(tried(&c, false), 100);
        assert!(tried(&c, true) > 1400);
        assert_eq!(tried(&Choice::new(Some(Codec::Lz4)), true), 0);
    }

    #[test]
    fn it_is_looked_at_again() {
        let c = Choice::new(None);
        let probes = (0..64 * 101).filter(|_| c.probes()).count();
        assert_eq!(probes, 64 + 100);
        let c = Choice::new(Some(Codec::Zstd));
        assert!((0..1000).all(|_| !c.probes()));
        learn(&c, 10, outcome(1300, 3000), outcome(1300, 90_000));
        assert_eq!((c.codec(), c.outcomes()), (Codec::Zstd, None));
    }
}
