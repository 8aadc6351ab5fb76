//! `hugeswap swapoff` and `hugeswap swapon`: devices of a run that go and come back while it runs.

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hugeswap_control::{DeviceEntry, Phase, Usage, SEGMENT_BYTES};
use hugeswap_mm::{PAGE_SIZE, PMD_SIZE};

use crate::going_on::{find_run, finish, Run};
use hugeswap_host::out;
use hugeswap_host::progress::Progress;
use hugeswap_host::size::Size;
use hugeswap_host::undo::Interrupt;
use hugeswap_supervise::{absolute, descendants};

/// How often is looked.
const LOOK: Duration = Duration::from_millis(20);
/// Without progress for so long it is looked who is stopped.
const STALLED: Duration = Duration::from_millis(500);
/// Without progress for so long it is given up.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(clap::Args, Debug)]
#[command(after_help = "\
What is on the device goes to the run's other devices while its programs go on;
then its space is given back. Ctrl-C leaves the device in use. A device is named
as it was for --swap, or by its number in 'hugeswap swapon'.

  hugeswap swapoff /nvme")]
pub struct SwapoffArgs {
    #[command(flatten)]
    run: WhichRun,
    /// The device: a path, 'ram', or a number
    #[arg(value_name = "DEVICE")]
    device: String,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
TAKEN is what processes have of a device, in pieces of 2 MiB, with some in reserve.

  hugeswap swapon            the devices of the run that is going on
  hugeswap swapon /nvme      use it again after 'hugeswap swapoff /nvme'")]
pub struct SwaponArgs {
    #[command(flatten)]
    run: WhichRun,
    /// Print the table as JSON
    #[arg(long)]
    json: bool,
    /// The device that is to be used again; without one, all are shown
    #[arg(value_name = "DEVICE")]
    device: Option<String>,
}

#[derive(clap::Args, Debug)]
struct WhichRun {
    /// A process of the run that is meant [default: the only run there is]
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
}

/// Exit 0: the device is off, or on again. 1: it is as it was, and a message says why.
pub fn swapoff(args: &SwapoffArgs) -> ExitCode {
    finish(find_run(args.run.pid).and_then(|run| run.swapoff(&args.device)))
}

pub fn swapon(args: &SwaponArgs) -> ExitCode {
    finish(find_run(args.run.pid).and_then(|run| match &args.device {
        Some(device) => run.swapon(device),
        None => run.show(args.json),
    }))
}

fn name(entry: &DeviceEntry) -> String {
    String::from_utf8_lossy(entry.name()).into_owned()
}

impl Run {
    /// By number, from 1 on, or by name.
    fn find(&self, device: &str) -> Result<usize, String> {
        let devices = self.control.devices();
        let by_number = device
            .parse::<usize>()
            .ok()
            .filter(|n| (1..=devices.len()).contains(n));
        if let Some(n) = by_number {
            return Ok(n - 1);
        }
        let path = absolute(Path::new(device));
        let mut named = (0..devices.len()).filter(|&d| {
            let name = name(&devices[d]);
            name == device || name == path
        });
        match (named.next(), named.next()) {
            (Some(d), None) => Ok(d),
            (Some(_), Some(_)) => Err(format!(
                "the run has several devices '{device}': give the number that 'hugeswap swapon' shows"
            )),
            (None, _) => Err(format!(
                "the run has no device '{device}': 'hugeswap swapon' shows those that it has"
            )),
        }
    }

    /// A process of the run that is stopped, if one is.
    fn stopped(&self) -> Option<u32> {
        let all = descendants([self.supervisor]);
        let is_stopped = |pid: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
            state.is_some_and(|s| s.starts_with(['T', 't']))
        };
        all.into_iter().find(is_stopped)
    }

    /// Bytes in swap, of all living processes.
    fn swapped(&self) -> u64 {
        self.control.totals.swapped_bytes.load(Relaxed)
    }

    /// What keeps the device from being swapped off, if anything does.
    fn check_room(&self, d: usize) -> Result<(), String> {
        let devices = self.control.devices();
        let is_on = |&o: &usize| o != d && self.orders.usage(o).phase == Phase::On;
        if !(0..devices.len()).any(|o| is_on(&o)) {
            return Err(format!(
                "'{}' is the only device that the run uses: without it the memory limit could not be kept",
                name(&devices[d])
            ));
        }
        let taken = |e: &DeviceEntry| (e.taken_clusters() * PMD_SIZE) as u64;
        let room = |e: &DeviceEntry| (e.segments() as u64 * SEGMENT_BYTES).saturating_sub(taken(e));
        let (sharing, own): (Vec<_>, Vec<_>) = { (0..devices.len()).filter(is_on) }
            .map(|o| &devices[o])
            .partition(|e| e.shares != 0);
        let used: u64 = sharing.iter().map(|e| taken(e)).sum();
        let left = self.control.settings.swap_bytes.saturating_sub(used);
        let sum = |all: Vec<&DeviceEntry>| all.into_iter().map(room).sum::<u64>();
        let others = sum(own) + sum(sharing).min(left);
        let charged = self.control.totals.charged_pages.load(Relaxed);
        let memory = self
            .control
            .settings
            .limit_bytes
            .saturating_sub(charged * PAGE_SIZE as u64);
        let needed = taken(&devices[d]).min(self.swapped());
        if needed > others + memory {
            return Err(format!(
                "'{}' holds up to {}, and the run's other devices and memory have room for {}: it stays in use",
                name(&devices[d]),
                Size::from_bytes(needed),
                Size::from_bytes(others + memory)
            ));
        }
        Ok(())
    }

    fn swapoff(&self, device: &str) -> Result<(), String> {
        let d = self.find(device)?;
        let entry = &self.control.devices()[d];
        let interrupt = Interrupt::catch().map_err(|e| format!("can't wait for signals: {e}"))?;
        let usage = match self.orders.usage(d) {
            u if u.phase == Phase::On => {
                self.check_room(d)?;
                self.orders
                    .change(d, u, Phase::Leaving)
                    .ok_or("somebody else changed it just now: look again")?
            }
            u if u.phase == Phase::Leaving => u,
            _ => return Err(format!("'{}' is off already", name(entry))),
        };
        self.orders.call();
        let watched = self.watch(d, usage, &interrupt);
        if watched.is_err() {
            // Refused if it is off by now, which is as well.
            self.orders.change(d, usage, Phase::On);
            self.orders.call();
        }
        watched
    }

    /// Until it is off.
    fn watch(&self, d: usize, usage: Usage, interrupt: &Interrupt) -> Result<(), String> {
        let entry = &self.control.devices()[d];
        let began = Instant::now();
        let moved = || self.control.totals.swapoff_pages.load(Relaxed);
        let before = moved();
        let mut last = (0, 0, began);
        let mut told = None;
        let mut progress = Progress::new();
        loop {
            let now = self.orders.usage(d);
            if now.phase == Phase::Off || !self.is_going_on() {
                return Ok(());
            }
            if now.epoch != usage.epoch || now.phase == Phase::On {
                return Err("somebody else turned it on again".to_owned());
            }
            if interrupt.check().is_err() {
                return Err(format!("interrupted: '{}' stays in use", name(entry)));
            }
            let (pages, clusters) = (moved(), entry.taken_clusters());
            if (pages, clusters) != (last.0, last.1) {
                last = (pages, clusters, Instant::now());
            } else if last.2.elapsed() > PATIENCE {
                return Err(format!(
                    "'{}' could not be emptied, and stays in use: nothing moved for {} s. \
                     Are the other devices full, or is the program stopped?",
                    name(entry),
                    PATIENCE.as_secs()
                ));
            }
            let waits = last.2.elapsed() > STALLED;
            let stopped = waits.then(|| self.stopped()).flatten();
            if let Some(pid) = stopped.filter(|_| stopped != told) {
                progress.clear();
                errln!(
                    "hugeswap: waits for process {pid}, which is stopped and moves nothing: \
                     'kill -CONT {pid}' lets it go on"
                );
            }
            told = stopped.or(told);
            let (gone, left) = (
                pages.saturating_sub(before) * PAGE_SIZE as u64,
                (clusters * PMD_SIZE) as u64,
            );
            progress.show(&format!(
                "{} moved, at most {} to go",
                Size::from_bytes(gone),
                Size::from_bytes(left)
            ));
            std::thread::sleep(LOOK);
        }
    }

    fn swapon(&self, device: &str) -> Result<(), String> {
        let d = self.find(device)?;
        loop {
            let usage = self.orders.usage(d);
            match usage.phase {
                Phase::On => return Ok(()),
                Phase::Releasing if self.is_going_on() => std::thread::sleep(LOOK),
                _ => {
                    self.orders.change(d, usage, Phase::On);
                    self.orders.call();
                }
            }
        }
    }

    fn show(&self, json: bool) -> Result<(), String> {
        let devices = self.control.devices().iter().enumerate();
        let rows: Vec<_> = devices
            .map(|(d, entry)| {
                row(
                    entry,
                    self.orders.usage(d),
                    self.control.settings.swap_bytes,
                )
            })
            .collect();
        match json {
            true => out::json(&rows),
            false => {
                out!("{}", table(&rows));
                Ok(())
            }
        }
    }
}

#[derive(serde::Serialize)]
struct Row {
    name: String,
    state: &'static str,
    size_bytes: u64,
    /// In pieces of 2 MiB, with what is kept in reserve.
    taken_bytes: u64,
}

/// `total`: of all devices that share it.
fn row(entry: &DeviceEntry, usage: Usage, total: u64) -> Row {
    let most = if entry.shares != 0 { total } else { u64::MAX };
    Row {
        name: name(entry),
        state: match usage.phase {
            Phase::On => "on",
            Phase::Leaving | Phase::Releasing => "leaving",
            Phase::Off => "off",
        },
        size_bytes: entry.max_bytes.min(most),
        taken_bytes: (entry.taken_clusters() * PMD_SIZE) as u64,
    }
}

fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|r| r.name.len()).max().unwrap_or(0).max(4);
    let mut text = format!(
        "NR  {:width$}  {:8} {:>8} {:>8}\n",
        "NAME", "STATE", "SIZE", "TAKEN"
    );
    for (i, r) in rows.iter().enumerate() {
        let (size, taken) = (
            Size::from_bytes(r.size_bytes),
            Size::from_bytes(r.taken_bytes),
        );
        text += &format!(
            "{:<3} {:width$}  {:8} {:>8} {:>8}\n",
            i + 1,
            r.name,
            r.state,
            size.to_string(),
            taken.to_string()
        );
    }
    text
}
