//! What may be spent on work: a share of a processor's time, and what the work has earned, saved up
//! for times in which there is much to do.

use std::time::Duration;

use crate::page::Time;

/// Processor time, in nanoseconds, that is saved up before work goes on after it had cost too
/// much: what a few batches cost; or so many times what waking costs, where that is more.
const AHEAD: f64 = 1e6;
const WAKES: f64 = 16.0;

#[derive(Debug)]
pub struct Credit {
    share: f64,
    /// So much time's worth is saved up at most.
    saving: Duration,
    /// Nanoseconds; below zero after work has cost more than was saved.
    saved: f64,
    at: Time,
    /// Processor time spent until then.
    spent: u64,
    ahead: f64,
    in_debt: bool,
}

impl Credit {
    /// `spent` is what was spent until now.
    pub fn new(share: f64, saving: Duration, now: Time, spent: u64) -> Credit {
        Credit {
            share,
            saving,
            saved: 0.0,
            at: now,
            spent,
            ahead: AHEAD,
            in_debt: false,
        }
    }

    /// To wake up costs so many nanoseconds: one who has to wait waits for what is worth it.
    pub fn waking(&mut self, cost: u64) {
        self.ahead = AHEAD.max(cost as f64 * WAKES);
    }

    /// Work has been worth so many nanoseconds more.
    pub fn earn(&mut self, nanos: u64) {
        self.saved = (self.saved + nanos as f64).min(self.most());
    }

    /// What is saved at most. It has to be enough to go on with.
    fn most(&self) -> f64 {
        (self.share * self.saving.as_nanos() as f64).max(2.0 * self.ahead)
    }

    /// Adds what the share has brought since the last time and takes off what was spent; `spent` is
    /// all that was ever spent. If that has left a debt: how long to wait. Until something is saved
    /// up, for to wake up costs too.
    pub fn debt(&mut self, now: Time, spent: u64) -> Option<Duration> {
        let earned = self.share * now.since(self.at).as_nanos() as f64;
        let cost = spent.saturating_sub(self.spent) as f64;
        self.saved = (self.saved + earned - cost).min(self.most());
        self.at = now;
        self.spent = spent;
        let enough = if self.in_debt { self.ahead / 2.0 } else { 0.0 };
        self.in_debt = self.saved < enough;
        self.in_debt.then(|| {
            let wait = (self.ahead - self.saved) / self.share;
            Duration::from_nanos(wait as u64).max(Duration::from_millis(1))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn one_who_waits_as_told_can_go_on() {
        // Waking costs 60 us, on a slow machine 3 ms; a look costs 4 ms, as there.
        for (share, wake) in [0.00005, 0.005, 0.5]
            .map(|share| [(share, 60_000), (share, 3_000_000)])
            .concat()
        {
            let mut now = Time(1_000_000);
            let mut spent = 0;
            let mut credit = Credit::new(share, MINUTE, now, spent);
            credit.waking(wake);
            let (mut looks, mut wakes) = (0, 0);
            while looks < 50 {
                wakes += 1;
                assert!(wakes < 1000, "{looks} looks at {share}");
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
        let mut credit = Credit::new(0.01, MINUTE, Time(0), 0);
        let later = Time(0).after(Duration::from_secs(3600));
        assert_eq!(credit.debt(later, 0), None);
        // A minute's worth, and a bit.
        assert!(credit.debt(later, 600_000_001).is_some());
        credit.earn(u64::MAX);
        assert_eq!(credit.debt(later, 1_100_000_000), None);
        assert!(credit.debt(later, 1_200_000_002).is_some());
    }

    #[test]
    fn work_that_pays_goes_on() {
        // A batch costs 200 us; where all of it is moved that is worth 700 us.
        let batches = |worth: u64| {
            let mut credit = Credit::new(0.005, MINUTE, Time(0), 0);
            let (mut now, mut spent, mut done) = (Time(0), 0, 0);
            while now.0 < 10_000_000 {
                match credit.debt(now, spent) {
                    Some(wait) => now = now.after(wait),
                    None => {
                        spent += 200_000;
                        now = now.after(Duration::from_micros(200));
                        credit.earn(worth);
                        done += 1;
                    }
                }
            }
            done
        };
        // Its share alone pays for 250; the whole time is 50,000.
        assert!((200..=260).contains(&batches(0)), "{}", batches(0));
        assert!(batches(700_000) > 49_000, "{}", batches(700_000));
        assert!(
            (400..=520).contains(&batches(100_000)),
            "{}",
            batches(100_000)
        );
    }
}
