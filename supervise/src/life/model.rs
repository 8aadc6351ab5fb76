//! Every order in which a few processes can fork, exec, write, be killed and be buried, with the rules
//! that the supervisor goes by: nobody ever has other bytes in swap than it put there.
//!
//! A process has one page; what is in it is a number that is never used twice. The device keeps writes
//! back as long as it likes, also after whoever made them is dead.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::{Id, Life, Stage};

/// Rules as they were, to see that the search finds what was wrong with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rules {
    AsTheyAre,
    /// With a parent that died its child's place is taken back; the child goes on all the same.
    PlacesGoWithTheParent,
    /// What a dead process had is given away though its writes are on their way.
    NobodyWaitsForWrites,
    /// A child that was made since is not asked.
    SweepsForgetChildren,
}

const SLOTS: usize = 2;
const PROCESSES: usize = 3;
/// Numbers of images at most.
const IMAGES: Id = 6;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Page {
    Here(u8),
    /// Being written to the slot.
    Leaving(u8, u8),
    Out(u8, u8),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    alive: bool,
    image: Id,
    /// Its engine runs.
    spoke: bool,
    page: Page,
    /// Slots of its own that it freed while somebody might read them.
    put_off: BTreeSet<u8>,
    /// The place that it has for a child, and whether there is one by now.
    forking: Option<(Id, bool)>,
    places: u8,
    /// In the sweep that goes on: which slots it may read.
    marked: Option<BTreeSet<u8>>,
    /// What it was told at a sweep's end: slots that are lent, and how many places it had then.
    swept: Option<(BTreeSet<u8>, u8)>,
}

impl Process {
    fn new(image: Id, page: Page) -> Process {
        Process {
            alive: true,
            image,
            spoke: true,
            page,
            put_off: BTreeSet::new(),
            forking: None,
            places: 0,
            marked: None,
            swept: None,
        }
    }
}

/// Takes an event that can happen: what it is called, and what it changes.
type Can<'a> = dyn FnMut(String, &dyn Fn(&mut World)) + 'a;

/// What may still happen so often.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Left {
    changes: u8,
    forks: u8,
    execs: u8,
    kills: u8,
    sweeps: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    life: Life,
    processes: Vec<Process>,
    owners: [Option<Id>; SLOTS],
    disk: [u8; SLOTS],
    /// Writes on their way: whose, to which slot, what.
    flying: BTreeSet<(Id, u8, u8)>,
    /// What the supervisor has not noticed yet: an image's connection has ended, and perhaps its process.
    ended: BTreeSet<(Id, bool)>,
    /// The image for which a sweep goes on.
    sweep: Option<Id>,
    next: u8,
    left: Left,
}

impl World {
    /// Two programs.
    fn new(left: Left) -> World {
        let mut life = Life::default();
        let processes = (0..2).map(|i| Process::new(life.begin(), Page::Here(i + 1)));
        let processes = processes.collect();
        World {
            life,
            processes,
            owners: [None; SLOTS],
            disk: [0; SLOTS],
            flying: BTreeSet::new(),
            ended: BTreeSet::new(),
            sweep: None,
            next: 3,
            left,
        }
    }

    /// A program that is in swap, and its child.
    fn forked(left: Left) -> World {
        let mut w = World::new(left);
        w.life = Life::default();
        let parent = w.life.begin();
        w.owners[0] = Some(parent);
        w.disk[0] = 1;
        if let Some(child) = w.life.promise(parent) {
            w.life.speak(child);
            w.processes = [parent, child]
                .map(|id| Process::new(id, Page::Out(0, 1)))
                .into();
        }
        w.processes[0].places = 1;
        w
    }

    /// Whether anybody has a hold of the image's page: its memory, its parent's, its requests.
    fn is_held(&self, id: Id, rules: Rules) -> bool {
        let by = |p: &Process| {
            p.alive && (p.image == id || p.forking.is_some_and(|(child, _)| child == id))
        };
        self.processes.iter().any(by)
            || rules != Rules::NobodyWaitsForWrites && self.flying.iter().any(|f| f.0 == id)
    }

    fn release(&mut self, id: Id, which: impl Fn(u8) -> bool) {
        for (s, owner) in self.owners.iter_mut().enumerate() {
            if *owner == Some(id) && which(s as u8) {
                *owner = None;
            }
        }
    }

    /// The process has no use for what it had in swap.
    fn drop_page(&mut self, p: usize) {
        let Page::Out(slot, _) = self.processes[p].page else {
            return;
        };
        let id = self.processes[p].image;
        // A lender's slot is left to the lender.
        if self.owners[slot as usize] == Some(id) {
            self.processes[p].put_off.insert(slot);
        }
    }

    /// What is wrong, if anything is.
    fn fault(&self) -> Option<String> {
        self.processes.iter().find_map(|p| match p.page {
            Page::Out(slot, value) if p.alive && self.disk[slot as usize] != value => {
                Some(format!(
                    "process of image {} finds {} in slot {slot}, and not {value}",
                    p.image, self.disk[slot as usize]
                ))
            }
            _ => None,
        })
    }

    /// The same world as another in all that can come of it: what is dead is of no interest, and values
    /// only differ from each other.
    fn simplify(&mut self) {
        for p in &mut self.processes {
            if !p.alive {
                let (image, spoke) = (p.image, p.spoke);
                *p = Process::new(image, Page::Here(0));
                (p.alive, p.spoke) = (false, spoke);
            }
        }
        let mut names: Vec<u8> = vec![0];
        let mut name = |value: &mut u8| {
            let at = names.iter().position(|n| n == value);
            *value = at.unwrap_or_else(|| {
                names.push(*value);
                names.len() - 1
            }) as u8;
        };
        for p in &mut self.processes {
            let (Page::Here(v) | Page::Leaving(_, v) | Page::Out(_, v)) = &mut p.page;
            name(v);
        }
        self.disk.iter_mut().for_each(&mut name);
        let renamed = self.flying.iter().map(|&(id, slot, mut value)| {
            name(&mut value);
            (id, slot, value)
        });
        self.flying = renamed.collect();
        self.next = names.len() as u8;
        if self.sweep.is_none() {
            self.processes.iter_mut().for_each(|p| p.marked = None);
        }
    }

    /// Everything that can happen next.
    fn next(&self, rules: Rules) -> Vec<(String, World)> {
        let mut all = Vec::new();
        let mut can = |what: String, f: &dyn Fn(&mut World)| {
            let mut w = self.clone();
            f(&mut w);
            all.push((what, w));
        };
        for p in 0..self.processes.len() {
            self.of_process(p, rules, &mut can);
        }
        for &f in &self.flying {
            can(format!("the write {f:?} is carried out"), &|w| {
                let (id, slot, value) = f;
                w.flying.remove(&f);
                w.disk[slot as usize] = value;
                for p in &mut w.processes {
                    if p.alive && p.image == id && p.page == Page::Leaving(slot, value) {
                        p.page = Page::Out(slot, value);
                    }
                }
            });
        }
        self.of_supervisor(rules, &mut can);
        all
    }

    fn of_process(&self, p: usize, rules: Rules, can: &mut Can<'_>) {
        let me = &self.processes[p];
        let id = me.image;
        if !me.alive {
            return;
        }
        if self.left.kills > 0 {
            can(format!("{id} is killed"), &|w| {
                w.left.kills -= 1;
                w.processes[p].alive = false;
                w.ended.insert((id, true));
            });
        }
        if !me.spoke {
            can(format!("child {id} speaks"), &|w| {
                w.processes[p].spoke = true;
                let known = w.life.speak(id);
                assert!(known || rules == Rules::PlacesGoWithTheParent);
            });
            return;
        }
        if let Some((child, cloned)) = me.forking {
            if !cloned && self.processes.len() < PROCESSES {
                can(format!("{id} makes {child}"), &|w| {
                    w.processes[p].forking = Some((child, true));
                    let page = w.processes[p].page;
                    w.processes.push(Process {
                        spoke: false,
                        ..Process::new(child, page)
                    });
                });
            }
            can(format!("{id} lets {child} go"), &|w| {
                w.processes[p].forking = None;
                w.life.let_go(id, child);
            });
        } else if self.left.forks > 0 && !matches!(me.page, Page::Leaving(..)) {
            can(format!("{id} asks for a place"), &|w| {
                w.left.forks -= 1;
                if let Some(child) = w.life.promise(id) {
                    w.processes[p].places += 1;
                    w.processes[p].forking = Some((child, false));
                }
            });
        }
        if me.forking.is_none() && self.left.execs > 0 {
            can(format!("{id} execs"), &|w| {
                w.left.execs -= 1;
                let value = w.take_value();
                let new = w.life.begin();
                w.processes[p] = Process::new(new, Page::Here(value));
                // That the new one speaks says that the old one is dead.
                w.ended.insert((id, true));
            });
        }
        match me.page {
            Page::Here(value) => {
                for slot in (0..SLOTS).filter(|&s| self.owners[s].is_none()) {
                    can(format!("{id} writes {value} to {slot}"), &|w| {
                        w.owners[slot] = Some(id);
                        w.flying.insert((id, slot as u8, value));
                        w.processes[p].page = Page::Leaving(slot as u8, value);
                    });
                }
            }
            Page::Out(..) if self.left.changes > 0 => can(format!("{id} changes its page"), &|w| {
                w.left.changes -= 1;
                w.drop_page(p);
                let value = w.take_value();
                w.processes[p].page = Page::Here(value);
            }),
            _ => {}
        }
        // While a child is being made reclaim stands still; before that it does not.
        let parked = me.forking.is_some_and(|(_, cloned)| cloned);
        if !me.put_off.is_empty() && !parked && !self.life.lends(id) {
            can(format!("{id} has its loans back"), &|w| {
                let back = std::mem::take(&mut w.processes[p].put_off);
                w.release(id, |s| back.contains(&s));
            });
        }
        if let Some((lent, places)) = &me.swept {
            let fresh = *places == me.places || rules == Rules::SweepsForgetChildren;
            if !parked && fresh {
                can(format!("{id} uses the sweep"), &|w| {
                    let all = std::mem::take(&mut w.processes[p].put_off);
                    let (kept, back): (BTreeSet<u8>, _) =
                        all.into_iter().partition(|s| lent.contains(s));
                    w.processes[p].put_off = kept;
                    w.processes[p].swept = None;
                    w.release(id, |s| back.contains(&s));
                });
            }
        }
        if self.sweep.is_some() && me.marked.is_none() {
            can(format!("{id} says what it reads"), &|w| {
                let reads = match w.processes[p].page {
                    Page::Out(slot, _) => BTreeSet::from([slot]),
                    _ => BTreeSet::new(),
                };
                w.processes[p].marked = Some(reads);
            });
        }
    }

    fn take_value(&mut self) -> u8 {
        self.next += 1;
        self.next
    }

    fn of_supervisor(&self, rules: Rules, can: &mut Can<'_>) {
        for &(id, dead) in &self.ended {
            can(format!("the end of {id} is noticed"), &|w| {
                w.ended.remove(&(id, dead));
                if rules == Rules::PlacesGoWithTheParent {
                    let promised = |c: &Id| w.life.stage(*c) == Some(Stage::Promised { by: id });
                    let children: Vec<Id> = (0..IMAGES).filter(promised).collect();
                    children.into_iter().for_each(|c| w.life.forget(c));
                }
                match dead {
                    true => w.life.die(id),
                    false => w.life.fall_silent(id),
                }
            });
        }
        for id in 0..IMAGES {
            let stage = self.life.stage(id);
            let loose = matches!(stage, Some(Stage::Loose | Stage::Dead));
            if loose && !self.is_held(id, rules) {
                can(format!("nothing is left of {id}"), &|w| w.life.end(id));
            }
            if self.life.is_idle(id) && self.owners.contains(&Some(id)) {
                can(format!("{id} can write nowhere else"), &|w| {
                    let flying = w.flying.clone();
                    w.release(id, |s| !flying.iter().any(|f| (f.0, f.1) == (id, s)));
                });
            }
            if self.life.can_be_forgotten(id) {
                can(format!("{id} is forgotten"), &|w| {
                    w.release(id, |_| true);
                    w.life.forget(id);
                });
            }
            if self.left.sweeps > 0 && self.sweep.is_none() && self.life.lends(id) {
                can(format!("a sweep for {id} begins"), &|w| {
                    w.left.sweeps -= 1;
                    w.sweep = Some(id);
                    w.processes.iter_mut().for_each(|p| p.marked = None);
                });
            }
        }
        if let Some(owner) = self.sweep {
            let of = |b: Id| self.processes.iter().find(|p| p.image == b && p.spoke);
            let said = |b: Id| of(b).and_then(|p| p.marked.clone());
            let all: Option<Vec<BTreeSet<u8>>> = self.life.borrowers(owner).map(said).collect();
            if let Some(all) = all {
                let lent: BTreeSet<u8> = all.into_iter().flatten().collect();
                can(format!("the sweep for {owner} ends"), &|w| {
                    w.sweep = None;
                    if w.life.is_dead(owner) {
                        let flying = w.flying.clone();
                        let reached = |s| flying.iter().any(|f| (f.0, f.1) == (owner, s));
                        let waits = rules != Rules::NobodyWaitsForWrites;
                        return w.release(owner, |s| !(lent.contains(&s) || waits && reached(s)));
                    }
                    let alive = |p: &&mut Process| p.image == owner && p.alive;
                    if let Some(p) = w.processes.iter_mut().find(alive) {
                        p.swept = Some((lent.clone(), p.places));
                    }
                });
            }
        }
    }
}

/// Looks at every world that can come of this one. How many there are, or the way to the first fault.
fn explore(first: World, rules: Rules) -> Result<usize, Vec<String>> {
    let mut came: HashMap<World, Option<(usize, String)>> = HashMap::from([(first.clone(), None)]);
    let mut worlds = vec![first.clone()];
    let mut open = VecDeque::from([0]);
    while let Some(i) = open.pop_front() {
        for (what, mut w) in worlds[i].next(rules) {
            w.simplify();
            if came.contains_key(&w) {
                continue;
            }
            came.insert(w.clone(), Some((i, what)));
            if let Some(fault) = w.fault() {
                let mut way = vec![fault];
                let mut at = &came[&w];
                while let Some((from, what)) = at {
                    way.push(what.clone());
                    at = &came[&worlds[*from]];
                }
                way.reverse();
                return Err(way);
            }
            open.push_back(worlds.len());
            worlds.push(w);
        }
    }
    Ok(worlds.len())
}

fn holds(first: World) {
    match explore(first, Rules::AsTheyAre) {
        Ok(n) => assert!(n > 100, "{n} worlds only"),
        Err(way) => panic!("{way:#?}"),
    }
}

const NOTHING: Left = Left {
    changes: 0,
    forks: 0,
    execs: 0,
    kills: 0,
    sweeps: 0,
};
const A_FORK: Left = Left {
    changes: 1,
    forks: 1,
    kills: 1,
    ..NOTHING
};
const A_KILL: Left = Left {
    kills: 1,
    ..NOTHING
};
const A_SWEEP: Left = Left {
    changes: 2,
    forks: 1,
    sweeps: 1,
    ..NOTHING
};

#[test]
fn forks_and_kills() {
    holds(World::new(A_FORK));
}

#[test]
fn execs_and_kills() {
    holds(World::new(Left { execs: 1, ..A_KILL }));
}

#[test]
fn loans_and_sweeps() {
    holds(World::forked(A_SWEEP));
}

#[test]
fn sweeps_for_the_dead() {
    holds(World::forked(Left {
        changes: 1,
        sweeps: 1,
        ..A_KILL
    }));
}

/// The search is worth something: it finds what is known to be wrong.
#[test]
fn faults_of_other_rules_are_found() {
    for (first, rules) in [
        (World::new(A_FORK), Rules::PlacesGoWithTheParent),
        (World::new(A_KILL), Rules::NobodyWaitsForWrites),
        (
            World::new(Left {
                execs: 1,
                ..NOTHING
            }),
            Rules::NobodyWaitsForWrites,
        ),
        (World::forked(A_SWEEP), Rules::SweepsForgetChildren),
    ] {
        assert!(explore(first, rules).is_err(), "{rules:?}");
    }
}
