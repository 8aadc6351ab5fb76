//! What all tests have found.

use serde::Serialize;

use super::machine::Machine;
use super::{programs, report};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    Disk,
    Memory,
}

/// One figure that has to be at least `target`.
#[derive(Debug, Serialize)]
pub struct Verdict {
    pub what: String,
    pub medium: Medium,
    pub threads: u32,
    /// Compared with what.
    pub against: String,
    pub ratio: f64,
    pub target: f64,
}

/// What a verdict on the disk itself is against.
pub const FIO: &str = "fio, 2 MiB mixed";

impl Verdict {
    /// Against what the disk can do, and not against the kernel's swap.
    pub fn is_of_fio(&self) -> bool {
        self.against == FIO
    }

    pub fn reached(&self) -> bool {
        self.ratio >= self.target
    }
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub machine: Machine,
    /// Of the sources that this was built from.
    pub commit: &'static str,
    pub seconds_since_1970: u64,
    /// What was asked for.
    pub command: String,
    pub quick: bool,
    pub verdicts: Vec<Verdict>,
    pub tests: Vec<report::Document>,
    pub programs: Option<programs::Document>,
    pub fio_mixed_read_rate: Option<f64>,
    /// What could not be measured, and why.
    pub failures: Vec<String>,
}

impl Report {
    pub fn begin(quick: bool) -> Report {
        Report {
            machine: Machine::here(),
            commit: option_env!("HUGESWAP_COMMIT").unwrap_or("unknown"),
            seconds_since_1970: std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            command: command(),
            quick,
            verdicts: Vec::new(),
            tests: Vec::new(),
            programs: None,
            fio_mixed_read_rate: None,
            failures: Vec::new(),
        }
    }

    /// When, what, and where: for the head of a page.
    pub fn heading(&self) -> String {
        let machine = &self.machine;
        let thp = machine
            .transparent_hugepage
            .as_deref()
            .unwrap_or("not there");
        format!(
            "{}, hugeswap {} ({}). Linux {}, {} processors ({}), {:.0} GiB of memory, huge pages {thp}.",
            date(self.seconds_since_1970),
            machine.version,
            self.commit,
            machine.kernel,
            machine.processors,
            machine.processor,
            machine.memory_bytes as f64 / (1u64 << 30) as f64,
        )
    }

    /// What is beside the tests worth a line: a rough run, what the disk can do, what was not measured.
    pub fn remarks(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.quick {
            lines.push("A quick run, with small sizes: the figures are rough.".to_owned());
        }
        if let Some(rate) = self.fio_mixed_read_rate {
            lines.push(format!(
                "fio, with requests of 2 MiB, half of them writes: {:.2} GB/s read, and as much written.",
                rate / 1e9
            ));
        }
        let failures = self.failures.iter();
        lines.extend(failures.map(|failure| format!("Not measured: {failure}")));
        lines
    }

    /// The verdicts as a table; the first line has the heads of the columns.
    pub fn summary(&self) -> Vec<Vec<String>> {
        let head = ["", "on", "threads", "against", "times", "at least", ""];
        let mut lines = vec![head.map(String::from).to_vec()];
        for verdict in &self.verdicts {
            lines.push(vec![
                verdict.what.clone(),
                format!("{:?}", verdict.medium).to_lowercase(),
                verdict.threads.to_string(),
                verdict.against.clone(),
                format!("{:.2}", verdict.ratio),
                format!("{:.2}", verdict.target),
                if verdict.reached() { "" } else { "falls short" }.to_owned(),
            ]);
        }
        lines
    }

    /// Nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.tests.is_empty() && self.programs.is_none() && self.fio_mixed_read_rate.is_none()
    }
}

/// This command, as it was typed, but for where the program lies.
fn command() -> String {
    let words = std::env::args_os().skip(1);
    words.fold("hugeswap".to_owned(), |line, word| {
        format!("{line} {}", word.to_string_lossy())
    })
}

/// Of the proleptic Gregorian calendar, UTC.
fn date(seconds: u64) -> String {
    let mut day = seconds / 86_400;
    let mut year = 1970;
    let leap = |year: u64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let months = [
        31,
        28 + u64::from(leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let mut month = 0;
    while day >= months[month] {
        day -= months[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02}", month + 1, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(951_782_400), "2000-02-29");
        assert_eq!(date(1_767_225_599), "2025-12-31");
    }
}
