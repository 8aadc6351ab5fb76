//! The daemon: watches, finds, moves, and rests.
//!
//! One thread. Within each interval the tracepoint is on for as long as the
//! budget allows; what is hot then is looked at and moved within the rate
//! limit; the thread sleeps otherwise, until a ring fills, a signal comes or
//! the next thing is due.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use crate::credit::Credit;
use crate::files::{Files, Skip};
use crate::page::{Block, FileId, Time, BATCH_BLOCKS, BLOCK_PAGES, PAGE};
use crate::place::{Folio, Frames, Window};
use crate::policy::{Batch, Limits, Next, Outcome, Policy};
use crate::stats::Stats;
use crate::sys;
use crate::tiers::{self, Route};
use crate::trace::budget::{Budget, Costs, Phase};
use crate::trace::{Event, Kind, Points, Trace};

#[derive(Clone, Debug)]
pub struct Config {
    pub routes: Vec<Route>,
    pub limits: Limits,
    pub interval: Duration,
    /// Share of a processor's time.
    pub budget: f64,
    pub paths: Vec<PathBuf>,
    /// Make room on the fast node by moving cold pages away.
    pub demote: bool,
    /// Look only, move nothing.
    pub observe: bool,
}

/// Why the loop has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Signal,
    /// The caller's report said so.
    Asked,
}

/// Pages of a window: 2 MiB.
const WINDOW: u64 = BATCH_BLOCKS * BLOCK_PAGES;
/// Frames whose file is remembered.
const MOST_FRAMES: usize = 1 << 18;
const MOST_READERS: usize = 1 << 14;
/// Records wait no longer in a ring: their reader may end soon, and with it the
/// way to its file.
const LATENCY: Duration = Duration::from_millis(100);
/// New files that are looked for at once, after each look into the rings.
const MOST_NEW: usize = 16;
/// How long moving may keep us from emptying the rings.
const SLICE: Duration = Duration::from_millis(50);
/// Room that is made at once by demotion: 16 MiB.
const DEMOTE_PAGES: u64 = 4096;
/// Windows looked at for cold pages in one interval.
const DEMOTE_LOOKS: usize = 256;
/// A pass over all known files is not begun again sooner.
const SCAN_PAUSE: Duration = Duration::from_secs(2);

/// A walk over all windows of the known files, a few at a time.
#[derive(Debug, Default)]
struct Walk {
    files: Vec<FileId>,
    /// Of `files`, and page within it.
    at: (usize, u64),
    begun: Option<Time>,
}

pub struct Daemon {
    config: Config,
    trace: Trace,
    /// Why reads of tmpfs can't be watched.
    tmpfs: Option<String>,
    /// Not watched before.
    tmpfs_rests: Time,
    /// As measured at the start, and what a record costs us, in nanoseconds.
    costs: Costs,
    handling: f64,
    /// What was spent on records since that was last learned, and on how many.
    handled: (u64, u64),
    budget: Budget,
    policy: Policy,
    files: Files,
    frames: Option<Frames>,
    /// Who has read a file last.
    readers: HashMap<FileId, u32>,
    /// Which page of which file a frame on a slow node is.
    owners: HashMap<u64, (FileId, u64)>,
    stats: Stats,
    started: Time,
    /// Room on each fast node, and when it was asked for.
    room: HashMap<u32, (u64, Time)>,
    credit: Credit,
    /// Processor time that went into moving, in nanoseconds.
    moving: u64,
    /// The same of reading the rings.
    draining: u64,
    /// Activations, at the end of the last interval.
    hints: u64,
    scan: Walk,
    cold: Walk,
    random: u64,
}

fn now() -> Time {
    Time(sys::monotonic_micros())
}

impl Daemon {
    pub fn new(config: Config, points: Points) -> io::Result<Daemon> {
        let mut trace = Trace::new(points)?;
        let tmpfs = trace.add_tmpfs().err().map(|err| err.to_string());
        let costs = trace.calibrate().unwrap_or_default();
        let now = now();
        Ok(Daemon {
            budget: Budget::new(config.budget / 2.0),
            policy: Policy::new(config.limits.clone()),
            files: Files::new(config.paths.clone()),
            frames: Frames::open().ok(),
            readers: HashMap::new(),
            owners: HashMap::new(),
            stats: Stats::default(),
            started: now,
            room: HashMap::new(),
            credit: Credit::new(config.budget / 2.0, now, sys::cpu_nanos()),
            handling: 500.0,
            handled: (0, 0),
            moving: 0,
            draining: 0,
            hints: 0,
            scan: Walk::default(),
            cold: Walk::default(),
            random: now.0 | 1,
            trace,
            tmpfs,
            tmpfs_rests: now,
            costs,
            config,
        })
    }

    pub fn kind(&self) -> Kind {
        self.trace.kind()
    }

    /// Why files on tmpfs stay where they are, if they do.
    pub fn without_tmpfs(&self) -> Option<&str> {
        self.tmpfs.as_deref()
    }

    /// Goes on until a signal is readable on `signals` or `report`, which is
    /// called after every interval, says to stop.
    pub fn run(
        &mut self,
        signals: BorrowedFd,
        mut report: impl FnMut(&Stats) -> bool,
    ) -> io::Result<End> {
        loop {
            let begin = now();
            let end = begin.after(self.config.interval);
            let cpu = (sys::cpu_nanos(), self.moving);
            self.debt(begin);
            let slow: u64 = self
                .config
                .routes
                .iter()
                .map(|route| tiers::file_pages(route.from).unwrap_or(1))
                .sum();
            self.stats.slow_file_pages = slow;
            self.stats.sample_duty = 0.0;
            self.stats.overhead_sampling = 0.0;
            if slow > 0 {
                let on = self.on_time();
                let off = self.config.interval.saturating_sub(on);
                let start = begin.after(off.mul_f64(self.draw()));
                if self.work_until(start, signals)? {
                    return Ok(End::Signal);
                }
                if !on.is_zero() {
                    let tmpfs = self.tmpfs_is_due(begin);
                    self.trace.want_tmpfs(tmpfs);
                    self.trace.start(self.period())?;
                }
                if self.kind() == Kind::Activations {
                    self.scan(end);
                }
                let stopped = self.work_until(start.after(on), signals)?;
                self.finish_phase();
                if stopped {
                    return Ok(End::Signal);
                }
            }
            if self.work_until(end, signals)? {
                return Ok(End::Signal);
            }
            let spent = (sys::cpu_nanos() - cpu.0, self.moving - cpu.1);
            let elapsed = now().since(begin).as_nanos() as f64;
            self.stats.overhead_total = spent.0 as f64 / elapsed;
            self.stats.overhead_daemon = spent.0.saturating_sub(spent.1) as f64 / elapsed;
            self.gauges();
            if !report(&self.stats) {
                return Ok(End::Asked);
            }
        }
    }

    pub fn stats(&mut self) -> &Stats {
        self.gauges();
        &self.stats
    }

    fn gauges(&mut self) {
        let now = now();
        self.stats.seconds = now.since(self.started).as_secs_f64();
        self.stats.lost_samples = self.trace.lost;
        self.stats.backoffs = self.policy.backoff.pauses;
        self.stats.backing_off = self.policy.backoff.active(now);
        self.stats.queue_full = self.policy.queue_full;
        self.stats.table_full = self.policy.overflows();
        self.stats.table_blocks = self.policy.remembered();
    }

    fn on_time(&mut self) -> Duration {
        match self.kind() {
            Kind::Reads => self.budget.on_time(self.config.interval),
            // A page is activated once: what is missed is missed.
            Kind::Activations => self.config.interval,
        }
    }

    fn period(&self) -> u64 {
        match self.kind() {
            Kind::Reads => self.budget.period(),
            Kind::Activations => 1,
        }
    }

    /// Does the phase that begins watch tmpfs? To switch that on and off takes no more than a
    /// quarter of what looking may cost.
    fn tmpfs_is_due(&mut self, at: Time) -> bool {
        if at < self.tmpfs_rests {
            return false;
        }
        let mut routes = self.config.routes.iter();
        let due = routes.any(|route| tiers::tmpfs_pages(route.from) != Some(0));
        if due {
            let rest = self.trace.tmpfs_switch() as f64 / (self.config.budget / 8.0);
            self.tmpfs_rests = at.after(Duration::from_nanos(rest as u64));
        }
        due
    }

    /// A number from 0 to 1, so that watching does not keep step with a
    /// program that reads in turns.
    fn draw(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Half of the budget is for sampling, the records' handling included, and
    /// half for all else that we do but moving: has that cost more than it may?
    fn debt(&mut self, now: Time) -> Option<Duration> {
        let spent = sys::cpu_nanos() - self.moving - self.draining;
        self.credit.debt(now, spent)
    }

    /// Empties rings, looks and moves, and sleeps, until `end`. True: a signal
    /// has come.
    fn work_until(&mut self, end: Time, signals: BorrowedFd) -> io::Result<bool> {
        loop {
            self.drain();
            if self.overspent() {
                self.finish_phase();
            }
            let idle = self.move_some()?;
            let at = now();
            let mut timeout = idle.min(end.since(at));
            let mut fds = vec![signals];
            if self.trace.watching() {
                timeout = timeout.min(LATENCY);
                fds.extend(self.trace.fds());
            }
            let ready = sys::wait(&fds, timeout)?;
            if ready.first() == Some(&true) {
                return Ok(true);
            }
            if now() >= end {
                self.drain();
                return Ok(false);
            }
        }
    }

    fn drain(&mut self) {
        if self.trace.watching() {
            self.empty_rings();
        }
    }

    fn empty_rings(&mut self) {
        let before = (sys::cpu_nanos(), self.stats.numa_hint_page_cache);
        let (policy, stats) = (&mut self.policy, &mut self.stats);
        let (readers, owners) = (&mut self.readers, &mut self.owners);
        let mut new = Vec::new();
        self.trace.drain(|event, time| match event {
            Event::Read {
                file,
                first,
                last,
                pid,
                whole,
            } => {
                stats.numa_hint_page_cache += 1;
                if readers.len() >= MOST_READERS && !readers.contains_key(&file) {
                    readers.clear();
                }
                if readers.insert(file, pid).is_none() && new.len() < MOST_NEW {
                    new.push(file);
                }
                if whole {
                    policy.access_whole(file, first, last, time);
                } else {
                    policy.access(file, first, last, time);
                }
            }
            Event::Inserted { file, page, pfn } => {
                if owners.len() >= MOST_FRAMES {
                    owners.clear();
                }
                owners.insert(pfn, (file, page));
            }
            Event::Activated { pfn } => {
                stats.numa_hint_page_cache += 1;
                match owners.get(&pfn) {
                    Some(&(file, page)) => policy.activated(file, page, time),
                    None => stats.unknown_pages += 1,
                }
            }
        });
        let samples = self.stats.numa_hint_page_cache - before.1;
        let spent = sys::cpu_nanos() - before.0;
        self.draining += spent;
        if samples > 0 {
            // Few at a time cost more each: they count as they come.
            self.handled = (self.handled.0 + spent, self.handled.1 + samples);
        }
        if self.handled.1 >= 100 {
            let each = self.handled.0 as f64 / self.handled.1 as f64;
            self.handling += (each - self.handling) / 8.0;
            self.handled = (0, 0);
        }
        for file in new {
            // Finds the way there and remembers it.
            let _ = self.open(file);
        }
    }

    /// Has watching cost more already than it may in this interval? A reader
    /// may have begun in earnest since the length of the phase was chosen.
    fn overspent(&self) -> bool {
        if !self.trace.watching() || self.kind() == Kind::Activations {
            return false;
        }
        let costs = self.costs();
        let spent = costs.of(self.trace.so_far(costs));
        spent > self.config.interval.mul_f64(self.config.budget / 2.0)
    }

    /// What a hit and a record cost, with what we do about a record.
    pub fn costs(&self) -> Costs {
        Costs {
            sample: self.costs.sample + self.handling,
            ..self.costs
        }
    }

    fn finish_phase(&mut self) {
        if !self.trace.watching() {
            return;
        }
        self.drain();
        if self.kind() == Kind::Activations {
            // Stays on: what is missed here is missed. Each hit is a record.
            self.stats.sample_duty = 1.0;
            self.stats.sample_period = 1;
            let samples = self.stats.numa_hint_page_cache - self.hints;
            self.hints += samples;
            let phase = Phase {
                events: samples,
                samples,
                ..Phase::default()
            };
            let interval = self.config.interval.as_secs_f64();
            self.stats.overhead_sampling = self.costs().of(phase).as_secs_f64() / interval;
            return;
        }
        let costs = self.costs();
        let phase = self.trace.stop(costs);
        // What came between the last look and the end.
        self.empty_rings();
        let interval = self.config.interval.as_secs_f64();
        self.stats.sample_duty = phase.on.as_secs_f64() / interval;
        self.stats.sample_period = self.period();
        self.stats.overhead_sampling = costs.of(phase).as_secs_f64() / interval;
        self.budget.learn(phase, costs);
    }

    /// Moves for a while; says how long there is nothing to do.
    fn move_some(&mut self) -> io::Result<Duration> {
        let begin = now();
        loop {
            let at = now();
            if at.since(begin) >= SLICE {
                return Ok(Duration::ZERO);
            }
            if let Some(wait) = self.debt(at) {
                return Ok(wait);
            }
            match self.policy.next(at) {
                Next::Nothing => return Ok(self.config.interval),
                Next::Wait(time) => {
                    return Ok(time.max(Duration::from_millis(1)));
                }
                Next::Batch(batch) => {
                    self.promote(&batch)?;
                    self.drain();
                }
            }
        }
    }

    fn open(&mut self, id: FileId) -> Result<File, Skip> {
        let pid = self.readers.get(&id).copied();
        let opened = self.files.open(id, pid, now());
        if let Err(skip) = opened {
            let name = match skip {
                Skip::NotSelected => "not_selected",
                Skip::NotFound => "not_found",
                Skip::NotPermitted => "not_permitted",
                Skip::NotRegular => "not_regular",
                Skip::Remote => "remote",
            };
            *self.stats.skipped_files.entry(name).or_default() += 1;
        }
        opened
    }

    fn promote(&mut self, batch: &Batch) -> io::Result<()> {
        let Ok(file) = self.open(batch.file) else {
            self.policy.refuse(batch, now());
            return Ok(());
        };
        let start = batch.blocks[0] / BATCH_BLOCKS * BATCH_BLOCKS;
        let wanted: Vec<Range<usize>> = batch
            .blocks
            .iter()
            .map(|block| {
                let page = ((block - start) * BLOCK_PAGES) as usize;
                page..page + BLOCK_PAGES as usize
            })
            .collect();
        let Some((mut window, nodes)) = self.look(&file, start * BLOCK_PAGES, &wanted) else {
            self.policy.refuse(batch, now());
            return Ok(());
        };
        let mut outcomes = vec![Outcome::default(); BATCH_BLOCKS as usize];
        let block_of = |page: usize| page / BLOCK_PAGES as usize;
        let routes = self.config.routes.clone();
        for &(page, node) in &nodes {
            if routes.iter().all(|route| route.from != node) {
                outcomes[block_of(page)].fast += 1;
                self.stats.numa_hint_page_cache_local += 1;
            }
        }
        for route in routes {
            let slow: Vec<usize> = nodes
                .iter()
                .filter(|&&(_, node)| node == route.from)
                .map(|&(page, _)| page)
                .collect();
            if slow.is_empty() {
                continue;
            }
            self.promote_from(route, &mut window, &slow, &mut outcomes)?;
        }
        self.stats.disk_reads += window.disk_reads;
        let done = now();
        for &index in &batch.blocks {
            let block = Block {
                file: batch.file,
                index,
            };
            let outcome = outcomes[(index - start) as usize];
            self.policy.done(block, outcome, done);
        }
        Ok(())
    }

    /// A window of a file and the nodes of the wanted pages.
    fn look(
        &mut self,
        file: &File,
        first: u64,
        wanted: &[Range<usize>],
    ) -> Option<(Window, Vec<(usize, u32)>)> {
        let size = file.metadata().ok()?.len().div_ceil(PAGE);
        let pages = size.saturating_sub(first).min(WINDOW);
        if pages == 0 {
            return None;
        }
        let mut window = Window::open(file.as_fd(), first, pages as usize).ok()?;
        let nodes = window.nodes(wanted).ok()?;
        Some((window, nodes))
    }

    fn promote_from(
        &mut self,
        route: Route,
        window: &mut Window,
        slow: &[usize],
        outcomes: &mut [Outcome],
    ) -> io::Result<()> {
        let folios = self.folios(window, slow);
        let at = now();
        let rate = self.policy.rate.room(at);
        let mut room = self.room(route.to, at);
        let needed: u64 = folios.iter().map(|folio| folio.pages).sum();
        if room < needed && self.config.demote && !self.config.observe {
            self.demote(route)?;
            room = self.room(route.to, at);
        }
        // In order, as many as there is room for.
        let (mut pages, mut taken) = (0, 0);
        for folio in &folios {
            if pages + folio.pages > rate.min(room) {
                break;
            }
            pages += folio.pages;
            taken += 1;
        }
        let rest: u64 = folios[taken..].iter().map(|folio| folio.pages).sum();
        let rate_limited = rest > 0 && rate < room;
        if rate_limited {
            self.stats.rate_limited += rest;
        } else if rest > 0 {
            self.stats.no_room += 1;
            self.policy.drop_queue();
        }
        self.stats.pgpromote_candidate += pages;
        let moved = if self.config.observe || taken == 0 {
            vec![false; taken]
        } else {
            self.migrate(window, &folios[..taken], route.to)?
        };
        // Which outcome each slow page has: that of its folio.
        let mut folio = 0;
        for &page in slow {
            while folio + 1 < folios.len() && folios[folio + 1].page <= page {
                folio += 1;
            }
            let outcome = &mut outcomes[page / BLOCK_PAGES as usize];
            if self.config.observe {
                // Nothing more is to be done about it.
                outcome.fast += 1;
                continue;
            }
            outcome.slow += 1;
            match moved.get(folio) {
                Some(true) => outcome.moved += 1,
                None if rate_limited => outcome.left += 1,
                _ => {}
            }
        }
        let success: u64 = sum_where(&folios, &moved);
        self.stats.pgpromote_success += success;
        if let Some((room, _)) = self.room.get_mut(&route.to) {
            *room = room.saturating_sub(success);
        }
        Ok(())
    }

    fn folios(&mut self, window: &Window, pages: &[usize]) -> Vec<Folio> {
        match &mut self.frames {
            Some(frames) => frames.folios(window, pages),
            None => pages.iter().map(|&page| Folio { page, pages: 1 }).collect(),
        }
    }

    fn migrate(&mut self, window: &Window, folios: &[Folio], to: u32) -> io::Result<Vec<bool>> {
        let before = sys::cpu_nanos();
        let (moved, failed) = match window.migrate(folios, to, true) {
            Err(err) if err.raw_os_error() == Some(libc::EPERM) => {
                window.migrate(folios, to, false)?
            }
            other => other?,
        };
        self.moving += sys::cpu_nanos() - before;
        let pages = sum_where(folios, &moved);
        self.policy.rate.moved(pages, now());
        self.stats.numa_pages_migrated += pages;
        self.stats.failed.add(failed);
        Ok(moved)
    }

    /// Pages that a node can take.
    fn room(&mut self, node: u32, at: Time) -> u64 {
        const FRESH: Duration = Duration::from_millis(100);
        match self.room.get(&node) {
            Some(&(room, asked)) if at.since(asked) < FRESH => room,
            _ => {
                let room = tiers::room(node).unwrap_or(0);
                self.room.insert(node, (room, at));
                room
            }
        }
    }

    /// Moves cold file pages from the fast node to the slow one: such that
    /// were not accessed within the window.
    fn demote(&mut self, route: Route) -> io::Result<()> {
        // Everything looks cold to one who has just come.
        if now().since(self.started) < self.config.limits.window {
            return Ok(());
        }
        let mut demoted = 0;
        for _ in 0..DEMOTE_LOOKS {
            if demoted >= DEMOTE_PAGES {
                break;
            }
            let Some((id, file, first)) = self.walk(true) else {
                break;
            };
            let at = now();
            let base = first / BLOCK_PAGES;
            let cold: Vec<u64> = (0..BATCH_BLOCKS)
                .filter(|index| {
                    let block = Block {
                        file: id,
                        index: base + index,
                    };
                    self.policy.last_access(block, at).is_none()
                })
                .collect();
            let wanted: Vec<Range<usize>> = cold
                .iter()
                .map(|index| {
                    let page = (index * BLOCK_PAGES) as usize;
                    page..page + BLOCK_PAGES as usize
                })
                .collect();
            let Some((window, nodes)) = self.look(&file, first, &wanted) else {
                continue;
            };
            self.stats.disk_reads += window.disk_reads;
            let pages: Vec<usize> = nodes
                .iter()
                .filter(|&&(_, node)| node == route.to)
                .map(|&(page, _)| page)
                .collect();
            let folios = self.folios(&window, &pages);
            let needed: u64 = folios.iter().map(|folio| folio.pages).sum();
            if needed == 0 {
                continue;
            }
            if needed > self.policy.rate.room(at) || needed > self.room(route.from, at) {
                break;
            }
            let moved = self.migrate(&window, &folios, route.from)?;
            let pages = sum_where(&folios, &moved);
            demoted += pages;
            self.stats.pgdemote_proactive += pages;
            for index in cold {
                let block = Block {
                    file: id,
                    index: base + index,
                };
                self.policy.demoted(block, now());
            }
        }
        self.room.clear();
        Ok(())
    }

    /// The next window of a walk over the known files: for cold pages, or to
    /// learn frames. `None` at the end of a pass.
    fn walk(&mut self, cold: bool) -> Option<(FileId, File, u64)> {
        let at = now();
        let walk = if cold { &mut self.cold } else { &mut self.scan };
        let mut walk = std::mem::take(walk);
        if walk.at.0 >= walk.files.len() {
            let rested = walk.begun.is_none_or(|begun| at.since(begun) >= SCAN_PAUSE);
            if rested {
                walk.files = self.files.known(at);
                walk.at = (0, 0);
                walk.begun = Some(at);
            }
        }
        let mut found = None;
        while let Some(&id) = walk.files.get(walk.at.0) {
            let size = self.files.open(id, None, at).ok().and_then(|file| {
                let size = file.metadata().ok()?.len().div_ceil(PAGE);
                Some((file, size))
            });
            match size {
                Some((file, size)) if walk.at.1 < size => {
                    found = Some((id, file, walk.at.1));
                    walk.at.1 += WINDOW;
                    break;
                }
                _ => walk.at = (walk.at.0 + 1, 0),
            }
        }
        *(if cold { &mut self.cold } else { &mut self.scan }) = walk;
        found
    }

    /// Where the kernel names frames only: learns which frames on the slow
    /// nodes are of which file, and takes those that the kernel has activated
    /// before for hot.
    fn scan(&mut self, end: Time) {
        loop {
            let at = now();
            if at >= end || self.debt(at).is_some() {
                return;
            }
            self.drain();
            let next = self.walk(false);
            if let Some((id, file, first)) = &next {
                self.learn_frames(*id, file, *first, at);
            }
            if next.is_none() {
                return;
            }
        }
    }

    fn learn_frames(&mut self, id: FileId, file: &File, first: u64, at: Time) {
        let all = 0..WINDOW as usize;
        let Some((window, nodes)) = self.look(file, first, &[all]) else {
            return;
        };
        self.stats.disk_reads += window.disk_reads;
        let slow: Vec<usize> = nodes
            .iter()
            .filter(|&&(_, node)| self.config.routes.iter().any(|route| route.from == node))
            .map(|&(page, _)| page)
            .collect();
        let Some(frames) = &mut self.frames else {
            return;
        };
        let (pages, pfns): (Vec<u64>, Vec<u64>) = frames
            .pfns(&window, &slow)
            .into_iter()
            .zip(slow)
            .filter_map(|(pfn, page)| Some((first + page as u64, pfn?)))
            .unzip();
        for ((&page, &pfn), active) in pages.iter().zip(&pfns).zip(frames.active(&pfns)) {
            if self.owners.len() >= MOST_FRAMES {
                self.owners.clear();
            }
            self.owners.insert(pfn, (id, page));
            if active {
                self.policy.activated(id, page, at);
            }
        }
    }
}

fn sum_where(folios: &[Folio], which: &[bool]) -> u64 {
    folios
        .iter()
        .zip(which)
        .filter(|(_, &which)| which)
        .map(|(folio, _)| folio.pages)
        .sum()
}
