//! Divides the limit among the processes of a run.
//!
//! The limit is one for all. Who needs little keeps little; those that want more than they have
//! share the rest equally. A limit is raised only out of what nobody holds: lowering another's
//! comes first, and only what that process has really given up is handed on.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use hugeswap_control::Proc;
use hugeswap_mm::PAGE_SIZE;
use hugeswap_sys::futex::{self, Scope};

use super::life::Id;
use super::processes::{Member, Processes};

/// What a process gets beyond what it uses before it has to ask: 16 MiB.
const SLACK: i64 = (16 << 20) / PAGE_SIZE as i64;
/// What one that rests has beyond what it uses, at least: 256 KiB.
const REST: i64 = (256 << 10) / PAGE_SIZE as i64;
/// Without a fault for so long a process rests: it sleeps, or has what it needs.
const RESTS_AFTER: Duration = Duration::from_millis(300);

pub struct Arbiter {
    limit: i64,
    /// Of each process: the faults that were counted last, and when that number changed.
    faults: HashMap<Id, (u64, Instant)>,
}

impl Arbiter {
    pub fn new(limit_bytes: u64) -> Arbiter {
        Arbiter {
            limit: (limit_bytes / PAGE_SIZE as u64) as i64,
            faults: HashMap::new(),
        }
    }

    pub fn set_limit(&mut self, limit_bytes: u64) {
        self.limit = (limit_bytes / PAGE_SIZE as u64) as i64;
    }

    /// One round. True while somebody waits for more.
    pub fn turn(&mut self, processes: &Processes) -> bool {
        let procs: Vec<_> = processes.present().collect();
        self.faults
            .retain(|id, _| procs.iter().any(|(i, _)| i == id));
        // A process can write its limit too: no more than all there is is believed.
        let limit_of = |m: &Member| m.page().limit_pages.load(Acquire).clamp(0, self.limit);
        let wants: Vec<Want> = procs
            .iter()
            .map(|&(id, m)| Want {
                used: m.charged(),
                pressed: m.page().pressed.load(Acquire) != 0,
                rests: rests(&mut self.faults, id, m.page()),
            })
            .collect();
        let targets = shares(self.limit, &wants);
        // Lower first.
        for (&(_, m), &t) in procs.iter().zip(&targets) {
            if m.page().limit_pages.load(Acquire) > t {
                set_limit(m.page(), t);
            }
        }
        let held: i64 = procs
            .iter()
            .map(|&(_, m)| limit_of(m).max(m.charged()))
            .sum();
        let mut free = self.limit - held;
        let mut waiting = false;
        for (&(_, m), &t) in procs.iter().zip(&targets) {
            let now = limit_of(m);
            if now < t {
                // What it holds above its limit is counted as held already.
                let base = now.max(m.charged());
                let more = (t - base).min(free.max(0)).max(0);
                free -= more;
                set_limit(m.page(), base.min(t) + more);
                waiting |= base.min(t) + more < t;
            }
        }
        waiting
    }
}

/// Whether the process has had no faults for a while.
fn rests(faults: &mut HashMap<Id, (u64, Instant)>, id: Id, p: &Proc) -> bool {
    let now = (p.stats.pgminfault.get()).wrapping_add(p.stats.pgmajfault.get());
    let (seen, since) = faults.entry(id).or_insert((now, Instant::now()));
    if *seen != now {
        (*seen, *since) = (now, Instant::now());
    }
    since.elapsed() > RESTS_AFTER
}

fn set_limit(p: &Proc, pages: i64) {
    p.limit_pages.store(pages, Release);
    p.limit_seq.fetch_add(1, Release);
    futex::wake(&p.limit_seq, 1, Scope::Shared);
}

#[derive(Clone, Copy)]
struct Want {
    used: i64,
    /// It has less free than it would like to have.
    pressed: bool,
    rests: bool,
}

/// Everybody's limit: those who want more share equally what the others leave. Of a hundred
/// processes each has less free than it would like, and most of them sleep: what counts then is who
/// has faults.
fn shares(limit: i64, wants: &[Want]) -> Vec<i64> {
    if wants.len() <= 1 {
        return wants.iter().map(|_| limit).collect();
    }
    let n = wants.len() as i64;
    let is_hungry = |w: &Want| w.pressed && !w.rests;
    let hungry = wants.iter().filter(|w| is_hungry(w)).count() as i64;
    let fair = limit / n;
    // A process that does not press keeps what it uses and some slack, up to its fair share.
    // If it rests and others do not, less of that.
    let modest = |w: &Want| {
        let slack = if w.rests && hungry > 0 {
            (w.used / 2).clamp(REST, SLACK)
        } else {
            SLACK
        };
        (w.used + slack).min(fair)
    };
    let kept: i64 = wants.iter().filter(|w| !is_hungry(w)).map(modest).sum();
    if hungry == 0 {
        // Nobody presses: what is left over is open to all alike.
        let spare = (limit - kept).max(0) / n;
        return wants.iter().map(|w| modest(w) + spare).collect();
    }
    let each = (limit - kept).max(0) / hungry;
    wants
        .iter()
        .map(|w| if is_hungry(w) { each } else { modest(w) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn w(used: i64, pressed: bool) -> Want {
        let rests = false;
        Want {
            used,
            pressed,
            rests,
        }
    }

    #[test]
    fn the_limit_is_never_exceeded() {
        let cases: [&[Want]; 6] = [
            &[],
            &[w(5, true)],
            &[w(0, false), w(100_000, true)],
            &[w(100_000, true), w(100_000, true)],
            &[w(100_000, false), w(100_000, true), w(10, false)],
            &[w(10, false), w(20, false), w(30, false)],
        ];
        for c in cases {
            let s = shares(131_072, c);
            assert!(s.iter().sum::<i64>() <= 131_072, "{s:?}");
            assert!(s.iter().all(|&x| x >= 0));
        }
    }

    #[test]
    fn the_hungry_share_what_the_modest_leave() {
        let s = shares(100_000, &[w(1000, false), w(60_000, true), w(60_000, true)]);
        assert_eq!(s[0], 1000 + SLACK);
        assert_eq!(s[1], s[2]);
        assert_eq!(s[1], (100_000 - s[0]) / 2);
    }

    /// A hundred children that sleep leave nearly half of 64 MiB to their parent, not a hundredth.
    #[test]
    fn those_that_rest_leave_more() {
        let mut all = vec![w(20, true); 100];
        all.iter_mut().for_each(|w| w.rests = true);
        all.push(w(4000, true));
        let s = shares(16_384, &all);
        assert!(s[100] > 16_384 * 2 / 5, "{s:?}");
        assert!(s[..100].iter().all(|&x| x >= 20 + REST), "{s:?}");
        assert!(s.iter().sum::<i64>() <= 16_384, "{s:?}");
    }

    #[test]
    fn one_alone_has_it_all() {
        assert_eq!(shares(777, &[w(0, false)]), [777]);
    }
}
