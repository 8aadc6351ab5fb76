//! Loans end where nobody reads any more: sweeps over those who borrow.
//!
//! After a fork the child reads its parent's slots, and those of all before it. What an owner frees of
//! them is put off. In a *sweep* each borrower says which clusters it may still read, and the owner is
//! told what they have said together; the rest of what was put off is free. That is sound because what
//! a process may read of others' slots only gets less: a sweep has ended for an owner when everybody who
//! borrows from it *then* has answered that sweep, a child that was born meanwhile as well; and the owner
//! does not use the answer if it has been given a place for another child since.
//!
//! What owners that are dead had goes back the same way, but for what a write of theirs may still reach.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use hugeswap_control::DeviceEntry;
use hugeswap_sys::futex::{self, Scope};

use super::member::Member;
use crate::life::{Id, Life};

/// Another sweep begins though one has not ended: somebody may be stopped.
const ENOUGH: Duration = Duration::from_millis(100);
/// How often is looked for what dead owners need keep no more, though nobody asks.
const DEAD: Duration = Duration::from_secs(10);

pub struct Sweeps {
    epoch: u32,
    began: Instant,
    dead_next: Instant,
    /// Owners for whom it has not ended.
    pending: BTreeSet<Id>,
}

impl Sweeps {
    pub fn new() -> Sweeps {
        let now = Instant::now();
        Sweeps {
            epoch: 0,
            began: now,
            dead_next: now,
            pending: BTreeSet::new(),
        }
    }

    pub fn is_going_on(&self) -> bool {
        !self.pending.is_empty()
    }

    /// A process was refused swap: what dead owners keep may be what it wants.
    pub fn hurry(&mut self) {
        self.dead_next = Instant::now();
    }

    /// `release` gives a dead owner's clusters to others, by device and cluster, where the function says so.
    pub fn turn(
        &mut self,
        life: &Life,
        members: &BTreeMap<Id, Member>,
        devices: &[DeviceEntry],
        mut release: impl FnMut(Id, &dyn Fn(usize, usize) -> bool),
    ) {
        self.pending.retain(|&owner| life.lends(owner));
        for owner in self.pending.clone() {
            let borrowers: Vec<&Member> = life
                .borrowers(owner)
                .filter_map(|b| members.get(&b))
                .collect();
            let answered = |m: &&Member| m.page().marked.load(Acquire) == self.epoch;
            if !borrowers.iter().all(answered) {
                continue;
            }
            self.pending.remove(&owner);
            let Some(m) = members.get(&owner) else {
                continue;
            };
            let marks = borrowers.iter().map(|b| &b.page().marks);
            if is_dead(life, owner, m) {
                let read = |d, cluster| marks.clone().any(|m| m.has(d, cluster));
                let reached = m.reached();
                release(owner, &|d, cluster| {
                    !read(d, cluster) && !reached.contains(&(d, cluster))
                });
                continue;
            }
            for (d, entry) in devices.iter().enumerate() {
                m.page().lent.unite(d, entry.segments(), marks.clone());
            }
            m.page().swept_after.store(m.last_place, Release);
            m.page().swept.store(self.epoch, Release);
            wake(m);
        }
        self.begin(life, members);
        let asked = self.pending.iter().flat_map(|&o| life.borrowers(o));
        for m in asked.filter_map(|b| members.get(&b)) {
            if m.page().mark_wanted.swap(self.epoch, AcqRel) != self.epoch {
                wake(m);
            }
        }
    }

    fn begin(&mut self, life: &Life, members: &BTreeMap<Id, Member>) {
        let now = Instant::now();
        if self.is_going_on() && now - self.began < ENOUGH {
            return;
        }
        let wants = |m: &Member| m.page().sweep_wanted.load(Relaxed) != 0;
        let anybody = members.values().any(wants);
        let dead = |id: Id, m: &Member| is_dead(life, id, m) && life.lends(id);
        let any_dead = now >= self.dead_next && members.iter().any(|(&id, m)| dead(id, m));
        if !anybody && !any_dead {
            return;
        }
        self.began = now;
        self.dead_next = now + DEAD;
        // Zero is no sweep.
        self.epoch = self.epoch.wrapping_add(1).max(1);
        for (&id, m) in members {
            if m.page().sweep_wanted.swap(0, AcqRel) != 0 || dead(id, m) {
                self.pending.insert(id);
            }
        }
        self.pending.retain(|&owner| life.lends(owner));
    }
}

/// It makes no more requests, and nothing but borrowers needs its swap.
fn is_dead(life: &Life, id: Id, m: &Member) -> bool {
    m.is_examined() && life.is_dead(id)
}

pub fn wake(m: &Member) {
    let seq = &m.page().limit_seq;
    seq.fetch_add(1, Release);
    futex::wake(seq, u32::MAX, Scope::Shared);
}
