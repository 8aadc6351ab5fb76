//! All swap devices together: which one a folio goes to.

use super::device::{Device, DeviceConfig, Running};
use super::error::{AddDeviceError, DeviceError, EntryError, Inconsistent, NoRoom};
use super::lists::Algorithm;
use super::spread::SpreadCount;
use crate::sync::{
    current_cpu, AtomicU8, CachePadded, Lock, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use hugeswap_mm::{
    DeviceId, Extent, Extents, Order, SwapEntry, MAX_SWAPFILES, PMD_ORDER, SWAP_NR_ORDERS,
};
use std::sync::OnceLock;

/// How a [`SwapSpace`] is set up.
#[derive(Clone, Copy, Debug)]
pub struct SwapConfig {
    pub algorithm: Algorithm,
    /// CPUs that may allocate at the same time; 0 asks the system.
    pub nr_cpus: usize,
}

impl Default for SwapConfig {
    fn default() -> Self {
        SwapConfig {
            algorithm: Algorithm::HugeSwap,
            nr_cpus: 0,
        }
    }
}

/// Device + 1 a CPU last took a cluster of each order from; 0 for none.
type CpuHints = [AtomicU8; SWAP_NR_ORDERS];

/// The swap devices and their free slots.
///
/// Locks, in the order they are taken: `topology`, `gathering`, one shard. No
/// two shards are ever locked at once but by [`fork_prepare`](Self::fork_prepare).
#[derive(Debug)]
pub struct SwapSpace {
    pub(super) algorithm: Algorithm,
    nr_cpus: usize,
    devices: [OnceLock<Device>; MAX_SWAPFILES],
    /// Devices + 1 by falling priority, closed by a 0; written under `topology`.
    ranked: [AtomicU8; MAX_SWAPFILES + 1],
    /// For each place in `ranked` where a group of equals begins: whose turn it is.
    turn: [AtomicU8; MAX_SWAPFILES],
    hints: Box<[CachePadded<CpuHints>]>,
    /// Adding, growing and swapping off. The next priority for a device without one.
    pub(super) topology: Lock<i32>,
    /// Held by the one who picks up the last free slots, so that two do not
    /// each hold half of what both need.
    gathering: Lock<()>,
    pub(super) spread: SpreadCount,
}

impl SwapSpace {
    /// No devices yet.
    pub fn new(config: SwapConfig) -> Self {
        let nr_cpus = match config.nr_cpus {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            nr => nr,
        };
        let nr_cpus = nr_cpus.min(super::MAX_SHARDS);
        SwapSpace {
            algorithm: config.algorithm,
            nr_cpus,
            devices: [const { OnceLock::new() }; MAX_SWAPFILES],
            ranked: std::array::from_fn(|_| AtomicU8::new(0)),
            turn: std::array::from_fn(|_| AtomicU8::new(0)),
            hints: (0..nr_cpus.next_power_of_two())
                .map(|_| CachePadded(std::array::from_fn(|_| AtomicU8::new(0))))
                .collect(),
            topology: Lock::new(-1),
            gathering: Lock::new(()),
            spread: SpreadCount::default(),
        }
    }

    /// Which allocator it runs.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Adds a device. Its tables are address space until clusters are used.
    pub fn add_device(&self, config: &DeviceConfig) -> Result<DeviceId, AddDeviceError> {
        config.check()?;
        let mut next_prio = self.topology.lock();
        let in_use = |key| {
            self.devices()
                .any(|(_, d)| d.running() != Running::Off && d.key.load(Relaxed) == key)
        };
        if config.key != 0 && in_use(config.key) {
            return Err(AddDeviceError::AlreadyInUse { key: config.key });
        }
        // The tables of a device that was swapped off serve again if they are
        // large enough: they are never unmapped, since a racing reader may look.
        let again = self
            .devices()
            .find(|(_, device)| device.fits(config, self.nr_cpus));
        let (id, device) = match again {
            Some((id, device)) => {
                device.reopen(config);
                (id, device)
            }
            None => {
                let place = (0..MAX_SWAPFILES as u8)
                    .filter_map(DeviceId::new)
                    .find(|id| self.devices[id.index()].get().is_none())
                    .ok_or(AddDeviceError::TooManyDevices)?;
                let device = Device::new(place, config, self.nr_cpus, self.algorithm)
                    .ok_or(AddDeviceError::NoMemory)?;
                (
                    place,
                    self.devices[place.index()].get_or_init(move || device),
                )
            }
        };
        let prio = config.prio.unwrap_or_else(|| {
            let prio = *next_prio;
            *next_prio = prio.saturating_sub(1);
            prio
        });
        device.prio.store(prio, Relaxed);
        device.set_running(Running::On);
        self.rank();
        Ok(id)
    }

    /// Writes `ranked` anew; the caller holds `topology`. Readers that meet it
    /// half written see a device twice or not at all this once, no more.
    pub(super) fn rank(&self) {
        let mut place = 0;
        let mut below = i64::MAX;
        loop {
            let running = || self.devices().filter(|(_, d)| d.running() == Running::On);
            let prio = |d: &Device| i64::from(d.prio.load(Relaxed));
            let Some(highest) = running().map(|(_, d)| prio(d)).filter(|&p| p < below).max() else {
                break;
            };
            for (id, _) in running().filter(|(_, d)| prio(d) == highest) {
                self.ranked[place].store(id.index() as u8 + 1, Release);
                place += 1;
            }
            below = highest;
        }
        for rest in &self.ranked[place..] {
            rest.store(0, Release);
        }
    }

    pub(super) fn device(&self, id: DeviceId) -> Option<&Device> {
        self.devices[id.index()].get()
    }

    pub(super) fn devices(&self) -> impl Iterator<Item = (DeviceId, &Device)> {
        (0..MAX_SWAPFILES as u8)
            .filter_map(DeviceId::new)
            .filter_map(|id| Some((id, self.device(id)?)))
    }

    #[inline]
    fn ranked(&self, place: usize) -> Option<&Device> {
        let id = self.ranked.get(place)?.load(Acquire).checked_sub(1)?;
        self.devices[id as usize].get()
    }

    /// Slots for a folio, in as few extents as there is room for: nearly always
    /// one. Each slot has one user then. Fails only when fewer slots are free
    /// than the folio has pages ([`Algorithm::Linux612`]: when it finds no run).
    #[inline]
    pub fn alloc(&self, order: Order, out: &mut Extents) -> Result<(), NoRoom> {
        out.clear();
        let cpu = current_cpu();
        let entry = match self.alloc_current(cpu, order) {
            Some(entry) => entry,
            None => match self.alloc_by_priority(cpu, order, Some(out)) {
                Some(entry) => entry,
                None if !out.is_empty() => {
                    self.spread.add(order, out.len());
                    return Ok(());
                }
                None => return self.pick_up(order, out),
            },
        };
        out.push(Extent {
            entry,
            nr: order.nr_pages() as u16,
        });
        Ok(())
    }

    /// Like [`alloc`](Self::alloc), but looks at one place first: where the folio
    /// was before, or where it would be if it followed its neighbours in memory.
    ///
    /// Pages that go back to where they came from leave swap as unfragmented as
    /// it was, whatever the order they come and go in. The place must be at a
    /// multiple of the folio's length, and is not kept for anybody: it may be
    /// taken, and then any other will do.
    #[inline]
    pub fn alloc_near(
        &self,
        order: Order,
        place: SwapEntry,
        out: &mut Extents,
    ) -> Result<(), NoRoom> {
        let there = self
            .device(place.device())
            .and_then(|device| device.alloc_at(place.slot(), order));
        match there {
            Some(entry) => {
                out.clear();
                out.push(Extent {
                    entry,
                    nr: order.nr_pages() as u16,
                });
                Ok(())
            }
            None => self.alloc(order, out),
        }
    }

    /// Slots for a folio in one piece at a multiple of its length, or nothing.
    #[inline]
    pub fn alloc_contiguous(&self, order: Order) -> Option<SwapEntry> {
        let cpu = current_cpu();
        self.alloc_current(cpu, order)
            .or_else(|| self.alloc_by_priority(cpu, order, None))
    }

    /// The largest contiguous piece up to `order` that there is.
    pub fn alloc_best(&self, order: Order) -> Option<(SwapEntry, Order)> {
        (0..=order.get())
            .rev()
            .filter_map(Order::new)
            .find_map(|order| Some((self.alloc_contiguous(order)?, order)))
    }

    #[inline]
    fn hint(&self, cpu: usize, order: Order) -> &AtomicU8 {
        &self.hints[cpu & (self.hints.len() - 1)][order.index()]
    }

    /// The fast path: one lock, that of the CPU's own shard.
    #[inline]
    fn alloc_current(&self, cpu: usize, order: Order) -> Option<SwapEntry> {
        if self.ranked[1].load(Acquire) == 0 {
            // No other device whose turn it might be: a new cluster will do.
            return self.ranked(0)?.alloc_home(cpu, order);
        }
        let device = self.hint(cpu, order).load(Relaxed).checked_sub(1)?;
        self.devices[device as usize]
            .get()?
            .alloc_current(cpu, order)
    }

    /// Down the priorities, equals in turn. With `out`, a folio that fits a
    /// group of equals only in pieces takes those before a lower priority.
    fn alloc_by_priority(
        &self,
        cpu: usize,
        order: Order,
        mut out: Option<&mut Extents>,
    ) -> Option<SwapEntry> {
        let mut begin = 0;
        while let Some(first) = self.ranked(begin) {
            let prio = first.prio.load(Relaxed);
            let mut end = begin + 1;
            while self
                .ranked(end)
                .is_some_and(|d| d.prio.load(Relaxed) == prio)
            {
                end += 1;
            }
            let turn = usize::from(self.turn[begin].load(Relaxed));
            for i in 0..end - begin {
                let place = begin + (turn + i) % (end - begin);
                let Some(device) = self.ranked(place) else {
                    continue;
                };
                if let Some(entry) = device.alloc_contiguous(cpu, order) {
                    self.turn[begin].store((place - begin + 1) as u8, Relaxed);
                    self.hint(cpu, order)
                        .store(entry.device().index() as u8 + 1, Relaxed);
                    return Some(entry);
                }
                if self.algorithm == Algorithm::Linux612 && order > Order::ZERO {
                    // A large folio gets one try, on the first device.
                    return None;
                }
            }
            if let (Some(out), Algorithm::HugeSwap) = (out.as_deref_mut(), self.algorithm) {
                for place in begin..end {
                    let spread = |d: &Device| d.alloc_spread(cpu, order, out);
                    if self.ranked(place).is_some_and(spread) {
                        return None;
                    }
                }
            }
            begin = end;
        }
        None
    }

    /// The last resort: whatever is free anywhere, the largest pieces first.
    #[cold]
    fn pick_up(&self, order: Order, out: &mut Extents) -> Result<(), NoRoom> {
        let mut want = order.nr_pages();
        if self.algorithm == Algorithm::HugeSwap {
            let _one = self.gathering.lock();
            let releases = || -> u64 { self.devices().map(|(_, d)| d.sum(|s| s.releases)).sum() };
            let mut least = PMD_ORDER;
            loop {
                let before = want;
                let releases_before = if least == 0 { releases() } else { 0 };
                for place in 0..MAX_SWAPFILES {
                    let Some(device) = self.ranked(place) else {
                        break;
                    };
                    want = device.gather(order, want, least, out);
                }
                if want == 0 {
                    self.spread.add(order, out.len());
                    return Ok(());
                }
                match least.checked_sub(1) {
                    Some(less) => least = less,
                    // Every shard was empty when looked at. Only if none got a
                    // slot back since was there a moment when all were at once.
                    None if want == before && releases() == releases_before => break,
                    None => {}
                }
            }
            for extent in out.iter() {
                // Ours since a moment ago, with one user: can't fail.
                let _ = self.free(extent.entry, extent.nr.into());
            }
            out.clear();
        }
        self.spread.fail(order);
        let sum = |f: fn(&super::shard::Shard) -> u64| {
            self.devices()
                .filter(|(_, d)| d.running() == Running::On)
                .map(|(_, d)| d.sum(f))
                .sum()
        };
        Err(NoRoom {
            free: sum(|shard| shard.free_slots()),
            discarding: sum(|shard| shard.discarding),
        })
    }

    #[inline]
    pub(super) fn of(&self, entry: SwapEntry) -> Result<&Device, EntryError> {
        self.device(entry.device()).ok_or(EntryError::NoSuchSlot)
    }

    /// Adds a user to each of the `nr` slots from `entry` on (fork). If that
    /// fails within a cluster, that cluster is unchanged.
    pub fn dup(&self, entry: SwapEntry, nr: u64) -> Result<(), EntryError> {
        self.of(entry)?
            .for_runs(entry.slot(), nr, |shard, idx, start, nr| {
                shard.dup(idx, start, nr)
            })
    }

    /// Takes a user from each of the `nr` slots: any part of a folio's. Returns
    /// how many slots got free by that.
    #[inline]
    pub fn free(&self, entry: SwapEntry, nr: u64) -> Result<u64, EntryError> {
        let mut freed = 0;
        self.of(entry)?
            .for_runs(entry.slot(), nr, |shard, idx, start, nr| {
                freed += u64::from(shard.free(idx, start, nr)?);
                Ok(())
            })?;
        Ok(freed)
    }

    /// Users of a slot; the swap cache is not one.
    pub fn users(&self, entry: SwapEntry) -> Result<u32, EntryError> {
        let mut users = 0;
        self.of(entry)?
            .for_runs(entry.slot(), 1, |shard, idx, start, _| {
                users = shard.users(idx, start);
                Ok(())
            })?;
        Ok(users)
    }

    /// The swap cache has a folio for these slots: they stay taken when their
    /// users go, until [`cache_clear`](Self::cache_clear).
    pub fn cache_set(&self, entry: SwapEntry, nr: u64) -> Result<(), EntryError> {
        self.of(entry)?
            .for_runs(entry.slot(), nr, |shard, idx, start, nr| {
                shard.cache_set(idx, start, nr)
            })
    }

    /// The swap cache let go of these slots. Returns how many got free by that.
    pub fn cache_clear(&self, entry: SwapEntry, nr: u64) -> Result<u64, EntryError> {
        let mut freed = 0;
        self.of(entry)?
            .for_runs(entry.slot(), nr, |shard, idx, start, nr| {
                freed += u64::from(shard.cache_clear(idx, start, nr)?);
                Ok(())
            })?;
        Ok(freed)
    }

    /// Whether the swap cache has a folio for the slot.
    pub fn is_cached(&self, entry: SwapEntry) -> Result<bool, EntryError> {
        let mut cached = false;
        self.of(entry)?
            .for_runs(entry.slot(), 1, |shard, idx, start, _| {
                cached = shard.is_cached(idx, start);
                Ok(())
            })?;
        Ok(cached)
    }

    /// I/O failed on these slots. They are never handed out again: from now on
    /// if they are free, else once their users and the cache are gone.
    pub fn mark_bad(&self, entry: SwapEntry, nr: u64) -> Result<(), EntryError> {
        self.of(entry)?
            .for_runs(entry.slot(), nr, |shard, idx, start, nr| {
                shard.mark_bad(idx, start, nr);
                Ok(())
            })
    }

    /// Makes a device larger, up to its reserve.
    pub fn grow(&self, id: DeviceId, max_slots: u64) -> Result<(), DeviceError> {
        let _topology = self.topology.lock();
        let device = self.device(id).ok_or(DeviceError::NoSuchDevice)?;
        if device.running() != Running::On {
            return Err(DeviceError::NoSuchDevice);
        }
        if max_slots > device.reserve || max_slots < device.max_slots.load(Relaxed) {
            return Err(DeviceError::BadSize {
                slots: max_slots,
                reserve: device.reserve,
            });
        }
        device.resize(max_slots);
        Ok(())
    }

    /// Takes every lock. Between this and [`fork_release`](Self::fork_release),
    /// in parent and child, nothing else of the space may be called.
    pub fn fork_prepare(&self) {
        self.topology.hold();
        self.gathering.hold();
        for (_, device) in self.devices() {
            device.hold();
        }
    }

    /// Gives every lock back, in the parent and in the child, each of which has
    /// its own copy of the space from then on.
    ///
    /// # Safety
    /// Answers one [`fork_prepare`](Self::fork_prepare) in this process.
    #[allow(unsafe_code)]
    pub unsafe fn fork_release(&self) {
        for (_, device) in self.devices() {
            // SAFETY: the caller's promise.
            unsafe { device.release_held() };
        }
        // SAFETY: the caller's promise.
        unsafe { self.gathering.release_held() };
        // SAFETY: the caller's promise.
        unsafe { self.topology.release_held() };
    }

    /// Checks the whole state against itself, shard by shard. For tests: it
    /// allocates and takes time in proportion to the devices' size.
    pub fn validate(&self) -> Result<(), Inconsistent> {
        for (id, device) in self.devices() {
            for shard in 0..device.nr_shards() {
                device
                    .with_shard(shard, |s| s.validate())
                    .map_err(|(what, cluster)| Inconsistent {
                        what,
                        device: id.index(),
                        shard,
                        cluster,
                    })?;
            }
        }
        Ok(())
    }
}
