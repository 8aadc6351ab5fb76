//! When the events are on, what that may cost, and when it is over.

use std::time::Duration;

use crate::page::Time;

/// What is moved is worth such a part of its cost in watching, up to such a part of what work may cost.
const WORTH: f64 = 1.0 / 4.0;
const MOST_WORTH: f64 = 1.0 / 8.0;

#[derive(Debug)]
pub(super) struct Phase {
    /// When the last one began, and nanoseconds that it took to begin it.
    pub begun: Time,
    pub cost: u64,
    /// Time that it stands for.
    pub span: Duration,
    /// Processor time that had gone into moving when the last one ended.
    moving: u64,
}

impl Phase {
    pub fn new(now: Time, interval: Duration) -> Phase {
        Phase {
            begun: now,
            cost: 0,
            span: interval,
            moving: 0,
        }
    }

    /// One begins: it stands for all the time since the one before, and for an interval at least.
    pub fn begin(&mut self, now: Time, interval: Duration) -> Duration {
        self.span = now.since(self.begun).max(interval);
        self.begun = now;
        self.span
    }

    /// Has so much been spent on it that it is over? It may have such a share of a processor.
    pub fn is_overspent(&self, spent: Duration, share: f64) -> bool {
        spent > self.span.mul_f64(share)
    }

    pub fn share(&self, of: Duration) -> f64 {
        of.as_secs_f64() / self.span.as_secs_f64()
    }

    /// One ends: the share of a processor by which watching may cost more for what was moved meanwhile. `moving`: all
    /// nanoseconds that have gone into that; `work`: what looking and moving may cost.
    pub fn end(&mut self, moving: u64, work: f64) -> f64 {
        let meanwhile = moving.saturating_sub(self.moving);
        self.moving = moving;
        let share = meanwhile as f64 / self.span.as_nanos() as f64;
        (share * WORTH).min(work * MOST_WORTH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000)
    }

    #[test]
    fn a_phase_stands_for_the_time_since_the_last() {
        let mut phase = Phase::new(at(100), INTERVAL);
        assert_eq!(phase.begin(at(101), INTERVAL), INTERVAL);
        // Not watched for a while, for it was too dear.
        assert_eq!(phase.begin(at(116), INTERVAL), 15 * INTERVAL);
        assert_eq!(phase.begin(at(116), INTERVAL), INTERVAL);
        assert_eq!(phase.begun, at(116));
    }

    #[test]
    fn what_is_saved_up_may_be_spent() {
        let mut phase = Phase::new(at(0), INTERVAL);
        let spent = Duration::from_millis(6);
        assert!(phase.is_overspent(spent, 0.005));
        assert!(!phase.is_overspent(spent, 0.006));
        phase.begin(at(2), INTERVAL);
        assert!(!phase.is_overspent(spent, 0.005));
        assert!((phase.share(spent) - 0.003).abs() < 1e-9);
    }

    #[test]
    fn what_is_moved_pays_for_watching() {
        let mut phase = Phase::new(at(0), INTERVAL);
        let millis = 1_000_000;
        assert_eq!(phase.end(0, 0.5), 0.0);
        // A tenth of the time went into moving.
        assert!((phase.end(100 * millis, 0.5) - 0.025).abs() < 1e-9);
        // Nothing since then.
        assert_eq!(phase.end(100 * millis, 0.5), 0.0);
        // However much it was, an eighth of what work may cost.
        assert_eq!(phase.end(1100 * millis, 0.5), 0.0625);
    }
}
