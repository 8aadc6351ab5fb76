//! For an owner of a part of a device: clusters that come and go, and slots that are lent to forked
//! processes. One thread allocates, and says on which device; others free.

use super::bitmap::Bitmap;
use super::cluster::{ClusterInfo, ClusterState, TOP_EMPTY};
use super::device::Running;
use super::error::EntryError;
use super::lists::End;
use super::shard::Shard;
use super::space::SwapSpace;
use crate::sync::Ordering::Relaxed;
use hugeswap_mm::{DeviceId, Extent, Extents, Order, SwapEntry, SWAPFILE_CLUSTER};

/// Clusters that are looked at under one hold of a lock.
const BATCH: u64 = 16;

impl Shard {
    /// The cluster is ours to use from now on, every slot free.
    fn online(&mut self, idx: u32) {
        if !self.is_offline(idx) {
            return;
        }
        self.clusters[idx as usize] = ClusterInfo {
            state: ClusterState::Free,
            top: TOP_EMPTY,
            ..ClusterInfo::default()
        };
        self.nr_offline -= 1;
        self.releases += 1;
        self.lists
            .link(&mut self.clusters, idx, self.algorithm, End::Tail);
    }

    fn offline(&mut self, idx: u32) {
        self.lists.unlink(&mut self.clusters, idx);
        self.clusters[idx as usize] = ClusterInfo::default();
        self.nr_offline += 1;
    }

    /// Marks what was in use when it was lent, before anything else changes.
    #[inline]
    pub(super) fn catch_up(&mut self, idx: u32) {
        let ci = &mut self.clusters[idx as usize];
        if ci.lends != self.lends {
            ci.lends = self.lends;
            ci.cached = ci.cached.zip(&ci.held, |cached, held| cached | held);
        }
    }

    /// Nobody reads what was lent of the cluster any more: what was freed meanwhile is free now.
    fn end_loans(&mut self, idx: u32) {
        let ci = &mut self.clusters[idx as usize];
        if ci.state == ClusterState::Untouched {
            return;
        }
        ci.lends = self.lends;
        let put_off = ci.cache_only();
        ci.cached = Bitmap::EMPTY;
        let mut from = 0;
        while let Some((start, nr)) = put_off.next_run(from) {
            if self.clusters[idx as usize].marked == 0 {
                self.release(idx, start, nr);
            } else {
                for offset in start..start + nr {
                    self.let_go(idx, offset);
                }
            }
            from = start + nr;
        }
    }

    /// Whether the slots have users and are lent to nobody.
    fn is_own(&mut self, idx: u32, start: usize, nr: usize) -> bool {
        self.catch_up(idx);
        let ci = &self.clusters[idx as usize];
        ci.held.all(start, nr) && !ci.cached.any(start, nr)
    }
}

impl SwapSpace {
    /// The slots of `segment`, whole clusters of a device in segments, are ours to use from now on.
    pub fn online(&self, segment: Segment) {
        self.for_clusters(segment, |shard, idx| shard.online(idx));
    }

    /// Stops using those of the segment's clusters that are ours, if every slot of them is free. Says
    /// which they were: bit n for the segment's cluster n. A segment has no more than 64.
    pub fn offline(&self, segment: Segment) -> u64 {
        let (mut free, mut ours, mut n) = (true, 0, 0);
        self.for_clusters(segment, |shard, idx| {
            if !shard.is_offline(idx) {
                free &= shard.clusters[idx as usize].state == ClusterState::Free;
                ours |= 1 << n;
            }
            n += 1;
        });
        // Whoever frees meanwhile makes no cluster of these less free, and only the caller allocates.
        if !free || ours == 0 {
            return 0;
        }
        self.for_clusters(segment, |shard, idx| {
            if !shard.is_offline(idx) {
                shard.offline(idx);
            }
        });
        ours
    }

    fn for_clusters(&self, segment: Segment, mut f: impl FnMut(&mut Shard, u32)) {
        let Some(device) = self.device(segment.device) else {
            return;
        };
        let end = segment.end.min(device.max_slots.load(Relaxed));
        for slot in (segment.start..end).step_by(SWAPFILE_CLUSTER) {
            let (s, idx, _) = device.locate(slot);
            device.with_shard(s, |shard| f(shard, idx));
        }
    }

    /// Slots for `nr` pages on one device: for 512 of them a whole cluster, for fewer as few extents
    /// as there is room for. False if there is no such room; nothing is taken then.
    pub fn alloc_on(&self, id: DeviceId, nr: usize, out: &mut Extents) -> bool {
        out.clear();
        let Some(device) = self.device(id).filter(|d| d.running() == Running::On) else {
            return false;
        };
        if nr == SWAPFILE_CLUSTER {
            let entry = device.alloc_contiguous(0, Order::PMD);
            return entry.is_some_and(|entry| {
                out.push(Extent {
                    entry,
                    nr: nr as u16,
                })
            });
        }
        if device.sum(Shard::free_slots) < nr as u64 {
            return false;
        }
        self.all_or_nothing(device.gather(Order::ZERO, nr, 0, out), out)
    }

    /// Slots for `nr` pages wherever any are free, the first device first.
    pub fn alloc_from_all(&self, nr: usize, out: &mut Extents) -> bool {
        out.clear();
        let mut want = nr;
        for (_, device) in self.devices() {
            if device.running() == Running::On {
                want = device.gather(Order::ZERO, want, 0, out);
            }
        }
        self.all_or_nothing(want, out)
    }

    fn all_or_nothing(&self, want: usize, out: &mut Extents) -> bool {
        if want > 0 {
            // Ours since a moment ago, with one user: can't fail.
            let _ = self.free_extents(out);
            out.clear();
        }
        want == 0
    }

    /// Clusters of a device that are ours and empty.
    pub fn free_clusters(&self, id: DeviceId) -> u64 {
        self.device(id)
            .map_or(0, |d| d.sum(|shard| u64::from(shard.free_clusters())))
    }

    /// Free slots by the hints: no lock, not exact while others are at work.
    pub fn free_hint(&self) -> u64 {
        self.devices()
            .filter(|(_, d)| d.running() == Running::On)
            .map(|(_, d)| d.free_hint())
            .sum()
    }

    /// Whether the slots, all of one cluster, are in use by us and lent to nobody.
    pub fn is_own(&self, entry: SwapEntry, nr: u64) -> bool {
        let look = |shard: &mut Shard, idx, start, nr| {
            shard
                .is_own(idx, start, nr)
                .then_some(())
                .ok_or(EntryError::NotInUse)
        };
        self.of(entry)
            .is_ok_and(|device| device.for_runs(entry.slot(), nr, look).is_ok())
    }

    /// Somebody else may read all that is in use now, until [`end_loans`](Self::end_loans). Takes
    /// the same time however much that is.
    pub fn lend(&self) {
        for (_, device) in self.devices() {
            for s in 0..device.nr_shards() {
                device.with_shard(s, |shard| shard.lends += 1);
            }
        }
    }

    /// Nobody reads any more what was lent, but for clusters that are `kept`. Nothing may be lent
    /// meanwhile. Looks at the clusters of the device below slot `end`.
    pub fn end_loans(&self, id: DeviceId, end: u64, kept: impl Fn(u64) -> bool) {
        let Some(device) = self.device(id) else {
            return;
        };
        let clusters = end.min(device.max_slots.load(Relaxed)) / SWAPFILE_CLUSTER as u64;
        for s in 0..device.nr_shards() {
            let of_shard = clusters.div_ceil(device.nr_shards() as u64);
            for first in (0..of_shard).step_by(BATCH as usize) {
                device.with_shard(s, |shard| {
                    let last = (first + BATCH).min(of_shard.min(shard.nr_clusters.into()));
                    for idx in first..last {
                        if !kept(idx * device.nr_shards() as u64 + s as u64) {
                            shard.end_loans(idx as u32);
                        }
                    }
                });
            }
        }
    }

    /// In a forked child, after [`fork_release`](Self::fork_release): nothing is ours.
    pub fn start_over(&self) {
        for (_, device) in self.devices() {
            device.start_over();
        }
    }
}

/// Neighbouring slots of one device, more than an [`Extent`] has.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub device: DeviceId,
    pub start: u64,
    pub end: u64,
}
