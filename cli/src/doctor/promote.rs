//! What `hugeswap promote` needs.

use std::io;

use hugeswap_promote::place::Frames;
use hugeswap_promote::sys;
use hugeswap_promote::tiers;
use hugeswap_promote::trace::points::{Kind, Points};
use hugeswap_promote::trace::tmpfs::Probe;
use hugeswap_promote::trace::Trace;

use super::check::{Check, Verdict};

pub fn all() -> Vec<Check> {
    vec![nodes(), events(), tmpfs(), frames()]
}

fn nodes() -> Check {
    let name = "memory nodes";
    let nodes = tiers::nodes().unwrap_or_default();
    match tiers::routes(&[], None) {
        Ok(routes) => {
            let routes: Vec<String> = routes
                .iter()
                .map(|route| format!("node {} to node {}", route.from, route.to))
                .collect();
            Check::ok(name, routes.join(", "))
        }
        Err(err) if nodes.len() > 1 => {
            Check::new(name, Verdict::Limited, err).mend("hugeswap promote --from SLOW --to FAST")
        }
        Err(err) => Check::new(name, Verdict::Note, err),
    }
}

fn events() -> Check {
    let name = "events of reads";
    let missing = |err: io::Error| {
        let check = Check::new(name, Verdict::Missing, err.to_string());
        if sys::is_root() {
            check.so("reads can't be watched")
        } else {
            check
                .so("reads can't be watched")
                .mend("sudo hugeswap doctor")
        }
    };
    let points = match Points::find() {
        Ok(points) => points,
        Err(err) => return missing(err),
    };
    let kind = points.kind;
    match (Trace::new(points), kind) {
        (Err(err), _) => missing(err),
        (Ok(_), Kind::Reads) => Check::ok(name, kind.name()),
        (Ok(_), Kind::Activations) => {
            Check::new(name, Verdict::Limited, format!("{} only", kind.name()))
                .so("a page is found by its activation, where its file is known")
                .mend("install Linux 6.10 or later and reboot")
        }
    }
}

fn tmpfs() -> Check {
    let name = "reads of tmpfs";
    if let Ok(points) = Points::find() {
        if points.kind == Kind::Activations {
            return Check::ok(name, "seen by activations");
        }
    }
    match Probe::make().and_then(|probe| probe.load()) {
        Ok(_) => Check::ok(name, "a kprobe and the kernel's types (BTF) tell of them"),
        Err(err) => Check::new(name, Verdict::Limited, err.to_string())
            .so("files on tmpfs are not promoted"),
    }
}

fn frames() -> Check {
    let name = "page frames";
    match Frames::open() {
        Ok(_) => Check::ok(name, "/proc/kpageflags is readable"),
        Err(err) => Check::new(name, Verdict::Limited, format!("/proc/kpageflags: {err}"))
            .so("large folios are counted as single pages"),
    }
}
