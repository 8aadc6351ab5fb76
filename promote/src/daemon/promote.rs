//! What is hot is looked at, and moved.

use std::io;
use std::ops::Range;
use std::time::Duration;

use super::demote::DEMOTE_PAGES;
use super::found::{self, Found};
use super::portion::{Portion, Rest};
use super::{Daemon, WINDOW};
use crate::files::Skip;
use crate::ledger::For;
use crate::machine::{Machine, Nodes};
use crate::page::{Block, FileId, Time, BATCH_BLOCKS, BLOCK_PAGES};
use crate::place::{sum_where, Folio, Mapped};
use crate::policy::{Next, Outcome};
use crate::queue::Batch;
use crate::tiers::Route;

/// How long moving may keep us from emptying the rings.
const SLICE: Duration = Duration::from_millis(50);

impl<M: Machine> Daemon<M> {
    /// Has looking, or have looking and moving together, cost more than they may? Then how long to
    /// wait.
    pub(super) fn debt(&mut self, now: Time) -> Option<Duration> {
        let looked = self.ledger.of(For::Looking);
        let worked = looked + self.ledger.of(For::Moving);
        let looking = self.looking.debt(now, looked);
        looking.max(self.work.debt(now, worked))
    }

    /// Moves for a while; says how long there is nothing to do.
    pub(super) fn move_some(&mut self) -> io::Result<Duration> {
        let begin = self.now();
        loop {
            let at = self.now();
            if at.since(begin) >= SLICE {
                return Ok(Duration::ZERO);
            }
            if let Some(wait) = self.debt(at) {
                return Ok(wait);
            }
            let room = self.room_for_all(at);
            match self.policy.next(at, room) {
                Next::Nothing => return Ok(self.config.interval),
                Next::Limited(time) => {
                    self.limited = true;
                    return Ok(time.max(Duration::from_millis(1)));
                }
                Next::Settle(time) => return Ok(time.max(Duration::from_millis(1))),
                Next::Batch(batch) => {
                    self.enter(For::Fixed);
                    self.promote(&batch)?;
                    self.enter(For::Looking);
                    self.drain();
                }
            }
        }
    }

    pub(super) fn open(&mut self, id: FileId) -> Result<M::File, Skip> {
        let pid = self.readers.pid(id);
        let opened = self.machine.open(id, pid);
        if let Err(skip) = opened {
            *self.stats.skipped_files.entry(skip.name()).or_default() += 1;
        }
        opened
    }

    pub(super) fn promote(&mut self, batch: &Batch) -> io::Result<()> {
        let Ok(file) = self.open(batch.file) else {
            self.policy.refuse(batch, self.now());
            return Ok(());
        };
        let start = batch.blocks[0] / BATCH_BLOCKS * BATCH_BLOCKS;
        let wanted = found::pages_of(&batch.blocks, start);
        let Some((window, nodes)) = self.look(&file, start * BLOCK_PAGES, &wanted) else {
            self.policy.refuse(batch, self.now());
            return Ok(());
        };
        let mut outcomes = vec![Outcome::default(); BATCH_BLOCKS as usize];
        let at = self.now();
        let heat = batch.blocks.iter().map(|&index| {
            let file = batch.file;
            self.policy.heat(Block { file, index }, at)
        });
        let heat = heat.max().unwrap_or(0);
        let near = self
            .readers
            .node(batch.file)
            .and_then(|node| self.fast.near(node));
        let waited = std::mem::take(&mut self.limited);
        let found = Found::sort(&nodes, &self.config.routes, &mut outcomes);
        self.stats.numa_hint_page_cache_local += found.fast;
        for (route, slow) in found.slow {
            let pages = slow.len() as u64;
            if waited {
                self.stats.rate_limited += pages;
            }
            let route = found::near(route, near, pages, |to| self.room(to, self.now()));
            self.promote_from(route, &window, &slow, heat, &mut outcomes)?;
        }
        self.stats.disk_reads += self.machine.disk_reads(&window);
        let done = self.now();
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
    pub(super) fn look(
        &mut self,
        file: &M::File,
        first: u64,
        wanted: &[Range<usize>],
    ) -> Option<(M::Window, Nodes)> {
        let end = self
            .machine
            .size(file)
            .ok()?
            .min(first.saturating_add(WINDOW));
        if end <= first {
            return None;
        }
        self.machine.look(file, first..end, wanted).ok()
    }

    pub(super) fn promote_from(
        &mut self,
        route: Route,
        window: &M::Window,
        slow: &[usize],
        heat: u16,
        outcomes: &mut [Outcome],
    ) -> io::Result<()> {
        let folios = self.machine.folios(window, slow);
        let mut room = self.room(route.to, self.now());
        let needed: u64 = folios.iter().map(|folio| folio.pages).sum();
        if room < needed && self.config.demote && !self.config.observe {
            self.demote(route, heat)?;
            room = self.room(route.to, self.now());
        }
        // Demotion counts too.
        let rate = self.policy.rate.room(self.now());
        let portion = Portion::of(&folios, rate, room);
        match portion.rest {
            Rest::Nothing => {}
            Rest::Limited(pages) => self.stats.rate_limited += pages,
            Rest::NoRoom => {
                self.stats.no_room += 1;
                self.policy.no_room(self.now());
            }
        }
        self.stats.pgpromote_candidate += portion.pages;
        if self.config.observe {
            // Nothing more is to be done about it.
            for &page in slow {
                outcomes[page / BLOCK_PAGES as usize].fast += 1;
            }
            return Ok(());
        }
        let moved = match portion.folios {
            0 => Vec::new(),
            count => self.migrate(window, &folios[..count], route.to)?,
        };
        portion.tell(slow, &folios, &moved, outcomes);
        let success: u64 = sum_where(&folios, &moved);
        self.stats.pgpromote_success += success;
        if let Some(room) = self.room.get_mut(&route.to) {
            room.taken(success);
        }
        Ok(())
    }

    pub(super) fn migrate(
        &mut self,
        window: &M::Window,
        folios: &[Folio],
        to: u32,
    ) -> io::Result<Vec<bool>> {
        self.enter(For::Looking);
        let (moved, failed) = match self.machine.migrate(window, folios, to, Mapped::ByAnyone) {
            Err(err) if err.raw_os_error() == Some(libc::EPERM) => {
                self.machine
                    .migrate(window, folios, to, Mapped::ByUsAlone)?
            }
            other => other?,
        };
        let cost = self.enter(For::Moving);
        let pages = sum_where(folios, &moved);
        if pages > 0 {
            // What is moved is worth as much looking as moving it.
            self.looking.earn(cost);
        }
        self.policy.rate.moved(pages, self.now());
        self.stats.numa_pages_migrated += pages;
        self.stats.failed.add(failed);
        Ok(moved)
    }

    /// Pages that the fast nodes can take, or could after demotion.
    fn room_for_all(&mut self, at: Time) -> u64 {
        let mut nodes: Vec<u32> = self.config.routes.iter().map(|route| route.to).collect();
        nodes.extend(self.fast.nodes());
        nodes.sort_unstable();
        nodes.dedup();
        let more = if self.config.demote { DEMOTE_PAGES } else { 0 };
        if self.config.observe {
            return u64::MAX;
        }
        nodes
            .into_iter()
            .map(|node| self.room(node, at))
            .sum::<u64>()
            + more
    }

    /// Pages that a node can take.
    pub(super) fn room(&mut self, node: u32, at: Time) -> u64 {
        let machine = &self.machine;
        let room = self.room.entry(node).or_default();
        room.pages(at, || machine.keep(node), || machine.free(node))
    }
}
