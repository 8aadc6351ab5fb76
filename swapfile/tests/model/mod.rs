//! The allocator beside a model of it that keeps every slot in a plain map.
//! Shared by the property test and the fuzz target.

use hugeswap_mm::{DeviceId, Extent, Extents, Order, SwapEntry, SWAPFILE_CLUSTER};
use hugeswap_swapfile::{Algorithm, DeviceConfig, DeviceError, EntryError, SwapConfig, SwapSpace};
use std::collections::BTreeMap;

/// Random choices are plain numbers; what they mean depends on what is there.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    Alloc {
        order: u8,
    },
    AllocBest {
        order: u8,
    },
    /// Asks for the place of a folio, or one beside it.
    AllocNear {
        order: u8,
        folio: u16,
        beside: u16,
    },
    /// Takes a user from some slots of a folio.
    Free {
        folio: u16,
        from: u16,
        nr: u16,
    },
    /// The same to all of it.
    FreeAll {
        folio: u16,
    },
    Dup {
        folio: u16,
        from: u16,
        nr: u16,
    },
    CacheSet {
        folio: u16,
    },
    CacheClear {
        folio: u16,
    },
    /// On a slot of a folio, or anywhere.
    MarkBad {
        folio: u16,
        slot: u16,
        anywhere: bool,
    },
    /// Takes up to so many clusters to discard.
    Discard {
        max: u8,
    },
    DiscardDone,
    Reclaim,
    Grow {
        device: u8,
        slots: u16,
    },
    SwapoffBegin {
        device: u8,
    },
    SwapoffCancel {
        device: u8,
    },
    SwapoffEnd {
        device: u8,
    },
    /// An entry that may mean anything.
    FreeWild {
        raw: u64,
        nr: u16,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    users: u32,
    cached: bool,
    bad_once_free: bool,
}

#[derive(Debug)]
struct ModelDevice {
    id: DeviceId,
    slots: u64,
    reserve: u64,
    draining: bool,
    off: bool,
}

pub struct Model {
    pub space: SwapSpace,
    devices: Vec<ModelDevice>,
    slots: BTreeMap<SwapEntry, Slot>,
    bad: BTreeMap<SwapEntry, ()>,
    /// Clusters whose discard is under way.
    discarding: Vec<Extent>,
    /// Extents of what was allocated; slots of it may be gone since.
    folios: Vec<Vec<Extent>>,
    extents: Extents,
    near: Option<SwapEntry>,
}

impl Model {
    /// A few small devices: equal and unequal priorities, odd sizes, a header.
    pub fn new(algorithm: Algorithm) -> Self {
        let space = SwapSpace::new(SwapConfig {
            algorithm,
            nr_cpus: 2,
        });
        let mut devices = Vec::new();
        let mut bad = BTreeMap::new();
        for (slots, reserve, prio, discard, header) in [
            (20 * 512, 24 * 512, Some(5), true, false),
            (3 * 512 + 17, 5 * 512, Some(5), false, true),
            (1000, 1000, None, true, false),
        ] {
            let config = DeviceConfig {
                reserve_slots: reserve,
                prio,
                discard,
                header,
                ..DeviceConfig::new(slots)
            };
            let id = space.add_device(&config).unwrap();
            if header {
                bad.insert(SwapEntry::new(id, 0).unwrap(), ());
            }
            devices.push(ModelDevice {
                id,
                slots,
                reserve,
                draining: false,
                off: false,
            });
        }
        Model {
            space,
            devices,
            slots: BTreeMap::new(),
            bad,
            discarding: Vec::new(),
            folios: Vec::new(),
            extents: Extents::new(),
            near: None,
        }
    }

    fn in_discard(&self, entry: SwapEntry) -> bool {
        self.discarding.iter().any(|d| {
            d.entry.device() == entry.device()
                && d.entry.slot() / SWAPFILE_CLUSTER as u64
                    == entry.slot() / SWAPFILE_CLUSTER as u64
        })
    }

    /// Slots that could be had, over the devices that give any.
    fn free_slots(&self) -> u64 {
        self.devices
            .iter()
            .filter(|d| !d.draining && !d.off)
            .map(|d| {
                let taken = self.slots.keys().filter(|e| e.device() == d.id).count();
                let bad = self.bad.keys().filter(|e| e.device() == d.id).count();
                let discarding: usize = self
                    .discarding
                    .iter()
                    .filter(|x| x.entry.device() == d.id)
                    .map(|x| {
                        let end = x.entry.slot() + SWAPFILE_CLUSTER as u64;
                        let inside = |e: &&SwapEntry| {
                            e.device() == d.id && (x.entry.slot()..end).contains(&e.slot())
                        };
                        SWAPFILE_CLUSTER - self.bad.keys().filter(inside).count()
                    })
                    .sum();
                d.slots - (taken + bad + discarding) as u64
            })
            .sum()
    }

    fn run(extent: &Extent) -> impl Iterator<Item = SwapEntry> + '_ {
        (0..u64::from(extent.nr)).map(|i| extent.entry.checked_add(i).unwrap())
    }

    /// New slots must be free ones of a device that gives slots.
    fn take(&mut self, extents: Vec<Extent>) {
        for extent in &extents {
            let device = self
                .devices
                .iter()
                .find(|d| d.id == extent.entry.device())
                .expect("a device there is");
            assert!(
                !device.draining && !device.off,
                "{extent:?} of a device swapped off"
            );
            let first = extent.entry.slot();
            let last = first + u64::from(extent.nr) - 1;
            assert!(
                extent.nr > 0 && last < device.slots,
                "{extent:?} past the end"
            );
            assert_eq!(first / 512, last / 512, "{extent:?} across clusters");
            assert!(
                !self.in_discard(extent.entry),
                "{extent:?} is being discarded"
            );
            for entry in Self::run(extent) {
                assert!(!self.bad.contains_key(&entry), "{entry:?} is bad");
                let slot = Slot {
                    users: 1,
                    ..Slot::default()
                };
                assert!(self.slots.insert(entry, slot).is_none(), "{entry:?} twice");
            }
        }
        self.folios.push(extents);
    }

    fn release(&mut self, entry: SwapEntry) -> u64 {
        let slot = self.slots[&entry];
        if slot.users > 0 || slot.cached {
            return 0;
        }
        self.slots.remove(&entry);
        if slot.bad_once_free {
            self.bad.insert(entry, ());
            0
        } else {
            1
        }
    }

    /// Some run of a folio's first extents, within one extent.
    fn part(&self, folio: u16, from: u16, nr: u16) -> Option<Extent> {
        let folio = self
            .folios
            .get(usize::from(folio) % self.folios.len().max(1))?;
        let extent = folio.get(usize::from(from) % folio.len().max(1))?;
        let offset = from % extent.nr;
        Some(Extent {
            entry: extent.entry.checked_add(offset.into())?,
            nr: 1 + nr % (extent.nr - offset),
        })
    }

    fn free(&mut self, part: Extent) {
        let held = Self::run(&part).all(|e| self.slots.get(&e).is_some_and(|s| s.users > 0));
        let result = self.space.free(part.entry, part.nr.into());
        if !held {
            assert!(result.is_err(), "{part:?} has slots without users");
            return;
        }
        let mut freed = 0;
        for entry in Self::run(&part) {
            self.slots.get_mut(&entry).unwrap().users -= 1;
            freed += self.release(entry);
        }
        assert_eq!(result, Ok(freed), "{part:?}");
    }

    fn alloc(&mut self, order: Order) {
        let free = self.free_slots();
        let mut extents = std::mem::take(&mut self.extents);
        let result = match self.near {
            Some(place) => self.space.alloc_near(order, place, &mut extents),
            None => self.space.alloc(order, &mut extents),
        };
        if result.is_ok() {
            assert_eq!(extents.nr_slots(), order.nr_pages());
            self.take(extents.to_vec());
        } else if self.space_algorithm_spreads() {
            assert!(
                free < order.nr_pages() as u64,
                "{order:?} refused with {free} slots free"
            );
        }
        if let Err(no_room) = result {
            assert_eq!(no_room.free, free);
        }
        self.extents = extents;
    }

    fn space_algorithm_spreads(&self) -> bool {
        self.space.algorithm() == Algorithm::HugeSwap
    }

    pub fn apply(&mut self, op: Op) {
        match op {
            Op::Alloc { order } => self.alloc(Order::new(order % 10).unwrap()),
            Op::AllocBest { order } => {
                let most = Order::new(order % 10).unwrap();
                match self.space.alloc_best(most) {
                    Some((entry, order)) => {
                        assert!(order <= most);
                        assert_eq!(entry.slot() % order.nr_pages() as u64, 0);
                        let nr = order.nr_pages() as u16;
                        self.take(vec![Extent { entry, nr }]);
                    }
                    None => assert_eq!(self.free_slots(), 0),
                }
            }
            Op::AllocNear {
                order,
                folio,
                beside,
            } => {
                let place = self
                    .part(folio, 0, 0)
                    .and_then(|part| part.entry.checked_add(beside.into()));
                if let Some(place) = place {
                    self.near = Some(place);
                    self.alloc(Order::new(order % 10).unwrap());
                    self.near = None;
                }
            }
            Op::Free { folio, from, nr } => {
                if let Some(part) = self.part(folio, from, nr) {
                    self.free(part);
                }
            }
            Op::FreeAll { folio } => {
                if !self.folios.is_empty() {
                    let at = usize::from(folio) % self.folios.len();
                    for extent in self.folios.swap_remove(at) {
                        for entry in Self::run(&extent) {
                            while self.slots.get(&entry).is_some_and(|s| s.users > 0) {
                                self.free(Extent { entry, nr: 1 });
                            }
                        }
                        // What the cache still has must stay within reach.
                        if Self::run(&extent).any(|e| self.slots.contains_key(&e)) {
                            self.folios.push(vec![extent]);
                        }
                    }
                }
            }
            Op::Dup { folio, from, nr } => {
                if let Some(part) = self.part(folio, from, nr) {
                    let held =
                        Self::run(&part).all(|e| self.slots.get(&e).is_some_and(|s| s.users > 0));
                    let result = self.space.dup(part.entry, part.nr.into());
                    assert_eq!(result.is_ok(), held, "dup {part:?}");
                    if held {
                        for entry in Self::run(&part) {
                            self.slots.get_mut(&entry).unwrap().users += 1;
                        }
                    }
                }
            }
            Op::CacheSet { folio } => {
                if let Some(part) = self.part(folio, 0, u16::MAX - 1) {
                    let taken = Self::run(&part).all(|e| self.slots.contains_key(&e));
                    let result = self.space.cache_set(part.entry, part.nr.into());
                    assert_eq!(result.is_ok(), taken, "cache_set {part:?}");
                    if taken {
                        for entry in Self::run(&part) {
                            self.slots.get_mut(&entry).unwrap().cached = true;
                        }
                    }
                }
            }
            Op::CacheClear { folio } => {
                if let Some(part) = self.part(folio, 0, u16::MAX - 1) {
                    self.cache_clear(part);
                }
            }
            Op::MarkBad {
                folio,
                slot,
                anywhere,
            } => self.mark_bad(folio, slot, anywhere),
            Op::Discard { max } => {
                let mut batch = Extents::new();
                let nr = self.space.next_discard(&mut batch, usize::from(max % 4));
                assert_eq!(nr, batch.len());
                for extent in batch.iter() {
                    assert!(
                        Self::run(extent).all(|e| !self.slots.contains_key(&e)),
                        "discard of {extent:?}, which is in use"
                    );
                    assert!(!self.in_discard(extent.entry));
                    self.discarding.push(*extent);
                }
            }
            Op::DiscardDone => {
                assert_eq!(
                    self.space.discard_done(&self.discarding),
                    self.discarding.len()
                );
                self.discarding.clear();
            }
            Op::Reclaim => {
                let mut out = Extents::new();
                self.space.reclaim_full(2, true, &mut out);
                for extent in out.iter() {
                    for entry in Self::run(extent) {
                        let slot = self.slots[&entry];
                        assert!(
                            slot.cached && slot.users == 0,
                            "{entry:?} is not cache-only"
                        );
                    }
                    self.cache_clear(*extent);
                }
            }
            Op::Grow { device, slots } => {
                let d = &mut self.devices[usize::from(device) % 3];
                let to = d.slots + u64::from(slots % 700);
                let result = self.space.grow(d.id, to);
                let ok = !d.off && !d.draining && to <= d.reserve;
                assert_eq!(result.is_ok(), ok);
                if ok {
                    d.slots = to;
                }
            }
            Op::SwapoffBegin { device } => {
                let d = &mut self.devices[usize::from(device) % 3];
                assert_eq!(self.space.swapoff_begin(d.id).is_ok(), !d.off);
                d.draining = !d.off;
            }
            Op::SwapoffCancel { device } => {
                let d = &mut self.devices[usize::from(device) % 3];
                assert_eq!(self.space.swapoff_cancel(d.id).is_ok(), d.draining);
                d.draining = false;
            }
            Op::SwapoffEnd { device } => self.swapoff_end(device),
            Op::FreeWild { raw, nr } => {
                if let Some(entry) = SwapEntry::from_raw(raw) {
                    let known = (0..u64::from(nr)).all(|i| {
                        entry
                            .checked_add(i)
                            .and_then(|e| self.slots.get(&e))
                            .is_some_and(|s| s.users > 0)
                    });
                    if !known && u64::from(nr) <= 512 - entry.slot() % 512 {
                        assert!(self.space.free(entry, nr.into()).is_err());
                    }
                }
            }
        }
    }

    fn cache_clear(&mut self, part: Extent) {
        let cached = Self::run(&part).all(|e| self.slots.get(&e).is_some_and(|s| s.cached));
        let result = self.space.cache_clear(part.entry, part.nr.into());
        if !cached {
            assert_eq!(result, Err(EntryError::NotCached), "{part:?}");
            return;
        }
        let mut freed = 0;
        for entry in Self::run(&part) {
            self.slots.get_mut(&entry).unwrap().cached = false;
            freed += self.release(entry);
        }
        assert_eq!(result, Ok(freed), "{part:?}");
    }

    fn mark_bad(&mut self, folio: u16, slot: u16, anywhere: bool) {
        let entry = if anywhere {
            let d = &self.devices[usize::from(folio) % 3];
            if d.off {
                return;
            }
            SwapEntry::new(d.id, u64::from(slot) % d.slots)
        } else {
            self.part(folio, slot, 0).map(|part| part.entry)
        };
        let Some(entry) = entry else { return };
        if self.devices[entry.device().index()].off {
            return;
        }
        self.space.mark_bad(entry, 1).unwrap();
        match self.slots.get_mut(&entry) {
            Some(slot) => slot.bad_once_free = true,
            None => {
                self.bad.insert(entry, ());
            }
        }
    }

    fn swapoff_end(&mut self, device: u8) {
        let at = usize::from(device) % 3;
        let id = self.devices[at].id;
        if self.devices[at].draining {
            // The walk meets exactly the slots that are in use.
            let mut seen = Vec::new();
            let mut from = 0;
            while let Some(run) = self.space.next_in_use(id, from) {
                seen.extend(Self::run(&run));
                from = run.entry.slot() + u64::from(run.nr);
            }
            let taken: Vec<_> = self
                .slots
                .keys()
                .copied()
                .filter(|e| e.device() == id)
                .collect();
            assert_eq!(seen, taken);
        }
        let taken = self.slots.keys().filter(|e| e.device() == id).count() as u64;
        let discarding = self.discarding.iter().any(|x| x.entry.device() == id);
        let result = self.space.swapoff_end(id);
        if !self.devices[at].draining {
            assert_eq!(result, Err(DeviceError::NotDraining));
        } else if taken > 0 {
            assert_eq!(result, Err(DeviceError::InUse { slots: taken }));
        } else if discarding {
            assert!(matches!(result, Err(DeviceError::Discarding { .. })));
        } else {
            assert_eq!(result, Ok(()));
            // Straight back on, in the tables of the old.
            let d = &mut self.devices[at];
            let config = DeviceConfig {
                reserve_slots: d.reserve,
                prio: Some(i32::from(device)),
                discard: true,
                ..DeviceConfig::new(d.slots)
            };
            assert_eq!(self.space.add_device(&config), Ok(id));
            d.draining = false;
            self.bad.retain(|entry, ()| entry.device() != id);
        }
    }

    /// Everything there is to compare.
    pub fn check(&self) {
        if let Err(what) = self.space.validate() {
            panic!("{what}");
        }
        assert_eq!(self.space.used_slots(), self.slots.len() as u64);
        assert_eq!(self.space.free_slots(), self.free_slots());
        for (&entry, slot) in self.slots.iter().step_by(7) {
            assert_eq!(self.space.users(entry), Ok(slot.users), "{entry:?}");
            assert_eq!(self.space.is_cached(entry), Ok(slot.cached), "{entry:?}");
        }
    }
}
