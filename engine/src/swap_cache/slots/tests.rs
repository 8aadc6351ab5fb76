use super::*;
use crate::control::{Proc, Writer};
use crate::device::faulty::{FaultyDevice, Plan};
use crate::device::ram::RamDevice;

/// Devices that have space for so many segments each, whatever they promise.
fn disks(segments: &[u64]) -> Vec<Box<dyn Device>> {
    let disk = |n: &u64| {
        let plan = Plan {
            full_at: Some(n * SEGMENT_BYTES),
            ..Plan::default()
        };
        let memory = RamDevice::new(16 * SEGMENT_BYTES).unwrap();
        memory.grow(16 * SEGMENT_BYTES).unwrap();
        Box::new(FaultyDevice::new(memory, plan)) as Box<dyn Device>
    };
    segments.iter().map(disk).collect()
}

/// Answers wishes as the supervisor does, a whole segment at a time.
#[derive(Default)]
struct Supervisor {
    owners: std::collections::BTreeMap<(usize, usize), u32>,
}

struct Process {
    slots: SwapSlots,
    charge: Charge,
    out: Extents,
}

impl Process {
    fn new(control: Writer, devices: usize) -> Process {
        static IDS: AtomicU32 = AtomicU32::new(0);
        let page = crate::sys::mem::map_anon(Proc::BYTES).unwrap() as *const Proc;
        // SAFETY: mapped with this size and never unmapped; every bit pattern is valid.
        let page = unsafe { &*page };
        Process {
            slots: SwapSlots::new(&control.page().devices()[..devices]).unwrap(),
            charge: Charge::new(control.page(), IDS.fetch_add(1, Relaxed), page, -1),
            out: Extents::new(),
        }
    }

    /// Device and first slot of what `nr` pages got, if they got anything.
    fn alloc(
        &mut self,
        nr: usize,
        disks: &[Box<dyn Device>],
        supervisor: &mut Supervisor,
    ) -> Option<Vec<(usize, u64)>> {
        // As if what was refused before had been long ago.
        for wish in &self.slots.wishes {
            wish.refused_ns.store(0, Relaxed);
        }
        while !self.slots.prepare(&self.charge, disks) {
            supervisor.turn(self);
        }
        self.slots
            .alloc(nr, &self.charge, disks, &mut self.out)
            .ok()?;
        self.slots.validate().unwrap();
        assert_eq!(self.out.nr_slots(), nr);
        let each = self.out.iter();
        Some(
            each.map(|e| (e.entry.device().index(), e.entry.slot()))
                .collect(),
        )
    }
}

impl Supervisor {
    fn take_freed(&mut self, p: &Process) -> usize {
        let devices = p.charge.control.devices();
        let sizes = devices.iter().map(DeviceEntry::segments);
        let mut n = 0;
        p.charge.proc().take_freed(sizes, |d, cluster| {
            n += 1;
            let seg = cluster / SEGMENT_CLUSTERS;
            assert_eq!(
                self.owners.get(&(d, seg)).copied().unwrap_or(p.charge.id()),
                p.charge.id()
            );
            self.owners.remove(&(d, seg));
        });
        n
    }

    fn turn(&mut self, p: &Process) {
        self.take_freed(p);
        for (d, entry) in p.charge.control.devices().iter().enumerate() {
            let Some(wish) = p.charge.proc().wish(d) else {
                continue;
            };
            let free = (0..entry.segments()).find(|&seg| !self.owners.contains_key(&(d, seg)));
            let answer = free.map_or(Answer::Nothing, |segment| {
                self.owners.insert((d, segment), p.charge.id());
                Answer::Granted(Grant {
                    segment,
                    clusters: u16::MAX,
                })
            });
            p.charge.proc().answer(d, wish, answer);
        }
    }
}

#[test]
fn segments_of_two_processes_do_not_meet() {
    let control = Writer::with_segments(&[3]);
    let disks = disks(&[3]);
    let s = &mut Supervisor::default();
    let (mut a, mut b) = (Process::new(control, 1), Process::new(control, 1));
    assert_eq!(a.alloc(1, &disks, s), Some(vec![(0, 0)]));
    assert_eq!(b.alloc(512, &disks, s), Some(vec![(0, SLOTS)]));
    assert_eq!(a.alloc(2, &disks, s), Some(vec![(0, 1)]));
    // What is another's is left alone.
    let foreign = SwapEntry::new(id(0), SLOTS).unwrap();
    a.slots.free(foreign, 512);
    a.slots.give_up(foreign, 512);
    assert!(!a.slots.is_own(foreign, 1) && b.slots.is_own(foreign, 512));
    for _ in 0..15 {
        assert!(a.alloc(512, &disks, s).is_some());
    }
    // The third segment, and then what is left of the first.
    for _ in 0..16 {
        assert!(a.alloc(512, &disks, s).is_some());
    }
    assert_eq!(a.alloc(509, &disks, s), Some(vec![(0, 3)]));
    assert_eq!(a.alloc(1, &disks, s), None);
    assert_eq!(a.slots.used(), 2 * SLOTS);
}

/// A folio is refused only when fewer slots are free than it has pages.
#[test]
fn the_last_slots_serve_a_folio_in_pieces() {
    let control = Writer::with_segments(&[1, 1]);
    let disks = disks(&[1, 1]);
    let s = &mut Supervisor::default();
    let mut p = Process::new(control, 2);
    while p.alloc(512, &disks, s).is_some() {}
    assert_eq!(p.slots.used(), 2 * SLOTS);
    for i in 0..128 {
        let slot = SwapEntry::new(id(i % 2), (i as u64 * 97) % SLOTS).unwrap();
        p.slots.free(slot, 4);
    }
    let pieces = p.alloc(512, &disks, s).unwrap();
    assert!(pieces.iter().any(|p| p.0 == 0) && pieces.iter().any(|p| p.0 == 1));
    assert_eq!(p.alloc(1, &disks, s), None);
}

/// By clusters and not by requests: what leaves in pieces lies together.
#[test]
fn devices_of_one_rank_are_used_in_turn() {
    let control = Writer::with_ranks(&[(1, 0), (3, 0), (1, 1)]);
    let disks = disks(&[1, 3, 1]);
    let s = &mut Supervisor::default();
    let mut p = Process::new(control, 3);
    // Nobody waits for the second device's answer at first.
    p.alloc(512, &disks, s).unwrap();
    p.slots.prepare(&p.charge, &disks);
    s.turn(&p);
    let mut devices: Vec<_> = (0..79)
        .map(|_| p.alloc(512, &disks, s).unwrap()[0].0)
        .collect();
    assert_eq!(p.alloc(512, &disks, s), None);
    let third = devices.split_off(63);
    assert!(third.iter().all(|&d| d == 2), "{third:?}");
    let both = &devices[..24];
    let first = both.iter().filter(|&&d| d == 0).count();
    assert!((11..=13).contains(&first), "{both:?}");
    assert!(
        both.windows(3).all(|w| w[0] != w[1] || w[1] != w[2]),
        "{both:?}"
    );
    // The smaller one is full.
    assert!(devices[32..].iter().all(|&d| d == 1), "{devices:?}");
}

#[test]
fn pieces_of_one_cluster_lie_on_one_device() {
    let control = Writer::with_ranks(&[(1, 0), (1, 0)]);
    let disks = disks(&[1, 1]);
    let s = &mut Supervisor::default();
    let mut p = Process::new(control, 2);
    let devices: Vec<_> = (0..320)
        .map(|_| {
            s.turn(&p);
            p.alloc(16, &disks, s).unwrap()[0].0
        })
        .collect();
    let changes = devices.windows(2).filter(|w| w[0] != w[1]).count();
    assert!((8..=10).contains(&changes), "{devices:?}");
}

#[test]
fn a_full_disk_passes_on_to_the_next() {
    let control = Writer::with_segments(&[4, 2]);
    let disks = disks(&[1, 2]);
    let s = &mut Supervisor::default();
    let mut p = Process::new(control, 2);
    let places: Vec<_> = (0..48)
        .map(|_| p.alloc(512, &disks, s).unwrap()[0].0)
        .collect();
    assert_eq!(places.iter().filter(|&&d| d == 0).count(), 16);
    assert!(places[..16].iter().all(|&d| d == 0));
    assert_eq!(p.alloc(512, &disks, s), None);
}

/// What is lent is neither written nor handed out until nobody borrows.
#[test]
fn loans_last_as_long_as_the_borrower() {
    let control = Writer::with_segments(&[2]);
    let disks = disks(&[2]);
    let s = &mut Supervisor::default();
    let mut parent = Process::new(control, 1);
    assert!(parent.alloc(512, &disks, s).is_some());
    let lent = parent.out[0];
    parent.charge.proc().lends.store(1, Release);
    parent.slots.lend_all();
    // SAFETY: answers the line above.
    unsafe { parent.slots.fork_done() };
    assert!(!parent.slots.is_own(lent.entry, 1));
    parent.slots.free(lent.entry, 512);
    parent.slots.settle_loans(&parent.charge);
    assert_eq!(parent.slots.used(), 512);
    for _ in 0..31 {
        assert!(parent.alloc(512, &disks, s).is_some());
        assert!(parent.slots.is_own(parent.out[0].entry, 512));
    }
    assert_eq!(parent.alloc(1, &disks, s), None);
    parent.charge.proc().lends.store(0, Release);
    parent.slots.settle_loans(&parent.charge);
    assert_eq!(
        parent.alloc(512, &disks, s),
        Some(vec![(0, lent.entry.slot())])
    );
}

/// A loan ends cluster by cluster: what no borrower has named after a sweep is free, unless a child
/// was made since.
#[test]
fn loans_end_where_nobody_reads() {
    let control = Writer::with_segments(&[1]);
    let disks = disks(&[1]);
    let s = &mut Supervisor::default();
    let mut parent = Process::new(control, 1);
    let page = parent.charge.proc();
    let mut all = Vec::new();
    while parent.alloc(512, &disks, s).is_some() {
        all.push(parent.out[0]);
    }
    page.lends.store(1, Release);
    parent.slots.lend_all();
    // SAFETY: answers the line above.
    unsafe { parent.slots.fork_done() };
    for e in &all[..3] {
        parent.slots.free(e.entry, 512);
    }
    assert!(!parent.slots.settle_loans(&parent.charge), "no sweep yet");
    let cluster = |e: usize| all[e].entry.slot() as usize / SWAPFILE_CLUSTER;
    page.lent.add(0, cluster(1));
    page.last_place.store(7, Release);
    page.swept.store(1, Release);
    assert!(!parent.slots.settle_loans(&parent.charge), "a child since");
    page.swept_after.store(7, Release);
    page.swept.store(2, Release);
    assert!(parent.slots.settle_loans(&parent.charge));
    assert!(!parent.slots.settle_loans(&parent.charge));
    parent.slots.validate().unwrap();
    assert_eq!(parent.slots.used(), 14 * 512);
    let mut again = Vec::new();
    page.sweep_wanted.store(1, Release);
    for _ in 0..2 {
        again.push(parent.alloc(512, &disks, s).unwrap()[0].1 as usize / SWAPFILE_CLUSTER);
    }
    again.sort_unstable();
    let mut freed = [cluster(0), cluster(2)];
    freed.sort_unstable();
    assert_eq!(again, freed);
    // What is ours and was not lent again is as before the fork.
    assert!(parent.slots.is_own(all[5].entry, 512));
}

#[test]
fn empty_clusters_are_given_back_but_for_a_reserve() {
    let control = Writer::with_segments(&[8]);
    let disks = disks(&[8]);
    let s = &mut Supervisor::default();
    let mut p = Process::new(control, 1);
    let mut all = Vec::new();
    while p.alloc(512, &disks, s).is_some() {
        all.push(p.out[0]);
    }
    // One slot of each segment keeps its cluster, and not the segment.
    for e in all {
        let first = e.entry.slot() % SLOTS == 0;
        p.slots.free(e.entry, if first { 511 } else { 512 });
    }
    p.slots.trim(&p.charge);
    p.slots.validate().unwrap();
    let mut freed = Vec::new();
    let sizes = || [8].into_iter();
    p.charge.proc().take_freed(sizes(), |_, c| freed.push(c));
    assert_eq!(freed.len(), 5 * (SEGMENT_CLUSTERS - 1));
    assert!(freed.iter().all(|c| c % SEGMENT_CLUSTERS != 0), "{freed:?}");
    assert_eq!(p.slots.used(), 8);
    // They come back one by one.
    for cluster in freed {
        let grant = Grant {
            segment: cluster / SEGMENT_CLUSTERS,
            clusters: 1 << (cluster % SEGMENT_CLUSTERS),
        };
        assert!(p.slots.take(0, grant, &*disks[0]));
    }
    let mut n = 0;
    while p.alloc(512, &disks, s).is_some() {
        n += 1;
    }
    // The last ones in pieces.
    assert_eq!(n, 8 * CLUSTERS - 1);
}

/// Of what it has and does not use one cluster stays when others lack swap.
#[test]
fn what_is_spare_goes_to_others() {
    let control = Writer::with_segments(&[8]);
    let disks = disks(&[8]);
    let s = &mut Supervisor::default();
    let mut p = Process::new(control, 1);
    p.alloc(512, &disks, s).unwrap();
    let page = p.charge.proc();
    let freed = || {
        let mut n = 0;
        page.take_freed([8].into_iter(), |_, _| n += 1);
        n
    };
    p.slots.trim(&p.charge);
    let spare = page.spare_clusters[0].load(Acquire);
    assert_eq!((freed(), spare), (0, SEGMENT_CLUSTERS as u32 - 2));
    page.swap_is_scarce.store(1, Release);
    p.slots.trim(&p.charge);
    p.slots.validate().unwrap();
    assert_eq!(p.slots.used(), 512);
    assert_eq!(page.spare_clusters[0].load(Acquire), 0);
    assert!(freed() >= SEGMENT_CLUSTERS - 2);
}
