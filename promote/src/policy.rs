//! What is promoted, when, and when not. No system call in here: the daemon
//! drives it with what the kernel says, the simulation with a trace.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::backoff::Backoff;
use crate::hot::{Hot, Region};
use crate::page::{Block, FileId, Time, BATCH_BLOCKS, BLOCK_PAGES};
use crate::queue::{Batch, Queue};
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
    /// Where not all that is hot finds room: so long is waited until it is known what is hottest.
    pub settle: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            window: Duration::from_secs(60),
            gap: Duration::from_millis(200),
            rate: None,
            seen: 1 << 18,
            queue: 1 << 16,
            settle: Duration::from_secs(3),
        }
    }
}

/// Blocks of a region that are known, at a guess: what is read at random has few.
const BLOCKS_KNOWN: usize = 16;
/// A promoted block is looked at again when it is hot after so long: was it
/// read where it is now, or did it leave before?
const CONFIRM: Duration = Duration::from_secs(5);
/// What could not be moved is not tried again for so long.
const RETRY: Duration = Duration::from_secs(3);
/// Pages of one access at most. An event gives the whole of a `read`; a large
/// one is done in pieces and its later pieces have events of their own, which
/// must not look like second accesses of its end.
const ACCESS_PAGES: u64 = 512;

#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Nothing,
    /// The rate limit: not before.
    Limited(Duration),
    /// It is not yet known what is hottest.
    Settle(Duration),
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
    queue: Queue,
    /// Until then more is taken to be hot than there is room for, though less may wait just now: who
    /// comes first is not who is hottest.
    short_until: Time,
    /// Since when it is waited who else comes, or somebody waits who came then; what was chosen for the
    /// room.
    settling: Option<Time>,
    chosen: Queue,
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
            hot: Hot::new(
                limits.window,
                limits.gap,
                limits.seen.div_ceil(BLOCKS_KNOWN),
            ),
            queue: Queue::default(),
            short_until: Time(0),
            settling: None,
            chosen: Queue::default(),
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
        let (first, last) = (first / BLOCK_PAGES, last / BLOCK_PAGES);
        for index in first / BATCH_BLOCKS..=last / BATCH_BLOCKS {
            let start = index * BATCH_BLOCKS;
            let from = first.max(start) - start;
            let to = last.min(start + BATCH_BLOCKS - 1) - start;
            // The bits from `from` to `to`.
            let blocks = (u32::MAX >> (31 - (to - from))) << from;
            let region = Region { file, index };
            let hot = self.hot.access(region, blocks, now);
            if hot != 0 {
                self.enqueue(region, hot, now);
            }
        }
    }

    /// The kernel itself says that a page was accessed twice.
    pub fn activated(&mut self, file: FileId, page: u64, now: Time) {
        let index = page / BLOCK_PAGES;
        let block = Block { file, index };
        if self.hot.activated(block, now) {
            let (region, at) = Region::of(block);
            self.enqueue(region, 1 << at, now);
        }
    }

    fn enqueue(&mut self, region: Region, blocks: u32, now: Time) {
        if self.backoff.active(now) {
            return;
        }
        let blocks = blocks & !self.chosen.blocks(region);
        let room = self.limits.queue.saturating_sub(self.queue.len());
        self.queue_full += self.queue.insert(region, blocks, room);
    }

    /// The next batch, where the fast node has room for so many pages: in the order of files where
    /// there is room for all; else the hottest.
    pub fn next(&mut self, now: Time, room: u64) -> Next {
        if self.backoff.active(now) {
            self.drop_queue();
        }
        let waiting = (self.queue.len() + self.chosen.len()) as u64;
        if waiting == 0 {
            return Next::Nothing;
        }
        let wait = self.rate.wait(BATCH_BLOCKS * BLOCK_PAGES, now);
        if !wait.is_zero() {
            return Next::Limited(wait);
        }
        let room = room / BLOCK_PAGES;
        let enough = waiting <= room && now >= self.short_until;
        if enough || room == 0 {
            self.settling = None;
            self.chosen.pour_into(&mut self.queue);
            return self.queue.pop().map_or(Next::Nothing, Next::Batch);
        }
        if self.chosen.is_empty() {
            let since = *self.settling.get_or_insert(now);
            let settled = since.after(self.limits.settle);
            if now < settled {
                return Next::Settle(settled.since(now));
            }
            self.choose(now, room as usize);
        }
        self.chosen.pop().map_or(Next::Nothing, Next::Batch)
    }

    /// Takes the hottest out of the queue, as many blocks as there is room for. Of the rest waits on
    /// what is still accessed.
    fn choose(&mut self, now: Time, room: usize) {
        let mut ranked: Vec<(u16, Block)> = self
            .queue
            .iter()
            .map(|block| (self.hot.heat(block, now), block))
            .collect();
        // The hottest first; of equal ones those that are together.
        ranked.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        if ranked.len() > room {
            self.short_until = now.after(self.limits.window);
        }
        self.queue.clear();
        for (nth, &(heat, block)) in ranked.iter().enumerate() {
            let (region, at) = Region::of(block);
            if nth < room {
                self.chosen.insert(region, 1 << at, usize::MAX);
            } else if heat > 0 {
                self.queue.insert(region, 1 << at, usize::MAX);
            }
        }
        if self.queue.is_empty() {
            self.settling = None;
        }
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
            let (region, at) = Region::of(block);
            self.enqueue(region, 1 << at, now);
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

    /// There is no room: nothing is to be had from waiting batches.
    pub fn no_room(&mut self, now: Time) {
        self.drop_queue();
        self.short_until = now.after(self.limits.window);
    }

    pub fn drop_queue(&mut self) {
        self.queue.clear();
        self.chosen.clear();
        self.settling = None;
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

    /// Is a block so cold that its place may be given away? `heat` is that of what is to come: it
    /// has to be much hotter, so that the two do not change places again and again.
    pub fn cold(&self, block: Block, heat: u16, now: Time) -> bool {
        const HOTTER: u16 = 4;
        !self.hot.accessed(block, now)
            || self.hot.heat(block, now).saturating_mul(HOTTER) < heat
                && !self.on_trial.contains_key(&block)
    }

    /// How often a block was accessed of late.
    pub fn heat(&self, block: Block, now: Time) -> u16 {
        self.hot.heat(block, now)
    }

    pub fn queued(&self) -> usize {
        self.queue.len() + self.chosen.len()
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

    const ROOM: u64 = 1 << 40;
    const FILE: FileId = FileId { dev: 1, ino: 7 };

    fn at(ms: u64) -> Time {
        Time(1_000_000 + ms * 1000)
    }

    fn block(index: u64) -> Block {
        Block { file: FILE, index }
    }

    fn batches(policy: &mut Policy, now: Time) -> Vec<Batch> {
        let mut all = Vec::new();
        while let Next::Batch(batch) = policy.next(now, ROOM) {
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
        assert_eq!(policy.next(at(100), ROOM), Next::Nothing);
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
        assert!(matches!(policy.next(at(1), ROOM), Next::Batch(b) if b.blocks == [0]));
        policy.activated(FILE, 1, at(1));
        assert!(matches!(policy.next(at(2), ROOM), Next::Batch(b) if b.blocks == [100]));
        assert!(matches!(policy.next(at(2), ROOM), Next::Batch(b) if b.blocks == [0]));
    }

    #[test]
    fn the_rate_limit_makes_wait() {
        let mut policy = Policy::new(Limits {
            rate: Some(512),
            ..Limits::default()
        });
        policy.activated(FILE, 0, at(0));
        policy.activated(FILE, 10_000, at(0));
        assert!(matches!(policy.next(at(0), ROOM), Next::Batch(_)));
        policy.rate.moved(512, at(10));
        assert!(matches!(policy.next(at(10), ROOM), Next::Limited(_)));
        assert!(matches!(policy.next(at(1011), ROOM), Next::Batch(_)));
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
        assert_eq!(policy.next(at(7000), ROOM), Next::Nothing);
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

    /// A file of 6 MiB that is read again and again beside a scan of 72 MiB: 12 reads of the one
    /// for each of the other. The scan is hot, too.
    fn hot_file_and_scan(policy: &mut Policy) {
        const SCAN: FileId = FileId { dev: 1, ino: 8 };
        for pass in 0..4u64 {
            for mib in 0..72 {
                let time = at(pass * 1000 + mib * 12);
                policy.access(SCAN, mib * 256, mib * 256 + 255, time);
                let hot = mib % 6;
                policy.access(FILE, hot * 256, hot * 256 + 255, time);
            }
        }
    }

    #[test]
    fn with_room_for_little_the_hottest_gets_it() {
        let mut policy = Policy::new(Limits::default());
        hot_file_and_scan(&mut policy);
        // 10 MiB.
        let mut room = 2574;
        assert!(matches!(policy.next(at(4000), room), Next::Settle(_)));
        let (mut of_file, mut of_scan) = (0, 0);
        while room >= BLOCK_PAGES {
            let Next::Batch(batch) = policy.next(at(7100), room) else {
                break;
            };
            let pages = batch.blocks.len() as u64 * BLOCK_PAGES;
            room -= pages;
            if batch.file == FILE {
                of_file += pages;
            } else {
                of_scan += pages;
            }
        }
        assert_eq!(of_file, 1536, "all of the hot file");
        assert!(of_scan > 0, "and what room is left");
        assert!(of_file + of_scan <= 2574);
    }

    #[test]
    fn with_room_for_all_nothing_waits() {
        let mut policy = Policy::new(Limits::default());
        hot_file_and_scan(&mut policy);
        let all: usize = batches(&mut policy, at(4000))
            .iter()
            .map(|b| b.blocks.len())
            .sum();
        assert_eq!(all, 78 * 16);
    }

    #[test]
    fn what_gives_its_place_away_is_much_colder() {
        let mut policy = Policy::new(Limits::default());
        hot_file_and_scan(&mut policy);
        let scan = Block {
            file: FileId { dev: 1, ino: 8 },
            index: 3,
        };
        let now = at(4000);
        let (hot, cold) = (policy.heat(block(3), now), policy.heat(scan, now));
        assert!(hot >= 4 * cold, "{hot} {cold}");
        assert!(policy.cold(scan, hot, now));
        assert!(!policy.cold(block(3), cold, now));
        assert!(!policy.cold(scan, cold, now), "no change among equals");
        // Promoted just now, and not yet seen to have been worth it.
        let moved = Outcome {
            slow: 16,
            moved: 16,
            ..Outcome::default()
        };
        policy.done(scan, moved, now);
        assert!(!policy.cold(scan, hot, now));
    }

    /// There was no room for a while; when there is some, the first to be seen is the colder one.
    #[test]
    fn who_comes_first_is_not_taken_for_the_hottest() {
        const SCAN: FileId = FileId { dev: 1, ino: 3 };
        let mut policy = Policy::new(Limits::default());
        let read = |policy: &mut Policy, file, time| {
            for page in (0..512).step_by(16) {
                policy.access(file, page, page + 15, time);
            }
        };
        for second in 0..5 {
            read(&mut policy, SCAN, at(second * 1000));
            for tenth in 0..10 {
                read(&mut policy, FILE, at(second * 1000 + tenth * 100));
            }
        }
        policy.no_room(at(5000));
        read(&mut policy, SCAN, at(6000));
        let mut room = 40 * BLOCK_PAGES;
        assert!(matches!(policy.next(at(6001), room), Next::Settle(_)));
        read(&mut policy, FILE, at(6100));
        assert!(matches!(policy.next(at(6200), room), Next::Settle(_)));
        // 40 of 64 blocks: those of the hot file, and eight more.
        let mut got = [0, 0];
        while room > 0 {
            let Next::Batch(batch) = policy.next(at(9100), room) else {
                break;
            };
            room -= batch.blocks.len() as u64 * BLOCK_PAGES;
            got[usize::from(batch.file == SCAN)] += batch.blocks.len();
        }
        assert_eq!(got, [32, 8]);
    }

    #[test]
    fn an_access_of_any_place_and_length_is_noted() {
        for (first, last) in [
            (0, 0),
            (15, 16),
            (511, 512),
            (500, 1011),
            (16, 31),
            (0, 511),
        ] {
            let mut policy = Policy::new(Limits::default());
            policy.access(FILE, first, last, at(0));
            policy.access(FILE, first, last, at(1000));
            let all = batches(&mut policy, at(1001));
            let blocks: Vec<u64> = all.iter().flat_map(|batch| batch.blocks.clone()).collect();
            let wanted: Vec<u64> = (first / 16..=last / 16).collect();
            assert_eq!(blocks, wanted, "{first} to {last}");
        }
    }
}
