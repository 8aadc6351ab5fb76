//! Reading many pieces by few requests: what of a range left at different times lies about in a few
//! clusters, near one another but in another order. It is read in the order of its slots, with what lies
//! between, into memory of the engine's own, and each page is copied to its place from there.
#![allow(unsafe_code)]

use super::seals::Source;
use super::Pieces;
use crate::mm::{PageMask, SwapEntry, PAGE_SIZE, PMD_NR, SWAPFILE_CLUSTER};
use crate::sys::pages::OwnPages;
use crate::sys::Errno;

/// So many slots are read along rather than begin another request.
const GAP: u64 = 4;
/// A request that is saved is worth so many pages to copy.
const PAGES_A_REQUEST: usize = 16;
/// Bits of a page's number in its range.
const PAGE_BITS: u32 = PMD_NR.ilog2();

/// Memory of 2 MiB for one such read at a time.
pub struct Gather {
    memory: OwnPages,
    /// Pages of it that were used, and so are charged.
    touched: usize,
    /// Something was read by way of it since the last `rest`.
    used: bool,
    /// The transfer that has it now.
    of: Option<usize>,
    /// Where its pages belong, and which they are.
    to: Source,
    pages: PageMask,
    /// Where each of them is read to, in pages.
    at: [u16; PMD_NR],
}

/// Neighbouring slots to be read to one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    pub entry: SwapEntry,
    pub nr: usize,
    /// In pages from the begin of our memory.
    at: usize,
}

/// The slots of a read in their order: each one's word with its page behind it.
struct Sorted {
    slots: [u64; PMD_NR],
    nr: usize,
}

impl Sorted {
    /// And how many pieces they are in.
    fn new(pieces: Pieces<'_>) -> (Sorted, usize) {
        let (mut slots, mut nr, mut count) = ([0; PMD_NR], 0, 0);
        for piece in pieces {
            count += 1;
            for (i, page) in piece.pages.enumerate() {
                slots[nr] = (piece.entry.to_raw() + i as u64) << PAGE_BITS | page as u64;
                nr += 1;
            }
        }
        slots[..nr].sort_unstable();
        (Sorted { slots, nr }, count)
    }

    fn entry(&self, i: usize) -> u64 {
        self.slots[i] >> PAGE_BITS
    }

    fn page(&self, i: usize) -> usize {
        self.slots[i] as usize % PMD_NR
    }

    /// From slot `start` on, one request of at most so many pages.
    fn end_of_run(&self, start: usize, most: usize) -> usize {
        let cluster = |slot: u64| slot / SWAPFILE_CLUSTER as u64;
        let joins = |&i: &usize| {
            let (before, next) = (self.entry(i - 1), self.entry(i));
            next - before <= GAP + 1
                && cluster(before) == cluster(next)
                && next - self.entry(start) < most as u64
        };
        start + 1 + (start + 1..self.nr).take_while(joins).count()
    }

    /// The runs that fit into our memory, with the indices of their slots.
    fn runs(&self) -> impl Iterator<Item = (Run, core::ops::Range<usize>)> + '_ {
        let (mut i, mut at) = (0, 0);
        core::iter::from_fn(move || {
            let start = (i < self.nr && at < PMD_NR).then_some(i)?;
            i = self.end_of_run(start, PMD_NR - at);
            let nr = (self.entry(i - 1) - self.entry(start)) as usize + 1;
            let run = Run {
                entry: SwapEntry::from_raw(self.entry(start))?,
                nr,
                at,
            };
            at += nr;
            Some((run, start..i))
        })
    }
}

/// The requests that a read is made of.
pub struct Plan {
    sorted: Sorted,
    /// What comes by them. The rest is to be read as it is.
    pub pages: PageMask,
}

impl Plan {
    /// None where it does not pay.
    pub fn of(pieces: Pieces<'_>) -> Option<Plan> {
        let (sorted, count) = Sorted::new(pieces);
        let (mut pages, mut requests) = (PageMask::EMPTY, 0);
        for (_, of) in sorted.runs() {
            requests += 1;
            of.for_each(|i| pages.insert(sorted.page(i)));
        }
        // Of what does not fit nothing is saved.
        requests += sorted.nr - pages.count();
        let pays = count > requests + pages.count() / PAGES_A_REQUEST;
        pays.then_some(Plan { sorted, pages })
    }

    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.sorted.runs().map(|(run, _)| run)
    }
}

impl Gather {
    pub fn new() -> Result<Gather, Errno> {
        Ok(Gather {
            memory: OwnPages::of_thread(PMD_NR)?,
            touched: 0,
            used: false,
            of: None,
            to: Source::frame(0),
            pages: PageMask::EMPTY,
            at: [0; PMD_NR],
        })
    }

    pub fn is_free(&self) -> bool {
        self.of.is_none()
    }

    /// Pages that are charged.
    pub fn touched(&self) -> usize {
        self.touched
    }

    /// Gives the memory back where nothing was read by way of it since the last time. How many pages that is.
    pub fn rest(&mut self) -> usize {
        let used = core::mem::take(&mut self.used);
        if used || !self.is_free() || self.touched == 0 {
            return 0;
        }
        match self.memory.forget(0..self.touched) {
            true => core::mem::take(&mut self.touched),
            false => 0,
        }
    }

    /// Begins what is planned for a transfer. Where the pages belong is nobody else's until `end`. Returns how
    /// many pages of our memory are used for the first time.
    pub fn begin(&mut self, transfer: usize, to: Source, plan: &Plan) -> usize {
        let (sorted, mut end) = (&plan.sorted, 0);
        for (run, of) in sorted.runs() {
            let first = sorted.entry(of.start);
            for i in of {
                let behind = (sorted.entry(i) - first) as usize;
                self.at[sorted.page(i)] = (run.at + behind) as u16;
            }
            end = run.at + run.nr;
        }
        self.of = Some(transfer);
        self.used = true;
        (self.to, self.pages) = (to, plan.pages);
        let new = end.saturating_sub(self.touched);
        self.touched += new;
        new
    }

    /// Where a run of the plan is to be read to.
    pub fn addr(&self, run: &Run) -> *mut u8 {
        self.memory.at(run.at)
    }

    /// All requests of a transfer have ended, well or not. If it is the one that has this memory its pages go
    /// to their places.
    pub fn end(&mut self, transfer: usize, ok: bool) {
        if self.of.take_if(|of| *of == transfer).is_none() {
            return;
        }
        for page in self.pages.runs().flatten().filter(|_| ok) {
            let from = self.memory.at(self.at[page].into()) as *const u8;
            let to = self.to.addr(page) as *mut u8;
            // SAFETY: `at` lies within our memory, which is this thread's; the page's place is the transfer's.
            unsafe { core::ptr::copy_nonoverlapping(from, to, PAGE_SIZE) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pieces::table_of as table;
    use super::*;
    use crate::mm::DeviceId;
    use crate::vma::SlotTable;

    fn at(device: u8, slot: u64) -> SwapEntry {
        SwapEntry::new(DeviceId::new(device).unwrap(), slot).unwrap()
    }

    fn pieces(table: &SlotTable, pages: PageMask) -> Pieces<'_> {
        Pieces::of_table(table, pages)
    }

    /// Five batches, each in the order of its pages, as reclaim writes them.
    fn in_batches(page: usize) -> SwapEntry {
        at(0, 512 * 7 + (page % 5 * 100 + page / 5) as u64)
    }

    #[test]
    fn batches_are_read_at_once() {
        let slots = table(in_batches);
        let pages = PageMask::of(0..500);
        assert_eq!(pieces(&slots, pages).count(), 500);
        let plan = Plan::of(pieces(&slots, pages)).unwrap();
        assert_eq!(plan.pages, pages);
        let runs: Vec<_> = plan.runs().collect();
        let all = Run {
            entry: at(0, 512 * 7),
            nr: 500,
            at: 0,
        };
        assert_eq!(runs, [all]);
    }

    #[test]
    fn runs_end_with_gap_cluster_and_device() {
        // Backwards, so that each page is a piece.
        let slots = table(|page| match 511 - page {
            n @ 0..=99 => at(0, n as u64),
            n @ 100..=199 => at(0, n as u64 + GAP),
            n @ 200..=299 => at(0, n as u64 + 2 * GAP + 1),
            n @ 300..=399 => at(0, n as u64 + 400),
            n => at(1, n as u64),
        });
        let plan = Plan::of(pieces(&slots, PageMask::FULL)).unwrap();
        let runs: Vec<_> = plan.runs().map(|r| (r.entry, r.nr)).collect();
        let expected = [
            (at(0, 0), 200 + GAP as usize),
            (at(0, 200 + 2 * GAP + 1), 100),
            (at(0, 700), 100),
            // With what is read along not all fit.
            (at(1, 400), 112 - GAP as usize),
        ];
        assert_eq!(runs, expected);
        assert_eq!(plan.pages.count(), PMD_NR - GAP as usize);
        let slots = table(|page| at(0, 1024 + 200 - page as u64 % 200));
        let few = PageMask::of(0..200);
        let plan = Plan::of(pieces(&slots, few)).unwrap();
        assert_eq!(plan.runs().count(), 1);
        let over = table(|page| at(0, 1024 + 100 - page as u64 % 200));
        let plan = Plan::of(pieces(&over, few)).unwrap();
        assert_eq!(plan.runs().count(), 2);
    }

    #[test]
    fn what_saves_little_is_read_as_it_is() {
        let whole = table(|page| at(0, page as u64));
        assert!(Plan::of(pieces(&whole, PageMask::FULL)).is_none());
        // 16 pages far apart.
        let apart = table(|page| at(0, 512 * page as u64));
        assert!(Plan::of(pieces(&apart, PageMask::of(0..16))).is_none());
        // Two halves the other way round.
        let halves = table(|page| at(0, (page as u64 + 256) % 512));
        assert!(Plan::of(pieces(&halves, PageMask::FULL)).is_none());
    }

    #[test]
    fn every_page_gets_to_its_place() {
        let slots = table(in_batches);
        let mut pages = PageMask::of(3..400);
        pages = pages.minus(PageMask::of(77..80));
        let mut frame = vec![0u8; PMD_NR * PAGE_SIZE];
        let mut gather = Gather::new().unwrap();
        let plan = Plan::of(pieces(&slots, pages)).unwrap();
        let at = frame.as_mut_ptr() as usize;
        let new = gather.begin(4, Source::frame(at), &plan);
        assert_eq!(gather.touched(), new);
        for run in plan.runs() {
            for i in 0..run.nr {
                let slot = run.entry.slot() + i as u64;
                // SAFETY: inside of the gather's memory.
                unsafe { (gather.addr(&run).add(i * PAGE_SIZE) as *mut u64).write(slot) };
            }
        }
        // Somebody else's end, and then ours.
        gather.end(5, true);
        assert!(!gather.is_free());
        gather.end(4, true);
        assert!(gather.is_free());
        for page in 0..PMD_NR {
            let word = frame[page * PAGE_SIZE..][..8].try_into().unwrap();
            let expected = match pages.has(page) {
                true => in_batches(page).slot(),
                false => 0,
            };
            assert_eq!(u64::from_ne_bytes(word), expected, "{page}");
        }
        frame.fill(0);
        assert_eq!(gather.begin(1, Source::frame(at), &plan), 0);
        gather.end(1, false);
        assert!(frame.iter().all(|&b| b == 0));
    }

    #[test]
    fn gives_back_what_nobody_uses() {
        let slots = table(in_batches);
        let mut frame = vec![0u8; PMD_NR * PAGE_SIZE];
        let at = frame.as_mut_ptr() as usize;
        let mut gather = Gather::new().unwrap();
        assert_eq!(gather.rest(), 0);
        let plan = Plan::of(pieces(&slots, PageMask::FULL)).unwrap();
        let new = gather.begin(4, Source::frame(at), &plan);
        let run = plan.runs().next().unwrap();
        // SAFETY: inside of the gather's memory.
        unsafe { gather.addr(&run).write(7) };
        // It has just been used, and then it is in use.
        assert_eq!((gather.rest(), gather.rest()), (0, 0));
        gather.end(4, false);
        assert_eq!(gather.rest(), new);
        assert_eq!((gather.touched(), gather.rest()), (0, 0));
        // SAFETY: the same.
        assert_eq!(unsafe { gather.addr(&run).read() }, 0);
        // It is charged again.
        assert_eq!(gather.begin(5, Source::frame(at), &plan), new);
        gather.end(5, false);
        assert_eq!((gather.rest(), gather.rest()), (0, new));
    }
}
