//! A shard: every n-th cluster of a device, its lists and its lock.
//!
//! The kernel has one lock for each cluster and one for the lists of a device.
//! Here the clusters are dealt out to as many shards as there are CPUs, and one
//! lock covers a shard's clusters *and* its lists: the state of a cluster and
//! the list it is on can't be seen apart, and CPUs that allocate each from
//! their own shard never meet. A rotational device has a single shard, whose
//! current cluster is then the global one.
//!
//! Everything here runs with the shard's lock held (`&mut self`) and neither
//! allocates, nor sleeps, nor takes another lock.

use super::bitmap::Bitmap;
use super::cluster::{ClusterInfo, ClusterState, TOP_EMPTY};
use super::lists::{partial, Algorithm, End, Lists, DISCARD, FREE, TOPS};
use super::memory::LazySlice;
use hugeswap_mm::{Extent, Extents, Order, SwapEntry, SWAPFILE_CLUSTER, SWAP_NR_ORDERS};

/// Free clusters are scarce when they are less than one in this many: small
/// folios then fill holes between larger ones instead of opening a new cluster.
const SCARCE: u32 = 8;

#[derive(Debug)]
pub struct Shard {
    pub(super) clusters: LazySlice<ClusterInfo>,
    /// One word for each slot: users beyond the first, and [`BAD_ONCE_FREE`](super::refs::BAD_ONCE_FREE).
    pub(super) swap_map: LazySlice<u16>,
    pub(super) lists: Lists,
    pub(super) algorithm: Algorithm,
    pub(super) discard: bool,
    /// Clusters can be used only from `online` to `offline`.
    pub(super) segmented: bool,
    /// Not being swapped off.
    pub(super) writable: bool,
    device: hugeswap_mm::DeviceId,
    index: u32,
    /// log2 of the number of shards.
    shift: u32,
    /// Clusters of this shard that are inside the device.
    pub(super) nr_clusters: u32,
    /// No cluster at or above it has left `Untouched`, but for the device's last.
    pub(super) fresh: u32,
    pub(super) nr_untouched: u32,
    /// Clusters of a device in segments that are not ours to use.
    pub(super) nr_offline: u32,
    /// Times that everything in use was lent.
    pub(super) lends: u32,
    /// Index + 1 of the cluster last allocated from, by order.
    pub(super) current: [u32; SWAP_NR_ORDERS],
    /// 6.12 only: the slot within it to go on from.
    pub(super) current_offset: [u16; SWAP_NR_ORDERS],
    pub(super) used: u64,
    pub(super) bad: u64,
    /// Free slots that can't be had until their discard is done.
    pub(super) discarding: u64,
    /// Times slots became free, ever: see `SwapSpace::pick_up`.
    pub(super) releases: u64,
    /// Folios placed in one piece, by order.
    pub(super) allocated: [u64; SWAP_NR_ORDERS],
}

impl Shard {
    pub fn new(
        device: hugeswap_mm::DeviceId,
        index: u32,
        shift: u32,
        capacity: u32,
        algorithm: Algorithm,
        discard: bool,
        segmented: bool,
    ) -> Option<Self> {
        Some(Shard {
            clusters: LazySlice::new(capacity as usize)?,
            swap_map: LazySlice::new(capacity as usize * SWAPFILE_CLUSTER)?,
            lists: Lists::new(),
            algorithm,
            discard,
            segmented,
            writable: true,
            device,
            index,
            shift,
            nr_clusters: 0,
            fresh: 0,
            nr_untouched: 0,
            nr_offline: 0,
            lends: 0,
            current: [0; SWAP_NR_ORDERS],
            current_offset: [0; SWAP_NR_ORDERS],
            used: 0,
            bad: 0,
            discarding: 0,
            releases: 0,
            allocated: [0; SWAP_NR_ORDERS],
        })
    }

    /// Back to how [`new`](Self::new) left it, the memory given back.
    pub fn reset(&mut self, discard: bool) {
        self.clusters.reset();
        self.swap_map.reset();
        self.lists = Lists::new();
        self.discard = discard;
        self.writable = true;
        (self.nr_clusters, self.fresh, self.nr_untouched) = (0, 0, 0);
        (self.nr_offline, self.lends) = (0, 0);
        self.current = [0; SWAP_NR_ORDERS];
        self.current_offset = [0; SWAP_NR_ORDERS];
        (self.used, self.bad, self.discarding) = (0, 0, 0);
        self.allocated = [0; SWAP_NR_ORDERS];
    }

    /// Lets the shard's first `nr` clusters be used.
    pub fn extend(&mut self, nr: u32) {
        self.releases += 1;
        let more = nr - self.nr_clusters;
        if self.segmented {
            self.nr_offline += more;
        } else {
            self.nr_untouched += more;
        }
        self.nr_clusters = nr;
    }

    /// The device's slot at `offset` of the shard's cluster `idx`.
    #[inline]
    pub fn slot(&self, idx: u32, offset: usize) -> u64 {
        let cluster = u64::from(idx) << self.shift | u64::from(self.index);
        cluster * SWAPFILE_CLUSTER as u64 + offset as u64
    }

    pub fn device(&self) -> hugeswap_mm::DeviceId {
        self.device
    }

    #[inline]
    fn extent(&self, idx: u32, offset: usize, nr: usize) -> Option<Extent> {
        Some(Extent {
            entry: SwapEntry::new(self.device, self.slot(idx, offset))?,
            nr: nr as u16,
        })
    }

    /// Slots that can be had now.
    #[inline]
    pub fn free_slots(&self) -> u64 {
        let total = u64::from(self.nr_clusters - self.nr_offline) * SWAPFILE_CLUSTER as u64;
        total - self.used - self.bad - self.discarding
    }

    /// Whether the cluster is one of a device in segments and not ours to use.
    #[inline]
    pub(super) fn is_offline(&self, idx: u32) -> bool {
        self.segmented && self.clusters[idx as usize].state == ClusterState::Untouched
    }

    /// Clusters with every slot free that can be had without a discard.
    #[inline]
    pub fn free_clusters(&self) -> u32 {
        self.lists.nr(FREE) + self.nr_untouched
    }

    /// Order of the largest folio that could be put in one piece now, plus one.
    #[inline]
    pub fn reach(&self) -> u8 {
        if !self.writable {
            0
        } else if self.nr_untouched > 0 || self.lists.nr(FREE) > 0 || self.lists.nr(DISCARD) > 0 {
            TOP_EMPTY
        } else {
            (u16::BITS - self.lists.tops().leading_zeros()) as u8
        }
    }

    /// A cluster with every slot free; it stays where it is until used.
    #[inline]
    pub(super) fn free_cluster(&mut self) -> Option<u32> {
        if let Some(idx) = self.lists.head(FREE) {
            return Some(idx);
        }
        while self.nr_untouched > 0 && self.fresh < self.nr_clusters {
            if self.clusters[self.fresh as usize].state == ClusterState::Untouched {
                return Some(self.fresh);
            }
            self.fresh += 1;
        }
        None
    }

    /// One contiguous place from the current cluster of this order.
    #[inline]
    pub fn alloc_current(&mut self, order: Order) -> Option<SwapEntry> {
        let idx = self.current[order.index()].checked_sub(1)?;
        let ci = &self.clusters[idx as usize];
        if ci.order != order.get() || ci.state != ClusterState::Nonfull || !self.writable {
            return None;
        }
        self.take_block(idx, order)
    }

    /// Exactly this place, if it is free.
    pub fn alloc_at(&mut self, idx: u32, start: usize, order: Order) -> Option<SwapEntry> {
        let nr = order.nr_pages();
        let ci = self.clusters.get(idx as usize)?;
        if !self.writable
            || idx >= self.nr_clusters
            || start % nr != 0
            || ci.state == ClusterState::Discarding
            || self.is_offline(idx)
            || ci.used.any(start, nr)
        {
            return None;
        }
        let around = ci.used.block_around(start);
        self.take(idx, start, nr, around, order);
        self.allocated[order.index()] += 1;
        SwapEntry::new(self.device, self.slot(idx, start))
    }

    /// One contiguous place without breaking up what other orders may want.
    pub fn alloc_home(&mut self, order: Order) -> Option<SwapEntry> {
        if let Some(entry) = self.alloc_current(order) {
            return Some(entry);
        }
        if !self.writable {
            return None;
        }
        let o = order.get();
        // nonfull[order], the one with the least room first.
        let fits = self.lists.tops_of(o) >> o;
        let idx = if fits != 0 {
            let top = o + fits.trailing_zeros() as u8;
            self.lists.head(partial(o, top))
        } else if self.free_clusters() < self.nr_clusters / SCARCE {
            self.hole_between_larger(o).or_else(|| self.free_cluster())
        } else {
            self.free_cluster()
        }?;
        self.current[order.index()] = idx + 1;
        self.take_block(idx, order)
    }

    /// A cluster of a larger order whose holes fit only smaller ones.
    fn hole_between_larger(&self, order: u8) -> Option<u32> {
        for top in order..TOPS as u8 {
            for of in top + 1..SWAP_NR_ORDERS as u8 {
                if self.lists.tops_of(of) >> top & 1 != 0 {
                    return self.lists.head(partial(of, top));
                }
            }
        }
        None
    }

    /// One contiguous place wherever there is one: best fit over all clusters,
    /// then a free cluster, then one whose discard has not begun.
    pub fn alloc_anywhere(&mut self, order: Order) -> Option<SwapEntry> {
        if !self.writable {
            return None;
        }
        let idx = self
            .best_fit(order.get())
            .or_else(|| self.free_cluster())
            .or_else(|| self.lists.head(DISCARD))?;
        self.take_block(idx, order)
    }

    /// The partly used cluster with the smallest largest block that fits `order`.
    fn best_fit(&self, order: u8) -> Option<u32> {
        let fits = self.lists.tops() >> order;
        if fits == 0 {
            return None;
        }
        let top = order + fits.trailing_zeros() as u8;
        // Those of a larger order first: the block is of no use to them.
        (0..SWAP_NR_ORDERS as u8)
            .rev()
            .find(|&of| self.lists.tops_of(of) >> top & 1 != 0)
            .and_then(|of| self.lists.head(partial(of, top)))
    }

    #[inline]
    fn take_block(&mut self, idx: u32, order: Order) -> Option<SwapEntry> {
        let ci = &self.clusters[idx as usize];
        let (start, around) = ci.used.find_block(order, usize::from(ci.cursor))?;
        self.take(idx, start, order.nr_pages(), around, order);
        self.allocated[order.index()] += 1;
        SwapEntry::new(self.device, self.slot(idx, start))
    }

    /// Gives the run to a first user. `around` is the order of the maximal free
    /// block it was cut from.
    #[inline]
    pub(super) fn take(&mut self, idx: u32, start: usize, nr: usize, around: u8, order: Order) {
        self.catch_up(idx);
        let ci = &mut self.clusters[idx as usize];
        ci.used.set(start, nr);
        ci.held.set(start, nr);
        ci.count += nr as u16;
        ci.cursor = start as u16;
        self.used += nr as u64;
        if matches!(
            ci.state,
            ClusterState::Free | ClusterState::Untouched | ClusterState::Discard
        ) {
            ci.order = order.get();
            if ci.state == ClusterState::Untouched {
                self.nr_untouched -= 1;
            }
            match nr {
                SWAPFILE_CLUSTER => ci.top = 0,
                // It lies in one half, at its start or aligned: the other is free.
                _ if nr <= SWAPFILE_CLUSTER / 2 => ci.top = TOP_EMPTY - 1,
                _ => ci.recompute_top(),
            }
        } else if around + 1 == ci.top {
            ci.recompute_top();
        }
        self.settle(idx);
    }

    /// Puts a cluster that is in use, or has bad slots, where its content says.
    #[inline]
    pub(super) fn settle(&mut self, idx: u32) {
        let ci = &mut self.clusters[idx as usize];
        if ci.state == ClusterState::Discarding {
            return;
        }
        ci.state = match ci.top.checked_sub(1) {
            None => ClusterState::Full,
            Some(top) if top >= ci.order => ClusterState::Nonfull,
            Some(_) => ClusterState::Frag,
        };
        self.lists
            .relink(&mut self.clusters, idx, self.algorithm, End::Tail);
    }

    /// Gives slots back that nobody has any more.
    #[inline]
    pub(super) fn release(&mut self, idx: u32, start: usize, nr: usize) {
        let ci = &mut self.clusters[idx as usize];
        ci.used.clear(start, nr);
        ci.count -= nr as u16;
        self.releases += 1;
        self.used -= nr as u64;
        if ci.is_empty() {
            self.empty(idx);
            return;
        }
        if ci.count == 0 {
            // Only bad slots are left: any order may have what is between them.
            ci.order = 0;
        }
        if nr.is_power_of_two() && start % nr == 0 {
            ci.top = ci.top.max(ci.used.block_around(start) + 1);
        } else {
            ci.recompute_top();
        }
        match self.algorithm {
            Algorithm::HugeSwap => self.settle(idx),
            Algorithm::Linux612 => {
                ci.state = ClusterState::Nonfull;
                self.lists
                    .relink(&mut self.clusters, idx, self.algorithm, End::Tail);
            }
        }
    }

    /// The last slot of the cluster became free.
    pub(super) fn empty(&mut self, idx: u32) {
        let ci = &mut self.clusters[idx as usize];
        ci.order = 0;
        ci.cursor = 0;
        ci.top = TOP_EMPTY;
        ci.state = if self.discard {
            ClusterState::Discard
        } else {
            ClusterState::Free
        };
        // The one used last is the one whose place on the device exists and
        // whose bookkeeping is in the CPU's cache; the kernel takes the oldest.
        let end = match self.algorithm {
            Algorithm::HugeSwap if !self.discard => End::Head,
            _ => End::Tail,
        };
        self.lists
            .relink(&mut self.clusters, idx, self.algorithm, end);
    }

    /// Takes up to `want` slots in runs from clusters whose largest free block
    /// has at least order `least`; returns how many are still wanted.
    pub fn gather(&mut self, order: Order, mut want: usize, least: u8, out: &mut Extents) -> usize {
        while want > 0 && self.writable {
            let need = want.next_power_of_two().trailing_zeros() as u8;
            // Best: what is left fits in one block. Else: the most at once.
            let Some(idx) = self.best_fit(need).or_else(|| {
                self.free_cluster()
                    .or_else(|| self.lists.head(DISCARD))
                    .or_else(|| self.largest_from(least))
            }) else {
                break;
            };
            let ci = &self.clusters[idx as usize];
            let free = ci.used.zip(&Bitmap::EMPTY, |used, _| !used);
            let (start, run) = free.longest_run();
            let nr = run.min(want);
            let Some(extent) = self.extent(idx, start, nr) else {
                break;
            };
            if nr == 0 || !out.push(extent) {
                break;
            }
            let top = self.clusters[idx as usize].top;
            self.take(idx, start, nr, top.saturating_sub(1), order);
            want -= nr;
        }
        want
    }

    fn largest_from(&self, least: u8) -> Option<u32> {
        let tops = self.lists.tops() >> least;
        if tops == 0 {
            return None;
        }
        let top = least + (u16::BITS - 1 - tops.leading_zeros()) as u8;
        (0..SWAP_NR_ORDERS as u8)
            .find(|&of| self.lists.tops_of(of) >> top & 1 != 0)
            .and_then(|of| self.lists.head(partial(of, top)))
    }
}
