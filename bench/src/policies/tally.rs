//! What things cost, and what came of a trace.

use serde::Serialize;

/// Microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// A read of one page.
    pub read: f64,
    /// Each page more.
    pub page: f64,
    /// A fault of the engine's, beside the read.
    pub soft: f64,
    /// Taking pages of a range out.
    pub stage: f64,
    /// Writing a page. The program goes on meanwhile, but for a part of it.
    pub write: f64,
}

impl Costs {
    pub const DISK: Costs = Costs {
        read: 45.0,
        page: 3.0,
        soft: 12.0,
        stage: 10.0,
        write: 2.0,
    };
}

/// What came of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Tally {
    /// Faults that had to read.
    pub reads: u64,
    pub pages_in: u64,
    /// Faults on pages that were in memory and not the program's: staged, or read ahead.
    pub soft: u64,
    /// Pages that were taken out for a second chance.
    pub staged: u64,
    pub evicted: u64,
    pub written: u64,
    /// The time that the program waits, by the model.
    pub micros: f64,
}
