//! What a rule of reclaim is, and what is counted of it.

use serde::Serialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Counts {
    pub misses: u64,
    /// Touches of what was in staging.
    pub soft: u64,
    /// Ranges moved to staging.
    pub staged: u64,
    pub evictions: u64,
}

pub trait Policy {
    fn touch(&mut self, page: usize);
    fn counts(&mut self) -> &mut Counts;
}
