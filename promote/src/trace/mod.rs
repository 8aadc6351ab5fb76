//! Who reads what: the kernel's tracepoints on the read path, through perf.
//!
//! A processor that is watched has a ring, held by an event that counts nothing, so that the
//! tracepoints can be switched on and off (a tracepoint that nobody has open costs nothing) and the
//! ring stays. The kernel wakes us when a ring is a quarter full. Only some processors are watched
//! at a time: what a phase costs does not depend on how many there are.

mod btf;
pub mod budget;
mod calibrate;
pub mod format;
pub mod points;
pub mod tmpfs;
mod tracefs;
pub mod turns;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use crate::page::{Time, PAGE};
use crate::records::Record;
use crate::sys::{self, Perf, Ring, Waiter};
use budget::{Costs, Phase};
use points::{tmpfs_reads, Event, Kind, Point, Points};
use tmpfs::Probe;
use turns::Turns;

/// Pages of a ring's data: 128 KiB, some 1600 records.
const RING_PAGES: usize = 32;

/// A processor that was watched once.
struct Cpu {
    number: u32,
    holder: OwnedFd,
    ring: Ring,
    /// While it is watched: the events that sample; their records are in the ring.
    open: Vec<OwnedFd>,
    seen: Seen,
}

/// In the phase that goes on.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    samples: u64,
    /// Records of reads of tmpfs among them.
    tmpfs: u64,
    lost: u64,
}

impl Seen {
    /// Hits that so many records stand for; a record that found no room was one too. One of tmpfs
    /// counts for more.
    fn events(self, period: u64, weight: f64) -> u64 {
        let more = self.tmpfs as f64 * (weight - 1.0);
        ((self.samples + self.lost) as f64 + more) as u64 * period
    }
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
    turns: Turns,
    /// Time that each processor had worked when a phase last began.
    worked: Vec<(u32, u64)>,
    waiter: Waiter,
    since: Option<Instant>,
    period: u64,
    buffer: Vec<u8>,
    online: usize,
    /// Records that the kernel had no room for.
    pub lost: u64,
}

impl Trace {
    pub fn new(points: Points) -> io::Result<Trace> {
        let mut trace = Trace {
            points,
            cpus: Vec::new(),
            tmpfs: None,
            turns: Turns::default(),
            worked: Vec::new(),
            waiter: Waiter::new()?,
            since: None,
            period: 1,
            buffer: Vec::new(),
            online: 0,
            lost: 0,
        };
        // Whether they can be had at all is seen with the first.
        let first = online_cpus()?.into_iter().next();
        if let Some(cpu) = first {
            trace.ring(cpu)?;
        }
        Ok(trace)
    }

    pub fn kind(&self) -> Kind {
        self.points.kind
    }

    /// What to wait with: it wakes when a ring is a quarter full.
    pub fn waiter(&self) -> &Waiter {
        &self.waiter
    }

    /// Processors that are watched in this phase, and that there are.
    pub fn processors(&self) -> (usize, usize) {
        let watched = self.cpus.iter().filter(|cpu| !cpu.open.is_empty());
        (watched.count(), self.online)
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

    /// The processors of the phase that begins. Of activations each is one that does not come again,
    /// and the phase has no end: there it is all of them.
    fn choose(&mut self) -> io::Result<Vec<u32>> {
        let online = online_cpus()?;
        self.online = online.len();
        self.cpus.retain(|cpu| online.contains(&cpu.number));
        if self.points.kind == Kind::Activations {
            return Ok(online);
        }
        let mut busy = Vec::new();
        if online.len() > turns::AT_ONCE {
            let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
            let worked = turns::worked(&stat);
            busy = turns::busy(&self.worked, &worked);
            self.worked = worked;
        }
        Ok(self.turns.choose(&online, &busy))
    }

    /// The ring of a processor; a new one, if it was never watched.
    fn ring(&mut self, number: u32) -> io::Result<usize> {
        if let Some(at) = self.cpus.iter().position(|cpu| cpu.number == number) {
            return Ok(at);
        }
        let bytes = RING_PAGES as u32 * PAGE as u32;
        let holder = sys::perf_event(Perf::Ring { bytes }, number)?;
        let ring = Ring::map(holder.as_fd(), RING_PAGES)?;
        self.waiter.add_ring(holder.as_fd())?;
        self.cpus.push(Cpu {
            number,
            holder,
            ring,
            open: Vec::new(),
            seen: Seen::default(),
        });
        Ok(self.cpus.len() - 1)
    }

    /// Starts to watch, one of `period` hits. Our own reads are left out.
    pub fn start(&mut self, period: u64) -> io::Result<()> {
        if self.since.is_some() {
            return Ok(());
        }
        let cpus = self.choose()?;
        let ours = format!("common_pid != {}", std::process::id());
        let mut opened = self.open(&cpus, &self.watched(), Some(&ours), period);
        if opened.is_err() && self.tmpfs.as_ref().is_some_and(|tmpfs| tmpfs.wanted) {
            // Somebody may have taken our probe away: then without it.
            self.close();
            let id = self.tmpfs.take().map(|tmpfs| tmpfs.id);
            self.points.points.retain(|point| Some(point.0) != id);
            opened = self.open(&cpus, &self.watched(), Some(&ours), period);
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

    fn open(
        &mut self,
        cpus: &[u32],
        points: &[u64],
        filter: Option<&str>,
        period: u64,
    ) -> io::Result<()> {
        self.period = period;
        for &number in cpus {
            let at = match self.ring(number) {
                Ok(at) => at,
                // It has gone offline just now.
                Err(err) if err.raw_os_error() == Some(libc::ENODEV) => continue,
                Err(err) => return Err(err),
            };
            let cpu = &mut self.cpus[at];
            cpu.seen = Seen::default();
            for &id in points {
                let event = sys::perf_event(Perf::Sample { id, period }, cpu.number)?;
                if let Some(filter) = filter {
                    sys::perf_filter(event.as_fd(), filter)?;
                }
                sys::perf_redirect(event.as_fd(), cpu.holder.as_fd())?;
                cpu.open.push(event);
            }
        }
        Ok(())
    }

    fn close(&mut self) {
        for cpu in &mut self.cpus {
            cpu.open.clear();
        }
    }

    pub fn watching(&self) -> bool {
        self.since.is_some()
    }

    /// Ends the phase, and says what it brought on the busiest processor. The rings are empty.
    pub fn stop(&mut self, costs: Costs) -> Phase {
        let busiest = self.so_far(costs);
        for cpu in self.cpus.iter().filter(|cpu| !cpu.open.is_empty()) {
            self.turns.learn(cpu.number, cpu.seen.samples > 0);
        }
        self.since = None;
        self.close();
        busiest
    }

    /// What the phase has brought until the rings were last looked into, on the busiest processor.
    pub fn so_far(&self, costs: Costs) -> Phase {
        let Some(since) = self.since else {
            return Phase::default();
        };
        let on = since.elapsed();
        let weight = self.tmpfs.as_ref().map_or(1.0, |tmpfs| tmpfs.weight);
        let phases = self.cpus.iter().map(|cpu| Phase {
            on,
            events: cpu.seen.events(self.period, weight),
            samples: cpu.seen.samples + cpu.seen.lost,
        });
        let idle = Phase {
            on,
            ..Phase::default()
        };
        phases.fold(idle, |busiest, phase| {
            if costs.of(phase) > costs.of(busiest) {
                phase
            } else {
                busiest
            }
        })
    }

    /// Hands over everything that was recorded so far, with the processor it was recorded on.
    pub fn drain(&mut self, mut each: impl FnMut(Event, Time, u32)) {
        let points = &self.points.points;
        let tmpfs = self.tmpfs.as_ref().map(|tmpfs| tmpfs.id);
        let mut all_lost = 0;
        for cpu in &mut self.cpus {
            let (seen, number) = (&mut cpu.seen, cpu.number);
            cpu.ring.drain(&mut self.buffer, |record| match record {
                Record::Sample { pid, time, raw } => {
                    seen.samples += 1;
                    let Some((id, point)) = point_of(points, raw) else {
                        return;
                    };
                    seen.tmpfs += u64::from(Some(id) == tmpfs);
                    if let Some(event) = point.event(pid, raw) {
                        each(event, time, number);
                    }
                }
                Record::Lost(count) => {
                    seen.lost = seen.lost.saturating_add(count);
                    all_lost += count;
                }
            });
        }
        self.lost = self.lost.saturating_add(all_lost);
    }
}

/// Which point a record is of: its number stands first.
fn point_of(points: &[(u64, Point)], raw: &[u8]) -> Option<(u64, Point)> {
    let id = u16::from_ne_bytes(raw.get(0..2)?.try_into().ok()?);
    let of = |&&(known, _): &&(u64, Point)| known == u64::from(id);
    points.iter().find(of).copied()
}

fn online_cpus() -> io::Result<Vec<u32>> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    crate::tiers::parse_list(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_stand_for_hits() {
        let seen = Seen {
            samples: 10,
            tmpfs: 4,
            lost: 5,
        };
        assert_eq!(seen.events(7, 1.0), 105);
        assert_eq!(seen.events(7, 2.0), 133);
    }
}
