//! How long single accesses took.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Times in buckets, 32 to each doubling: right within 3 %. The longest is exact.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Bucket, and how many lie in it.
    buckets: BTreeMap<u32, u64>,
    max_ns: u64,
}

const SUB: u64 = 32;

fn bucket(ns: u64) -> u32 {
    if ns < SUB {
        return ns as u32;
    }
    let shift = 63 - ns.leading_zeros() - SUB.trailing_zeros();
    (u64::from(shift) * SUB + (ns >> shift)) as u32
}

/// The largest time in the bucket, in nanoseconds.
fn end(bucket: u32) -> u64 {
    let bucket = u64::from(bucket);
    if bucket < 2 * SUB {
        return bucket;
    }
    let shift = bucket / SUB - 1;
    // Of the last bucket this is one more than there are numbers.
    ((bucket - shift * SUB + 1) << shift).wrapping_sub(1)
}

impl Latency {
    pub fn record(&mut self, time: Duration) {
        let ns = time.as_nanos().min(u128::from(u64::MAX)) as u64;
        *self.buckets.entry(bucket(ns)).or_default() += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    pub fn merge(&mut self, other: &Latency) {
        for (bucket, count) in &other.buckets {
            *self.buckets.entry(*bucket).or_default() += count;
        }
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    pub fn count(&self) -> u64 {
        self.buckets.values().sum()
    }

    /// The time within which the share `q` of the accesses was done, in nanoseconds.
    pub fn quantile(&self, q: f64) -> u64 {
        let wanted = (self.count() as f64 * q).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in &self.buckets {
            seen += count;
            if seen >= wanted {
                return end(*bucket).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// Times in microseconds, and the share of the accesses that was done by then.
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let all = self.count() as f64;
        let mut seen = 0;
        self.buckets
            .iter()
            .map(|(bucket, count)| {
                seen += count;
                (
                    end(*bucket).min(self.max_ns) as f64 / 1e3,
                    seen as f64 / all,
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_all_times() {
        let mut last = 0;
        for ns in (0..200_000u64).chain([1 << 40, u64::MAX]) {
            let b = bucket(ns);
            assert!(b >= last && end(b) >= ns, "{ns}");
            assert!((end(b) - ns) as f64 <= ns as f64 / SUB as f64 + 1.0, "{ns}");
            last = b;
        }
    }

    #[test]
    fn quantiles() {
        let mut latency = Latency::default();
        assert_eq!(latency.quantile(0.5), 0);
        for micros in 1..=10_000 {
            latency.record(Duration::from_micros(micros));
        }
        for (q, wanted) in [(0.5, 5e6), (0.99, 9.9e6), (0.999, 9.99e6)] {
            let got = latency.quantile(q) as f64;
            assert!((got / wanted - 1.0).abs() < 0.035, "{q}: {got}");
        }
        assert_eq!(latency.quantile(1.0), 10_000_000);
        let mut twice = latency.clone();
        twice.merge(&latency);
        assert_eq!(twice.count(), 20_000);
        assert_eq!(twice.quantile(0.5), latency.quantile(0.5));
        assert_eq!(latency.curve().last(), Some(&(10_000.0, 1.0)));
        let line = serde_json::to_string(&latency).unwrap();
        assert_eq!(serde_json::from_str::<Latency>(&line).unwrap(), latency);
    }
}
