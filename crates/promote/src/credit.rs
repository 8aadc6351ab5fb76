//! What may be spent on looking: a share of a processor's time, saved up for times in which there
//! is much to look at.

use std::time::Duration;

use crate::page::Time;

/// At most so much time's worth is saved up.
const SAVED: Duration = Duration::from_secs(60);
/// Processor time, in nanoseconds, that is saved up before looking goes on after it had cost too
/// much: what a few batches cost.
const AHEAD: f64 = 1e6;

#[derive(Debug)]
pub struct Credit {
    share: f64,
    /// Nanoseconds; below zero after looking has cost more than was saved.
    saved: f64,
    at: Time,
    /// Processor time spent until then.
    spent: u64,
    in_debt: bool,
}

impl Credit {
    pub fn new(share: f64, now: Time, spent: u64) -> Credit {
        Credit {
            share,
            saved: 0.0,
            at: now,
            spent,
            in_debt: false,
        }
    }

    /// Adds what was earned since the last time and takes off what was spent; `spent` is all that
    /// was ever spent. If that has left a debt: how long to wait. Until something is saved up, for
    /// to wake up costs too, and one who wakes with nothing would be in debt again by that.
    pub fn debt(&mut self, now: Time, spent: u64) -> Option<Duration> {
        let earned = self.share * now.since(self.at).as_nanos() as f64;
        let cost = spent.saturating_sub(self.spent) as f64;
        self.saved = (self.saved + earned - cost).min(self.share * SAVED.as_nanos() as f64);
        self.at = now;
        self.spent = spent;
        let enough = if self.in_debt { AHEAD / 2.0 } else { 0.0 };
        self.in_debt = self.saved < enough;
        self.in_debt.then(|| {
            let wait = (AHEAD - self.saved) / self.share;
            Duration::from_nanos(wait as u64).max(Duration::from_millis(1))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_who_waits_as_told_can_go_on() {
        // Waking costs 60 us, a look 4 ms, as on a slow machine.
        for share in [0.00005, 0.005, 0.5] {
            let mut now = Time(1_000_000);
            let mut spent = 0;
            let mut credit = Credit::new(share, now, spent);
            let (mut looks, mut wakes) = (0, 0);
            while looks < 50 {
                wakes += 1;
                assert!(wakes < 1000, "{looks} looks at {share}");
                spent += 60_000;
                match credit.debt(now, spent) {
                    Some(wait) => now = now.after(wait),
                    None => {
                        looks += 1;
                        spent += 4_000_000;
                    }
                }
            }
            assert!(wakes < 200, "{wakes} at {share}");
            let share_spent = spent as f64 / (now.since(Time(1_000_000)).as_nanos() as f64);
            assert!(share_spent < share * 1.1, "{share_spent} of {share}");
        }
    }

    #[test]
    fn what_is_saved_has_a_bound() {
        let mut credit = Credit::new(0.01, Time(0), 0);
        let later = Time(0).after(Duration::from_secs(3600));
        assert_eq!(credit.debt(later, 0), None);
        // A minute's worth, and a bit.
        assert!(credit.debt(later, 600_000_001).is_some());
    }
}
