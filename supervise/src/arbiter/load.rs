//! Load control: has processes take turns, where that is better.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use super::shares::{is_short, Want};
use super::thrash::{Thrash, Work};
use super::turns::{Seen, Turns};
use crate::groups::Groups;
use crate::life::Id;
use crate::processes::Member;
use crate::sys;

/// A process is active that has run for this part of the time.
const ACTIVE_PART: u32 = 50;

/// Whether processes take turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Where that is better.
    Auto,
    AllAtATime,
    /// They wait at random, for tests.
    AtRandom,
}

pub struct Load {
    order: Order,
    /// Turns are tried.
    tries: bool,
    start: Instant,
    thrash: Thrash,
    turns: Turns,
    /// Since several want more than there is: what each has done, and what all have.
    done: HashMap<Id, Done>,
    work: Work,
    looked: Duration,
}

impl Load {
    /// `has_devices`: what one that waits has can go to them.
    pub fn new(order: Order, has_devices: bool) -> Load {
        Load {
            order,
            tries: has_devices && order == Order::Auto,
            start: Instant::now(),
            thrash: Thrash::new(std::thread::available_parallelism().map_or(1, usize::from)),
            turns: Turns::default(),
            done: HashMap::new(),
            work: Work::default(),
            looked: Duration::ZERO,
        }
    }

    /// Whether processes take turns. Gives them theirs.
    pub fn look(&mut self, groups: &Groups, procs: &[(Id, &Member)], wants: &mut [Want]) -> bool {
        let now = self.start.elapsed();
        let is_short = self.tries && (is_short(groups, wants) || self.turns.anyone_waits());
        let active = match self.thrash.watches(now, is_short) {
            true => self.count_work(now, procs, wants),
            false => {
                self.done.clear();
                vec![false; procs.len()]
            }
        };
        if !self.thrash.look(now, self.work, is_short) {
            self.turns.end();
            return self.order == Order::AtRandom;
        }
        let seen: Vec<Seen> = (procs.iter().zip(&*wants).zip(active))
            .map(|((&(id, _), w), is_active)| Seen {
                id,
                used: w.used,
                is_active,
                is_hungry: w.is_hungry(),
            })
            .collect();
        let turns = self.turns.look(now, &seen);
        wants.iter_mut().zip(turns).for_each(|(w, t)| w.turn = t);
        true
    }

    /// Notes what the processes have done. Which of them are active? Those that have what they need don't count.
    fn count_work(&mut self, now: Duration, procs: &[(Id, &Member)], wants: &[Want]) -> Vec<bool> {
        let elapsed = now.saturating_sub(self.looked);
        self.looked = now;
        self.done.retain(|id, _| procs.iter().any(|(i, _)| i == id));
        let mut count = |(&(id, m), w): (&(Id, &Member), &Want)| {
            let mut all = Done::by(m);
            let before = self.done.get(&id).copied().unwrap_or(all);
            all.counts = before.counts || w.is_hungry();
            self.done.insert(id, all);
            if all.counts {
                self.work = self.work.with(all.work, before.work);
            }
            let waited = all.work.waited > before.work.waited;
            let holds = m.page().held_faults.load(Acquire) > 0;
            let had = all.cpu.saturating_sub(before.cpu);
            holds || waited || had.saturating_mul(ACTIVE_PART) > elapsed
        };
        procs.iter().zip(wants).map(&mut count).collect()
    }

    /// Tells processes whether their faults wait.
    pub fn have_wait(&mut self, procs: &[(Id, &Member)], waits: &[bool]) {
        let now = self.start.elapsed();
        for (&(id, m), &waits) in procs.iter().zip(waits) {
            let waits = waits || self.order == Order::AtRandom && draws(id, now);
            m.page().awaits_turn.store(waits.into(), Release);
            self.turns.set(id, now, waits);
        }
    }
}

/// Every 16 ms anew, for each process.
fn draws(id: Id, now: Duration) -> bool {
    let seed = (now.as_millis() as u64 >> 4) << 32 ^ u64::from(id);
    fastrand::Rng::with_seed(seed).bool()
}

/// What a process has done since it began.
#[derive(Clone, Copy)]
struct Done {
    work: Work,
    /// Processor time, the engine's and the kernel's too.
    cpu: Duration,
    /// It has wanted more.
    counts: bool,
}

impl Done {
    fn by(m: &Member) -> Done {
        let page = m.page();
        let stats = &page.stats;
        Done {
            work: Work {
                ran: Duration::from_nanos(page.program_ns()),
                waited: Duration::from_nanos(page.returns_ns.load(Acquire)),
                returns: page.returns.load(Acquire),
                came: stats.pswpin.get().saturating_add(stats.zswpin.get()),
            },
            cpu: sys::cpu_time(m.pid).unwrap_or_default(),
            counts: false,
        }
    }
}
