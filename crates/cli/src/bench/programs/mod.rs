//! `hugeswap bench programs`: real programs with half of the memory that they need, and what they
//! lose by it.

pub mod graph;
mod redis;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::arena::Arena;
use super::error::{io_error, Error};
use super::progress::Progress;
use super::report::{align, median};
use super::swap_args::{contestants, Against, Contestant, PlanError};
use super::swap_test::{with_clean_end, write_json, Machine};
use crate::size::{Size, MIB};
use crate::swap_spec::{self, SwapSpec};
use crate::undo::{Guard, Interrupt, Undo};

/// Real programs with half of the memory that they need
#[derive(clap::Args, Debug, Clone)]
pub struct ProgramsArgs {
    /// Which to run [default: all]
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',')]
    pub program: Vec<Program>,

    /// About what each needs; the limit is half of what it is seen to need
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub size: Size,

    /// Where to swap: a directory, a block device, or 'ram' [default: a directory on a disk]
    #[arg(long, value_name = "SPEC", value_parser = swap_spec::parser())]
    pub swap: Option<SwapSpec>,

    /// The kernel's swap to compare with; 'kernel' takes what fits --swap
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',', default_values = ["kernel"])]
    pub against: Vec<Against>,

    /// How often each side is measured, in turn; medians are shown
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,

    /// Leave the comparison out: run with no limit and under hugeswap
    #[arg(long)]
    pub no_kernel: bool,

    /// Write every figure to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Program {
    /// numpy sorts random numbers
    NumpySort,
    /// sqlite builds an index in memory
    SqliteIndex,
    /// Breadth-first search on a scale-free graph
    GraphBfs,
    /// PageRank on the same graph
    GraphPagerank,
    /// redis answers random gets
    RedisGet,
}

impl Program {
    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |v| v.get_name().to_owned())
    }

    /// Lost time as a part of what the kernel's swap loses, at most.
    fn target(self) -> f64 {
        match self {
            Program::NumpySort => 0.2,
            Program::RedisGet => 0.8,
            _ => 0.5,
        }
    }
}

/// What a program says of its run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Of the part that is measured.
    pub seconds: f64,
    /// The same whenever the result is the same.
    pub check: String,
    /// The most that it had resident.
    pub need: u64,
}

/// One program's figures.
#[derive(Debug, Serialize)]
pub struct Row {
    pub program: String,
    pub need_bytes: u64,
    pub limit_bytes: u64,
    pub unlimited_seconds: f64,
    pub hugeswap_seconds: f64,
    pub kernel: Vec<Kernel>,
    /// `Kernel::share`, at most.
    pub target: f64,
}

#[derive(Debug, Serialize)]
pub struct Kernel {
    pub name: String,
    /// None if it killed the program at its limit in every run.
    pub seconds: Option<f64>,
    /// Runs in which it did.
    pub killed: u32,
    /// The time that hugeswap loses, as a part of what this loses. None if this loses none.
    pub share: Option<f64>,
}

#[derive(Debug, Serialize)]
pub struct Document {
    pub test: &'static str,
    pub swap: String,
    pub runs: u32,
    pub machine: Machine,
    pub programs: Vec<Row>,
}

pub fn run(args: &ProgramsArgs) -> ExitCode {
    with_clean_end(|stop| {
        let document = compare(args, stop)?;
        outln!("{}", table(&document));
        match &args.json {
            Some(path) => write_json(path, &document),
            None => Ok(()),
        }
    })
}

/// hugeswap takes no less memory than this.
const LEAST: u64 = 64 * MIB;

pub fn compare(args: &ProgramsArgs, stop: &Interrupt) -> Result<Document, Error> {
    let against = if args.no_kernel {
        &[][..]
    } else {
        &args.against
    };
    let (swap, contestants) = contestants(&args.swap, against, None).map_err(Error::Plan)?;
    if args.size.bytes() < 2 * LEAST + 32 * MIB {
        return Err(Error::Plan(PlanError::MemoryTooSmall {
            memory: args.size,
            least: 2 * LEAST + 32 * MIB,
        }));
    }
    let chosen = match &args.program[..] {
        [] => Program::value_variants(),
        some => some,
    };
    let mut bench = Bench {
        size: args.size,
        swap: swap.clone(),
        graph: None,
        guard: Guard::new(),
        progress: Progress::new(),
    };
    let mut programs = Vec::new();
    for program in chosen {
        programs.push(bench.program(*program, &contestants, args.runs, stop)?);
    }
    Ok(Document {
        test: "programs",
        swap: swap.to_string(),
        runs: args.runs,
        machine: Machine::here(),
        programs,
    })
}

struct Bench {
    size: Size,
    swap: SwapSpec,
    /// Made when it is needed first.
    graph: Option<PathBuf>,
    guard: Guard,
    progress: Progress,
}

impl Bench {
    fn program(
        &mut self,
        program: Program,
        contestants: &[Contestant],
        runs: u32,
        stop: &Interrupt,
    ) -> Result<Row, Error> {
        if matches!(program, Program::GraphBfs | Program::GraphPagerank) && self.graph.is_none() {
            self.make_graph(stop)?;
        }
        // Once beforehand, which says what it needs and warms files and memory up.
        let first = self.once(program, &Contestant::Unlimited, self.size, "first", stop)?;
        let limit = Size::from_bytes((first.need / 2).max(LEAST));
        let mut unlimited = Vec::new();
        let mut limited = vec![Vec::new(); contestants.len()];
        let mut killed = vec![0; contestants.len()];
        for run in 1..=runs {
            let run = format!("run {run} of {runs}");
            let all = [&Contestant::Unlimited].into_iter().chain(contestants);
            let times = [&mut unlimited].into_iter().chain(&mut limited);
            for (i, (contestant, times)) in all.zip(times).enumerate() {
                let outcome = match self.once(program, contestant, limit, &run, stop) {
                    // The first two are no limit and hugeswap: neither may be killed.
                    Err(Error::OutOfMemory { .. }) if i >= 2 => {
                        killed[i - 1] += 1;
                        continue;
                    }
                    outcome => outcome?,
                };
                if outcome.check != first.check {
                    return Err(Error::Wrong {
                        who: contestant.to_string(),
                        what: format!(
                            "{} gave {}, not {}",
                            program.name(),
                            outcome.check,
                            first.check
                        ),
                    });
                }
                times.push(outcome.seconds);
            }
        }
        let middle = |times: &Vec<f64>| median(times.iter().copied()).unwrap_or(0.0);
        let unlimited = middle(&unlimited);
        // hugeswap is the first.
        let hugeswap = middle(&limited[0]);
        let kernel = contestants
            .iter()
            .zip(limited.iter().zip(killed))
            .skip(1)
            .map(|(contestant, (times, killed))| {
                let seconds = median(times.iter().copied());
                let lost = seconds.map(|s| s - unlimited).filter(|&lost| lost > 0.0);
                Kernel {
                    name: contestant.to_string(),
                    seconds,
                    killed,
                    share: lost.map(|lost| (hugeswap - unlimited).max(0.0) / lost),
                }
            });
        Ok(Row {
            program: program.name(),
            need_bytes: first.need,
            limit_bytes: limit.bytes(),
            unlimited_seconds: unlimited,
            hugeswap_seconds: hugeswap,
            kernel: kernel.collect(),
            target: program.target(),
        })
    }

    /// Outside of all limits; where it is no matter, it is read once per run.
    fn make_graph(&mut self, stop: &Interrupt) -> Result<(), Error> {
        let file = std::env::temp_dir().join(format!("hugeswap-graph-{}", std::process::id()));
        self.guard.push(Undo::RemoveFile(file.clone()));
        self.progress.show("making the graph");
        let none = Contestant::Unlimited;
        let arena = Arena::set_up(&none, self.size, self.size, &self.swap, stop)?;
        let mut command = arena.command(this_program()?)?;
        command
            .args(["bench-graph", "make"])
            .arg(&file)
            .args(["--bytes", &self.size.bytes().to_string()]);
        let (_, status) = arena.run(command, stop, &mut |_| {})?;
        if !status.success() {
            let who = none.to_string();
            return Err(Error::Failed { who, status });
        }
        self.graph = Some(file);
        Ok(())
    }

    fn once(
        &mut self,
        program: Program,
        contestant: &Contestant,
        limit: Size,
        run: &str,
        stop: &Interrupt,
    ) -> Result<Outcome, Error> {
        let who = contestant.to_string();
        let heading = format!("{}, {run}: {who}", program.name());
        self.progress.show(&heading);
        // What does not fit its limit is to find room, and some more.
        let data = Size::from_bytes(2 * limit.bytes());
        let arena = Arena::set_up(contestant, limit, data, &self.swap, stop)?;
        let bytes = self.size.bytes();
        if program == Program::RedisGet {
            let progress = &mut self.progress;
            let say = &mut |what: &str| progress.show(&format!("{heading}, {what}"));
            return redis::run(&arena, bytes, &who, stop, say);
        }
        let command = match (program, &self.graph) {
            (Program::NumpySort, _) => python(&arena, include_str!("sort.py"), bytes)?,
            (Program::SqliteIndex, _) => python(&arena, include_str!("index.py"), bytes)?,
            (Program::GraphBfs, Some(graph)) => traversal(&arena, "bfs", graph)?,
            (_, Some(graph)) => traversal(&arena, "pagerank", graph)?,
            (_, None) => return Err(Error::Report("there is no graph".into())),
        };
        let progress = &mut self.progress;
        let tick = &mut |_: &[u8]| progress.show(&heading);
        let (output, status) = arena.run(command, stop, tick)?;
        if arena.usage().oom_kills > 0 {
            let limit = arena.limit();
            return Err(Error::OutOfMemory { who, limit });
        }
        if !status.success() {
            return Err(Error::Failed { who, status });
        }
        if *contestant == Contestant::Hugeswap && arena.swapped().is_none_or(|(_, out)| out == 0) {
            // It has twice its limit: it ran, but not under us.
            return Err(Error::Report("hugeswap did not manage the program".into()));
        }
        serde_json::from_str(&output).map_err(|err| Error::Report(format!("{err}: {output}")))
    }
}

fn this_program() -> Result<PathBuf, Error> {
    std::env::current_exe().map_err(io_error("find this program"))
}

/// Debian's, which has numpy; another one may come first in PATH.
const PYTHON: &str = "/usr/bin/python3";

fn python(arena: &Arena, script: &str, bytes: u64) -> Result<std::process::Command, Error> {
    if !Path::new(PYTHON).exists() {
        return Err(Error::Missing("python3-numpy"));
    }
    let mut command = arena.command(PYTHON)?;
    // Threads of a library for linear algebra that is not used.
    command.env("OPENBLAS_NUM_THREADS", "1");
    command.args(["-c", script, &bytes.to_string()]);
    Ok(command)
}

fn traversal(arena: &Arena, what: &str, graph: &Path) -> Result<std::process::Command, Error> {
    let mut command = arena.command(this_program()?)?;
    command.args(["bench-graph", what]).arg(graph);
    Ok(command)
}

pub fn table(document: &Document) -> String {
    format!(
        "programs with half of the memory that they need, swap {}, median of {} runs\n\n{}",
        document.swap,
        document.runs,
        align(&cells(document))
    )
}

/// "2.71", and how often there was no end to take the time of.
fn time_of(kernel: &Kernel, runs: u32) -> String {
    match (kernel.seconds, kernel.killed) {
        (Some(seconds), 0) => format!("{seconds:.2}"),
        (Some(seconds), killed) => format!("{seconds:.2} ({killed} of {runs} killed)"),
        (None, _) => "killed".into(),
    }
}

/// The table's lines, the first of them the heads of the columns.
pub fn cells(document: &Document) -> Vec<Vec<String>> {
    let Some(first) = document.programs.first() else {
        return Vec::new();
    };
    let mut head: Vec<String> = ["", "needs", "limit", "no limit, s", "hugeswap, s"]
        .map(String::from)
        .into();
    for kernel in &first.kernel {
        head.push(format!("{}, s", kernel.name));
        head.push("lost share".into());
    }
    if !first.kernel.is_empty() {
        head.push("at most".into());
    }
    let mut lines = vec![head];
    for row in &document.programs {
        let mebibytes = |bytes| format!("{:.0} MiB", bytes as f64 / MIB as f64);
        let mut line = vec![
            row.program.clone(),
            mebibytes(row.need_bytes),
            mebibytes(row.limit_bytes),
            format!("{:.2}", row.unlimited_seconds),
            format!("{:.2}", row.hugeswap_seconds),
        ];
        for kernel in &row.kernel {
            line.push(time_of(kernel, document.runs));
            line.push(
                kernel
                    .share
                    .map_or("-".into(), |share| format!("{share:.2}")),
            );
        }
        if !row.kernel.is_empty() {
            line.push(format!("{:.2}", row.target));
        }
        lines.push(line);
    }
    lines
}
