//! Backing off when promotion does no good.
//!
//! A promoted block is either read again where it is now, or it leaves the
//! fast node without having been read: promoted in vain. That is what happens
//! to all of them when the hot set is larger than the fast node. Where more
//! than a quarter was in vain, promotion stops for a while, each time twice as
//! long; good times shorten the pause again.

use std::time::Duration;

use crate::page::Time;

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(600);

/// Pages in vain below which nothing is concluded: 8 MiB.
const ENOUGH: u64 = 2048;

#[derive(Debug)]
pub struct Backoff {
    useful: u64,
    in_vain: u64,
    pause: Duration,
    until: Time,
    /// How often promotion was stopped.
    pub pauses: u64,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff {
            useful: 0,
            in_vain: 0,
            pause: FIRST,
            until: Time(0),
            pauses: 0,
        }
    }
}

impl Backoff {
    /// Promoted pages were read again on the fast node.
    pub fn useful(&mut self, pages: u64) {
        self.useful += pages;
        if self.useful >= 4 * ENOUGH && self.in_vain * 16 < self.useful {
            self.pause = (self.pause / 2).max(FIRST);
            self.useful = 0;
            self.in_vain = 0;
        }
    }

    /// Promoted pages left the fast node before they were read again.
    pub fn in_vain(&mut self, pages: u64, now: Time) {
        self.in_vain += pages;
        if self.in_vain >= ENOUGH && self.in_vain * 3 > self.useful {
            self.until = now.after(self.pause);
            self.pause = (self.pause * 2).min(LONGEST);
            self.pauses += 1;
            self.useful = 0;
            self.in_vain = 0;
        }
    }

    pub fn active(&self, now: Time) -> bool {
        now < self.until
    }

    pub fn until(&self) -> Time {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(n: u64) -> Time {
        Time(n * 1_000_000)
    }

    #[test]
    fn promotions_in_vain_stop_it_longer_each_time() {
        let mut backoff = Backoff::default();
        backoff.in_vain(ENOUGH - 1, second(1));
        assert!(!backoff.active(second(1)), "too little to conclude from");
        backoff.in_vain(1, second(1));
        assert!(backoff.active(second(10)));
        assert!(!backoff.active(second(11)));
        backoff.in_vain(ENOUGH, second(20));
        assert!(backoff.active(second(39)));
        for round in 0..20 {
            backoff.in_vain(ENOUGH, second(100 * round));
        }
        assert!(backoff.pause <= LONGEST);
    }

    #[test]
    fn what_is_read_again_outweighs() {
        let mut backoff = Backoff::default();
        backoff.useful(4 * ENOUGH - 1);
        backoff.in_vain(ENOUGH, second(1));
        assert!(!backoff.active(second(1)));
        assert_eq!(backoff.pauses, 0);
    }

    #[test]
    fn good_times_shorten_the_pause() {
        let mut backoff = Backoff::default();
        for _ in 0..3 {
            backoff.in_vain(ENOUGH, second(0));
        }
        let long = backoff.pause;
        backoff.useful(4 * ENOUGH);
        assert!(backoff.pause < long);
    }
}
