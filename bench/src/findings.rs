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
            quick,
            verdicts: Vec::new(),
            tests: Vec::new(),
            programs: None,
            fio_mixed_read_rate: None,
            failures: Vec::new(),
        }
    }

    /// Nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.tests.is_empty() && self.programs.is_none() && self.fio_mixed_read_rate.is_none()
    }
}
