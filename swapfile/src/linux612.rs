//! The plain allocator of Linux 6.12, to show what ours adds: same clusters,
//! same lists, one shard, but clusters are scanned for an aligned run in the
//! kernel's order of attempts, and a folio without one falls back.

use super::cluster::ClusterState;
use super::lists::{linux_frag, linux_nonfull, Algorithm, End, DISCARD, FREE, FULL};
use super::shard::Shard;
use hugeswap_mm::{Order, SwapEntry, SWAPFILE_CLUSTER, SWAP_NR_ORDERS};

impl Shard {
    /// Every cluster on its list at once, as `swapon` leaves them.
    pub(super) fn linux_setup(&mut self) {
        for idx in 0..self.nr_clusters {
            let ci = &mut self.clusters[idx as usize];
            if ci.state == ClusterState::Untouched {
                ci.state = ClusterState::Free;
                ci.top = super::cluster::TOP_EMPTY;
                self.nr_untouched -= 1;
                self.lists
                    .link(&mut self.clusters, idx, Algorithm::Linux612, End::Tail);
            }
        }
        self.fresh = self.nr_clusters;
    }

    /// Steps 1 to 7 of the table in `docs/allocator.md`.
    pub(super) fn linux_alloc(&mut self, order: Order) -> Option<SwapEntry> {
        let o = order.get();
        if !self.writable {
            return None;
        }
        if let Some(idx) = self.current[order.index()].checked_sub(1) {
            let from = usize::from(self.current_offset[order.index()]);
            if let Some(entry) = self.scan(idx, from, order) {
                return Some(entry);
            }
        }
        if let Some(idx) = self.lists.head(FREE) {
            return self.scan(idx, 0, order);
        }
        // (vm_swap_full: the caller reclaims a full cluster, see `reclaim_full`.)
        if order < Order::PMD {
            while let Some(idx) = self.lists.head(linux_nonfull(o)) {
                // To the tail of frag before the scan, so that the loop ends.
                self.move_to(idx, ClusterState::Frag);
                if let Some(entry) = self.scan(idx, 0, order) {
                    return Some(entry);
                }
            }
            for _ in 0..self.lists.nr(linux_frag(o)) {
                let Some(idx) = self.lists.head(linux_frag(o)) else {
                    break;
                };
                self.move_to(idx, ClusterState::Frag);
                if let Some(entry) = self.scan(idx, 0, order) {
                    return Some(entry);
                }
            }
        }
        if let Some(idx) = self.lists.head(DISCARD) {
            return self.scan(idx, 0, order);
        }
        if order == Order::ZERO {
            for other in 1..SWAP_NR_ORDERS as u8 {
                for list in [linux_frag(other), linux_nonfull(other)] {
                    if let Some(idx) = self.lists.head(list) {
                        return self.scan(idx, 0, order);
                    }
                }
            }
        }
        None
    }

    fn move_to(&mut self, idx: u32, state: ClusterState) {
        self.lists.unlink(&mut self.clusters, idx);
        self.clusters[idx as usize].state = state;
        self.lists
            .link(&mut self.clusters, idx, Algorithm::Linux612, End::Tail);
    }

    /// Steps upward from `from` by the folio's length, without wrapping round.
    fn scan(&mut self, idx: u32, from: usize, order: Order) -> Option<SwapEntry> {
        let nr = order.nr_pages();
        let ci = &self.clusters[idx as usize];
        if matches!(ci.state, ClusterState::Full | ClusterState::Discarding) {
            self.current[order.index()] = 0;
            return None;
        }
        let mut offset = from;
        while offset + nr <= SWAPFILE_CLUSTER && ci.used.any(offset, nr) {
            offset += nr;
        }
        if offset + nr > SWAPFILE_CLUSTER {
            self.current[order.index()] = 0;
            return None;
        }
        self.linux_take(idx, offset, order);
        let next = offset + nr;
        self.current[order.index()] =
            if next < SWAPFILE_CLUSTER && self.clusters[idx as usize].free_slots() > 0 {
                idx + 1
            } else {
                0
            };
        self.current_offset[order.index()] = (next % SWAPFILE_CLUSTER) as u16;
        SwapEntry::new(self.device(), self.slot(idx, offset))
    }

    fn linux_take(&mut self, idx: u32, start: usize, order: Order) {
        let nr = order.nr_pages();
        let ci = &mut self.clusters[idx as usize];
        let was_free = matches!(ci.state, ClusterState::Free | ClusterState::Discard);
        ci.used.set(start, nr);
        ci.held.set(start, nr);
        ci.count += nr as u16;
        ci.cursor = start as u16;
        ci.recompute_top();
        if was_free {
            ci.order = order.get();
        }
        let full = ci.free_slots() == 0;
        self.used += nr as u64;
        self.allocated[order.index()] += 1;
        if full {
            self.move_to(idx, ClusterState::Full);
        } else if was_free {
            self.move_to(idx, ClusterState::Nonfull);
        }
    }

    /// Full clusters to look at in one reclaim, as many as are on the list.
    pub(super) fn nr_full(&self) -> u32 {
        self.lists.nr(FULL)
    }
}
