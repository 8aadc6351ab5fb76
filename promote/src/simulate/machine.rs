//! The machine of a trace: its clock, its two nodes, and who reads.

use std::collections::{BTreeSet, HashMap};

use super::trace::{Choice, Demote, Step, Trace};
use super::watch::Watch;
use crate::page::{Block, FileId, Time, BATCH_BLOCKS, BLOCK_PAGES, PAGE};
use crate::policy::{Limits, Next, Outcome, Policy};
use crate::queue::Batch;

/// Blocks that one pass over the largest file has at most. In larger ones a block stands for more
/// bytes, and all limits are scaled with it; what is read and moved is counted in bytes.
const MOST_BLOCKS: u64 = 1 << 13;
/// The same where the daemon is modelled: what it samples depends on the grain.
const MOST_BLOCKS_SAMPLED: u64 = 1 << 17;

/// One row of the result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Round {
    pub seconds: f64,
    pub promoted: u64,
    pub demoted: u64,
    /// Bytes on the fast node at the end.
    pub fast: u64,
}

pub struct Machine<'a> {
    pub trace: &'a Trace,
    pub policy: Policy,
    /// So many times as large as in the kernel are pages here, and blocks.
    pub grain: u64,
    /// Nanoseconds.
    pub now: f64,
    /// The blocks on the fast node, and when they were read last.
    fast: HashMap<Block, u64>,
    by_age: BTreeSet<(u64, Block)>,
    sizes: HashMap<u64, u64>,
    /// Bytes on the fast node.
    used: u64,
    round: Round,
    random: u64,
    watch: Option<Watch>,
}

impl<'a> Machine<'a> {
    pub fn new(trace: &'a Trace) -> Machine<'a> {
        let sampled = trace.daemon.is_some() && trace.choice == Choice::Second;
        let most = if sampled {
            MOST_BLOCKS_SAMPLED
        } else {
            MOST_BLOCKS
        };
        let blocks = trace.largest.div_ceil(BLOCK_PAGES * PAGE);
        let grain = blocks.div_ceil(most).max(1);
        let limits = Limits {
            window: trace.window,
            rate: trace.rate.map(|bytes| bytes / PAGE / grain),
            queue: (Limits::default().queue as u64).div_ceil(grain) as usize,
            ..Limits::default()
        };
        let daemon = trace.daemon.clone().filter(|_| sampled);
        Machine {
            policy: Policy::new(limits),
            grain,
            now: 1e9,
            fast: HashMap::new(),
            by_age: BTreeSet::new(),
            sizes: HashMap::new(),
            used: 0,
            round: Round::default(),
            random: 1,
            watch: daemon.map(|daemon| Watch::new(daemon, Time(1_000_000))),
            trace,
        }
    }

    fn time(&self) -> Time {
        Time((self.now / 1000.0) as u64)
    }

    /// Bytes of a whole block.
    fn unit(&self) -> u64 {
        BLOCK_PAGES * PAGE * self.grain
    }

    /// Bytes of a block: the last of a file has less.
    fn bytes_of(&self, block: Block) -> u64 {
        let size = self.sizes.get(&block.file.ino).copied().unwrap_or(0);
        let begin = block.index * self.unit();
        size.saturating_sub(begin).min(self.unit())
    }

    pub fn run(mut self, steps: &[Step]) -> Vec<Round> {
        let mut rounds = Vec::new();
        let mut began = self.now;
        for step in steps {
            if let Step::Load { file, bytes }
            | Step::Read { file, bytes, .. }
            | Step::Random { file, bytes, .. } = *step
            {
                let size = self.sizes.entry(file).or_default();
                *size = bytes.max(*size);
            }
            match *step {
                Step::Load { file, bytes } => {
                    let watched = self.watch.is_some();
                    for begin in (0..bytes).step_by(self.unit() as usize) {
                        if !watched {
                            let page = begin / PAGE / self.grain;
                            self.policy.access(id(file), page, page, self.time());
                        }
                    }
                    self.now += 1e9;
                    began = self.now;
                }
                Step::Read { file, bytes, call } => {
                    for begin in (0..bytes).step_by(call as usize) {
                        self.call(id(file), begin, call.min(bytes - begin));
                    }
                }
                Step::Random {
                    file,
                    bytes,
                    call,
                    calls,
                } => {
                    for _ in 0..calls {
                        let begin = self.draw() % (bytes / call).max(1) * call;
                        self.call(id(file), begin, call.min(bytes - begin));
                    }
                }
                Step::Pause(time) => {
                    self.now += time.as_nanos() as f64;
                    self.catch_up();
                }
                Step::Round => {
                    self.catch_up();
                    self.round.seconds = (self.now - began) / 1e9;
                    self.round.fast = self.used;
                    rounds.push(std::mem::take(&mut self.round));
                    began = self.now;
                }
            }
        }
        rounds
    }

    fn draw(&mut self) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.random >> 20
    }

    /// One system call: it reads, then promotion has its turn.
    fn call(&mut self, file: FileId, begin: u64, bytes: u64) {
        let per_call = self.trace.per_call;
        let mut left = per_call.unwrap_or(u64::MAX);
        let end = begin + bytes;
        let mut at = begin;
        while at < end {
            // As the kernel's events tell of a read, piece by piece.
            let index = at / self.unit();
            let next = ((index + 1) * self.unit()).min(end);
            let block = Block { file, index };
            let cost = match self.fast.get(&block).copied() {
                Some(age) => {
                    self.by_age.remove(&(age, block));
                    let age = self.time().0;
                    self.by_age.insert((age, block));
                    self.fast.insert(block, age);
                    self.trace.fast
                }
                None => self.trace.slow,
            };
            let pages = (next - at) as f64 / PAGE as f64;
            self.now += pages * (cost + self.trace.check);
            self.tell(block, at, end, pages);
            at = next;
            if self.watch.is_none() && index % BATCH_BLOCKS == BATCH_BLOCKS - 1 {
                self.promote(&mut left);
            }
        }
        if self.watch.is_some() {
            self.catch_up();
            return;
        }
        self.promote(&mut left);
        if per_call.is_some() {
            // The list of a call is not carried over to the next.
            self.policy.drop_queue();
        }
    }

    /// A piece of a call, from byte `at` on, was read; the call ends at `end`.
    fn tell(&mut self, block: Block, at: u64, end: u64, pages: f64) {
        let time = self.time();
        let page = at / PAGE / self.grain;
        if let Some(mut watch) = self.watch.take() {
            let last = end.min(at + (512 * PAGE)).max(at + 1) - 1;
            let last = last / PAGE / self.grain;
            let draw = (self.draw() % 1000) as f64 / 1000.0;
            let (cost, recorded) = watch.piece(self.now, pages, draw);
            self.now += cost;
            if recorded {
                self.policy.access(block.file, page, last, time);
            }
            self.watch = Some(watch);
            return;
        }
        match self.trace.choice {
            Choice::None => {}
            Choice::First if !self.fast.contains_key(&block) => {
                self.policy.activated(block.file, page, time);
            }
            Choice::First => {}
            Choice::Second => self.policy.access(block.file, page, page, time),
        }
    }

    /// What the daemon does until now, beside the reader.
    fn catch_up(&mut self) {
        let Some(mut watch) = self.watch.take() else {
            return;
        };
        while watch.at < self.now {
            let time = Time((watch.at / 1000.0) as u64);
            if let Some(wait) = watch.debt(time) {
                watch.at += wait.as_nanos() as f64;
                continue;
            }
            match self.policy.next(time, self.room_left()) {
                Next::Nothing => watch.at = self.now,
                Next::Limited(wait) | Next::Settle(wait) => watch.at += wait.as_nanos() as f64,
                Next::Batch(batch) => {
                    let mut left = u64::MAX;
                    let moved = self.promote_batch(&batch, &mut left, time);
                    let pages = (batch.blocks.len() as u64 * BLOCK_PAGES * self.grain) as f64;
                    watch.worked(pages, moved as f64 / PAGE as f64 * self.trace.migrate);
                }
            }
        }
        self.watch = Some(watch);
    }

    /// Moves what the policy says, as far as this call may.
    fn promote(&mut self, left: &mut u64) {
        while *left > 0 {
            let room = self.room_left();
            let Next::Batch(batch) = self.policy.next(self.time(), room) else {
                return;
            };
            let moved = self.promote_batch(&batch, left, self.time());
            self.now += moved as f64 / PAGE as f64 * self.trace.migrate;
        }
    }

    /// Gives the bytes that were moved, up and down.
    fn promote_batch(&mut self, batch: &Batch, left: &mut u64, time: Time) -> u64 {
        let mut bytes_moved = 0;
        for &index in &batch.blocks {
            let block = Block {
                file: batch.file,
                index,
            };
            let bytes = self.bytes_of(block);
            let mut outcome = Outcome::default();
            if self.fast.contains_key(&block) {
                outcome.fast = BLOCK_PAGES;
            } else {
                outcome.slow = BLOCK_PAGES;
                if *left < bytes {
                    outcome.left = BLOCK_PAGES;
                    *left = 0;
                } else if let Some(demoted) = self.make_room(block, bytes, time) {
                    *left -= bytes;
                    bytes_moved += demoted + bytes;
                    outcome.moved = BLOCK_PAGES;
                    self.used += bytes;
                    self.round.promoted += bytes;
                    self.by_age.insert((time.0, block));
                    self.fast.insert(block, time.0);
                    self.policy.rate.moved(BLOCK_PAGES, time);
                }
            }
            if self.trace.choice == Choice::Second {
                self.policy.done(block, outcome, time);
            } else if outcome.left > 0 {
                let page = index * BLOCK_PAGES;
                self.policy.activated(block.file, page, time);
            }
        }
        bytes_moved
    }

    /// Pages that the fast node can take, as the policy counts them; any number where the kernel
    /// makes room.
    fn room_left(&self) -> u64 {
        let more = match self.trace.demote {
            Some(Demote::Lru) => return u64::MAX,
            Some(Demote::Cold) => 16 << 20,
            None => 0,
        };
        (self.trace.room.saturating_sub(self.used)).saturating_add(more) / PAGE / self.grain
    }

    /// Room for a block on the fast node, if need be by demotion: then how many bytes that moved.
    fn make_room(&mut self, block: Block, bytes: u64, time: Time) -> Option<u64> {
        let mut demoted = 0;
        while self.used + bytes > self.trace.room {
            let age = match self.trace.demote? {
                Demote::Lru => *self.by_age.first()?,
                Demote::Cold => {
                    let heat = self.policy.heat(block, time);
                    // The oldest of them; blocks that were read lately are not looked at.
                    let oldest = self.by_age.iter().take(64);
                    let mut cold = oldest.filter(|(_, old)| self.policy.cold(*old, heat, time));
                    *cold.next()?
                }
            };
            self.by_age.remove(&age);
            self.fast.remove(&age.1);
            let bytes = self.bytes_of(age.1);
            self.used -= bytes;
            self.round.demoted += bytes;
            demoted += bytes;
            if self.trace.demote == Some(Demote::Cold) {
                self.policy.demoted(age.1, time);
            }
        }
        Some(demoted)
    }
}

fn id(file: u64) -> FileId {
    FileId { dev: 0, ino: file }
}
