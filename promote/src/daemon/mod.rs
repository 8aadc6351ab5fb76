//! The daemon: watches, finds, moves, and rests.
//!
//! One thread. Within each interval the tracepoint is on for as long as the
//! budget allows; what is hot then is looked at and moved within the rate
//! limit; the thread sleeps otherwise, until a ring fills, a signal comes or
//! the next thing is due.

mod demote;
mod found;
#[cfg(test)]
mod made;
mod phase;
mod portion;
mod promote;
mod scan;
#[cfg(test)]
mod tests;
mod walk;
mod watch;

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use crate::credit::Credit;
use crate::ledger::{For, Ledger};
use crate::machine::Machine;
use crate::pace::Pace;
use crate::page::{FileId, Time, BATCH_BLOCKS, BLOCK_PAGES};
use crate::policy::{Limits, Policy};
use crate::readers::Readers;
use crate::stats::Stats;
use crate::tiers::{Fast, Room, Route};
use crate::trace::budget::{Budget, Costs};
use crate::trace::points::Kind;
use phase::Phase;
use walk::Walk;

#[derive(Clone, Debug)]
pub struct Config {
    pub routes: Vec<Route>,
    /// Where what is read on which processor belongs.
    pub fast: Fast,
    pub limits: Limits,
    pub interval: Duration,
    /// Share of a processor's time that watching may cost, and looking in vain.
    pub budget: f64,
    /// The same of looking and moving, while pages are moved.
    pub work: f64,
    /// Make room on the fast node by moving cold pages away.
    pub demote: bool,
    /// Look only, move nothing.
    pub observe: bool,
    /// Watch once, for the whole of an interval, promote what is hot then, and end.
    pub once: bool,
}

/// Why the loop has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Signal,
    /// The caller's report said so.
    Asked,
}

/// Pages of a window: 2 MiB.
const WINDOW: u64 = BATCH_BLOCKS * BLOCK_PAGES;
/// Frames whose file is remembered.
const MOST_FRAMES: usize = 1 << 18;
/// How long is watched where that is done only once, at least; and how much of the queue is done at
/// a time then.
const ONCE: Duration = Duration::from_millis(500);
/// Before that: as long as it takes to see which processors work.
const FIRST_LOOK: Duration = Duration::from_millis(200);
const SLICE: Duration = Duration::from_millis(50);
/// Looking may save up so much time's worth for when there is much to look at.
pub(crate) const LOOKING_SAVES: Duration = Duration::from_secs(60);
/// The same of looking and moving together.
pub(crate) const WORK_SAVES: Duration = Duration::from_millis(200);

/// What is done again and again, each within its share.
struct Paces {
    /// To switch the events on and off.
    switch: Pace,
    /// The same of those of tmpfs.
    tmpfs: Pace,
    /// To wake up while they are on.
    wake: Pace,
    /// How many file pages the slow nodes have.
    state: Pace,
}

impl Paces {
    /// Half of the budget is for what is recorded; the other half is for these.
    fn new(budget: f64, window: Duration) -> Paces {
        let share = budget / 8.0;
        // So that two accesses within the window can be seen.
        let longest = window / 4;
        Paces {
            switch: Pace::new(share, longest),
            tmpfs: Pace::new(share, longest),
            wake: Pace::new(share, Duration::from_secs(2).min(longest)),
            state: Pace::new(share, longest),
        }
    }
}

pub struct Daemon<M> {
    config: Config,
    machine: M,
    paces: Paces,
    ledger: Ledger,
    /// As measured at the start, and what a record costs us, in nanoseconds.
    costs: Costs,
    handling: f64,
    /// What was spent on records since that was last learned, and on how many.
    handled: (u64, u64),
    budget: Budget,
    phase: Phase,
    policy: Policy,
    readers: Readers,
    fast: Fast,
    /// Which page of which file a frame on a slow node is.
    owners: HashMap<u64, (FileId, u64)>,
    stats: Stats,
    started: Time,
    /// Room on each fast node.
    room: HashMap<u32, Room>,
    /// What looking may cost, and what looking and moving may.
    looking: Credit,
    work: Credit,
    /// What comes next has waited for the rate limit.
    limited: bool,
    /// Activations, at the end of the last interval.
    hints: u64,
    scan: Walk,
    cold: Walk,
    random: u64,
}

impl<M: Machine> Daemon<M> {
    pub fn new(config: Config, mut machine: M) -> Daemon<M> {
        let costs = machine.measure();
        let now = machine.now();
        let mut paces = Paces::new(config.budget, config.limits.window);
        paces.tmpfs.done(Time(0), machine.tmpfs_switch());
        Daemon {
            budget: Budget::new(config.budget / 2.0),
            policy: Policy::new(config.limits.clone()),
            readers: Readers::default(),
            fast: config.fast.clone(),
            owners: HashMap::new(),
            stats: Stats::default(),
            started: now,
            room: HashMap::new(),
            looking: Credit::new(config.budget / 2.0, LOOKING_SAVES, now, 0),
            work: Credit::new(config.work, WORK_SAVES, now, 0),
            paces,
            ledger: Ledger::new(machine.cpu_nanos()),
            handling: 500.0,
            handled: (0, 0),
            phase: Phase::new(now, config.interval),
            limited: false,
            hints: 0,
            scan: Walk::default(),
            cold: Walk::default(),
            random: now.0 | 1,
            machine,
            costs,
            config,
        }
    }

    pub fn machine(&self) -> &M {
        &self.machine
    }

    fn now(&self) -> Time {
        self.machine.now()
    }

    fn kind(&self) -> Kind {
        self.machine.kind()
    }

    /// Goes on until a signal has come or `report`, which is called after every interval, says to stop.
    pub fn run(&mut self, mut report: impl FnMut(&Stats) -> bool) -> io::Result<End> {
        if self.config.once {
            return self.once(report);
        }
        loop {
            let begin = self.now();
            let end = begin.after(self.config.interval);
            let before = self.ledger;
            self.look_around(begin);
            self.stats.sample_duty = 0.0;
            self.stats.overhead_sampling = 0.0;
            if self.stats.slow_file_pages > 0 {
                let on = self.on_time(begin);
                let off = self.config.interval.saturating_sub(on);
                let start = begin.after(off.mul_f64(self.draw()));
                if self.work_until(start)? {
                    return Ok(End::Signal);
                }
                if !on.is_zero() {
                    self.begin_phase()?;
                }
                if self.kind() == Kind::Activations {
                    self.scan(end);
                }
                let stopped = self.work_until(start.after(on))?;
                self.finish_phase();
                if stopped {
                    return Ok(End::Signal);
                }
            } else {
                self.end_watching();
            }
            if self.work_until(end)? {
                return Ok(End::Signal);
            }
            self.account(before, begin);
            if !report(&self.stats) {
                return Ok(End::Asked);
            }
        }
    }

    /// A phase that lasts long enough for a second access, after a short one, and all that they have brought.
    fn once(&mut self, mut report: impl FnMut(&Stats) -> bool) -> io::Result<End> {
        let begin = self.now();
        let before = self.ledger;
        self.look_around(begin);
        if self.stats.slow_file_pages > 0 {
            let span = self.config.interval.max(ONCE);
            let span = span.max(self.config.limits.gap * 2);
            // How much of it can be recorded, and who reads, is known after a first look.
            for span in [FIRST_LOOK, span] {
                self.phase.span = span;
                self.begin_phase()?;
                let stopped = self.work_until(self.now().after(span))?;
                self.finish_phase();
                if stopped {
                    return Ok(End::Signal);
                }
            }
            // What is still to be moved; more does not come.
            while self.policy.queued() > 0 && !self.policy.backoff.active(self.now()) {
                if self.work_until(self.now().after(SLICE))? {
                    return Ok(End::Signal);
                }
            }
        }
        self.account(before, begin);
        report(&self.stats);
        Ok(End::Asked)
    }

    /// How many pages there are to promote at all.
    fn look_around(&mut self, begin: Time) {
        if !self.paces.state.due(begin) {
            return;
        }
        self.enter(For::Fixed);
        let routes = self.config.routes.iter();
        let pages = routes.map(|route| self.machine.file_pages(route.from).unwrap_or(1));
        self.stats.slow_file_pages = pages.sum();
        let cost = self.enter(For::Fixed);
        self.paces.state.done(begin, cost);
    }

    /// Enters what was spent since the last entry.
    fn enter(&mut self, what: For) -> u64 {
        self.ledger.enter(what, self.machine.cpu_nanos())
    }

    /// What the interval that began at `begin` has cost.
    fn account(&mut self, before: Ledger, begin: Time) {
        self.enter(For::Fixed);
        let elapsed = self.now().since(begin).as_nanos() as f64;
        let share = |what| (self.ledger.of(what) - before.of(what)) as f64 / elapsed;
        self.stats.overhead_total = (self.ledger.sum() - before.sum()) as f64 / elapsed;
        self.stats.overhead_daemon = self.stats.overhead_total - share(For::Moving);
        self.stats.overhead_fixed = share(For::Fixed);
        self.stats.overhead_looking = share(For::Looking);
        self.gauges();
    }

    pub fn stats(&mut self) -> &Stats {
        self.gauges();
        &self.stats
    }

    fn gauges(&mut self) {
        let now = self.now();
        self.stats.seconds = now.since(self.started).as_secs_f64();
        self.stats.lost_samples = self.machine.lost();
        self.stats.backoffs = self.policy.backoff.pauses;
        self.stats.backing_off = self.policy.backoff.active(now);
        self.stats.queue_full = self.policy.queue_full;
        self.stats.table_full = self.policy.overflows();
        self.stats.table_blocks = self.policy.remembered();
        let interval = self.config.interval;
        self.stats.watch_every = self.paces.switch.every().max(interval).as_secs_f64();
        self.stats.switch_cost = self.paces.switch.cost().as_secs_f64();
    }

    /// Empties rings, looks and moves, and sleeps, until `end`. True: a signal
    /// has come.
    fn work_until(&mut self, end: Time) -> io::Result<bool> {
        loop {
            let woken = self.now();
            self.drain();
            if self.overspent() {
                self.finish_phase();
            }
            let idle = self.move_some()?;
            let mut timeout = idle.min(end.since(self.now()));
            if self.machine.watching() {
                timeout = timeout.min(self.latency());
            }
            let cost = self.enter(For::Fixed);
            let signal = self.machine.wait(timeout)?;
            let cost = cost + self.enter(For::Fixed);
            self.paces.wake.done(woken, cost);
            self.looking.waking(cost);
            self.work.waking(cost);
            if signal {
                return Ok(true);
            }
            if self.now() >= end {
                self.drain();
                return Ok(false);
            }
        }
    }
}
