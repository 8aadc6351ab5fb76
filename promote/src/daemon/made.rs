//! A machine that is made up: processors that read files, two memory nodes, and clocks that go as what is done costs.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::time::Duration;

use crate::files::Skip;
use crate::machine::{Machine, Nodes};
use crate::page::{FileId, Time, BLOCK_PAGES};
use crate::place::{Failed, Folio, Mapped};
use crate::trace::budget::{Costs, Phase};
use crate::trace::points::{Event, Kind};
use crate::trace::turns::Turns;

pub const FAST: u32 = 0;
pub const SLOW: u32 = 1;
/// Microseconds.
pub const SECOND: u64 = 1_000_000;
/// Pages of one read.
const CALL: u64 = 16;
/// Records after which a ring wakes whoever waits, and such as it has room for.
const WAKES: usize = 400;
const RING: usize = 1600;

/// A processor that reads a file from begin to end, again and again.
#[derive(Clone, Copy)]
pub struct Reader {
    pub cpu: u32,
    pub file: FileId,
    /// Microseconds from one read to the next.
    pub every: u64,
    pub from: u64,
    pub until: u64,
}

/// What happens at a time.
pub enum Happens {
    /// The file's last name and descriptor go.
    Vanishes(FileId),
    Shrinks(FileId, u64),
    /// The kernel demotes all of it.
    Demotes(FileId),
    /// Somebody else moves all of it to the fast node.
    Promotes(FileId),
    /// All clocks go forward by so much, as after the machine has slept.
    Jumps(u64),
    Signal,
}

/// Nanoseconds of processor time.
#[derive(Clone, Copy)]
pub struct Dear {
    /// To switch the events of a processor, and in any case.
    pub cpu: u64,
    pub switch: u64,
    /// To wake up, to ask how many pages a node has, and to open a file.
    pub wake: u64,
    pub ask: u64,
    pub open: u64,
    /// To take a record, to look at a page, to move one.
    pub record: u64,
    pub look: u64,
    pub page: u64,
}

impl Default for Dear {
    fn default() -> Dear {
        Dear {
            cpu: 160_000,
            switch: 50_000,
            wake: 20_000,
            ask: 60_000,
            open: 20_000,
            record: 500,
            look: 300,
            page: 600,
        }
    }
}

struct Record {
    event: Event,
    at: Time,
}

pub struct Made {
    pub dear: Dear,
    pub readers: Vec<Reader>,
    pub happens: BTreeMap<u64, Happens>,
    /// The node of each page of each file.
    pub files: HashMap<FileId, Vec<u32>>,
    /// Free pages of the fast node.
    pub room: u64,
    /// The kernel refuses to move them.
    pub stuck: bool,
    /// What its kernel tells of.
    pub kind: Kind,
    /// Times at which the events were switched on; at which files were opened that are not there.
    pub switched: Vec<u64>,
    pub missed: u64,
    /// Longest that was waited.
    pub longest: Duration,
    cpus: u32,
    clock: Cell<u64>,
    /// Nanoseconds; what is less than a microsecond has not yet gone into the clock.
    spent: Cell<u64>,
    rest: Cell<u64>,
    seen: u64,
    /// When it was last asked who is busy.
    asked: Option<u64>,
    turns: Turns,
    /// Records of each processor that is watched, those of the phase, and those without room.
    rings: BTreeMap<u32, (Vec<Record>, u64)>,
    since: Option<u64>,
    period: u64,
    lost: u64,
    signal: bool,
}

/// A file of so many pages on the slow node.
pub fn file(ino: u64) -> FileId {
    FileId { dev: 1 << 20, ino }
}

impl Made {
    pub fn new(cpus: u32) -> Made {
        Made {
            dear: Dear::default(),
            readers: Vec::new(),
            happens: BTreeMap::new(),
            files: HashMap::new(),
            room: 1 << 20,
            stuck: false,
            kind: Kind::Reads,
            switched: Vec::new(),
            missed: 0,
            longest: Duration::ZERO,
            cpus,
            clock: Cell::new(1000 * SECOND),
            spent: Cell::new(0),
            rest: Cell::new(0),
            seen: 1000 * SECOND,
            asked: None,
            turns: Turns::default(),
            rings: BTreeMap::new(),
            since: None,
            period: 1,
            lost: 0,
            signal: false,
        }
    }

    /// A file of so many MiB, wholly on the slow node.
    pub fn slow(mut self, id: FileId, mib: usize) -> Made {
        self.files.insert(id, vec![SLOW; mib << 8]);
        self
    }

    /// `cpu` reads all of a file again and again, so often in a second, from the start on.
    pub fn reads(self, cpu: u32, id: FileId, rounds: f64) -> Made {
        self.reads_within(cpu, id, rounds, 0..u64::MAX / SECOND / 2)
    }

    /// The same, within these seconds.
    pub fn reads_within(mut self, cpu: u32, id: FileId, rounds: f64, seconds: Range<u64>) -> Made {
        let calls = self.files[&id].len() as u64 / CALL;
        self.readers.push(Reader {
            cpu,
            file: id,
            every: ((SECOND as f64 / (rounds * calls as f64)) as u64).max(1),
            from: self.at(seconds.start),
            until: self.at(seconds.end),
        });
        self
    }

    /// At that second.
    pub fn then(mut self, second: u64, what: Happens) -> Made {
        // Several things may happen in one.
        let mut at = self.at(second);
        while self.happens.contains_key(&at) {
            at += 1;
        }
        self.happens.insert(at, what);
        self
    }

    fn at(&self, second: u64) -> u64 {
        1000 * SECOND + second * SECOND
    }

    pub fn fast(&self, id: FileId) -> usize {
        let on_fast = |pages: &Vec<u32>| pages.iter().filter(|&&node| node == FAST).count();
        self.files.get(&id).map_or(0, on_fast)
    }

    pub fn seconds(&self) -> u64 {
        (self.clock.get() - 1000 * SECOND) / SECOND
    }

    /// The share of one processor that all of it has taken, but for so many nanoseconds.
    pub fn share(&self, but: u64) -> f64 {
        (self.spent.get() - but) as f64 / 1000.0 / (self.clock.get() - 1000 * SECOND) as f64
    }

    pub(super) fn costs(&self, nanos: u64) {
        self.spent.set(self.spent.get() + nanos);
        let all = self.rest.get() + nanos;
        self.clock.set(self.clock.get() + all / 1000);
        self.rest.set(all % 1000);
    }

    /// What is read until `end`; stops where a ring wakes or something happens.
    fn go_on(&mut self, end: u64) -> u64 {
        let mut at = self.seen;
        let next = self.happens.keys().next().copied().unwrap_or(u64::MAX);
        let end = end.min(next.max(at));
        if self.rings.is_empty() {
            at = end;
        }
        // In steps: readers run beside one another.
        const STEP: u64 = 5_000;
        while at < end {
            let to = (at + STEP).min(end);
            for nth in 0..self.readers.len() {
                self.read(self.readers[nth], at..to);
            }
            at = to;
            if self.rings.values().any(|(ring, _)| ring.len() >= WAKES) {
                break;
            }
        }
        self.seen = at;
        at
    }

    fn read(&mut self, reader: Reader, span: Range<u64>) {
        let Some((ring, events)) = self.rings.get_mut(&reader.cpu) else {
            return;
        };
        let Some(pages) = self
            .files
            .get(&reader.file)
            .filter(|pages| !pages.is_empty())
        else {
            return;
        };
        let calls = (pages.len() as u64 / CALL).max(1);
        let (from, until) = (
            span.start
                .max(reader.from)
                .max(self.since.unwrap_or(u64::MAX)),
            span.end.min(reader.until),
        );
        let mut call = from.saturating_sub(reader.from).div_ceil(reader.every);
        while reader.from + call * reader.every < until {
            *events += 1;
            if *events % self.period == 0 {
                let first = call % calls * CALL;
                let event = Event::Read {
                    file: reader.file,
                    first,
                    last: first + CALL - 1,
                    pid: 7,
                    whole: false,
                };
                let at = Time(reader.from + call * reader.every);
                match ring.len() < RING {
                    true => ring.push(Record { event, at }),
                    false => self.lost += 1,
                }
            }
            call += 1;
        }
    }

    /// Processors that have worked for a tenth of a second since this was last asked.
    fn busy(&mut self) -> Vec<u32> {
        let now = self.clock.get();
        let before = self.asked.replace(now).unwrap_or(now);
        let worked = |reader: &&Reader| {
            let (from, until) = (reader.from.max(before), reader.until.min(now));
            until.saturating_sub(from) >= SECOND / 10
        };
        let busy = self.readers.iter().filter(worked);
        busy.map(|reader| reader.cpu).collect()
    }

    fn happen(&mut self) {
        while let Some(entry) = self.happens.first_entry() {
            if *entry.key() > self.clock.get() {
                return;
            }
            match entry.remove() {
                Happens::Vanishes(id) => drop(self.files.remove(&id)),
                Happens::Shrinks(id, pages) => {
                    if let Some(all) = self.files.get_mut(&id) {
                        all.truncate(pages as usize);
                    }
                }
                Happens::Demotes(id) => {
                    if let Some(pages) = self.files.get_mut(&id) {
                        self.room += pages.iter().filter(|&&node| node == FAST).count() as u64;
                        pages.fill(SLOW);
                    }
                }
                Happens::Promotes(id) => {
                    if let Some(pages) = self.files.get_mut(&id) {
                        self.room -= pages.iter().filter(|&&node| node == SLOW).count() as u64;
                        pages.fill(FAST);
                    }
                }
                Happens::Jumps(micros) => {
                    self.clock.set(self.clock.get() + micros);
                    self.seen = self.clock.get();
                }
                Happens::Signal => self.signal = true,
            }
        }
    }
}

impl Machine for Made {
    type File = FileId;
    /// The file, and its first page.
    type Window = (FileId, u64);

    fn now(&self) -> Time {
        Time(self.clock.get())
    }

    fn cpu_nanos(&self) -> u64 {
        self.spent.get()
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        self.longest = self.longest.max(timeout);
        self.costs(self.dear.wake);
        let end = self.clock.get() + timeout.as_micros() as u64;
        while !self.signal {
            let at = self.go_on(end);
            self.clock.set(self.clock.get().max(at));
            self.happen();
            let wakes = self.rings.values().any(|(ring, _)| ring.len() >= WAKES);
            if wakes || self.clock.get() >= end {
                break;
            }
        }
        Ok(self.signal)
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn measure(&mut self) -> Costs {
        Costs {
            event: 200.0,
            sample: 1700.0,
        }
    }

    fn start(&mut self, period: u64, _: bool) -> io::Result<()> {
        let online: Vec<u32> = (0..self.cpus).collect();
        let busy = self.busy();
        let chosen = self.turns.choose(&online, &busy);
        self.costs(self.dear.switch + self.dear.cpu * chosen.len() as u64);
        self.rings = chosen
            .into_iter()
            .map(|cpu| (cpu, Default::default()))
            .collect();
        self.switched.push(self.clock.get());
        self.since = Some(self.clock.get());
        self.seen = self.clock.get();
        self.period = period;
        Ok(())
    }

    fn watching(&self) -> bool {
        self.since.is_some()
    }

    fn so_far(&self, _: Costs) -> Phase {
        let Some(since) = self.since else {
            return Phase::default();
        };
        let most = self.rings.values().map(|&(_, events)| events).max();
        let events = most.unwrap_or(0);
        Phase {
            on: Duration::from_micros(self.clock.get() - since),
            events,
            samples: events / self.period,
        }
    }

    fn stop(&mut self, costs: Costs) -> Phase {
        let phase = self.so_far(costs);
        for (&cpu, &(_, events)) in &self.rings {
            self.turns.learn(cpu, events > 0);
        }
        self.costs(self.dear.switch);
        self.since = None;
        self.rings.clear();
        phase
    }

    fn drain(&mut self, mut each: impl FnMut(Event, Time, u32)) {
        let mut taken = 0;
        for (&cpu, (ring, _)) in &mut self.rings {
            for record in ring.drain(..) {
                each(record.event, record.at, cpu);
                taken += 1;
            }
        }
        self.costs(taken * self.dear.record);
    }

    fn lost(&self) -> u64 {
        self.lost
    }

    fn processors(&self) -> (usize, usize) {
        (self.rings.len(), self.cpus as usize)
    }

    fn tmpfs_switch(&self) -> u64 {
        0
    }

    fn file_pages(&self, node: u32) -> io::Result<u64> {
        self.costs(self.dear.ask);
        let all = self.files.values().flatten();
        Ok(all.filter(|&&on| on == node).count() as u64)
    }

    fn tmpfs_pages(&self, _: u32) -> Option<u64> {
        Some(0)
    }

    fn free(&self, node: u32) -> u64 {
        if node == FAST {
            self.room
        } else {
            1 << 30
        }
    }

    fn keep(&self, _: u32) -> u64 {
        0
    }

    fn open(&mut self, id: FileId, _: Option<u32>) -> Result<FileId, Skip> {
        self.costs(self.dear.open);
        match self.files.contains_key(&id) {
            true => Ok(id),
            false => {
                self.missed += 1;
                Err(Skip::NotFound)
            }
        }
    }

    fn known(&mut self) -> Vec<FileId> {
        let mut known: Vec<FileId> = self.files.keys().copied().collect();
        known.sort();
        known
    }

    fn size(&self, file: &FileId) -> io::Result<u64> {
        let gone = || io::Error::from_raw_os_error(libc::ESTALE);
        Ok(self.files.get(file).ok_or_else(gone)?.len() as u64)
    }

    fn look(
        &mut self,
        file: &FileId,
        pages: Range<u64>,
        wanted: &[Range<usize>],
    ) -> io::Result<((FileId, u64), Nodes)> {
        let all = &self.files[file][pages.start as usize..pages.end as usize];
        let within = wanted
            .iter()
            .flat_map(|range| range.start..range.end.min(all.len()));
        let nodes: Nodes = within.map(|page| (page, all[page])).collect();
        self.costs(self.dear.look * nodes.len() as u64);
        Ok(((*file, pages.start), nodes))
    }

    fn disk_reads(&self, _: &(FileId, u64)) -> u64 {
        0
    }

    fn folios(&mut self, _: &(FileId, u64), pages: &[usize]) -> Vec<Folio> {
        let folio = |&page: &usize| Folio {
            page: page / BLOCK_PAGES as usize * BLOCK_PAGES as usize,
            pages: BLOCK_PAGES,
        };
        let mut folios: Vec<Folio> = pages.iter().map(folio).collect();
        folios.dedup();
        folios
    }

    fn migrate(
        &mut self,
        &(file, first): &(FileId, u64),
        folios: &[Folio],
        to: u32,
        _: Mapped,
    ) -> io::Result<(Vec<bool>, Failed)> {
        let (mut moved, mut failed) = (Vec::new(), Failed::default());
        for folio in folios {
            self.costs(self.dear.page * folio.pages);
            let there = !self.stuck && (to != FAST || self.room >= folio.pages);
            moved.push(there);
            if !there {
                failed.busy += folio.pages;
                continue;
            }
            let start = first as usize + folio.page;
            let all = self.files.get_mut(&file).expect("it is open");
            let end = (start + folio.pages as usize).min(all.len());
            all[start..end].fill(to);
            match to {
                FAST => self.room -= folio.pages,
                _ => self.room += folio.pages,
            }
        }
        Ok((moved, failed))
    }

    fn frames(&mut self, _: &(FileId, u64), pages: &[usize]) -> Vec<Option<(u64, bool)>> {
        vec![None; pages.len()]
    }
}
