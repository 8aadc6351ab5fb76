//! The engine's decisions on a trace: `policy` is what ships, and what is around it here is a plain model of what
//! the engine does with it, without threads and without a kernel. Reclaim works whenever too little is free,
//! at once; writes take no memory.

use std::collections::VecDeque;

use hugeswap_mm::{PageMask, Pmd, PMD_NR};
use hugeswap_policy::intake::{
    soon, By, Decision, Fault, Fills, Found, Miss, Other, Place, ReadAhead, Source,
};
use hugeswap_policy::turns::Queued;
use hugeswap_policy::{
    staging, Credit, Hints, InVain, Intake, List, Shadow, SwapIn, Turns, Unit, Walking,
    ZERO_FILL_MAX,
};

use super::tally::{Costs, Tally};

/// Ranges that are held ahead of their faults at most.
const AHEAD_MAX: usize = 32;
/// Ranges in which what can be read ahead is looked for.
const AHEAD_LOOK: i32 = 64;
/// Ranges on their second chance at most.
const INACTIVE_MAX: usize = 448;

/// A 2 MiB range. A page is in at most one of `present`, `staged` and `ahead`; `swapped` has what a slot holds.
#[derive(Default)]
struct Range {
    present: PageMask,
    staged: PageMask,
    ahead: PageMask,
    swapped: PageMask,
    dirty: PageMask,
    credit: Credit,
    fills: Fills,
    shadow: Shadow,
    list: List,
    /// Its number on a list, if it is on one.
    listed: Option<u32>,
    /// It came as one, and is still.
    huge: bool,
    /// How often some of it was taken out.
    turn: u32,
}

impl Range {
    fn used(&self) -> PageMask {
        let memory = self.present.or(self.staged).or(self.ahead);
        memory.or(self.swapped)
    }

    fn belongs_to(&mut self, list: List) {
        if self.listed.is_none() {
            self.list = list;
        }
    }

    /// Nothing of it is on its way.
    fn is_idle(&self) -> bool {
        self.staged.is_empty() && self.ahead.is_empty()
    }
}

pub struct Engine {
    ranges: Vec<Range>,
    limit: i64,
    used: i64,
    intake: Intake,
    turns: Turns,
    walking: Walking,
    /// Ranges with the number that they had when they came; where that has changed they are gone.
    lists: [VecDeque<(u32, u32)>; 2],
    len: [usize; 2],
    /// What was taken out, and at which turn; where there has been another since nothing of it is left.
    inactive: VecDeque<(u32, u32)>,
    staged: usize,
    ahead: VecDeque<u32>,
    costs: Costs,
    now_us: f64,
    pub tally: Tally,
}

impl Engine {
    /// For so many pages, of which `capacity` fit.
    pub fn new(pages: usize, capacity: usize, costs: Costs) -> Engine {
        let ranges = pages.div_ceil(PMD_NR);
        Engine {
            ranges: (0..ranges).map(|_| Range::default()).collect(),
            limit: capacity as i64,
            used: 0,
            intake: Intake::default(),
            turns: Turns::default(),
            walking: Walking::default(),
            lists: Default::default(),
            len: [0; 2],
            inactive: VecDeque::new(),
            staged: 0,
            ahead: VecDeque::new(),
            costs,
            now_us: 0.0,
            tally: Tally::default(),
        }
    }

    fn free(&self) -> i64 {
        self.limit - self.used
    }

    pub fn touch(&mut self, page: usize, thread: u16, write: bool) {
        let (n, page) = (page / PMD_NR, page % PMD_NR);
        if !self.ranges[n].present.has(page) {
            self.fault(n, page, u32::from(thread) + 1);
        }
        if write {
            self.ranges[n].dirty.insert(page);
        }
    }

    /// Pages are given back.
    pub fn give_back(&mut self, first: usize, count: usize) {
        let mut at = first;
        while at < first + count {
            let n = at / PMD_NR;
            let end = (first + count).min((n + 1) * PMD_NR);
            let gone = PageMask::of(at % PMD_NR..at % PMD_NR + (end - at));
            at = end;
            let r = &mut self.ranges[n];
            let memory = r.present.or(r.staged).or(r.ahead).and(gone);
            self.used -= memory.count() as i64;
            self.staged -= r.staged.and(gone).count();
            r.huge &= r.present.and(gone).is_empty();
            for set in [
                &mut r.present,
                &mut r.staged,
                &mut r.ahead,
                &mut r.swapped,
                &mut r.dirty,
            ] {
                *set = set.minus(gone);
            }
            r.credit.forget(gone);
        }
    }

    fn takes(&mut self, us: f64) {
        self.now_us += us;
        self.tally.micros += us;
    }

    fn fault(&mut self, n: usize, page: usize, tid: u32) {
        let decision = self.decide(n, page, tid);
        self.takes(self.costs.soft);
        let r = &self.ranges[n];
        let took = match () {
            () if r.ahead.has(page) => self.map_ahead(n),
            () if r.staged.has(page) => self.touch_staged(n, page, &decision),
            () if r.swapped.has(page) => self.swap_in(n, page, &decision),
            () => self.first_touch(n, page, decision.amount.zeros),
        };
        match decision.ahead {
            ReadAhead::Nothing => {}
            ReadAhead::Ranges { step, window, rest } => self.read_ahead(n, step, window, rest),
            ReadAhead::Pages(stride) => {
                for to in stride.ranges(Pmd(n as u32), page) {
                    let set = stride.pages_of(Pmd(n as u32), page, to);
                    self.read_set(to.0 as usize, set);
                }
            }
        }
        self.walking = self.walking.after(took);
        if self.free() < self.walking.low_pages(self.limit) {
            self.reclaim();
        }
    }

    fn decide(&mut self, n: usize, page: usize, tid: u32) -> Decision {
        let fault = Fault {
            tid,
            pmd: Pmd(n as u32),
            page,
            mode: SwapIn::Auto,
            limit: self.limit,
            free: self.free(),
            evicted: self.turns.evicted() > 0,
            recorded: false,
            now_ns: (self.now_us * 1e3) as u64,
        };
        // Taken out while the others are looked at.
        let mut fills = self.ranges[n].fills;
        let r = &self.ranges[n];
        let (found, source) = match () {
            () if r.ahead.has(page) => (Found::Memory, Source::Given),
            () if r.staged.has(page) => (Found::Memory, Source::Frame),
            () if r.swapped.has(page) => {
                let soon = soon(self.limit);
                let left_lately = fills.count == 0 && self.turns.left_within(r.shadow, soon);
                let miss = Miss {
                    fills: &mut fills,
                    left_lately,
                };
                (Found::Swap, Source::Swap(miss))
            }
            () => (Found::Nowhere, Source::Given),
        };
        let place = Place {
            found,
            present: r.present,
            sparse: false,
            hints: Hints::default(),
            source,
        };
        let ranges = &self.ranges;
        let other = |p: Pmd| {
            let range = ranges.get(p.0 as usize);
            match range.is_some_and(|r| r.present.is_full()) {
                true => Other::All,
                false => Other::Part,
            }
        };
        let decision = self.intake.decide(fault, place, other);
        self.ranges[n].fills = fills;
        decision
    }

    /// A fault that its range was read ahead for.
    fn map_ahead(&mut self, n: usize) -> usize {
        let list = self.turns.arrive(self.ranges[n].shadow, self.limit);
        let r = &mut self.ranges[n];
        let pages = std::mem::take(&mut r.ahead);
        r.huge = pages.is_full();
        r.belongs_to(list);
        self.used -= pages.count() as i64;
        self.ahead.retain(|&held| held as usize != n);
        self.came(n, pages);
        PMD_NR
    }

    /// A touch of what has been taken out and not written.
    fn touch_staged(&mut self, n: usize, page: usize, decision: &Decision) -> usize {
        let unit = decision.amount.unit;
        let r = &mut self.ranges[n];
        r.credit.earn(page);
        let whole = r.staged.is_full() && matches!(unit, Unit::Whole | Unit::Rest);
        let pages = match whole {
            true => r.staged,
            false => unit.rescued(r.staged, page),
        };
        r.huge = whole;
        r.belongs_to(List::Main);
        self.unstage(n, pages);
        self.tally.soft += 1;
        0
    }

    fn unstage(&mut self, n: usize, pages: PageMask) {
        let r = &mut self.ranges[n];
        r.staged = r.staged.minus(pages);
        self.staged -= pages.count();
        self.used -= pages.count() as i64;
        self.came(n, pages);
    }

    fn swap_in(&mut self, n: usize, page: usize, decision: &Decision) -> usize {
        let unit = decision.amount.unit;
        let (whole, pages) = loop {
            let r = &self.ranges[n];
            let whole = unit.is_whole(r.present, r.swapped);
            if whole && !r.staged.is_empty() {
                let staged = r.staged;
                self.unstage(n, staged);
            }
            let r = &self.ranges[n];
            let there = r.swapped.minus(r.present).minus(r.staged);
            let pages = match whole {
                true => there,
                false => unit.of(there, page),
            };
            // What else is of the range may have had to leave for it.
            if self.free() >= pages.count() as i64 || !self.free_some() {
                break (whole, pages);
            }
        };
        let r = &mut self.ranges[n];
        match (whole, unit.walks()) {
            (true, _) => {
                let list = self.turns.arrive(r.shadow, self.limit);
                r.belongs_to(list);
            }
            (false, Some(n_pages)) => self.join_walk(n, 2 * n_pages),
            (false, None) => {
                self.turns.came_back(r.shadow, 1, self.limit);
                r.belongs_to(List::Main);
            }
        }
        self.tally.reads += 1;
        self.tally.pages_in += pages.count() as u64;
        let us = self.costs.read + self.costs.page * (pages.count() - 1) as f64;
        self.takes(us);
        self.intake.waited((us * 1e3) as u64);
        self.ranges[n].huge = whole && self.ranges[n].present.or(pages).is_full();
        self.came(n, pages);
        let by = match whole {
            true => By::Frame,
            false => By::Buffer,
        };
        decision.took(pages.count(), by)
    }

    /// A walk brings in so many pages. If they are more than was there the range is the walk's.
    fn join_walk(&mut self, n: usize, pages: usize) {
        let r = &self.ranges[n];
        if r.listed.is_some() && (r.list == List::Walk || r.present.count() >= pages) {
            return;
        }
        let list = self.turns.arrive(r.shadow, self.limit);
        if list == List::Walk {
            self.unlist(n);
        }
        self.ranges[n].belongs_to(list);
    }

    fn first_touch(&mut self, n: usize, page: usize, new: usize) -> usize {
        loop {
            let used = self.ranges[n].used();
            let folio = used.is_empty() && new >= PMD_NR;
            let pages = match folio {
                true => PageMask::FULL,
                false => PageMask::around(page, new.min(ZERO_FILL_MAX)).minus(used),
            };
            if self.free() < pages.count() as i64 && self.free_some() {
                continue;
            }
            let r = &mut self.ranges[n];
            r.belongs_to(List::Main);
            r.huge = folio;
            self.came(n, pages);
            return if folio { PMD_NR } else { 0 };
        }
    }

    /// Pages are the program's.
    fn came(&mut self, n: usize, pages: PageMask) {
        let r = &mut self.ranges[n];
        self.used += pages.minus(r.present).count() as i64;
        r.present = r.present.or(pages);
        self.list(n);
    }

    /// What is resident is on a list.
    fn list(&mut self, n: usize) {
        let r = &mut self.ranges[n];
        if r.listed.is_none() && !r.present.is_empty() {
            let number = self.turns.number();
            r.listed = Some(number);
            self.lists[r.list as usize].push_back((n as u32, number));
            self.len[r.list as usize] += 1;
        }
    }

    fn unlist(&mut self, n: usize) {
        let r = &mut self.ranges[n];
        if r.listed.take().is_some() {
            self.len[r.list as usize] -= 1;
        }
    }

    /// Whole ranges that a walk will come to.
    fn read_ahead(&mut self, n: usize, step: i32, mut window: usize, rest: bool) {
        for k in 1..=AHEAD_LOOK {
            let to = n as i64 + i64::from(step * k);
            let to = usize::try_from(to)
                .ok()
                .filter(|to| *to < self.ranges.len());
            let Some(to) = to.filter(|_| window > 0 && self.ahead.len() < AHEAD_MAX) else {
                return;
            };
            let r = &mut self.ranges[to];
            if r.present.is_full() {
                continue;
            }
            window -= 1;
            let may = r.is_idle() && (rest || r.present.is_empty());
            if !may || !Unit::Whole.is_whole(r.present, r.swapped) {
                continue;
            }
            let pages = r.swapped.minus(r.present);
            if self.limit - self.used < PMD_NR as i64 {
                return;
            }
            r.ahead = pages;
            self.used += pages.count() as i64;
            self.ahead.push_back(to as u32);
            self.tally.pages_in += pages.count() as u64;
            self.takes(self.costs.page * pages.count() as f64);
        }
    }

    /// Pages that a stride will come to.
    fn read_set(&mut self, n: usize, set: PageMask) {
        let free = self.free();
        let Some(r) = self.ranges.get_mut(n) else {
            return;
        };
        let there = r.swapped.minus(r.present).and(set);
        if there.is_empty() || !r.is_idle() || free <= there.count() as i64 {
            return;
        }
        self.turns.came_back(r.shadow, 1, self.limit);
        r.belongs_to(List::Main);
        self.tally.pages_in += there.count() as u64;
        self.takes(self.costs.page * there.count() as f64);
        self.came(n, there);
    }

    /// Evicts until enough is free.
    fn reclaim(&mut self) {
        let high = self.walking.high_pages(self.limit);
        while self.free() < high && self.free_some() {}
    }

    /// Whether anything could be evicted.
    fn free_some(&mut self) -> bool {
        self.deactivate_some();
        if let Some((n, turn)) = self.inactive.pop_front() {
            self.write(n as usize, turn);
            return true;
        }
        let Some(n) = self.ahead.pop_front() else {
            return false;
        };
        let ahead = std::mem::take(&mut self.ranges[n as usize].ahead);
        self.used -= ahead.count() as i64;
        true
    }

    /// As `Reclaim::deactivate_some` does.
    fn deactivate_some(&mut self) {
        let all = self.len[0] + self.len[1];
        let (mut in_vain, mut in_a_row) = (InVain::default(), 0);
        while in_a_row < staging::patience(self.inactive.len(), all)
            && self.inactive.len() < INACTIVE_MAX
            && staging::wants_more(self.used, self.staged, self.inactive.len(), false)
        {
            in_a_row += 1;
            let Some((n, list)) = self.pop(in_vain) else {
                return;
            };
            match self.deactivate(n) {
                true => in_a_row = 0,
                false => in_vain.note(list),
            }
            self.list(n);
        }
    }

    fn pop(&mut self, in_vain: InVain) -> Option<(usize, List)> {
        for list in &mut self.lists {
            while let Some(&(n, number)) = list.front() {
                if self.ranges[n as usize].listed == Some(number) {
                    break;
                }
                list.pop_front();
            }
        }
        let oldest = |list: &VecDeque<(u32, u32)>| list.front().map(|&(_, number)| number);
        let queued = Queued {
            len: self.len,
            oldest: [oldest(&self.lists[0]), oldest(&self.lists[1])],
        };
        let list = self.turns.next(queued, self.limit, in_vain);
        let (n, _) = self.lists[list as usize].pop_front()?;
        self.unlist(n as usize);
        Some((n as usize, list))
    }

    fn deactivate(&mut self, n: usize) -> bool {
        let r = &mut self.ranges[n];
        if !r.is_idle() {
            return false;
        }
        let all = r.huge || r.list == List::Walk;
        let pages = match all {
            true => r.present,
            false => r.credit.take(r.present),
        };
        if pages.is_empty() {
            return false;
        }
        r.present = r.present.minus(pages);
        r.staged = pages;
        r.huge &= pages.is_full();
        self.staged += pages.count();
        r.turn += 1;
        self.inactive.push_back((n as u32, r.turn));
        self.tally.staged += pages.count() as u64;
        self.takes(self.costs.stage);
        true
    }

    /// What has been staged and not touched leaves. What was never written to is zeros, and is nowhere then.
    fn write(&mut self, n: usize, turn: u32) {
        let r = &mut self.ranges[n];
        if r.turn != turn {
            return;
        }
        let gone = std::mem::take(&mut r.staged);
        if gone.is_empty() {
            return;
        }
        let written = gone.and(r.dirty);
        r.swapped = r.swapped.or(written);
        r.dirty = r.dirty.minus(gone);
        r.huge = false;
        r.fills.count = 0;
        r.credit.forget(gone);
        r.shadow = self.turns.evict(r.list, gone.count());
        self.staged -= gone.count();
        self.used -= gone.count() as i64;
        self.tally.evicted += gone.count() as u64;
        self.tally.written += written.count() as u64;
        self.takes(self.costs.write * written.count() as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs::DISK;

    fn check(engine: &Engine) {
        let mut used = 0;
        let mut staged = 0;
        for r in &engine.ranges {
            let apart = [r.present, r.staged, r.ahead];
            let all: usize = apart.iter().map(|m| m.count()).sum();
            assert_eq!(all, apart[0].or(apart[1]).or(apart[2]).count());
            used += all as i64;
            staged += r.staged.count();
        }
        assert_eq!((used, staged), (engine.used, engine.staged));
        assert!(
            engine.used <= engine.limit,
            "{} {}",
            engine.used,
            engine.limit
        );
        let listed = engine.ranges.iter().filter(|r| r.listed.is_some()).count();
        assert_eq!(listed, engine.len[0] + engine.len[1]);
    }

    /// Whatever is done, the limit holds, and every page is in one place.
    #[test]
    fn pages_are_in_one_place_and_the_limit_holds() {
        let pages = 40 * PMD_NR;
        let mut engine = Engine::new(pages, 20 * PMD_NR, COSTS);
        let mut x = 1u64;
        for i in 0..200_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
            let random = (x >> 33) as usize % pages;
            match i / 10_000 % 4 {
                0 => engine.touch(i * 3 % pages, 0, i % 3 == 0),
                1 => engine.touch(random, 1, i % 2 == 0),
                2 => engine.touch(random / 8, 2, false),
                _ if i % 512 == 0 => engine.give_back(random, (pages - random).min(700)),
                _ => engine.touch(i % pages, 0, true),
            }
            if i % 100 == 0 {
                check(&engine);
            }
        }
        assert!(engine.tally.reads > 0 && engine.tally.soft > 0 && engine.tally.evicted > 0);
    }

    #[test]
    fn a_walk_reads_whole_ranges_and_jumps_single_pages() {
        let pages = 64 * PMD_NR;
        let mut engine = Engine::new(pages, 32 * PMD_NR, COSTS);
        (0..pages).for_each(|page| engine.touch(page, 0, true));
        assert_eq!(engine.tally.reads, 0);
        (0..pages).for_each(|page| engine.touch(page, 0, false));
        let walk = engine.tally;
        assert!(
            walk.reads < 64 && walk.pages_in > 30 * PMD_NR as u64,
            "{walk:?}"
        );
        let mut x = 7u64;
        for _ in 0..10_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
            engine.touch((x >> 33) as usize % pages, 0, false);
        }
        let (reads, pages_in) = (
            engine.tally.reads - walk.reads,
            engine.tally.pages_in - walk.pages_in,
        );
        assert!(
            reads > 3_000 && pages_in < reads * 3 / 2,
            "{reads} {pages_in}"
        );
    }

    /// Pages that were never written to leave without a write, and come back without a read.
    #[test]
    fn zeros_are_neither_written_nor_read() {
        let pages = 64 * PMD_NR;
        let mut engine = Engine::new(pages, 16 * PMD_NR, COSTS);
        for _ in 0..3 {
            (0..pages).for_each(|page| engine.touch(page, 0, false));
        }
        let tally = engine.tally;
        assert_eq!((tally.reads, tally.written), (0, 0));
        assert!(tally.evicted > 2 * pages as u64);
    }
}
