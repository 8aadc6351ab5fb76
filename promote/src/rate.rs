//! The rate limit: never more than so many pages within any one second.
//!
//! A token bucket would allow its depth on top of the rate. Here what was
//! moved is remembered for a second, and a batch begins only when it fits
//! beside everything that ended within the second before. Batches are moved
//! one after another, so the sum over any second, wherever it begins, stays
//! within the limit.

use std::collections::VecDeque;
use std::time::Duration;

use crate::page::Time;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Rate {
    /// Pages a second; `None` is no limit.
    limit: Option<u64>,
    /// When batches ended, and their pages, for a second.
    ended: VecDeque<(Time, u64)>,
    sum: u64,
}

impl Rate {
    pub fn new(limit: Option<u64>) -> Rate {
        Rate {
            limit,
            ended: VecDeque::new(),
            sum: 0,
        }
    }

    /// How many pages may be moved now.
    pub fn room(&mut self, now: Time) -> u64 {
        let Some(limit) = self.limit else {
            return u64::MAX;
        };
        self.forget(now);
        limit.saturating_sub(self.sum)
    }

    /// How long `pages`, or as many as the limit is, have to wait; zero is now.
    pub fn wait(&mut self, pages: u64, now: Time) -> Duration {
        let Some(limit) = self.limit else {
            return Duration::ZERO;
        };
        self.forget(now);
        let mut over = (self.sum + pages.min(limit)).saturating_sub(limit);
        if over == 0 {
            return Duration::ZERO;
        }
        for &(end, moved) in &self.ended {
            over = over.saturating_sub(moved);
            if over == 0 {
                return end.after(SECOND + Duration::from_micros(1)).since(now);
            }
        }
        SECOND
    }

    fn forget(&mut self, now: Time) {
        while let Some(&(end, moved)) = self.ended.front() {
            if now.since(end) <= SECOND {
                break;
            }
            self.sum -= moved;
            self.ended.pop_front();
        }
    }

    pub fn moved(&mut self, pages: u64, end: Time) {
        if self.limit.is_some() && pages > 0 {
            self.ended.push_back((end, pages));
            self.sum += pages;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_second_has_more_than_the_limit() {
        let mut rate = Rate::new(Some(1000));
        let mut now = Time(5);
        // (begin, end, pages) of each batch.
        let mut log: Vec<(u64, u64, u64)> = Vec::new();
        for step in 0..500 {
            let pages = 1 + (step * 37) % 200;
            let wait = rate.wait(pages, now);
            now = now.after(wait);
            assert_eq!(rate.wait(pages, now), Duration::ZERO);
            let begin = now;
            now = now.after(Duration::from_micros(100 + (step * 91) % 40_000));
            rate.moved(pages, now);
            log.push((begin.0, now.0, pages));
        }
        for &(from, _, _) in &log {
            let sum: u64 = log
                .iter()
                .filter(|&&(begin, end, _)| end > from && begin < from + 1_000_000)
                .map(|&(_, _, pages)| pages)
                .sum();
            assert!(sum <= 1000, "{sum} pages in the second from {from}");
        }
        let total: u64 = log.iter().map(|entry| entry.2).sum();
        let seconds = now.0 as f64 / 1e6;
        assert!(
            total as f64 / seconds > 800.0,
            "the limit is used: {total} in {seconds}"
        );
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let mut rate = Rate::new(None);
        rate.moved(1 << 40, Time(1));
        assert_eq!(rate.wait(1 << 40, Time(1)), Duration::ZERO);
    }
}
