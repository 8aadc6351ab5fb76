//! Which clusters of the swap devices are this process's.
//!
//! Devices are shared by all processes of a run; each takes segments of them (sixteen clusters)
//! from the control page and hands out clusters within its own segments.
//!
//! After a fork the child reads the parent's clusters. The parent marks what it had then as
//! borrowed, and what of that it frees is put off until no living process borrows from it.
#![allow(unsafe_code)]

use crate::charge::Charge;
use crate::control::{DeviceEntry, SEGMENT_BYTES};
use crate::device::Device;
use crate::mm::{SwapPlace, PMD_SIZE};
use crate::sync::Mutex;
use crate::sys::{mem, thread, Errno};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

const PER_SEGMENT: usize = (SEGMENT_BYTES / PMD_SIZE as u64) as usize;
const ALL: u16 = u16::MAX;
const _: () = assert!(PER_SEGMENT == 16);
/// Pauses of 100 us for which a discard is waited for.
const DISCARD_WAITS: usize = 1000;

/// The clusters of one segment, a bit to each.
#[derive(Clone, Copy)]
struct Segment {
    owned: bool,
    used: u16,
    borrowed: u16,
    /// Freed by us, but perhaps still read by a borrower.
    put_off: u16,
    /// Given up after a write error.
    bad: u16,
}

struct Table {
    segments: &'static mut [Segment],
    /// One past the highest segment that was ever ours.
    top: usize,
    /// Where the next search starts.
    next: usize,
    free: usize,
    used: usize,
}

pub struct Clusters {
    tables: [Mutex<Table>; crate::control::MAX_DEVICES],
    devices: usize,
    any_borrowed: AtomicBool,
}

/// Why there is no cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoCluster {
    /// `--swap-size` is used up, or the disk is full.
    Full,
}

/// The segment of a cluster, and its bit there.
fn place(e: SwapPlace) -> (usize, u16) {
    (e.cluster() / PER_SEGMENT, 1 << (e.cluster() % PER_SEGMENT))
}

/// A segment for process `proc`; waits a little for one whose space is just given back.
fn claim(entry: &DeviceEntry, proc: usize) -> Option<usize> {
    for _ in 0..DISCARD_WAITS {
        let seg = entry.claim_segment(proc);
        if seg.is_some() || !entry.is_discarding() {
            return seg;
        }
        thread::pause();
    }
    None
}

impl Clusters {
    pub fn new(devices: &[DeviceEntry]) -> Result<Clusters, Errno> {
        let mut err = None;
        let tables = core::array::from_fn(|i| {
            let n = devices.get(i).map_or(0, DeviceEntry::segments);
            // SAFETY: all-zero is a valid Segment.
            let segments = match unsafe { mem::map_table::<Segment>(n.max(1)) } {
                Ok(s) => s,
                Err(e) => {
                    err = Some(e);
                    &mut []
                }
            };
            Mutex::new(Table {
                segments,
                top: 0,
                next: 0,
                free: 0,
                used: 0,
            })
        });
        match err {
            Some(e) => Err(e),
            None => Ok(Clusters {
                tables,
                devices: devices.len(),
                any_borrowed: AtomicBool::new(false),
            }),
        }
    }

    /// A free cluster on the first device that has one.
    pub fn alloc(
        &self,
        charge: &Charge,
        devices: &[Box<dyn Device>],
    ) -> Result<SwapPlace, NoCluster> {
        (0..self.devices)
            .find_map(|d| self.alloc_on(d, charge, &*devices[d]))
            .ok_or(NoCluster::Full)
    }

    /// No lock is held while the file system gives space. Only the reclaim thread allocates.
    fn alloc_on(&self, d: usize, charge: &Charge, device: &dyn Device) -> Option<SwapPlace> {
        if self.tables[d].lock().free == 0 {
            let entry = &charge.control.devices[d];
            let seg = claim(entry, charge.index())?;
            let offset = seg as u64 * SEGMENT_BYTES;
            if device.reserve(offset, SEGMENT_BYTES).is_err() {
                entry.release_segment(seg);
                return None;
            }
            let mut t = self.tables[d].lock();
            t.segments[seg] = Segment {
                owned: true,
                used: 0,
                borrowed: 0,
                put_off: 0,
                bad: 0,
            };
            t.free += PER_SEGMENT;
            t.top = t.top.max(seg + 1);
            t.next = seg;
        }
        let mut t = self.tables[d].lock();
        let (top, next) = (t.top, t.next.min(t.top));
        for seg in (next..top).chain(0..next) {
            let s = &mut t.segments[seg];
            let taken = s.used | s.put_off | s.bad;
            if s.owned && taken != ALL {
                let bit = (!taken).trailing_zeros() as usize;
                s.used |= 1 << bit;
                t.next = seg;
                t.free -= 1;
                t.used += 1;
                return Some(SwapPlace::new(d, seg * PER_SEGMENT + bit));
            }
        }
        None
    }

    /// The range no longer needs its cluster. Clusters of a lender are left to the lender.
    pub fn free(&self, e: SwapPlace) {
        let (seg, bit) = place(e);
        let mut t = self.tables[e.device()].lock();
        let s = &mut t.segments[seg];
        if !s.owned || s.used & bit == 0 {
            return;
        }
        s.used &= !bit;
        if s.borrowed & bit != 0 {
            s.put_off |= bit;
        } else {
            t.free += 1;
        }
        t.used -= 1;
    }

    /// Whether the cluster is this process's and nobody else may read it.
    pub fn is_writable(&self, e: SwapPlace) -> bool {
        let (seg, bit) = place(e);
        let s = self.tables[e.device()].lock().segments[seg];
        s.owned && s.used & !s.borrowed & bit != 0
    }

    /// Never hands the cluster out again.
    pub fn mark_bad(&self, e: SwapPlace) {
        let (seg, bit) = place(e);
        let mut t = self.tables[e.device()].lock();
        let s = &mut t.segments[seg];
        if s.owned {
            s.bad |= bit;
            if s.used & bit != 0 {
                s.used &= !bit;
                t.used -= 1;
            }
        }
    }

    pub fn used_clusters(&self) -> usize {
        self.tables[..self.devices]
            .iter()
            .map(|t| t.lock().used)
            .sum()
    }

    /// Just before a fork, by the parent: the child will read all of these.
    pub fn lend_all(&self) {
        self.any_borrowed.store(true, Relaxed);
        for t in &self.tables[..self.devices] {
            let mut t = t.lock();
            let top = t.top;
            for s in &mut t.segments[..top] {
                s.borrowed |= s.used;
            }
        }
    }

    /// Frees what was put off, once nobody borrows from us any more.
    pub fn settle_loans(&self, charge: &Charge) {
        if !self.any_borrowed.load(Relaxed) || charge.control.is_borrowed_from(charge.index()) {
            return;
        }
        self.any_borrowed.store(false, Relaxed);
        for t in &self.tables[..self.devices] {
            let mut t = t.lock();
            let top = t.top;
            let mut back = 0;
            for s in &mut t.segments[..top] {
                back += (s.put_off & !s.bad).count_ones() as usize;
                s.put_off = 0;
                s.borrowed = 0;
            }
            t.free += back;
        }
    }

    /// Gives back segments that hold nothing, keeping some room for what will be written next. The
    /// supervisor returns their space to the file system.
    pub fn trim(&self, charge: &Charge) {
        for (d, t) in self.tables[..self.devices].iter().enumerate() {
            let mut t = t.lock();
            let keep = 2 * PER_SEGMENT + t.used / 8;
            for seg in 0..t.top {
                if t.free <= keep {
                    break;
                }
                let s = &mut t.segments[seg];
                if !s.owned || (s.used | s.put_off | s.bad) != 0 {
                    continue;
                }
                s.owned = false;
                t.free -= PER_SEGMENT;
                charge.control.devices[d].release_segment(seg);
            }
        }
    }

    /// In a forked child: all of it belongs to the parent now.
    pub fn start_over(&self) {
        self.any_borrowed.store(false, Relaxed);
        for t in &self.tables {
            t.reset();
            let mut t = t.lock();
            let top = t.top;
            for s in &mut t.segments[..top] {
                s.owned = false;
                s.used = 0;
                s.borrowed = 0;
                s.put_off = 0;
                s.bad = 0;
            }
            t.top = 0;
            t.next = 0;
            t.free = 0;
            t.used = 0;
        }
    }
}
