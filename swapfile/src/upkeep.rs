//! Beside the taking and giving of slots: whole folios' users, discards, the
//! reclaim of slots that only the swap cache has, and swapping a device off.

use super::device::Running;
use super::error::{DeviceError, EntryError, NoRoom};
use super::space::SwapSpace;
use crate::sync::Ordering::Relaxed;
use hugeswap_mm::{DeviceId, Extent, Extents, Order, SwapEntry, SWAPFILE_CLUSTER};

impl SwapSpace {
    /// Takes a user from every slot of a folio; returns how many got free. Goes on
    /// after an entry that is wrong, and tells of the first such.
    pub fn free_extents(&self, extents: &[Extent]) -> Result<u64, EntryError> {
        let mut result = Ok(0);
        for extent in extents {
            match (self.free(extent.entry, extent.nr.into()), &mut result) {
                (Ok(freed), Ok(sum)) => *sum += freed,
                (Err(e), Ok(_)) => result = Err(e),
                (_, Err(_)) => {}
            }
        }
        result
    }

    /// Adds a user to every slot of a folio, or to none.
    pub fn dup_extents(&self, extents: &[Extent]) -> Result<(), EntryError> {
        for (i, extent) in extents.iter().enumerate() {
            if let Err(e) = self.dup(extent.entry, extent.nr.into()) {
                // Added a moment ago, so there to be taken.
                let _ = self.free_extents(&extents[..i]);
                return Err(e);
            }
        }
        Ok(())
    }

    /// Adds up to `max` clusters to discard to `batch`, each a whole extent.
    /// They can't be had until [`discard_done`](Self::discard_done); clusters
    /// still queued can, undiscarded, when there is nothing else.
    pub fn next_discard(&self, batch: &mut Extents, max: usize) -> usize {
        let mut taken = 0;
        for (_, device) in self.devices() {
            for shard in 0..device.nr_shards() {
                device.with_shard(shard, |shard| {
                    while taken < max && batch.len() < SWAPFILE_CLUSTER {
                        let Some(entry) = shard.next_discard() else {
                            break;
                        };
                        batch.push(Extent {
                            entry,
                            nr: SWAPFILE_CLUSTER as u16,
                        });
                        taken += 1;
                    }
                });
            }
        }
        taken
    }

    /// The discards of `batch` are done, or failed: the slots can be had again
    /// either way. Returns how many clusters really were under discard.
    pub fn discard_done(&self, batch: &[Extent]) -> usize {
        let mut done = 0;
        for extent in batch {
            let Some(device) = self.device(extent.entry.device()) else {
                continue;
            };
            if extent.entry.slot() >= device.max_slots.load(Relaxed) {
                continue;
            }
            let (s, idx, _) = device.locate(extent.entry.slot());
            done += usize::from(device.with_shard(s, |shard| shard.discard_done(idx)));
        }
        done
    }

    /// Adaptive reclaim: runs of slots that only the swap cache has, in full
    /// clusters, looking at up to `clusters` of each shard. The caller drops
    /// their folios and calls [`cache_clear`](Self::cache_clear). Does nothing
    /// unless [`vm_swap_full`](Self::vm_swap_full) or `force`.
    pub fn reclaim_full(&self, clusters: usize, force: bool, out: &mut Extents) -> usize {
        if !force && !self.vm_swap_full() {
            return 0;
        }
        let before = out.len();
        for (_, device) in self.devices() {
            for shard in 0..device.nr_shards() {
                device.with_shard(shard, |shard| {
                    for _ in 0..clusters.min(shard.nr_full() as usize) {
                        if !shard.reclaim_full(out) {
                            break;
                        }
                    }
                });
            }
        }
        out.len() - before
    }

    /// [`alloc`](Self::alloc), and when there is no room the same again with what
    /// the swap cache lets go of: of full clusters first, then of any. `let_go`
    /// drops the folios of such a run and calls [`cache_clear`](Self::cache_clear);
    /// it says whether it did. No lock is held while it runs.
    pub fn alloc_or_reclaim(
        &self,
        order: Order,
        out: &mut Extents,
        spare: &mut Extents,
        mut let_go: impl FnMut(Extent) -> bool,
    ) -> Result<(), NoRoom> {
        loop {
            let Err(no_room) = self.alloc(order, out) else {
                return Ok(());
            };
            spare.clear();
            if self.reclaim_full(4, true, spare) == 0 {
                self.cache_only(spare);
            }
            let went = spare.iter().filter(|run| let_go(**run)).count();
            if went == 0 {
                return Err(no_room);
            }
        }
    }

    /// Runs of slots that only the swap cache has, anywhere, until `out` is full.
    fn cache_only(&self, out: &mut Extents) {
        for (_, device) in self.devices() {
            let max = device.max_slots.load(Relaxed);
            let mut slot = 0;
            while slot < max && out.len() < SWAPFILE_CLUSTER {
                let (s, idx, _) = device.locate(slot);
                device.with_shard(s, |shard| shard.cache_only_runs(idx, out));
                slot += SWAPFILE_CLUSTER as u64;
            }
        }
    }

    /// Begins to swap a device off: it gives no slot any more, the others go
    /// on. Bring in, or move, what [`next_in_use`](Self::next_in_use) tells.
    pub fn swapoff_begin(&self, id: DeviceId) -> Result<(), DeviceError> {
        let _topology = self.topology.lock();
        let device = self.device(id).ok_or(DeviceError::NoSuchDevice)?;
        if device.running() == Running::Off {
            return Err(DeviceError::NoSuchDevice);
        }
        device.set_running(Running::Draining);
        self.rank();
        Ok(())
    }

    /// First run of slots in use at or after slot `from` of the device, within
    /// one cluster.
    pub fn next_in_use(&self, id: DeviceId, from: u64) -> Option<Extent> {
        let device = self.device(id)?;
        let max = device.max_slots.load(Relaxed);
        let mut slot = from;
        while slot < max {
            let (s, idx, offset) = device.locate(slot);
            if let Some((start, nr)) = device.with_shard(s, |shard| shard.next_in_use(idx, offset))
            {
                return Some(Extent {
                    entry: SwapEntry::new(id, slot - offset as u64 + start as u64)?,
                    nr: nr as u16,
                });
            }
            slot += (SWAPFILE_CLUSTER - offset) as u64;
        }
        None
    }

    /// Changes its mind: the device gives slots again.
    pub fn swapoff_cancel(&self, id: DeviceId) -> Result<(), DeviceError> {
        let _topology = self.topology.lock();
        let device = self.device(id).ok_or(DeviceError::NoSuchDevice)?;
        if device.running() != Running::Draining {
            return Err(DeviceError::NotDraining);
        }
        device.set_running(Running::On);
        self.rank();
        Ok(())
    }

    /// Lets go of a device none of whose slots is in use any more.
    pub fn swapoff_end(&self, id: DeviceId) -> Result<(), DeviceError> {
        let _topology = self.topology.lock();
        let device = self.device(id).ok_or(DeviceError::NoSuchDevice)?;
        if device.running() != Running::Draining {
            return Err(DeviceError::NotDraining);
        }
        match device.sum(|shard| shard.used) {
            0 => {}
            slots => return Err(DeviceError::InUse { slots }),
        }
        match device.sum(|shard| shard.discarding) {
            0 => {}
            slots => return Err(DeviceError::Discarding { slots }),
        }
        device.set_running(Running::Off);
        Ok(())
    }
}
