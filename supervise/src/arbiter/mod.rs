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
//!
//! Where all get on badly so they take turns, if that is better (`thrash`).

mod load;
mod shares;
mod thrash;
mod turns;

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use hugeswap_control::{More, Pressed, Proc};
use hugeswap_sys::futex::{self, Scope};

use crate::groups::{Groups, RUN};
use crate::life::Id;
use crate::processes::{Member, Processes};
use load::Load;
pub use load::Order;
use shares::{shares, waiting, Want};

/// Without a fault for so long a process rests: it sleeps, or has what it needs.
const RESTS_AFTER: Duration = Duration::from_millis(300);

pub struct Arbiter {
    /// There is a device for what one that rests gives up.
    has_devices: bool,
    /// Of each process: the faults that were counted last, and when that number changed.
    faults: HashMap<Id, (u64, Instant)>,
    load: Load,
}

impl Arbiter {
    pub fn new(has_devices: bool, order: Order) -> Arbiter {
        Arbiter {
            has_devices,
            faults: HashMap::new(),
            load: Load::new(order, has_devices),
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
        let mut wants: Vec<Want> = procs
            .iter()
            .zip(&questions)
            .map(|(&(id, m), question)| Want {
                used: m.charged(),
                pressed: m.page().pressed() != Pressed::No
                    || question.is_some()
                    || m.page().held_faults.load(Acquire) > 0,
                rests: self.rests(id, m.page()),
                group: m.group,
                turn: None,
            })
            .collect();
        let members: Vec<&Member> = procs.iter().map(|&(_, m)| m).collect();
        let by_turns = self.load.look(groups, &procs, &mut wants);
        let targets = shares(groups, &wants);
        self.load.have_wait(&procs, &waiting(&wants, &targets));
        // Lower first.
        for (m, &t) in members.iter().zip(&targets) {
            if m.page().limit_pages.load(Acquire) > t {
                set_limit(m.page(), t);
            }
        }
        let mut line: Vec<_> = members.iter().copied().zip(&targets).zip(&wants).collect();
        // In the order of their turns, if they take turns.
        line.sort_by_key(|(_, w)| w.turn.map_or(usize::MAX, |t| t.place));
        let line: Vec<(&Member, i64)> = line.iter().map(|((m, &t), _)| (*m, t)).collect();
        let waiting = raise(groups, limit, &line) || by_turns;
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
        let waits = p.pressed() == Pressed::Waits || p.held_faults.load(Acquire) > 0;
        since.elapsed() > RESTS_AFTER && self.has_devices && !waits
    }
}

/// A process can write its limit too: no more than all there is (`most`) is believed.
fn limit_of(m: &Member, most: i64) -> i64 {
    m.page().limit_pages.load(Acquire).clamp(0, most)
}

/// Raises limits towards the targets, out of what nobody holds, the first ones first. True if a process must wait for its target.
fn raise(groups: &Groups, limit: i64, line: &[(&Member, i64)]) -> bool {
    let held = line
        .iter()
        .map(|(m, _)| (m.group, limit_of(m, limit).max(m.charged())));
    let mut free: Vec<i64> = groups
        .sums(held)
        .into_iter()
        .zip(0..)
        .map(|(held, group)| groups.pages(group) - held)
        .collect();
    let mut waiting = false;
    for &(m, t) in line {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Object;

    /// Its fault counts when it is served, which takes memory that only others can give.
    #[test]
    fn one_whose_fault_waits_does_not_rest() {
        let (object, id) = (Object::new().unwrap(), 7);
        let page = object.page();
        let mut arbiter = Arbiter::new(true, Order::Auto);
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
}
