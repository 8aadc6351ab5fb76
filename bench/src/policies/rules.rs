//! Rules of reclaim compared with one another: lists of several kinds, and those that see more than the engine can.

use serde::Serialize;

use super::queues::{Config, Queues, Refault, Split};
use super::reference::{Clock, Lru, Opt};
use super::rule::{Counts, Policy};
use super::trace::{Numbers, Trace, RANGE_PAGES};
use hugeswap_host::columns::align;

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
    let of_split = |ratio, split| Config {
        ratio,
        most: 0,
        split: Some(split),
    };
    let split = |ratio, young_part, refault, stays| {
        of_split(
            ratio,
            Split {
                young_part,
                refault,
                stays,
                walks: false,
            },
        )
    };
    let walks_first = |refault, stays| {
        of_split(
            32,
            Split {
                young_part: 0.05,
                refault,
                stays,
                walks: true,
            },
        )
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
        let active = split(ratio, 0.5, Refault::Active, 0);
        all.push((format!("refault distance 1:{ratio}"), active));
    }
    let more = [
        ("2Q", split(32, 0.25, Refault::Part(0.5), 0)),
        ("S3-FIFO", split(32, 0.1, Refault::Part(0.9), 0)),
        ("bimodal 1/16", split(32, 0.05, Refault::Never, 16)),
        ("walks first 1/8", walks_first(Refault::Never, 8)),
        ("walks first 1/32", walks_first(Refault::Never, 32)),
        (
            "walks first 1/8, regret",
            walks_first(Refault::Worth(0.75), 8),
        ),
    ];
    all.extend(more.map(|(name, config)| (format!("{name}, 1:32"), config)));
    all
}

fn policies(trace: &Numbers, group: usize, capacity: usize) -> Vec<Named> {
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
pub struct Costs {
    pub read: f64,
    pub soft: f64,
    pub stage: f64,
}

pub fn compare(trace: &Trace, unit: Unit, memory_pages: usize, costs: Costs) -> Comparison {
    let ranges;
    let name = trace.name.clone();
    let trace = &trace.numbers();
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
        workload: name,
        unit,
        touches: measured.len() as u64,
        rows,
    }
}

impl Comparison {
    pub fn table(&self) -> String {
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

#[cfg(test)]
mod tests {
    use super::super::trace::Name;
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
            let trace = Numbers {
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
}
