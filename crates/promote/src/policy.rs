//! What is promoted, when, and when not. No system call in here: the daemon
//! drives it with what the kernel says, the simulation with a trace.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use crate::backoff::Backoff;
use crate::hot::Hot;
use crate::page::{Block, FileId, Time, BATCH_BLOCKS, BLOCK_PAGES};
use crate::rate::Rate;

#[derive(Clone, Debug)]
pub struct Limits {
    /// Two accesses within it make hot.
    pub window: Duration,
    /// What comes sooner after the first access belongs to it.
    pub gap: Duration,
    /// Pages a second.
    pub rate: Option<u64>,
    /// Blocks remembered; two generations of them.
    pub seen: usize,
    /// Blocks that wait to be promoted.
    pub queue: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            window: Duration::from_secs(60),
            gap: Duration::from_millis(200),
            rate: None,
            seen: 1 << 18,
            queue: 1 << 16,
        }
    }
}

/// A promoted block is looked at again when it is hot after so long: was it
/// read where it is now, or did it leave before?
const CONFIRM: Duration = Duration::from_secs(5);
/// What could not be moved is not tried again for so long.
const RETRY: Duration = Duration::from_secs(3);
/// Pages of one access at most. An event gives the whole of a `read`; a large
/// one is done in pieces and its later pieces have events of their own, which
/// must not look like second accesses of its end.
const ACCESS_PAGES: u64 = 512;

/// Blocks of one file within one 2 MiB of it, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub file: FileId,
    pub blocks: Vec<u64>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Nothing,
    /// The rate limit: not before.
    Wait(Duration),
    Batch(Batch),
}

/// What became of one block of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Pages that were on the fast node already.
    pub fast: u64,
    /// Pages that were on the slow one: candidates.
    pub slow: u64,
    /// Candidates that are on the fast node now.
    pub moved: u64,
    /// Candidates that there was no time for: the rate limit.
    pub left: u64,
}

#[derive(Debug)]
pub struct Policy {
    hot: Hot,
    /// In the order of files: it matters for the migration, and large folios
    /// are met once.
    queue: BTreeSet<Block>,
    /// Where the last batch ended: the queue is walked round, so that nothing
    /// at its end starves.
    cursor: Option<Block>,
    limits: Limits,
    pub rate: Rate,
    pub backoff: Backoff,
    /// Promoted, and not yet seen to have been worth it; with its pages.
    on_trial: HashMap<Block, u64>,
    /// Demoted by us: to be promoted again soon is as bad.
    demoted: HashSet<Block>,
    /// Hot blocks for which the queue had no room.
    pub queue_full: u64,
}

impl Policy {
    pub fn new(limits: Limits) -> Policy {
        Policy {
            hot: Hot::new(limits.window, limits.gap, limits.seen),
            queue: BTreeSet::new(),
            cursor: None,
            rate: Rate::new(limits.rate),
            backoff: Backoff::default(),
            on_trial: HashMap::new(),
            demoted: HashSet::new(),
            queue_full: 0,
            limits,
        }
    }

    /// Pages `first` to `last` of a file were read.
    pub fn access(&mut self, file: FileId, first: u64, last: u64, now: Time) {
        let last = last.clamp(first, first.saturating_add(ACCESS_PAGES - 1));
        self.access_whole(file, first, last, now);
    }

    /// The same, where no other event tells of a part of that read.
    pub fn access_whole(&mut self, file: FileId, first: u64, last: u64, now: Time) {
        for index in first / BLOCK_PAGES..=last / BLOCK_PAGES {
            let block = Block { file, index };
            if self.hot.access(block, now) {
                self.enqueue(block, now);
            }
        }
    }

    /// The kernel itself says that a page was accessed twice.
    pub fn activated(&mut self, file: FileId, page: u64, now: Time) {
        let index = page / BLOCK_PAGES;
        let block = Block { file, index };
        if self.hot.activated(block, now) {
            self.enqueue(block, now);
        }
    }

    fn enqueue(&mut self, block: Block, now: Time) {
        if self.backoff.active(now) || self.queue.contains(&block) {
            return;
        }
        if self.queue.len() >= self.limits.queue {
            self.queue_full += 1;
            return;
        }
        self.queue.insert(block);
    }

    /// The next batch in file order.
    pub fn next(&mut self, now: Time) -> Next {
        if self.backoff.active(now) {
            self.queue.clear();
        }
        let next = match self.cursor {
            Some(cursor) => self.queue.range(cursor..).next(),
            None => None,
        };
        let Some(&first) = next.or_else(|| self.queue.first()) else {
            return Next::Nothing;
        };
        let wait = self.rate.wait(BATCH_BLOCKS * BLOCK_PAGES, now);
        if !wait.is_zero() {
            return Next::Wait(wait);
        }
        let end = Block {
            file: first.file,
            index: (first.index / BATCH_BLOCKS + 1) * BATCH_BLOCKS,
        };
        let blocks: Vec<u64> = self
            .queue
            .range(first..end)
            .map(|block| block.index)
            .collect();
        for &index in &blocks {
            self.queue.remove(&Block {
                file: first.file,
                index,
            });
        }
        self.cursor = Some(end);
        Next::Batch(Batch {
            file: first.file,
            blocks,
        })
    }

    /// What became of a block that `next` gave. `now` is when it was done.
    pub fn done(&mut self, block: Block, outcome: Outcome, now: Time) {
        if let Some(pages) = self.on_trial.remove(&block) {
            if outcome.slow > outcome.fast {
                self.backoff.in_vain(pages, now);
            } else if outcome.fast > 0 {
                self.backoff.useful(pages);
            }
        }
        if outcome.moved > 0 {
            if self.demoted.remove(&block) {
                self.backoff.in_vain(outcome.moved, now);
            }
            // Bounded like what was seen: without room nothing is concluded.
            if self.on_trial.len() < 2 * self.limits.seen {
                self.on_trial.insert(block, outcome.moved);
            }
        }
        if outcome.left > 0 {
            self.enqueue(block, now);
        } else if outcome.moved > 0 {
            self.hot.rest(block, now.after(CONFIRM));
        } else if outcome.slow > 0 {
            self.hot.rest(block, now.after(RETRY));
        } else {
            self.hot.rest(block, now.after(self.limits.window));
        }
    }

    /// The batch can't be done now; it is tried again when it is hot again.
    pub fn refuse(&mut self, batch: &Batch, now: Time) {
        for &index in &batch.blocks {
            let block = Block {
                file: batch.file,
                index,
            };
            self.hot.rest(block, now.after(RETRY));
        }
    }

    /// Nothing is to be had from waiting batches: there is no room.
    pub fn drop_queue(&mut self) {
        self.queue.clear();
    }

    /// A block left the fast node by our own hand.
    pub fn demoted(&mut self, block: Block, now: Time) {
        if let Some(pages) = self.on_trial.remove(&block) {
            self.backoff.in_vain(pages, now);
        }
        if self.demoted.len() >= self.limits.seen {
            self.demoted.clear();
        }
        self.demoted.insert(block);
    }

    /// When a block was last accessed, if that was within the window.
    pub fn last_access(&self, block: Block, now: Time) -> Option<Time> {
        self.hot.last(block, now)
    }

    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    pub fn remembered(&self) -> usize {
        self.hot.len()
    }

    pub fn overflows(&self) -> u64 {
        self.hot.overflows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId { dev: 1, ino: 7 };

    fn at(ms: u64) -> Time {
        Time(1_000_000 + ms * 1000)
    }

    fn block(index: u64) -> Block {
        Block { file: FILE, index }
    }

    fn batches(policy: &mut Policy, now: Time) -> Vec<Batch> {
        let mut all = Vec::new();
        while let Next::Batch(batch) = policy.next(now) {
            all.push(batch);
        }
        all
    }

    #[test]
    fn one_pass_promotes_nothing_and_the_second_all_in_order() {
        let mut policy = Policy::new(Limits::default());
        // 8 MiB in reads of 1 MiB, whose events overlap as the kernel's do.
        let pass = |policy: &mut Policy, start: u64| {
            for mib in 0..8u64 {
                for piece in (0..256).step_by(15) {
                    policy.access(FILE, mib * 256 + piece, mib * 256 + 255, at(start + mib));
                }
            }
        };
        pass(&mut policy, 0);
        assert_eq!(policy.next(at(100)), Next::Nothing);
        pass(&mut policy, 1000);
        let all = batches(&mut policy, at(1100));
        assert_eq!(all.len(), 4);
        let blocks: Vec<u64> = all.iter().flat_map(|batch| batch.blocks.clone()).collect();
        assert_eq!(blocks, (0..128).collect::<Vec<_>>());
    }

    #[test]
    fn the_walk_goes_round() {
        let mut policy = Policy::new(Limits::default());
        for index in [0, 100] {
            policy.activated(FILE, index * BLOCK_PAGES, at(0));
        }
        assert!(matches!(policy.next(at(1)), Next::Batch(b) if b.blocks == [0]));
        policy.activated(FILE, 1, at(1));
        assert!(matches!(policy.next(at(2)), Next::Batch(b) if b.blocks == [100]));
        assert!(matches!(policy.next(at(2)), Next::Batch(b) if b.blocks == [0]));
    }

    #[test]
    fn the_rate_limit_makes_wait() {
        let mut policy = Policy::new(Limits {
            rate: Some(512),
            ..Limits::default()
        });
        policy.activated(FILE, 0, at(0));
        policy.activated(FILE, 10_000, at(0));
        assert!(matches!(policy.next(at(0)), Next::Batch(_)));
        policy.rate.moved(512, at(10));
        assert!(matches!(policy.next(at(10)), Next::Wait(_)));
        assert!(matches!(policy.next(at(1011)), Next::Batch(_)));
    }

    #[test]
    fn promoted_in_vain_backs_off() {
        let mut policy = Policy::new(Limits::default());
        let moved = Outcome {
            slow: 16,
            moved: 16,
            ..Outcome::default()
        };
        for index in 0..200 {
            policy.activated(FILE, index * BLOCK_PAGES, at(0));
        }
        batches(&mut policy, at(0));
        for index in 0..200 {
            policy.done(block(index), moved, at(1));
        }
        // All are on the slow node again when they are next looked at.
        for index in 0..200 {
            policy.activated(FILE, index * BLOCK_PAGES, at(6000));
        }
        batches(&mut policy, at(6000));
        for index in 0..200 {
            policy.done(block(index), moved, at(6001));
        }
        assert_eq!(policy.backoff.pauses, 1);
        policy.activated(FILE, 0, at(7000));
        assert_eq!(policy.next(at(7000)), Next::Nothing);
    }

    #[test]
    fn what_was_worth_it_does_not() {
        let mut policy = Policy::new(Limits::default());
        for index in 0..1000 {
            let moved = Outcome {
                slow: 16,
                moved: 16,
                ..Outcome::default()
            };
            policy.done(block(index), moved, at(1));
            let there = Outcome {
                fast: 16,
                ..Outcome::default()
            };
            policy.done(block(index), there, at(6000));
        }
        assert_eq!(policy.backoff.pauses, 0);
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut policy = Policy::new(Limits {
            queue: 10,
            ..Limits::default()
        });
        for index in 0..100 {
            policy.activated(FILE, index * BLOCK_PAGES, at(0));
        }
        assert_eq!(policy.queued(), 10);
        assert_eq!(policy.queue_full, 90);
    }
}
