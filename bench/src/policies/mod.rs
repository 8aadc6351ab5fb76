//! `hugeswap bench policies`: what different rules of reclaim miss, on traces of page numbers.
//!
//! A simulation: no memory is swapped. [`queues`] has the rules that the engine could follow,
//! [`reference`] those that need to see more than it can. docs/policies.md says what came of it.

mod queues;
mod reference;

use std::fs;
use std::path::PathBuf;

use serde::Serialize;

use super::pattern::{Pages, Pattern, Step};
use hugeswap_host::columns::align;
use hugeswap_host::size::Size;
use queues::{Config, Queues, Refault, Split};
use reference::{Clock, Lru, Opt};

/// Compare rules of reclaim on traces of page numbers (a simulation)
#[derive(clap::Args, Debug, Clone)]
pub struct PoliciesArgs {
    /// Replay this file: one page number in each line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workload", "size"])]
    trace: Option<PathBuf>,

    /// What to replay [default: all]
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',')]
    workload: Vec<Name>,

    /// In which units memory comes in and leaves
    #[arg(long, value_enum, value_name = "UNIT", value_delimiter = ',', default_values = ["range", "mixed"])]
    unit: Vec<Unit>,

    /// Data that the program goes over
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    size: Size,

    /// Memory that holds a part of it [default: half of --size]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,

    /// How often each workload is gone through
    #[arg(long, value_name = "R", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,

    /// Microseconds that a miss takes [default: 1600 for a range, 110 for a page]
    #[arg(long, value_name = "N")]
    read_us: Option<f64>,

    /// Microseconds that a soft hit takes: fault and move, no read
    #[arg(long, value_name = "N", default_value_t = 55.0)]
    soft_us: f64,

    /// Microseconds that moving a range to staging takes
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    stage_us: f64,

    /// Write every figure to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Name {
    /// Begin to end, again and again
    Scan,
    /// Pages with equal chances
    Random,
    /// Zipfian pages, 0.99
    Zipf,
    /// Zipfian pages, and a scan through everything now and then
    ZipfScan,
    /// A hot quarter, and scans through everything
    HotScan,
    /// Two fifths of the data are hot, and others each round
    Shift,
    /// The same, walked through from begin to end, five times
    WalkShift,
    /// Strides, up and down
    Stride,
    /// A walk, random pages, another hot set each round
    Phases,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// 2 MiB come in and leave
    Range,
    /// 4 KiB come in and leave
    Page,
    /// 4 KiB come in; what is resident of 2 MiB leaves together, except pages touched in staging
    Mixed,
}

const PAGE: u64 = 4096;
const RANGE_PAGES: usize = 512;

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Counts {
    pub misses: u64,
    /// Touches of what was in staging.
    pub soft: u64,
    /// Ranges moved to staging.
    pub staged: u64,
    pub evictions: u64,
}

trait Policy {
    fn touch(&mut self, page: usize);
    fn counts(&mut self) -> &mut Counts;
}

/// Which pages are touched, one after the other. The first `warm` fill memory and do not count.
struct Trace {
    name: String,
    touches: Vec<u32>,
    warm: usize,
    pages: usize,
}

impl Trace {
    fn of(name: Name, pages: u64, rounds: u64) -> Trace {
        let hot_quarter = |round| {
            let legs = Pattern::Phases.legs(pages, 8 * pages, 0);
            Pages::new(legs[2..].to_vec(), pages, round)
        };
        let mut touches: Vec<u32> = (0..pages as u32).collect();
        for round in 0..rounds {
            let mut go = |pattern: Pattern| {
                let legs = pattern.legs(pages, 2 * pages, round);
                touches.extend(Pages::new(legs, pages, round).map(|p| p as u32));
            };
            let zipf = Pattern::Zipf { theta: 0.99 };
            match name {
                Name::Scan => go(Pattern::Sequential),
                Name::Random => go(Pattern::Uniform),
                Name::Zipf => go(zipf),
                Name::ZipfScan if round % 4 == 3 => go(Pattern::Sequential),
                Name::ZipfScan => go(zipf),
                Name::HotScan => {
                    touches.extend(hot_quarter(round).map(|p| p as u32));
                    touches.extend(0..pages as u32);
                }
                Name::Shift => {
                    let len = pages * 2 / 5;
                    let hot = Step::Uniform {
                        first: round % 3 * (pages - len) / 2,
                        len,
                    };
                    let legs = vec![(hot, 2 * pages)];
                    touches.extend(Pages::new(legs, pages, round).map(|p| p as u32));
                }
                Name::WalkShift => {
                    let len = pages as u32 * 2 / 5;
                    let first = (round % 3) as u32 * (pages as u32 - len) / 2;
                    for _ in 0..5 {
                        touches.extend(first..first + len);
                    }
                }
                Name::Stride => go(Pattern::Stride),
                Name::Phases => go(Pattern::Phases),
            }
        }
        Trace {
            name: clap::ValueEnum::to_possible_value(&name)
                .map_or_else(String::new, |v| v.get_name().to_owned()),
            touches,
            warm: pages as usize,
            pages: pages as usize,
        }
    }

    fn read(file: &PathBuf) -> Result<Trace, String> {
        let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let touches: Vec<u32> = text
            .lines()
            .enumerate()
            .map(|(i, line)| {
                line.trim().parse().map_err(|_| {
                    format!(
                        "{}:{}: '{line}' is not a page number",
                        file.display(),
                        i + 1
                    )
                })
            })
            .collect::<Result<_, String>>()?;
        let pages = touches.iter().max().map_or(0, |p| *p as usize + 1);
        if pages == 0 {
            return Err(format!("{}: no page numbers", file.display()));
        }
        Ok(Trace {
            name: file.display().to_string(),
            touches,
            warm: 0,
            pages,
        })
    }

    /// The same in ranges. Touches of one range that follow each other are one: what is resident
    /// stays so meanwhile.
    fn in_ranges(&self) -> Trace {
        let range = |page: &u32| page / RANGE_PAGES as u32;
        let of = |part: &[u32]| {
            let mut ranges: Vec<u32> = part.iter().map(range).collect();
            ranges.dedup();
            ranges
        };
        let (warm, rest) = self.touches.split_at(self.warm);
        let mut touches = of(warm);
        let warm = touches.len();
        touches.extend(of(rest));
        Trace {
            name: self.name.clone(),
            touches,
            warm,
            pages: self.pages.div_ceil(RANGE_PAGES),
        }
    }
}

/// The engine's inactive list is not longer than this.
const STAGING: usize = 63;

/// A rule's name, and what it does.
type Named = (String, Box<dyn Policy>);

/// The rules that user space can follow.
fn possible() -> Vec<(String, Config)> {
    let chance = |ratio, most| Config {
        ratio,
        most,
        split: None,
    };
    let split = |ratio, young_part, refault, stays, walks| Config {
        ratio,
        most: 0,
        split: Some(Split {
            young_part,
            refault,
            stays,
            walks,
        }),
    };
    let mut all = vec![
        ("fifo".to_owned(), chance(0, 1)),
        (
            "second chance 1:16, at most 63".to_owned(),
            chance(16, STAGING),
        ),
    ];
    for ratio in [64, 32, 16, 8, 4, 2] {
        all.push((format!("second chance 1:{ratio}"), chance(ratio, 0)));
    }
    for ratio in [32, 8] {
        let active = split(ratio, 0.5, Refault::Active, 0, false);
        all.push((format!("refault distance 1:{ratio}"), active));
    }
    let more = [
        ("2Q", split(32, 0.25, Refault::Part(0.5), 0, false)),
        ("S3-FIFO", split(32, 0.1, Refault::Part(0.9), 0, false)),
        ("bimodal 1/16", split(32, 0.05, Refault::Never, 16, false)),
        ("walks first 1/8", split(32, 0.05, Refault::Never, 8, true)),
        (
            "walks first 1/32",
            split(32, 0.05, Refault::Never, 32, true),
        ),
        (
            "walks first 1/8, regret",
            split(32, 0.05, Refault::Worth(0.75), 8, true),
        ),
    ];
    all.extend(more.map(|(name, config)| (format!("{name}, 1:32"), config)));
    all
}

fn policies(trace: &Trace, group: usize, capacity: usize) -> Vec<Named> {
    let mut all: Vec<Named> = possible()
        .into_iter()
        .map(|(name, config)| {
            let queues = Queues::new(config, trace.pages, group, capacity);
            (name, Box::new(queues) as Box<dyn Policy>)
        })
        .collect();
    let seers: [(&str, Box<dyn Policy>); 3] = [
        ("CLOCK *", Box::new(Clock::new(trace.pages, capacity))),
        ("LRU *", Box::new(Lru::new(trace.pages, capacity))),
        (
            "OPT *",
            Box::new(Opt::new(&trace.touches, trace.pages, capacity)),
        ),
    ];
    all.extend(seers.map(|(name, policy)| (name.to_owned(), policy)));
    all
}

#[derive(Debug, Serialize)]
pub struct Row {
    pub policy: String,
    #[serde(flatten)]
    pub counts: Counts,
    pub seconds: f64,
}

#[derive(Debug, Serialize)]
pub struct Comparison {
    pub workload: String,
    pub unit: Unit,
    pub touches: u64,
    pub rows: Vec<Row>,
}

/// Microseconds.
#[derive(Clone, Copy)]
struct Costs {
    read: f64,
    soft: f64,
    stage: f64,
}

fn compare(trace: &Trace, unit: Unit, memory_pages: usize, costs: Costs) -> Comparison {
    let ranges;
    let (trace, group, capacity) = match unit {
        Unit::Range => {
            ranges = trace.in_ranges();
            (&ranges, 1, (memory_pages / RANGE_PAGES).max(1))
        }
        Unit::Page => (trace, 1, memory_pages),
        Unit::Mixed => (trace, RANGE_PAGES, memory_pages),
    };
    let (warm, measured) = trace.touches.split_at(trace.warm);
    let rows = policies(trace, group, capacity)
        .into_iter()
        .map(|(name, mut policy)| {
            warm.iter().for_each(|p| policy.touch(*p as usize));
            *policy.counts() = Counts::default();
            measured.iter().for_each(|p| policy.touch(*p as usize));
            let counts = *policy.counts();
            let micros = counts.misses as f64 * costs.read
                + counts.soft as f64 * costs.soft
                + counts.staged as f64 * costs.stage;
            Row {
                policy: name,
                counts,
                seconds: micros / 1e6,
            }
        })
        .collect();
    Comparison {
        workload: trace.name.clone(),
        unit,
        touches: measured.len() as u64,
        rows,
    }
}

impl Comparison {
    fn table(&self) -> String {
        let fifo = self.rows.first().map_or(1.0, |row| row.seconds);
        let mut lines = vec![
            ["", "misses", "soft hits", "staged", "cost, s", "of fifo's"]
                .map(String::from)
                .to_vec(),
        ];
        for row in &self.rows {
            lines.push(vec![
                row.policy.clone(),
                row.counts.misses.to_string(),
                row.counts.soft.to_string(),
                row.counts.staged.to_string(),
                format!("{:.2}", row.seconds),
                format!("{:.2}", row.seconds / fifo),
            ]);
        }
        align(&lines)
    }
}

pub fn run(args: &PoliciesArgs) -> Result<(), String> {
    let pages = args.size.bytes() / PAGE;
    if pages < RANGE_PAGES as u64 || pages > u64::from(u32::MAX) {
        return Err(format!("--size {}: give 2M to 8T", args.size));
    }
    let traces: Vec<Trace> = match &args.trace {
        Some(file) => vec![Trace::read(file)?],
        None => {
            let all = <Name as clap::ValueEnum>::value_variants();
            let chosen = if args.workload.is_empty() {
                all
            } else {
                &args.workload
            };
            chosen
                .iter()
                .map(|name| Trace::of(*name, pages, args.rounds))
                .collect()
        }
    };
    let mut done = Vec::new();
    for trace in &traces {
        let memory = match args.memory {
            Some(memory) => (memory.bytes() / PAGE) as usize,
            None => trace.pages / 2,
        };
        if memory == 0 {
            return Err("--memory: give at least 4K".into());
        }
        for unit in &args.unit {
            let read = match unit {
                Unit::Range => 1600.0,
                _ => 110.0,
            };
            let costs = Costs {
                read: args.read_us.unwrap_or(read),
                soft: args.soft_us,
                stage: args.stage_us,
            };
            let comparison = compare(trace, *unit, memory, costs);
            outln!(
                "{}, unit {:?}: {} touches, memory for {memory} of {} pages\n\n{}",
                comparison.workload,
                unit,
                comparison.touches,
                trace.pages,
                comparison.table()
            );
            done.push(comparison);
        }
    }
    outln!("* sees what user space can't: each touch of resident memory, or the future");
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&done).map_err(|e| e.to_string())?;
        fs::write(file, text + "\n").map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: usize = 16 * RANGE_PAGES;
    const COSTS: Costs = Costs {
        read: 100.0,
        soft: 10.0,
        stage: 1.0,
    };

    fn names() -> &'static [Name] {
        <Name as clap::ValueEnum>::value_variants()
    }

    fn trace(name: Name) -> Trace {
        Trace::of(name, 2 * MEMORY as u64, 2)
    }

    fn row<'c>(comparison: &'c Comparison, policy: &str) -> &'c Row {
        let found = comparison.rows.iter().find(|row| row.policy == policy);
        found.unwrap_or_else(|| panic!("no {policy}"))
    }

    #[test]
    fn nobody_is_better_than_opt() {
        for name in names() {
            for unit in [Unit::Range, Unit::Page] {
                let done = compare(&trace(*name), unit, MEMORY, COSTS);
                let opt = row(&done, "OPT *").counts.misses;
                for row in &done.rows {
                    assert!(
                        row.counts.misses >= opt,
                        "{name:?} {unit:?}: {}",
                        row.policy
                    );
                    assert!(row.counts.misses <= done.touches);
                }
            }
        }
    }

    /// Each rule keeps to the memory that it has, and loses nothing that it still has.
    #[test]
    fn misses_are_what_did_not_fit() {
        for name in names() {
            for unit in [Unit::Range, Unit::Page, Unit::Mixed] {
                let fits = compare(&trace(*name), unit, 2 * MEMORY + RANGE_PAGES, COSTS);
                for row in &fits.rows {
                    let counts = (row.counts.misses, row.counts.evictions);
                    assert_eq!(counts, (0, 0), "{name:?} {unit:?}: {}", row.policy);
                }
                let half = compare(&trace(*name), unit, MEMORY, COSTS);
                for row in &half.rows {
                    // Memory is full all the time: what comes in drives out as much.
                    let counts = row.counts;
                    let more = counts.misses.abs_diff(counts.evictions);
                    let slack = 2 * RANGE_PAGES as u64;
                    assert!(
                        more <= slack,
                        "{name:?} {unit:?}: {} {counts:?}",
                        row.policy
                    );
                }
            }
        }
    }

    #[test]
    fn known_sequences() {
        let misses = |touches: &[u32], capacity: usize| {
            let trace = Trace {
                name: String::new(),
                touches: touches.to_vec(),
                warm: 0,
                pages: 6,
            };
            let all = policies(&trace, 1, capacity).into_iter();
            let count = |(name, mut policy): Named| {
                touches.iter().for_each(|p| policy.touch(*p as usize));
                (name, policy.counts().misses)
            };
            all.map(count).collect::<std::collections::BTreeMap<_, _>>()
        };
        // Belady's own example, from 0: FIFO 9, LRU 10, OPT 7 with three frames.
        let got = misses(&[0, 1, 2, 3, 0, 1, 4, 0, 1, 2, 3, 4], 3);
        assert_eq!((got["fifo"], got["LRU *"], got["OPT *"]), (9, 10, 7));
        // And its anomaly: with four frames FIFO misses more.
        let got = misses(&[0, 1, 2, 3, 0, 1, 4, 0, 1, 2, 3, 4], 4);
        assert_eq!((got["fifo"], got["LRU *"], got["OPT *"]), (10, 8, 6));
        // What is used again and again stays with those who see it.
        let got = misses(&[0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0], 2);
        assert_eq!((got["CLOCK *"], got["LRU *"], got["OPT *"]), (6, 6, 6));
        assert_eq!(got["fifo"], 8);
    }

    #[test]
    fn walks_first_keeps_part_of_a_scan() {
        let scan = Trace::of(Name::Scan, 2 * MEMORY as u64, 8);
        let done = compare(&scan, Unit::Range, MEMORY, COSTS);
        let of = |policy| row(&done, policy).counts.misses;
        assert_eq!(of("fifo"), done.touches);
        assert_eq!(of("LRU *"), done.touches);
        assert!(of("walks first 1/8, 1:32") < done.touches * 3 / 4);
    }

    #[test]
    fn traces_from_files() {
        let file = std::env::temp_dir().join(format!("hugeswap-trace-{}", std::process::id()));
        fs::write(&file, "0\n513\n 514\n0\n").unwrap();
        let trace = Trace::read(&file).unwrap();
        assert_eq!((trace.pages, trace.touches.len()), (515, 4));
        assert_eq!(trace.in_ranges().touches, [0, 1, 0]);
        fs::write(&file, "0\nx\n").unwrap();
        assert!(Trace::read(&file).is_err_and(|e| e.contains(":2: 'x'")));
        fs::write(&file, "").unwrap();
        assert!(Trace::read(&file).is_err());
        fs::remove_file(&file).unwrap();
    }
}
