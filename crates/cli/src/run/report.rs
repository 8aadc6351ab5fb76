//! Counters as JSON and as a line.

use std::fs;
use std::io;
use std::path::Path;

use hugeswap::stats::Stats;
use serde_json::{json, Map, Value};

use super::sys::Status;
use crate::size::Size;

fn value(s: &Stats, memory: u64, ended: Option<Status>) -> Value {
    let mut counters = Map::new();
    for (name, v) in s.each() {
        counters.insert(name.into(), json!(v));
    }
    let managed = s.peak_managed_bytes.get();
    let anon = managed + s.unmanaged_bytes.get();
    json!({
        "memory_limit_bytes": memory,
        "ended": match ended {
            None => Value::Null,
            Some(Status::Exited(c)) => json!({ "exit_status": c }),
            Some(Status::Killed(n)) => json!({ "signal": n }),
        },
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

/// Replaces the file at once, so that a reader never sees half of it.
pub fn write(path: &Path, total: &Stats, memory: u64, ended: Option<Status>) -> io::Result<()> {
    let text = format!("{:#}\n", value(total, memory, ended));
    if path.exists() && !path.is_file() {
        return fs::write(path, text);
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    fs::write(&name, text)?;
    fs::rename(&name, path)
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
