//! One swap device: its shards, and where in them a slot's bookkeeping is.

use super::error::{AddDeviceError, EntryError};
use super::lists::Algorithm;
use super::shard::Shard;
use crate::sync::{
    AtomicI32, AtomicU64, AtomicU8, CachePadded, Lock, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use hugeswap_mm::{DeviceId, Extents, Order, SwapEntry, MAX_SLOTS, SWAPFILE_CLUSTER};

/// What is known of a device when it is added.
#[derive(Clone, Copy, Debug)]
pub struct DeviceConfig {
    /// Slots, the header's included.
    pub max_slots: u64,
    /// How far [`grow`](super::SwapSpace::grow) may go; only address space is
    /// taken for it. 0 means `max_slots`.
    pub reserve_slots: u64,
    /// 0 to 32767, the highest is used first. `None` ranks behind all devices
    /// added before.
    pub prio: Option<i32>,
    /// Seeks are dear: all CPUs allocate from one current cluster.
    pub rotational: bool,
    /// Clusters that got free are to be discarded before they are used again.
    pub discard: bool,
    /// Its clusters can be used only from [`online`](super::SwapSpace::online) to
    /// [`offline`](super::SwapSpace::offline): others have the rest of it.
    pub segmented: bool,
    /// Slot 0 is a header, as `mkswap` writes.
    pub header: bool,
    /// Tells devices apart (such as device and inode number); 0 is never compared.
    pub key: u64,
}

impl DeviceConfig {
    /// A device of `max_slots`, without header, in every other way plain.
    pub fn new(max_slots: u64) -> Self {
        DeviceConfig {
            max_slots,
            reserve_slots: 0,
            prio: None,
            rotational: false,
            discard: false,
            segmented: false,
            header: false,
            key: 0,
        }
    }

    /// The same for a device of so many bytes.
    pub fn from_bytes(bytes: u64) -> Result<Self, AddDeviceError> {
        let page = hugeswap_mm::PAGE_SIZE as u64;
        if bytes == 0 {
            return Err(AddDeviceError::ZeroSize);
        }
        if bytes % page != 0 {
            return Err(AddDeviceError::NotPageMultiple { bytes });
        }
        Ok(DeviceConfig::new(bytes / page))
    }

    pub(super) fn check(&self) -> Result<(), AddDeviceError> {
        let slots = self.max_slots;
        if slots == 0 || (slots == 1 && self.header) {
            return Err(AddDeviceError::ZeroSize);
        }
        let reserve = self.reserve();
        if slots.max(reserve) > MAX_SLOTS {
            return Err(AddDeviceError::TooLarge {
                slots: slots.max(reserve),
            });
        }
        if reserve < slots {
            return Err(AddDeviceError::ReserveBelowSize { slots, reserve });
        }
        match self.prio {
            Some(prio) if !(0..=i32::from(i16::MAX)).contains(&prio) => {
                Err(AddDeviceError::PriorityOutOfRange { prio })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn reserve(&self) -> u64 {
        if self.reserve_slots == 0 {
            self.max_slots
        } else {
            self.reserve_slots
        }
    }
}

/// Whether a device gives slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Running {
    Off = 0,
    On = 1,
    /// Being swapped off: entries are valid, none are given.
    Draining = 2,
}

#[derive(Debug)]
pub(super) struct ShardCell {
    lock: Lock<Shard>,
    /// Copies of what the shard says, for those who do not hold the lock: hints
    /// where to look, never the ground for a refusal.
    reach: AtomicU8,
    free: AtomicU64,
}

/// A swap device. It stays where it is once made: racing readers may hold on to it.
#[derive(Debug)]
pub(super) struct Device {
    shards: Box<[CachePadded<ShardCell>]>,
    shift: u32,
    pub reserve: u64,
    pub max_slots: AtomicU64,
    pub prio: AtomicI32,
    pub key: AtomicU64,
    running: AtomicU8,
    algorithm: Algorithm,
    segmented: bool,
}

impl Device {
    pub fn new(
        id: DeviceId,
        config: &DeviceConfig,
        nr_cpus: usize,
        algorithm: Algorithm,
    ) -> Option<Device> {
        let clusters = config.reserve().div_ceil(SWAPFILE_CLUSTER as u64);
        let shift = shift_for(config, nr_cpus, algorithm);
        let capacity = clusters.div_ceil(1 << shift);
        let shards = (0..1u32 << shift)
            .map(|index| {
                let shard = Shard::new(
                    id,
                    index,
                    shift,
                    u32::try_from(capacity).ok()?,
                    algorithm,
                    config.discard,
                    config.segmented,
                )?;
                Some(CachePadded(ShardCell {
                    lock: Lock::new(shard),
                    reach: AtomicU8::new(0),
                    free: AtomicU64::new(0),
                }))
            })
            .collect::<Option<Vec<_>>>()?;
        let device = Device {
            shards: shards.into_boxed_slice(),
            shift,
            reserve: config.reserve(),
            max_slots: AtomicU64::new(0),
            prio: AtomicI32::new(0),
            key: AtomicU64::new(config.key),
            running: AtomicU8::new(Running::Off as u8),
            algorithm,
            segmented: config.segmented,
        };
        device.open(config);
        Some(device)
    }

    /// Whether a device that was swapped off can become one of `config`.
    pub fn fits(&self, config: &DeviceConfig, nr_cpus: usize) -> bool {
        self.running() == Running::Off
            && self.reserve >= config.reserve()
            && self.shift == shift_for(config, nr_cpus, self.algorithm)
            && self.segmented == config.segmented
    }

    /// Starts over with empty tables.
    pub fn reopen(&self, config: &DeviceConfig) {
        for s in 0..self.shards.len() {
            self.with_shard(s, |shard| shard.reset(config.discard));
        }
        self.max_slots.store(0, Relaxed);
        self.key.store(config.key, Relaxed);
        self.open(config);
    }

    /// As when it was added: in a forked child, where all of it is the parent's.
    pub fn start_over(&self) {
        for s in 0..self.shards.len() {
            self.with_shard(s, |shard| shard.reset(shard.discard));
        }
        let slots = self.max_slots.swap(0, Relaxed);
        self.resize(slots);
    }

    fn open(&self, config: &DeviceConfig) {
        self.resize(config.max_slots);
        if config.header {
            self.with_shard(0, |shard| shard.mark_bad(0, 0, 1));
        }
    }

    /// From the present size to a larger one.
    pub fn resize(&self, slots: u64) {
        let cluster = SWAPFILE_CLUSTER as u64;
        let old = self.max_slots.load(Relaxed);
        let nr = self.shards.len() as u64;
        let (old_tail, tail) = ((old % cluster) as usize, (slots % cluster) as usize);
        if old_tail != 0 {
            let (s, idx, from) = self.locate(old);
            self.with_shard(s, |shard| shard.forgive(idx, from));
        }
        let clusters = slots.div_ceil(cluster);
        for s in 0..self.shards.len() {
            let local = (clusters + nr - 1 - s as u64) >> self.shift;
            self.with_shard(s, |shard| shard.extend(local as u32));
        }
        if tail != 0 {
            let (s, idx, from) = self.locate(slots);
            self.with_shard(s, |shard| {
                shard.mark_bad(idx, from, SWAPFILE_CLUSTER - from);
            });
        }
        if self.algorithm == Algorithm::Linux612 {
            self.with_shard(0, Shard::linux_setup);
        }
        self.max_slots.store(slots, Release);
    }

    pub fn running(&self) -> Running {
        match self.running.load(Acquire) {
            1 => Running::On,
            2 => Running::Draining,
            _ => Running::Off,
        }
    }

    pub fn set_running(&self, running: Running) {
        for s in 0..self.shards.len() {
            self.with_shard(s, |shard| shard.writable = running == Running::On);
        }
        self.running.store(running as u8, Release);
    }

    pub fn nr_shards(&self) -> usize {
        self.shards.len()
    }

    /// Runs `f` with the shard's lock held.
    #[inline]
    pub fn with_shard<R>(&self, s: usize, f: impl FnOnce(&mut Shard) -> R) -> R {
        let cell = &self.shards[s];
        let mut shard = cell.lock.lock();
        let result = f(&mut shard);
        cell.reach.store(shard.reach(), Relaxed);
        cell.free.store(shard.free_slots(), Relaxed);
        result
    }

    /// Shard, cluster within the shard, and slot within the cluster.
    #[inline]
    pub fn locate(&self, slot: u64) -> (usize, u32, usize) {
        let cluster = slot / SWAPFILE_CLUSTER as u64;
        (
            cluster as usize & (self.shards.len() - 1),
            (cluster >> self.shift) as u32,
            slot as usize % SWAPFILE_CLUSTER,
        )
    }

    /// Runs `f` on the piece of `[slot, slot + nr)` in each cluster, in order,
    /// until one fails.
    #[inline]
    pub fn for_runs(
        &self,
        slot: u64,
        nr: u64,
        mut f: impl FnMut(&mut Shard, u32, usize, usize) -> Result<(), EntryError>,
    ) -> Result<(), EntryError> {
        let end = slot.saturating_add(nr);
        if nr == 0 || end > self.max_slots.load(Acquire) || self.running() == Running::Off {
            return Err(EntryError::NoSuchSlot);
        }
        let mut at = slot;
        while at < end {
            let (s, idx, offset) = self.locate(at);
            let run = (end - at).min((SWAPFILE_CLUSTER - offset) as u64);
            self.with_shard(s, |shard| f(shard, idx, offset, run as usize))?;
            at += run;
        }
        Ok(())
    }

    #[inline]
    fn home(&self, cpu: usize) -> usize {
        cpu & (self.shards.len() - 1)
    }

    /// Shards from the CPU's own onward, all round.
    fn round(&self, cpu: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.shards.len()).map(move |i| self.home(cpu + i))
    }

    /// From the CPU's current cluster only.
    #[inline]
    pub fn alloc_current(&self, cpu: usize, order: Order) -> Option<SwapEntry> {
        if self.algorithm == Algorithm::Linux612 {
            return None;
        }
        self.with_shard(self.home(cpu), |shard| shard.alloc_current(order))
    }

    /// From the CPU's own shard, as long as that breaks up nothing.
    #[inline]
    pub fn alloc_home(&self, cpu: usize, order: Order) -> Option<SwapEntry> {
        if self.algorithm == Algorithm::Linux612 {
            return None;
        }
        self.with_shard(self.home(cpu), |shard| shard.alloc_home(order))
    }

    /// Exactly at this slot, if the place is free.
    pub fn alloc_at(&self, slot: u64, order: Order) -> Option<SwapEntry> {
        if slot >= self.max_slots.load(Relaxed) || self.algorithm == Algorithm::Linux612 {
            return None;
        }
        let (s, idx, start) = self.locate(slot);
        self.with_shard(s, |shard| shard.alloc_at(idx, start, order))
    }

    /// In one piece, wherever on this device it fits.
    pub fn alloc_contiguous(&self, cpu: usize, order: Order) -> Option<SwapEntry> {
        if self.algorithm == Algorithm::Linux612 {
            return self.with_shard(0, |shard| shard.linux_alloc(order));
        }
        let home = self.home(cpu);
        let fits = |s: &usize| self.shards[*s].reach.load(Relaxed) > order.get();
        self.with_shard(home, |shard| shard.alloc_home(order))
            .or_else(|| {
                self.round(cpu)
                    .skip(1)
                    .filter(fits)
                    .find_map(|s| self.with_shard(s, |shard| shard.alloc_home(order)))
            })
            .or_else(|| {
                self.round(cpu)
                    .filter(fits)
                    .find_map(|s| self.with_shard(s, |shard| shard.alloc_anywhere(order)))
            })
    }

    /// In several pieces, all from one shard: from the one with the largest.
    pub fn alloc_spread(&self, cpu: usize, order: Order, out: &mut Extents) -> bool {
        let want = order.nr_pages();
        let best = self
            .round(cpu)
            .filter(|&s| self.shards[s].free.load(Relaxed) >= want as u64)
            .max_by_key(|&s| self.shards[s].reach.load(Relaxed));
        best.is_some_and(|s| {
            self.with_shard(s, |shard| {
                shard.writable
                    && shard.free_slots() >= want as u64
                    && shard.gather(order, want, 0, out) == 0
            })
        })
    }

    /// As much of `want` as there is in blocks of at least order `least`;
    /// returns how much is still wanted.
    pub fn gather(&self, order: Order, mut want: usize, least: u8, out: &mut Extents) -> usize {
        for s in 0..self.shards.len() {
            if want == 0 {
                break;
            }
            want = self.with_shard(s, |shard| shard.gather(order, want, least, out));
        }
        want
    }

    /// A sum over the shards, each looked at under its lock.
    pub fn sum(&self, mut f: impl FnMut(&Shard) -> u64) -> u64 {
        (0..self.shards.len())
            .map(|s| f(&self.shards[s].lock.lock()))
            .sum()
    }

    /// Free slots by the hints: no lock, not exact while others are at work.
    pub fn free_hint(&self) -> u64 {
        self.shards.iter().map(|cell| cell.free.load(Relaxed)).sum()
    }

    /// Takes every lock, for the time around fork(2).
    pub fn hold(&self) {
        for cell in self.shards.iter() {
            cell.lock.hold();
        }
    }

    /// # Safety
    /// Answers a [`hold`](Self::hold).
    #[allow(unsafe_code)]
    pub unsafe fn release_held(&self) {
        for cell in self.shards.iter() {
            // SAFETY: the caller's promise, for each of the locks.
            unsafe { cell.lock.release_held() };
        }
    }
}

/// log2 of the shards of a device: one for each CPU, but none with only a
/// handful of clusters.
fn shift_for(config: &DeviceConfig, nr_cpus: usize, algorithm: Algorithm) -> u32 {
    if config.rotational || algorithm == Algorithm::Linux612 {
        return 0;
    }
    let clusters = config.reserve() / SWAPFILE_CLUSTER as u64;
    let most = (clusters / 8).clamp(1, super::MAX_SHARDS as u64) as usize;
    let shards = nr_cpus.max(1).next_power_of_two();
    shards.min(most).ilog2()
}
