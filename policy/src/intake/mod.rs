//! How threads go through memory, and what comes in for their faults: docs/swap-in.md.
//!
//! A fault is told once ([`Intake::arrive`]), before any range is locked. What comes of it is asked where the range
//! is known ([`Intake::choose`]), and what is read beside it afterwards ([`Intake::ahead`]).

mod choice;
mod lengths;
mod stream;
mod stride;
mod working_set;

pub use stride::Stride;
pub use working_set::{Fills, Miss};

use crate::watermark::is_for_folios;
use crate::{Hints, SwapIn, Unit, ZERO_FILL_MAX};
use choice::{choose, first_touch, in_parts, passing};
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

/// Where a page is that a fault has come for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// It was never touched, or was dropped.
    Nowhere,
    Swap,
    /// The program's or a frame's.
    Memory,
}

/// A fault, and how things stand.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub tid: u32,
    pub pmd: Pmd,
    /// Within it.
    pub page: usize,
    pub found: Found,
    pub mode: SwapIn,
    /// Pages that the process may have, and those that are free.
    pub limit: i64,
    pub free: i64,
    /// Something has left memory before.
    pub evicted: bool,
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

/// How its thread has come there.
#[derive(Clone, Copy, Debug)]
enum Approach {
    Walk(Walk),
    Stride(Stride),
    /// It may be the first fault of a walk: so many pages are worth it.
    Jump(usize),
}

/// A fault that is being served, and what is thought of it.
pub struct Arrival {
    fault: Fault,
    approach: Approach,
    /// It is a walk's, and all of the range that it came from is resident. A program that wants one page of
    /// each range looks like a walk too, but does not leave a range behind that is all there.
    left_all: bool,
    /// Pages of zeros for a place that was never touched.
    pub new: usize,
    /// The ranges in which its thread jumps fit. Asked once for each fault, however often it is tried.
    fits: Option<bool>,
    /// Ranges to read ahead in this direction, as the choice was; and how many, where that was said.
    chosen: Option<(i32, Option<usize>)>,
}

/// What is known of the range under its lock.
pub struct Place<'g> {
    pub present: PageMask,
    pub hints: Hints,
    /// If the page has to be read.
    pub miss: Option<Miss<'g>>,
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
    /// A fault has come. `resident`: all of that range is.
    pub fn arrive(&mut self, fault: Fault, resident: impl Fn(Pmd) -> bool) -> Arrival {
        let approach = self.approach(&fault, &resident);
        let (walk, enters) = match approach {
            Approach::Walk(walk) => (Some(walk), walk.enters),
            Approach::Stride(_) | Approach::Jump(_) => (None, None),
        };
        let new = match first_touch(fault.mode, fault.is_tight(), walk) {
            new if fault.is_for_folios() => new,
            new => new.min(ZERO_FILL_MAX),
        };
        if fault.found == Found::Nowhere && new < PMD_NR {
            self.streams.brought(new);
        }
        let from = enters.and_then(|step| fault.pmd.0.checked_add_signed(-step));
        Arrival {
            fault,
            approach,
            left_all: from.is_some_and(|from| resident(Pmd(from))),
            new,
            fits: None,
            chosen: None,
        }
    }

    fn approach(&mut self, fault: &Fault, resident: impl Fn(Pmd) -> bool) -> Approach {
        let Fault { pmd, page, .. } = *fault;
        let walk = self.streams.walk(pmd, page, resident);
        let stride = self.stride(fault, walk.is_some());
        match (walk, stride) {
            (Some(walk), _) => Approach::Walk(walk),
            (None, Some(stride)) => Approach::Stride(stride),
            (None, None) => Approach::Jump(self.streams.begin(pmd, page)),
        }
    }

    /// Where the thread will be next, if it strides.
    fn stride(&mut self, fault: &Fault, walks: bool) -> Option<Stride> {
        if fault.found != Found::Swap {
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

    /// How much is to come in.
    pub fn choose(&mut self, arrival: &mut Arrival, place: Place) -> Unit {
        let fault = arrival.fault;
        let fits = place.miss.is_some_and(|miss| {
            *arrival.fits.get_or_insert_with(|| {
                arrival.approach.jumps()
                    && fault.mode == SwapIn::Auto
                    && self
                        .working_set
                        .jumped(fault.tid, miss, fault.limit, fault.now_ns)
            })
        });
        let (walk, pages) = match arrival.approach {
            Approach::Walk(walk) => (walk.enters, walk.pages),
            Approach::Stride(_) => (None, 1),
            Approach::Jump(pages) => (None, pages),
        };
        let seen = choice::Seen {
            fits,
            vacant: place.present.is_empty(),
            walk,
            left_all: arrival.left_all,
            pages,
            stride: arrival
                .stride()
                .map(|s| s.pages_of(fault.pmd, fault.page, fault.pmd)),
        };
        let choice = match choose(fault.mode, place.hints, seen) {
            choice if fault.is_for_folios() => choice,
            choice => in_parts(choice),
        };
        arrival.chosen = choice.ahead;
        choice.unit
    }

    /// What is to be read ahead, when the fault has been served or its read has begun.
    pub fn ahead(&self, arrival: &Arrival) -> ReadAhead {
        let walk = match arrival.approach {
            Approach::Walk(walk) if arrival.fault.is_for_folios() => walk.enters,
            Approach::Walk(_) | Approach::Stride(_) | Approach::Jump(_) => None,
        };
        if let Some((step, window)) = arrival.chosen.or(passing(arrival.fault.mode, walk)) {
            return ReadAhead::Ranges {
                step,
                window: window.unwrap_or_else(|| self.streams.window()),
                rest: arrival.left_all,
            };
        }
        arrival
            .stride()
            .map_or(ReadAhead::Nothing, ReadAhead::Pages)
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
}

/// The way that pages come in by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// A frame: a whole folio's room.
    Frame,
    /// A buffer: single pages.
    Buffer,
}

impl Arrival {
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
        match self.approach {
            Approach::Stride(stride) => Some(stride),
            Approach::Walk(_) | Approach::Jump(_) => None,
        }
    }
}

/// Pages that have left since, at most, where a range came back soon.
pub fn soon(limit: i64) -> i64 {
    limit / SOON
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(at: usize) -> Fault {
        Fault {
            tid: 1,
            pmd: Pmd((at / PMD_NR) as u32),
            page: at % PMD_NR,
            found: Found::Swap,
            mode: SwapIn::Auto,
            limit: 64 * PMD_NR as i64,
            free: 0,
            evicted: true,
            now_ns: 0,
        }
    }

    /// Of ranges of which nothing is resident.
    fn ask(intake: &mut Intake, fault: Fault, full: bool) -> (Unit, ReadAhead) {
        let mut arrival = intake.arrive(fault, |_| full);
        let mut fills = Fills::default();
        let place = Place {
            present: PageMask::EMPTY,
            hints: Hints::default(),
            miss: Some(Miss {
                fills: &mut fills,
                left_lately: false,
            }),
        };
        let unit = intake.choose(&mut arrival, place);
        (unit, intake.ahead(&arrival))
    }

    #[test]
    fn a_small_share_gets_no_folios() {
        let small = |found, mode, at| Fault {
            limit: 2 * PMD_NR as i64,
            found,
            mode,
            ..fault(at)
        };
        let mut intake = Intake::default();
        for mode in [SwapIn::Auto, SwapIn::Always] {
            let new = intake.arrive(small(Found::Nowhere, mode, 0), |_| false).new;
            assert!(new <= ZERO_FILL_MAX, "{mode:?}: {new}");
            let mut at = 10 * PMD_NR;
            while at < 14 * PMD_NR {
                let (unit, ahead) = ask(&mut intake, small(Found::Swap, mode, at), true);
                assert!(matches!(ahead, ReadAhead::Nothing));
                let Unit::Pages(n) = unit else {
                    panic!("{mode:?}: {unit:?}")
                };
                at += n;
            }
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

    /// The range's working set is asked once, though the fault is tried again until there is memory.
    #[test]
    fn a_fault_that_is_tried_again_counts_once() {
        let mut intake = Intake::default();
        let mut arrival = intake.arrive(fault(7), |_| false);
        let mut fills = Fills::default();
        for _ in 0..3 {
            let place = Place {
                present: PageMask::EMPTY,
                hints: Hints::default(),
                miss: Some(Miss {
                    fills: &mut fills,
                    left_lately: false,
                }),
            };
            assert_eq!(intake.choose(&mut arrival, place), Unit::Pages(1));
        }
        assert_eq!(fills.count, 1);
    }
}
