//! How much may be watched: the cost of sampling stays within a share of the
//! processors' time.
//!
//! A tracepoint costs something each time it is hit, and a record more. Two
//! knobs: the *duty*, the share of the time in which the tracepoint is on at
//! all, and the *period*: one of so many hits becomes a record.

use std::time::Duration;

/// Nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// One hit of the tracepoint.
    pub event: f64,
    /// One record, on top of that.
    pub sample: f64,
}

impl Default for Costs {
    /// Where they can't be measured: on the high side.
    fn default() -> Costs {
        Costs {
            event: 400.0,
            sample: 3000.0,
        }
    }
}

impl Costs {
    /// Processor time that a phase has cost, on its processor.
    pub fn of(&self, phase: Phase) -> Duration {
        let ns = phase.events as f64 * self.event + phase.samples as f64 * self.sample;
        Duration::from_nanos(ns as u64)
    }
}

/// What one phase of watching brought, on the busiest processor.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Phase {
    pub on: Duration,
    pub events: u64,
    pub samples: u64,
}

/// Primes, so that sampling does not keep step with a program that reads the
/// same file in the same way again and again.
const PERIODS: [u64; 6] = [1, 3, 7, 13, 31, 61];

#[derive(Debug)]
pub struct Budget {
    /// What it may cost in any case, and what moving pages pays for on top.
    share: f64,
    more: f64,
    duty: f64,
    period: u64,
    /// Time to watch that was too short to be used.
    saved: Duration,
}

const LEAST_DUTY: f64 = 1e-6;
/// Shorter phases are not worth switching the tracepoint on: they are saved up.
const SHORTEST: Duration = Duration::from_millis(2);

impl Budget {
    pub fn new(share: f64) -> Budget {
        Budget {
            share,
            more: 0.0,
            // Learn what is going on before watching for long.
            duty: 0.05,
            period: 7,
            saved: Duration::ZERO,
        }
    }

    /// How long to watch within the `interval` that begins; may be zero. Nothing was watched for
    /// `span`, the interval included: so long is what is paid for.
    pub fn on_time(&mut self, span: Duration, interval: Duration) -> Duration {
        let on = self.saved + span.mul_f64(self.duty);
        if on < SHORTEST {
            self.saved = on;
            return Duration::ZERO;
        }
        self.saved = Duration::ZERO;
        on.min(interval)
    }

    /// Watching has led to moves that are worth so much more of it, as a share of a processor. That
    /// goes by and by: what is left is met seldom.
    pub fn allow(&mut self, more: f64) {
        const LEAST: f64 = 1e-4;
        let before = self.more * 0.75;
        self.more = more.max(if before > LEAST { before } else { 0.0 });
    }

    /// What watching may cost now.
    pub fn share(&self) -> f64 {
        self.share + self.more
    }

    pub fn duty(&self) -> f64 {
        self.duty
    }

    pub fn period(&self) -> u64 {
        self.period
    }

    /// Learns from a phase, for the next one.
    pub fn learn(&mut self, phase: Phase, costs: Costs) {
        let seconds = phase.on.as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let events = phase.events as f64 / seconds * costs.event / 1e9;
        let samples = phase.events as f64 / seconds * costs.sample / 1e9;
        // Records may cost as much as the hits do, or half of the budget.
        let allowed = events.max(self.share() / 2.0);
        self.period = PERIODS
            .into_iter()
            .find(|&period| samples / period as f64 <= allowed)
            .unwrap_or(PERIODS[PERIODS.len() - 1]);
        let on = events + samples / self.period as f64;
        let duty = if on > self.share() {
            self.share() / on
        } else {
            1.0
        };
        // Down at once, up by and by.
        self.duty = duty.min(self.duty * 5.0).max(LEAST_DUTY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        event: 100.0,
        sample: 1000.0,
    };

    /// Lets a load of so many events a second go on, and gives the share of a
    /// processor that watching it costs in the end.
    fn settle(budget: &mut Budget, rate: f64) -> f64 {
        let interval = Duration::from_secs(1);
        let (mut cost, mut intervals) = (Duration::ZERO, 0);
        for turn in 0..100 {
            let on = budget.on_time(interval, interval);
            let events = (rate * on.as_secs_f64()) as u64;
            let phase = Phase {
                on,
                events,
                samples: events / budget.period(),
            };
            if turn >= 20 {
                cost += COSTS.of(phase);
                intervals += 1;
            }
            budget.learn(phase, COSTS);
        }
        cost.as_secs_f64() / f64::from(intervals)
    }

    #[test]
    fn a_quiet_machine_is_watched_always_and_wholly() {
        let mut budget = Budget::new(0.01);
        settle(&mut budget, 1000.0);
        assert_eq!(budget.duty(), 1.0);
        assert_eq!(budget.period(), 1);
    }

    #[test]
    fn the_budget_holds_under_any_load() {
        for share in [0.001, 0.01, 0.1] {
            for rate in [1e3, 1e5, 1e6, 1e7] {
                let mut budget = Budget::new(share);
                let cost = settle(&mut budget, rate);
                assert!(cost <= share * 1.05, "{cost} of {share} at {rate}");
                assert!(
                    budget.duty() > 0.99 || cost > share * 0.5,
                    "{cost} of {share} at {rate}: the budget is used"
                );
            }
        }
    }

    #[test]
    fn moves_pay_for_more_and_then_no_longer() {
        let mut budget = Budget::new(0.005);
        let cost = settle(&mut budget, 1e6);
        assert!(cost <= 0.0055, "{cost}");
        budget.allow(0.05);
        let cost = settle(&mut budget, 1e6);
        assert!(cost > 0.03 && cost <= 0.0575, "{cost}");
        for _ in 0..30 {
            budget.allow(0.0);
        }
        let cost = settle(&mut budget, 1e6);
        assert!(cost <= 0.0055, "{cost}");
    }

    #[test]
    fn a_burst_is_answered_at_once() {
        let mut budget = Budget::new(0.01);
        settle(&mut budget, 1000.0);
        budget.learn(
            Phase {
                on: Duration::from_secs(1),
                events: 1_000_000,
                samples: 1_000_000,
            },
            COSTS,
        );
        assert!(budget.duty() < 0.1);
        assert!(budget.period() > 1);
    }
}
