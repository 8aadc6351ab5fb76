//! Whose turn it is to leave memory: resident ranges are on two lists, each in the order in which they came to it.
//!
//! Touches of resident memory can't be seen, but how a range came in can: by a walk, or
//! because the program jumped there. A walk through more than fits misses everything if the oldest
//! leaves first; so what walks bring in leaves first, and of it one in [`STAYS`] goes to the main
//! list, with what jumps, first touches and second chances bring in. A walk over and over then
//! finds there what stayed, and what is hot stays while something is walked through beside it.
//! Some of what walks brought in is always there, for walks that go on: but not what has become older
//! than everything on the main list.
//!
//! The lists themselves are the engine's (`vma::Lru`); here is what decides which, and what is remembered of
//! those that left. docs/policies.md compares this rule with others.

use hugeswap_mm::PMD_NR;

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

/// What is known of those that came and left.
#[derive(Clone, Copy, Default)]
pub struct Turns {
    /// Pages evicted.
    evicted: u64,
    /// Ranges that were put on a list: with each goes its number, to know which is older.
    turn: u32,
    /// Ranges that walks brought in.
    arrivals: u32,
    regret: [Regret; 2],
}

/// What stands on the lists.
#[derive(Clone, Copy, Debug, Default)]
pub struct Queued {
    /// Ranges on each.
    pub len: [usize; 2],
    /// The number of the oldest of each.
    pub oldest: [Option<u32>; 2],
}

impl Turns {
    /// The number of a range that is put on a list.
    pub fn number(&mut self) -> u32 {
        self.turn = self.turn.wrapping_add(1);
        self.turn
    }

    /// A number that is older than those of the oldest of both lists.
    pub fn number_before(&self, oldest: [Option<u32>; 2]) -> u32 {
        let waits = oldest.map(|n| self.waits(n)).into_iter().max().flatten();
        self.turn.wrapping_sub(waits.unwrap_or(0)).wrapping_sub(1)
    }

    /// Ranges that were put on a list since that one was.
    fn waits(&self, number: Option<u32>) -> Option<u32> {
        Some(self.turn.wrapping_sub(number?))
    }

    /// The list that gives a range. `limit`: pages that may be resident. `in_vain`: ranges that were taken just
    /// now and could not leave: where there are no others on one list the other has its turn. Of the walk list
    /// what is older than all of the main list is not spared.
    pub fn next(&self, queued: Queued, limit: i64, in_vain: InVain) -> List {
        let fits = limit.max(0) as usize / PMD_NR;
        let keep = (fits / WALK_PART).max(WALK_LEAST.min(fits / 4));
        let [main, walk] = queued.oldest.map(|n| self.waits(n));
        let len = |list: List| queued.len[list as usize];
        let others = |list| len(list) > in_vain.of(list);
        let list = match len(List::Walk) > keep || walk > main {
            true => List::Walk,
            false => List::Main,
        };
        if others(list) || !others(list.other()) && len(list) > 0 {
            list
        } else {
            list.other()
        }
    }

    /// The list for a range that a walk brings in, with what is remembered of it.
    pub fn arrive(&mut self, shadow: Shadow, limit: i64) -> List {
        if self.evicted == 0 {
            // Something must be there to be kept.
            return List::Main;
        }
        self.arrivals = self.arrivals.wrapping_add(1);
        let soon = self.came_back(shadow, PMD_NR, limit);
        // Not if the main list loses as much for it: then it is only a walk through a little more
        // than fits, and nothing is gained. And not if what is jumped about in is wanted more.
        let [main, walk] = self.regret.map(Regret::part);
        if soon && main < walk / 2.0 || self.arrivals % STAYS == 0 && main <= walk {
            List::Main
        } else {
            List::Walk
        }
    }

    /// Pages of a range come back of which this is remembered. Whether that is soon: what left since then would
    /// have fitted into three quarters of memory.
    pub fn came_back(&mut self, shadow: Shadow, pages: usize, limit: i64) -> bool {
        let soon = self.left_within(shadow, limit.max(0) * 3 / 4);
        if soon {
            self.regret[shadow.from() as usize].came_back += pages as f32;
        }
        soon
    }

    /// Whether no more than so many pages were evicted since.
    pub fn left_within(&self, shadow: Shadow, pages: i64) -> bool {
        let since = shadow.at().map(|at| self.evicted - at);
        since.is_some_and(|since| since <= pages.max(0) as u64)
    }

    /// Notes that pages of a range left memory for good.
    pub fn evict(&mut self, from: List, pages: usize) -> Shadow {
        self.evicted += pages as u64;
        self.regret[from as usize].evict(pages);
        Shadow::new(self.evicted, from)
    }

    /// Pages that have left.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shadows_keep_time_and_list() {
        assert_eq!(Shadow::default().at(), None);
        for (evicted, from) in [(0, List::Main), (0, List::Walk), (1 << 40, List::Walk)] {
            let shadow = Shadow::new(evicted, from);
            assert_eq!((shadow.at(), shadow.from()), (Some(evicted), from));
        }
    }

    #[test]
    fn what_is_to_leave_first_is_older_than_all_others() {
        let mut turns = Turns::default();
        let [first, second] = [turns.number(), turns.number()];
        for oldest in [[Some(first), Some(second)], [None, Some(first)]] {
            let number = turns.number_before(oldest);
            assert!(turns.waits(Some(number)) > turns.waits(Some(first)));
        }
        let numbers = [turns.number_before([None; 2]), turns.number()];
        assert!(turns.waits(Some(numbers[0])) > turns.waits(Some(numbers[1])));
    }
}
