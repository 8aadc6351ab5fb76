//! A workload under hugeswap and under the kernel's swap, in turn.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use super::progress::Progress;
use super::report::{self, Column};
use super::swap_args::{Contestant, Plan, SwapArgs};
use super::swap_run::{self, Error, Figures};
use super::workload::Workload;
use crate::cgroup::Own;
use crate::kernel_swap;
use crate::os::{self, Words};
use crate::undo::{self, Interrupt};

const USAGE: u8 = 2;
/// As a shell reports a program that SIGINT ended.
const INTERRUPTED: u8 = 130;

/// What `--json` writes.
#[derive(Debug, Serialize)]
struct Document<'a> {
    test: &'a str,
    processes: u32,
    rounds: u64,
    data_bytes: u64,
    memory_bytes: u64,
    swap: String,
    machine: Machine,
    contestants: &'a [Column],
}

#[derive(Debug, Serialize)]
struct Machine {
    kernel: String,
    processors: usize,
    transparent_hugepage: Option<String>,
}

impl Machine {
    fn here() -> Machine {
        let read = |path: &str| fs::read_to_string(path).ok();
        let thp = read("/sys/kernel/mm/transparent_hugepage/enabled");
        Machine {
            kernel: read("/proc/sys/kernel/osrelease")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            processors: std::thread::available_parallelism().map_or(0, |n| n.get()),
            transparent_hugepage: thp.and_then(|s| kernel_swap::chosen(&s).map(str::to_owned)),
        }
    }
}

pub fn run(workload: &Workload, args: &SwapArgs) -> ExitCode {
    let plan = match args.plan() {
        Ok(plan) => plan,
        Err(err) => {
            eprintln!("hugeswap: {err}");
            return ExitCode::from(USAGE);
        }
    };
    match compare(workload, &plan, args.json.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Interrupted) => {
            eprintln!("hugeswap: interrupted; everything is taken down");
            ExitCode::from(INTERRUPTED)
        }
        Err(err) => {
            eprintln!("hugeswap: {err}");
            ExitCode::FAILURE
        }
    }
}

fn compare(workload: &Workload, plan: &Plan, json: Option<&Path>) -> Result<(), Error> {
    let io = |what: &'static str| move |err| Error::Io { what, err };
    // Before anything is set up.
    undo::start_janitor().map_err(io("start the janitor"))?;
    let stop = Interrupt::catch().map_err(io("catch signals"))?;
    if cfg!(debug_assertions) {
        eprintln!("hugeswap: this is a debug build: its figures say nothing");
    }
    let results = measure_all(workload, plan, &stop)?;
    let ours = Contestant::Hugeswap.to_string();
    let columns = report::columns(results, Some(&ours));
    print!("{}\n\n{}", heading(workload, plan), report::table(&columns));
    if let Some(path) = json {
        let document = Document {
            test: workload.name,
            processes: plan.processes,
            rounds: plan.rounds,
            data_bytes: plan.data().bytes(),
            memory_bytes: plan.memory.bytes(),
            swap: plan.swap.to_string(),
            machine: Machine::here(),
            contestants: &columns,
        };
        let text = serde_json::to_string_pretty(&document)
            .map_err(|err| Error::Report(err.to_string()))?;
        fs::write(path, text + "\n").map_err(io("write the file given to --json"))?;
    }
    Ok(())
}

/// Touches as much memory as the test will. In a virtual machine the first
/// touch of each page costs the host's time, and that would be charged to
/// whoever is measured first.
fn warm_up(plan: &Plan, stop: &Interrupt) -> Result<(), Error> {
    const STEP: usize = 8 << 20;
    let wanted = plan.memory.bytes().saturating_add(plan.data().bytes());
    let bound = [
        os::available_memory(),
        Own::find().ok().and_then(|own| own.limit()),
    ];
    let bytes = bound
        .iter()
        .flatten()
        .fold(wanted, |bytes, bound| bytes.min(bound / 2));
    // Not to have the memory is no failure here.
    let Ok(mut words) = Words::map(bytes) else {
        return Ok(());
    };
    for part in words.as_mut_slice().chunks_mut(STEP / size_of::<u64>()) {
        stop.check()?;
        part.fill(1);
    }
    Ok(())
}

/// One after the other, round robin, so that a slow minute of the machine does
/// not hit one contestant alone.
fn measure_all(
    workload: &Workload,
    plan: &Plan,
    stop: &Interrupt,
) -> Result<Vec<(String, Vec<Figures>)>, Error> {
    let mut results: Vec<(String, Vec<Figures>)> = plan
        .contestants
        .iter()
        .map(|c| (c.to_string(), Vec::new()))
        .collect();
    let mut progress = Progress::new();
    progress.show("warming up");
    warm_up(plan, stop)?;
    for run in 1..=plan.runs {
        for (contestant, (name, figures)) in plan.contestants.iter().zip(&mut results) {
            let all = u64::from(plan.processes) * plan.rounds;
            let tick = |done: usize| {
                progress.show(&format!(
                    "{} run {run} of {}: {name}, {done} of {all} rounds",
                    workload.name, plan.runs
                ));
            };
            figures.push(swap_run::measure(workload, plan, contestant, stop, tick)?);
        }
    }
    Ok(results)
}

fn heading(workload: &Workload, plan: &Plan) -> String {
    let plural = |n: u64, what: &str| {
        if n == 1 {
            format!("{n} {what}")
        } else {
            format!("{n} {what}s")
        }
    };
    let processes = if plan.processes == 1 {
        "1 process".into()
    } else {
        format!("{} processes", plan.processes)
    };
    format!(
        "{}: {processes}, {} over {} of memory, {}, swap {}, median of {}",
        workload.name,
        plan.data(),
        plan.memory,
        plural(plan.rounds, "round"),
        plan.swap,
        plural(plan.runs.into(), "run"),
    )
}
