//! The clusters of a device, their lists and their counts: what its lock covers.
//!
//! Everything here runs with that lock held (`&mut self`) and neither allocates, nor sleeps, nor takes
//! another lock.

use super::bitmap::Bitmap;
use super::cluster::{ClusterInfo, TOP_EMPTY};
use super::error::EntryError;
use super::lists::{End, Lists};
use super::memory::LazySlice;
use hugeswap_mm::{DeviceId, Extent, Extents, SwapEntry, SWAPFILE_CLUSTER};

#[derive(Debug)]
pub struct Table {
    pub(super) clusters: LazySlice<ClusterInfo>,
    pub(super) lists: Lists,
    device: DeviceId,
    /// Gives no slots: it is being swapped off.
    pub(super) leaving: bool,
    /// Clusters that are ours.
    pub(super) nr_online: u32,
    /// Times that everything in use was lent.
    pub(super) lends: u32,
    pub(super) used: u64,
    pub(super) bad: u64,
}

impl Table {
    /// `None` when the kernel grants no address space.
    pub fn new(device: DeviceId, clusters: usize) -> Option<Table> {
        Some(Table {
            clusters: LazySlice::new(clusters)?,
            lists: Lists::default(),
            device,
            leaving: false,
            nr_online: 0,
            lends: 0,
            used: 0,
            bad: 0,
        })
    }

    /// Nothing is ours any more; the memory is given back.
    pub fn reset(&mut self) {
        self.clusters.reset();
        self.lists = Lists::default();
        (self.nr_online, self.lends) = (0, 0);
        (self.used, self.bad) = (0, 0);
    }

    /// Slots that can be had.
    #[inline]
    pub fn free_slots(&self) -> u64 {
        if self.leaving {
            return 0;
        }
        u64::from(self.nr_online) * SWAPFILE_CLUSTER as u64 - self.used - self.bad
    }

    /// Clusters with every slot free.
    #[inline]
    pub fn free_clusters(&self) -> u32 {
        self.lists.nr(TOP_EMPTY)
    }

    /// The cluster is ours to use from now on, every slot free.
    pub fn online(&mut self, idx: u32) {
        let ci = &mut self.clusters[idx as usize];
        if ci.online {
            return;
        }
        *ci = ClusterInfo {
            online: true,
            top: TOP_EMPTY,
            ..ClusterInfo::default()
        };
        self.nr_online += 1;
        self.lists.link(&mut self.clusters, idx, End::Tail);
    }

    /// Stops using the cluster if every slot of it is free.
    pub fn offline(&mut self, idx: u32) -> bool {
        let ci = &self.clusters[idx as usize];
        if !ci.online || !ci.is_empty() {
            return false;
        }
        self.lists.unlink(&mut self.clusters, idx);
        self.clusters[idx as usize] = ClusterInfo::default();
        self.nr_online -= 1;
        true
    }

    #[inline]
    fn extent(&self, idx: u32, offset: usize, nr: usize) -> Option<Extent> {
        let slot = u64::from(idx) * SWAPFILE_CLUSTER as u64 + offset as u64;
        Some(Extent {
            entry: SwapEntry::new(self.device, slot)?,
            nr: nr as u16,
        })
    }

    /// A cluster with every slot free: the one used last, whose place on the device exists.
    pub fn alloc_cluster(&mut self) -> Option<Extent> {
        let idx = self.lists.head(TOP_EMPTY).filter(|_| !self.leaving)?;
        let extent = self.extent(idx, 0, SWAPFILE_CLUSTER)?;
        self.take(idx, 0, SWAPFILE_CLUSTER);
        Some(extent)
    }

    /// Takes up to `want` slots in as few runs as there is room for; gives how many are still wanted.
    pub fn gather(&mut self, mut want: usize, out: &mut Extents) -> usize {
        while want > 0 && !self.leaving {
            // Best: the smallest block that holds all of it. Else a cluster that is free, or the most at
            // once.
            let order = want.next_power_of_two().trailing_zeros() as u8;
            let fits = self.lists.smallest_from(order + 1);
            let top = match self.lists.head(TOP_EMPTY) {
                Some(_) => fits.unwrap_or(TOP_EMPTY),
                None => match fits.or_else(|| self.lists.largest()) {
                    Some(top) => top,
                    None => break,
                },
            };
            let Some(idx) = self.lists.head(top) else {
                break;
            };
            let (start, run) = self.clusters[idx as usize].longest_free_run();
            let nr = run.min(want);
            let Some(extent) = self.extent(idx, start, nr) else {
                break;
            };
            if nr == 0 || !out.push(extent) {
                break;
            }
            self.take(idx, start, nr);
            want -= nr;
        }
        want
    }

    /// Gives the run to a user.
    #[inline]
    fn take(&mut self, idx: u32, start: usize, nr: usize) {
        self.catch_up(idx);
        let ci = &mut self.clusters[idx as usize];
        ci.used.set(start, nr);
        ci.held.set(start, nr);
        ci.count += nr as u16;
        self.used += nr as u64;
        if nr == SWAPFILE_CLUSTER {
            ci.top = 0;
        } else {
            ci.recompute_top();
        }
        self.lists.relink(&mut self.clusters, idx, End::Tail);
    }

    /// Gives slots back that nobody has any more.
    #[inline]
    fn release(&mut self, idx: u32, start: usize, nr: usize) {
        let ci = &mut self.clusters[idx as usize];
        ci.used.clear(start, nr);
        ci.count -= nr as u16;
        self.used -= nr as u64;
        let mut end = End::Tail;
        if ci.is_empty() {
            (ci.top, end) = (TOP_EMPTY, End::Head);
        } else if nr.is_power_of_two() && start % nr == 0 {
            ci.top = ci.top.max(ci.used.block_around(start) + 1);
        } else {
            ci.recompute_top();
        }
        self.lists.relink(&mut self.clusters, idx, end);
    }

    /// Takes the user from each slot, or from none; gives how many got free.
    #[inline]
    pub fn free(&mut self, idx: u32, start: usize, nr: usize) -> Result<u32, EntryError> {
        self.catch_up(idx);
        let ci = &mut self.clusters[idx as usize];
        if !ci.held.all(start, nr) {
            return Err(EntryError::NotInUse);
        }
        ci.held.clear(start, nr);
        if !ci.lent.any(start, nr) {
            self.release(idx, start, nr);
            return Ok(nr as u32);
        }
        let not_lent = Bitmap::EMPTY.with(start, nr);
        let not_lent = not_lent.zip(&ci.lent, |run, lent| run & !lent);
        Ok(self.release_all(idx, not_lent))
    }

    /// As `free`; but the slots are never handed out again.
    pub fn give_up(&mut self, idx: u32, start: usize, nr: usize) -> Result<(), EntryError> {
        self.catch_up(idx);
        let ci = &mut self.clusters[idx as usize];
        if !ci.held.all(start, nr) {
            return Err(EntryError::NotInUse);
        }
        // `used` stays set alone, whoever may still read them.
        ci.held.clear(start, nr);
        ci.lent.clear(start, nr);
        ci.count -= nr as u16;
        ci.bad += nr as u16;
        self.used -= nr as u64;
        self.bad += nr as u64;
        Ok(())
    }

    /// Gives back the slots that are set; gives how many.
    fn release_all(&mut self, idx: u32, slots: Bitmap) -> u32 {
        let mut from = 0;
        while from < SWAPFILE_CLUSTER {
            let Some((start, nr)) = slots.next_run(from) else {
                break;
            };
            self.release(idx, start, nr);
            from = start + nr;
        }
        slots.count()
    }

    /// Marks what was in use when it was lent, before anything else changes.
    #[inline]
    fn catch_up(&mut self, idx: u32) {
        let ci = &mut self.clusters[idx as usize];
        if ci.online && ci.lends != self.lends {
            ci.lends = self.lends;
            ci.lent = ci.taken();
        }
    }

    /// Nobody reads what was lent of the cluster any more: what was freed meanwhile is free now.
    pub fn end_loans(&mut self, idx: u32) {
        let ci = &mut self.clusters[idx as usize];
        if !ci.online {
            return;
        }
        ci.lends = self.lends;
        let put_off = ci.put_off();
        ci.lent = Bitmap::EMPTY;
        self.release_all(idx, put_off);
    }

    /// Whether the slots have users and are lent to nobody.
    pub fn is_own(&mut self, idx: u32, start: usize, nr: usize) -> bool {
        self.catch_up(idx);
        let ci = &self.clusters[idx as usize];
        ci.held.all(start, nr) && !ci.lent.any(start, nr)
    }

    /// `Err` with what is wrong and with which cluster.
    pub fn validate(&self) -> Result<(), (&'static str, Option<u32>)> {
        let mut linked = vec![0u8; self.clusters.len()];
        let count = |idx: u32| linked[idx as usize] = linked[idx as usize].saturating_add(1);
        let walked = self.lists.validate(&self.clusters, count);
        walked.map_err(|what| (what, None))?;
        let (mut used, mut bad, mut online) = (0, 0, 0);
        for (idx, ci) in self.clusters.iter().enumerate() {
            let check = || match linked[idx] == u8::from(ci.online) {
                false => Err("cluster is on no list, or on more than one"),
                true => validate_cluster(ci),
            };
            check().map_err(|what| (what, Some(idx as u32)))?;
            used += u64::from(ci.count);
            bad += u64::from(ci.bad);
            online += u32::from(ci.online);
        }
        if (used, bad, online) != (self.used, self.bad, self.nr_online) {
            return Err(("counts don't add up", None));
        }
        Ok(())
    }
}

fn validate_cluster(ci: &ClusterInfo) -> Result<(), &'static str> {
    let taken = ci.taken();
    let top = ci.used.largest_block().map_or(0, |order| order + 1);
    let bad = ci.used.count() - taken.count().min(ci.used.count());
    let checks = [
        (
            ci.list == super::lists::list_of(ci),
            "list does not follow from the largest block",
        ),
        (
            taken.zip(&ci.used, |taken, used| taken & !used) == Bitmap::EMPTY,
            "slot has a user or is lent, but is not in use",
        ),
        (
            taken.count() == u32::from(ci.count),
            "count of slots in use is wrong",
        ),
        (bad == u32::from(ci.bad), "count of bad slots is wrong"),
        (
            ci.online || ci.used == Bitmap::EMPTY,
            "a cluster that is not ours is in use",
        ),
        (!ci.online || ci.top == top, "largest free block is wrong"),
    ];
    let wrong = checks.iter().find(|(holds, _)| !holds);
    wrong.map_or(Ok(()), |&(_, what)| Err(what))
}
