//! Who may have how much. Pure.

use super::turns::Turn;
use crate::groups::{Groups, RUN};
use hugeswap_mm::PAGE_SIZE;

/// A process that wants more gets so much at a time: 4 MiB, or half of what it uses.
const STEP: i64 = (4 << 20) / PAGE_SIZE as i64;
/// What one that does not has beyond what it uses, while others want more: 256 KiB.
const SLACK: i64 = (256 << 10) / PAGE_SIZE as i64;
/// This part of what one that rests uses it gives up each time, while others want more.
const IDLE_PART: i64 = 128;
/// Where processes take turns those that wait keep so much, a quarter of an equal part at most: 8 MiB. One that needs no
/// more does not wait.
const FLOOR: i64 = (8 << 20) / PAGE_SIZE as i64;

#[derive(Clone, Copy, Debug)]
pub struct Want {
    pub used: i64,
    /// It has less free than it would like to have, or no room for what is to leave.
    pub pressed: bool,
    pub rests: bool,
    pub group: usize,
    /// Where they take turns.
    pub turn: Option<Turn>,
}

impl Want {
    pub fn is_hungry(&self) -> bool {
        self.pressed && !self.rests || self.turn.is_some_and(|t| t.is_hungry)
    }

    fn ask(&self) -> i64 {
        match self.is_hungry() {
            true => self.hungry_ask(),
            false => self.used,
        }
    }

    fn hungry_ask(&self) -> i64 {
        let ask = self.used + STEP.max(self.used / 2);
        ask.max(self.turn.map_or(0, |t| t.most))
    }

    /// What it has whoever's turn it is.
    fn floor(&self, ask: i64, floor: i64) -> i64 {
        match self.turn {
            Some(_) => ask.min(floor),
            None => ask,
        }
    }
}

/// Whether several want more, and that is more than there is.
pub fn is_short(groups: &Groups, wants: &[Want]) -> bool {
    let asked = groups.sums(wants.iter().map(|w| (w.group, w.ask())));
    let is_full = |w: &&Want| {
        groups
            .ancestors(w.group)
            .any(|g| asked[g] > groups.pages(g))
    };
    wants
        .iter()
        .filter(|w| w.is_hungry())
        .filter(is_full)
        .count()
        > 1
}

/// Who waits for a turn: those that want more than they have, and can't have it now. In each group one goes on.
pub fn waiting(wants: &[Want], shares: &[i64]) -> Vec<bool> {
    let place = |w: &Want| w.turn.map_or(usize::MAX, |t| t.place);
    let first_in = |group: usize| {
        let hungry = wants.iter().filter(|w| w.group == group && w.is_hungry());
        hungry.map(place).min()
    };
    let waits = |(w, &share): (&Want, &i64)| {
        let Some(turn) = w.turn.filter(|_| w.is_hungry()) else {
            return false;
        };
        // One that waits does not begin for a little.
        let enough = match turn.waits {
            true => w.used + STEP,
            false => w.used + SLACK,
        };
        share < enough && Some(turn.place) != first_in(w.group)
    };
    wants.iter().zip(shares).map(waits).collect()
}

/// Everybody's limit. Of a hundred processes each has less free than it would like, and most of them sleep:
/// what counts then is who has faults.
pub fn shares(groups: &Groups, wants: &[Want]) -> Vec<i64> {
    let pressed = pressed_groups(groups, wants);
    let others_want = |w: &Want| groups.ancestors(w.group).any(|g| pressed[g]);
    let mut shares: Vec<i64> = wants
        .iter()
        .map(|w| match w {
            w if !others_want(w) => w.used,
            w if w.is_hungry() => w.hungry_ask(),
            w if w.rests && w.turn.is_none() => w.used - w.used / IDLE_PART + SLACK,
            w => w.used + SLACK,
        })
        .collect();
    // The inner ones first: what is too much for a group is not asked of those around it.
    let in_use = groups.in_use(wants.iter().map(|w| w.group));
    for group in in_use.into_iter().chain([RUN]) {
        let within: Vec<usize> = (0..wants.len())
            .filter(|&i| groups.is_within(wants[i].group, group))
            .collect();
        let asks = within.iter().map(|&i| (wants[i], shares[i])).collect();
        let divided = in_line(groups.pages(group), asks);
        within
            .into_iter()
            .zip(divided)
            .for_each(|(i, s)| shares[i] = s);
    }
    // What is left over is open to those that want it, or to all.
    let open = |w: &Want| !others_want(w) || w.is_hungry();
    let taken = groups.sums(wants.iter().map(|w| w.group).zip(shares.iter().copied()));
    let nr = groups.sums(wants.iter().map(|w| (w.group, open(w).into())));
    let spare = |g: usize| (groups.pages(g) - taken[g]).max(0) / nr[g].max(1);
    for (share, w) in shares.iter_mut().zip(wants).filter(|(_, w)| open(w)) {
        *share += groups.ancestors(w.group).map(spare).min().unwrap_or(0);
    }
    shares
}

/// The groups in which others give way: for each process that wants more, the innermost one of its own that has no
/// room for that, or the run.
fn pressed_groups(groups: &Groups, wants: &[Want]) -> Vec<bool> {
    let asked = groups.sums(wants.iter().map(|w| (w.group, w.ask())));
    let mut pressed = vec![false; asked.len()];
    for w in wants.iter().filter(|w| w.is_hungry()) {
        let full = groups
            .ancestors(w.group)
            .find(|&g| asked[g] > groups.pages(g));
        pressed[full.unwrap_or(RUN)] = true;
    }
    pressed
}

/// Where they take turns each gets what it asks for in the order of the line, beyond what all have. Otherwise none is before others.
fn in_line(limit: i64, asks: Vec<(Want, i64)>) -> Vec<i64> {
    let floor = FLOOR.min(limit.max(0) / (4 * asks.len().max(1) as i64));
    let sure = asks.iter().map(|(w, ask)| w.floor(*ask, floor)).collect();
    let mut shares = level(limit, sure);
    let mut left = limit.max(0) - shares.iter().sum::<i64>();
    let mut line: Vec<(usize, usize)> = (asks.iter().enumerate())
        .filter_map(|(i, (w, _))| Some((w.turn?.place, i)))
        .collect();
    line.sort_unstable();
    for (_, i) in line {
        let more = (asks[i].1 - shares[i]).clamp(0, left);
        shares[i] += more;
        left -= more;
    }
    shares
}

/// Everybody gets what he asks for; where that is more than there is, none gets more than the others but
/// where these ask for less.
fn level(limit: i64, asks: Vec<i64>) -> Vec<i64> {
    let mut order: Vec<usize> = (0..asks.len()).collect();
    order.sort_unstable_by_key(|&i| asks[i]);
    let (mut shares, mut left) = (asks, limit.max(0));
    for (done, &i) in order.iter().enumerate() {
        shares[i] = shares[i].clamp(0, left / (order.len() - done) as i64);
        left -= shares[i];
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has so many pages and would take more.
    fn hungry(group: usize, used: i64) -> Want {
        Want {
            pressed: true,
            ..content(group, used)
        }
    }

    /// Has so many pages, and uses them.
    fn content(group: usize, used: i64) -> Want {
        Want {
            used,
            pressed: false,
            rests: false,
            group,
            turn: None,
        }
    }

    fn run_of(limit: i64) -> Groups {
        let mut groups = Groups::new([0, 0]);
        groups.set_run(limit);
        groups
    }

    /// As without groups.
    fn shares(limit: i64, wants: &[Want]) -> Vec<i64> {
        super::shares(&run_of(limit), wants)
    }

    /// A group of the run, of so many MiB.
    fn group(groups: &mut Groups, name: &str, mib: u64) -> usize {
        let name = hugeswap_control::link::group_name(name).unwrap();
        let own = groups.make([0, 0], mib << 20, &name).unwrap();
        groups.of_secret(own).unwrap()
    }

    const fn pages(mib: i64) -> i64 {
        mib * 256
    }

    /// A hungry one has its group's limit and no more, however much room there is in the run.
    #[test]
    fn a_group_is_bounded_within_the_run() {
        let mut groups = run_of(pages(1024));
        let a = group(&mut groups, "a", 64);
        let mut all = [hungry(a, 0), hungry(RUN, 0)];
        for _ in 0..50 {
            let s = super::shares(&groups, &all);
            assert!(s[0] <= pages(64), "{s:?}");
            assert!(s.iter().sum::<i64>() <= pages(1024), "{s:?}");
            all.iter_mut().zip(s).for_each(|(w, s)| w.used = s);
        }
        assert_eq!(all[0].used, pages(64));
        assert!(all[1].used > pages(950), "{all:?}");
    }

    /// What is wanted in a full group the others of that group give way for, and nobody else.
    #[test]
    fn nobody_outside_gives_way_for_a_full_group() {
        let mut groups = run_of(pages(1024));
        let a = group(&mut groups, "a", 64);
        let rests = |group, used| Want {
            rests: true,
            ..content(group, used)
        };
        let all = [
            hungry(a, pages(20)),
            rests(a, pages(44)),
            rests(RUN, pages(500)),
        ];
        let s = super::shares(&groups, &all);
        assert!(s[0] > pages(20) && s[1] < pages(44), "{s:?}");
        assert!(s[2] >= pages(500), "{s:?}");
        // For one of the run's it does.
        let all = [
            rests(a, pages(60)),
            rests(RUN, pages(500)),
            hungry(RUN, pages(464)),
        ];
        let s = super::shares(&groups, &all);
        assert!(
            s[0] < pages(60) && s[1] < pages(500) && s[2] > pages(464),
            "{s:?}"
        );
    }

    /// Two in one group share its limit; a group within it is bounded by both.
    #[test]
    fn groups_within_groups() {
        let mut groups = Groups::new([0, 0]);
        groups.set_run(pages(400));
        let name = |n| hugeswap_control::link::group_name(n).unwrap();
        let outer = groups.make([0, 0], 256 << 20, &name("outer")).unwrap();
        let inner = groups.make(outer, 100 << 20, &name("inner")).unwrap();
        let number = |s| groups.of_secret(s).unwrap();
        let (outer, inner) = (number(outer), number(inner));
        let mut all = [
            hungry(RUN, 0),
            hungry(outer, 0),
            hungry(inner, 0),
            hungry(inner, 0),
        ];
        for _ in 0..60 {
            let s = super::shares(&groups, &all);
            assert!(s[2] + s[3] <= pages(100), "{s:?}");
            assert!(s[1] + s[2] + s[3] <= pages(256), "{s:?}");
            assert!(s.iter().sum::<i64>() <= pages(400), "{s:?}");
            all.iter_mut().zip(s).for_each(|(w, s)| w.used = s);
        }
        assert!((all[2].used - all[3].used).abs() <= 1, "{all:?}");
        assert!(all[2].used + all[3].used > pages(99), "{all:?}");
        assert!(all[1].used > pages(145), "{all:?}");
        assert!(all[0].used > pages(140), "{all:?}");
    }

    #[test]
    fn the_limit_is_never_exceeded() {
        let cases: [&[Want]; 6] = [
            &[],
            &[hungry(RUN, 5)],
            &[content(RUN, 0), hungry(RUN, 100_000)],
            &[hungry(RUN, 100_000), hungry(RUN, 100_000)],
            &[
                content(RUN, 100_000),
                hungry(RUN, 100_000),
                content(RUN, 10),
            ],
            &[content(RUN, 10), content(RUN, 20), content(RUN, 30)],
        ];
        for c in cases {
            let s = shares(131_072, c);
            assert!(s.iter().sum::<i64>() <= 131_072, "{s:?}");
            assert!(s.iter().all(|&x| x >= 0));
        }
    }

    #[test]
    fn the_hungry_come_to_share_what_the_modest_leave() {
        let mut all = [content(RUN, 1000), hungry(RUN, 90_000), hungry(RUN, 5000)];
        for _ in 0..20 {
            let s = shares(100_000, &all);
            assert_eq!(s[0], 1000 + SLACK);
            // Nobody gets much at a time.
            assert!(s[2] <= all[2].used + STEP.max(all[2].used / 2), "{s:?}");
            (all[1].used, all[2].used) = (s[1], s[2]);
        }
        assert!(all[1].used.abs_diff(all[2].used) <= 1, "{all:?}");
        assert!(all[1].used > 49_000, "{all:?}");
    }

    /// One that has nearly all, and at the moment enough, keeps it beside others that have little.
    #[test]
    fn nobody_gives_up_what_nobody_wants() {
        let (limit, mut all) = (
            59_392,
            [content(RUN, 300), content(RUN, 57_000), content(RUN, 250)],
        );
        assert!(shares(limit, &all)[1] >= 57_000);
        // Nor much, if another wants a little.
        all[2].pressed = true;
        let s = shares(limit, &all);
        assert!(s[1] >= 57_000 - STEP && s[2] >= 250 + STEP, "{s:?}");
    }

    /// What rests has no more than others that want more, and then gives up the rest little by little.
    #[test]
    fn what_rests_gives_way() {
        let mut all = [content(RUN, 50_000), hungry(RUN, 9000)];
        assert!(shares(60_000, &all)[0] >= 50_000 - 4500);
        all[0].rests = true;
        let given: Vec<_> = core::iter::repeat_with(|| {
            let s = shares(60_000, &all);
            let gave = all[0].used - s[0];
            (all[0].used, all[1].used) = (s[0], s[1]);
            gave
        })
        .take(500)
        .collect();
        assert!(given[10..].iter().all(|&gave| gave < 200), "{given:?}");
        assert!(all[0].used < 12_000, "{all:?}");
    }

    /// A hundred children that sleep leave nearly half of 64 MiB to their parent, not a hundredth.
    #[test]
    fn those_that_rest_leave_more() {
        let mut all = vec![hungry(RUN, 20); 100];
        all.iter_mut().for_each(|w| w.rests = true);
        all.push(hungry(RUN, 4000));
        let s = shares(16_384, &all);
        assert!(s[100] > 16_384 * 2 / 5, "{s:?}");
        assert!(s[..100].iter().all(|&x| x >= 20 + SLACK), "{s:?}");
        assert!(s.iter().sum::<i64>() <= 16_384, "{s:?}");
    }

    /// Wants more, and stands there in the line.
    fn in_line(place: usize, used: i64, most: i64) -> Want {
        Want {
            turn: Some(Turn {
                place,
                waits: false,
                is_hungry: true,
                most,
            }),
            ..hungry(RUN, used)
        }
    }

    fn waiting(wants: &[Want], limit: i64) -> (Vec<i64>, Vec<bool>) {
        let s = shares(limit, wants);
        let w = super::waiting(wants, &s);
        (s, w)
    }

    /// Of three that need 80 MiB each two have that, in the order of the line.
    #[test]
    fn as_many_go_on_as_there_is_room_for() {
        let need = pages(80);
        let all = [
            in_line(2, pages(60), need),
            in_line(1, pages(60), need),
            in_line(0, pages(60), need),
        ];
        let (s, waits) = waiting(&all, pages(200));
        assert!(s[2] >= need && s[1] >= need && s[0] <= pages(40), "{s:?}");
        assert_eq!(waits, [true, false, false]);
        assert!(s.iter().sum::<i64>() <= pages(200));
    }

    /// However much it wants.
    #[test]
    fn the_first_always_goes_on() {
        let all = [
            in_line(0, pages(190), pages(500)),
            in_line(1, pages(10), pages(80)),
        ];
        let (s, waits) = waiting(&all, pages(200));
        assert!(s[0] >= pages(190), "{s:?}");
        assert_eq!(waits, [false, true]);
    }

    #[test]
    fn what_needs_little_never_waits() {
        let all = [
            in_line(0, pages(180), pages(300)),
            in_line(1, pages(20), pages(80)),
            in_line(2, pages(1), pages(1)),
            // It sleeps.
            content(RUN, pages(1)),
        ];
        let (s, waits) = waiting(&all, pages(200));
        assert_eq!(waits, [false, true, false, false]);
        assert!(s[2] > pages(1) + SLACK && s[3] >= pages(1), "{s:?}");
    }

    /// One that waits goes on when there is room for some pages, not for a few.
    #[test]
    fn nobody_begins_for_a_little() {
        let waits = |was: bool, room: i64| {
            let mut all = [
                in_line(0, pages(100), pages(200)),
                in_line(1, pages(40), pages(80)),
            ];
            if let Some(turn) = &mut all[1].turn {
                turn.waits = was;
            }
            waiting(&all, pages(240) + room).1[1]
        };
        assert!(waits(true, SLACK) && !waits(false, SLACK));
        assert!(waits(false, 0) && !waits(true, STEP));
    }

    /// In a group of its own each goes on.
    #[test]
    fn one_of_each_group_goes_on() {
        let mut groups = run_of(pages(300));
        let a = group(&mut groups, "a", 64);
        let of = |group, w: Want| Want { group, ..w };
        let all = [
            in_line(0, pages(200), pages(250)),
            of(a, in_line(1, pages(40), pages(80))),
            of(a, in_line(2, pages(20), pages(80))),
        ];
        let s = super::shares(&groups, &all);
        assert_eq!(super::waiting(&all, &s), [false, false, true], "{s:?}");
        assert!(s[1] + s[2] <= pages(64), "{s:?}");
    }

    #[test]
    fn they_are_short_where_several_want_more_than_there_is() {
        let short = |limit, wants: &[Want]| is_short(&run_of(limit), wants);
        let two = [hungry(RUN, pages(100)), hungry(RUN, pages(50))];
        assert!(short(pages(200), &two) && !short(pages(300), &two));
        assert!(!short(
            pages(200),
            &[hungry(RUN, pages(199)), content(RUN, pages(1))]
        ));
        // There is room in the run, and none in their group.
        let mut groups = run_of(pages(1000));
        let a = group(&mut groups, "a", 64);
        assert!(is_short(
            &groups,
            &[hungry(a, pages(40)), hungry(a, pages(24))]
        ));
        assert!(!is_short(
            &groups,
            &[hungry(a, pages(64)), hungry(RUN, pages(24))]
        ));
    }

    #[test]
    fn one_alone_has_it_all() {
        assert_eq!(shares(777, &[content(RUN, 0)]), [777]);
    }
}
