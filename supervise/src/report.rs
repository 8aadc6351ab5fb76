//! Counters as JSON and as a line.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hugeswap_control::stats::Stats;
use hugeswap_seal::Mode;
use serde_json::{json, Map, Value};

use super::groups;
use super::outside::Outside;
use super::sys::Status;
use super::unmanaged;
use crate::run_args::RunArgs;
use hugeswap_host::size::Size;

/// Counted up when a key goes or changes its meaning; new keys don't count.
const SCHEMA: u32 = 1;

/// What is said of a run beside its counters.
pub struct Run<'a> {
    pub args: &'a RunArgs,
    pub program: i32,
    pub memory: u64,
    pub unmanaged: &'a unmanaged::Watch,
    pub outside: &'a Outside,
    pub latency_held: Duration,
    pub seal_mode: Mode,
}

fn counters(s: &Stats) -> Map<String, Value> {
    s.each().map(|(name, v)| (name.into(), json!(v))).collect()
}

fn latencies(s: &Stats) -> Value {
    json!({
        "count": s.fault_ns.count(),
        "p50": s.fault_ns.quantile(0.5),
        "p99": s.fault_ns.quantile(0.99),
        "max": s.fault_ns.max(),
    })
}

fn group((figures, s): &(groups::Figures, Box<Stats>)) -> Value {
    json!({
        "name": figures.path,
        "memory_limit_bytes": if figures.bytes == groups::UNLIMITED { Value::Null } else {
            json!(figures.bytes)
        },
        "processes": figures.processes,
        "outside_bytes": figures.outside,
        "counters": counters(s),
        "fault_latency_ns": latencies(s),
    })
}

/// `groups`: with their counters.
pub fn figures(
    run: &Run<'_>,
    s: &Stats,
    groups: &[(groups::Figures, Box<Stats>)],
    ended: Option<Status>,
) -> Value {
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
        "cpu_latency_held_ms": run.latency_held.as_millis() as u64,
        "counters": counters(s),
        "encrypted": run.seal_mode == Mode::Encrypt,
        "groups": groups.iter().map(group).collect::<Vec<_>>(),
        "managed_share": if anon == 0 { Value::Null } else {
            json!(managed as f64 / anon as f64)
        },
        "fault_latency_ns": latencies(s),
    })
}

pub fn summary(s: &Stats) -> String {
    let page = hugeswap_mm::PAGE_SIZE as u64;
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

/// What the program's time went into, as far as that was hugeswap's. Waits of several threads add up.
pub fn limited_by(s: &Stats, elapsed: Duration) -> String {
    let (reads, others) = (s.pgmajfault.get(), s.pgminfault.get());
    // Each that did not read has a time, and each read that a fault began; reads take longer.
    let timed_reads = s.fault_ns.count().saturating_sub(others);
    let in_reads = s.fault_ns.sum_of_largest(timed_reads);
    let in_others = s.fault_ns.sum_of_largest(u64::MAX) - in_reads;
    let percent = |ns: u64| ns as f64 / (elapsed.as_nanos() as f64).max(1.0) * 100.0;
    if percent(in_reads + in_others) < 5.0 {
        return format!(
            "hardly limited: {:.1} % of the time in faults",
            percent(in_reads + in_others)
        );
    }
    let orders: u64 = s
        .each()
        .filter(|(name, _)| name.ends_with("/swpin"))
        .map(|(_, n)| n)
        .sum();
    let single = tenths(s.swpin_order_0.get(), orders);
    let what = match (in_reads >= in_others, single > 5) {
        (true, true) => "waiting for single reads",
        (true, false) => "waiting for reads",
        (false, _) if s.anon_fault_alloc.get() * 2 > others => "first touches",
        (false, _) => "faults without a read",
    };
    let mut line = format!(
        "limited by {what}: {:.0} % of the time in {reads} faults that read, {:.0} % in {others} others",
        percent(in_reads),
        percent(in_others)
    );
    if percent(in_reads + in_others) > 100.0 {
        line += " (of several threads together)";
    }
    let clean = s.swap_clean.get();
    let left = s.pswpout.get() + clean;
    let shares = [
        (single, "reads are of one page"),
        (tenths(s.pswpin.get(), left), "pages that leave come back"),
        (tenths(clean, left), "pages leave without a write"),
        (
            tenths(s.allocstall.get(), reads + others),
            "faults wait until memory is free",
        ),
    ];
    for (tenths, of_what) in shares.into_iter().filter(|(tenths, _)| *tenths > 0) {
        line += &format!("; {tenths} of 10 {of_what}");
    }
    match s.turn_wait_ns.get() / 1_000_000_000 {
        0 => line,
        waited => format!("{line}; processes waited {waited} s for their turns"),
    }
}

fn tenths(part: u64, all: u64) -> u64 {
    (part * 10 + all / 2)
        .checked_div(all)
        .map_or(0, |n| n.min(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(reads: u64, of_ns: u64, others: u64) -> String {
        let s = Stats::default();
        for _ in 0..reads {
            s.fault_ns.record(of_ns);
            s.count_swpin(1);
        }
        for _ in 0..others {
            s.fault_ns.record(1000);
        }
        s.pgmajfault.add(reads);
        s.pgminfault.add(others);
        s.pswpin.add(reads);
        s.pswpout.add(reads * 2);
        limited_by(&s, Duration::from_secs(1))
    }

    #[test]
    fn what_limits_is_named() {
        assert_eq!(said(0, 0, 0), "hardly limited: 0.0 % of the time in faults");
        let line = said(10_000, 80_000, 20_000);
        let (begin, rest) = line.split_once(": ").unwrap();
        assert_eq!(begin, "limited by waiting for single reads");
        assert!(
            rest.contains("in 10000 faults that read, 2 % in 20000 others"),
            "{line}"
        );
        assert!(
            line.ends_with("; 10 of 10 reads are of one page; 5 of 10 pages that leave come back"),
            "{line}"
        );
        let line = said(100_000, 30_000, 0);
        assert!(
            line.contains(" in 0 others (of several threads together); "),
            "{line}"
        );
        assert!(!line.contains("turns"), "{line}");
        assert!(said(10, 80_000, 90_000).starts_with("limited by faults without a read: 0 % "));
    }
}
