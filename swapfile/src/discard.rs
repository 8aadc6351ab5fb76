//! Discard of clusters that became free, and the reclaim of full clusters whose
//! slots only the swap cache has. Both are done by the caller, without a lock
//! held: the allocator does no I/O and knows no folios.

use super::cluster::{ClusterState, TOP_EMPTY};
use super::lists::{End, DISCARD, FULL};
use super::shard::Shard;
use hugeswap_mm::{Extent, Extents, SwapEntry, SWAPFILE_CLUSTER};

impl Shard {
    /// Takes a cluster off the discard list; its slots can't be had until
    /// [`discard_done`](Self::discard_done).
    pub fn next_discard(&mut self) -> Option<SwapEntry> {
        let idx = self.lists.head(DISCARD)?;
        let entry = SwapEntry::new(self.device(), self.slot(idx, 0))?;
        self.lists.unlink(&mut self.clusters, idx);
        self.clusters[idx as usize].state = ClusterState::Discarding;
        self.discarding += SWAPFILE_CLUSTER as u64;
        Some(entry)
    }

    /// `false` if the cluster was not being discarded.
    pub fn discard_done(&mut self, idx: u32) -> bool {
        let ci = &mut self.clusters[idx as usize];
        if ci.state != ClusterState::Discarding {
            return false;
        }
        self.releases += 1;
        self.discarding -= ci.free_slots() as u64;
        ci.state = ClusterState::Free;
        if ci.bad == 0 {
            ci.top = TOP_EMPTY;
            self.lists
                .relink(&mut self.clusters, idx, self.algorithm, End::Tail);
        } else {
            // A slot was found bad meanwhile: what is left serves small folios.
            ci.order = 0;
            self.settle(idx);
        }
        true
    }

    /// Runs that only the swap cache has, in the full cluster looked at longest
    /// ago, which goes to the list's tail. `false` when there is no full cluster.
    pub fn reclaim_full(&mut self, out: &mut Extents) -> bool {
        let Some(idx) = self.lists.head(FULL) else {
            return false;
        };
        self.lists.unlink(&mut self.clusters, idx);
        self.lists
            .link(&mut self.clusters, idx, self.algorithm, End::Tail);
        self.cache_only_runs(idx, out);
        true
    }

    pub(super) fn cache_only_runs(&self, idx: u32, out: &mut Extents) {
        let only = self.clusters[idx as usize].cache_only();
        let mut from = 0;
        while let Some((start, nr)) = only.next_run(from) {
            let Some(entry) = SwapEntry::new(self.device(), self.slot(idx, start)) else {
                return;
            };
            if !out.push(Extent {
                entry,
                nr: nr as u16,
            }) {
                return;
            }
            from = start + nr;
            if from >= SWAPFILE_CLUSTER {
                return;
            }
        }
    }

    /// First run of slots with users or in the cache, from a place on; for swapoff.
    pub fn next_in_use(&self, idx: u32, from: usize) -> Option<(usize, usize)> {
        let ci = &self.clusters[idx as usize];
        let taken = ci.held.zip(&ci.cached, |held, cached| held | cached);
        taken.next_run(from)
    }
}
