//! Who reads what: the kernel's tracepoints on the read path, through perf.
//!
//! Each processor has a ring of its own, held by an event that counts nothing,
//! so that the tracepoints can be switched on and off (a tracepoint that
//! nobody has open costs nothing) and the rings stay. The kernel wakes us when
//! a ring is a quarter full.

mod btf;
pub mod budget;
mod format;
pub mod tmpfs;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use crate::page::{FileId, Time, PAGE};
use crate::sys::{self, Perf, Ring};
use budget::{Costs, Phase};
use format::Field;
use tmpfs::Probe;

/// Pages of a ring's data: 128 KiB, some 1600 records.
const RING_PAGES: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Pages `first` to `last` were asked for by a read. A `whole` read has one event, another
    /// may have more for what is later in it.
    Read {
        file: FileId,
        first: u64,
        last: u64,
        pid: u32,
        whole: bool,
    },
    /// A page came into the page cache.
    Inserted { file: FileId, page: u64, pfn: u64 },
    /// A page was accessed a second time: it is on the active list now.
    Activated { pfn: u64 },
}

/// Which of the kernel's events there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `filemap:mm_filemap_get_pages`: every read.
    Reads,
    /// `pagemap:mm_lru_activate` and `filemap:mm_filemap_add_to_page_cache`.
    Activations,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Reads => "filemap:mm_filemap_get_pages",
            Kind::Activations => "pagemap:mm_lru_activate",
        }
    }
}

/// A tracepoint and how to read its records.
#[derive(Clone, Copy, Debug)]
enum Point {
    Read {
        ino: Field,
        dev: Field,
        first: Field,
        last: Field,
    },
    Insert {
        ino: Field,
        dev: Field,
        index: Field,
        pfn: Field,
    },
    Activate {
        pfn: Field,
    },
    Tmpfs {
        ino: Field,
        dev: Field,
        bytes: Field,
        pos: Field,
        length: Field,
    },
}

/// What the kernel offers, found out once.
#[derive(Clone, Debug)]
pub struct Points {
    pub kind: Kind,
    points: Vec<(u64, Point)>,
}

impl Points {
    pub fn find() -> io::Result<Points> {
        Points::find_in(tracefs()?.as_fd())
    }

    fn find_in(dir: BorrowedFd) -> io::Result<Points> {
        match reads(dir) {
            Ok(point) => Ok(Points {
                kind: Kind::Reads,
                points: vec![point],
            }),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Points::activations(dir),
            Err(err) => Err(err),
        }
    }

    fn activations(dir: BorrowedFd) -> io::Result<Points> {
        let missing = |err: io::Error| {
            if err.kind() == io::ErrorKind::NotFound {
                io::Error::new(
                    io::ErrorKind::NotFound,
                    "this kernel has neither filemap:mm_filemap_get_pages (Linux 6.10) nor \
                     pagemap:mm_lru_activate",
                )
            } else {
                err
            }
        };
        Ok(Points {
            kind: Kind::Activations,
            points: vec![
                activate(dir).map_err(missing)?,
                insert(dir).map_err(missing)?,
            ],
        })
    }

    /// For a test of what an older kernel offers.
    pub fn find_activations() -> io::Result<Points> {
        Points::activations(tracefs()?.as_fd())
    }
}

fn tracefs() -> io::Result<OwnedFd> {
    sys::tracefs().map_err(|err| {
        let text = match err.raw_os_error() {
            Some(libc::ENODEV | libc::ENOSYS) => format!("this kernel has no trace events: {err}"),
            _ => format!("the kernel's trace events: {err}"),
        };
        io::Error::new(err.kind(), text)
    })
}

fn load(dir: BorrowedFd, event: &str) -> io::Result<(u64, String)> {
    let id = sys::read_at(dir, &format!("events/{event}/id"))?;
    let id = id
        .trim()
        .parse()
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok((id, sys::read_at(dir, &format!("events/{event}/format"))?))
}

fn field(event: &str, format: &str, name: &str) -> io::Result<Field> {
    format::field(format, name).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::Unsupported,
            format!("the kernel's event {event} has no field {name}"),
        )
    })
}

fn reads(dir: BorrowedFd) -> io::Result<(u64, Point)> {
    let event = "filemap/mm_filemap_get_pages";
    let (id, format) = load(dir, event)?;
    let point = Point::Read {
        ino: field(event, &format, "i_ino")?,
        dev: field(event, &format, "s_dev")?,
        first: field(event, &format, "index")?,
        last: field(event, &format, "last_index")?,
    };
    Ok((id, point))
}

fn insert(dir: BorrowedFd) -> io::Result<(u64, Point)> {
    let event = "filemap/mm_filemap_add_to_page_cache";
    let (id, format) = load(dir, event)?;
    let point = Point::Insert {
        ino: field(event, &format, "i_ino")?,
        dev: field(event, &format, "s_dev")?,
        index: field(event, &format, "index")?,
        pfn: field(event, &format, "pfn")?,
    };
    Ok((id, point))
}

fn activate(dir: BorrowedFd) -> io::Result<(u64, Point)> {
    let event = "pagemap/mm_lru_activate";
    let (id, format) = load(dir, event)?;
    let point = Point::Activate {
        pfn: field(event, &format, "pfn")?,
    };
    Ok((id, point))
}

fn tmpfs_reads(probe: &Probe) -> io::Result<(u64, Point)> {
    let (id, format) = probe.load()?;
    let event = "of reads of tmpfs";
    let point = Point::Tmpfs {
        ino: field(event, &format, "ino")?,
        dev: field(event, &format, "dev")?,
        bytes: field(event, &format, "bytes")?,
        pos: field(event, &format, "pos")?,
        length: field(event, &format, "length")?,
    };
    Ok((id, point))
}

impl Point {
    /// A filter that no hit passes.
    fn nothing(&self) -> &'static str {
        match self {
            Point::Read { .. } | Point::Insert { .. } => "index > 0xffffffffff",
            Point::Activate { .. } => "pfn == 0",
            Point::Tmpfs { .. } => "pos > 0xffffffffffff",
        }
    }

    fn event(&self, pid: u32, record: &[u8]) -> Option<Event> {
        let file = |dev: &Field, ino: &Field| -> Option<FileId> {
            Some(FileId {
                dev: dev.get(record)? as u32,
                ino: ino.get(record)?,
            })
        };
        Some(match self {
            Point::Read {
                ino,
                dev,
                first,
                last,
            } => Event::Read {
                file: file(dev, ino)?,
                first: first.get(record)?,
                last: last.get(record)?,
                pid,
                whole: false,
            },
            Point::Tmpfs {
                ino,
                dev,
                bytes,
                pos,
                length,
            } => {
                let (pos, length) = (pos.get(record)?, length.get(record)?);
                let (first, last) = tmpfs::pages(pos, length, bytes.get(record)?)?;
                Event::Read {
                    file: file(dev, ino)?,
                    first,
                    last,
                    pid,
                    whole: true,
                }
            }
            Point::Insert {
                ino,
                dev,
                index,
                pfn,
            } => Event::Inserted {
                file: file(dev, ino)?,
                page: index.get(record)?,
                pfn: pfn.get(record)?,
            },
            Point::Activate { pfn } => Event::Activated {
                pfn: pfn.get(record)?,
            },
        })
    }
}

/// One processor.
struct Cpu {
    number: u32,
    holder: OwnedFd,
    ring: Ring,
    /// While watching.
    open: Option<Open>,
    samples: u64,
}

struct Open {
    /// The events that sample: their records are in the ring.
    _sampling: Vec<OwnedFd>,
    /// Those that count, with the weight of a hit.
    counting: Vec<(OwnedFd, f64)>,
}

struct Tmpfs {
    _probe: Probe,
    id: u64,
    /// Is it to be watched?
    wanted: bool,
    /// What a hit costs, in hits of the kernel's own event.
    weight: f64,
    /// Processor time, in nanoseconds, that it costs to switch it on and off: the kernel goes
    /// through all of its functions for that.
    switch: u64,
}

pub struct Trace {
    points: Points,
    cpus: Vec<Cpu>,
    /// Dropped after `cpus`, which have its event open: only then can it be removed.
    tmpfs: Option<Tmpfs>,
    since: Option<Instant>,
    buffer: Vec<u8>,
    /// Records that the kernel had no room for.
    pub lost: u64,
}

impl Trace {
    pub fn new(points: Points) -> io::Result<Trace> {
        let mut trace = Trace {
            points,
            cpus: Vec::new(),
            tmpfs: None,
            since: None,
            buffer: Vec::new(),
            lost: 0,
        };
        trace.adopt_cpus()?;
        Ok(trace)
    }

    pub fn kind(&self) -> Kind {
        self.points.kind
    }

    /// Watches reads of tmpfs too, for which this kernel has no event of its own.
    pub fn add_tmpfs(&mut self) -> io::Result<()> {
        if self.points.kind != Kind::Reads || self.tmpfs.is_some() {
            return Ok(());
        }
        let probe = Probe::make()?;
        let (id, point) = tmpfs_reads(&probe)?;
        self.points.points.push((id, point));
        self.tmpfs = Some(Tmpfs {
            _probe: probe,
            id,
            wanted: false,
            weight: 1.0,
            switch: 0,
        });
        Ok(())
    }

    /// Processor time, in nanoseconds, that a phase costs more because it watches tmpfs.
    pub fn tmpfs_switch(&self) -> u64 {
        self.tmpfs.as_ref().map_or(0, |tmpfs| tmpfs.switch)
    }

    /// Whether the next phase watches tmpfs.
    pub fn want_tmpfs(&mut self, wanted: bool) {
        if let Some(tmpfs) = &mut self.tmpfs {
            tmpfs.wanted = wanted;
        }
    }

    /// A ring for each processor that is online.
    fn adopt_cpus(&mut self) -> io::Result<()> {
        let online = online_cpus()?;
        if online
            .iter()
            .copied()
            .eq(self.cpus.iter().map(|cpu| cpu.number))
        {
            return Ok(());
        }
        self.cpus.clear();
        for number in online {
            let bytes = RING_PAGES as u32 * PAGE as u32;
            let holder = sys::perf_event(Perf::Ring { bytes }, number)?;
            let ring = Ring::map(holder.as_fd(), RING_PAGES)?;
            self.cpus.push(Cpu {
                number,
                holder,
                ring,
                open: None,
                samples: 0,
            });
        }
        Ok(())
    }

    /// Starts to watch, one of `period` hits. Our own reads are left out.
    pub fn start(&mut self, period: u64) -> io::Result<()> {
        if self.since.is_some() {
            return Ok(());
        }
        self.adopt_cpus()?;
        let ours = format!("common_pid != {}", std::process::id());
        let mut opened = self.open(&self.watched(), Some(&ours), period);
        if opened.is_err() && self.tmpfs.as_ref().is_some_and(|tmpfs| tmpfs.wanted) {
            // Somebody may have taken our probe away: then without it.
            self.close();
            let id = self.tmpfs.take().map(|tmpfs| tmpfs.id);
            self.points.points.retain(|point| Some(point.0) != id);
            opened = self.open(&self.watched(), Some(&ours), period);
        }
        if let Err(err) = opened {
            self.close();
            return Err(err);
        }
        self.since = Some(Instant::now());
        Ok(())
    }

    /// The points that the next phase watches.
    fn watched(&self) -> Vec<u64> {
        let unwanted = self.tmpfs.as_ref().filter(|tmpfs| !tmpfs.wanted);
        let unwanted = unwanted.map(|tmpfs| tmpfs.id);
        let points = self.points.points.iter().map(|point| point.0);
        points.filter(|&id| Some(id) != unwanted).collect()
    }

    fn open(&mut self, points: &[u64], filter: Option<&str>, period: u64) -> io::Result<()> {
        for cpu in &mut self.cpus {
            let mut events = Vec::new();
            let mut counters = Vec::new();
            for &id in points {
                let event = sys::perf_event(Perf::Sample { id, period }, cpu.number)?;
                if let Some(filter) = filter {
                    sys::perf_filter(event.as_fd(), filter)?;
                }
                sys::perf_redirect(event.as_fd(), cpu.holder.as_fd())?;
                events.push(event);
                // One is enough for activations: insertions are of the same kind.
                if self.points.kind == Kind::Activations && !counters.is_empty() {
                    continue;
                }
                let tmpfs = self.tmpfs.as_ref().filter(|tmpfs| tmpfs.id == id);
                let weight = tmpfs.map_or(1.0, |tmpfs| tmpfs.weight);
                let counter = sys::perf_event(Perf::Count { id }, cpu.number)?;
                counters.push((counter, weight));
            }
            cpu.samples = 0;
            cpu.open = Some(Open {
                _sampling: events,
                counting: counters,
            });
        }
        Ok(())
    }

    fn close(&mut self) {
        for cpu in &mut self.cpus {
            cpu.open = None;
        }
    }

    pub fn watching(&self) -> bool {
        self.since.is_some()
    }

    /// Ends the phase, and says what it brought on the busiest processor.
    pub fn stop(&mut self, costs: Costs) -> Phase {
        let busiest = self.so_far(costs);
        self.since = None;
        self.close();
        busiest
    }

    /// What the phase has brought until now, on the busiest processor.
    pub fn so_far(&self, costs: Costs) -> Phase {
        let Some(since) = self.since else {
            return Phase::default();
        };
        let on = since.elapsed();
        let mut busiest = Phase {
            on,
            ..Phase::default()
        };
        for cpu in &self.cpus {
            let counters = cpu.open.iter().flat_map(|open| &open.counting);
            let events: f64 = counters
                .map(|(counter, weight)| count(counter.as_fd()).unwrap_or(0) as f64 * weight)
                .sum();
            let events = events as u64;
            let phase = Phase {
                on,
                events: events.max(cpu.samples),
                samples: cpu.samples,
            };
            if costs.of(phase) > costs.of(busiest) {
                busiest = phase;
            }
        }
        busiest
    }

    /// What to wait for.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.cpus.iter().map(|cpu| cpu.holder.as_fd()).collect()
    }

    /// Hands over everything that was recorded so far.
    pub fn drain(&mut self, mut each: impl FnMut(Event, Time)) {
        const LOST: u32 = 2;
        const SAMPLE: u32 = 9;
        let points = &self.points.points;
        let mut lost = 0;
        for cpu in &mut self.cpus {
            let samples = &mut cpu.samples;
            cpu.ring.drain(&mut self.buffer, |kind, record| match kind {
                SAMPLE => {
                    *samples += 1;
                    if let Some((event, time)) = sample(points, record) {
                        each(event, time);
                    }
                }
                LOST => {
                    if let Some(bytes) = record.get(8..16) {
                        lost += u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
                    }
                }
                _ => {}
            });
        }
        self.lost += lost;
    }

    /// What a hit and a record cost on this machine, measured on reads of our
    /// own program file; `None` where its reads hit no tracepoint, as on tmpfs.
    pub fn calibrate(&mut self) -> Option<Costs> {
        if self.points.kind != Kind::Reads {
            return None;
        }
        let own = File::open("/proc/self/exe").ok();
        let costs = own.and_then(|file| self.measure(self.points.points[0], &file));
        if let Some(id) = self.tmpfs.as_ref().map(|tmpfs| tmpfs.id) {
            let memory = sys::memory_file(16 * PAGE).ok();
            let point = self.points.points.iter().find(|point| point.0 == id);
            let point = point.copied();
            let hit = memory.and_then(|file| self.measure(point?, &file));
            let switch = self.measure_switch(id);
            // A probe costs more than an event that is built in; twice, where that can't be seen.
            let (hit, known) = (hit.map(|costs| costs.event), costs.unwrap_or_default());
            let weight = hit.map_or(2.0, |hit| (hit / known.event).max(1.0));
            if let Some(tmpfs) = &mut self.tmpfs {
                tmpfs.weight = weight;
                tmpfs.switch = switch;
            }
        }
        costs
    }

    /// Processor time of switching a point on and off, in nanoseconds.
    fn measure_switch(&mut self, id: u64) -> u64 {
        let mut round = || {
            let before = sys::cpu_nanos();
            // If it can't be opened, starting will say so.
            let _ = self.open(&[id], Some("pos > 0xffffffffffff"), 1);
            self.close();
            sys::cpu_nanos() - before
        };
        (0..3).map(|_| round()).min().unwrap_or(0)
    }

    /// The same, of one point that reads of `file` hit.
    fn measure(&mut self, (id, point): (u64, Point), file: &File) -> Option<Costs> {
        const READS: u32 = 1000;
        const ROUNDS: usize = 5;
        let mut buffer = [0u8; 4096];
        let mut round = || -> Option<f64> {
            let start = Instant::now();
            for turn in 0..READS {
                let page = u64::from(turn % 16);
                file.read_exact_at(&mut buffer, page * 4096).ok()?;
            }
            Some(start.elapsed().as_nanos() as f64 / f64::from(READS))
        };
        round()?;
        let mut best = [f64::MAX; 3];
        for _ in 0..ROUNDS {
            for (mode, best) in best.iter_mut().enumerate() {
                let opened = match mode {
                    1 => self.open(&[id], Some(point.nothing()), 1),
                    2 => self.open(&[id], None, 1),
                    _ => Ok(()),
                };
                let time = opened.ok().and_then(|()| round());
                if mode == 2 {
                    self.drain(|_, _| {});
                    if self.cpus.iter().all(|cpu| cpu.samples == 0) {
                        self.close();
                        return None;
                    }
                }
                self.close();
                *best = best.min(time?);
            }
        }
        self.lost = 0;
        let [off, filtered, recorded] = best;
        Some(Costs {
            event: (filtered - off).clamp(20.0, 5_000.0),
            sample: (recorded - filtered).clamp(100.0, 50_000.0),
        })
    }
}

/// A record: process, thread, time, and the tracepoint's own data with its
/// size in front.
fn sample(points: &[(u64, Point)], record: &[u8]) -> Option<(Event, Time)> {
    let pid = u32::from_ne_bytes(record.get(0..4)?.try_into().ok()?);
    let ns = u64::from_ne_bytes(record.get(8..16)?.try_into().ok()?);
    let size = u32::from_ne_bytes(record.get(16..20)?.try_into().ok()?) as usize;
    let raw = record.get(20..20 + size)?;
    let id = u16::from_ne_bytes(raw.get(0..2)?.try_into().ok()?);
    let (_, point) = points.iter().find(|&&(known, _)| known == u64::from(id))?;
    Some((point.event(pid, raw)?, Time(ns / 1000)))
}

fn count(event: BorrowedFd) -> io::Result<u64> {
    let mut bytes = [0; 8];
    let file = File::from(event.try_clone_to_owned()?);
    io::Read::read_exact(&mut &file, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn online_cpus() -> io::Result<Vec<u32>> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    crate::tiers::parse_list(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that looks like tracefs with these events.
    fn events(name: &str, events: &[(&str, &str)]) -> (std::path::PathBuf, File) {
        let dir = std::env::temp_dir().join(format!("hugeswap-{name}-{}", std::process::id()));
        for (event, format) in events {
            let event = dir.join("events").join(event);
            std::fs::create_dir_all(&event).unwrap();
            std::fs::write(event.join("id"), "7\n").unwrap();
            std::fs::write(event.join("format"), format).unwrap();
        }
        std::fs::create_dir_all(&dir).unwrap();
        let open = File::open(&dir).unwrap();
        (dir, open)
    }

    const PFN: &str = "\tfield:unsigned long pfn;\toffset:16;\tsize:8;\tsigned:0;\n";

    #[test]
    fn a_kernel_with_neither_event_is_told_of() {
        let (path, dir) = events("neither", &[]);
        let err = Points::find_in(dir.as_fd()).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::NotFound);
        let text = err.to_string();
        assert!(
            text.contains("neither filemap:mm_filemap_get_pages"),
            "{text}"
        );
        std::fs::remove_dir_all(path).unwrap();
        // One of the two that activations need is not enough.
        let (path, dir) = events("half", &[("pagemap/mm_lru_activate", PFN)]);
        let err = Points::find_in(dir.as_fd()).unwrap_err();
        assert!(err.to_string().contains("neither"), "{err}");
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn an_event_with_other_fields_is_told_of() {
        let (path, dir) = events("fields", &[("filemap/mm_filemap_get_pages", PFN)]);
        let err = Points::find_in(dir.as_fd()).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::Unsupported);
        assert!(err.to_string().contains("no field i_ino"), "{err}");
        std::fs::remove_dir_all(path).unwrap();
    }
}
