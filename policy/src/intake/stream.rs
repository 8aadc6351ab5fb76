//! Which faults belong to a walk through memory, and how much to bring in.
//!
//! A walk goes through memory page by page, up or down; a jump lands anywhere. The rule keeps the
//! last places that faulted, and the walks that went on last: a program that merges, or walks and jumps, has many
//! faults between two of one walk. A fault just beyond what was brought in at a place or for a walk goes on with
//! it. As many pages come in for it, 64 at most, as it is likely to use by what is known of walks that had come as far
//! (`lengths`). A walk that has reached the edge of its 2 MiB range and enters the next takes whole folios from there, or what
//! is missing of them, and the next ones are read ahead, each where that is likely to be used. What is resident on its
//! way is passed over. A fault that goes on with nothing brings in what the first faults of walks are worth: mostly one page.

use super::lengths::Lengths;
use hugeswap_mm::{Pmd, PMD_NR};

/// The last places that faulted without going on with anything.
const PLACES: usize = 16;
/// Walks that are known.
const WALKS: usize = 16;
/// A place that so many faults have gone on with is a walk.
const WALK_MIN: u32 = 3;
/// Pages at a range's edge in which a walk is expected to leave it and to enter the next.
const EDGE: u64 = 32;
const WINDOW_MAX: usize = 4;
/// Pages beyond those that were brought in that a walk can pass without a fault: resident ones. With more, strides
/// would look like walks.
const PASS: u64 = 2;
/// Resident ranges that a walk can pass without a fault and be known again.
const PASS_MAX: u64 = 256;
const PAGES_MAX: u64 = 64;

#[derive(Clone, Copy, Default)]
struct Head {
    /// Number of the page that faulted last, over all memory.
    at: u64,
    /// Pages that were brought in with it.
    pages: u64,
    /// Pages from where it began up to `at`.
    come: u64,
    /// -1 or 1 once it walks, 0 before.
    step: i32,
    /// Times it went on; 0 for no walk at all.
    length: u32,
    /// Ranges that it entered at the edge.
    ranges: u32,
    /// When it went on last.
    used: u64,
}

/// What a fault goes on with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walk {
    /// The direction, if it enters its range at the edge.
    pub enters: Option<i32>,
    /// How many pages to bring in otherwise.
    pub pages: usize,
}

/// Numbers of pages in which a fault may go on with a head; outside it does not. So most heads need no closer look.
#[derive(Clone, Copy, Default)]
struct Reach {
    low: u64,
    len: u64,
}

impl Reach {
    fn has(self, at: u64) -> bool {
        at.wrapping_sub(self.low) < self.len
    }
}

#[derive(Default)]
pub struct Streams {
    /// Places, then walks.
    heads: [Head; PLACES + WALKS],
    /// Of each head.
    reach: [Reach; PLACES + WALKS],
    /// The oldest place.
    next: usize,
    last: usize,
    /// Faults that went on with something.
    time: u64,
    lengths: Lengths,
}

impl Streams {
    /// The walk that the fault goes on with. `resident`: a walk goes through this range without a
    /// fault.
    pub fn walk(&mut self, pmd: Pmd, page: usize, resident: impl Fn(Pmd) -> bool) -> Option<Walk> {
        let at = number(pmd, page);
        let (i, h) = self
            .goes_on(at)
            .or_else(|| self.passed_over(at, page, resident))?;
        let before = self.heads[i].come;
        self.lengths.goes_on(before, h.come);
        let h = Head {
            pages: self.lengths.window(h.come, PAGES_MAX),
            ..h
        };
        self.last = self.keep(i, h);
        Some(Walk {
            enters: (h.ranges > 0 && self.lengths.takes_whole(h.come)).then_some(h.step),
            pages: h.pages as usize,
        })
    }

    /// The head that the fault goes on with, and what it becomes.
    fn goes_on(&self, at: u64) -> Option<(usize, Head)> {
        let mut near = self.reach.iter().enumerate().filter(|(_, r)| r.has(at));
        near.find_map(|(i, _)| Some((i, self.heads[i].goes_on(at)?)))
    }

    /// The same, where what lies between is resident.
    fn passed_over(
        &self,
        at: u64,
        page: usize,
        resident: impl Fn(Pmd) -> bool,
    ) -> Option<(usize, Head)> {
        let (page, edge) = (page as u64, EDGE..PMD_NR as u64 - EDGE);
        if edge.contains(&page) {
            return None;
        }
        let mut heads = self.heads.iter().enumerate();
        heads.find_map(|(i, h)| Some((i, h.passed_over(at, &resident)?.goes_on(at)?)))
    }

    fn set(&mut self, i: usize, head: Head) {
        self.reach[i] = head.reach();
        self.heads[i] = head;
    }

    /// Keeps what place or walk `i` has become, and says where. What is a walk by now makes way for no place.
    fn keep(&mut self, i: usize, head: Head) -> usize {
        self.time += 1;
        let head = Head {
            used: self.time,
            ..head
        };
        if i >= PLACES || head.length < WALK_MIN {
            self.set(i, head);
            return i;
        }
        let walks = PLACES..PLACES + WALKS;
        let oldest = walks.min_by_key(|&w| self.heads[w].used);
        let to = oldest.unwrap_or(PLACES);
        self.set(i, Head::default());
        self.end(to);
        self.set(to, head);
        to
    }

    /// A walk may begin here. Returns the pages that come in for it.
    pub fn begin(&mut self, pmd: Pmd, page: usize) -> usize {
        self.end(self.next);
        self.last = self.next;
        let pages = self.lengths.window(1, PAGES_MAX);
        let head = Head {
            at: number(pmd, page),
            pages,
            come: 1,
            step: 0,
            length: 1,
            ranges: 0,
            used: 0,
        };
        self.set(self.next, head);
        self.next = (self.next + 1) % PLACES;
        pages as usize
    }

    /// Its place is needed for another.
    fn end(&mut self, i: usize) {
        if self.heads[i].length > 0 {
            self.lengths.ended(self.heads[i].come);
        }
    }

    /// With the fault that was last seen so many pages came, at least.
    pub fn brought(&mut self, pages: usize) {
        let mut head = self.heads[self.last];
        head.pages = head.pages.max(pages as u64);
        self.set(self.last, head);
    }

    /// Folios to read ahead for the walk that was last seen.
    pub fn window(&self) -> usize {
        let head = &self.heads[self.last];
        let most = (head.ranges as usize).min(WINDOW_MAX);
        self.lengths.ahead(head.come, most)
    }
}

/// Of a page, over all memory.
pub fn number(pmd: Pmd, page: usize) -> u64 {
    u64::from(pmd.0) * PMD_NR as u64 + page as u64
}

impl Head {
    /// Pages that it can go on by within a range.
    fn steps_over(&self) -> u64 {
        self.pages.max(2) + PASS
    }

    fn reach(&self) -> Reach {
        if self.length == 0 {
            return Reach::default();
        }
        let nr = PMD_NR as u64;
        let (begins, steps) = (self.at / nr * nr, self.steps_over());
        let low = begins
            .saturating_sub(EDGE)
            .min(self.at.saturating_sub(steps));
        let end = (begins + nr + EDGE).max(self.at + steps + 1);
        Reach {
            low,
            len: end - low,
        }
    }

    /// The head after a fault at `at`, if that goes on with it.
    fn goes_on(&self, at: u64) -> Option<Head> {
        if self.length == 0 {
            return None;
        }
        let nr = PMD_NR as u64;
        let (range, before) = (at / nr, self.at / nr);
        let page = at % nr;
        let up = at > self.at && at - self.at <= self.steps_over();
        let down = at < self.at && self.at - at <= self.steps_over();
        // A walker of whole ranges faults once in each, at the edge where it comes in. So does who
        // touches one page in each; it takes a walk within a range to know.
        let walks = self.ranges > 0;
        let next_up = range == before + 1 && page < EDGE && (walks || up);
        let next_down = range + 1 == before && page >= nr - EDGE && (walks || down);
        let step = if (up || next_up) && self.step >= 0 {
            1
        } else if (down || next_down) && self.step <= 0 {
            -1
        } else {
            return None;
        };
        let crossed = next_up || next_down;
        let length = self.length + 1;
        Some(Head {
            at,
            pages: self.pages,
            come: self.come + at.abs_diff(self.at),
            step,
            length,
            ranges: self.ranges + u32::from(crossed),
            used: self.used,
        })
    }

    /// The head as if it had faulted last at the edge that is next to `at`, where all ranges
    /// between are resident.
    fn passed_over(&self, at: u64, resident: impl Fn(Pmd) -> bool) -> Option<Head> {
        let nr = PMD_NR as u64;
        let (range, before, page) = (at / nr, self.at / nr, at % nr);
        if self.ranges == 0 || range.abs_diff(before) > PASS_MAX {
            return None;
        }
        let last = match self.step {
            1 if range > before + 1 && page < EDGE => range - 1,
            -1 if range + 1 < before && page >= nr - EDGE => range + 1,
            _ => return None,
        };
        let passed = range.min(before) + 1..range.max(before);
        passed
            .into_iter()
            .all(|r| resident(Pmd(r as u32)))
            .then_some(Head {
                at: last * nr + page,
                come: self.come + (last * nr + page).abs_diff(self.at),
                ..*self
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Streams {
        fn classify(
            &mut self,
            pmd: Pmd,
            page: usize,
            resident: impl Fn(Pmd) -> bool,
        ) -> (Option<i32>, usize) {
            match self.walk(pmd, page, resident) {
                Some(w) => (w.enters, w.pages),
                None => (None, self.begin(pmd, page)),
            }
        }
    }

    /// A walk through the range before, of which nothing is resident, that comes into this one.
    fn walk_into(s: &mut Streams, range: u32, step: i32) {
        let from = range.checked_add_signed(-step).unwrap();
        for page in 0..PMD_NR {
            let page = if step > 0 { page } else { PMD_NR - 1 - page };
            assert_eq!(s.classify(Pmd(from), page, |_| false).0, None);
        }
        let first = if step > 0 { 0 } else { PMD_NR - 1 };
        assert_eq!(s.classify(Pmd(range), first, |_| false).0, Some(step));
    }

    #[test]
    fn first_touches_in_pieces_are_a_walk_too() {
        let mut s = Streams::default();
        let mut page = 0;
        let mut faults = 0;
        while page < PMD_NR {
            let (_, pages) = s.classify(Pmd(7), page, |_| false);
            let pages = pages.max(16);
            s.brought(pages);
            page += pages;
            faults += 1;
        }
        assert!(faults < 14, "{faults}");
        assert_eq!(s.classify(Pmd(8), 0, |_| false).0, Some(1));
    }

    #[test]
    fn walks_over_ranges() {
        let mut s = Streams::default();
        walk_into(&mut s, 10, 1);
        assert_eq!(s.window(), 0);
        for range in 11..30 {
            let page = range as usize % 4;
            assert_eq!(s.classify(Pmd(range), page, |_| false).0, Some(1));
        }
        assert_eq!(s.window(), 4);
        // Another has not come so far yet.
        walk_into(&mut s, 90, -1);
        assert_eq!(s.classify(Pmd(89), 511, |_| false).0, Some(-1));
        assert!(s.window() < 4);
        assert_eq!(s.classify(Pmd(30), 0, |_| false).0, Some(1));
        assert_eq!(s.window(), 4);
    }

    /// One page of each range, at its edge: a program that wants no more must not get all.
    #[test]
    fn a_page_of_each_range_is_no_walk() {
        let mut s = Streams::default();
        for range in 10..100 {
            assert_eq!(s.classify(Pmd(range), 0, |_| false), (None, 1));
        }
    }

    #[test]
    fn what_goes_on_with_a_head_is_within_its_reach() {
        let mut random = 1u64;
        let mut next = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % below
        };
        let mut went_on = 0;
        for _ in 0..200_000 {
            let head = Head {
                at: next(4 * PMD_NR as u64),
                pages: next(65),
                come: 1,
                step: next(3) as i32 - 1,
                length: next(4) as u32,
                ranges: next(2) as u32,
                used: 0,
            };
            let at = next(4 * PMD_NR as u64);
            if head.goes_on(at).is_some() {
                went_on += 1;
                assert!(head.reach().has(at), "{} {} {at}", head.at, head.pages);
            }
        }
        assert!(went_on > 1000, "{went_on}");
    }

    #[test]
    fn walks_pass_over_what_is_resident() {
        let mut s = Streams::default();
        let resident = |p: Pmd| p.0 % 8 >= 3;
        walk_into(&mut s, 8, 1);
        for range in [9, 10, 16, 17, 18, 24] {
            assert_eq!(s.classify(Pmd(range), 0, resident).0, Some(1), "{range}");
        }
        assert!(s.window() >= 4);
        // Downwards, and not over ranges that are not resident.
        walk_into(&mut s, 82, -1);
        for range in [81, 80, 74] {
            assert_eq!(s.classify(Pmd(range), 511, resident).0, Some(-1), "{range}");
        }
        assert_eq!(s.classify(Pmd(72), 511, resident).0, None);
    }

    #[test]
    fn windows_grow_within_a_range_and_the_walk_goes_on_whole() {
        let mut s = Streams::default();
        let (mut page, mut pages) = (100, vec![]);
        loop {
            let (walk, n) = s.classify(Pmd(5), page, |_| false);
            assert_eq!(walk, None);
            pages.push(n);
            // Fills are aligned to their size, so that they end at the range's edge.
            page = (page / n + 1) * n;
            if page >= PMD_NR {
                break;
            }
        }
        assert_eq!(&pages[..5], [1, 8, 16, 32, 64]);
        assert_eq!(s.classify(Pmd(6), page - PMD_NR, |_| false).0, Some(1));
    }

    /// A merge: walks that fault now and then, and jumps between.
    #[test]
    fn jumps_do_not_end_walks() {
        let mut s = Streams::default();
        let starts = [1000, 2000, 3000, 4000];
        for start in starts {
            walk_into(&mut s, start, 1);
        }
        let mut x = 1u64;
        for range in 1..50 {
            for start in starts {
                for _ in 0..100 {
                    x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
                    let p = (x >> 33) as usize % (500 * PMD_NR);
                    s.classify(Pmd((p / PMD_NR) as u32), p % PMD_NR, |_| false);
                }
                let next = Pmd(start + range);
                assert_eq!(s.classify(next, 0, |_| false).0, Some(1), "{next:?}");
            }
        }
    }

    #[test]
    fn jumps_are_not_walks() {
        let mut s = Streams::default();
        let mut x = 1u64;
        let (mut walks, mut pages) = (0, 0);
        for _ in 0..10_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
            let p = (x >> 33) as usize % (1000 * PMD_NR);
            let (w, n) = s.classify(Pmd((p / PMD_NR) as u32), p % PMD_NR, |_| true);
            walks += w.is_some() as usize;
            pages += n;
        }
        assert!(walks < 20, "{walks}");
        assert!(pages < 10_200, "{pages}");
    }
}
