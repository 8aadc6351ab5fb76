//! Who reads what: the kernel's tracepoints on the read path, through perf.
//!
//! Each processor has a ring of its own, held by an event that counts nothing,
//! so that the tracepoints can be switched on and off (a tracepoint that
//! nobody has open costs nothing) and the rings stay. The kernel wakes us when
//! a ring is a quarter full.

pub mod budget;
mod format;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use crate::page::{FileId, Time};
use crate::sys::{self, Perf, Ring};
use budget::{Costs, Phase};
use format::Field;

/// Pages of a ring's data: 128 KiB, some 1600 records.
const RING_PAGES: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Pages `first` to `last` were asked for by a read.
    Read {
        file: FileId,
        first: u64,
        last: u64,
        pid: u32,
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

impl Point {
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
            },
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
    /// While watching: the events that sample, and the one that counts.
    open: Option<(Vec<OwnedFd>, OwnedFd)>,
    samples: u64,
}

pub struct Trace {
    points: Points,
    cpus: Vec<Cpu>,
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
            let bytes = RING_PAGES as u32 * crate::page::PAGE as u32;
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
        let filter = format!("common_pid != {}", std::process::id());
        if let Err(err) = self.open(Some(&filter), period) {
            self.close();
            return Err(err);
        }
        self.since = Some(Instant::now());
        Ok(())
    }

    fn open(&mut self, filter: Option<&str>, period: u64) -> io::Result<()> {
        for cpu in &mut self.cpus {
            let mut events = Vec::new();
            for &(id, _) in &self.points.points {
                let event = sys::perf_event(Perf::Sample { id, period }, cpu.number)?;
                if let Some(filter) = filter {
                    sys::perf_filter(event.as_fd(), filter)?;
                }
                sys::perf_redirect(event.as_fd(), cpu.holder.as_fd())?;
                events.push(event);
            }
            // One is enough: insertions and activations are of one kind.
            let id = self.points.points[0].0;
            let counter = sys::perf_event(Perf::Count { id }, cpu.number)?;
            cpu.samples = 0;
            cpu.open = Some((events, counter));
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
            let events = match &cpu.open {
                Some((_, counter)) => count(counter.as_fd()).unwrap_or(0),
                None => 0,
            };
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
    /// own program file; `None` where its reads hit no tracepoint.
    pub fn calibrate(&mut self) -> Option<Costs> {
        const READS: u32 = 1000;
        const ROUNDS: usize = 5;
        if self.points.kind != Kind::Reads {
            return None;
        }
        let file = File::open("/proc/self/exe").ok()?;
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
                match mode {
                    1 => self.open(Some("index > 0xffffffffff"), 1).ok()?,
                    2 => self.open(None, 1).ok()?,
                    _ => {}
                }
                let time = round();
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
