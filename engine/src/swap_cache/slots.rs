//! Which slots of the swap devices are this process's.
//!
//! Devices are shared by all processes of a run. The supervisor gives each clusters of them, a segment's
//! at most at a time, and the allocator (`swapfile`) hands out what lies in those. They are asked for
//! ahead, and nobody waits for the answer but the reclaim thread, which does other things meanwhile.
//! After a fork the child reads the parent's slots: what of them the parent frees is put off until no
//! living process borrows from it.

use crate::charge::Charge;
use crate::control::{Answer, DeviceEntry, Grant, MAX_DEVICES, SEGMENT_BYTES, SEGMENT_CLUSTERS};
use crate::device::Device;
use crate::mm::{DeviceId, Extents, SwapEntry, PAGE_SIZE, PMD_SIZE, SWAPFILE_CLUSTER};
use crate::swapfile::{Segment, SwapSpace};
use crate::sys::{thread, Errno};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

const SLOTS: u64 = SEGMENT_BYTES / PAGE_SIZE as u64;
const CLUSTERS: u64 = SLOTS / SWAPFILE_CLUSTER as u64;
/// Pauses of 100 us for which a sweep is waited for.
const SWEEP_WAITS: usize = 1000;
/// With fewer free clusters of a device more are asked for.
const AHEAD: u64 = 4;
/// So many are kept while other processes have none.
const FEWEST: u64 = 1;
/// What was refused is not asked for again for so long.
const REFUSED_NS: u64 = 10_000_000;

/// `--swap-size` is used up, or the disk is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoSlots;

pub struct SwapSlots {
    space: SwapSpace,
    devices: usize,
    /// One past the highest segment of each device that was ever ours.
    tops: [AtomicUsize; MAX_DEVICES],
    any_lent: AtomicBool,
    /// The last sweep that was taken note of.
    swept: AtomicU32,
    /// Slots of each device.
    sizes: [u64; MAX_DEVICES],
    /// Devices of one rank, which are neighbours, are used in turn.
    ranks: [u32; MAX_DEVICES],
    /// Slots that were handed out: whose turn it is follows from them.
    given: AtomicUsize,
    /// Devices that are being swapped off, or are off.
    leaving: AtomicU32,
    wishes: [Wish; MAX_DEVICES],
}

/// What the supervisor was asked for of one device. Only the reclaim thread has to do with it.
#[derive(Default)]
struct Wish {
    /// Wishes so far; the last one is this number.
    number: AtomicU32,
    is_open: AtomicBool,
    /// When one was last refused; 0 for never.
    refused_ns: AtomicU64,
}

impl Wish {
    fn is_refused(&self) -> bool {
        let then = self.refused_ns.load(Relaxed);
        then != 0 && thread::now_ns().saturating_sub(then) < REFUSED_NS
    }
}

/// A set of devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceSet(u32);

impl DeviceSet {
    pub fn add(&mut self, device: usize) {
        self.0 |= 1 << device;
    }

    pub fn has(self, device: usize) -> bool {
        self.0 >> device & 1 != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The number of a device in the control page and in the allocator.
fn id(device: usize) -> DeviceId {
    DeviceId::new(device as u8).unwrap_or(DeviceId::FIRST)
}

fn segment(device: usize, seg: usize) -> Segment {
    clusters(device, seg * SEGMENT_CLUSTERS..(seg + 1) * SEGMENT_CLUSTERS)
}

/// Neighbouring clusters of a device.
fn clusters(device: usize, range: Range<usize>) -> Segment {
    let slot = |cluster: usize| (cluster * SWAPFILE_CLUSTER) as u64;
    Segment {
        device: id(device),
        start: slot(range.start),
        end: slot(range.end),
    }
}

/// The clusters of a grant, neighbours together.
fn runs(grant: Grant) -> impl Iterator<Item = Range<usize>> {
    let first = grant.segment * SEGMENT_CLUSTERS;
    let mut rest = u32::from(grant.clusters);
    core::iter::from_fn(move || {
        let start = (rest != 0).then(|| rest.trailing_zeros())?;
        let end = start + (rest >> start).trailing_ones();
        rest &= !((1 << end) - 1);
        Some(first + start as usize..first + end as usize)
    })
}

impl SwapSlots {
    pub fn new(devices: &[DeviceEntry]) -> Result<SwapSlots, Errno> {
        let clusters: Vec<u64> = devices
            .iter()
            .map(|d| d.segments().max(1) as u64 * CLUSTERS)
            .collect();
        let space = SwapSpace::new(&clusters).map_err(|_| Errno::ENOMEM)?;
        Ok(SwapSlots {
            space,
            devices: devices.len(),
            tops: [const { AtomicUsize::new(0) }; MAX_DEVICES],
            any_lent: AtomicBool::new(false),
            swept: AtomicU32::new(0),
            sizes: core::array::from_fn(|d| {
                devices.get(d).map_or(0, |d| d.segments() as u64 * SLOTS)
            }),
            ranks: core::array::from_fn(|d| devices.get(d).map_or(0, |d| d.rank)),
            given: AtomicUsize::new(0),
            leaving: AtomicU32::new(0),
            wishes: Default::default(),
        })
    }

    /// The devices of each rank, the first rank first.
    fn groups(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut next = 0;
        core::iter::from_fn(move || {
            let (start, all) = (next, &self.ranks[..self.devices]);
            let rank = *all.get(start)?;
            next += all[start..].iter().take_while(|&&r| r == rank).count();
            Some(start..next)
        })
    }

    /// The devices of a rank, the one whose turn it is first. It is another's for every cluster's worth of
    /// slots, so that what leaves in pieces lies together; and processes begin with different ones.
    fn in_turn(&self, group: Range<usize>, charge: &Charge) -> impl Iterator<Item = usize> {
        let clusters = self.given.load(Relaxed) / SWAPFILE_CLUSTER;
        let first = clusters + charge.id() as usize;
        (0..group.len()).map(move |i| group.start + (first + i) % group.len())
    }

    /// Which devices give no slots any more; what is there is to be moved away. For the reclaim
    /// thread.
    pub fn set_leaving(&self, leaving: DeviceSet) {
        self.leaving.store(leaving.0, Relaxed);
        for d in 0..self.devices {
            self.space.set_leaving(id(d), leaving.has(d));
        }
    }

    pub fn leaving(&self) -> DeviceSet {
        DeviceSet(self.leaving.load(Relaxed))
    }

    /// Asks for more before what there is runs out. False while there is no place for a folio, and the
    /// supervisor has not said whether there is more: it is to be asked again. For the reclaim thread.
    pub fn prepare(&self, charge: &Charge, devices: &[Box<dyn Device>]) -> bool {
        for group in self.groups() {
            let (mut free, mut asked) = (false, false);
            for d in group {
                free |= self.prepare_on(d, charge, &*devices[d]);
                asked |= !self.leaving().has(d) && self.wishes[d].is_open.load(Relaxed);
            }
            if free || asked {
                return free;
            }
        }
        true
    }

    /// Whether there is a place for a folio on this device.
    fn prepare_on(&self, d: usize, charge: &Charge, device: &dyn Device) -> bool {
        if self.leaving().has(d) {
            // What was asked for before comes too late.
            if let Some(Answer::Granted(grant)) = self.answered(d, charge) {
                charge.proc().give_back(d, grant);
            }
            return false;
        }
        self.take_grant(d, charge, device);
        let mut free = self.space.free_clusters(id(d));
        if free < AHEAD && self.settle_loans(charge) {
            free = self.space.free_clusters(id(d));
        }
        if free < AHEAD {
            self.ask_for_sweep(charge);
            self.ask(d, charge);
        }
        free > 0
    }

    fn ask(&self, d: usize, charge: &Charge) {
        let wish = &self.wishes[d];
        if wish.is_refused() || wish.is_open.swap(true, Relaxed) {
            return;
        }
        let number = wish.number.load(Relaxed).wrapping_add(1);
        wish.number.store(number, Relaxed);
        charge.proc().ask(d, number);
        charge.call();
    }

    /// Slots for `nr` pages on the first device that has them, those of one rank in turn, in one piece if it
    /// can be; only when none has, pieces from wherever some are free. No lock is held while the file system gives
    /// space. For the reclaim thread.
    pub fn alloc(
        &self,
        nr: usize,
        charge: &Charge,
        devices: &[Box<dyn Device>],
        out: &mut Extents,
    ) -> Result<(), NoSlots> {
        let leaving = self.leaving();
        let found = self.groups().any(|group| {
            let mut in_turn = self.in_turn(group, charge).filter(|&d| !leaving.has(d));
            in_turn.any(|d| self.alloc_on(d, nr, charge, &*devices[d], out))
        });
        if found {
            self.given.fetch_add(nr, Relaxed);
            return Ok(());
        }
        if self.space.alloc_from_all(nr, out)
            || self.wait_for_sweep(charge) && self.space.alloc_from_all(nr, out)
        {
            Ok(())
        } else {
            Err(NoSlots)
        }
    }

    fn alloc_on(
        &self,
        d: usize,
        nr: usize,
        charge: &Charge,
        device: &dyn Device,
        out: &mut Extents,
    ) -> bool {
        loop {
            if self.space.alloc_on(id(d), nr, out) {
                return true;
            }
            // What was lent may be ours again.
            if self.settle_loans(charge) && self.space.alloc_on(id(d), nr, out) {
                return true;
            }
            self.ask_for_sweep(charge);
            if !self.take_grant(d, charge, device) {
                return false;
            }
        }
    }

    /// Has those who borrow from us say what they may still read. Cheap, so it is asked whenever more
    /// room is wanted.
    fn ask_for_sweep(&self, charge: &Charge) {
        let p = charge.proc();
        let lends = self.any_lent.load(Relaxed) && p.lends.load(Acquire) != 0;
        if lends && p.sweep_wanted.swap(1, AcqRel) == 0 {
            charge.call();
        }
    }

    /// There are no slots: waits a little for those that are only lent.
    fn wait_for_sweep(&self, charge: &Charge) -> bool {
        self.ask_for_sweep(charge);
        for _ in 0..SWEEP_WAITS {
            let p = charge.proc();
            if !self.any_lent.load(Relaxed) || p.lends.load(Acquire) == 0 {
                return self.settle_loans(charge);
            }
            if self.settle_loans(charge) {
                return true;
            }
            thread::pause();
        }
        false
    }

    /// What was asked for becomes ours, if it has been granted. False if nothing was.
    fn take_grant(&self, d: usize, charge: &Charge, device: &dyn Device) -> bool {
        match self.answered(d, charge) {
            None => return false,
            Some(Answer::Granted(grant)) if self.take(d, grant, device) => return true,
            Some(Answer::Granted(grant)) => charge.proc().give_back(d, grant),
            Some(Answer::Nothing) => {}
        }
        let now = thread::now_ns();
        self.wishes[d].refused_ns.store(now, Relaxed);
        false
    }

    /// What the supervisor has said to the wish that is open, which is so no more.
    fn answered(&self, d: usize, charge: &Charge) -> Option<Answer> {
        let wish = &self.wishes[d];
        if !wish.is_open.load(Relaxed) {
            return None;
        }
        let answer = charge.proc().answered(d, wish.number.load(Relaxed))?;
        wish.is_open.store(false, Relaxed);
        Some(answer)
    }

    /// False if the file system has no space for it.
    fn take(&self, d: usize, grant: Grant, device: &dyn Device) -> bool {
        let bytes = |clusters: usize| (clusters * PMD_SIZE) as u64;
        let reserve = |r: Range<usize>| device.reserve(bytes(r.start), bytes(r.len()));
        if !runs(grant).all(|r| reserve(r).is_ok()) {
            return false;
        }
        self.tops[d].fetch_max(grant.segment + 1, Relaxed);
        runs(grant).for_each(|r| self.space.online(clusters(d, r)));
        true
    }

    /// The slots' contents are not needed. A lender's slots are left to the lender.
    pub fn free(&self, entry: SwapEntry, nr: usize) {
        let _ = self.space.free(entry, nr as u64);
    }

    /// As `free`; never hands them out again.
    pub fn give_up(&self, entry: SwapEntry, nr: usize) {
        let _ = self.space.give_up(entry, nr as u64);
    }

    /// Whether the slots, all of one cluster, are this process's and nobody else may read them.
    pub fn is_own(&self, entry: SwapEntry, nr: usize) -> bool {
        self.space.is_own(entry, nr as u64)
    }

    /// Slots in use.
    pub fn used(&self) -> u64 {
        self.space.used_slots()
    }

    /// Whether less than half of what may be used is free to this process, as far as it knows.
    pub fn is_half_full(&self) -> bool {
        let leaving = self.leaving();
        let total: u64 = (0..self.devices)
            .filter(|&d| !leaving.has(d))
            .map(|d| self.sizes[d])
            .sum();
        self.used() * 2 > total
    }

    /// About how many slots can be had without another segment.
    pub fn free_hint(&self) -> u64 {
        self.space.free_hint()
    }

    /// Just before a fork, by the parent: the child will read all that is in use. Nothing else here
    /// may be called until `fork_done`, in the parent and in the child.
    pub fn lend_all(&self) {
        self.any_lent.store(true, Relaxed);
        self.space.lend();
        self.space.fork_prepare();
    }

    /// # Safety
    /// Answers `lend_all`, once in each process.
    #[allow(unsafe_code)]
    pub unsafe fn fork_done(&self) {
        // SAFETY: the caller's contract.
        unsafe { self.space.fork_release() };
    }

    /// Frees what was put off, once nobody borrows from us any more; or, after a sweep, what no borrower
    /// has named. True if there was something to look at. For the reclaim thread, which stands still
    /// while a child is made.
    pub fn settle_loans(&self, charge: &Charge) -> bool {
        if !self.any_lent.load(Relaxed) {
            return false;
        }
        let p = charge.proc();
        if p.lends.load(Acquire) == 0 {
            self.any_lent.store(false, Relaxed);
            self.end_loans(|_, _| false);
            return true;
        }
        let swept = p.swept.load(Acquire);
        if swept == self.swept.swap(swept, Relaxed) {
            return false;
        }
        // A child that was made since then was not asked.
        if p.swept_after.load(Acquire) != p.last_place.load(Acquire) {
            return false;
        }
        self.end_loans(|d, cluster| p.lent.has(d, cluster));
        true
    }

    fn end_loans(&self, kept: impl Fn(usize, usize) -> bool) {
        for d in 0..self.devices {
            let end = self.tops[d].load(Relaxed) as u64 * SLOTS;
            self.space
                .end_loans(id(d), end, |cluster| kept(d, cluster as usize));
        }
    }

    /// Gives back clusters that hold nothing, keeping some room for what will be written next: two segments and
    /// an eighth of what is in use, on a device that stays, or one cluster while others lack them. The supervisor
    /// returns their space to the file system. For the reclaim thread.
    pub fn trim(&self, charge: &Charge) {
        let leaving = self.leaving();
        let scarce = charge.proc().swap_is_scarce.load(Acquire) != 0;
        for d in 0..self.devices {
            let used = self.space.device_used_slots(id(d));
            let most = match (leaving.has(d), scarce) {
                (true, _) => CLUSTERS,
                (false, true) => FEWEST + 1,
                (false, false) => 3 * CLUSTERS + used / SWAPFILE_CLUSTER as u64 / 8,
            };
            for seg in 0..self.tops[d].load(Relaxed) {
                if self.space.free_clusters(id(d)) < most {
                    break;
                }
                let gone = self.space.offline(segment(d, seg));
                if gone != 0 {
                    let grant = Grant {
                        segment: seg,
                        clusters: gone as u16,
                    };
                    charge.proc().give_back(d, grant);
                }
            }
            let spare = match leaving.has(d) {
                true => 0,
                false => self.space.free_clusters(id(d)).saturating_sub(FEWEST),
            };
            charge.proc().spare_clusters[d].store(spare as u32, Release);
        }
    }

    /// In a forked child, after `fork_done`: all of it belongs to the parent now.
    pub fn start_over(&self) {
        self.any_lent.store(false, Relaxed);
        self.swept.store(0, Relaxed);
        for top in &self.tops {
            top.store(0, Relaxed);
        }
        for wish in &self.wishes {
            wish.number.store(0, Relaxed);
            wish.is_open.store(false, Relaxed);
            wish.refused_ns.store(0, Relaxed);
        }
        self.space.start_over();
    }

    /// For tests.
    pub fn validate(&self) -> Result<(), crate::swapfile::Inconsistent> {
        self.space.validate()
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests;
