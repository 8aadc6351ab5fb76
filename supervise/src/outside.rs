//! What a run takes beside its managed memory: stacks, code caches, small mappings, page tables, the
//! engines, the supervisor. The kernel tells, and the managed part is so much smaller, for `--memory` is
//! for all of it.
//!
//! Where the run has a memory group with a limit to itself, the group's counters tell what is charged.
//! Elsewhere it is the sum over the processes, without kernel memory and shared memory. A group with a few
//! small processes of others (the shell of a batch job, a container's first process) still tells what it has to spare.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hugeswap_mm::PAGE_SIZE;

use super::groups::Groups;
use super::processes::{Member, Processes};
use super::unmanaged::Watch;
use hugeswap_host::cgroup::{Charged, Own};
use hugeswap_host::size::Size;
use hugeswap_sys::thread::cpu_ns;

/// So much is not made up for: it covers what grows between two looks.
const ALLOWED: u64 = 6 << 20;
/// In a group that is hardly larger than `--memory` pages of files have no room. Those that are being read, or are not written
/// yet, can't be dropped: the kernel kills for them, though read-ahead alone may be 16 MiB. And who reads a file
/// again and again gains more by its pages than by the last of its own. So much of the group is left free beside
/// such pages, and at most this part of the memory is given up for them.
const FREE: u64 = 4 << 20;
const FILES_PART: u64 = 8;
/// Pages of files that are read again between two looks, and by how much files are given more for it, and less without.
const REFAULTS: u64 = 256;
const FILES_STEP: u64 = 2 << 20;
/// What has left may stay in memory where a group has some to spare, as long as so much is left beside that and what pages of
/// files need: for what grows between two looks, and for the pages of files that everybody needs.
const SPARE: u64 = 8 << 20;
/// Where the group has more than that beside other memory there is time.
const TIGHT: u64 = 64 << 20;
/// More than that they are not given for being read again.
const FILES_MOST: u64 = 20 << 20;
/// The managed part is never made smaller than that: engines could do no work.
const FLOOR: u64 = 32 << 20;
/// Looks come no closer together, and take no more than such a part of a processor's time.
const BETWEEN: Duration = Duration::from_millis(100);
const SHARE: u32 = 100;
/// The same while it grows, and while a run is new.
const BETWEEN_URGENT: Duration = Duration::from_millis(10);
const SHARE_URGENT: u32 = 20;
/// For so long after the start, and after it grew, it may grow fast.
const NEW: Duration = Duration::from_secs(2);
/// Less than that is no growth.
const GROWTH: u64 = 256 << 10;
/// At most so much is expected to come until the next look.
const EXPECTED: u64 = 32 << 20;
/// How often it is looked who is in the group.
const GROUP: Duration = Duration::from_secs(1);
/// Processes of others in the group that are hardly worth mentioning: so many, with such a part of its limit. What they freed
/// lazily is taken for the run's, so it has to be little; and they could grow.
const NEIGHBOURS: usize = 32;
const NEIGHBOURS_PART: u64 = 16;
/// And so much more until they are.
const NEIGHBOURS_STAY: u64 = 2;
/// What is found larger counts at once; smaller, when it has been so for this many looks.
const KEPT: usize = 8;
/// After so many looks in which it was too much, it is said. Where a group's limit is near there may be no other look.
const TOLD_AFTER: u32 = 50;
/// A process takes that much beside its managed memory at least: for its engine, tables, stacks in the kernel, the data
/// of libraries. It counts from the start: when it can be measured others have used the room.
const OF_EACH: u64 = 768 << 10;
/// As many again may come before the others have made room for them, but no more than so many.
const TO_COME: usize = 8;
/// The stack of a thread in the kernel.
const KERNEL_STACK: u64 = 16 << 10;

/// Memory for the managed part, of `memory` for all, with so much outside.
fn managed_limit(memory: u64, outside: u64) -> u64 {
    // A huge page keeps a page table in reserve, base pages need one.
    let most = memory - memory / hugeswap_control::OVERHEAD_SHARE;
    let left = most.saturating_sub(outside.saturating_sub(ALLOWED));
    left.max(FLOOR).min(most)
}

/// The same where the group has a limit, by which pages of files need room too.
fn managed_limit_in(memory: u64, outside: u64, files: u64, group: u64) -> u64 {
    let most = managed_limit(memory, outside);
    let left = group.saturating_sub(outside + files + FREE);
    let least = most.saturating_sub(memory / FILES_PART).max(FLOOR);
    most.min(left.max(least))
}

/// What a group has to spare, beside memory that is managed and memory that is not.
fn spare(managed: u64, outside: u64, files: u64, group: u64) -> u64 {
    group.saturating_sub(managed + outside + files + SPARE)
}

/// Of what processes had stay where it left, what the kernel has not taken.
#[derive(Clone, Copy)]
struct Stays {
    there: u64,
    of: u64,
}

impl Stays {
    /// Nothing was taken, as far as is known.
    const ALL: Stays = Stays { there: 1, of: 1 };

    /// `lazily_freed` is the group's.
    fn look(processes: &Processes, lazily_freed: u64) -> Stays {
        let all: u64 = processes.present().map(|(_, m)| m.lazy() as u64).sum();
        let of = (all * PAGE_SIZE as u64).max(1);
        Stays {
            there: lazily_freed.min(of),
            of,
        }
    }

    /// Bytes of a process's, as its own figures in the kernel have them.
    fn resident(self, m: &Member) -> u64 {
        let lazy = u128::from(m.lazy() as u64 * PAGE_SIZE as u64);
        let there = lazy * u128::from(self.there) / u128::from(self.of);
        m.charged() as u64 * PAGE_SIZE as u64 + there as u64
    }
}

/// What pages of files need of a group.
#[derive(Default)]
struct Files {
    unwritten: u64,
    refaults: Option<u64>,
    /// Bytes for what is read again.
    room: u64,
}

impl Files {
    /// What they need until the next look, and whether that should be soon.
    fn look(&mut self, now: &Charged, limit: u64) -> (u64, bool) {
        let more = now.unwritten.saturating_sub(self.unwritten);
        self.unwritten = now.unwritten;
        let then = self.refaults.replace(now.refaults);
        let again = then.is_some_and(|then| now.refaults.saturating_sub(then) >= REFAULTS);
        self.room = match again {
            // What they have already, and more.
            true => self.room.max(limit.saturating_sub(now.kept + FREE)) + FILES_STEP,
            false => self.room.saturating_sub(FILES_STEP / 8),
        };
        self.room = self.room.min(FILES_MOST).min(limit / FILES_PART);
        let need = (now.unwritten + more.min(EXPECTED)).max(self.room);
        let is_tight = limit.saturating_sub(now.kept) < TIGHT;
        (need, is_tight && (again || more > GROWTH))
    }
}

/// What the run has of its memory group, if that is nearly all of it.
#[derive(Clone, Copy)]
struct Share {
    limit: u64,
    /// What is not the run's.
    others: u64,
    /// What pages of files need.
    files: u64,
}

impl Share {
    /// What there is for the run.
    fn most(self) -> u64 {
        self.limit.saturating_sub(self.others)
    }
}

pub struct Outside {
    memory: u64,
    front: u32,
    next: Instant,
    urgent_until: Instant,
    last: u64,
    /// By how much it had grown at the last look.
    growth: u64,
    files: Files,
    share: Option<Share>,
    stays: Stays,
    recent: [u64; KEPT],
    at: usize,
    peak: u64,
    group: Group,
    /// Memory in place of a disk, which the group is charged for.
    ram: Vec<File>,
    /// For how many looks it has been too much.
    too_much: u32,
    /// How much it was when that was said.
    told: u64,
    /// Processes, at the last look.
    processes: usize,
    /// What may stay, whatever the run's group has to spare.
    lazyfree_given: Option<u64>,
}

impl Outside {
    /// `ram`: the devices that are memory.
    pub fn new(memory: u64, ram: Vec<File>) -> Outside {
        Outside {
            memory,
            front: std::os::unix::process::parent_id(),
            next: Instant::now(),
            urgent_until: Instant::now() + NEW,
            last: 0,
            growth: 0,
            share: None,
            stays: Stays::ALL,
            files: Files::default(),
            recent: [0; KEPT],
            at: 0,
            peak: 0,
            group: Group::find(),
            ram,
            too_much: 0,
            told: 0,
            processes: 0,
            lazyfree_given: lazyfree_given(),
        }
    }

    pub fn bytes(&self) -> u64 {
        self.recent.iter().copied().max().unwrap_or(0)
    }

    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// How long until the next look.
    pub fn rests(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// What the managed part may have, if there is news of it. A newcomer counts at once, and is measured in its time.
    pub fn look(&mut self, processes: &mut Processes, strangers: &Watch) -> Option<u64> {
        let now = Instant::now();
        let nr = processes.nr_live();
        let is_time = now >= self.next;
        if !is_time && nr <= self.processes || !processes.sees_proc() {
            return None;
        }
        self.processes = nr;
        if is_time {
            self.measure(processes, strangers, now);
            self.look_at_groups(processes);
        }
        let limit = self.limit();
        if is_time {
            self.tell(limit);
            self.share_spare(processes, limit);
        }
        Some(limit)
    }

    fn measure(&mut self, processes: &Processes, strangers: &Watch, now: Instant) {
        let began_ns = cpu_ns();
        let own = [std::process::id(), self.front];
        let mut all: BTreeSet<u32> = processes.numbers();
        all.extend(strangers.numbers().chain(own));
        // A group's counters tell what is freed lazily apart.
        let (company, group) = self.group.look(&all, now);
        self.stays = match &group {
            Some((used, _)) => Stays::look(processes, used.lazily_freed),
            None => Stays::ALL,
        };
        let managed = || -> u64 {
            let bytes = |m: &Member| match company {
                Company::None => m.charged() as u64 * PAGE_SIZE as u64,
                _ => self.stays.resident(m),
            };
            processes.present().map(|(_, m)| bytes(m)).sum()
        };
        let before = managed();
        let kept = |(used, _): &(Charged, u64)| {
            let ram: u64 = self.ram.iter().map(allocated).sum();
            used.kept.saturating_sub(ram)
        };
        let used = match (company, &group) {
            (Company::None, Some(group)) => kept(group),
            _ => all.iter().map(|&pid| of_process(pid)).sum(),
        };
        // What came or went meanwhile is nobody's fault.
        let outside = used.saturating_sub(before.max(managed()));
        self.growth = outside.saturating_sub(self.last);
        self.last = outside;
        self.recent[self.at] = outside;
        self.at = (self.at + 1) % KEPT;
        self.peak = self.peak.max(outside);
        let charged: u64 = processes
            .present()
            .map(|(_, m)| m.charged() as u64 * PAGE_SIZE as u64)
            .sum();
        let others = match (company, &group) {
            (Company::Small, Some(group)) => kept(group).saturating_sub(charged + outside),
            _ => 0,
        };
        let (files, soon) = match &group {
            Some((used, limit)) => self.files.look(used, *limit),
            None => (0, false),
        };
        self.share = group.map(|(_, limit)| Share {
            limit,
            others,
            files,
        });
        if soon || self.growth > GROWTH {
            self.urgent_until = now + NEW;
        }
        // What time others had meanwhile was not taken from them.
        let took = Duration::from_nanos(cpu_ns() - began_ns);
        self.next = now
            + match now < self.urgent_until {
                true => BETWEEN_URGENT.max(took * SHARE_URGENT),
                false => BETWEEN.max(took * SHARE),
            };
    }

    /// What each group takes beside its managed memory bounds what it may have of that.
    fn look_at_groups(&self, processes: &mut Processes) {
        let each = processes.present().map(|(_, m)| m.group);
        let groups = processes.groups.in_use(each);
        let beside = |of: &dyn Fn(usize, &Groups) -> bool| {
            let within = || {
                processes
                    .present()
                    .filter(|(_, m)| of(m.group, &processes.groups))
            };
            let managed = || -> u64 { within().map(|(_, m)| self.stays.resident(m)).sum() };
            let before = managed();
            let pids: BTreeSet<u32> = within()
                .map(|(_, m)| m.pid)
                .filter(|&pid| pid != 0)
                .collect();
            let used: u64 = pids.iter().map(|&pid| of_process(pid)).sum();
            let outside = used.saturating_sub(before.max(managed()));
            outside.max(at_least(pids.len()))
        };
        let each: Vec<u64> = groups
            .iter()
            .map(|&g| beside(&|of, groups| groups.is_within(of, g)))
            .collect();
        for (g, outside) in groups.into_iter().zip(each) {
            processes.groups.set_outside(g, outside, managed_limit);
        }
    }

    /// What is outside, and will be until the next look.
    fn expected(&self) -> u64 {
        // What grew since the last look goes on growing.
        let expected = self.bytes() + self.growth.min(EXPECTED);
        expected.max(at_least(self.processes))
    }

    fn limit(&self) -> u64 {
        match self.share {
            Some(s) => managed_limit_in(self.memory, self.expected(), s.files, s.most()),
            None => managed_limit(self.memory, self.expected()),
        }
    }

    /// Tells each process whether what leaves may stay, as long as the kernel has no other use for the memory: where the
    /// run's group has some to spare, and its part of that.
    fn share_spare(&self, processes: &Processes, managed: u64) {
        let of_group = self
            .share
            .map(|s| spare(managed, self.expected(), s.files, s.most()));
        let spare = self.lazyfree_given.or(of_group);
        let all: u64 = processes.present().map(|(_, m)| m.charged() as u64).sum();
        for (_, m) in processes.present() {
            // Only a group that the run nearly has to itself counts what the kernel has not taken.
            let part = spare.map_or(-1, |spare| {
                (spare / PAGE_SIZE as u64 * m.charged() as u64 / all.max(1)) as i64
            });
            m.page().lazyfree_limit.store(part, Relaxed);
        }
    }

    /// Says it where it has been too much for long, or the kernel is about to kill.
    fn tell(&mut self, limit: u64) {
        if limit > FLOOR {
            self.too_much = 0;
            return;
        }
        let group = self.share;
        let group = group.filter(|s| leaves_no_room(self.bytes() + self.growth, s.most()));
        let before = self.too_much;
        self.too_much = match group {
            Some(_) => before.max(TOLD_AFTER),
            None => before.saturating_add(1),
        };
        // Where it comes and goes once is enough, unless it becomes much more.
        let is_news = self.bytes() > self.told + self.told / 2;
        if before < TOLD_AFTER && self.too_much >= TOLD_AFTER && is_news {
            self.told = self.bytes();
            let so = match group {
                Some(share) => format!(
                    "the memory group's limit of {} leaves no room for the rest, and the kernel may kill; give the \
                     group more, or run fewer of the {} processes at a time",
                    Size::from_bytes(share.limit),
                    self.processes
                ),
                None => "more than --memory leaves room for, so the run goes above it".to_owned(),
            };
            errln!(
                "hugeswap: warning: {} of the run's memory can't be swapped (stacks, code, \
                 written pages of private file mappings, small mappings): {so}",
                Size::from_bytes(self.bytes())
            );
        }
    }
}

/// `HUGESWAP_LAZYFREE` is for tests and comparison: so much is said to be to spare.
fn lazyfree_given() -> Option<u64> {
    let bytes = std::env::var("HUGESWAP_LAZYFREE").ok()?;
    Some(bytes.parse::<Size>().map_or(0, |size| size.bytes()))
}

/// What so many processes take, and those that may come soon.
fn at_least(processes: usize) -> u64 {
    (processes + processes.min(TO_COME)) as u64 * OF_EACH
}

/// Whether a group of that limit is full with so much outside, and the least that is managed.
fn leaves_no_room(outside: u64, group: u64) -> bool {
    outside + FLOOR + FREE > group
}

fn allocated(file: &File) -> u64 {
    file.metadata().map_or(0, |m| m.blocks() * 512)
}

fn of_process(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    in_status(&status)
}

/// Memory that is the process's alone.
fn in_status(status: &str) -> u64 {
    let number = |name: &str| -> u64 {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        let word = line.and_then(|l| l.split_ascii_whitespace().next());
        word.and_then(|w| w.parse().ok()).unwrap_or(0)
    };
    (number("RssAnon:") + number("VmPTE:")) * 1024 + number("Threads:") * KERNEL_STACK
}

/// Who is in the run's group beside the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Company {
    None,
    /// A few, with hardly any memory.
    Small,
    /// Or nobody knows.
    Large,
}

impl Company {
    /// Of so many processes with so much memory, where it was this before.
    fn of(self, processes: usize, bytes: u64, limit: u64) -> Company {
        let most = limit / NEIGHBOURS_PART;
        let most = match self {
            Company::Large => most,
            _ => most * NEIGHBOURS_STAY,
        };
        match processes {
            0 => Company::None,
            1..=NEIGHBOURS if bytes <= most => Company::Small,
            _ => Company::Large,
        }
    }
}

/// The memory group whose limit holds for the run, if there is one.
struct Group {
    /// That of the run itself; the limit may be that of one above it.
    own: Option<Own>,
    began: Instant,
    looked: Option<Instant>,
    company: Company,
    /// Who was there the last time and is not of the run.
    others: BTreeSet<u32>,
    /// Those of them who have been there twice.
    neighbours: BTreeSet<u32>,
}

impl Group {
    fn find() -> Group {
        Group {
            own: Own::find().ok(),
            began: Instant::now(),
            looked: None,
            company: Company::Large,
            others: BTreeSet::new(),
            neighbours: BTreeSet::new(),
        }
    }

    /// Who is in the group beside the run, what the group is charged for, and its limit: that is known only where it is the run's but
    /// for a few.
    fn look(&mut self, run: &BTreeSet<u32>, now: Instant) -> (Company, Option<(Charged, u64)>) {
        let limiting = self.own.as_ref().and_then(Own::limiting);
        let Some((group, limit)) = limiting else {
            return (Company::Large, None);
        };
        let company = self.company(run, &group, limit, now);
        let charged = match company {
            Company::Large => None,
            _ => group.charged(),
        };
        (company, charged.map(|charged| (charged, limit)))
    }

    fn company(&mut self, run: &BTreeSet<u32>, group: &Own, limit: u64, now: Instant) -> Company {
        // At the first look the program has hardly come.
        let rest = match self.company != Company::Large || now > self.began + NEW {
            true => GROUP,
            false => BETWEEN,
        };
        if self.looked.is_none_or(|then| now - then > rest) {
            let others: BTreeSet<u32> = group.processes().difference(run).copied().collect();
            // Who has just been started is not known yet.
            self.neighbours = match self.looked {
                None => others.clone(),
                Some(_) => others.intersection(&self.others).copied().collect(),
            };
            self.others = others;
            self.looked = Some(now);
        }
        let neighbours = &self.neighbours;
        // Of those in no pid namespace of ours nothing is known.
        let known = neighbours.len() <= NEIGHBOURS && !neighbours.contains(&0);
        let bytes = match known {
            true => neighbours.iter().map(|&pid| of_process(pid)).sum(),
            false => u64::MAX,
        };
        self.company = self.company.of(neighbours.len(), bytes, limit);
        self.company
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeswap_host::size::{GIB, MIB};

    #[test]
    fn what_is_outside_is_made_up_for() {
        let most = 512 * MIB - MIB;
        assert_eq!(managed_limit(512 * MIB, 0), most);
        assert_eq!(managed_limit(512 * MIB, ALLOWED), most);
        assert_eq!(
            managed_limit(512 * MIB, 100 * MIB),
            most - 100 * MIB + ALLOWED
        );
        assert_eq!(managed_limit(64 * MIB, GIB), FLOOR);
    }

    #[test]
    fn what_a_group_has_to_spare_is_what_nothing_else_needs() {
        assert_eq!(spare(100 * MIB, 10 * MIB, 0, 174 * MIB), 56 * MIB);
        assert_eq!(spare(100 * MIB, 10 * MIB, 20 * MIB, 174 * MIB), 36 * MIB);
        assert_eq!(spare(100 * MIB, 10 * MIB, 20 * MIB, 134 * MIB), 0);
    }

    #[test]
    fn a_small_group_leaves_room_for_what_is_written() {
        let (memory, outside) = (256 * MIB, 8 * MIB);
        let usual = managed_limit(memory, outside);
        let limit = |unwritten, group| managed_limit_in(memory, outside, unwritten, group);
        assert_eq!(limit(0, memory + 16 * MIB), usual);
        assert_eq!(limit(20 * MIB, memory + 64 * MIB), usual);
        let left = memory + 16 * MIB - outside - 20 * MIB - FREE;
        assert_eq!(limit(20 * MIB, memory + 16 * MIB), left);
        // Not for all that a program writes.
        assert_eq!(limit(GIB, memory + 16 * MIB), usual - 32 * MIB);
        assert_eq!(managed_limit_in(64 * MIB, GIB, GIB, 80 * MIB), FLOOR);
    }

    #[test]
    fn files_that_are_read_again_get_more_for_a_while() {
        let group = 272 * MIB;
        let mut files = Files::default();
        let charged = |refaults| Charged {
            kept: 256 * MIB,
            lazily_freed: 0,
            unwritten: 0,
            refaults,
        };
        assert_eq!(files.look(&charged(0), group), (0, false));
        assert_eq!(files.look(&charged(REFAULTS - 1), group), (0, false));
        let first = group - charged(0).kept - FREE + FILES_STEP;
        assert_eq!(files.look(&charged(5000), group), (first, true));
        let second = first + FILES_STEP;
        assert_eq!(files.look(&charged(9000), group), (second, true));
        for i in 1..200 {
            files.look(&charged(20_000 * i), group);
        }
        assert_eq!(files.room, FILES_MOST);
        for _ in 0..200 {
            files.look(&charged(4_000_000), group);
        }
        assert_eq!(files.room, 0);
        let writes = Charged {
            unwritten: 10 * MIB,
            ..charged(4_000_000)
        };
        assert!(!Files::default().look(&writes, GIB).1);
        assert_eq!(files.look(&writes, group), (20 * MIB, true));
        assert_eq!(files.look(&writes, group), (10 * MIB, false));
    }

    #[test]
    fn a_shell_in_the_group_is_no_company_to_speak_of() {
        let of = |before: Company, n, bytes| before.of(n, bytes, 160 * MIB);
        assert_eq!(of(Company::Large, 0, 0), Company::None);
        assert_eq!(of(Company::Large, 2, 3 * MIB), Company::Small);
        assert_eq!(of(Company::Large, NEIGHBOURS + 1, 3 * MIB), Company::Large);
        // Nobody comes and goes by a page more or less.
        assert_eq!(of(Company::Large, 2, 11 * MIB), Company::Large);
        assert_eq!(of(Company::Small, 2, 11 * MIB), Company::Small);
        assert_eq!(of(Company::None, 2, 11 * MIB), Company::Small);
        assert_eq!(of(Company::Small, 2, 21 * MIB), Company::Large);
        assert_eq!(of(Company::Small, 1, u64::MAX), Company::Large);
    }

    #[test]
    fn what_others_have_of_a_group_is_not_there() {
        let share = |others| Share {
            limit: 174 * MIB,
            others,
            files: 0,
        };
        assert_eq!(share(20 * MIB).most(), 154 * MIB);
        assert_eq!(share(GIB).most(), 0);
    }

    #[test]
    fn a_process_is_measured() {
        let status = "Name:\tx\nVmPTE:\t      8 kB\nRssAnon:\t    100 kB\nThreads:\t2\n";
        assert_eq!(in_status(status), (108 + 32) * 1024);
        assert!(of_process(std::process::id()) > 0);
        assert_eq!(of_process(0), 0);
    }
}
