//! What watching costs on this machine, measured at the start.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use super::budget::Costs;
use super::points::{Kind, Point};
use super::Trace;
use crate::page::PAGE;
use crate::sys::{self, Pinned};

impl Trace {
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
        let cpus = self.choose().unwrap_or_default();
        let mut round = || {
            let before = sys::cpu_nanos();
            // If it can't be opened, starting will say so.
            let _ = self.open(&cpus, &[id], Some("pos > 0xffffffffffff"), 1);
            self.close();
            sys::cpu_nanos() - before
        };
        (0..3).map(|_| round()).min().unwrap_or(0)
    }

    /// The same, of one point that reads of `file` hit.
    fn measure(&mut self, (id, point): (u64, Point), file: &File) -> Option<Costs> {
        const READS: u32 = 1000;
        const ROUNDS: usize = 5;
        // The events are on this processor alone: so this is where the reads must be.
        let here = Pinned::here().ok()?;
        let cpus = [here.cpu];
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
                    1 => self.open(&cpus, &[id], Some(point.nothing()), 1),
                    2 => self.open(&cpus, &[id], None, 1),
                    _ => Ok(()),
                };
                let time = opened.ok().and_then(|()| round());
                if mode == 2 {
                    self.drain(|_, _, _| {});
                    if self.cpus.iter().all(|cpu| cpu.seen.samples == 0) {
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
