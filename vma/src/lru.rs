//! Resident ranges in the order in which they became so, on two lists. Links live in the descriptors.
//! Which list, and whose turn it is, `policy::Turns` says.

use super::table::{Range, Ranges};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use hugeswap_mm::Pmd;
use hugeswap_policy::turns::Queued;
use hugeswap_policy::{InVain, List, Shadow, Turns};
use hugeswap_sys::sync::Mutex;

/// Number + 1 of a range; 0 ends the list.
type Link = u32;

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

#[derive(Default)]
struct Lists {
    ends: [Ends; 2],
    turns: Turns,
}

impl Lists {
    fn queued(&self, t: &Ranges) -> Queued {
        let number = |e: &Ends| link(t, e.head).map(|(_, r)| r.lru_turn.load(Relaxed));
        let [main, walk] = &self.ends;
        Queued {
            len: [main.len, walk.len],
            oldest: [number(main), number(walk)],
        }
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
        self.0.lock().turns.arrive(shadow, limit)
    }

    /// Pages of a range come back of which this is remembered.
    /// Whether that is soon.
    pub fn came_back(&self, shadow: Shadow, pages: usize, limit: i64) -> bool {
        self.0.lock().turns.came_back(shadow, pages, limit)
    }

    /// Ranges that walks brought in.
    pub fn walks(&self) -> usize {
        self.0.lock().ends[List::Walk as usize].len
    }

    /// Notes that pages of a range left memory for good.
    pub fn evict(&self, from: List, pages: usize) -> Shadow {
        self.0.lock().turns.evict(from, pages)
    }

    /// Pages that have left, as a time that goes round.
    pub fn time(&self) -> u32 {
        self.0.lock().turns.evicted() as u32
    }

    /// Whether anything has left.
    #[inline]
    pub fn has_evicted(&self) -> bool {
        self.0.lock().turns.evicted() > 0
    }

    /// Whether no more than so many pages were evicted since.
    pub fn left_lately(&self, shadow: Shadow, pages: i64) -> bool {
        self.0.lock().turns.left_within(shadow, pages)
    }

    /// Appends; the range must not be on a list.
    pub fn push(&self, t: &Ranges, pmd: Pmd, list: List) {
        let Some((_, r)) = link(t, pmd.0 + 1) else {
            return;
        };
        let mut l = self.0.lock();
        set(&r.lru_turn, l.turns.number());
        l.ends[list as usize].append(t, pmd, r);
    }

    /// Takes the range whose turn it is, and says from which list. `limit`: pages that may be resident.
    /// `in_vain`: ranges that were taken just now and could not leave.
    pub fn pop(&self, t: &Ranges, limit: i64, in_vain: InVain) -> Option<(Pmd, List)> {
        let mut l = self.0.lock();
        let list = l.turns.next(l.queued(t), limit, in_vain);
        let e = &mut l.ends[list as usize];
        let (pmd, _) = link(t, e.head)?;
        e.unlink(t, pmd).map(|_| (pmd, list))
    }

    /// Makes a range the oldest of both lists, if it is on the list: its lock, which the caller holds,
    /// keeps it there only if nobody has popped it already.
    pub fn hasten(&self, t: &Ranges, pmd: Pmd, list: List) -> bool {
        let mut lists = self.0.lock();
        let oldest = lists.turns.number_before(lists.queued(t).oldest);
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
    use hugeswap_mm::PMD_NR;

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
