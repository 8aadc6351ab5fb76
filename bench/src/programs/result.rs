//! What was measured: rows, ratios, means, and the table.

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

use super::args::{Kernel, ProgramsArgs};
use super::install::Lack;
use super::list::Program;
use crate::machine::Machine;
use crate::report::median;
use hugeswap_host::size::MIB;

/// How a run ended, the better first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    Done,
    /// It was ended after the time that `--timeout` gives.
    TooLong,
    /// For memory, by the kernel.
    Killed,
    Failed,
}

#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub seconds: f64,
    pub end: End,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Faults that had to read.
    pub major_faults: u64,
    /// Of the group.
    pub peak_bytes: Option<u64>,
    /// The most that zram took beside the group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zram_bytes: Option<u64>,
    /// What hugeswap counted itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stats: Option<serde_json::Value>,
    #[serde(skip)]
    pub output: String,
    /// The most that was seen.
    #[serde(skip)]
    pub anonymous: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    None,
    Disk,
    Memory,
}

impl Device {
    /// Where a side of the kernel's swaps to.
    pub fn of(kernel: Kernel) -> Device {
        match kernel {
            Kernel::Zram => Device::Memory,
            Kernel::File | Kernel::Zswap => Device::Disk,
        }
    }
}

/// One side of one program.
#[derive(Debug, Serialize)]
pub struct Column {
    pub name: String,
    pub device: Device,
    /// Medians.
    pub seconds: f64,
    pub major_faults: f64,
    /// The highest, with what zram took.
    pub peak_bytes: Option<u64>,
    /// Of the worst run.
    pub end: End,
    /// How many times as fast hugeswap is. A run that was ended counts as done at that time. `None`
    /// where either has no time.
    pub times: Option<f64>,
    pub runs: Vec<Run>,
}

impl Column {
    pub fn of(name: String, device: Device, runs: Vec<Run>) -> Column {
        let all = |get: fn(&Run) -> f64| median(runs.iter().map(get)).unwrap_or(0.0);
        Column {
            name,
            device,
            seconds: all(|run| run.seconds),
            major_faults: all(|run| run.major_faults as f64),
            peak_bytes: runs
                .iter()
                .filter_map(|run| Some(run.peak_bytes? + run.zram_bytes.unwrap_or(0)))
                .max(),
            end: runs.iter().map(|run| run.end).max().unwrap_or(End::Failed),
            times: None,
            runs,
        }
    }

    fn has_time(&self) -> bool {
        self.end <= End::TooLong
    }

    fn time(&self) -> String {
        match self.end {
            End::Done => format!("{:.1} s", self.seconds),
            End::TooLong => format!("> {:.0} s", self.seconds),
            End::Killed => "killed".to_owned(),
            End::Failed => "failed".to_owned(),
        }
    }

    fn cell(&self) -> String {
        let time = self.time();
        let faults = self.major_faults / 1e3;
        let places = usize::from(faults < 10.0);
        let peak = self
            .peak_bytes
            .map_or("-".into(), |bytes| format!("{}M", bytes / MIB));
        format!("{time} {:>5} {peak:>5}", format!("{faults:.places$}k"))
    }
}

/// One program.
#[derive(Debug, Serialize)]
pub struct Row {
    pub program: &'static str,
    pub about: &'static str,
    pub need_bytes: u64,
    pub limit_bytes: u64,
    /// No limit, hugeswap, then the kernel's.
    pub sides: Vec<Column>,
    /// The least `times` of the kernel's settings on a disk.
    pub times: Option<f64>,
}

impl Row {
    pub fn of(program: &Program, need: u64, limit: u64, mut sides: Vec<Column>) -> Row {
        let ours = sides.get(1).filter(|ours| ours.has_time());
        let ours = ours.map(|ours| (ours.seconds, ours.end));
        for side in sides.iter_mut().skip(2).filter(|side| side.has_time()) {
            // Of two that were ended neither is known to be faster.
            side.times = ours
                .filter(|(_, end)| (*end, side.end) != (End::TooLong, End::TooLong))
                .map(|(seconds, _)| side.seconds / seconds);
        }
        let of_disk = sides.iter().filter(|side| side.device == Device::Disk);
        Row {
            program: program.name,
            about: program.about,
            need_bytes: need,
            limit_bytes: limit,
            times: of_disk.filter_map(|side| side.times).min_by(f64::total_cmp),
            sides,
        }
    }

    fn ours(&self) -> End {
        self.sides.get(1).map_or(End::Failed, |ours| ours.end)
    }

    fn kernel(&self) -> &[Column] {
        self.sides.get(2..).unwrap_or(&[])
    }

    pub fn is_lost(&self) -> bool {
        self.lost().is_some()
    }

    /// What hugeswap has lost, in words.
    fn lost(&self) -> Option<String> {
        let ended = match self.ours() {
            End::Done => {
                return self
                    .times
                    .filter(|times| *times < GOAL)
                    .map(|times| format!("{} ({times:.2})", self.program));
            }
            End::TooLong => "not done in time",
            End::Killed => "killed",
            End::Failed => "failed",
        };
        Some(format!("{} ({ended})", self.program))
    }

    /// For who watches.
    pub fn line(&self) -> String {
        let sides: Vec<String> = self
            .sides
            .iter()
            .map(|side| format!("{} {}", side.name, side.time()))
            .collect();
        format!("{}: {}", self.program, sides.join(", "))
    }
}

/// Of a program, against the best of the kernel's settings on a disk, at least.
pub const GOAL: f64 = 0.95;

/// Over the programs in which both have a time.
#[derive(Debug, Serialize)]
pub struct Mean {
    pub against: String,
    /// Geometric.
    pub times: f64,
    pub lowest: f64,
    pub programs: usize,
}

/// What was not measured.
#[derive(Debug, Serialize)]
pub struct LeftOut {
    pub what: String,
    pub why: String,
    /// Would `--install` cure it?
    pub installable: bool,
}

impl LeftOut {
    pub fn lacking(program: &str, lacks: &[Lack]) -> LeftOut {
        let names: Vec<String> = lacks.iter().map(Lack::to_string).collect();
        LeftOut {
            what: program.to_owned(),
            why: format!("needs {}", names.join(", ")),
            installable: true,
        }
    }

    pub fn failed(program: &str, run: &Run) -> LeftOut {
        let why = match &run.message {
            Some(message) => format!("without a limit it {message}"),
            None => "without a limit it was killed for memory".to_owned(),
        };
        LeftOut {
            what: program.to_owned(),
            why,
            installable: false,
        }
    }

    pub fn side(kernel: Kernel, why: String) -> LeftOut {
        let name = kernel.to_possible_value();
        LeftOut {
            what: name.map_or_else(String::new, |v| v.get_name().to_owned()),
            why,
            installable: false,
        }
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

/// What `--json` writes.
#[derive(Debug, Serialize)]
pub struct Document {
    pub test: &'static str,
    pub swap: String,
    pub size_bytes: u64,
    pub share: f64,
    pub runs: u32,
    pub machine: Machine,
    pub programs: Vec<Row>,
    /// Each of the kernel's sides, and last the best of those on a disk.
    pub means: Vec<Mean>,
    pub left_out: Vec<LeftOut>,
}

impl Document {
    pub fn begin(args: &ProgramsArgs) -> Document {
        Document {
            test: "programs",
            swap: String::new(),
            size_bytes: args.size.bytes(),
            share: args.share,
            runs: args.runs,
            machine: Machine::here(),
            programs: Vec::new(),
            means: Vec::new(),
            left_out: Vec::new(),
        }
    }

    pub fn sum_up(&mut self) {
        let kernel = self.programs.first().map_or(&[][..], Row::kernel);
        let names: Vec<String> = kernel.iter().map(|side| side.name.clone()).collect();
        let of_side = names.iter().enumerate().filter_map(|(i, name)| {
            let times = self
                .programs
                .iter()
                .filter_map(|row| row.kernel().get(i)?.times);
            Mean::of(name.clone(), times.collect())
        });
        let best = self.programs.iter().filter_map(|row| row.times).collect();
        let best = Mean::of("the best on disk".to_owned(), best);
        self.means = of_side.chain(best).collect();
    }

    /// Lines under the table.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for mean in &self.means {
            notes.push(format!(
                "times as fast as {}, of {}: geometric mean {:.2}, lowest {:.2}",
                mean.against, mean.programs, mean.times, mean.lowest
            ));
        }
        let lost: Vec<String> = self.programs.iter().filter_map(Row::lost).collect();
        if !lost.is_empty() {
            notes.push(format!("hugeswap loses: {}", lost.join(", ")));
        }
        for left_out in &self.left_out {
            notes.push(format!("left out: {left_out}"));
        }
        if self.left_out.iter().any(|l| l.installable) {
            notes.push("--install installs what is missing".to_owned());
        }
        notes
    }
}

impl Mean {
    fn of(against: String, times: Vec<f64>) -> Option<Mean> {
        let lowest = times.iter().copied().min_by(f64::total_cmp)?;
        let logarithms: f64 = times.iter().map(|t| t.ln()).sum();
        Some(Mean {
            against,
            times: (logarithms / times.len() as f64).exp(),
            lowest,
            programs: times.len(),
        })
    }
}

/// The table's lines, the first of them the heads of the columns.
pub fn cells(document: &Document) -> Vec<Vec<String>> {
    let Some(first) = document.programs.first() else {
        return Vec::new();
    };
    let mut head: Vec<String> = ["", "needs", "limit"].map(String::from).into();
    for (i, side) in first.sides.iter().enumerate() {
        head.push(side.name.clone());
        if i >= 2 {
            head.push("times".into());
        }
    }
    let mut lines = vec![head];
    for row in &document.programs {
        let mut line = vec![
            row.program.to_owned(),
            format!("{}M", row.need_bytes / MIB),
            format!("{}M", row.limit_bytes / MIB),
        ];
        for (i, side) in row.sides.iter().enumerate() {
            match i {
                0 => line.push(format!("{:.1} s", side.seconds)),
                _ => line.push(side.cell()),
            }
            if i >= 2 {
                line.push(times(row.ours(), side));
            }
        }
        lines.push(line);
    }
    lines
}

/// "1.20", or a bound where one of the two was ended.
fn times(ours: End, side: &Column) -> String {
    let bound = match (ours, side.end) {
        (End::TooLong, _) => "< ",
        (_, End::TooLong) => "> ",
        _ => "",
    };
    side.times
        .map_or("-".into(), |times| format!("{bound}{times:.2}"))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::programs::list;

    fn column(name: &str, device: Device, seconds: f64, end: End) -> Column {
        let run = Run {
            seconds,
            end,
            message: None,
            major_faults: 1500,
            peak_bytes: Some(100 * MIB),
            zram_bytes: (device == Device::Memory).then_some(20 * MIB),
            stats: None,
            output: String::new(),
            anonymous: 0,
        };
        Column::of(name.to_owned(), device, vec![run])
    }

    fn row(program: &'static str, ours: (f64, End), file: (f64, End), zram: (f64, End)) -> Row {
        let program = Program {
            name: program,
            ..list::PLAIN
        };
        let sides = vec![
            column("no limit", Device::None, 1.0, End::Done),
            column("hugeswap", Device::Disk, ours.0, ours.1),
            column("swap file", Device::Disk, file.0, file.1),
            column("zram lz4", Device::Memory, zram.0, zram.1),
        ];
        Row::of(&program, 200 * MIB, 100 * MIB, sides)
    }

    pub fn document() -> Document {
        let done = |seconds| (seconds, End::Done);
        let ended = (120.0, End::TooLong);
        let mut document = Document {
            test: "programs",
            swap: "/x".into(),
            size_bytes: 200 * MIB,
            share: 0.5,
            runs: 1,
            machine: Machine::here(),
            programs: vec![
                row("won", done(2.0), done(4.0), done(1.0)),
                row("lost", done(4.0), done(2.0), (9.0, End::Killed)),
                row("endless", ended, done(12.0), done(12.0)),
                row("both", ended, ended, done(12.0)),
                row("gone", (1.0, End::Killed), done(12.0), done(12.0)),
                row("alone", done(12.0), ended, ended),
            ],
            means: Vec::new(),
            left_out: vec![LeftOut::lacking("xz", &[Lack::Package("xz-utils")])],
        };
        document.sum_up();
        document
    }

    #[test]
    fn who_was_ended_is_counted_and_who_was_killed_is_named() {
        let document = document();
        let times: Vec<_> = document.programs.iter().map(|row| row.times).collect();
        assert_eq!(
            times,
            [Some(2.0), Some(0.5), Some(0.1), None, None, Some(10.0)]
        );
        let of_file = &document.means[0];
        assert_eq!((of_file.programs, of_file.lowest), (4, 0.1));
        assert!((of_file.times - 1.0).abs() < 1e-9);
        let notes = document.notes();
        let lost = "hugeswap loses: lost (0.50), endless (not done in time), both (not done in time), gone (killed)";
        assert!(notes.iter().any(|note| note == lost), "{notes:?}");
        assert!(notes
            .iter()
            .any(|note| note == "left out: xz: needs the package xz-utils"));
        let cells = cells(&document);
        assert_eq!(
            cells[3][3..7],
            [
                "1.0 s",
                "> 120 s  1.5k  100M",
                "12.0 s  1.5k  100M",
                "< 0.10"
            ]
        );
        assert_eq!(cells[2][7..], ["killed  1.5k  120M", "-"]);
        assert_eq!(cells[6][6], "> 10.00");
    }
}
