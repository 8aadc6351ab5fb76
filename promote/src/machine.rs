//! All that the daemon asks of the machine: events, time, files, memory nodes, and where pages are.
//!
//! [`Linux`] is the one that there is. Tests make one up.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use crate::files::{Files, Skip};
use crate::page::{FileId, Time, PAGE};
use crate::place::{Failed, Folio, Frames, Mapped, Window};
use crate::sys;
use crate::tiers;
use crate::trace::budget::{Costs, Phase};
use crate::trace::points::{Event, Kind, Points};
use crate::trace::Trace;

/// Pages of a window that are in the page cache, and their nodes.
pub type Nodes = Vec<(usize, u32)>;

pub trait Machine {
    /// One that is open.
    type File;
    /// A part of one.
    type Window;

    /// The clock that events are stamped with.
    fn now(&self) -> Time;
    /// Processor time that the daemon has spent, in nanoseconds.
    fn cpu_nanos(&self) -> u64;
    /// Waits until there is something, or the time is over; says whether a signal has come.
    fn wait(&mut self, timeout: Duration) -> io::Result<bool>;

    fn kind(&self) -> Kind;
    /// What a hit and a record cost.
    fn measure(&mut self) -> Costs;
    /// Starts to watch one of `period` hits; reads of tmpfs too, if that can be.
    fn start(&mut self, period: u64, tmpfs: bool) -> io::Result<()>;
    fn watching(&self) -> bool;
    /// What the phase has brought until events were last handed over, on the busiest processor.
    fn so_far(&self, costs: Costs) -> Phase;
    /// Ends the phase, and says the same.
    fn stop(&mut self, costs: Costs) -> Phase;
    /// Hands over what was recorded so far, with the processor it was recorded on.
    fn drain(&mut self, each: impl FnMut(Event, Time, u32));
    /// Records that there was no room for.
    fn lost(&self) -> u64;
    /// Processors that the phase watches, and that there are.
    fn processors(&self) -> (usize, usize);
    /// Nanoseconds that a phase costs more because it watches tmpfs.
    fn tmpfs_switch(&self) -> u64;

    /// File pages of a node; those of tmpfs among them, if that is known.
    fn file_pages(&self, node: u32) -> io::Result<u64>;
    fn tmpfs_pages(&self, node: u32) -> Option<u64>;
    /// Pages of a node that are free, and those that are not to be taken.
    fn free(&self, node: u32) -> u64;
    fn keep(&self, node: u32) -> u64;

    /// Opens a file for reading, which `pid` has read lately.
    fn open(&mut self, id: FileId, pid: Option<u32>) -> Result<Self::File, Skip>;
    /// Files that can be walked through.
    fn known(&mut self) -> Vec<FileId>;
    /// Pages of a file.
    fn size(&self, file: &Self::File) -> io::Result<u64>;
    /// A part of a file, and the nodes of the pages in `wanted`.
    fn look(
        &mut self,
        file: &Self::File,
        pages: Range<u64>,
        wanted: &[Range<usize>],
    ) -> io::Result<(Self::Window, Nodes)>;
    /// Reads from a disk that looking at it has caused.
    fn disk_reads(&self, window: &Self::Window) -> u64;
    /// The folios that `pages` (ascending) are in, each once.
    fn folios(&mut self, window: &Self::Window, pages: &[usize]) -> Vec<Folio>;
    /// Moves folios; gives for each whether it is on `to` now.
    fn migrate(
        &mut self,
        window: &Self::Window,
        folios: &[Folio],
        to: u32,
        mapped: Mapped,
    ) -> io::Result<(Vec<bool>, Failed)>;
    /// The frames of pages, where they are known, and whether these are active.
    fn frames(&mut self, window: &Self::Window, pages: &[usize]) -> Vec<Option<(u64, bool)>>;
}

/// This machine.
pub struct Linux {
    trace: Trace,
    /// Why reads of tmpfs can't be watched.
    tmpfs: Option<String>,
    files: Files,
    frames: Option<Frames>,
}

impl Linux {
    /// Only files below `paths` are opened, if there are any. A signal is what makes `signals` readable.
    pub fn new(points: Points, paths: Vec<PathBuf>, signals: BorrowedFd) -> io::Result<Linux> {
        let mut trace = Trace::new(points)?;
        trace.waiter().add_signals(signals)?;
        let tmpfs = trace.add_tmpfs().err().map(|err| err.to_string());
        Ok(Linux {
            trace,
            tmpfs,
            files: Files::new(paths),
            frames: Frames::open().ok(),
        })
    }

    /// Why files on tmpfs stay where they are, if they do.
    pub fn without_tmpfs(&self) -> Option<&str> {
        self.tmpfs.as_deref()
    }
}

impl Machine for Linux {
    type File = File;
    type Window = Window;

    fn now(&self) -> Time {
        Time(sys::monotonic_micros())
    }

    fn cpu_nanos(&self) -> u64 {
        sys::cpu_nanos()
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        self.trace.waiter().wait(timeout)
    }

    fn kind(&self) -> Kind {
        self.trace.kind()
    }

    fn measure(&mut self) -> Costs {
        self.trace.calibrate().unwrap_or_default()
    }

    fn start(&mut self, period: u64, tmpfs: bool) -> io::Result<()> {
        self.trace.want_tmpfs(tmpfs);
        self.trace.start(period)
    }

    fn watching(&self) -> bool {
        self.trace.watching()
    }

    fn so_far(&self, costs: Costs) -> Phase {
        self.trace.so_far(costs)
    }

    fn stop(&mut self, costs: Costs) -> Phase {
        self.trace.stop(costs)
    }

    fn drain(&mut self, each: impl FnMut(Event, Time, u32)) {
        self.trace.drain(each);
    }

    fn lost(&self) -> u64 {
        self.trace.lost
    }

    fn processors(&self) -> (usize, usize) {
        self.trace.processors()
    }

    fn tmpfs_switch(&self) -> u64 {
        self.trace.tmpfs_switch()
    }

    fn file_pages(&self, node: u32) -> io::Result<u64> {
        tiers::file_pages(node)
    }

    fn tmpfs_pages(&self, node: u32) -> Option<u64> {
        tiers::tmpfs_pages(node)
    }

    fn free(&self, node: u32) -> u64 {
        tiers::free_pages(node)
    }

    fn keep(&self, node: u32) -> u64 {
        tiers::keep_pages(node)
    }

    fn open(&mut self, id: FileId, pid: Option<u32>) -> Result<File, Skip> {
        self.files.open(id, pid, self.now())
    }

    fn known(&mut self) -> Vec<FileId> {
        self.files.known(self.now())
    }

    fn size(&self, file: &File) -> io::Result<u64> {
        Ok(file.metadata()?.len().div_ceil(PAGE))
    }

    fn look(
        &mut self,
        file: &File,
        pages: Range<u64>,
        wanted: &[Range<usize>],
    ) -> io::Result<(Window, Nodes)> {
        let count = pages.end.saturating_sub(pages.start) as usize;
        let mut window = Window::open(file.as_fd(), pages.start, count)?;
        let nodes = window.nodes(wanted)?;
        Ok((window, nodes))
    }

    fn disk_reads(&self, window: &Window) -> u64 {
        window.disk_reads
    }

    fn folios(&mut self, window: &Window, pages: &[usize]) -> Vec<Folio> {
        match &mut self.frames {
            Some(frames) => frames.folios(window, pages),
            None => pages.iter().map(|&page| Folio { page, pages: 1 }).collect(),
        }
    }

    fn migrate(
        &mut self,
        window: &Window,
        folios: &[Folio],
        to: u32,
        mapped: Mapped,
    ) -> io::Result<(Vec<bool>, Failed)> {
        window.migrate(folios, to, mapped)
    }

    fn frames(&mut self, window: &Window, pages: &[usize]) -> Vec<Option<(u64, bool)>> {
        let Some(frames) = &mut self.frames else {
            return vec![None; pages.len()];
        };
        let pfns = frames.pfns(window, pages);
        let known: Vec<u64> = pfns.iter().flatten().copied().collect();
        let mut active = frames.active(&known).into_iter();
        let one = |pfn: Option<u64>| Some((pfn?, active.next()?));
        pfns.into_iter().map(one).collect()
    }
}
