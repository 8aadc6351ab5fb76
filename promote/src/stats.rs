//! The counters, under the kernel's names where it has them.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::place::Failed;

/// Sums since the start, in pages where nothing else is said.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    /// Sampled accesses to the page cache (records, not pages).
    pub numa_hint_page_cache: u64,
    /// Hot pages that were on the fast node already.
    pub numa_hint_page_cache_local: u64,
    /// Hot pages on a slow node whose migration was tried.
    pub pgpromote_candidate: u64,
    /// Of these, on the fast node afterwards.
    pub pgpromote_success: u64,
    /// Pages moved by us, up and down.
    pub numa_pages_migrated: u64,
    /// Cold pages moved to the slow node to make room.
    pub pgdemote_proactive: u64,
    /// Candidates that stayed where they were, by cause.
    pub failed: Failed,
    /// Hot pages that had to wait for the rate limit.
    pub rate_limited: u64,
    /// How often the fast node had no room.
    pub no_room: u64,
    /// How often promotion was stopped because it did no good, and whether it
    /// is stopped now.
    pub backoffs: u64,
    pub backing_off: bool,
    /// Reads from a disk that looking has caused: pages evicted meanwhile.
    pub disk_reads: u64,
    /// Files that were not opened, by cause; each try counts.
    pub skipped_files: BTreeMap<&'static str, u64>,
    /// Records that the kernel had no room for.
    pub lost_samples: u64,
    /// Activated pages of which it is not known what file they are of.
    pub unknown_pages: u64,
    /// Hot blocks that were dropped because their queue was full.
    pub queue_full: u64,
    /// How often the memory of accesses was cut short.
    pub table_full: u64,
    /// Blocks that are remembered now.
    pub table_blocks: usize,
    /// One of so many accesses was recorded in the last interval.
    pub sample_period: u64,
    /// The share of the last interval in which the tracepoint was on.
    pub sample_duty: f64,
    /// What sampling has cost in the last interval, as a share of the busiest
    /// processor's time, from the measured cost of a hit and of a record.
    pub overhead_sampling: f64,
    /// Processor time of hugeswap itself in the last interval, as a share of
    /// one processor: all of it, and without that of moving pages.
    pub overhead_total: f64,
    pub overhead_daemon: f64,
    /// Of these: what is done in any case (waking, switching the events, reports), and looking for
    /// pages.
    pub overhead_fixed: f64,
    pub overhead_looking: f64,
    /// Seconds from one phase of watching to the next. More than the interval: to switch the
    /// events costs too much to do it each time.
    pub watch_every: f64,
    /// Seconds of processor time that it costs to switch them on and off.
    pub switch_cost: f64,
    /// Processors that the last phase watched, and that there are.
    pub processors_watched: usize,
    pub processors: usize,
    /// File pages on the slow nodes.
    pub slow_file_pages: u64,
    /// Seconds since the start.
    pub seconds: f64,
}
