//! Which blocks are hot: those accessed a second time within a window.
//!
//! Accesses are sampled, so a block may need more reads than two to be seen
//! twice; one that is read once is never seen twice. A read that goes on in
//! the same block (many small reads in a row) is the same access: the second
//! one has to come a little later than the first.
//!
//! Memory is bounded. What was seen lives in two generations, each half a
//! window long at least; the older is dropped as a whole when the younger is
//! full or old enough.

use std::collections::HashMap;
use std::time::Duration;

use crate::page::{Block, Time};

#[derive(Clone, Copy, Debug)]
struct Seen {
    first: Time,
    last: Time,
    /// Looked at lately, and nothing was to do: not hot again before this.
    rest_until: Time,
}

#[derive(Debug)]
pub struct Hot {
    window: Duration,
    gap: Duration,
    /// Entries of one generation at most.
    capacity: usize,
    young: HashMap<Block, Seen>,
    old: HashMap<Block, Seen>,
    born: Time,
    /// Generations that were dropped early because the table was full.
    pub overflows: u64,
}

impl Hot {
    pub fn new(window: Duration, gap: Duration, capacity: usize) -> Hot {
        Hot {
            window,
            gap,
            capacity,
            young: HashMap::new(),
            old: HashMap::new(),
            born: Time(0),
            overflows: 0,
        }
    }

    /// Notes an access; says whether the block is hot now.
    pub fn access(&mut self, block: Block, now: Time) -> bool {
        let (window, gap) = (self.window, self.gap);
        let seen = self.seen(block, now);
        let hot = second(seen, window, gap, now);
        seen.last = now;
        hot
    }

    /// Notes what others have found to be a second access.
    pub fn activated(&mut self, block: Block, now: Time) -> bool {
        let seen = self.seen(block, now);
        seen.last = now;
        now >= seen.rest_until
    }

    /// The entry of a block among the young; a new one, if need be.
    fn seen(&mut self, block: Block, now: Time) -> &mut Seen {
        if now.since(self.born) > self.window {
            self.next_generation(now);
        }
        let known = self
            .young
            .get(&block)
            .copied()
            .or_else(|| self.old.remove(&block));
        let seen = match known {
            Some(seen) if now.since(seen.last) <= self.window => seen,
            _ => Seen {
                first: now,
                last: now,
                rest_until: Time(0),
            },
        };
        if self.young.len() >= self.capacity && !self.young.contains_key(&block) {
            self.overflows += 1;
            self.next_generation(now);
        }
        let entry = self.young.entry(block).or_insert(seen);
        *entry = seen;
        entry
    }

    /// Nothing is to do for `block` until `then`, hot or not.
    pub fn rest(&mut self, block: Block, then: Time) {
        for table in [&mut self.young, &mut self.old] {
            if let Some(seen) = table.get_mut(&block) {
                seen.rest_until = then;
            }
        }
    }

    /// When the block was last accessed, if it was within the window.
    pub fn last(&self, block: Block, now: Time) -> Option<Time> {
        let seen = self.young.get(&block).or_else(|| self.old.get(&block))?;
        (now.since(seen.last) <= self.window).then_some(seen.last)
    }

    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn next_generation(&mut self, now: Time) {
        self.old = std::mem::take(&mut self.young);
        self.born = now;
    }
}

fn second(seen: &Seen, window: Duration, gap: Duration, now: Time) -> bool {
    now.since(seen.last) <= window
        && now.since(seen.first) >= gap
        && seen.first != now
        && now >= seen.rest_until
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::FileId;

    fn block(index: u64) -> Block {
        Block {
            file: FileId { dev: 1, ino: 2 },
            index,
        }
    }

    fn at(ms: u64) -> Time {
        Time(1_000_000 + ms * 1000)
    }

    fn hot(capacity: usize) -> Hot {
        Hot::new(
            Duration::from_secs(60),
            Duration::from_millis(200),
            capacity,
        )
    }

    #[test]
    fn the_second_access_makes_hot() {
        let mut hot = hot(100);
        assert!(!hot.access(block(1), at(0)));
        assert!(!hot.access(block(2), at(1000)), "another block");
        assert!(hot.access(block(1), at(1000)));
    }

    #[test]
    fn reading_on_in_a_block_is_one_access() {
        let mut hot = hot(100);
        for ms in 0..200 {
            assert!(!hot.access(block(1), at(ms)), "at {ms} ms");
        }
        assert!(hot.access(block(1), at(201)), "a loop over a small file");
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let mut hot = hot(100);
        hot.access(block(1), at(0));
        assert!(!hot.access(block(1), at(60_001)));
        assert!(
            hot.access(block(1), at(120_000)),
            "counted from the new first"
        );
        hot.access(block(2), at(120_000));
        assert!(!hot.access(block(2), at(400_000)));
    }

    #[test]
    fn a_block_at_rest_is_not_hot() {
        let mut hot = hot(100);
        hot.access(block(1), at(0));
        hot.rest(block(1), at(5000));
        assert!(!hot.access(block(1), at(4000)));
        assert!(hot.access(block(1), at(5000)));
    }

    #[test]
    fn memory_is_bounded() {
        let mut hot = hot(10);
        for index in 0..1000 {
            hot.access(block(index), at(index));
            assert!(hot.len() <= 20);
        }
        assert!(hot.overflows > 90);
        assert!(hot.last(block(999), at(1000)).is_some());
        assert!(hot.last(block(5), at(1000)).is_none());
    }
}
