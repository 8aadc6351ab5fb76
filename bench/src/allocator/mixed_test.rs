//! The longer test of our own: folios of all orders, some short-lived and some
//! long-lived, given back whole or in pieces, on a device that stays a given
//! part full.

use super::linux612::ORDERS;
use super::slots::{Algorithm, Header, Slots};
use hugeswap_mm::{Extent, Extents, PAGE_SIZE};
use std::time::Instant;

/// How often each order comes, of 1000: much small, some 64 KiB and 2 MiB, as
/// a system with every folio size enabled swaps out.
pub const WEIGHTS: [u32; ORDERS] = [400, 80, 100, 80, 140, 60, 50, 40, 30, 20];

/// How the test is run.
#[derive(Clone, Copy, Debug)]
pub struct MixedConfig {
    pub device_bytes: u64,
    /// How full the device is held, in percent.
    pub full_percent: u32,
    /// Allocations and frees, after the device was filled.
    pub operations: u64,
    pub algorithm: Algorithm,
    pub seed: u64,
}

impl MixedConfig {
    /// A device of 1 GiB and ten million operations.
    pub fn new(full_percent: u32) -> Self {
        MixedConfig {
            device_bytes: 1 << 30,
            full_percent,
            operations: 10_000_000,
            algorithm: Algorithm::HugeSwap,
            seed: 0x9e37_79b9_7f4a_7c15,
        }
    }
}

/// What happened to one order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MixedOrder {
    pub placed: u64,
    /// In one extent.
    pub whole: u64,
    pub extents: u64,
    /// Refused although enough slots were free.
    pub failed: u64,
}

impl MixedOrder {
    pub fn extents_per_folio(&self) -> f64 {
        self.extents as f64 / self.placed.max(1) as f64
    }

    pub fn success_percent(&self) -> f64 {
        let all = self.placed + self.failed;
        self.placed as f64 / all.max(1) as f64 * 100.0
    }
}

/// Nanoseconds per operation, the clock's own time taken off.
#[derive(Clone, Copy, Debug, Default)]
pub struct Percentiles {
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}

/// What the test found.
#[derive(Clone, Debug)]
pub struct MixedReport {
    pub orders: [MixedOrder; ORDERS],
    pub alloc: Percentiles,
    pub free: Percentiles,
    pub operations: u64,
}

struct XorShift(u64);

impl XorShift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn order(&mut self) -> usize {
        let mut at = self.below(1000) as u32;
        for (order, weight) in (0..ORDERS).zip(WEIGHTS) {
            if at < weight {
                return order;
            }
            at -= weight;
        }
        0
    }
}

/// A histogram in steps of about 3 %: no memory in proportion to the samples.
struct Histogram {
    counts: Vec<u64>,
    max: u64,
    nr: u64,
}

const STEPS: u64 = 32;

impl Histogram {
    fn new() -> Self {
        Histogram {
            counts: vec![0; 64 * STEPS as usize],
            max: 0,
            nr: 0,
        }
    }

    fn add(&mut self, nanos: u64) {
        let exponent = nanos.max(STEPS).ilog2() - STEPS.ilog2();
        let bucket = u64::from(exponent) * STEPS + (nanos >> exponent);
        if let Some(count) = self.counts.get_mut(bucket as usize) {
            *count += 1;
        }
        self.max = self.max.max(nanos);
        self.nr += 1;
    }

    fn quantile(&self, part: f64) -> u64 {
        let mut left = (self.nr as f64 * part) as u64;
        for (bucket, &count) in self.counts.iter().enumerate() {
            if left < count {
                let bucket = bucket as u64;
                let exponent = (bucket / STEPS).saturating_sub(1);
                return (bucket - exponent * STEPS) << exponent;
            }
            left -= count;
        }
        self.max
    }

    fn percentiles(&self) -> Percentiles {
        Percentiles {
            p50: self.quantile(0.5),
            p99: self.quantile(0.99),
            max: self.max,
        }
    }
}

/// What two readings of the clock are apart when nothing is between them.
fn clock_cost() -> u64 {
    (0..1000)
        .map(|_| {
            let start = Instant::now();
            start.elapsed().as_nanos() as u64
        })
        .min()
        .unwrap_or(0)
}

struct Mixed {
    space: Slots,
    random: XorShift,
    /// Folios freed soon, and kept long: three quarters and a quarter of them.
    generations: [Vec<Vec<Extent>>; 2],
    used: u64,
    target: u64,
    extents: Box<Extents>,
    clock: u64,
    alloc: Histogram,
    free: Histogram,
    orders: [MixedOrder; ORDERS],
}

impl Mixed {
    fn fits(&self, order: usize) -> bool {
        self.used + (1 << order) <= self.target
    }

    /// Places one folio. Where the plain algorithm refuses, its pages go one by
    /// one, as the kernel splits it.
    fn alloc(&mut self, order: usize) {
        let start = Instant::now();
        let placed = self.space.alloc(1 << order, &mut self.extents);
        let nanos = start.elapsed().as_nanos() as u64;
        self.alloc.add(nanos.saturating_sub(self.clock));
        let count = &mut self.orders[order];
        let long = usize::from(self.random.below(4) == 0);
        if !placed {
            count.failed += 1;
            for _ in 0..1 << order {
                if self.space.alloc(1, &mut self.extents) {
                    self.used += 1;
                    self.generations[long].push(self.extents.to_vec());
                }
            }
            return;
        }
        count.placed += 1;
        count.whole += u64::from(self.extents.len() == 1);
        count.extents += self.extents.len() as u64;
        self.used += 1 << order;
        self.generations[long].push(self.extents.to_vec());
    }

    /// Seven times of eight a short-lived folio; every third time only its end,
    /// from a random page on, as partial swap-in leaves it.
    fn free(&mut self) -> bool {
        let long = usize::from(self.random.below(8) == 0 || self.generations[0].is_empty());
        let generation = &mut self.generations[long];
        if generation.is_empty() {
            return false;
        }
        let at = self.random.below(generation.len());
        let mut folio = generation.swap_remove(at);
        let pages: usize = folio.iter().map(|e| usize::from(e.nr)).sum();
        let mut keep = match self.random.below(3) {
            0 => self.random.below(pages),
            _ => 0,
        };
        let mut kept = Vec::new();
        folio.retain_mut(|extent| {
            let nr = keep.min(usize::from(extent.nr));
            keep -= nr;
            if nr > 0 {
                kept.push(Extent {
                    nr: nr as u16,
                    ..*extent
                });
            }
            extent.nr -= nr as u16;
            if let Some(entry) = extent.entry.checked_add(nr as u64) {
                extent.entry = entry;
            }
            extent.nr > 0
        });
        if !kept.is_empty() {
            self.generations[long].push(kept);
        }
        let start = Instant::now();
        for extent in &folio {
            self.space.free(extent.entry, extent.nr.into());
            self.used -= u64::from(extent.nr);
        }
        let nanos = start.elapsed().as_nanos() as u64;
        self.free.add(nanos.saturating_sub(self.clock));
        true
    }
}

/// Runs it.
pub fn run(config: &MixedConfig) -> Result<MixedReport, String> {
    let space = Slots::new(config.algorithm, config.device_bytes, Header::No)?;
    let slots = config.device_bytes / PAGE_SIZE as u64;
    let mut mixed = Mixed {
        space,
        random: XorShift(config.seed | 1),
        generations: [Vec::new(), Vec::new()],
        used: 0,
        target: slots * u64::from(config.full_percent.min(100)) / 100,
        extents: Box::new(Extents::new()),
        clock: clock_cost(),
        alloc: Histogram::new(),
        free: Histogram::new(),
        orders: Default::default(),
    };
    let mut order = mixed.random.order();
    while mixed.fits(order) {
        mixed.alloc(order);
        order = mixed.random.order();
    }
    mixed.orders = Default::default();
    (mixed.alloc, mixed.free) = (Histogram::new(), Histogram::new());
    let mut done = 0;
    while done < config.operations {
        // Hover at the target: give back until the next folio fits, and a bit
        // more half of the time, so that it is not always the same that fits.
        if !mixed.fits(order) || mixed.random.below(4) == 0 {
            if !mixed.free() && !mixed.fits(order) {
                break;
            }
        } else {
            mixed.alloc(order);
            order = mixed.random.order();
        }
        done += 1;
    }
    Ok(MixedReport {
        orders: mixed.orders,
        alloc: mixed.alloc.percentiles(),
        free: mixed.free.percentiles(),
        operations: done,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_finds_room() {
        for full_percent in [60, 90, 99] {
            let config = MixedConfig {
                device_bytes: 128 << 20,
                operations: 200_000,
                ..MixedConfig::new(full_percent)
            };
            let report = run(&config).unwrap();
            for (order, count) in report.orders.iter().enumerate() {
                assert_eq!(count.failed, 0, "order {order} at {full_percent} %");
                assert!(count.placed > 0, "order {order} at {full_percent} %");
            }
        }
    }

    #[test]
    fn histogram_quantiles() {
        let mut histogram = Histogram::new();
        for nanos in 0..100_000 {
            histogram.add(nanos);
        }
        let got = histogram.percentiles();
        assert!((48_000..52_000).contains(&got.p50), "{got:?}");
        assert!((95_000..100_000).contains(&got.p99), "{got:?}");
        assert_eq!(got.max, 99_999);
    }
}
