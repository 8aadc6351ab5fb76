//! The allocator beside a model that keeps every slot in a plain array. Shared by the property test and
//! the fuzz target.

use hugeswap_mm::{DeviceId, Extents, SwapEntry};
use hugeswap_swapfile::{EntryError, Segment, SwapSpace};

const SEGMENT: u64 = 4 * 512;
/// Of the first device; the second has one.
pub const SEGMENTS: u64 = 6;
const CLUSTERS: usize = ((SEGMENTS + 1) * SEGMENT / 512) as usize;
const FIRST: u64 = SEGMENTS * SEGMENT;

#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Segments are counted through both devices.
    Online(u64),
    Offline(u64),
    Alloc {
        second: bool,
        nr: usize,
    },
    AllocFromAll(usize),
    /// Part of what was allocated at some time: it may be free, or another's, by now.
    Free {
        which: usize,
        from: u64,
        nr: u64,
    },
    /// An entry that may mean anything.
    FreeWild {
        raw: u64,
        nr: u64,
    },
    GiveUp {
        which: usize,
        from: u64,
        nr: u64,
    },
    Lend,
    /// But for those clusters whose bit is set.
    EndLoans {
        kept: u64,
    },
    Leave {
        second: bool,
        leaving: bool,
    },
    StartOver,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Slot {
    held: bool,
    lent: bool,
    bad: bool,
}

impl Slot {
    fn is_free(self) -> bool {
        self == Slot::default()
    }
}

pub struct Model {
    pub space: SwapSpace,
    /// By cluster, those of the second device last; and so are slots.
    online: [bool; CLUSTERS],
    leaving: [bool; 2],
    slots: Vec<Slot>,
    pub given: Vec<(SwapEntry, u64)>,
}

fn id(second: bool) -> DeviceId {
    DeviceId::new(second.into()).unwrap()
}

/// Where a slot stands in the model.
fn at(entry: SwapEntry) -> usize {
    (entry.device().index() as u64 * FIRST + entry.slot()) as usize
}

fn is_second(cluster: usize) -> bool {
    cluster as u64 * 512 >= FIRST
}

impl Model {
    pub fn new() -> Model {
        Model {
            space: SwapSpace::new(&[FIRST / 512, SEGMENT / 512]).unwrap(),
            online: [false; CLUSTERS],
            leaving: [false; 2],
            slots: vec![Slot::default(); CLUSTERS * 512],
            given: Vec::new(),
        }
    }

    fn segment(seg: u64) -> Segment {
        let second = seg >= SEGMENTS;
        let start = if second { 0 } else { seg * SEGMENT };
        Segment {
            device: id(second),
            start,
            end: start + SEGMENT,
        }
    }

    fn clusters_of(seg: u64) -> std::ops::Range<usize> {
        let each = (SEGMENT / 512) as usize;
        seg as usize * each..(seg as usize + 1) * each
    }

    fn of(&self, cluster: usize) -> &[Slot] {
        &self.slots[cluster * 512..(cluster + 1) * 512]
    }

    fn gives(&self, cluster: usize, of: impl Fn(bool) -> bool) -> bool {
        let second = is_second(cluster);
        self.online[cluster] && of(second) && !self.leaving[usize::from(second)]
    }

    fn free(&self, of: impl Fn(bool) -> bool) -> usize {
        (0..CLUSTERS)
            .filter(|&c| self.gives(c, &of))
            .map(|c| self.of(c).iter().filter(|s| s.is_free()).count())
            .sum()
    }

    fn take(&mut self, got: bool, nr: usize, out: &Extents, must: bool) {
        assert_eq!(out.nr_slots(), if got { nr } else { 0 });
        assert!(got || !must, "{nr} refused");
        for extent in out.iter() {
            let first = at(extent.entry);
            let last = first + usize::from(extent.nr) - 1;
            assert_eq!(first / 512, last / 512, "crosses a cluster");
            assert!(self.gives(first / 512, |_| true), "not ours");
            for slot in first..=last {
                assert!(self.slots[slot].is_free(), "{slot} is not free");
                self.slots[slot].held = true;
            }
            self.given.push((extent.entry, extent.nr.into()));
        }
    }

    pub fn play(&mut self, op: Op) {
        let mut out = Extents::new();
        match op {
            Op::Online(seg) => {
                self.space.online(Self::segment(seg));
                self.online[Self::clusters_of(seg)].fill(true);
            }
            Op::Offline(seg) => {
                let gone = self.space.offline(Self::segment(seg));
                for (n, c) in Self::clusters_of(seg).enumerate() {
                    let may = self.online[c] && self.of(c).iter().all(|s| s.is_free());
                    assert_eq!(gone >> n & 1 != 0, may, "cluster {c}");
                    self.online[c] &= !may;
                }
            }
            Op::Alloc { second, nr } => {
                let there = |s| s == second;
                let empty = |c| self.of(c).iter().all(|s| s.is_free());
                let whole = (0..CLUSTERS).any(|c| self.gives(c, there) && empty(c));
                let must = match nr {
                    512 => whole,
                    nr => self.free(there) >= nr,
                };
                let got = self.space.alloc_on(id(second), nr, &mut out);
                self.take(got, nr, &out, must);
                assert!(nr < 512 || out.len() <= 1, "a cluster is one piece");
                assert!(out.len() <= 1 || !whole, "what fits in one piece is one");
            }
            Op::AllocFromAll(nr) => {
                let must = self.free(|_| true) >= nr;
                let got = self.space.alloc_from_all(nr, &mut out);
                self.take(got, nr, &out, must);
            }
            Op::Free { which, from, nr } => {
                if let Some((entry, nr)) = self.part(which, from, nr) {
                    self.free_run(entry, nr);
                }
            }
            Op::FreeWild { raw, nr } => {
                let Some(entry) = SwapEntry::from_raw(raw) else {
                    return;
                };
                let end = [FIRST, SEGMENT].get(entry.device().index()).copied();
                if nr == 0 || entry.slot() + nr > end.unwrap_or(0) {
                    assert_eq!(self.space.free(entry, nr), Err(EntryError::NoSuchSlot));
                } else if entry.slot() % 512 + nr <= 512 {
                    self.free_run(entry, nr);
                }
            }
            Op::GiveUp { which, from, nr } => {
                let Some((entry, nr)) = self.part(which, from, nr) else {
                    return;
                };
                let run = &mut self.slots[at(entry)..at(entry) + nr as usize];
                if run.iter().any(|s| !s.held) {
                    let none = Err(EntryError::NotInUse);
                    assert_eq!(self.space.give_up(entry, nr), none);
                    return;
                }
                run.fill(Slot {
                    bad: true,
                    ..Slot::default()
                });
                assert_eq!(self.space.give_up(entry, nr), Ok(()));
            }
            Op::Lend => {
                self.space.lend();
                for slot in self.slots.iter_mut().filter(|s| s.held) {
                    slot.lent = true;
                }
            }
            Op::EndLoans { kept } => {
                let first = FIRST / 512;
                let is_kept = |cluster: u64| kept >> cluster & 1 != 0;
                self.space.end_loans(id(false), FIRST, is_kept);
                let of_second = |cluster| is_kept(first + cluster);
                self.space.end_loans(id(true), SEGMENT, of_second);
                for (n, slot) in self.slots.iter_mut().enumerate() {
                    slot.lent &= is_kept(n as u64 / 512);
                }
            }
            Op::Leave { second, leaving } => {
                self.space.set_leaving(id(second), leaving);
                self.leaving[usize::from(second)] = leaving;
            }
            Op::StartOver => {
                self.space.start_over();
                self.slots.fill(Slot::default());
                self.online = [false; CLUSTERS];
            }
        }
    }

    fn free_run(&mut self, entry: SwapEntry, nr: u64) {
        let run = at(entry)..at(entry) + nr as usize;
        let all = self.slots[run.clone()].iter().all(|s| s.held);
        let own = self.slots[run.clone()].iter().all(|s| s.held && !s.lent);
        assert_eq!(self.space.is_own(entry, nr), own);
        let freed = self.space.free(entry, nr);
        if !all {
            assert_eq!(freed, Err(EntryError::NotInUse));
            return;
        }
        let mut now_free = 0;
        for slot in &mut self.slots[run] {
            slot.held = false;
            now_free += u64::from(slot.is_free());
        }
        assert_eq!(freed, Ok(now_free));
    }

    fn part(&self, which: usize, from: u64, nr: u64) -> Option<(SwapEntry, u64)> {
        let (entry, len) = *self.given.get(which % self.given.len().max(1))?;
        let from = from % len;
        Some((entry.checked_add(from)?, nr.clamp(1, len - from)))
    }

    /// Everything there is to compare.
    pub fn check(&self) -> Result<(), String> {
        self.space.validate().map_err(|err| err.to_string())?;
        let used = |slots: &[Slot]| slots.iter().filter(|s| s.held || s.lent).count() as u64;
        let (first, second) = self.slots.split_at(FIRST as usize);
        let of = |second| self.space.device_used_slots(id(second));
        let free = self.free(|_| true) as u64;
        let pairs = [
            ("used slots", self.space.used_slots(), used(&self.slots)),
            ("used slots of the first", of(false), used(first)),
            ("used slots of the second", of(true), used(second)),
            ("free slots", self.space.free_slots(), free),
            ("the hint of free slots", self.space.free_hint(), free),
        ];
        match pairs.iter().find(|(_, theirs, ours)| theirs != ours) {
            Some((what, theirs, ours)) => Err(format!("{what}: {theirs}, model says {ours}")),
            None => Ok(()),
        }
    }
}
