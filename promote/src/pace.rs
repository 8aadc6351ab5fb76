//! How often something is done whose cost does not depend on what it brings: switching events on
//! and off, waking up, asking for the state of the machine. What costs more than its share allows
//! is done more rarely, and never not at all.

use std::time::Duration;

use crate::page::Time;

#[derive(Debug)]
pub struct Pace {
    /// Of a processor's time.
    share: f64,
    /// It waits no longer than this, whatever it costs.
    longest: Duration,
    /// Nanoseconds, of late; none yet is none known.
    cost: Option<f64>,
    due: Time,
}

impl Pace {
    pub fn new(share: f64, longest: Duration) -> Pace {
        Pace {
            share,
            longest,
            cost: None,
            due: Time(0),
        }
    }

    pub fn due(&self, now: Time) -> bool {
        now >= self.due
    }

    /// It was begun at `now` and has cost so many nanoseconds.
    pub fn done(&mut self, now: Time, cost: u64) {
        let known = self.cost.unwrap_or(cost as f64);
        // One that was dear by chance counts for a quarter.
        self.cost = Some(known + (cost as f64 - known) / 4.0);
        self.due = now.after(self.every());
    }

    /// The time from one to the next that its share pays for.
    pub fn every(&self) -> Duration {
        let wait = self.cost.unwrap_or(0.0) / self.share;
        Duration::from_nanos(wait as u64).min(self.longest)
    }

    pub fn cost(&self) -> Duration {
        Duration::from_nanos(self.cost.unwrap_or(0.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(15);

    /// Looks each second for an hour: how often it was done, and the share that it cost.
    fn hour(share: f64, cost: u64) -> (u64, f64) {
        let mut pace = Pace::new(share, LONGEST);
        let mut done = 0;
        for second in 1..=3600 {
            let now = Time(second * 1_000_000);
            if pace.due(now) {
                done += 1;
                pace.done(now, cost);
            }
        }
        (done, (done * cost) as f64 / 3600e9)
    }

    #[test]
    fn what_is_cheap_is_done_each_time() {
        assert_eq!(hour(0.0025, 1_600_000).0, 3600);
    }

    #[test]
    fn what_is_dear_is_done_within_its_share() {
        // As dear as all processors of a large machine, and a slow machine's.
        for cost in [9_000_000, 21_000_000, 36_000_000] {
            let (done, spent) = hour(0.0025, cost);
            assert!(spent <= 0.0026, "{spent} at {cost}");
            assert!(done >= 3600 / 16, "{done} at {cost}");
        }
    }

    #[test]
    fn what_can_not_be_afforded_is_done_all_the_same() {
        for cost in [1_000_000_000, u64::from(u32::MAX) * 1000] {
            let (done, _) = hour(0.000_025, cost);
            assert!(done >= 3600 / 16, "{done} at {cost}");
        }
    }
}
