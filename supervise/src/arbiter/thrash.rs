//! Whether the processes of a run take turns. Pure.
//!
//! Where several processes want more than there is, each may have too little to get on: it waits for pages that it has just lost
//! to the others, which wait too. Then all are done sooner if some have what they need, and the others wait. (Denning, "Thrashing: its
//! causes and prevention", 1968. Linux had a token for it, mm/thrash.c until 3.4: Jiang and Zhang, "Token-ordered LRU", 2005.)
//!
//! It does not always pay. A program may walk through more than any memory, and wait for the disk however much it has;
//! or two may wait for each other. So it is tried, and what the programs' threads have run in that time, and what had to come
//! back for it, is compared with what it was before.
//!
//! | state | event | next |
//! |---|---|---|
//! | Even | for half a second they wait for memory longer than they run, and processors are idle | Trial |
//! | Trial | after its start they run no less than before, and less comes back for it | Turns |
//! | Trial | they don't | Even; the next trial is after 3 s, then 6 s, up to 192 s, or when they run a fifth less |
//! | Turns | 16 s are over, the next time 32 s, then 64 s: are turns still needed? | Even |
//! | Trial, Turns | there is enough for all | Even |

use std::time::Duration;

/// So long all have equal shares before it is said how they get on.
const WINDOW: Duration = Duration::from_millis(500);
/// A trial's begin does not count: pages have to come and go.
const SETTLES: Duration = Duration::from_millis(500);
const TRIAL: Duration = Duration::from_millis(1500);
/// What is plainly in vain ends sooner.
const SOON: Duration = Duration::from_millis(300);
const MUCH_LESS: f64 = 0.7;
/// After a trial in vain the next one is not before this; each time twice as long.
const PAUSE: Duration = Duration::from_secs(3);
const LONGEST_PAUSE: Duration = Duration::from_secs(192);
/// Turns that pay are taken for so long before it is looked whether they are needed; each time twice as long.
const LEASE: Duration = Duration::from_secs(16);
const LONGEST_LEASE: Duration = Duration::from_secs(64);
/// Where a fault brings back so many pages they come by walks.
const WALK: f64 = 32.0;
/// Of the pages that came back for what they ran so many come, where turns pay.
const FEWER: f64 = 0.9;
/// By so much less they run, where things have become worse.
const LESS: f64 = 1.25;
/// Whoever wants more wants it again and again: there is enough when nobody has for so long. While they take turns one may
/// run for some time with what it has.
const ENOUGH: Duration = Duration::from_millis(100);
const ENOUGH_IN_TURNS: Duration = Duration::from_secs(1);

/// Of all processes, since any time.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Work {
    /// Processor time of the programs' threads, outside of the kernel.
    pub ran: Duration,
    /// What faults took for which pages came back, and how many those were.
    pub waited: Duration,
    pub returns: u64,
    /// The pages.
    pub came: u64,
}

impl Work {
    /// With what a process has done since `before`. Processes may say anything.
    #[must_use]
    pub fn with(self, now: Work, before: Work) -> Work {
        let time =
            |all: Duration, now: Duration, before| all.saturating_add(now.saturating_sub(before));
        let count = |all: u64, now: u64, before| all.saturating_add(now.saturating_sub(before));
        Work {
            ran: time(self.ran, now.ran, before.ran),
            waited: time(self.waited, now.waited, before.waited),
            returns: count(self.returns, now.returns, before.returns),
            came: count(self.came, now.came, before.came),
        }
    }
}

/// The same, on average in each second.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Rates {
    ran: f64,
    waited: f64,
    returns: f64,
    came: f64,
}

impl Rates {
    fn of(since: Duration, at: Work, now: Duration, work: Work) -> Rates {
        let elapsed = (now - since).as_secs_f64().max(1e-9);
        let rate = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() / elapsed;
        let count = |from: u64, to: u64| to.saturating_sub(from) as f64 / elapsed;
        Rates {
            ran: rate(at.ran, work.ran),
            waited: rate(at.waited, work.waited),
            returns: count(at.returns, work.returns),
            came: count(at.came, work.came),
        }
    }

    /// They wait for pages that come back a few at a time, longer than they run. A walk would have to wait whatever it has.
    fn thrash(self) -> bool {
        self.waited > self.ran && self.came < WALK * self.returns
    }

    /// Pages that come back for what they run.
    fn came_for_it(self) -> f64 {
        self.came / self.ran.max(1e-3)
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Even {
        since: Duration,
        at: Work,
    },
    Trial {
        began: Duration,
        /// How they got on before.
        before: Rates,
        /// Once it has settled.
        at: Option<(Duration, Work)>,
    },
    Turns {
        until: Duration,
    },
}

pub struct Thrash {
    /// More cannot run at a time.
    cpus: f64,
    state: State,
    /// What they ran with equal shares, on average.
    even: f64,
    /// The last trial was in vain: what they ran before it, and when the next one may be.
    in_vain: Option<(f64, Duration)>,
    pause: Duration,
    lease: Duration,
    /// When several wanted more than there was.
    short: Option<Duration>,
}

impl Thrash {
    pub fn new(cpus: usize) -> Thrash {
        Thrash {
            cpus: cpus as f64,
            state: State::Even {
                since: Duration::ZERO,
                at: Work::default(),
            },
            even: 0.0,
            in_vain: None,
            pause: PAUSE,
            lease: LEASE,
            short: None,
        }
    }

    pub fn is_on(&self) -> bool {
        !matches!(self.state, State::Even { .. })
    }

    /// Whether what they do has to be known.
    pub fn watches(&self, now: Duration, is_short: bool) -> bool {
        is_short || !self.is_enough(now)
    }

    fn is_enough(&self, now: Duration) -> bool {
        let rest = match self.is_on() {
            true => ENOUGH_IN_TURNS,
            false => ENOUGH,
        };
        self.short
            .is_none_or(|short| now.saturating_sub(short) >= rest)
    }

    /// Whether they take turns from now on. `is_short`: several want more than there is.
    pub fn look(&mut self, now: Duration, work: Work, is_short: bool) -> bool {
        if is_short {
            self.short = Some(now);
        }
        self.state = match self.state {
            _ if self.is_enough(now) => even(now, work),
            State::Even { since, at } if now - since >= WINDOW => self.tried(since, at, now, work),
            State::Trial {
                began,
                before,
                at: None,
            } if now - began >= SETTLES => State::Trial {
                began,
                before,
                at: Some((now, work)),
            },
            State::Trial {
                before,
                at: Some((since, at)),
                ..
            } if now - since >= SOON => {
                let rates = Rates::of(since, at, now, work);
                match now - since >= TRIAL || rates.ran < before.ran * MUCH_LESS {
                    true => self.judged(before, rates, now, work),
                    false => self.state,
                }
            }
            State::Turns { until } if now >= until => even(now, work),
            as_before => as_before,
        };
        self.is_on()
    }

    /// They have had equal shares for a while.
    fn tried(&mut self, since: Duration, at: Work, now: Duration, work: Work) -> State {
        let mut before = Rates::of(since, at, now, work);
        let thrashes = before.thrash() && before.ran * LESS < self.cpus;
        // One bad moment is not enough.
        let average = f64::midpoint(self.even, before.ran);
        before.ran = before.ran.max(self.even);
        self.even = average;
        let as_in_vain = |(then, until): (f64, Duration)| now < until && before.ran * LESS >= then;
        match thrashes && !self.in_vain.is_some_and(as_in_vain) {
            true => State::Trial {
                began: now,
                before,
                at: None,
            },
            false => even(now, work),
        }
    }

    fn judged(&mut self, before: Rates, rates: Rates, now: Duration, work: Work) -> State {
        let fewer_come = rates.came_for_it() < before.came_for_it() * FEWER;
        if fewer_come && rates.ran >= before.ran {
            (self.in_vain, self.pause) = (None, PAUSE);
            let until = now + self.lease;
            self.lease = (2 * self.lease).min(LONGEST_LEASE);
            return State::Turns { until };
        }
        self.lease = LEASE;
        self.in_vain = Some((before.ran, now + self.pause));
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        even(now, work)
    }
}

fn even(since: Duration, at: Work) -> State {
    State::Even { since, at }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// What happens in each second: what runs, what waits, how many faults bring pages back, and how many.
    #[derive(Clone, Copy)]
    struct Life(f64, f64, f64, f64);

    /// Eight that jump, and have what they need for a third of that.
    const THRASH: Life = Life(0.4, 5.0, 20_000.0, 60_000.0);
    const GOOD: Life = Life(1.3, 0.6, 3_000.0, 20_000.0);

    struct World {
        thrash: Thrash,
        now: Duration,
        work: Work,
    }

    impl World {
        fn new() -> World {
            World {
                thrash: Thrash::new(2),
                now: Duration::ZERO,
                work: Work::default(),
            }
        }

        /// Says for how many milliseconds they took turns.
        fn goes_on(&mut self, ms: u32, short: bool, even: Life, turns: Life) -> u32 {
            let mut took = 0;
            for _ in 0..ms / 10 {
                let Life(ran, waited, returns, came) = match self.thrash.is_on() {
                    true => turns,
                    false => even,
                };
                self.now += 10 * MS;
                self.work.ran += 10 * MS.mul_f64(ran);
                self.work.waited += 10 * MS.mul_f64(waited);
                self.work.returns += (returns / 100.0) as u64;
                self.work.came += (came / 100.0) as u64;
                took += 10 * u32::from(self.thrash.look(self.now, self.work, short));
            }
            took
        }
    }

    #[test]
    fn those_that_get_on_share() {
        for (short, even) in [
            (false, THRASH),
            // They run most of the time.
            (true, Life(0.9, 0.8, 10_000.0, 10_000.0)),
            // All processors have work.
            (true, Life(1.9, 50.0, 90_000.0, 90_000.0)),
            // They walk.
            (true, Life(0.3, 6.5, 1_000.0, 250_000.0)),
            // They only come to have what they need.
            (true, Life(0.1, 0.0, 0.0, 0.0)),
        ] {
            assert_eq!(World::new().goes_on(60_000, short, even, GOOD), 0);
        }
    }

    #[test]
    fn those_that_get_on_better_by_turns_keep_to_them() {
        let mut w = World::new();
        let took = w.goes_on(100_000, true, THRASH, GOOD);
        assert!(took > 95_000, "{took}");
        // There is enough: within a second they take none.
        assert!(w.goes_on(10_000, false, GOOD, GOOD) <= 1_000);
        assert!(w.goes_on(20_000, true, THRASH, GOOD) > 18_000);
    }

    #[test]
    fn where_turns_do_not_help_they_are_tried_less_and_less() {
        for in_turns in [
            // Things are as before; or more runs, but for as many pages; or fewer come, for they wait for each other.
            THRASH,
            Life(0.5, 5.0, 25_000.0, 75_000.0),
            Life(0.1, 0.5, 1_000.0, 3_000.0),
        ] {
            let mut w = World::new();
            let took: Vec<u32> = (0..4)
                .map(|_| w.goes_on(100_000, true, THRASH, in_turns))
                .collect();
            assert!(took[0] <= 12_000, "{took:?}");
            assert!(took[1..].iter().sum::<u32>() <= 6_000, "{took:?}");
        }
    }

    /// The trial was before they needed much.
    #[test]
    fn where_it_becomes_worse_they_are_tried_again() {
        let mut w = World::new();
        let early = Life(1.0, 1.5, 10_000.0, 60_000.0);
        w.goes_on(3_000, true, early, Life(0.9, 0.6, 3_000.0, 20_000.0));
        assert!(!w.thrash.is_on());
        assert!(w.goes_on(10_000, true, THRASH, GOOD) > 8_000);
    }

    #[test]
    fn no_process_can_say_too_much() {
        let most = Work {
            ran: Duration::MAX,
            waited: Duration::MAX,
            returns: u64::MAX,
            came: u64::MAX,
        };
        let none = Work::default();
        assert_eq!(none.with(most, none).with(most, none), most);
        assert_eq!(none.with(none, most), none);
        let mut thrash = Thrash::new(2);
        for i in 0..1000 {
            thrash.look(i * 10 * MS, if i % 2 == 0 { most } else { none }, true);
        }
    }
}
