//! Resident ranges in the order in which they became so, on two lists, and what decides which.
//! Links live in the descriptors.
//!
//! Touches of resident memory can't be seen. What can be seen is how a range came in: by a walk, or
//! because the program jumped there. A walk through more than fits misses everything if the oldest
//! leaves first; so what walks bring in leaves first, and of it one in [`STAYS`] goes to the main
//! list, with what jumps, first touches and second chances bring in. A walk over and over then
//! finds there what stayed, and what is hot stays while something is walked through beside it.
//! Some of what walks brought in is always there, for walks that go on: but not what has become older
//! than everything on the main list.
//! docs/policies.md compares this rule with others.

use super::table::{Range, Ranges};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use hugeswap_mm::{Pmd, PMD_NR};
use hugeswap_sys::sync::Mutex;

/// Number + 1 of a range; 0 ends the list.
type Link = u32;

/// Which list a range is on, or was on last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum List {
    #[default]
    Main = 0,
    Walk = 1,
}

impl List {
    fn other(self) -> List {
        match self {
            List::Main => List::Walk,
            List::Walk => List::Main,
        }
    }
}

/// Ranges of each list that were taken and could not leave.
#[derive(Clone, Copy, Debug, Default)]
pub struct InVain([usize; 2]);

impl InVain {
    pub fn note(&mut self, list: List) {
        self.0[list as usize] += 1;
    }
    fn of(self, list: List) -> usize {
        self.0[list as usize]
    }
}

/// Of the ranges that walks bring in one in so many goes to the main list.
const STAYS: u32 = 8;
/// The walk list keeps this part of the limit, and so many ranges at least: several walks, and
/// what is read ahead for them.
const WALK_PART: usize = 20;
const WALK_LEAST: usize = 16;

/// When a range was evicted (the kernel's shadow entry), and from which list. Zero: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shadow(u64);

impl Shadow {
    fn new(evicted: u64, from: List) -> Shadow {
        Shadow((evicted + 1) << 1 | from as u64)
    }
    /// Pages evicted by then.
    fn at(self) -> Option<u64> {
        (self.0 >> 1).checked_sub(1)
    }
    fn from(self) -> List {
        match self.0 & 1 {
            0 => List::Main,
            _ => List::Walk,
        }
    }
}

#[derive(Default)]
struct Ends {
    head: Link,
    tail: Link,
    len: usize,
}

impl Ends {
    fn append(&mut self, t: &Ranges, pmd: Pmd, r: &Range) {
        set(&r.lru_next, 0);
        set(&r.lru_prev, self.tail);
        match link(t, self.tail) {
            Some((_, last)) => set(&last.lru_next, pmd.0 + 1),
            None => self.head = pmd.0 + 1,
        }
        self.tail = pmd.0 + 1;
        self.len += 1;
    }

    fn prepend(&mut self, t: &Ranges, pmd: Pmd, r: &Range) {
        set(&r.lru_prev, 0);
        set(&r.lru_next, self.head);
        match link(t, self.head) {
            Some((_, first)) => set(&first.lru_prev, pmd.0 + 1),
            None => self.tail = pmd.0 + 1,
        }
        self.head = pmd.0 + 1;
        self.len += 1;
    }

    /// None if the range is not on this list.
    fn unlink<'t>(&mut self, t: &'t Ranges, pmd: Pmd) -> Option<&'t Range> {
        let l = pmd.0 + 1;
        let (_, r) = link(t, l)?;
        let (prev, next) = (r.lru_prev.load(Relaxed), r.lru_next.load(Relaxed));
        // Whoever is on the list and not its head has a neighbour that names it.
        match link(t, prev) {
            _ if self.head == l => self.head = next,
            Some((_, before)) if before.lru_next.load(Relaxed) == l => {
                set(&before.lru_next, next);
            }
            _ => return None,
        }
        match link(t, next) {
            Some((_, after)) => set(&after.lru_prev, prev),
            None => self.tail = prev,
        }
        set(&r.lru_next, 0);
        set(&r.lru_prev, 0);
        self.len -= 1;
        Some(r)
    }
}

/// How many of the last pages to leave a list came back soon; the weight of one falls by 1/16 with each
/// folio's worth that follows.
#[derive(Clone, Copy, Default)]
struct Regret {
    evicted: f32,
    came_back: f32,
}

impl Regret {
    fn evict(&mut self, pages: usize) {
        let left = 1.0 - pages.min(PMD_NR) as f32 / (16 * PMD_NR) as f32;
        self.evicted = self.evicted * left + pages as f32;
        self.came_back *= left;
    }
    fn part(self) -> f32 {
        self.came_back / self.evicted.max(1.0)
    }
}

#[derive(Default)]
struct Lists {
    ends: [Ends; 2],
    /// Pages evicted.
    evicted: u64,
    /// Ranges that were put on a list: with each goes its number, to know which is older.
    turn: u32,
    /// Ranges that walks brought in.
    arrivals: u32,
    regret: [Regret; 2],
}

impl Lists {
    /// Notes it if that is soon: what left since then would have fitted into three quarters of memory.
    fn came_back(&mut self, shadow: Shadow, pages: usize, limit: i64) -> bool {
        let since = shadow.at().map(|at| self.evicted - at);
        let soon = since.is_some_and(|pages| pages <= limit.max(0) as u64 * 3 / 4);
        if soon {
            self.regret[shadow.from() as usize].came_back += pages as f32;
        }
        soon
    }

    /// Ranges that were put on a list since the oldest of this one was.
    fn waits(&self, t: &Ranges, list: List) -> Option<u32> {
        let (_, head) = link(t, self.ends[list as usize].head)?;
        Some(self.turn.wrapping_sub(head.lru_turn.load(Relaxed)))
    }
}

/// The lists. Their lock is taken inside a range's lock, never around one.
pub struct Lru(Mutex<Lists>);

impl Default for Lru {
    fn default() -> Self {
        Lru(Mutex::new(Lists::default()))
    }
}

fn link(t: &Ranges, l: Link) -> Option<(Pmd, &Range)> {
    let pmd = Pmd(l.checked_sub(1)?);
    t.get(pmd).map(|r| (pmd, r))
}

fn set(w: &AtomicU32, l: Link) {
    w.store(l, Relaxed);
}

impl Lru {
    pub fn len(&self) -> usize {
        self.0.lock().ends.iter().map(|e| e.len).sum()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The list for a range that a walk brings in, with what is remembered of it. `limit`: pages
    /// that may be resident.
    pub fn arrive(&self, shadow: Shadow, limit: i64) -> List {
        let mut l = self.0.lock();
        if l.evicted == 0 {
            // Something must be there to be kept.
            return List::Main;
        }
        l.arrivals = l.arrivals.wrapping_add(1);
        let soon = l.came_back(shadow, PMD_NR, limit);
        // Not if the main list loses as much for it: then it is only a walk through a little more
        // than fits, and nothing is gained. And not if what is jumped about in is wanted more.
        let [main, walk] = l.regret.map(Regret::part);
        if soon && main < walk / 2.0 || l.arrivals % STAYS == 0 && main <= walk {
            List::Main
        } else {
            List::Walk
        }
    }

    /// Pages of a range come back of which this is remembered.
    /// Whether that is soon.
    pub fn came_back(&self, shadow: Shadow, pages: usize, limit: i64) -> bool {
        self.0.lock().came_back(shadow, pages, limit)
    }

    /// Ranges that walks brought in.
    pub fn walks(&self) -> usize {
        self.0.lock().ends[List::Walk as usize].len
    }

    /// Notes that pages of a range left memory for good.
    pub fn evict(&self, from: List, pages: usize) -> Shadow {
        let mut l = self.0.lock();
        l.evicted += pages as u64;
        l.regret[from as usize].evict(pages);
        Shadow::new(l.evicted, from)
    }

    /// Pages that have left, as a time that goes round.
    pub fn time(&self) -> u32 {
        self.0.lock().evicted as u32
    }

    /// Whether anything has left.
    #[inline]
    pub fn has_evicted(&self) -> bool {
        self.0.lock().evicted > 0
    }

    /// Whether no more than so many pages were evicted since.
    pub fn left_lately(&self, shadow: Shadow, pages: i64) -> bool {
        let evicted = self.0.lock().evicted;
        let since = shadow.at().map(|at| evicted - at);
        since.is_some_and(|since| since <= pages.max(0) as u64)
    }

    /// Appends; the range must not be on a list.
    pub fn push(&self, t: &Ranges, pmd: Pmd, list: List) {
        let Some((_, r)) = link(t, pmd.0 + 1) else {
            return;
        };
        let mut l = self.0.lock();
        l.turn = l.turn.wrapping_add(1);
        set(&r.lru_turn, l.turn);
        l.ends[list as usize].append(t, pmd, r);
    }

    /// Takes the range whose turn it is, and says from which list. `limit`: pages that may be resident.
    /// `in_vain`: ranges that were taken just now and could not leave: where there are no others on one
    /// list the other has its turn. Of the walk list what is older than all of the main list is not spared.
    pub fn pop(&self, t: &Ranges, limit: i64, in_vain: InVain) -> Option<(Pmd, List)> {
        let fits = limit.max(0) as usize / PMD_NR;
        let keep = (fits / WALK_PART).max(WALK_LEAST.min(fits / 4));
        let mut l = self.0.lock();
        let older = l.waits(t, List::Walk) > l.waits(t, List::Main);
        let len = |list| l.ends[list as usize].len;
        let others = |list| len(list) > in_vain.of(list);
        let list = if len(List::Walk) > keep || older {
            List::Walk
        } else {
            List::Main
        };
        let list = if others(list) || !others(list.other()) && len(list) > 0 {
            list
        } else {
            list.other()
        };
        let e = &mut l.ends[list as usize];
        let (pmd, _) = link(t, e.head)?;
        e.unlink(t, pmd).map(|_| (pmd, list))
    }

    /// Makes a range the oldest of both lists, if it is on the list: its lock, which the caller holds,
    /// keeps it there only if nobody has popped it already.
    pub fn hasten(&self, t: &Ranges, pmd: Pmd, list: List) -> bool {
        let mut lists = self.0.lock();
        let waits = lists.waits(t, List::Main).max(lists.waits(t, List::Walk));
        let oldest = lists.turn.wrapping_sub(waits.unwrap_or(0)).wrapping_sub(1);
        let e = &mut lists.ends[list as usize];
        let Some(r) = e.unlink(t, pmd) else {
            return false;
        };
        e.prepend(t, pmd, r);
        set(&r.lru_turn, oldest);
        true
    }

    /// Takes a range off the list, if it is there (see `hasten`).
    pub fn remove(&self, t: &Ranges, pmd: Pmd, list: List) -> bool {
        let mut lists = self.0.lock();
        lists.ends[list as usize].unlink(t, pmd).is_some()
    }

    /// In a forked child.
    pub fn reset_lock(&self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Lru {
        fn take(&self, t: &Ranges, limit: i64) -> Option<Pmd> {
            self.pop(t, limit, InVain::default()).map(|(pmd, _)| pmd)
        }
    }

    #[test]
    fn the_last_can_be_the_first() {
        let t = Ranges::new().unwrap();
        let l = Lru::default();
        for i in 1..=4 {
            t.get_or_map(Pmd(i)).unwrap();
            l.push(&t, Pmd(i), List::Main);
        }
        assert!(
            l.hasten(&t, Pmd(3), List::Main)
                && l.hasten(&t, Pmd(4), List::Main)
                && l.hasten(&t, Pmd(4), List::Main)
        );
        assert_eq!(l.take(&t, 64 << 9), Some(Pmd(4)));
        assert!(!l.hasten(&t, Pmd(4), List::Main) && !l.hasten(&t, Pmd(9), List::Main));
        t.get_or_map(Pmd(5)).unwrap();
        l.push(&t, Pmd(5), List::Main);
        let rest: Vec<_> = core::iter::from_fn(|| l.take(&t, 64 << 9)).collect();
        assert_eq!(rest, [3, 1, 2, 5].map(Pmd));
        assert!(l.is_empty());
    }

    #[test]
    fn first_in_first_out() {
        let t = Ranges::new().unwrap();
        let l = Lru::default();
        for i in [3, 1, 2] {
            t.get_or_map(Pmd(i)).unwrap();
            l.push(&t, Pmd(i), List::Main);
        }
        assert_eq!(l.len(), 3);
        assert_eq!(l.take(&t, 64 << 9), Some(Pmd(3)));
        l.push(&t, Pmd(3), List::Main);
        assert_eq!(
            (
                l.take(&t, 64 << 9),
                l.take(&t, 64 << 9),
                l.take(&t, 64 << 9),
                l.take(&t, 64 << 9)
            ),
            (Some(Pmd(1)), Some(Pmd(2)), Some(Pmd(3)), None)
        );
    }

    /// Ranges of one walk over and over; returns the share that was not there.
    fn misses(size: u32, limit: u32, rounds: u32) -> f64 {
        let t = Ranges::new().unwrap();
        let l = Lru::default();
        let pages = i64::from(limit) * PMD_NR as i64;
        let mut state = vec![(false, List::Main, Shadow::default()); size as usize];
        let (mut resident, mut missed) = (0, 0);
        for i in 0..size * (rounds + 1) {
            let at = i % size;
            if state[at as usize].0 {
                continue;
            }
            if resident == limit {
                let victim = l.take(&t, pages).unwrap().0 as usize - 1;
                state[victim].0 = false;
                state[victim].2 = l.evict(state[victim].1, PMD_NR);
                resident -= 1;
            }
            resident += 1;
            let first = i < size;
            let list = if first {
                List::Main
            } else {
                l.arrive(state[at as usize].2, pages)
            };
            missed += u32::from(!first);
            state[at as usize].0 = true;
            state[at as usize].1 = list;
            t.get_or_map(Pmd(at + 1)).unwrap();
            l.push(&t, Pmd(at + 1), list);
        }
        f64::from(missed) / f64::from(size * rounds)
    }

    #[test]
    fn a_walk_through_too_much_finds_what_stayed() {
        // First in, first out misses all of it; nobody can miss less than what does not fit.
        let half = misses(512, 256, 8);
        assert!((0.5..0.70).contains(&half), "{half}");
        assert!((0.2..0.85).contains(&misses(512, 410, 8)));
        assert_eq!(misses(200, 256, 8), 0.0);
    }

    #[test]
    fn jumps_and_first_touches_outlive_walks() {
        let t = Ranges::new().unwrap();
        let l = Lru::default();
        for i in 1..=40 {
            t.get_or_map(Pmd(i)).unwrap();
            l.push(&t, Pmd(i), if i % 2 == 0 { List::Main } else { List::Walk });
        }
        let left: Vec<_> = core::iter::from_fn(|| l.take(&t, 64 << 9))
            .take(6)
            .collect();
        assert_eq!(left, [1, 3, 5, 7, 2, 4].map(Pmd));
    }

    /// What walks brought in is spared for walks that go on, not for ever.
    #[test]
    fn the_walk_list_gives_what_is_older_than_the_main_list() {
        let t = Ranges::new().unwrap();
        let l = Lru::default();
        let limit = 64 << 9;
        let put = |range, list| {
            t.get_or_map(Pmd(range)).unwrap();
            l.push(&t, Pmd(range), list);
        };
        put(1, List::Main);
        (2..=6).for_each(|range| put(range, List::Walk));
        (7..=40).for_each(|range| put(range, List::Main));
        // Whoever came first leaves first, as long as the walk list is short.
        for range in 1..=6 {
            assert_eq!(l.take(&t, limit), Some(Pmd(range)));
        }
        put(41, List::Walk);
        assert_eq!(l.take(&t, limit), Some(Pmd(7)));
        // Whoever is to leave at once leaves before both.
        assert!(l.hasten(&t, Pmd(41), List::Walk));
        assert_eq!(l.take(&t, limit), Some(Pmd(41)));
        assert_eq!(l.take(&t, limit), Some(Pmd(8)));
    }

    #[test]
    fn shadows_keep_time_and_list() {
        assert_eq!(Shadow::default().at(), None);
        for (evicted, from) in [(0, List::Main), (0, List::Walk), (1 << 40, List::Walk)] {
            let shadow = Shadow::new(evicted, from);
            assert_eq!((shadow.at(), shadow.from()), (Some(evicted), from));
        }
    }

    /// Whichever list the ranges that cannot leave are on, the others have their turn.
    #[test]
    fn ranges_that_cannot_leave_keep_nobody_in() {
        let t = Ranges::new().unwrap();
        let l = Lru::default();
        let limit = 64 << 9;
        let put = |ranges: core::ops::RangeInclusive<u32>, list| {
            for i in ranges {
                t.get_or_map(Pmd(i)).unwrap();
                l.push(&t, Pmd(i), list);
            }
        };
        let fail = |of: List, times: usize| {
            let mut in_vain = InVain::default();
            for _ in 0..times {
                let (pmd, list) = l.pop(&t, limit, in_vain).unwrap();
                assert_eq!(list, of, "{pmd:?}");
                in_vain.note(list);
                l.push(&t, pmd, list);
            }
            in_vain
        };
        put(1..=2, List::Main);
        put(3..=6, List::Walk);
        let in_vain = fail(List::Main, 2);
        assert_eq!(l.pop(&t, limit, in_vain), Some((Pmd(3), List::Walk)));
        // So many walks that they have their turn first.
        put(7..=30, List::Walk);
        put(40..=41, List::Main);
        let in_vain = fail(List::Walk, 27);
        let (pmd, list) = l.pop(&t, limit, in_vain).unwrap();
        assert_eq!((pmd, list), (Pmd(1), List::Main));
    }

    #[test]
    fn where_little_fits_the_walk_list_has_less_to_itself() {
        let t = Ranges::new().unwrap();
        let l = Lru::default();
        for i in 1..=5 {
            t.get_or_map(Pmd(i)).unwrap();
            let list = if i <= 2 { List::Main } else { List::Walk };
            l.push(&t, Pmd(i), list);
        }
        assert_eq!(l.take(&t, 64 << 9), Some(Pmd(1)));
        assert_eq!(l.take(&t, 8 << 9), Some(Pmd(3)));
    }
}
