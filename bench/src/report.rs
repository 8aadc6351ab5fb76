//! A test and its results: medians, and a table of them.

use hugeswap_host::columns::align;
use serde::Serialize;

use super::machine::Machine;
use super::swap_run::{Figures, Percentiles};
use super::workload;

/// What `--json` writes.
#[derive(Debug, Serialize)]
pub struct Document {
    pub test: &'static str,
    pub processes: u32,
    pub threads: u32,
    pub busy_threads: u32,
    pub rounds: u64,
    /// In a round after the first, of all processes and threads.
    pub accesses: u64,
    pub writes_percent: u8,
    /// The ratio, where the data was made for a codec.
    pub compressible: Option<f64>,
    /// As `run --compress` has it, of hugeswap's side.
    pub compress: String,
    pub data_bytes: u64,
    pub memory_bytes: u64,
    /// Whether that is all that a side has, zram's and hugeswap's own memory too.
    pub same_total: bool,
    pub swap: String,
    pub machine: Machine,
    pub contestants: Vec<Column>,
    #[serde(skip)]
    pub heading: String,
}

/// One contestant's runs.
#[derive(Debug, Serialize)]
pub struct Column {
    pub name: String,
    pub median: Median,
    /// hugeswap's rate divided by this one's; none for hugeswap itself.
    pub ratio: Option<Ratio>,
    pub runs: Vec<Figures>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Median {
    pub first_rate: f64,
    pub later_rate: Option<f64>,
    pub access_rate: Option<f64>,
    pub swap_in_rate: Option<f64>,
    pub swap_out_rate: Option<f64>,
    pub huge_share: f64,
    pub minor_faults: f64,
    pub major_faults: f64,
    pub peak_bytes: Option<f64>,
    /// Of the whole machine.
    pub function_calls: Option<f64>,
    pub instructions_per_cycle: Option<f64>,
    pub latency: Option<Percentiles>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    pub first: f64,
    pub later: Option<f64>,
}

/// Of an even number the mean of the middle two. `None` for none at all.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

impl Median {
    pub fn of(runs: &[Figures]) -> Median {
        let all = |get: fn(&Figures) -> f64| median(runs.iter().map(get)).unwrap_or(0.0);
        let some = |get: fn(&Figures) -> Option<f64>| median(runs.iter().filter_map(get));
        Median {
            first_rate: all(|run| run.first_rate),
            later_rate: some(|run| run.later_rate),
            access_rate: some(|run| run.access_rate),
            swap_in_rate: some(|run| run.swap_in_rate),
            swap_out_rate: some(|run| run.swap_out_rate),
            huge_share: all(|run| run.huge_share),
            minor_faults: all(|run| run.minor_faults as f64),
            major_faults: all(|run| run.major_faults as f64),
            peak_bytes: some(|run| run.peak_bytes.map(|bytes| bytes as f64)),
            function_calls: some(|run| run.seen.function_calls.map(|n| n as f64)),
            instructions_per_cycle: some(|run| run.seen.ipc),
            latency: percentiles(runs),
        }
    }
}

fn percentiles(runs: &[Figures]) -> Option<Percentiles> {
    let of = |get: fn(&Percentiles) -> f64| {
        median(runs.iter().filter_map(|run| run.latency.as_ref()).map(get))
    };
    Some(Percentiles {
        p50: of(|l| l.p50)?,
        p90: of(|l| l.p90)?,
        p99: of(|l| l.p99)?,
        p999: of(|l| l.p999)?,
        max: of(|l| l.max)?,
    })
}

/// The first column is hugeswap's where it took part.
pub fn columns(contestants: Vec<(String, Vec<Figures>)>, hugeswap: Option<&str>) -> Vec<Column> {
    let mut columns: Vec<Column> = contestants
        .into_iter()
        .map(|(name, runs)| Column {
            name,
            median: Median::of(&runs),
            ratio: None,
            runs,
        })
        .collect();
    let ours = columns
        .iter()
        .find(|column| Some(column.name.as_str()) == hugeswap);
    if let Some(ours) = ours.map(|column| column.median.clone()) {
        for column in &mut columns {
            if Some(column.name.as_str()) != hugeswap {
                column.ratio = Some(Ratio {
                    first: ours.first_rate / column.median.first_rate,
                    later: ours
                        .later_rate
                        .zip(column.median.later_rate)
                        .map(|(ours, theirs)| ours / theirs),
                });
            }
        }
    }
    columns
}

type Cell = fn(&Column) -> Option<String>;

/// What says how fast it went: bytes of a walk, pages of all else, times of single faults.
fn rate_rows(test: &Document) -> Vec<(&'static str, Cell)> {
    let first: (_, Cell) = ("first round, GB/s", |c| {
        Some(gigabytes(c.median.first_rate))
    });
    let later: (_, Cell) = ("hugeswap is faster, later", |c| {
        c.ratio.and_then(|r| r.later).map(times)
    });
    let workload = workload::by_name(test.test);
    if workload.is_some_and(|w| w.timed) {
        return vec![
            ("fault, p50, µs", |c| {
                c.median.latency.map(|l| micros(l.p50))
            }),
            ("p90, µs", |c| c.median.latency.map(|l| micros(l.p90))),
            ("p99, µs", |c| c.median.latency.map(|l| micros(l.p99))),
            ("p99.9, µs", |c| c.median.latency.map(|l| micros(l.p999))),
            ("longest, µs", |c| c.median.latency.map(|l| micros(l.max))),
            ("hugeswap is faster, mean", later.1),
        ];
    }
    if workload.is_some_and(|w| w.is_sequential()) {
        return vec![
            first,
            ("later rounds, GB/s", |c| c.median.later_rate.map(gigabytes)),
            ("hugeswap is faster, first", |c| {
                c.ratio.map(|r| times(r.first))
            }),
            later,
        ];
    }
    vec![
        first,
        ("later rounds, 1000 pages/s", |c| {
            c.median
                .access_rate
                .map(|rate| format!("{:.1}", rate / 1e3))
        }),
        later,
    ]
}

pub fn table(test: &Document) -> String {
    align(&cells(test))
}

/// The table's lines, the first of them the heads of the columns.
pub fn cells(test: &Document) -> Vec<Vec<String>> {
    let columns = &test.contestants;
    let mut rows = rate_rows(test);
    let others: [(&str, Cell); 8] = [
        ("swap-in, GB/s", |c| c.median.swap_in_rate.map(gigabytes)),
        ("swap-out, GB/s", |c| c.median.swap_out_rate.map(gigabytes)),
        ("huge pages kept", |c| {
            Some(format!("{:.0} %", c.median.huge_share * 100.0))
        }),
        ("minor faults", |c| {
            Some(format!("{:.0}", c.median.minor_faults))
        }),
        ("major faults", |c| {
            Some(format!("{:.0}", c.median.major_faults))
        }),
        ("peak of the group, MiB", |c| {
            c.median.peak_bytes.map(mebibytes)
        }),
        ("function-call interrupts", |c| {
            c.median.function_calls.map(|n| format!("{n:.0}"))
        }),
        ("instructions per cycle", |c| {
            c.median.instructions_per_cycle.map(|n| format!("{n:.2}"))
        }),
    ];
    rows.extend(others);
    let mut lines = vec![vec![String::new()]];
    lines[0].extend(columns.iter().map(|column| column.name.clone()));
    for (name, cell) in rows {
        let cells: Vec<_> = columns.iter().map(cell).collect();
        if cells.iter().any(Option::is_some) {
            let mut line = vec![name.to_owned()];
            line.extend(
                cells
                    .into_iter()
                    .map(|cell| cell.unwrap_or_else(|| "-".to_owned())),
            );
            lines.push(line);
        }
    }
    lines
}

fn gigabytes(rate: f64) -> String {
    format!("{:.2}", rate / 1e9)
}

fn times(ratio: f64) -> String {
    if ratio < 3.0 {
        format!("{ratio:.2} x")
    } else {
        format!("{ratio:.1} x")
    }
}

fn micros(time: f64) -> String {
    format!("{time:.0}")
}

fn mebibytes(bytes: f64) -> String {
    format!("{:.0}", bytes / (1 << 20) as f64)
}

#[cfg(test)]
mod tests {
    use super::super::machine::Machine;
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0]), Some(2.5));
    }

    fn run(rate: f64) -> Figures {
        Figures {
            first_rate: rate,
            later_rate: Some(2.0 * rate),
            access_rate: Some(rate / 1e6),
            swap_in_rate: None,
            swap_out_rate: Some(rate),
            huge_share: 0.5,
            minor_faults: 1,
            major_faults: 2,
            peak_bytes: Some(512 << 20),
            latency: None,
            latency_curve: Vec::new(),
            seconds: 1.0,
            rounds: Vec::new(),
            stats: None,
            seen: Default::default(),
        }
    }

    #[test]
    fn a_table() {
        let contestants = vec![
            ("hugeswap".to_owned(), vec![run(4e9), run(5e9), run(6e9)]),
            ("zram".to_owned(), vec![run(0.5e9)]),
        ];
        let columns = columns(contestants, Some("hugeswap"));
        let mut test = Document {
            test: "swap-w-seq",
            processes: 1,
            threads: 1,
            busy_threads: 0,
            rounds: 2,
            accesses: 2,
            writes_percent: 100,
            compressible: None,
            compress: "off".to_owned(),
            data_bytes: 1 << 30,
            memory_bytes: 1 << 29,
            same_total: false,
            swap: "ram".into(),
            machine: Machine::here(),
            contestants: columns,
            heading: String::new(),
        };
        let columns = &test.contestants;
        assert_eq!(columns[0].ratio, None);
        assert_eq!(
            columns[1].ratio,
            Some(Ratio {
                first: 10.0,
                later: Some(10.0)
            })
        );
        let expected = "                           hugeswap    zram
first round, GB/s              5.00    0.50
later rounds, GB/s            10.00    1.00
hugeswap is faster, first         -  10.0 x
hugeswap is faster, later         -  10.0 x
swap-out, GB/s                 5.00    0.50
huge pages kept                50 %    50 %
minor faults                      1       1
major faults                      2       2
peak of the group, MiB          512     512
";
        assert_eq!(table(&test), expected);
        test.test = "swap-zipf";
        let text = table(&test);
        let line = text.lines().find(|l| l.contains("1000 pages/s")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[words.len() - 2..], ["5.0", "0.5"]);
    }
}
