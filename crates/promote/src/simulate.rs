//! A model of two tiers, driven by the daemon's own policy.
//!
//! A trace says what is read, and what the machine costs: seconds for so many
//! bytes read from the fast node, from the slow one, for the mechanism's own
//! work on what is read, and for moving. Time is what these add up to.
//! Nothing else is modelled: no bandwidth shared between readers, no caches.
//!
//! Large traces are simulated with a coarse grain: one page stands for many,
//! and all limits are scaled with it.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::page::{Block, FileId, Time, BATCH_BLOCKS, BLOCK_PAGES, PAGE};
use crate::policy::{Batch, Limits, Next, Outcome, Policy};

/// What the trace's lines say.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// Bytes come into the page cache on the slow node: a first access.
    Load {
        file: u64,
        bytes: u64,
    },
    /// A file is read from begin to end, so many bytes with each call.
    Read {
        file: u64,
        bytes: u64,
        call: u64,
    },
    /// So many calls at random places.
    Random {
        file: u64,
        bytes: u64,
        call: u64,
        calls: u64,
    },
    Pause(Duration),
    /// A row of the result ends here.
    Round,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Nothing is promoted.
    None,
    /// What is read is promoted, whatever came of it before.
    First,
    /// As the daemon does.
    Second,
}

#[derive(Clone, Debug)]
pub struct Trace {
    steps: Vec<Step>,
    /// Nanoseconds for a page.
    fast: f64,
    slow: f64,
    check: f64,
    migrate: f64,
    /// Bytes that the fast node takes.
    room: u64,
    /// Bytes promoted in one second, and in one call.
    rate: Option<u64>,
    per_call: Option<u64>,
    /// The kernel demotes the least recently used to make room.
    demote: bool,
    window: Duration,
    choice: Choice,
    /// Seconds of each round, as somebody has measured them.
    pub expect: Vec<f64>,
    /// Bytes of the largest file.
    pub largest: u64,
}

/// One row of the result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Round {
    pub seconds: f64,
    pub promoted: u64,
    pub demoted: u64,
    /// Bytes on the fast node at the end.
    pub fast: u64,
}

impl Trace {
    /// The form is described in docs/promote.md.
    pub fn parse(text: &str) -> Result<Trace, String> {
        let mut trace = Trace {
            steps: Vec::new(),
            fast: f64::NAN,
            slow: f64::NAN,
            check: 0.0,
            migrate: 0.0,
            room: u64::MAX,
            rate: None,
            per_call: None,
            demote: false,
            window: Limits::default().window,
            choice: Choice::Second,
            expect: Vec::new(),
            largest: 0,
        };
        let mut loops: Vec<(usize, usize)> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            let wrong = |what: &str| format!("line {}: {what}: '{}'", number + 1, line.trim());
            match words[..] {
                [] => {}
                ["fast", cost] => trace.fast = per_page(cost).ok_or_else(|| wrong("no cost"))?,
                ["slow", cost] => trace.slow = per_page(cost).ok_or_else(|| wrong("no cost"))?,
                ["check", cost] => trace.check = per_page(cost).ok_or_else(|| wrong("no cost"))?,
                ["migrate", cost] => {
                    trace.migrate = per_page(cost).ok_or_else(|| wrong("no cost"))?;
                }
                ["room", size] => trace.room = bytes(size).ok_or_else(|| wrong("no size"))?,
                ["rate", size] => {
                    trace.rate = Some(bytes(size).ok_or_else(|| wrong("no size"))?);
                }
                ["per-call", size] => {
                    trace.per_call = Some(bytes(size).ok_or_else(|| wrong("no size"))?);
                }
                ["window", time] => {
                    trace.window = span(time).ok_or_else(|| wrong("no time"))?;
                }
                ["demote", "lru"] => trace.demote = true,
                ["policy", "none"] => trace.choice = Choice::None,
                ["policy", "first"] => trace.choice = Choice::First,
                ["policy", "second"] => trace.choice = Choice::Second,
                ["expect", ref rest @ ..] => {
                    for word in rest {
                        trace
                            .expect
                            .push(word.parse().map_err(|_| wrong("no number"))?);
                    }
                }
                ["load", file, size] => trace.steps.push(Step::Load {
                    file: file.parse().map_err(|_| wrong("no file number"))?,
                    bytes: bytes(size).ok_or_else(|| wrong("no size"))?,
                }),
                ["read", file, size, call] => trace.steps.push(Step::Read {
                    file: file.parse().map_err(|_| wrong("no file number"))?,
                    bytes: bytes(size).ok_or_else(|| wrong("no size"))?,
                    call: bytes(call).ok_or_else(|| wrong("no size"))?,
                }),
                ["random", file, size, call, calls] => trace.steps.push(Step::Random {
                    file: file.parse().map_err(|_| wrong("no file number"))?,
                    bytes: bytes(size).ok_or_else(|| wrong("no size"))?,
                    call: bytes(call).ok_or_else(|| wrong("no size"))?,
                    calls: calls.parse().map_err(|_| wrong("no number"))?,
                }),
                ["pause", time] => {
                    let time = span(time).ok_or_else(|| wrong("no time"))?;
                    trace.steps.push(Step::Pause(time));
                }
                ["round"] => trace.steps.push(Step::Round),
                ["loop", times] => {
                    let times = times.parse().map_err(|_| wrong("no number"))?;
                    loops.push((trace.steps.len(), times));
                }
                ["end"] => {
                    let (from, times) = loops.pop().ok_or_else(|| wrong("no loop"))?;
                    let body = trace.steps[from..].to_vec();
                    if body.len().saturating_mul(times) > 1 << 20 {
                        return Err(wrong("too many steps"));
                    }
                    trace.steps.truncate(from);
                    for _ in 0..times {
                        trace.steps.extend(body.iter().cloned());
                    }
                }
                _ => return Err(wrong("not understood")),
            }
        }
        if !loops.is_empty() {
            return Err("a loop has no end".to_owned());
        }
        if trace.fast.is_nan() || trace.slow.is_nan() {
            return Err(
                "say what reading costs: 'fast 7.58s/128G' and 'slow 9.75s/128G'".to_owned(),
            );
        }
        let size = |step: &Step| match *step {
            Step::Load { bytes, .. } | Step::Read { bytes, .. } | Step::Random { bytes, .. } => {
                bytes
            }
            Step::Pause(_) | Step::Round => 0,
        };
        trace.largest = trace.steps.iter().map(size).max().unwrap_or(0);
        if trace.largest == 0 {
            return Err("nothing is read".to_owned());
        }
        Ok(trace)
    }

    /// The same with all files so many times as large.
    pub fn scaled(&self, factor: f64) -> Trace {
        let mut scaled = self.clone();
        let scale = |bytes: u64| ((bytes as f64 * factor) as u64).max(PAGE);
        for step in &mut scaled.steps {
            match step {
                Step::Load { bytes, .. }
                | Step::Read { bytes, .. }
                | Step::Random { bytes, .. } => *bytes = scale(*bytes),
                Step::Pause(_) | Step::Round => {}
            }
        }
        scaled.largest = scale(self.largest);
        scaled.expect.clear();
        scaled
    }

    pub fn with(&self, choice: Choice) -> Trace {
        Trace {
            choice,
            ..self.clone()
        }
    }

    pub fn run(&self) -> Vec<Round> {
        Machine::new(self).run(&self.steps)
    }
}

/// Blocks that one pass over the largest file has at most.
const MOST_BLOCKS: u64 = 1 << 13;

struct Machine<'a> {
    trace: &'a Trace,
    policy: Policy,
    /// Pages that one page stands for.
    grain: u64,
    /// Nanoseconds.
    now: f64,
    /// The blocks on the fast node, and when they were read last.
    fast: HashMap<Block, u64>,
    by_age: BTreeSet<(u64, Block)>,
    /// Pages; of the fast node, of what was loaded.
    room: u64,
    round: Round,
    random: u64,
}

impl<'a> Machine<'a> {
    fn new(trace: &'a Trace) -> Machine<'a> {
        let blocks = trace.largest.div_ceil(BLOCK_PAGES * PAGE);
        let grain = blocks.div_ceil(MOST_BLOCKS).max(1);
        let scaled = |bytes: u64| bytes / PAGE / grain;
        let limits = Limits {
            window: trace.window,
            rate: trace.rate.map(scaled),
            queue: (Limits::default().queue as u64).div_ceil(grain) as usize,
            ..Limits::default()
        };
        Machine {
            policy: Policy::new(limits),
            grain,
            now: 1e9,
            fast: HashMap::new(),
            by_age: BTreeSet::new(),
            room: scaled(trace.room),
            round: Round::default(),
            random: 1,
            trace,
        }
    }

    fn time(&self) -> Time {
        Time((self.now / 1000.0) as u64)
    }

    fn run(mut self, steps: &[Step]) -> Vec<Round> {
        let mut rounds = Vec::new();
        let mut began = self.now;
        for step in steps {
            match *step {
                Step::Load { file, bytes } => {
                    let pages = self.pages(bytes);
                    for first in (0..pages).step_by(BLOCK_PAGES as usize) {
                        let last = (first + BLOCK_PAGES).min(pages) - 1;
                        self.policy.access(id(file), first, last, self.time());
                    }
                    self.now += 1e9;
                    began = self.now;
                }
                Step::Read { file, bytes, call } => {
                    let (pages, call) = (self.pages(bytes), self.pages(call));
                    for first in (0..pages).step_by(call as usize) {
                        self.call(id(file), first, call.min(pages - first));
                    }
                }
                Step::Random {
                    file,
                    bytes,
                    call,
                    calls,
                } => {
                    let (pages, call) = (self.pages(bytes), self.pages(call));
                    // One call stands for as many as a page does for pages.
                    for _ in 0..calls.div_ceil(self.grain) {
                        self.random = self
                            .random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        let first = (self.random >> 20) % (pages / call).max(1) * call;
                        self.call(id(file), first, call.min(pages - first));
                    }
                }
                Step::Pause(time) => self.now += time.as_nanos() as f64,
                Step::Round => {
                    self.round.seconds = (self.now - began) / 1e9;
                    self.round.fast = self.fast.len() as u64 * BLOCK_PAGES * PAGE * self.grain;
                    rounds.push(std::mem::take(&mut self.round));
                    began = self.now;
                }
            }
        }
        rounds
    }

    fn pages(&self, bytes: u64) -> u64 {
        bytes.div_ceil(PAGE * self.grain)
    }

    /// One system call: it reads, then promotion has its turn.
    fn call(&mut self, file: FileId, first: u64, pages: u64) {
        let grain = self.grain as f64;
        let per_call = self.trace.per_call.map(|bytes| bytes / PAGE / self.grain);
        let mut left = per_call.unwrap_or(u64::MAX);
        let end = first + pages;
        let mut at = first;
        while at < end {
            // As the kernel's events tell of a read, piece by piece.
            let piece = (at / BLOCK_PAGES + 1) * BLOCK_PAGES;
            let next = piece.min(end);
            let index = at / BLOCK_PAGES;
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
            self.now += (next - at) as f64 * grain * (cost + self.trace.check);
            let time = self.time();
            match self.trace.choice {
                Choice::None => {}
                Choice::First if !self.fast.contains_key(&block) => {
                    self.policy.activated(file, at, time);
                }
                Choice::First => {}
                Choice::Second => self.policy.access(file, at, next - 1, time),
            }
            at = next;
            if index % BATCH_BLOCKS == BATCH_BLOCKS - 1 {
                self.promote(&mut left);
            }
        }
        self.promote(&mut left);
        if per_call.is_some() {
            // The list of a call is not carried over to the next.
            self.policy.drop_queue();
        }
    }

    /// Moves what the policy says, as far as this call may.
    fn promote(&mut self, left: &mut u64) {
        while *left > 0 {
            let Next::Batch(batch) = self.policy.next(self.time()) else {
                return;
            };
            self.promote_batch(&batch, left);
        }
    }

    fn promote_batch(&mut self, batch: &Batch, left: &mut u64) {
        for &index in &batch.blocks {
            let block = Block {
                file: batch.file,
                index,
            };
            let mut outcome = Outcome::default();
            if self.fast.contains_key(&block) {
                outcome.fast = BLOCK_PAGES;
            } else {
                outcome.slow = BLOCK_PAGES;
                if *left < BLOCK_PAGES {
                    outcome.left = BLOCK_PAGES;
                } else if self.make_room() {
                    *left -= BLOCK_PAGES;
                    outcome.moved = BLOCK_PAGES;
                    self.moved();
                    self.round.promoted += BLOCK_PAGES * PAGE * self.grain;
                    let age = self.time().0;
                    self.by_age.insert((age, block));
                    self.fast.insert(block, age);
                    self.policy.rate.moved(BLOCK_PAGES, self.time());
                }
            }
            let time = self.time();
            if self.trace.choice == Choice::Second {
                self.policy.done(block, outcome, time);
            } else if outcome.left > 0 {
                self.policy.activated(block.file, index * BLOCK_PAGES, time);
            }
        }
    }

    fn moved(&mut self) {
        self.now += (BLOCK_PAGES * self.grain) as f64 * self.trace.migrate;
    }

    /// Room for a block on the fast node, if need be by demotion.
    fn make_room(&mut self) -> bool {
        if (self.fast.len() as u64 + 1) * BLOCK_PAGES <= self.room {
            return true;
        }
        if !self.trace.demote {
            return false;
        }
        let Some((_, oldest)) = self.by_age.pop_first() else {
            return false;
        };
        self.fast.remove(&oldest);
        self.moved();
        self.round.demoted += BLOCK_PAGES * PAGE * self.grain;
        true
    }
}

fn id(file: u64) -> FileId {
    FileId { dev: 0, ino: file }
}

/// "128G" in bytes.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        _ => return None,
    };
    let bytes = digits.parse::<f64>().ok()? * unit as f64;
    (bytes >= 1.0 && bytes < (1u64 << 50) as f64).then_some(bytes as u64)
}

/// "7.58s" or "200ms".
fn span(text: &str) -> Option<Duration> {
    let (digits, unit) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1e-3),
        None => (text.strip_suffix('s')?, 1.0),
    };
    let seconds = digits.parse::<f64>().ok()? * unit;
    (0.0..1e9)
        .contains(&seconds)
        .then(|| Duration::from_secs_f64(seconds))
}

/// "7.58s/128G" in nanoseconds for a page.
fn per_page(text: &str) -> Option<f64> {
    let (time, size) = text.split_once('/')?;
    Some(span(time)?.as_nanos() as f64 * PAGE as f64 / bytes(size)? as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFERENCE: &str = include_str!("../traces/unmapped-page-cache.trace");

    /// The figures that were measured on a machine with CXL memory.
    #[test]
    fn the_measured_rounds_come_out() {
        let trace = Trace::parse(REFERENCE).unwrap();
        let rounds = trace.run();
        assert_eq!(trace.expect.len(), 10);
        for (round, &measured) in rounds.iter().zip(&trace.expect) {
            let off = round.seconds / measured - 1.0;
            assert!(off.abs() < 0.05, "{} for {measured}", round.seconds);
        }
        let after = rounds[9].seconds;
        assert!((after / 7.8941 - 1.0).abs() < 0.05, "{after}");
    }

    #[test]
    fn without_promotion_it_stays_slow() {
        let trace = Trace::parse(REFERENCE).unwrap().with(Choice::None);
        for round in trace.run() {
            assert_eq!(round.promoted, 0);
            // 9.75 and the check's 0.39.
            assert!((round.seconds - 10.142).abs() < 0.01, "{}", round.seconds);
        }
    }

    #[test]
    fn the_first_access_promotes_only_where_asked() {
        let text = "fast 1s/1G\nslow 2s/1G\nround\nread 1 1G 1M\nround\nread 1 1G 1M\nround\n\
                    pause 1s\nread 1 1G 1M\nround\n";
        let trace = Trace::parse(text).unwrap();
        let promoted = |choice| -> Vec<u64> {
            let rounds = trace.with(choice).run();
            rounds.iter().map(|round| round.promoted >> 20).collect()
        };
        assert_eq!(promoted(Choice::First), [0, 1024, 0, 0]);
        assert_eq!(promoted(Choice::Second), [0, 0, 1024, 0]);
        assert_eq!(promoted(Choice::None), [0, 0, 0, 0]);
    }

    /// A walk over twice the fast node, with the kernel demoting the least
    /// recently used: whoever promotes all of it moves all of it each time.
    #[test]
    fn a_hot_set_too_large_backs_off() {
        let text = "fast 1s/1G\nslow 1.3s/1G\nmigrate 0.2s/1G\nroom 4G\ndemote lru\n\
                    load 1 8G\nloop 20\nread 1 8G 1M\nround\nend\n";
        let trace = Trace::parse(text).unwrap();
        let sums = |choice| -> (f64, u64) {
            let rounds = trace.with(choice).run();
            let seconds = rounds.iter().map(|round| round.seconds).sum();
            let moved = rounds.iter().map(|round| round.promoted + round.demoted);
            (seconds, moved.sum::<u64>() >> 30)
        };
        let (none, _) = sums(Choice::None);
        let (first, first_moved) = sums(Choice::First);
        let (second, second_moved) = sums(Choice::Second);
        assert!(first > none * 1.2, "{first} against {none}: it thrashes");
        assert!(first_moved > 250, "{first_moved} GiB");
        assert!(second < none * 1.03, "{second} against {none}");
        assert!(second_moved < 40, "{second_moved} GiB");
    }

    #[test]
    fn wrong_traces_are_refused() {
        for (text, what) in [
            ("", "what reading costs"),
            ("fast 1s/1G\nslow 1s/1G\n", "nothing is read"),
            ("fast 1s\n", "no cost"),
            ("walk 1\n", "line 1: not understood"),
            ("loop 3\n", "no end"),
            ("end\n", "no loop"),
            ("loop 99999999\nread 1 1G 1M\nend\n", "too many steps"),
            ("read 1 0 1M\n", "no size"),
        ] {
            let err = Trace::parse(text).unwrap_err();
            assert!(err.contains(what), "{text}: {err}");
        }
    }
}
