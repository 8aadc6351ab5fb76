//! Whose turn it is, where processes take turns. Pure.
//!
//! They stand in a line, in the order in which they came. From its head on each gets what it wants, as long as
//! there is anything left. One that has had its turn, or neither runs nor waits for a page, goes to the end.

use std::time::Duration;

use crate::life::Id;

/// How long a turn lasts: so long, and more where much has to come back for it.
const SLICE: Duration = Duration::from_secs(1);
const SLICE_PER_PAGE: Duration = Duration::from_micros(40);
/// All should have had a turn in this time.
const PERIOD: Duration = Duration::from_secs(10);
const SHORTEST: Duration = Duration::from_millis(250);
/// One that has nothing to do for so long has had its turn.
const IDLE: Duration = Duration::from_millis(100);

/// A process, as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub id: Id,
    pub used: i64,
    /// It has run, or waited for a page, since the last look.
    pub is_active: bool,
    pub is_hungry: bool,
}

struct Place {
    id: Id,
    waits: bool,
    /// When its turn began, unless it waits.
    began: Duration,
    active: Duration,
    hungry: Option<Duration>,
    /// The most that it has had in a turn.
    most: i64,
}

#[derive(Default)]
pub struct Turns {
    line: Vec<Place>,
}

/// Where a process stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    pub place: usize,
    /// It waited until now.
    pub waits: bool,
    /// It wants more, or has lately.
    pub is_hungry: bool,
    /// What it is known to need.
    pub most: i64,
}

impl Turns {
    /// Nobody waits any more.
    pub fn end(&mut self) {
        self.line.clear();
    }

    /// The turn of each that has one. Those that have had what they need all the time have none.
    pub fn look(&mut self, now: Duration, seen: &[Seen]) -> Vec<Option<Turn>> {
        let of = |id: Id| seen.iter().find(|s| s.id == id);
        self.line.retain_mut(|p| {
            let Some(s) = of(p.id) else { return false };
            if s.is_active {
                p.active = now;
            }
            if s.is_hungry {
                p.hungry = Some(now);
            }
            if !p.waits {
                p.most = p.most.max(s.used);
            }
            // One that has not run for long stands behind those that come.
            now - p.active < 3 * IDLE || !p.waits
        });
        for s in seen.iter().filter(|s| s.is_active && s.is_hungry) {
            if self.line.iter().all(|p| p.id != s.id) {
                self.line.push(Place {
                    id: s.id,
                    waits: false,
                    began: now,
                    active: now,
                    hungry: Some(now),
                    most: s.used,
                });
            }
        }
        if self.anyone_waits() {
            self.go_on(now);
        }
        let turn = |s: &Seen| {
            let place = self.line.iter().position(|p| p.id == s.id)?;
            let p = &self.line[place];
            Some(Turn {
                place,
                waits: p.waits,
                is_hungry: p.hungry.is_some_and(|then| now - then < IDLE),
                most: p.most,
            })
        };
        seen.iter().map(turn).collect()
    }

    /// Those that have had their turn go to the end.
    fn go_on(&mut self, now: Duration) {
        let running = self.line.iter().filter(|p| !p.waits).count();
        let share = PERIOD * running as u32 / self.line.len() as u32;
        let is_over = |p: &Place| {
            let slice = SLICE + SLICE_PER_PAGE * p.most.clamp(0, 1 << 30) as u32;
            !p.waits && (now - p.began >= slice.min(share).max(SHORTEST) || now - p.active >= IDLE)
        };
        let (over, mut line): (Vec<Place>, Vec<Place>) = std::mem::take(&mut self.line)
            .into_iter()
            .partition(is_over);
        line.extend(over.into_iter().map(|p| Place { began: now, ..p }));
        self.line = line;
    }

    pub fn anyone_waits(&self) -> bool {
        self.line.iter().any(|p| p.waits)
    }

    /// Whether a process waits from now on.
    pub fn set(&mut self, id: Id, now: Duration, waits: bool) {
        if let Some(p) = self.line.iter_mut().find(|p| p.id == id) {
            if p.waits && !waits {
                (p.began, p.active) = (now, now);
            }
            p.waits = waits;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// All of these have something to do.
    fn all(ids: impl IntoIterator<Item = Id>) -> Vec<Seen> {
        let busy = |id| Seen {
            id,
            used: 100,
            is_active: true,
            is_hungry: true,
        };
        ids.into_iter().map(busy).collect()
    }

    fn places(turns: &[Option<Turn>]) -> Vec<Option<usize>> {
        turns.iter().map(|t| t.map(|t| t.place)).collect()
    }

    #[test]
    fn who_comes_first_is_first() {
        let mut turns = Turns::default();
        turns.look(at(0), &all([5, 3]));
        let got = turns.look(at(10), &all([9, 3, 5]));
        assert_eq!(places(&got), [Some(2), Some(1), Some(0)]);
        // One has ended.
        let got = turns.look(at(20), &all([9, 3]));
        assert_eq!(places(&got), [Some(1), Some(0)]);
        turns.end();
        assert_eq!(
            places(&turns.look(at(30), &all([9, 3]))),
            [Some(0), Some(1)]
        );
    }

    /// For each process the milliseconds in which it did not wait, where `at_once` can run at a time.
    fn ran(ids: &[Id], at_once: usize, ms: u64, busy: impl Fn(Id) -> bool) -> Vec<u64> {
        let mut turns = Turns::default();
        let mut ran = vec![0; ids.len()];
        for now in (0..ms).step_by(10) {
            let mut seen = all(ids.iter().copied());
            seen.iter_mut().for_each(|s| s.is_active = busy(s.id));
            for (i, turn) in turns.look(at(now), &seen).into_iter().enumerate() {
                let waits = turn.is_some_and(|t| t.place >= at_once);
                turns.set(ids[i], at(now), waits);
                ran[i] += if waits { 0 } else { 10 };
            }
        }
        ran
    }

    #[test]
    fn each_has_its_turn() {
        for (nr, at_once) in [(2, 1), (8, 3), (30, 2), (200, 4)] {
            let ids: Vec<Id> = (0..nr).collect();
            let ran = ran(&ids, at_once, 120_000, |_| true);
            let even = 120_000 * at_once as u64 / u64::from(nr);
            assert!(
                ran.iter().all(|&r| r > even / 2 && r < even * 2),
                "{nr} {at_once}: {ran:?}"
            );
        }
    }

    #[test]
    fn one_that_wants_no_more_does_not_stand_in_line() {
        let mut turns = Turns::default();
        let mut seen = all([1, 2]);
        seen[0].is_hungry = false;
        assert_eq!(places(&turns.look(at(0), &seen)), [None, Some(0)]);
        // Once it does it stays, however it gets on.
        assert_eq!(
            places(&turns.look(at(10), &all([1, 2]))),
            [Some(1), Some(0)]
        );
        assert_eq!(places(&turns.look(at(20), &seen)), [Some(1), Some(0)]);
    }

    #[test]
    fn nobody_waits_for_one_that_sleeps() {
        let ran = ran(&[0, 1, 2], 1, 20_000, |id| id != 0);
        assert!(ran[1] > 8_000 && ran[2] > 8_000, "{ran:?}");
    }

    #[test]
    fn nobody_loses_a_turn_while_nobody_waits() {
        let mut turns = Turns::default();
        for now in (0..100_000).step_by(10) {
            assert_eq!(
                places(&turns.look(at(now), &all([4, 7]))),
                [Some(0), Some(1)]
            );
        }
    }

    #[test]
    fn what_it_had_is_what_it_needs() {
        let mut turns = Turns::default();
        let with = |used| {
            let mut seen = all([1]);
            seen[0].used = used;
            seen
        };
        let most = |got: Vec<Option<Turn>>| got[0].map(|t| t.most);
        assert_eq!(most(turns.look(at(0), &with(500))), Some(500));
        turns.set(1, at(0), true);
        assert_eq!(most(turns.look(at(10), &with(900))), Some(500), "it waits");
        turns.set(1, at(10), false);
        assert_eq!(most(turns.look(at(20), &with(700))), Some(700));
    }
}
