//! A device in segments, and slots that are lent, beside a model that keeps every slot in a plain
//! array.

use hugeswap_mm::{DeviceId, Extents, SwapEntry};
use hugeswap_swapfile::{DeviceConfig, EntryError, Segment, SwapConfig, SwapSpace};
use proptest::prelude::*;

const SEGMENT: u64 = 4 * 512;
const SEGMENTS: u64 = 6;

#[derive(Clone, Copy, Debug)]
enum Op {
    Online(u64),
    Offline(u64),
    Alloc(usize),
    AllocFromAll(usize),
    /// Part of what was allocated at some time: it may be free, or another's, by now.
    Free {
        which: usize,
        from: u64,
        nr: u64,
    },
    GiveUp {
        which: usize,
    },
    Lend,
    EndLoans,
    StartOver,
}

fn ops() -> impl Strategy<Value = Op> {
    let nr = || prop_oneof![Just(512usize), Just(1), 1..512usize, 1..16usize];
    prop_oneof![
        4 => (0..SEGMENTS).prop_map(Op::Online),
        3 => (0..SEGMENTS).prop_map(Op::Offline),
        20 => nr().prop_map(Op::Alloc),
        3 => nr().prop_map(Op::AllocFromAll),
        20 => (any::<usize>(), 0..512u64, 1..513u64)
            .prop_map(|(which, from, nr)| Op::Free { which, from, nr }),
        1 => any::<usize>().prop_map(|which| Op::GiveUp { which }),
        2 => Just(Op::Lend),
        1 => Just(Op::EndLoans),
        1 => prop_oneof![9 => Just(Op::Lend), 1 => Just(Op::StartOver)],
    ]
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Slot {
    held: bool,
    lent: bool,
    bad_once_free: bool,
    bad: bool,
}

impl Slot {
    fn is_free(self) -> bool {
        self == Slot::default()
    }
}

struct Model {
    space: SwapSpace,
    id: DeviceId,
    online: [bool; SEGMENTS as usize],
    slots: Vec<Slot>,
    given: Vec<(SwapEntry, u64)>,
}

impl Model {
    fn new() -> Model {
        let space = SwapSpace::new(SwapConfig {
            nr_cpus: 1,
            ..SwapConfig::default()
        });
        let config = DeviceConfig {
            segmented: true,
            ..DeviceConfig::new(SEGMENTS * SEGMENT)
        };
        Model {
            id: space.add_device(&config).unwrap(),
            space,
            online: [false; SEGMENTS as usize],
            slots: vec![Slot::default(); (SEGMENTS * SEGMENT) as usize],
            given: Vec::new(),
        }
    }

    fn segment(&self, seg: u64) -> Segment {
        Segment {
            device: self.id,
            start: seg * SEGMENT,
            end: (seg + 1) * SEGMENT,
        }
    }

    fn of(&self, seg: u64) -> &[Slot] {
        &self.slots[(seg * SEGMENT) as usize..((seg + 1) * SEGMENT) as usize]
    }

    fn free(&self) -> usize {
        (0..SEGMENTS)
            .filter(|&seg| self.online[seg as usize])
            .map(|seg| self.of(seg).iter().filter(|s| s.is_free()).count())
            .sum()
    }

    fn take(&mut self, got: bool, nr: usize, out: &Extents, must: bool) {
        assert_eq!(out.nr_slots(), if got { nr } else { 0 });
        assert!(got || !must, "refused {nr} with {} free", self.free());
        for extent in out.iter() {
            let first = extent.entry.slot();
            let last = first + u64::from(extent.nr) - 1;
            assert_eq!(first / 512, last / 512, "crosses a cluster");
            for slot in first..=last {
                assert!(self.online[(slot / SEGMENT) as usize], "not ours");
                assert!(self.slots[slot as usize].is_free(), "{slot} is not free");
                self.slots[slot as usize].held = true;
            }
            self.given.push((extent.entry, extent.nr.into()));
        }
    }

    fn play(&mut self, op: Op) {
        let mut out = Extents::new();
        match op {
            Op::Online(seg) => {
                self.space.online(self.segment(seg));
                self.online[seg as usize] = true;
            }
            Op::Offline(seg) => {
                let may = self.online[seg as usize] && self.of(seg).iter().all(|s| s.is_free());
                let gone = self.space.offline(self.segment(seg));
                assert_eq!(gone, if may { (1 << (SEGMENT / 512)) - 1 } else { 0 });
                self.online[seg as usize] &= !may;
            }
            Op::Alloc(nr) => {
                let must = nr < 512 && self.free() >= nr;
                let got = self.space.alloc_on(self.id, nr, &mut out);
                let whole = (0..self.slots.len()).step_by(512).any(|c| {
                    self.online[c / SEGMENT as usize]
                        && self.slots[c..c + 512].iter().all(|s| s.is_free())
                });
                self.take(got, nr, &out, must || nr == 512 && whole);
                assert!(nr < 512 || out.len() <= 1, "a cluster is one piece");
            }
            Op::AllocFromAll(nr) => {
                let must = self.free() >= nr;
                let got = self.space.alloc_from_all(nr, &mut out);
                self.take(got, nr, &out, must);
            }
            Op::Free { which, from, nr } => {
                let Some((entry, nr)) = self.part(which, from, nr) else {
                    return;
                };
                let run = entry.slot() as usize..(entry.slot() + nr) as usize;
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
                    let_go(slot);
                    now_free += u64::from(slot.is_free());
                }
                assert_eq!(freed, Ok(now_free));
            }
            Op::GiveUp { which } => {
                let Some((entry, nr)) = self.part(which, 0, 512) else {
                    return;
                };
                self.space.mark_bad(entry, nr).unwrap();
                for slot in entry.slot()..entry.slot() + nr {
                    let online = self.online[(slot / SEGMENT) as usize];
                    let s = &mut self.slots[slot as usize];
                    if s.held || s.lent {
                        s.bad_once_free = true;
                    } else if online {
                        s.bad = true;
                    }
                }
            }
            Op::Lend => {
                self.space.lend();
                for slot in self.slots.iter_mut().filter(|s| s.held) {
                    slot.lent = true;
                }
            }
            Op::EndLoans => {
                self.space.end_loans(self.id, SEGMENTS * SEGMENT, |_| false);
                for slot in &mut self.slots {
                    slot.lent = false;
                    let_go(slot);
                }
            }
            Op::StartOver => {
                self.space.start_over();
                self.slots.fill(Slot::default());
                self.online = [false; SEGMENTS as usize];
            }
        }
    }

    fn part(&self, which: usize, from: u64, nr: u64) -> Option<(SwapEntry, u64)> {
        let (entry, len) = *self.given.get(which % self.given.len().max(1))?;
        let from = from % len;
        Some((entry.checked_add(from)?, nr.min(len - from)))
    }
}

fn let_go(slot: &mut Slot) {
    if !slot.held && !slot.lent && slot.bad_once_free {
        slot.bad_once_free = false;
        slot.bad = true;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn like_the_model(ops in prop::collection::vec(ops(), 1..200)) {
        let mut model = Model::new();
        model.play(Op::Online(2));
        for op in ops {
            model.play(op);
            model.space.validate().map_err(|e| TestCaseError::fail(format!("{op:?}: {e}")))?;
            let used = model.slots.iter().filter(|s| s.held || s.lent).count();
            prop_assert_eq!(model.space.used_slots(), used as u64, "{:?}", op);
            prop_assert_eq!(model.space.free_slots(), model.free() as u64, "{:?}", op);
        }
    }
}

/// Lending takes the same time however much there is: nothing but a count changes.
#[test]
fn what_is_lent_stays_until_the_loan_ends() {
    let mut model = Model::new();
    model.play(Op::Online(0));
    model.play(Op::Alloc(512));
    model.play(Op::Lend);
    model.play(Op::Alloc(3));
    let (whole, (few, _)) = (model.given[0], model.given[1]);
    assert!(!model.space.is_own(whole.0, 1));
    assert!(model.space.is_own(few, 3));
    model.play(Op::Free {
        which: 0,
        from: 0,
        nr: 512,
    });
    assert_eq!(model.space.used_slots(), 515);
    model.play(Op::EndLoans);
    assert_eq!(model.space.used_slots(), 3);
    model.space.validate().unwrap();
}
