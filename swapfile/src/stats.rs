//! Counters by order, and sums over devices.

use super::device::Running;
use super::space::SwapSpace;
use crate::sync::Ordering::Relaxed;
use hugeswap_mm::{DeviceId, Order, SWAPFILE_CLUSTER, SWAP_NR_ORDERS};

/// What became of folios of one order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderStats {
    /// Placed in one aligned extent.
    pub contiguous: u64,
    /// Placed in several extents.
    pub spread: u64,
    /// Extents of those that were spread.
    pub spread_extents: u64,
    /// Not placed.
    pub failed: u64,
}

impl OrderStats {
    /// Extents a placed folio has on average.
    pub fn extents_per_folio(&self) -> f64 {
        let folios = self.contiguous + self.spread;
        if folios == 0 {
            return 0.0;
        }
        (self.contiguous + self.spread_extents) as f64 / folios as f64
    }
}

/// A picture of all counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub orders: [OrderStats; SWAP_NR_ORDERS],
    /// Slots whose content was moved to make room: by
    /// [`note_moved`](SwapSpace::note_moved), that is by swapoff. Allocation moves none.
    pub slots_moved: u64,
}

impl SwapSpace {
    /// All counters.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            slots_moved: self.spread.moved.load(Relaxed),
            ..Stats::default()
        };
        for order in Order::all() {
            let i = order.index();
            stats.orders[i] = OrderStats {
                contiguous: self
                    .devices()
                    .map(|(_, d)| d.sum(|shard| shard.allocated[i]))
                    .sum(),
                spread: self.spread.folios[i].load(Relaxed),
                spread_extents: self.spread.extents[i].load(Relaxed),
                failed: self.spread.failed[i].load(Relaxed),
            };
        }
        stats
    }

    /// The caller moved the content of `nr` slots elsewhere.
    pub fn note_moved(&self, nr: u64) {
        self.spread.moved.fetch_add(nr, Relaxed);
    }

    /// Slots with users or in the swap cache, over all devices.
    pub fn used_slots(&self) -> u64 {
        self.devices().map(|(_, d)| d.sum(|shard| shard.used)).sum()
    }

    /// Slots with users or in the swap cache on one device; 0 if there is none.
    pub fn device_used_slots(&self, id: DeviceId) -> u64 {
        self.device(id).map_or(0, |d| d.sum(|shard| shard.used))
    }

    /// Slots that can be had now, over all devices in use.
    pub fn free_slots(&self) -> u64 {
        self.devices()
            .filter(|(_, d)| d.running() == Running::On)
            .map(|(_, d)| d.sum(|shard| shard.free_slots()))
            .sum()
    }

    /// Slots that are neither bad nor a header, over all devices in use.
    pub fn total_slots(&self) -> u64 {
        self.devices()
            .filter(|(_, d)| d.running() == Running::On)
            .map(|(_, d)| {
                d.sum(|shard| {
                    let clusters = shard.nr_clusters - shard.nr_offline;
                    u64::from(clusters) * SWAPFILE_CLUSTER as u64 - shard.bad
                })
            })
            .sum()
    }

    /// Whether less than half of swap is free: time to reclaim what only the
    /// swap cache has. By hints, without a lock.
    pub fn vm_swap_full(&self) -> bool {
        let running = || self.devices().filter(|(_, d)| d.running() == Running::On);
        let free: u64 = running().map(|(_, d)| d.free_hint()).sum();
        let total: u64 = running().map(|(_, d)| d.max_slots.load(Relaxed)).sum();
        free * 2 < total
    }
}
