//! Divides the limit among the processes of a run.
//!
//! The limit is one for all. Each process keeps what it uses until another wants more than it has; then the
//! largest give way, step by step, until those that want more have as much as each other. A process that
//! rests meanwhile gives up what it holds, little by little: if it uses it after all, it has faults, and
//! rests no more. A limit is raised only out of memory that nobody holds: lowering another's comes first,
//! and only what that process has really given up is handed on. A process that asks is told whether more is
//! still to come.
//!
//! Groups have limits of their own within the run's. For a wish in a group that is full only the processes
//! within it give way.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use hugeswap_control::{More, Pressed, Proc};
use hugeswap_mm::PAGE_SIZE;
use hugeswap_sys::futex::{self, Scope};

use super::groups::{Groups, RUN};
use super::life::Id;
use super::processes::{Member, Processes};

/// A process that wants more gets so much at a time: 4 MiB, or half of what it uses.
const STEP: i64 = (4 << 20) / PAGE_SIZE as i64;
/// What one that does not has beyond what it uses, while others want more: 256 KiB.
const SLACK: i64 = (256 << 10) / PAGE_SIZE as i64;
/// Without a fault for so long a process rests: it sleeps, or has what it needs.
const RESTS_AFTER: Duration = Duration::from_millis(300);
/// This part of what one that rests uses it gives up each time, while others want more.
const IDLE_PART: i64 = 128;

pub struct Arbiter {
    /// There is a device for what one that rests gives up.
    has_devices: bool,
    /// Of each process: the faults that were counted last, and when that number changed.
    faults: HashMap<Id, (u64, Instant)>,
}

impl Arbiter {
    pub fn new(has_devices: bool) -> Arbiter {
        Arbiter {
            has_devices,
            faults: HashMap::new(),
        }
    }

    /// One round. True while somebody waits for more.
    pub fn turn(&mut self, processes: &Processes) -> bool {
        let (groups, limit) = (&processes.groups, processes.groups.pages(RUN));
        let procs: Vec<_> = processes.present().collect();
        self.faults
            .retain(|id, _| procs.iter().any(|(i, _)| i == id));
        // Questions first: the answers are to what is divided now.
        let questions: Vec<_> = procs.iter().map(|(_, m)| m.page().question()).collect();
        let wants: Vec<Want> = procs
            .iter()
            .zip(&questions)
            .map(|(&(id, m), question)| Want {
                used: m.charged(),
                pressed: m.page().pressed() != Pressed::No || question.is_some(),
                rests: self.rests(id, m.page()),
                group: m.group,
            })
            .collect();
        let members: Vec<&Member> = procs.iter().map(|&(_, m)| m).collect();
        let targets = shares(groups, &wants);
        // Lower first.
        for (m, &t) in members.iter().zip(&targets) {
            if m.page().limit_pages.load(Acquire) > t {
                set_limit(m.page(), t);
            }
        }
        let waiting = raise(groups, limit, &members, &targets);
        for ((m, question), &t) in members.iter().zip(questions).zip(&targets) {
            if let Some(question) = question {
                let more = match limit_of(m, limit) < t {
                    true => More::ToCome,
                    false => More::HasAll,
                };
                if m.page().answer_question(question, more) {
                    call(m.page());
                }
            }
        }
        waiting
    }

    /// Whether the process has had no faults for a while, and what it gives up has a place to go to.
    fn rests(&mut self, id: Id, p: &Proc) -> bool {
        let now = (p.stats.pgminfault.get()).wrapping_add(p.stats.pgmajfault.get());
        let (seen, since) = self.faults.entry(id).or_insert((now, Instant::now()));
        if *seen != now {
            (*seen, *since) = (now, Instant::now());
        }
        // They count when they have been served, and one may wait for more memory.
        let waits = p.pressed() == Pressed::Waits;
        since.elapsed() > RESTS_AFTER && self.has_devices && !waits
    }
}

/// A process can write its limit too: no more than all there is (`most`) is believed.
fn limit_of(m: &Member, most: i64) -> i64 {
    m.page().limit_pages.load(Acquire).clamp(0, most)
}

/// Raises limits towards the targets, out of what nobody holds. True if a process must wait for its target.
fn raise(groups: &Groups, limit: i64, members: &[&Member], targets: &[i64]) -> bool {
    let held = members
        .iter()
        .map(|m| (m.group, limit_of(m, limit).max(m.charged())));
    let mut free: Vec<i64> = groups
        .sums(held)
        .into_iter()
        .zip(0..)
        .map(|(held, group)| groups.pages(group) - held)
        .collect();
    let mut waiting = false;
    for (m, &t) in members.iter().zip(targets) {
        let now = limit_of(m, limit);
        if now < t {
            // What it holds above its limit is counted as held already.
            let base = now.max(m.charged());
            let most = groups.ancestors(m.group).map(|g| free[g].max(0)).min();
            let more = (t - base).min(most.unwrap_or(0)).max(0);
            groups.ancestors(m.group).for_each(|g| free[g] -= more);
            set_limit(m.page(), base.min(t) + more);
            waiting |= base.min(t) + more < t;
        }
    }
    waiting
}

fn set_limit(p: &Proc, pages: i64) {
    p.limit_pages.store(pages, Release);
    call(p);
}

fn call(p: &Proc) {
    p.limit_seq.fetch_add(1, Release);
    futex::wake(&p.limit_seq, 1, Scope::Shared);
}

#[derive(Clone, Copy, Debug)]
struct Want {
    used: i64,
    /// It has less free than it would like to have, or no room for what is to leave.
    pressed: bool,
    rests: bool,
    group: usize,
}

impl Want {
    fn is_hungry(&self) -> bool {
        self.pressed && !self.rests
    }

    fn hungry_ask(&self) -> i64 {
        self.used + STEP.max(self.used / 2)
    }
}

/// Everybody's limit. Of a hundred processes each has less free than it would like, and most of them sleep:
/// what counts then is who has faults.
fn shares(groups: &Groups, wants: &[Want]) -> Vec<i64> {
    let pressed = pressed_groups(groups, wants);
    let others_want = |w: &Want| groups.ancestors(w.group).any(|g| pressed[g]);
    let mut shares: Vec<i64> = wants
        .iter()
        .map(|w| match w {
            w if !others_want(w) => w.used,
            w if w.is_hungry() => w.hungry_ask(),
            w if w.rests => w.used - w.used / IDLE_PART + SLACK,
            w => w.used + SLACK,
        })
        .collect();
    // The inner ones first: what is too much for a group is not asked of those around it.
    let in_use = groups.in_use(wants.iter().map(|w| w.group));
    for group in in_use.into_iter().chain([RUN]) {
        let (within, asks): (Vec<usize>, Vec<i64>) = (0..wants.len())
            .filter(|&i| groups.is_within(wants[i].group, group))
            .map(|i| (i, shares[i]))
            .unzip();
        let levelled = level(groups.pages(group), asks);
        within
            .into_iter()
            .zip(levelled)
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
    let asks = wants.iter().map(|w| match w.is_hungry() {
        true => (w.group, w.hungry_ask()),
        false => (w.group, w.used),
    });
    let asked = groups.sums(asks);
    let mut pressed = vec![false; asked.len()];
    for w in wants.iter().filter(|w| w.is_hungry()) {
        let full = groups
            .ancestors(w.group)
            .find(|&g| asked[g] > groups.pages(g));
        pressed[full.unwrap_or(RUN)] = true;
    }
    pressed
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
    use super::super::object::Object;
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
        }
    }

    /// Its fault counts when it is served, which takes memory that only others can give.
    #[test]
    fn one_whose_fault_waits_does_not_rest() {
        let (object, id) = (Object::new().unwrap(), 7);
        let page = object.page();
        let mut arbiter = Arbiter::new(true);
        assert!(!arbiter.rests(id, page), "just seen");
        let Some(long_ago) = Instant::now().checked_sub(2 * RESTS_AFTER) else {
            panic!("the clock has just begun");
        };
        arbiter.faults.insert(id, (0, long_ago));
        for (pressed, rests) in [
            (Pressed::No, true),
            (Pressed::Short, true),
            (Pressed::Waits, false),
            (Pressed::No, true),
        ] {
            page.set_pressed(pressed);
            assert_eq!(arbiter.rests(id, page), rests, "{pressed:?}");
        }
        page.stats.pgmajfault.inc();
        assert!(!arbiter.rests(id, page));
        arbiter.faults.insert(id, (1, long_ago));
        arbiter.has_devices = false;
        assert!(!arbiter.rests(id, page), "it has nowhere to go to");
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

    #[test]
    fn one_alone_has_it_all() {
        assert_eq!(shares(777, &[content(RUN, 0)]), [777]);
    }
}
