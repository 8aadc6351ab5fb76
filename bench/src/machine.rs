//! The machine that was measured on.

use std::fs;

use serde::Serialize;

use hugeswap_host::kernel_swap;

#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub kernel: String,
    pub processors: usize,
    pub processor: String,
    pub memory_bytes: u64,
    pub transparent_hugepage: Option<String>,
    /// This program's.
    pub version: &'static str,
}

impl Machine {
    pub fn here() -> Machine {
        let read = |path: &str| fs::read_to_string(path).ok();
        let thp = read("/sys/kernel/mm/transparent_hugepage/enabled");
        let after = |path: &str, key: &str| {
            let text = read(path)?;
            let line = text.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.trim_start_matches([' ', '\t', ':']).to_owned())
        };
        let total = after("/proc/meminfo", "MemTotal:").unwrap_or_default();
        let kilobytes: u64 = total.trim_end_matches(" kB").parse().unwrap_or(0);
        Machine {
            kernel: read("/proc/sys/kernel/osrelease")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            processors: std::thread::available_parallelism().map_or(0, |n| n.get()),
            processor: after("/proc/cpuinfo", "model name").unwrap_or_default(),
            memory_bytes: kilobytes << 10,
            transparent_hugepage: thp.and_then(|s| kernel_swap::chosen(&s).map(str::to_owned)),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}
