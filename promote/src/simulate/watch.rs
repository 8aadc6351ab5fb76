//! The daemon beside the reader: what it samples within its budget, and what its work costs. By the
//! daemon's own rules.

use std::time::Duration;

use super::trace::Costly;
use crate::credit::Credit;
use crate::daemon::{LOOKING_SAVES, WORK_SAVES};
use crate::page::Time;
use crate::trace::budget::{Budget, Costs, Phase};

/// Pages that one event tells of: the kernel takes folios in batches of so many.
const EVENT_PAGES: f64 = 15.0;

pub struct Watch {
    daemon: Costly,
    budget: Budget,
    looking: Credit,
    work: Credit,
    /// Nanoseconds: how far the daemon has come.
    pub at: f64,
    looked: f64,
    moved: f64,
    /// What had been moved when the last phase ended.
    moved_before: f64,
    interval_ends: f64,
    /// The phase: from when until when, and what it has brought.
    phase: (f64, f64),
    open: bool,
    events: f64,
    samples: u64,
    /// Hits since the last record.
    since: f64,
}

impl Watch {
    pub fn new(daemon: Costly, now: Time) -> Watch {
        Watch {
            budget: Budget::new(daemon.overhead / 2.0),
            looking: Credit::new(daemon.overhead / 2.0, LOOKING_SAVES, now, 0),
            work: Credit::new(daemon.work, WORK_SAVES, now, 0),
            at: now.0 as f64 * 1000.0,
            looked: 0.0,
            moved: 0.0,
            moved_before: 0.0,
            interval_ends: 0.0,
            phase: (0.0, 0.0),
            open: false,
            events: 0.0,
            samples: 0,
            since: 0.0,
            daemon,
        }
    }

    fn costs(&self) -> Costs {
        Costs {
            event: self.daemon.event,
            sample: self.daemon.record,
        }
    }

    fn end_phase(&mut self, now: f64) {
        if !self.open {
            return;
        }
        self.open = false;
        let phase = Phase {
            on: Duration::from_nanos((now.min(self.phase.1) - self.phase.0).max(0.0) as u64),
            events: self.events as u64,
            samples: self.samples,
        };
        let span = self.daemon.interval.as_nanos() as f64;
        let moved = (self.moved - self.moved_before) / span;
        self.moved_before = self.moved;
        self.budget.allow((moved / 4.0).min(self.daemon.work / 8.0));
        self.budget.learn(phase, self.costs());
        (self.events, self.samples) = (0.0, 0);
    }

    /// So many pages were read at `now`: what that costs the reader, and whether it is recorded.
    pub fn piece(&mut self, now: f64, pages: f64, draw: f64) -> (f64, bool) {
        if now >= self.interval_ends {
            self.end_phase(now);
            let interval = self.daemon.interval;
            let on = self.budget.on_time(interval, interval);
            let start = now + (interval - on).as_nanos() as f64 * draw;
            self.interval_ends = now + interval.as_nanos() as f64;
            self.phase = (start, start + on.as_nanos() as f64);
            self.open = !on.is_zero();
        }
        if !self.open || now < self.phase.0 {
            return (0.0, false);
        }
        if now >= self.phase.1 {
            self.end_phase(now);
            return (0.0, false);
        }
        let events = (pages / EVENT_PAGES).max(1.0);
        self.events += events;
        self.since += events;
        let mut cost = events * self.daemon.event;
        let period = self.budget.period() as f64;
        let recorded = self.since >= period;
        if recorded {
            let records = (self.since / period).floor();
            self.since -= records * period;
            self.samples += records as u64;
            cost += records * self.daemon.record;
        }
        let spent = self.events * self.daemon.event + self.samples as f64 * self.daemon.record;
        if spent > self.daemon.interval.as_nanos() as f64 * self.budget.share() {
            self.phase.1 = now;
            self.end_phase(now);
        }
        (cost, recorded)
    }

    /// How long the daemon may not work.
    pub fn debt(&mut self, now: Time) -> Option<Duration> {
        let looking = self.looking.debt(now, self.looked as u64);
        looking.max(self.work.debt(now, (self.looked + self.moved) as u64))
    }

    /// It has looked at so many pages, and moving some has cost so many nanoseconds.
    pub fn worked(&mut self, pages: f64, moving: f64) {
        let looking = pages * self.daemon.look;
        self.looked += looking;
        self.moved += moving;
        self.at += looking + moving;
        self.looking.earn(moving as u64);
    }
}
