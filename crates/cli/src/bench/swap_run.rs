//! One contestant, measured once: set up, run, read the figures, take down.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde::Serialize;

use super::swap_args::{Contestant, Plan};
use super::worker::Round;
use super::workload::Workload;
use crate::cgroup::{self, Group, Limits, Swap, Usage};
use crate::kernel_swap::{self, KernelSwap};
use crate::os;
use crate::size::MIB;
use crate::swap_spec::SwapSpec;
use crate::undo::{Guard, Interrupt, Interrupted, Undo};

/// What hugeswap may use above `--memory`: its own code and tables.
const OVERHEAD: u64 = 64 * MIB;
const PAGE: u64 = 4096;

#[derive(Debug)]
pub enum Error {
    Group(cgroup::Error),
    KernelSwap(kernel_swap::Error),
    Io {
        what: &'static str,
        err: io::Error,
    },
    /// The program ended badly.
    Failed {
        who: String,
        status: ExitStatus,
    },
    OutOfMemory {
        who: String,
        limit: u64,
    },
    Corrupt {
        who: String,
        errors: u64,
    },
    /// The worker's report is not what it should be.
    Report(String),
    Interrupted,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Group(err) => err.fmt(f),
            Error::KernelSwap(err) => err.fmt(f),
            Error::Io { what, err } => write!(f, "can't {what}: {err}"),
            Error::Failed { who, status } => {
                write!(f, "under {who} the program ended with {status}")
            }
            Error::OutOfMemory { who, limit } => write!(
                f,
                "under {who} the program was killed at its limit of {} MiB",
                limit / MIB
            ),
            Error::Corrupt { who, errors } => {
                write!(
                    f,
                    "DATA LOST under {who}: {errors} words did not hold what was written"
                )
            }
            Error::Report(what) => write!(f, "the worker's report can't be read: {what}"),
            Error::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl From<cgroup::Error> for Error {
    fn from(err: cgroup::Error) -> Error {
        Error::Group(err)
    }
}

impl From<kernel_swap::Error> for Error {
    fn from(err: kernel_swap::Error) -> Error {
        match err {
            kernel_swap::Error::Interrupted => Error::Interrupted,
            err => Error::KernelSwap(err),
        }
    }
}

impl From<Interrupted> for Error {
    fn from(_: Interrupted) -> Error {
        Error::Interrupted
    }
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |err| Error::Io { what, err }
}

/// The figures of one run. Rates are in bytes per second.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Sum of the processes' rates in the round that fills the range.
    pub first_rate: f64,
    /// The same over all rounds after it.
    pub later_rate: Option<f64>,
    /// Over the whole run.
    pub swap_in_rate: Option<f64>,
    pub swap_out_rate: Option<f64>,
    /// Of what is resident at the end, the part in huge pages.
    pub huge_share: f64,
    pub minor_faults: u64,
    pub major_faults: u64,
    /// Of the group: program, engine, page cache.
    pub peak_bytes: Option<u64>,
    /// Wall time of the slowest process.
    pub seconds: f64,
    pub rounds: Vec<Round>,
    /// What hugeswap counted itself.
    pub stats: Option<serde_json::Value>,
}

/// `tick` is called several times a second with the rounds done so far.
pub fn measure(
    workload: &Workload,
    plan: &Plan,
    contestant: &Contestant,
    stop: &Interrupt,
    mut tick: impl FnMut(usize),
) -> Result<Figures, Error> {
    stop.check()?;
    let mut guard = Guard::new();
    let program = std::env::current_exe().map_err(io_error("find this program"))?;
    let mut command = Command::new(&program);
    let mut stats_file = None;
    let (limits, swap) = match contestant {
        Contestant::Hugeswap => {
            let file =
                std::env::temp_dir().join(format!("hugeswap-bench-{}.json", std::process::id()));
            guard.push(Undo::RemoveFile(file.clone()));
            hugeswap_run(&mut command, plan, &file);
            command.arg(&program);
            stats_file = Some(file);
            (hugeswap_limits(plan), None)
        }
        Contestant::Kernel(backing) => {
            let limits = Limits {
                memory: plan.memory.bytes(),
                swap: Swap::Unlimited,
                swappiness: None,
            };
            (
                limits,
                Some(KernelSwap::set_up(backing, plan.data(), stop)?),
            )
        }
    };
    command
        .args(["bench-worker", workload.name])
        .args(["--size", &plan.share.bytes().to_string()])
        .args(["--rounds", &plan.rounds.to_string()])
        .args(["--processes", &plan.processes.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    // After the swap: the group goes first, so that swapoff finds nothing in it.
    let group = Group::create("hugeswap-bench", &limits)?;
    os::spawn_inside(&mut command, group.procs()?);

    let before = swap_counters();
    let mut child = command.spawn().map_err(io_error("start the worker"))?;
    let output = read_output(&mut child, stop, &mut tick);
    if output.is_err() {
        // Without the group's kill the wait below could last for ever.
        group.kill().map_err(io_error("kill the worker"))?;
    }
    let status = child.wait().map_err(io_error("wait for the worker"))?;
    let output = output?;
    stop.check()?;
    let after = swap_counters();

    let usage = group.usage();
    let rounds = parse(&output)?;
    let who = contestant.to_string();
    ended_well(
        &rounds,
        expected_rounds(plan),
        &usage,
        limits.memory,
        status,
        who,
    )?;
    let stats = stats_file.as_deref().and_then(read_stats);
    let swapped = match (contestant, &stats) {
        (Contestant::Hugeswap, None) => None,
        (Contestant::Hugeswap, Some(stats)) => {
            find_number(stats, "pswpin").zip(find_number(stats, "pswpout"))
        }
        (Contestant::Kernel(_), _) => before
            .zip(after)
            .map(|((in0, out0), (in1, out1))| (in1 - in0, out1 - out0)),
    };
    // Before the figures are made: a failure to take down prints its own line.
    drop(group);
    drop(swap);
    Ok(figures(rounds, swapped, usage.peak, stats))
}

fn expected_rounds(plan: &Plan) -> u64 {
    u64::from(plan.processes) * plan.rounds
}

/// The worst first: lost data, then what explains a bad exit status, then that.
fn ended_well(
    rounds: &[Round],
    expected: u64,
    usage: &Usage,
    limit: u64,
    status: ExitStatus,
    who: String,
) -> Result<(), Error> {
    let errors: u64 = rounds.iter().map(|round| round.errors).sum();
    if errors > 0 {
        return Err(Error::Corrupt { who, errors });
    }
    if usage.oom_kills > 0 {
        return Err(Error::OutOfMemory { who, limit });
    }
    if !status.success() {
        return Err(Error::Failed { who, status });
    }
    if rounds.len() as u64 != expected {
        return Err(Error::Report(format!(
            "{} rounds instead of {expected}",
            rounds.len()
        )));
    }
    Ok(())
}

fn hugeswap_run(command: &mut Command, plan: &Plan, stats: &Path) {
    command.args([
        "run",
        "--memory",
        &plan.memory.bytes().to_string(),
        "--swap",
    ]);
    match &plan.swap {
        SwapSpec::Ram => command.arg("ram"),
        SwapSpec::Path(path) => command.arg(explicit(path)),
    };
    command
        .args([
            "--swap-size",
            &swap_size(plan).to_string(),
            "--strict",
            "--stats-json",
        ])
        .arg(stats)
        .arg("--");
}

/// A directory called `ram` stays a directory.
fn explicit(path: &Path) -> PathBuf {
    if path.is_absolute() {
        path.to_owned()
    } else {
        Path::new(".").join(path)
    }
}

/// The same room that the kernel's swap gets.
fn swap_size(plan: &Plan) -> u64 {
    plan.data().bytes() + plan.data().bytes() / 4
}

/// No kernel swap. The memory that stands in for a device is charged to the
/// group too, unlike zram's, and is not what is measured.
fn hugeswap_limits(plan: &Plan) -> Limits {
    let device = if plan.swap == SwapSpec::Ram {
        swap_size(plan)
    } else {
        0
    };
    Limits {
        memory: plan.memory.bytes() + OVERHEAD + device,
        swap: Swap::None,
        swappiness: None,
    }
}

/// All that the worker prints, or an error as soon as a signal comes.
fn read_output(
    child: &mut Child,
    stop: &Interrupt,
    tick: &mut impl FnMut(usize),
) -> Result<String, Error> {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    let Some(mut out): Option<ChildStdout> = child.stdout.take() else {
        return Err(Error::Report("no pipe".into()));
    };
    loop {
        let [readable, signal] =
            os::wait_readable([out.as_fd(), stop.as_fd()], Duration::from_millis(200))
                .map_err(io_error("wait for the worker"))?;
        if signal {
            stop.check()?;
        }
        if readable {
            match out.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => text.extend_from_slice(&buffer[..read]),
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(io_error("read from the worker")(err)),
            }
        }
        tick(text.iter().filter(|byte| **byte == b'\n').count());
    }
    String::from_utf8(text).map_err(|err| Error::Report(err.to_string()))
}

fn parse(output: &str) -> Result<Vec<Round>, Error> {
    output
        .lines()
        .map(|line| {
            serde_json::from_str(line).map_err(|err| Error::Report(format!("{err}: {line}")))
        })
        .collect()
}

/// pswpin and pswpout of the machine, in pages.
fn swap_counters() -> Option<(u64, u64)> {
    let vmstat = fs::read_to_string("/proc/vmstat").ok()?;
    let entry = |key: &str| {
        vmstat
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
    };
    Some((entry("pswpin")?, entry("pswpout")?))
}

fn read_stats(path: &Path) -> Option<serde_json::Value> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// The number called `key`, at whatever depth it is written.
fn find_number(value: &serde_json::Value, key: &str) -> Option<u64> {
    match value {
        serde_json::Value::Object(map) => map
            .get(key)
            .and_then(serde_json::Value::as_u64)
            .or_else(|| map.values().find_map(|value| find_number(value, key))),
        _ => None,
    }
}

fn figures(
    rounds: Vec<Round>,
    swapped: Option<(u64, u64)>,
    peak: Option<u64>,
    stats: Option<serde_json::Value>,
) -> Figures {
    let workers = rounds
        .iter()
        .map(|round| round.worker)
        .max()
        .map_or(0, |last| last + 1);
    let of = |worker: u32| rounds.iter().filter(move |round| round.worker == worker);
    let rate = |worker: u32, first: bool| {
        let chosen = of(worker).filter(|round| (round.round == 0) == first);
        let (bytes, seconds) = chosen.fold((0, 0.0), |(bytes, seconds), round| {
            (bytes + round.bytes, seconds + round.seconds)
        });
        (bytes > 0).then(|| bytes as f64 / seconds)
    };
    let sum = |first: bool| {
        (0..workers)
            .map(|worker| rate(worker, first))
            .sum::<Option<f64>>()
    };
    let seconds = (0..workers)
        .map(|worker| of(worker).map(|round| round.seconds).sum::<f64>())
        .fold(0.0, f64::max);
    let last = rounds.iter().map(|round| round.round).max();
    let at_end = rounds.iter().filter(|round| Some(round.round) == last);
    let (resident, huge) = at_end.fold((0, 0), |(resident, huge), round| {
        (resident + round.resident, huge + round.huge)
    });
    let swap_rate = |pages: u64| (pages * PAGE) as f64 / seconds;
    Figures {
        first_rate: sum(true).unwrap_or(0.0),
        later_rate: sum(false),
        swap_in_rate: swapped.map(|(pages, _)| swap_rate(pages)),
        swap_out_rate: swapped.map(|(_, pages)| swap_rate(pages)),
        huge_share: if resident > 0 {
            huge as f64 / resident as f64
        } else {
            0.0
        },
        minor_faults: rounds.iter().map(|round| round.minor_faults).sum(),
        major_faults: rounds.iter().map(|round| round.major_faults).sum(),
        peak_bytes: peak,
        seconds,
        rounds,
        stats,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(worker: u32, round: u64, seconds: f64) -> Round {
        Round {
            worker,
            round,
            bytes: 1000,
            seconds,
            errors: 0,
            minor_faults: 2,
            major_faults: 1,
            resident: 400,
            huge: 100 * round,
        }
    }

    #[test]
    fn rates_are_summed_over_processes() {
        let rounds = vec![
            round(0, 0, 1.0),
            round(1, 0, 2.0),
            round(0, 1, 4.0),
            round(1, 1, 4.0),
            round(0, 2, 6.0),
            round(1, 2, 1.0),
        ];
        let figures = figures(rounds, Some((11, 22)), None, None);
        assert_eq!(figures.first_rate, 1500.0);
        assert_eq!(figures.later_rate, Some(2000.0 / 10.0 + 2000.0 / 5.0));
        assert_eq!(figures.seconds, 11.0);
        assert_eq!(figures.swap_in_rate, Some(4096.0));
        assert_eq!(figures.swap_out_rate, Some(8192.0));
        assert_eq!(figures.huge_share, 0.5);
        assert_eq!((figures.minor_faults, figures.major_faults), (12, 6));
    }

    #[test]
    fn one_round_has_no_later_ones() {
        assert_eq!(
            figures(vec![round(0, 0, 1.0)], None, None, None).later_rate,
            None
        );
    }

    #[test]
    fn bad_ends_are_told_apart() {
        use std::os::unix::process::ExitStatusExt;
        let well = ExitStatus::from_raw(0);
        let killed = ExitStatus::from_raw(9);
        let check = |rounds: &[Round], oom_kills, status| {
            let usage = Usage {
                oom_kills,
                ..Usage::default()
            };
            let end = ended_well(rounds, 1, &usage, 64 << 20, status, "zram".into());
            end.map_err(|err| err.to_string())
        };
        let good = round(0, 0, 1.0);
        let bad = Round { errors: 3, ..good };
        assert_eq!(check(&[good], 0, well), Ok(()));
        assert!(check(&[bad], 1, killed)
            .unwrap_err()
            .contains("DATA LOST under zram: 3 words"));
        assert!(check(&[good], 1, killed)
            .unwrap_err()
            .contains("limit of 64 MiB"));
        assert!(check(&[good], 0, killed).unwrap_err().contains("signal: 9"));
        assert!(check(&[], 0, well)
            .unwrap_err()
            .contains("0 rounds instead of 1"));
        assert!(matches!(parse("{}"), Err(Error::Report(_))));
    }

    #[test]
    fn numbers_at_any_depth() {
        let stats = serde_json::json!({"a": {"pswpin": 7}, "pswpout": 8});
        assert_eq!(find_number(&stats, "pswpin"), Some(7));
        assert_eq!(find_number(&stats, "pswpout"), Some(8));
        assert_eq!(find_number(&stats, "thp_swpin"), None);
    }
}
