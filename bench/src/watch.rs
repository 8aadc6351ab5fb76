//! What the machine and its processors do while a contestant runs, as the references' tables have it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::Serialize;

use hugeswap_host::os;

const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// From its making to [`Watch::seen`]. Instructions are those of children that are started meanwhile.
pub struct Watch {
    calls: Option<u64>,
    sizes: BTreeMap<String, u64>,
    times: (f64, f64),
    cycles: Option<File>,
    instructions: Option<File>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Seen {
    /// Interrupts by which one processor has another do something, of the whole machine.
    pub function_calls: Option<u64>,
    /// Instructions per cycle, the kernel's among them.
    pub ipc: Option<f64>,
    /// Processor time of children that have ended, in seconds.
    pub user: f64,
    pub system: f64,
    /// The kernel's counters of swapped folios, by size and name, that have changed.
    pub sizes: BTreeMap<String, u64>,
}

impl Watch {
    pub fn begin() -> Watch {
        Watch {
            calls: function_calls(),
            sizes: sizes(Path::new(THP)),
            times: os::times_of_children(),
            cycles: os::count_of_children(os::Count::Cycles).ok(),
            instructions: os::count_of_children(os::Count::Instructions).ok(),
        }
    }

    /// When all that was started has ended.
    pub fn seen(self) -> Seen {
        let (user, system) = os::times_of_children();
        let ipc = || Some(counted(self.instructions)? / counted(self.cycles)?);
        let mut sizes = sizes(Path::new(THP));
        for (name, now) in &mut sizes {
            *now = now.saturating_sub(self.sizes.get(name).copied().unwrap_or(0));
        }
        sizes.retain(|_, n| *n > 0);
        Seen {
            function_calls: function_calls()
                .zip(self.calls)
                .map(|(now, then)| now - then),
            ipc: ipc().filter(|ipc| ipc.is_finite()),
            user: user - self.times.0,
            system: system - self.times.1,
            sizes,
        }
    }
}

fn counted(file: Option<File>) -> Option<f64> {
    let mut word = [0; 8];
    file?.read_exact(&mut word).ok()?;
    Some(u64::from_ne_bytes(word) as f64)
}

fn function_calls() -> Option<u64> {
    calls_in(&fs::read_to_string("/proc/interrupts").ok()?)
}

/// The sum over the processors.
fn calls_in(interrupts: &str) -> Option<u64> {
    let mut lines = interrupts.lines().map(str::trim_start);
    let line = lines.find_map(|l| l.strip_prefix("CAL:"))?;
    let each = line.split_whitespace().map_while(|n| n.parse::<u64>().ok());
    Some(each.sum())
}

/// `hugepages-64kB/swpout` and the like.
fn sizes(dir: &Path) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let size = entry.file_name().to_string_lossy().into_owned();
        for what in ["swpin", "swpout", "swpout_fallback"] {
            let text = fs::read_to_string(entry.path().join("stats").join(what));
            if let Some(n) = text.ok().and_then(|t| t.trim().parse().ok()) {
                all.insert(format!("{size}/{what}"), n);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn interrupts_of_all_processors() {
        let text = "           CPU0       CPU1\n  0:  5  6  IO-APIC\nCAL:   44355854   26445331   Function call interrupts\nTLB: 1 2 x\n";
        assert_eq!(calls_in(text), Some(44355854 + 26445331));
        assert_eq!(calls_in("CPU0\n 0: 1\n"), None);
    }

    #[test]
    fn what_children_did() {
        let watch = Watch::begin();
        let spin = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh")
            .args(["-c", spin])
            .status()
            .unwrap()
            .success());
        let seen = watch.seen();
        assert!(seen.user + seen.system > 0.0, "{seen:?}");
        // Not every machine lets processors be counted.
        assert!(
            seen.ipc.is_none_or(|ipc| ipc > 0.01 && ipc < 16.0),
            "{seen:?}"
        );
    }
}
