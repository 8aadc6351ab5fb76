//! Counters as JSON and as a line.

use std::time::{SystemTime, UNIX_EPOCH};

use hugeswap::stats::Stats;
use serde_json::{json, Map, Value};

use super::outside::Outside;
use super::sys::Status;
use super::unmanaged;
use crate::run_args::RunArgs;
use crate::size::Size;

/// Counted up when a key goes or changes its meaning; new keys don't count.
const SCHEMA: u32 = 1;

/// What is said of a run beside its counters.
pub struct Run<'a> {
    pub args: &'a RunArgs,
    pub program: i32,
    pub memory: u64,
    pub unmanaged: &'a unmanaged::Watch,
    pub outside: &'a Outside,
}

pub fn figures(run: &Run<'_>, s: &Stats, ended: Option<Status>) -> Value {
    let mut counters = Map::new();
    for (name, v) in s.each() {
        counters.insert(name.into(), json!(v));
    }
    let managed = s.peak_managed_bytes.get();
    let anon = managed + s.unmanaged_bytes.get();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let command: Vec<_> = run
        .args
        .program
        .iter()
        .map(|w| w.to_string_lossy())
        .collect();
    let reasons: Map<String, Value> = run
        .unmanaged
        .counts()
        .map(|(why, n)| (why.to_owned(), json!(n)))
        .collect();
    json!({
        "schema": SCHEMA,
        "unix_time": now.map_or(0.0, |t| t.as_millis() as f64 / 1000.0),
        "pid": run.program,
        "command": command,
        "memory_limit_bytes": run.memory,
        "ended": match ended {
            None => Value::Null,
            Some(Status::Exited(c)) => json!({ "exit_status": c }),
            Some(Status::Killed(n)) => json!({ "signal": n }),
        },
        "unmanaged_programs": run.unmanaged.count_all(),
        "unmanaged_reasons": reasons,
        "outside_bytes": run.outside.bytes(),
        "peak_outside_bytes": run.outside.peak(),
        "counters": counters,
        "managed_share": if anon == 0 { Value::Null } else {
            json!(managed as f64 / anon as f64)
        },
        "fault_latency_ns": {
            "count": s.fault_ns.count(),
            "p50": s.fault_ns.quantile(0.5),
            "p99": s.fault_ns.quantile(0.99),
            "max": s.fault_ns.max(),
        },
    })
}

pub fn summary(s: &Stats) -> String {
    let page = hugeswap::mm::PAGE_SIZE as u64;
    format!(
        "{} out, {} in ({} and {} huge pages), {} faults that read, peak {} resident",
        Size::from_bytes(s.pswpout.get() * page),
        Size::from_bytes(s.pswpin.get() * page),
        s.thp_swpout.get(),
        s.thp_swpin.get(),
        s.pgmajfault.get(),
        Size::from_bytes(s.peak_resident_bytes.get()),
    )
}
