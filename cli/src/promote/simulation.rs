//! `hugeswap promote --simulate`: rounds of a trace, and other sizes.

use std::path::Path;

use hugeswap_promote::simulate::{Choice, Round, Trace};
use serde::Serialize;

use hugeswap_host::columns::align;
use hugeswap_host::size::{Size, GIB};

/// The sizes of the files against those of the trace.
const FACTORS: [f64; 6] = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0];

#[derive(Serialize)]
struct Row {
    seconds: f64,
    promoted: u64,
    demoted: u64,
    fast: u64,
    measured: Option<f64>,
}

#[derive(Serialize)]
struct Other {
    bytes: u64,
    /// Seconds of the first round, of the last, and of all.
    first: f64,
    last: f64,
    all: f64,
    /// Of all without promotion, and with promotion at the first access.
    all_without: f64,
    all_at_first: f64,
    /// Bytes moved, up and down.
    moved: u64,
}

#[derive(Serialize)]
struct Document {
    rounds: Vec<Row>,
    sizes: Vec<Other>,
}

pub fn run(path: &Path, json: bool) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|err| format!("{}: {err}", path.display()))?;
    let trace = Trace::parse(&text).map_err(|err| format!("{}: {err}", path.display()))?;
    let document = Document {
        rounds: rounds(&trace),
        sizes: FACTORS
            .iter()
            .map(|&factor| other(&trace, factor))
            .collect(),
    };
    if json {
        let text = serde_json::to_string_pretty(&document).map_err(|err| err.to_string())?;
        outln!("{text}");
    } else {
        out!("{}", table(&document));
    }
    Ok(())
}

fn rounds(trace: &Trace) -> Vec<Row> {
    let row = |(index, round): (usize, &Round)| Row {
        seconds: round.seconds,
        promoted: round.promoted,
        demoted: round.demoted,
        fast: round.fast,
        measured: trace.expect.get(index).copied(),
    };
    trace.run().iter().enumerate().map(row).collect()
}

fn other(trace: &Trace, factor: f64) -> Other {
    let scaled = trace.scaled(factor);
    let sum = |rounds: &[Round]| rounds.iter().map(|round| round.seconds).sum();
    let rounds = scaled.run();
    let end = |round: Option<&Round>| round.map_or(0.0, |round| round.seconds);
    Other {
        bytes: scaled.largest,
        first: end(rounds.first()),
        last: end(rounds.last()),
        all: sum(&rounds),
        all_without: sum(&scaled.with(Choice::None).run()),
        all_at_first: sum(&scaled.with(Choice::First).run()),
        moved: rounds
            .iter()
            .map(|round| round.promoted + round.demoted)
            .sum(),
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.1}G", bytes as f64 / GIB as f64)
}

fn table(document: &Document) -> String {
    let words = |text: &[&str]| text.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let mut lines = vec![words(&[
        "round", "seconds", "measured", "off", "promoted", "demoted", "fast",
    ])];
    for (index, row) in document.rounds.iter().enumerate() {
        let (measured, off) = match row.measured {
            Some(measured) => (
                format!("{measured:.2}"),
                format!("{:+.1} %", (row.seconds / measured - 1.0) * 100.0),
            ),
            None => ("-".to_owned(), "-".to_owned()),
        };
        lines.push(vec![
            (index + 1).to_string(),
            format!("{:.2}", row.seconds),
            measured,
            off,
            gib(row.promoted),
            gib(row.demoted),
            gib(row.fast),
        ]);
    }
    let mut text = align(&lines);
    text += "\nother sizes, all rounds\n";
    let mut lines = vec![words(&[
        "file",
        "first",
        "last",
        "all",
        "without",
        "at first access",
        "moved",
    ])];
    for other in &document.sizes {
        lines.push(vec![
            Size::from_bytes(other.bytes).to_string(),
            format!("{:.2}", other.first),
            format!("{:.2}", other.last),
            format!("{:.1}", other.all),
            format!("{:.1}", other.all_without),
            format!("{:.1}", other.all_at_first),
            gib(other.moved),
        ]);
    }
    text + &align(&lines)
}
