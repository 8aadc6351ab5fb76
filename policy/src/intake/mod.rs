//! How threads go through memory, and what comes in for their faults: docs/swap-in.md.
//!
//! A fault is asked about once ([`Intake::decide`]), under its range's lock, where all is known that there is to know. What
//! comes of it says how much comes in, and what is read ahead beside it.

mod choice;
mod lengths;
mod stream;
mod stride;
mod working_set;

pub use stride::Stride;
pub use working_set::{Fills, Miss};

use crate::watermark::is_for_folios;
use crate::{Hints, SwapIn, Unit, ZERO_FILL_MAX};
use choice::{beside, choose, first_touch, in_parts, passing, Choice, Untouched};
use hugeswap_mm::{PageMask, Pmd, PMD_NR};
use stream::{Streams, Walk};
use stride::Strides;
use working_set::WorkingSet;

/// Memory is not tight when this part of the limit is free.
const ROOMY: i64 = 16;
/// Who gets so many pages at a time will enter the next range.
const FAR: usize = 64;
/// A range that comes back before this part of memory was evicted left too early.
const SOON: i64 = 8;

/// A fault, and how things stand.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub tid: u32,
    pub pmd: Pmd,
    /// Within it.
    pub page: usize,
    pub mode: SwapIn,
    /// Pages that the process may have, and those that are free.
    pub limit: i64,
    pub free: i64,
    /// Something has left memory before.
    pub evicted: bool,
    /// Faults are being recorded: a page that is touched first brings in no others, for a record without their first touches
    /// would say that nobody wants them.
    pub recorded: bool,
    pub now_ns: u64,
}

impl Fault {
    /// Memory has been full, and little of it has been given back since.
    fn is_tight(&self) -> bool {
        self.free < self.limit / ROOMY && self.evicted
    }

    fn is_for_folios(&self) -> bool {
        is_for_folios(self.limit)
    }
}

/// Where a page is that a fault has come for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// It was never touched, or was dropped.
    Nowhere,
    Swap,
    /// The program's or a frame's.
    Memory,
}

/// What there is to choose between.
pub enum Source<'g> {
    /// Nothing: it comes as it is, or is waited for.
    Given,
    /// What is in memory and is to be the program's again, all or some of it.
    Frame,
    /// What has to be read or decompressed, all or some of it.
    Swap(Miss<'g>),
}

/// What there is of another range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Other {
    Part,
    All,
    /// And that though it is sparse: somebody has gone through all of it.
    AllOfSparse,
}

/// What is known of the page and its range, under its lock.
pub struct Place<'g> {
    pub found: Found,
    pub present: PageMask,
    /// The range is used here and there: see [`crate::Sparse`].
    pub sparse: bool,
    pub hints: Hints,
    pub source: Source<'g>,
}

/// How its thread has come there.
#[derive(Clone, Copy, Debug)]
enum Approach {
    Walk(Walk),
    Stride(Stride),
    /// It may be the first fault of a walk: so many pages are worth it.
    Jump(usize),
}

/// How much comes in.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Pages of zeros for a place that was never touched.
    pub zeros: usize,
    /// Of what is in swap, or was taken from the program.
    pub unit: Unit,
}

impl Amount {
    /// The same for a process that may have so many pages. Who waits for memory does so under a limit that changes:
    /// what fitted when it was decided may be more than there can be now.
    #[must_use]
    pub fn within(self, limit: i64) -> Amount {
        match is_for_folios(limit) {
            true => self,
            false => Amount {
                zeros: self.zeros.min(ZERO_FILL_MAX),
                unit: self.unit.in_parts(),
            },
        }
    }
}

/// What is to be done for a fault.
#[derive(Clone, Copy, Debug)]
pub struct Decision {
    pub amount: Amount,
    /// When the fault has been served or its read has begun.
    pub ahead: ReadAhead,
    approach: Approach,
}

/// What is to be read beside what the fault waits for.
#[derive(Clone, Copy, Debug)]
pub enum ReadAhead {
    Nothing,
    /// So many ranges, in this direction; `rest`: also what is missing of those that are half there.
    Ranges {
        step: i32,
        window: usize,
        rest: bool,
    },
    /// What a stride comes to.
    Pages(Stride),
}

#[derive(Default)]
pub struct Intake {
    streams: Streams,
    strides: Strides,
    working_set: WorkingSet,
}

impl Intake {
    /// What is to be done for a fault. `other`: what is in memory of another range.
    pub fn decide(&mut self, fault: Fault, place: Place, other: impl Fn(Pmd) -> Other) -> Decision {
        let approach = self.approach(&fault, place.found, |p| other(p) != Other::Part);
        // Of the range that a walk comes from, all is resident. A program that wants one page of each range looks
        // like a walk too, but does not leave a range behind that is all there.
        let from = approach
            .enters()
            .and_then(|step| fault.pmd.0.checked_add_signed(-step));
        let from = from.map_or(Other::Part, |from| other(Pmd(from)));
        let left_all = from != Other::Part;
        let zeros = self.zeros(&fault, &place, approach, from);
        let choice = self.choose(&fault, place, approach, left_all);
        Decision {
            amount: Amount {
                zeros,
                unit: choice.map_or(Unit::Pages(1), |choice| choice.unit),
            },
            ahead: self.ahead(&fault, approach, choice, left_all),
            approach,
        }
    }

    fn zeros(&mut self, fault: &Fault, place: &Place, approach: Approach, from: Other) -> usize {
        let walk = match approach {
            Approach::Walk(walk) => Some(walk),
            Approach::Stride(_) | Approach::Jump(_) => None,
        };
        let untouched = Untouched {
            tight: fault.is_tight(),
            // Who has just gone through all of another range wants all of this one. A folio does not say so.
            sparse: place.sparse && from != Other::AllOfSparse,
            walk,
            beside: match place.found {
                Found::Nowhere => beside(place.present, fault.page),
                Found::Swap | Found::Memory => 1,
            },
        };
        let zeros = match first_touch(fault.mode, untouched) {
            _ if fault.recorded => 1,
            zeros if fault.is_for_folios() => zeros,
            zeros => zeros.min(ZERO_FILL_MAX),
        };
        if place.found == Found::Nowhere && zeros < PMD_NR {
            self.streams.brought(zeros);
        }
        zeros
    }

    fn approach(
        &mut self,
        fault: &Fault,
        found: Found,
        resident: impl Fn(Pmd) -> bool,
    ) -> Approach {
        let Fault { pmd, page, .. } = *fault;
        let walk = self.streams.walk(pmd, page, resident);
        let stride = self.stride(fault, found, walk.is_some());
        match (walk, stride) {
            (Some(walk), _) => Approach::Walk(walk),
            (None, Some(stride)) => Approach::Stride(stride),
            (None, None) => Approach::Jump(self.streams.begin(pmd, page)),
        }
    }

    /// Where the thread will be next, if it strides.
    fn stride(&mut self, fault: &Fault, found: Found, walks: bool) -> Option<Stride> {
        if found != Found::Swap {
            // What lies in memory at the time says little: of a range in a frame all comes at once.
            return None;
        }
        let at = stream::number(fault.pmd, fault.page);
        if walks || fault.mode != SwapIn::Auto {
            self.strides.walks(fault.tid, at);
            return None;
        }
        self.strides.seen(fault.tid, at)
    }

    /// How much is to come in, where there is a choice.
    fn choose(
        &mut self,
        fault: &Fault,
        place: Place,
        approach: Approach,
        left_all: bool,
    ) -> Option<Choice> {
        let fits = match place.source {
            Source::Given => return None,
            Source::Frame => false,
            Source::Swap(miss) => {
                approach.jumps()
                    && fault.mode == SwapIn::Auto
                    && self
                        .working_set
                        .jumped(fault.tid, miss, fault.limit, fault.now_ns)
            }
        };
        let seen = choice::Seen {
            fits,
            vacant: place.present.is_empty(),
            walk: approach.enters(),
            left_all,
            pages: match approach {
                Approach::Walk(walk) => walk.pages,
                Approach::Stride(_) => 1,
                Approach::Jump(pages) => pages,
            },
            stride: approach
                .stride()
                .map(|s| s.pages_of(fault.pmd, fault.page, fault.pmd)),
        };
        Some(match choose(fault.mode, place.hints, seen) {
            choice if fault.is_for_folios() => choice,
            choice => in_parts(choice),
        })
    }

    fn ahead(
        &self,
        fault: &Fault,
        approach: Approach,
        choice: Option<Choice>,
        left_all: bool,
    ) -> ReadAhead {
        let walk = approach.enters().filter(|_| fault.is_for_folios());
        let chosen = choice.and_then(|choice| choice.ahead);
        match (chosen.or(passing(fault.mode, walk)), approach) {
            (Some((step, window)), _) => ReadAhead::Ranges {
                step,
                window: window.unwrap_or_else(|| self.streams.window()),
                rest: left_all,
            },
            (None, Approach::Stride(stride)) => ReadAhead::Pages(stride),
            (None, Approach::Walk(_) | Approach::Jump(_)) => ReadAhead::Nothing,
        }
    }

    /// A fault was waited for that long.
    pub fn waited(&mut self, ns: u64) {
        self.working_set.waited(ns);
    }
}

impl Approach {
    fn jumps(self) -> bool {
        matches!(self, Approach::Jump(_))
    }

    /// It goes on with a walk that enters ranges at their edge, in this direction.
    fn enters(self) -> Option<i32> {
        match self {
            Approach::Walk(walk) => walk.enters,
            Approach::Stride(_) | Approach::Jump(_) => None,
        }
    }

    fn stride(self) -> Option<Stride> {
        match self {
            Approach::Stride(stride) => Some(stride),
            Approach::Walk(_) | Approach::Jump(_) => None,
        }
    }
}

/// The way that pages come in by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// A frame: a whole folio's room.
    Frame,
    /// A buffer: single pages.
    Buffer,
}

impl Decision {
    /// It goes on with nothing.
    pub fn jumps(&self) -> bool {
        self.approach.jumps()
    }

    /// What a read of so many pages for it takes for a walk. See `Walking`.
    pub fn took(&self, pages: usize, by: By) -> usize {
        match self.approach {
            Approach::Jump(_) => 0,
            Approach::Stride(_) if by == By::Buffer => 0,
            Approach::Walk(_) if by == By::Buffer && pages >= FAR => PMD_NR,
            Approach::Walk(_) | Approach::Stride(_) => pages,
        }
    }

    /// Its thread strides.
    pub fn stride(&self) -> Option<Stride> {
        self.approach.stride()
    }
}

/// Pages that have left since, at most, where a range came back soon.
pub fn soon(limit: i64) -> i64 {
    limit / SOON
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FILL_MAX;

    fn fault(at: usize) -> Fault {
        Fault {
            tid: 1,
            pmd: Pmd((at / PMD_NR) as u32),
            page: at % PMD_NR,
            mode: SwapIn::Auto,
            limit: 64 * PMD_NR as i64,
            free: 0,
            evicted: true,
            recorded: false,
            now_ns: 0,
        }
    }

    /// Of a range of which nothing is resident, in swap.
    fn swapped(fills: &mut Fills) -> Place<'_> {
        Place {
            found: Found::Swap,
            present: PageMask::EMPTY,
            sparse: false,
            hints: Hints::default(),
            source: Source::Swap(Miss {
                fills,
                left_lately: false,
            }),
        }
    }

    fn ask(intake: &mut Intake, fault: Fault, full: bool) -> (Unit, ReadAhead) {
        let decision = intake.decide(fault, swapped(&mut Fills::default()), |_| match full {
            true => Other::All,
            false => Other::Part,
        });
        (decision.amount.unit, decision.ahead)
    }

    #[test]
    fn a_small_share_gets_no_folios() {
        let small = |mode, at| Fault {
            limit: 2 * PMD_NR as i64,
            mode,
            ..fault(at)
        };
        let mut intake = Intake::default();
        for mode in [SwapIn::Auto, SwapIn::Always] {
            let untouched = Place {
                found: Found::Nowhere,
                source: Source::Given,
                ..swapped(&mut Fills::default())
            };
            let decision = intake.decide(small(mode, 0), untouched, |_| Other::Part);
            let zeros = decision.amount.zeros;
            assert!(zeros <= ZERO_FILL_MAX, "{mode:?}: {zeros}");
            let mut at = 10 * PMD_NR;
            while at < 14 * PMD_NR {
                let (unit, ahead) = ask(&mut intake, small(mode, at), true);
                assert!(matches!(ahead, ReadAhead::Nothing));
                let Unit::Pages(n) = unit else {
                    panic!("{mode:?}: {unit:?}")
                };
                at += n;
            }
        }
    }

    #[test]
    fn sparse_ranges_get_what_is_touched_unless_somebody_goes_through_all() {
        let zeros = |intake: &mut Intake, at, mode, other| {
            let untouched = Place {
                found: Found::Nowhere,
                source: Source::Given,
                sparse: true,
                ..swapped(&mut Fills::default())
            };
            let fault = Fault { mode, ..fault(at) };
            intake.decide(fault, untouched, |_| other).amount.zeros
        };
        let mut intake = Intake::default();
        let mut columns = (0..8 * PMD_NR).step_by(16);
        assert!(columns.all(|at| zeros(&mut intake, at, SwapIn::Auto, Other::Part) == 1));
        assert_eq!(zeros(&mut intake, 0, SwapIn::Always, Other::Part), PMD_NR);
        let mut intake = Intake::default();
        // Two ranges page by page, and then the third.
        for (other, last) in [(Other::AllOfSparse, PMD_NR), (Other::All, 1)] {
            let walk = (0..=2 * PMD_NR).map(|at| zeros(&mut intake, at, SwapIn::Auto, other));
            assert_eq!(walk.last(), Some(last));
        }
    }

    #[test]
    fn each_first_touch_is_a_fault_of_its_own_where_faults_are_recorded() {
        let mut intake = Intake::default();
        for page in 0..3 * PMD_NR {
            let untouched = Place {
                found: Found::Nowhere,
                source: Source::Given,
                ..swapped(&mut Fills::default())
            };
            let recorded = Fault {
                recorded: true,
                ..fault(page)
            };
            let decision = intake.decide(recorded, untouched, |_| Other::Part);
            assert_eq!(decision.amount.zeros, 1);
        }
    }

    /// The first fault of a process comes before it has a limit. What it is given may be less than a folio.
    #[test]
    fn what_was_decided_under_a_larger_limit_comes_in_parts() {
        let mut intake = Intake::default();
        let untouched = Place {
            found: Found::Nowhere,
            source: Source::Given,
            ..swapped(&mut Fills::default())
        };
        let first = Fault {
            limit: 0,
            evicted: false,
            ..fault(0)
        };
        let zeros = intake.decide(first, untouched, |_| Other::Part).amount;
        assert_eq!(zeros.zeros, PMD_NR);
        let all = |unit| Amount { unit, ..zeros };
        for limit in [0, 3 * PMD_NR as i64] {
            let same = all(Unit::Whole).within(limit);
            assert_eq!((same.zeros, same.unit), (PMD_NR, Unit::Whole));
        }
        for (unit, less) in [
            (Unit::Whole, Unit::Pages(FILL_MAX)),
            (Unit::Rest, Unit::Pages(FILL_MAX)),
            (Unit::Pages(7), Unit::Pages(7)),
        ] {
            let part = all(unit).within(507);
            assert_eq!((part.zeros, part.unit), (ZERO_FILL_MAX, less));
        }
    }

    #[test]
    fn a_walk_grows_to_whole_ranges_and_what_comes_after_them() {
        let mut intake = Intake::default();
        let mut at = 5 * PMD_NR;
        let mut units = Vec::new();
        while at < 6 * PMD_NR {
            let (unit, ahead) = ask(&mut intake, fault(at), false);
            assert!(matches!(ahead, ReadAhead::Nothing));
            let Unit::Pages(n) = unit else {
                panic!("{unit:?}")
            };
            units.push(n);
            at = at / n * n + n;
        }
        assert_eq!(units[..5], [1, 8, 32, 64, 64]);
        let (unit, ahead) = ask(&mut intake, fault(6 * PMD_NR), true);
        assert_eq!(unit, Unit::Whole);
        let ReadAhead::Ranges { step, window, rest } = ahead else {
            panic!("{ahead:?}")
        };
        // It has not come far enough for others to be read ahead.
        assert_eq!((step, window, rest), (1, 0, true));
    }

    #[test]
    fn jumps_bring_one_page_and_nothing_else() {
        let mut intake = Intake::default();
        let mut at: usize = 1;
        for k in 0..100 {
            at = at * 16_807 % 2_147_483_647;
            let (unit, ahead) = ask(&mut intake, fault(at), false);
            assert_eq!(unit, Unit::Pages(1), "{k}");
            assert!(matches!(ahead, ReadAhead::Nothing), "{k}");
        }
    }

    #[test]
    fn a_stride_brings_what_it_comes_to() {
        let mut intake = Intake::default();
        let asked: Vec<_> = (0..6)
            .map(|k| ask(&mut intake, fault(100 + 40 * k), false))
            .collect();
        let (Unit::Set(pages), ReadAhead::Pages(stride)) = asked[5] else {
            panic!("{asked:?}")
        };
        assert_eq!(stride.step, 40);
        assert_eq!(pages.runs().map(|r| r.start).next(), Some(340));
    }
}
