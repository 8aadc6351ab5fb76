//! All swap devices together.

use super::error::{AddDeviceError, EntryError, Inconsistent};
use super::table::Table;
use crate::sync::{AtomicU64, Lock, Ordering::Relaxed};
use hugeswap_mm::{DeviceId, Extents, SwapEntry, MAX_SLOTS, MAX_SWAPFILES, SWAPFILE_CLUSTER};

const CLUSTER: u64 = SWAPFILE_CLUSTER as u64;
/// Clusters that are looked at under one hold of a lock.
const BATCH: u64 = 16;

#[derive(Debug)]
struct Device {
    clusters: u64,
    table: Lock<Table>,
    /// What the table says, for those who do not hold the lock: a hint.
    free: AtomicU64,
}

impl Device {
    /// Runs `f` with the lock held.
    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut Table) -> R) -> R {
        let mut table = self.table.lock();
        let result = f(&mut table);
        self.free.store(table.free_slots(), Relaxed);
        result
    }
}

/// The swap devices, and which of their slots are free.
///
/// Each device has a lock of its own; no two are held at once but by
/// [`fork_prepare`](Self::fork_prepare), which takes them in the order of the devices.
#[derive(Debug)]
pub struct SwapSpace {
    devices: Box<[Device]>,
}

/// Neighbouring slots of one device, more than an extent has.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub device: DeviceId,
    pub start: u64,
    pub end: u64,
}

/// Cluster, and slot within it.
#[inline]
fn locate(slot: u64) -> (u32, usize) {
    ((slot / CLUSTER) as u32, (slot % CLUSTER) as usize)
}

impl SwapSpace {
    /// Devices of so many clusters, numbered in this order; nothing is ours to use yet. Their tables are
    /// address space until clusters are.
    pub fn new(clusters: &[u64]) -> Result<SwapSpace, AddDeviceError> {
        if clusters.len() > MAX_SWAPFILES {
            return Err(AddDeviceError::TooManyDevices);
        }
        let device = |(n, &clusters): (usize, &u64)| {
            if clusters > MAX_SLOTS / CLUSTER {
                return Err(AddDeviceError::TooLarge { clusters });
            }
            let id = DeviceId::new(n as u8).ok_or(AddDeviceError::TooManyDevices)?;
            let table = Table::new(id, clusters as usize).ok_or(AddDeviceError::NoMemory)?;
            Ok(Device {
                clusters,
                table: Lock::new(table),
                free: AtomicU64::new(0),
            })
        };
        let devices: Result<Box<[Device]>, AddDeviceError> =
            clusters.iter().enumerate().map(device).collect();
        Ok(SwapSpace { devices: devices? })
    }

    #[inline]
    fn device(&self, id: DeviceId) -> Option<&Device> {
        self.devices.get(id.index())
    }

    /// The slots of `segment`, whole clusters, are ours to use from now on.
    pub fn online(&self, segment: Segment) {
        self.for_clusters(segment, |table, idx| table.online(idx));
    }

    /// Stops using those of the segment's clusters that are ours and of which every slot is free. Says
    /// which they were: bit n for the segment's cluster n. A segment has no more than 64.
    pub fn offline(&self, segment: Segment) -> u64 {
        let (mut gone, mut n) = (0, 0);
        self.for_clusters(segment, |table, idx| {
            gone |= u64::from(table.offline(idx)) << n;
            n += 1;
        });
        gone
    }

    fn for_clusters(&self, segment: Segment, mut f: impl FnMut(&mut Table, u32)) {
        let Some(device) = self.device(segment.device) else {
            return;
        };
        let end = segment.end.min(device.clusters * CLUSTER);
        for slot in (segment.start..end).step_by(SWAPFILE_CLUSTER) {
            device.with(|table| f(table, locate(slot).0));
        }
    }

    /// Whether the device gives no slots: it is being swapped off.
    pub fn set_leaving(&self, id: DeviceId, leaving: bool) {
        if let Some(device) = self.device(id) {
            device.with(|table| table.leaving = leaving);
        }
    }

    /// Slots for `nr` pages on one device: for 512 of them a whole cluster, for fewer as few extents
    /// as there is room for. False if there is no such room; nothing is taken then.
    pub fn alloc_on(&self, id: DeviceId, nr: usize, out: &mut Extents) -> bool {
        out.clear();
        let Some(device) = self.device(id) else {
            return false;
        };
        device.with(|table| {
            if nr == SWAPFILE_CLUSTER {
                return table.alloc_cluster().is_some_and(|extent| out.push(extent));
            }
            table.free_slots() >= nr as u64 && table.gather(nr, out) == 0
        })
    }

    /// Slots for `nr` pages wherever any are free, the first device first. False, and nothing is taken, if
    /// fewer are free. Only one thread may allocate at a time: another could hold half of what both need.
    pub fn alloc_from_all(&self, nr: usize, out: &mut Extents) -> bool {
        out.clear();
        let mut want = nr;
        for device in &self.devices {
            want = device.with(|table| table.gather(want, out));
        }
        if want > 0 {
            for extent in out.iter() {
                // Ours since a moment ago: can't fail.
                let _ = self.free(extent.entry, extent.nr.into());
            }
            out.clear();
        }
        want == 0
    }

    /// Runs `f` on the piece of `nr` slots from `entry` on in each cluster, in order, until one fails.
    #[inline]
    fn for_runs(
        &self,
        entry: SwapEntry,
        nr: u64,
        mut f: impl FnMut(&mut Table, u32, usize, usize) -> Result<(), EntryError>,
    ) -> Result<(), EntryError> {
        let device = self.device(entry.device());
        let device = device.ok_or(EntryError::NoSuchSlot)?;
        let mut at = entry.slot();
        let end = at.saturating_add(nr);
        if nr == 0 || end > device.clusters * CLUSTER {
            return Err(EntryError::NoSuchSlot);
        }
        while at < end {
            let (idx, offset) = locate(at);
            let run = (end - at).min(CLUSTER - offset as u64);
            device.with(|table| f(table, idx, offset, run as usize))?;
            at += run;
        }
        Ok(())
    }

    /// The contents of `nr` slots are not needed. Gives how many got free by that: what is lent is free
    /// when the loan ends. All or nothing within a cluster.
    #[inline]
    pub fn free(&self, entry: SwapEntry, nr: u64) -> Result<u64, EntryError> {
        let mut freed = 0;
        self.for_runs(entry, nr, |table, idx, start, nr| {
            freed += u64::from(table.free(idx, start, nr)?);
            Ok(())
        })?;
        Ok(freed)
    }

    /// As [`free`](Self::free), of slots that the device failed on: they are never handed out again.
    pub fn give_up(&self, entry: SwapEntry, nr: u64) -> Result<(), EntryError> {
        self.for_runs(entry, nr, |table, idx, start, nr| {
            table.give_up(idx, start, nr)
        })
    }

    /// Whether the slots are in use by us and lent to nobody.
    pub fn is_own(&self, entry: SwapEntry, nr: u64) -> bool {
        let look = |table: &mut Table, idx, start, nr| match table.is_own(idx, start, nr) {
            true => Ok(()),
            false => Err(EntryError::NotInUse),
        };
        self.for_runs(entry, nr, look).is_ok()
    }

    /// Somebody else may read all that is in use now, until [`end_loans`](Self::end_loans). Takes
    /// the same time however much that is.
    pub fn lend(&self) {
        for device in &self.devices {
            device.with(|table| table.lends = table.lends.wrapping_add(1));
        }
    }

    /// Nobody reads any more what was lent, but for clusters that are `kept`. Nothing may be lent
    /// meanwhile. Looks at the clusters of the device below slot `end`.
    pub fn end_loans(&self, id: DeviceId, end: u64, kept: impl Fn(u64) -> bool) {
        let Some(device) = self.device(id) else {
            return;
        };
        let clusters = (end / CLUSTER).min(device.clusters);
        for first in (0..clusters).step_by(BATCH as usize) {
            device.with(|table| {
                for idx in first..(first + BATCH).min(clusters) {
                    if !kept(idx) {
                        table.end_loans(idx as u32);
                    }
                }
            });
        }
    }

    /// In a forked child, after [`fork_release`](Self::fork_release): nothing is ours.
    pub fn start_over(&self) {
        for device in &self.devices {
            device.with(Table::reset);
        }
    }

    /// Takes every lock. Between this and [`fork_release`](Self::fork_release),
    /// in parent and child, nothing else of the space may be called.
    pub fn fork_prepare(&self) {
        for device in &self.devices {
            device.table.hold();
        }
    }

    /// Gives every lock back, in the parent and in the child, each of which has
    /// its own copy of the space from then on.
    ///
    /// # Safety
    /// Answers one [`fork_prepare`](Self::fork_prepare) in this process.
    #[allow(unsafe_code)]
    pub unsafe fn fork_release(&self) {
        for device in &self.devices {
            // SAFETY: the caller's promise, for each of the locks.
            unsafe { device.table.release_held() };
        }
    }

    /// Clusters of a device that are ours and empty.
    pub fn free_clusters(&self, id: DeviceId) -> u64 {
        let free = |device: &Device| device.table.lock().free_clusters().into();
        self.device(id).map_or(0, free)
    }

    /// Slots with a user, or lent, over all devices.
    pub fn used_slots(&self) -> u64 {
        self.devices.iter().map(|d| d.table.lock().used).sum()
    }

    /// The same of one device; 0 if there is none.
    pub fn device_used_slots(&self, id: DeviceId) -> u64 {
        self.device(id).map_or(0, |d| d.table.lock().used)
    }

    /// Slots that can be had now, over all devices that give any.
    pub fn free_slots(&self) -> u64 {
        let free = |device: &Device| device.table.lock().free_slots();
        self.devices.iter().map(free).sum()
    }

    /// The same by the hints: no lock, not exact while others are at work.
    pub fn free_hint(&self) -> u64 {
        self.devices.iter().map(|d| d.free.load(Relaxed)).sum()
    }

    /// Checks the whole state against itself, device by device. For tests: it
    /// allocates and takes time in proportion to the devices' size.
    pub fn validate(&self) -> Result<(), Inconsistent> {
        for (device, d) in self.devices.iter().enumerate() {
            let valid = d.table.lock().validate();
            valid.map_err(|(what, cluster)| Inconsistent {
                what,
                device,
                cluster,
            })?;
        }
        Ok(())
    }
}
