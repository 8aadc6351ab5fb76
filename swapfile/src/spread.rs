//! The rare events, counted over all devices.

use crate::sync::{AtomicU64, Ordering::Relaxed};
use hugeswap_mm::{Order, SWAP_NR_ORDERS};

#[derive(Debug, Default)]
pub struct SpreadCount {
    pub folios: [AtomicU64; SWAP_NR_ORDERS],
    pub extents: [AtomicU64; SWAP_NR_ORDERS],
    pub failed: [AtomicU64; SWAP_NR_ORDERS],
    pub moved: AtomicU64,
}

impl SpreadCount {
    pub fn add(&self, order: Order, extents: usize) {
        self.folios[order.index()].fetch_add(1, Relaxed);
        self.extents[order.index()].fetch_add(extents as u64, Relaxed);
    }

    pub fn fail(&self, order: Order) {
        self.failed[order.index()].fetch_add(1, Relaxed);
    }
}
