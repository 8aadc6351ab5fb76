//! The processes of a run: their connections, their pages, their ends.
//!
//! What follows from what happens is decided in `life`; here is what happens.

mod burial;
mod connections;
mod door;
mod engine_threads;
mod guest;
mod guests;
mod loans;
mod member;
mod ready;
mod swap;

pub use door::Door;
pub use engine_threads::{is_engine_thread, Pages};
use member::Heard;
pub use member::{Exec, Member};

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hugeswap_control::stats::Stats;
use hugeswap_control::{Orders, Writer};
use hugeswap_sys::futex::{self, Scope};

use super::groups::Groups;
use super::life::{Id, Life, Stage};
use super::orphans;
use super::owners::Swap;
use super::sys::{self, Poller};
use super::tasks;
use guest::Guest;
use loans::Sweeps;
use ready::{token, BELL, DOOR, GUEST, LISTENING, ORPHAN, PROCESS, SOCKET};
use swap::Scarce;

/// How often is looked whether an image that nobody speaks for is gone; after a second less often.
const LOOSE: Duration = Duration::from_millis(10);

/// Without descriptors, or memory, it is tried again after so long.
const AGAIN: Duration = Duration::from_millis(50);

pub struct Processes {
    control: Writer,
    swap: Arc<Swap>,
    poller: Poller,
    door: Door,
    bell: Arc<OwnedFd>,
    /// The control page and the devices.
    handed: Vec<OwnedFd>,
    /// `/dev/userfaultfd`, where it can be had.
    userfaultfd: Option<OwnedFd>,
    /// Where each process writes down its faults.
    record: Option<OwnedFd>,
    /// `/proc` knows processes by the numbers that we know them by.
    proc_is_ours: bool,
    guests: BTreeMap<u32, Guest>,
    next_guest: u32,
    /// Sockets from which connections of children come that can't find us.
    doors: BTreeMap<u32, (Id, OwnedFd)>,
    /// Nobody is let in before then.
    closed_until: Option<Instant>,
    life: Life,
    members: BTreeMap<Id, Member>,
    pages: Pages,
    sweeps: Sweeps,
    scarce: Option<Scarce>,
    pub groups: Groups,
    /// Counters of images that are gone.
    past: Box<Stats>,
    /// The run ends: processes that come are killed.
    ends: bool,
    /// Some program of the run has registered.
    has_come: bool,
    heard: Heard,
    /// Processes that do without hugeswap, of which nobody has heard yet.
    declined: Vec<u32>,
}

impl Processes {
    /// Whoever comes from now on writes down its faults there.
    pub fn record_to(&mut self, file: File) {
        self.record = Some(file.into());
    }

    /// `handed` is what each process gets beside its own page: the control page and the devices.
    pub fn new(
        (control, orders): (Writer, &'static Orders),
        swap: Arc<Swap>,
        door: Door,
        handed: Vec<OwnedFd>,
        pages: Pages,
    ) -> io::Result<Processes> {
        let groups = Groups::new(door.secret);
        let userfaultfd = File::options()
            .read(true)
            .write(true)
            .open("/dev/userfaultfd");
        let me = std::fs::read_link("/proc/self").ok();
        let proc_is_ours = me.is_some_and(|me| me.as_os_str() == &*std::process::id().to_string());
        let poller = Poller::new()?;
        for (l, n) in door.listening.iter().zip(0..) {
            sys::set_nonblocking(l)?;
            poller.add(l, token(LISTENING, n))?;
        }
        let bell = Arc::new(sys::event()?);
        poller.add(&bell, token(BELL, 0))?;
        ring_on_call(orders, Arc::clone(&bell))?;
        Ok(Processes {
            control,
            swap,
            poller,
            door,
            bell,
            handed,
            userfaultfd: userfaultfd.ok().map(OwnedFd::from),
            record: None,
            proc_is_ours,
            guests: BTreeMap::new(),
            next_guest: 0,
            doors: BTreeMap::new(),
            closed_until: None,
            life: Life::default(),
            members: BTreeMap::new(),
            pages,
            sweeps: Sweeps::new(),
            scarce: None,
            groups,
            past: Box::default(),
            ends: false,
            has_come: false,
            heard: Heard::default(),
            declined: Vec::new(),
        })
    }

    /// Those whose memory is there, or may be.
    pub fn present(&self) -> impl Iterator<Item = (Id, &Member)> {
        let present = |id: Id, m: &Member| !m.is_gone && self.life.stage(id) != Some(Stage::Ended);
        self.members
            .iter()
            .map(|(&id, m)| (id, m))
            .filter(move |(id, m)| present(*id, m))
    }

    /// Whether an image of that process has not been found gone yet.
    pub fn is_ending(&self, pid: u32) -> bool {
        self.members.iter().any(|(&id, m)| {
            m.pid == pid
                && !m.is_replaced
                && !matches!(self.life.stage(id), None | Some(Stage::Ended))
        })
    }

    /// Images that speak. (Who is only expected may never come.)
    fn live(&self) -> impl Iterator<Item = &Member> {
        let is_live = |id: Id| self.life.stage(id) == Some(Stage::Live);
        self.members
            .iter()
            .filter_map(move |(&id, m)| is_live(id).then_some(m))
    }

    pub fn nr_live(&self) -> usize {
        self.live().count()
    }

    /// The processes of images that speak.
    pub fn numbers(&self) -> BTreeSet<u32> {
        self.live().map(|m| m.pid).collect()
    }

    /// The same, by their groups.
    pub fn groups_of_live(&self) -> impl Iterator<Item = usize> + '_ {
        self.live().map(|m| m.group)
    }

    /// Whether `/proc` tells of processes by the numbers that we know them by.
    pub fn sees_proc(&self) -> bool {
        self.proc_is_ours
    }

    /// Whether any program of the run has registered, ever.
    pub fn have_come(&self) -> bool {
        self.has_come
    }

    /// All images together, those that are gone included.
    pub fn total(&self) -> Box<Stats> {
        let sum = Box::<Stats>::default();
        sum.merge(&self.past);
        for m in self.members.values() {
            sum.merge(&m.page().stats);
        }
        sum
    }

    /// The same of a group, with the groups within it.
    pub fn total_of(&self, group: usize) -> Box<Stats> {
        let sum = Box::<Stats>::default();
        self.groups.merge_past(group, &sum);
        for m in self.members.values() {
            if self.groups.is_within(m.group, group) {
                sum.merge(&m.page().stats);
            }
        }
        sum
    }

    /// Pages that programs have waited for until they were read, or opened in compressed memory.
    pub fn pages_waited_for(&self) -> u64 {
        let of = |s: &Stats| s.pgmajfault.get().saturating_add(s.zswpin.get());
        let members = self.members.values().map(|m| of(&m.page().stats));
        members.fold(of(&self.past), u64::saturating_add)
    }

    /// Whether every process has left device `d`, as of the swapoff `epoch`.
    pub fn all_left(&self, d: usize, epoch: u32) -> bool {
        self.members.iter().all(|(&id, m)| {
            self.life.stage(id) == Some(Stage::Ended) || m.page().left[d].load(Acquire) == epoch
        })
    }

    /// Wakes the reclaim threads of all processes.
    pub fn call_all(&self) {
        self.members.values().for_each(loans::wake);
    }

    /// The run ends: kills every process that is known, and those that come.
    pub fn kill_all(&mut self) {
        self.ends = true;
        for m in self.members.values() {
            if let Some(p) = &m.process {
                p.kill();
            }
        }
    }

    /// Waits until something happens, so long at most, and takes note of it.
    pub fn wait(&mut self, most: Duration) {
        let now = Instant::now();
        let mut most = most;
        for (&id, m) in &mut self.members {
            if !matches!(self.life.stage(id), Some(Stage::Loose | Stage::Dead)) {
                m.loose_since = None;
                continue;
            }
            let since = *m.loose_since.get_or_insert(now);
            most = most.min(match now - since < Duration::from_secs(1) {
                true => LOOSE,
                false => 20 * LOOSE,
            });
        }
        let most = match self.closed_until {
            Some(_) => most.min(AGAIN),
            None => most,
        };
        for t in self.poller.wait(most.as_millis() as i32) {
            let number = t as u32;
            match (t >> 32) as u32 {
                LISTENING => self.let_in(number),
                BELL => sys::clear_event(&self.bell),
                GUEST => self.hear_guest(number),
                DOOR => self.hear_door(number),
                SOCKET => {
                    self.hear(number);
                }
                PROCESS => self.died(number),
                ORPHAN => {
                    let answered = self.members.get(&number).is_some_and(|m| {
                        let faults = m.faults.as_ref();
                        faults.is_some_and(|f| orphans::answer(f, &m.object))
                    });
                    if !answered {
                        self.let_go_of_faults(number);
                    }
                }
                _ => {}
            }
        }
        self.try_again();
    }

    /// Tells each process what it has to know of the others.
    pub fn tell(&self) {
        let all: i64 = self.present().map(|(_, m)| m.charged()).sum();
        let charges = self.present().map(|(_, m)| (m.group, m.charged()));
        let sums = self.groups.sums(charges);
        for (id, m) in self.present() {
            let page = m.page();
            // What is not to be had in its group is as good as taken by others.
            let others = self
                .groups
                .ancestors(m.group)
                .map(|g| sums[g] + self.groups.less_than_run(g));
            let others = others.max().unwrap_or(all) - m.charged();
            page.others_pages.store(others.max(0), Release);
            page.lends.store(self.life.lends(id).into(), Release);
        }
        let sum = |f: fn(&Stats) -> u64| {
            let each = self.present().map(|(_, m)| f(&m.page().stats));
            each.fold(0, u64::saturating_add)
        };
        self.control.set_totals(
            all as u64,
            sum(|s| s.swapped_bytes.get()),
            sum(|s| s.swapoff_pages.get()),
        );
    }

    /// Prints what processes have to say.
    pub fn print_logs(&mut self) {
        for m in self.members.values_mut() {
            m.hear_page(&mut self.heard);
        }
    }

    /// What processes have said since the last time of programs without hugeswap that they become.
    pub fn take_execs(&mut self) -> Vec<Exec> {
        std::mem::take(&mut self.heard.execs)
    }

    /// The processes that have said since the last time that they do without hugeswap.
    pub fn take_declined(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.declined)
    }

    /// For threads of the supervisor that have something to say.
    pub fn bell(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.bell)
    }
}

/// Who orders something calls by a word beside the order.
fn ring_on_call(orders: &'static Orders, bell: Arc<OwnedFd>) -> io::Result<()> {
    tasks::start(move || loop {
        let seen = orders.need.load(Acquire);
        sys::set_event(&bell);
        futex::wait(&orders.need, seen, None, Scope::Shared);
    })
}
