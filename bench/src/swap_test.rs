//! A workload under hugeswap and under the kernel's swap, in turn.

use std::process::ExitCode;

use super::error::{io_error, Error};
use super::machine::Machine;
use super::report::{self, Document};
use super::swap_args::{Contestant, Plan, SwapArgs, Total};
use super::swap_run::{self, Figures};
use super::workload::Workload;
use hugeswap_host::cgroup::Own;
use hugeswap_host::os::{self, Words};
use hugeswap_host::out;
use hugeswap_host::progress::Progress;
use hugeswap_host::undo::{self, Interrupt};

const USAGE: u8 = 2;
/// As a shell reports a program that SIGINT ended.
const INTERRUPTED: u8 = 130;

pub fn run(workload: &Workload, args: &SwapArgs) -> ExitCode {
    out::json_only(args.json);
    with_clean_end(|stop| {
        let plan = args.plan(workload).map_err(Error::Plan)?;
        let document = compare(&plan, stop)?;
        out!("{}\n\n{}", document.heading, report::table(&document));
        match args.json {
            true => out::json(&document).map_err(Error::Report),
            false => Ok(()),
        }
    })
}

/// Runs what sets things up, so that all of it is taken down however it ends.
pub fn with_clean_end(test: impl FnOnce(&Interrupt) -> Result<(), Error>) -> ExitCode {
    let started = || {
        // Before anything is set up.
        undo::start_janitor().map_err(io_error("start the janitor"))?;
        Interrupt::catch().map_err(io_error("catch signals"))
    };
    if cfg!(debug_assertions) {
        errln!("hugeswap: this is a debug build: its figures say nothing");
    }
    match started().and_then(|stop| test(&stop)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Interrupted) => {
            // Where the reader of the output went away there is nobody to tell.
            if out::failure().is_none() {
                errln!("hugeswap: interrupted; everything is taken down");
            }
            ExitCode::from(INTERRUPTED)
        }
        Err(err @ (Error::Plan(_) | Error::Usage(_))) => {
            errln!("hugeswap: {err}");
            ExitCode::from(USAGE)
        }
        Err(err) => {
            errln!("hugeswap: {err}");
            ExitCode::FAILURE
        }
    }
}

pub fn compare(plan: &Plan, stop: &Interrupt) -> Result<Document, Error> {
    let results = measure_all(plan, stop)?;
    let ours = Contestant::Hugeswap.to_string();
    let workers = u64::from(plan.processes) * u64::from(plan.threads);
    Ok(Document {
        test: plan.workload.name,
        processes: plan.processes,
        threads: plan.threads,
        busy_threads: plan.busy,
        rounds: plan.rounds,
        accesses: plan.accesses * workers,
        writes_percent: plan.writes.unwrap_or(plan.workload.writes),
        compressible: plan.compressible,
        compress: plan.compress.clone(),
        data_bytes: plan.data().bytes(),
        memory_bytes: plan.memory.bytes(),
        same_total: plan.total == Total::Same,
        swap: plan.places(),
        machine: Machine::here(),
        contestants: report::columns(results, Some(&ours)),
        heading: heading(plan),
    })
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
fn measure_all(plan: &Plan, stop: &Interrupt) -> Result<Vec<(String, Vec<Figures>)>, Error> {
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
                    plan.workload.name, plan.runs
                ));
            };
            match swap_run::measure(plan, contestant, stop, tick) {
                Ok(run) => figures.push(run),
                // zram with every size on does not get by with a small limit.
                Err(err @ Error::OutOfMemory { .. })
                    if matches!(contestant, Contestant::Kernel(_)) =>
                {
                    errln!("hugeswap: {err}");
                }
                Err(err) => return Err(err),
            }
        }
    }
    results.retain(|(_, figures)| !figures.is_empty());
    Ok(results)
}

fn heading(plan: &Plan) -> String {
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
    let threads = match plan.threads {
        1 => String::new(),
        n => format!(" with {n} threads"),
    };
    let busy = match plan.busy {
        0 => String::new(),
        n => format!(" beside {}", plural(n.into(), "busy thread")),
    };
    let contents = match plan.compressible {
        Some(ratio) => format!(" (compressible to 1/{ratio})"),
        None => String::new(),
    };
    let compress = match plan.compress.as_str() {
        "off" => String::new(),
        share => format!(" and compressed memory ({share})"),
    };
    let total = match plan.total {
        Total::Beside => "",
        Total::Same => " in all",
    };
    format!(
        "{}: {processes}{threads}{busy}, {}{contents} over {} of memory{total}, {}, swap {}{compress}, {}",
        plan.workload.name,
        plan.data(),
        plan.memory,
        plural(plan.rounds, "round"),
        plan.places(),
        match plan.runs {
            1 => "one run".to_owned(),
            n => format!("median of {n} runs"),
        },
    )
}
