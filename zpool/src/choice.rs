//! Which codec the next page gets. Pure.
//!
//! Now and then a page is compressed by both, and what comes of it is remembered: sizes and times. Zstandard
//! makes a page of a real program about half as large as LZ4 does, and takes some 15 microseconds more for it.
//! What memory it saves holds other pages, and then some faults need no read that would. So it is taken where
//! that saves more time than it takes: beside a slow device, and where there is none.

use super::codec::Codec;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// So many of the first pages are compressed by both, and later one in so many.
const FIRST: u32 = 64;
const PROBE: u32 = 64;
/// Averages forget: this many probes count as much as all before.
const MEMORY: u64 = 64;
/// Of what a page takes with LZ4 at least this part must be saved.
const SAVES_PART: u32 = 5;
/// What Zstandard may take longer than LZ4, out and back, where there is no device.
const LONGER_NS: u32 = 25_000;
/// Of the pages for which it makes room, one in so many saves a read before it has to be compressed again. (A
/// dictionary in half of its memory: pages at 0.13 of their size in place of 0.30, and a fifth fewer faults that read.)
const SAVED_PART: u32 = 3;

/// What came of a page: bytes, and nanoseconds to make it, and to get it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    pub bytes: u32,
    pub ns: u32,
}

#[derive(Default)]
struct Average {
    bytes: AtomicU32,
    ns: AtomicU32,
}

impl Average {
    fn add(&self, outcome: Outcome, first: bool) {
        mix(&self.bytes, outcome.bytes, first);
        mix(&self.ns, outcome.ns, first);
    }
}

fn mix(average: &AtomicU32, value: u32, first: bool) {
    let (old, value) = (u64::from(average.load(Relaxed)), u64::from(value));
    let new = match first {
        true => value,
        false => (old * (MEMORY - 1) + value) / MEMORY,
    };
    average.store(new as u32, Relaxed);
}

/// Only the reclaim thread changes it.
pub struct Choice {
    /// As the user wants it.
    fixed: Option<Codec>,
    pages: AtomicU32,
    probes: AtomicU32,
    lz4: Average,
    zstd: Average,
    /// What a fault takes that has to read; 0 where there is nowhere to read from.
    read_ns: AtomicU32,
}

impl Choice {
    pub fn new(fixed: Option<Codec>) -> Choice {
        Choice {
            fixed,
            pages: AtomicU32::new(0),
            probes: AtomicU32::new(0),
            lz4: Average::default(),
            zstd: Average::default(),
            read_ns: AtomicU32::new(0),
        }
    }

    /// A fault takes so long that has to read.
    pub fn reads_take(&self, ns: u32) {
        self.read_ns.store(ns, Relaxed);
    }

    /// Whether the next page is to be compressed by both.
    pub fn probes(&self) -> bool {
        let n = self.pages.fetch_add(1, Relaxed);
        self.fixed.is_none() && (n < FIRST || n % PROBE == 0)
    }

    /// A page was compressed by both.
    pub fn learn(&self, lz4: Outcome, zstd: Outcome) {
        let first = self.probes.fetch_add(1, Relaxed) == 0;
        self.lz4.add(lz4, first);
        self.zstd.add(zstd, first);
    }

    pub fn codec(&self) -> Codec {
        if let Some(codec) = self.fixed {
            return codec;
        }
        let load = |a: &Average| (a.bytes.load(Relaxed), a.ns.load(Relaxed));
        let ((quick, quick_ns), (small, small_ns)) = (load(&self.lz4), load(&self.zstd));
        let saves = small + quick / SAVES_PART <= quick && quick > 0;
        if !saves {
            return Codec::Lz4;
        }
        let longer = match self.read_ns.load(Relaxed) {
            0 => LONGER_NS,
            ns => (u64::from(ns) * u64::from(quick - small) / u64::from(quick * SAVED_PART)) as u32,
        };
        match small_ns <= quick_ns.saturating_add(longer) {
            true => Codec::Zstd,
            false => Codec::Lz4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(bytes: u32, ns: u32) -> Outcome {
        Outcome { bytes, ns }
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
    fn beside_a_quick_device_it_takes_too_long() {
        let c = Choice::new(None);
        learn(&c, 10, outcome(1300, 3000), outcome(600, 18_000));
        assert_eq!(c.codec(), Codec::Zstd);
        for (read_ns, codec) in [
            (30_000, Codec::Lz4),
            (60_000, Codec::Lz4),
            (120_000, Codec::Zstd),
            (1_000_000, Codec::Zstd),
            (u32::MAX, Codec::Zstd),
        ] {
            c.reads_take(read_ns);
            assert_eq!(c.codec(), codec, "{read_ns}");
        }
    }

    #[test]
    fn it_is_looked_at_again() {
        let c = Choice::new(None);
        let probes = (0..64 * 101).filter(|_| c.probes()).count();
        assert_eq!(probes, 64 + 100);
        let c = Choice::new(Some(Codec::Zstd));
        assert!((0..1000).all(|_| !c.probes()));
        learn(&c, 10, outcome(1300, 3000), outcome(1300, 90_000));
        assert_eq!(c.codec(), Codec::Zstd);
    }
}
