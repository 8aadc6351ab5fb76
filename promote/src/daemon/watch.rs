//! Watching: phases in which the events are on, and what is in the rings.

use std::io;
use std::time::Duration;

use super::{Daemon, MOST_FRAMES};
use crate::ledger::For;
use crate::machine::Machine;
use crate::page::Time;
use crate::trace::budget::{Costs, Phase};
use crate::trace::points::{Event, Kind};

/// New files that are looked for at once, after each look into the rings.
const MOST_NEW: usize = 16;

impl<M: Machine> Daemon<M> {
    /// How long the events are to be on in the interval that begins; it may be not at all.
    pub(super) fn on_time(&mut self, begin: Time) -> Duration {
        if self.kind() == Kind::Activations {
            // A page is activated once: what is missed is missed. Only switching has its pace.
            return match self.machine.watching() || self.paces.switch.due(begin) {
                true => self.config.interval,
                false => Duration::ZERO,
            };
        }
        if !self.paces.switch.due(begin) {
            return Duration::ZERO;
        }
        let span = self.phase.begin(begin, self.config.interval);
        self.budget.on_time(span, self.config.interval)
    }

    pub(super) fn begin_phase(&mut self) -> io::Result<()> {
        if self.machine.watching() {
            return Ok(());
        }
        self.enter(For::Fixed);
        let tmpfs = self.tmpfs_is_due();
        self.machine.start(self.period(), tmpfs)?;
        let (watched, online) = self.machine.processors();
        self.stats.processors_watched = watched;
        self.stats.processors = online;
        self.phase.cost = self.enter(For::Fixed);
        if tmpfs {
            // This is paid from elsewhere.
            let cost = self.phase.cost.saturating_sub(self.machine.tmpfs_switch());
            self.phase.cost = cost;
        }
        Ok(())
    }

    /// How long what was recorded may wait: its reader may end soon, and with it the way to its file.
    pub(super) fn latency(&self) -> Duration {
        const LATENCY: Duration = Duration::from_millis(100);
        self.paces.wake.every().max(LATENCY)
    }

    pub(super) fn period(&self) -> u64 {
        match self.kind() {
            Kind::Reads => self.budget.period(),
            Kind::Activations => 1,
        }
    }

    /// Does the phase that begins watch tmpfs?
    fn tmpfs_is_due(&mut self) -> bool {
        let at = self.now();
        if !self.paces.tmpfs.due(at) {
            return false;
        }
        let mut routes = self.config.routes.iter();
        let due = routes.any(|route| self.machine.tmpfs_pages(route.from) != Some(0));
        if due {
            self.paces.tmpfs.done(at, self.machine.tmpfs_switch());
        }
        due
    }

    /// A number from 0 to 1, so that watching does not keep step with a
    /// program that reads in turns.
    pub(super) fn draw(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn drain(&mut self) {
        if self.machine.watching() {
            self.empty_rings();
        }
    }

    fn empty_rings(&mut self) {
        self.enter(For::Fixed);
        let before = self.stats.numa_hint_page_cache;
        let (policy, stats) = (&mut self.policy, &mut self.stats);
        let (readers, owners, fast) = (&mut self.readers, &mut self.owners, &self.fast);
        let mut new = Vec::new();
        self.machine.drain(|event, time, cpu| match event {
            Event::Read {
                file,
                first,
                last,
                pid,
                whole,
            } => {
                stats.numa_hint_page_cache += 1;
                let node = fast.node_of(cpu);
                if readers.note(file, pid, node) && new.len() < MOST_NEW {
                    new.push(file);
                }
                if whole {
                    policy.access_whole(file, first, last, time);
                } else {
                    policy.access(file, first, last, time);
                }
            }
            Event::Inserted { file, page, pfn } => {
                if owners.len() >= MOST_FRAMES {
                    owners.clear();
                }
                owners.insert(pfn, (file, page));
            }
            Event::Activated { pfn } => {
                stats.numa_hint_page_cache += 1;
                match owners.get(&pfn) {
                    Some(&(file, page)) => policy.activated(file, page, time),
                    None => stats.unknown_pages += 1,
                }
            }
        });
        let samples = self.stats.numa_hint_page_cache - before;
        let spent = self.enter(For::Records);
        if samples > 0 {
            // Few at a time cost more each: they count as they come.
            self.handled = (self.handled.0 + spent, self.handled.1 + samples);
        }
        if self.handled.1 >= 100 {
            let each = self.handled.0 as f64 / self.handled.1 as f64;
            self.handling += (each - self.handling) / 8.0;
            self.handled = (0, 0);
        }
        for file in new {
            // Finds the way there and remembers it.
            let _ = self.open(file);
        }
        self.enter(For::Looking);
    }

    /// Has watching cost more already than it may in this interval? A reader
    /// may have begun in earnest since the length of the phase was chosen.
    pub(super) fn overspent(&self) -> bool {
        let always = self.kind() == Kind::Activations || self.config.once;
        if !self.machine.watching() || always {
            return false;
        }
        let costs = self.costs();
        let spent = costs.of(self.machine.so_far(costs));
        self.phase.is_overspent(spent, self.budget.share())
    }

    /// What a hit and a record cost, with what we do about a record.
    pub fn costs(&self) -> Costs {
        Costs {
            sample: self.costs.sample + self.handling,
            ..self.costs
        }
    }

    /// No page is slow any more. Activations, which are watched for longer than an interval, are watched no more.
    pub(super) fn end_watching(&mut self) {
        if !self.machine.watching() {
            return;
        }
        self.drain();
        let costs = self.costs();
        self.enter(For::Fixed);
        self.machine.stop(costs);
        let cost = self.phase.cost + self.enter(For::Fixed);
        // The next begins when what this has cost is paid for: pages may come and go all the time.
        self.paces.switch.done(self.now(), cost);
    }

    pub(super) fn finish_phase(&mut self) {
        if !self.machine.watching() {
            return;
        }
        self.drain();
        if self.kind() == Kind::Activations {
            // Stays on: what is missed here is missed. Each hit is a record.
            self.stats.sample_duty = 1.0;
            self.stats.sample_period = 1;
            let samples = self.stats.numa_hint_page_cache - self.hints;
            self.hints += samples;
            let phase = Phase {
                events: samples,
                samples,
                ..Phase::default()
            };
            let interval = self.config.interval.as_secs_f64();
            self.stats.overhead_sampling = self.costs().of(phase).as_secs_f64() / interval;
            return;
        }
        let costs = self.costs();
        self.enter(For::Fixed);
        let phase = self.machine.stop(costs);
        let cost = self.phase.cost + self.enter(For::Fixed);
        self.paces.switch.done(self.phase.begun, cost);
        // What came between the last look and the end.
        self.empty_rings();
        self.stats.sample_duty = self.phase.share(phase.on);
        self.stats.sample_period = self.period();
        self.stats.overhead_sampling = self.phase.share(costs.of(phase));
        let moving = self.ledger.of(For::Moving);
        self.budget.allow(self.phase.end(moving, self.config.work));
        self.budget.learn(phase, costs);
    }
}
