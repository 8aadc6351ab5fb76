//! `hugeswap bench policies`: what is read and written for a trace of the pages that a program touches.
//!
//! A simulation: no memory is swapped. `engine` asks `policy`, which is what ships; `kernel` is what the kernel
//! would do, nearly; `reference` are those that see more than either can. With `--unit`, `rules` compares lists of
//! several kinds (`queues`). docs/policies.md says what came of it.

mod engine;
mod kernel;
mod queues;
mod reference;
mod rule;
mod rules;
mod tally;
mod trace;

use std::collections::HashSet;
use std::path::PathBuf;

use serde::Serialize;

use engine::Engine;
use hugeswap_host::columns::align;
use hugeswap_host::out;
use hugeswap_host::size::Size;
use kernel::Kernel;
use reference::{Lru, Opt};
use rule::Policy;
use rules::Unit;
use tally::{Costs, Tally};
use trace::{Event, Name, Trace, RANGE_PAGES};

/// Compare what is read and written under rules of reclaim, on traces of the pages that programs touch (a simulation)
#[derive(clap::Args, Debug, Clone)]
pub struct PoliciesArgs {
    /// Replay these files: traces (docs/traces.md), what `run --record-faults` wrote, or text with one page number in
    /// each line
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["workload", "size"])]
    trace: Vec<PathBuf>,

    /// What to replay [default: all]
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',')]
    workload: Vec<Name>,

    /// Compare rules for lists with one another where memory comes in and leaves in these units
    #[arg(long, value_enum, value_name = "UNIT", value_delimiter = ',')]
    unit: Vec<Unit>,

    /// Data that the program goes over
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    size: Size,

    /// Memory that holds a part of it [default: half of what the program has at a time]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,

    /// How often each workload is gone through
    #[arg(long, value_name = "R", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,

    /// Microseconds that a read takes [default: 45 of a page; with --unit, 1600 of a range and 110 of a page]
    #[arg(long, value_name = "N")]
    read_us: Option<f64>,

    /// Microseconds for each page more that is read with it
    #[arg(long, value_name = "N", default_value_t = Costs::DISK.page)]
    page_us: f64,

    /// Microseconds that a fault takes beside a read: being handed over, and a move [default: 12; with --unit 55]
    #[arg(long, value_name = "N")]
    soft_us: Option<f64>,

    /// Microseconds that moving pages of a range to staging takes
    #[arg(long, value_name = "N", default_value_t = Costs::DISK.stage)]
    stage_us: f64,

    /// Microseconds that writing a page takes from the program
    #[arg(long, value_name = "N", default_value_t = Costs::DISK.write)]
    write_us: f64,

    /// Print every figure as JSON; tables go to standard error then
    #[arg(long)]
    json: bool,
}

const PAGE: u64 = 4096;

#[derive(Debug, Serialize)]
struct Row {
    policy: &'static str,
    #[serde(flatten)]
    tally: Tally,
}

#[derive(Debug, Serialize)]
struct Comparison {
    workload: String,
    touches: u64,
    /// Pages that it has at a time, and those that fit.
    pages: usize,
    memory: usize,
    rows: Vec<Row>,
}

/// Goes through the trace; of the warming up nothing is counted.
fn play<S>(
    trace: &Trace,
    mut state: S,
    each: impl Fn(&mut S, &Event),
    tally: impl Fn(&mut S) -> &mut Tally,
) -> Tally {
    let (warm, rest) = trace.events.split_at(trace.warm);
    warm.iter().for_each(|event| each(&mut state, event));
    *tally(&mut state) = Tally::default();
    rest.iter().for_each(|event| each(&mut state, event));
    *tally(&mut state)
}

fn engine(trace: &Trace, memory: usize, costs: Costs) -> Tally {
    let each = |engine: &mut Engine, event: &Event| match *event {
        Event::Touch {
            page,
            thread,
            write,
        } => engine.touch(page as usize, thread, write),
        Event::Free { first, count } => engine.give_back(first as usize, count as usize),
    };
    let state = Engine::new(trace.pages, memory, costs);
    play(trace, state, each, |engine| &mut engine.tally)
}

fn kernel(trace: &Trace, memory: usize, costs: Costs) -> Tally {
    let each = |kernel: &mut Kernel, event: &Event| match *event {
        Event::Touch { page, write, .. } => kernel.touch(page as usize, write),
        Event::Free { first, count } => kernel.give_back(first as usize, count as usize),
    };
    let state = Kernel::new(trace.pages, memory, costs);
    play(trace, state, each, |kernel| &mut kernel.tally)
}

/// A rule by page that reads each page alone, at the kernel's cost. What is touched first is not read.
fn by_page(
    trace: &Trace,
    costs: Costs,
    rule: impl FnOnce(&[u32], usize) -> Box<dyn Policy>,
) -> Tally {
    let numbers = trace.numbers();
    let mut rule = rule(&numbers.touches, numbers.pages);
    let mut known = HashSet::new();
    let mut reads = 0;
    for (at, page) in numbers.touches.iter().enumerate() {
        let before = rule.counts().misses;
        rule.touch(*page as usize);
        let missed = rule.counts().misses > before;
        if !known.insert(*page) && missed && at >= numbers.warm {
            reads += 1;
        }
    }
    Tally {
        reads,
        pages_in: reads,
        micros: reads as f64 * (kernel::MAJOR_US + costs.read),
        ..Tally::default()
    }
}

fn compare(trace: &Trace, memory: usize, costs: Costs) -> Comparison {
    let lru = |_: &[u32], pages| -> Box<dyn Policy> { Box::new(Lru::new(pages, memory)) };
    let opt = |all: &[u32], pages| -> Box<dyn Policy> { Box::new(Opt::new(all, pages, memory)) };
    let rows = [
        ("hugeswap", engine(trace, memory, costs)),
        ("kernel, nearly", kernel(trace, memory, costs)),
        ("LRU by page *", by_page(trace, costs, lru)),
        ("optimum by page *", by_page(trace, costs, opt)),
    ];
    Comparison {
        workload: trace.name.clone(),
        touches: trace.touches(),
        pages: trace.need(),
        memory,
        rows: rows.map(|(policy, tally)| Row { policy, tally }).into(),
    }
}

impl Comparison {
    fn table(&self) -> String {
        let kernel = self.rows[1].tally.micros;
        let head = [
            "",
            "reads",
            "pages in",
            "soft hits",
            "staged",
            "written",
            "time, s",
            "of the kernel's",
        ];
        let mut lines = vec![head.map(String::from).to_vec()];
        for Row { policy, tally } in &self.rows {
            let part = match kernel > 0.0 {
                true => format!("{:.2}", tally.micros / kernel),
                false => "-".to_owned(),
            };
            lines.push(vec![
                (*policy).to_owned(),
                tally.reads.to_string(),
                tally.pages_in.to_string(),
                tally.soft.to_string(),
                tally.staged.to_string(),
                tally.written.to_string(),
                format!("{:.2}", tally.micros / 1e6),
                part,
            ]);
        }
        align(&lines)
    }
}

fn traces(args: &PoliciesArgs) -> Result<Vec<Trace>, String> {
    if !args.trace.is_empty() {
        let read: Result<Vec<_>, _> = args.trace.iter().map(|file| Trace::read(file)).collect();
        return Ok(read?.into_iter().flatten().collect());
    }
    let pages = args.size.bytes() / PAGE;
    if pages < RANGE_PAGES as u64 || pages > u64::from(u32::MAX) {
        return Err(format!("--size {}: give 2M to 8T", args.size));
    }
    let all = <Name as clap::ValueEnum>::value_variants();
    let chosen = match args.workload.is_empty() {
        true => all,
        false => &args.workload,
    };
    let of = |name: &Name| Trace::of(*name, pages, args.rounds);
    Ok(chosen.iter().map(of).collect())
}

/// How the product fares beside the others.
fn product(args: &PoliciesArgs, trace: &Trace, memory: usize) -> Comparison {
    let costs = Costs {
        read: args.read_us.unwrap_or(Costs::DISK.read),
        page: args.page_us,
        soft: args.soft_us.unwrap_or(Costs::DISK.soft),
        stage: args.stage_us,
        write: args.write_us,
    };
    let comparison = compare(trace, memory, costs);
    outln!(
        "{}: {} touches, memory for {memory} of {} pages\n\n{}",
        comparison.workload,
        comparison.touches,
        comparison.pages,
        comparison.table()
    );
    comparison
}

/// How rules for lists fare beside one another.
fn lists(args: &PoliciesArgs, trace: &Trace, unit: Unit, memory: usize) -> rules::Comparison {
    let read = match unit {
        Unit::Range => 1600.0,
        Unit::Page | Unit::Mixed => 110.0,
    };
    let costs = rules::Costs {
        read: args.read_us.unwrap_or(read),
        soft: args.soft_us.unwrap_or(55.0),
        stage: args.stage_us,
    };
    let comparison = rules::compare(trace, unit, memory, costs);
    outln!(
        "{}, unit {:?}: {} touches, memory for {memory} of {} pages\n\n{}",
        comparison.workload,
        unit,
        comparison.touches,
        trace.pages,
        comparison.table()
    );
    comparison
}

pub fn run(args: &PoliciesArgs) -> Result<(), String> {
    out::json_only(args.json);
    let (mut products, mut compared) = (Vec::new(), Vec::new());
    for trace in traces(args)? {
        let memory = match args.memory {
            Some(memory) => (memory.bytes() / PAGE) as usize,
            None => trace.need() / 2,
        };
        if memory == 0 {
            return Err("--memory: give at least 4K".into());
        }
        for unit in &args.unit {
            compared.push(lists(args, &trace, *unit, memory));
        }
        if args.unit.is_empty() {
            products.push(product(args, &trace, memory));
        }
    }
    if products.len() > 1 {
        outln!("{}", summary(&products));
    }
    outln!("* sees what user space can't: each touch of resident memory, or the future");
    match (args.json, args.unit.is_empty()) {
        (true, true) => out::json(&products),
        (true, false) => out::json(&compared),
        (false, _) => Ok(()),
    }
}

/// One number, to judge a change by.
fn summary(all: &[Comparison]) -> String {
    let parts: Vec<f64> = all
        .iter()
        .map(|c| c.rows[0].tally.micros / c.rows[1].tally.micros)
        .filter(|part| part.is_finite() && *part > 0.0)
        .collect();
    let mean = parts.iter().map(|part| part.ln()).sum::<f64>() / parts.len().max(1) as f64;
    format!(
        "hugeswap's time as a part of the kernel's, geometric mean of {}: {:.3}\n",
        parts.len(),
        mean.exp()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: usize = 16 * RANGE_PAGES;

    fn of(name: Name) -> Comparison {
        let trace = Trace::of(name, 2 * MEMORY as u64, 2);
        compare(&trace, MEMORY, Costs::DISK)
    }

    /// Nobody gets by with fewer pages than the optimum, and nobody waits for nothing.
    #[test]
    fn nobody_brings_in_less_than_the_optimum() {
        for name in <Name as clap::ValueEnum>::value_variants() {
            let done = of(*name);
            let least = done.rows[3].tally.pages_in;
            for Row { policy, tally } in &done.rows {
                assert!(
                    tally.pages_in >= least,
                    "{name:?} {policy}: {tally:?} {least}"
                );
                assert!(tally.micros > 0.0, "{name:?} {policy}");
            }
        }
    }

    /// What `bench` shows on the real thing: walks are much faster than under the kernel.
    #[test]
    fn walks_take_a_part_of_the_kernels_time() {
        let done = of(Name::Scan);
        let part = done.rows[0].tally.micros / done.rows[1].tally.micros;
        assert!(part < 0.6, "{part}");
        assert!(summary(&[done]).contains("of 1: 0."));
    }
}
