//! Has idle processors stay awake while programs of the run wait for pages all the time.
//!
//! What that costs, the power or the host's time that idle processors take, the whole machine pays. So it is done only
//! while much of the time goes by in waiting, and the kernel ends it with the supervisor.

use std::time::{Duration, Instant};

use hugeswap_host::cpu_latency::{self, Not, Request};

use crate::run_args::CpuLatency;

/// Pages waited for in a second that make it worth while; and those with which it goes on. At 1000 reads of 100 µs a
/// second a tenth of the time is waiting.
const BEGIN: u64 = 1000;
const GO_ON: u64 = 250;
/// How often that is looked at.
const PERIOD: Duration = Duration::from_millis(90);

pub struct IdleLatency {
    /// What idle processors may take to wake; none if that is left alone.
    microseconds: Option<u32>,
    request: Option<Request>,
    seen: u64,
    looked: Instant,
    held: Duration,
}

impl IdleLatency {
    pub fn new(wanted: CpuLatency) -> (IdleLatency, Result<(), Not>) {
        let (microseconds, why) = match wanted {
            CpuLatency::Off => (None, Ok(())),
            CpuLatency::Microseconds(n) => (Some(n), Ok(())),
            CpuLatency::Auto => match cpu_latency::should_poll() {
                Ok(()) => (Some(0), Ok(())),
                Err(not) => (None, Err(not)),
            },
        };
        let it = IdleLatency {
            microseconds,
            request: None,
            seen: 0,
            looked: Instant::now(),
            held: Duration::ZERO,
        };
        (it, why)
    }

    /// How long it was held in all.
    pub fn held(&self) -> Duration {
        self.held
    }

    /// Programs have waited for so many pages by now.
    pub fn look(&mut self, pages: u64, now: Instant) {
        let passed = now - self.looked;
        let Some(microseconds) = self.microseconds.filter(|_| passed >= PERIOD) else {
            return;
        };
        self.looked = now;
        let new = pages.saturating_sub(std::mem::replace(&mut self.seen, pages));
        if self.request.is_some() {
            self.held += passed;
        }
        match is_worth_it(self.request.is_some(), new, passed) {
            false => self.request = None,
            true if self.request.is_some() => {}
            true => match Request::new(microseconds) {
                Ok(request) => self.request = Some(request),
                // It will not be otherwise the next time.
                Err(_) => self.microseconds = None,
            },
        }
    }
}

/// Whether it is to be held: so many pages were waited for in that time.
fn is_worth_it(held: bool, pages: u64, passed: Duration) -> bool {
    let least = if held { GO_ON } else { BEGIN };
    u128::from(pages) * 1000 >= u128::from(least) * passed.as_millis()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_late_and_ends_later() {
        let second = Duration::from_secs(1);
        assert!(!is_worth_it(false, 999, second));
        assert!(is_worth_it(false, 1000, second));
        assert!(is_worth_it(true, 250, second));
        assert!(!is_worth_it(true, 249, second));
        assert!(is_worth_it(false, 90, PERIOD));
        assert!(!is_worth_it(false, 80, PERIOD));
    }

    #[test]
    fn off_it_stays() {
        let (mut it, why) = IdleLatency::new(CpuLatency::Off);
        it.look(1 << 40, Instant::now() + Duration::from_secs(1));
        assert!(it.request.is_none() && it.held() == Duration::ZERO);
        assert_eq!(why, Ok(()));
    }
}
