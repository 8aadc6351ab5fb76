//! The workloads: which pages they touch, and what for. Timing is the worker's.

use super::pattern::Pattern;

/// A workload: its name is that of the subcommand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    pub name: &'static str,
    pub pattern: Pattern,
    /// Of 100 accesses to pages, those that write; every access verifies.
    pub writes: u8,
    /// Threads where nothing else is asked for.
    pub threads: u32,
    /// Each access to a page that is not mapped is timed by itself; others do not count.
    pub timed: bool,
}

const PLAIN: Workload = Workload {
    name: "",
    pattern: Pattern::Uniform,
    writes: 50,
    threads: 1,
    timed: false,
};

/// After vm-scalability's case-swap-w-seq: `usemem` writes a large range and verifies the former
/// values from the second round on.
pub const SWAP_W_SEQ: Workload = Workload {
    name: "swap-w-seq",
    pattern: Pattern::Sequential,
    writes: 100,
    ..PLAIN
};

pub const SWAP_W_SEQ_MT: Workload = Workload {
    name: "swap-w-seq-mt",
    threads: 2,
    ..SWAP_W_SEQ
};

pub const SWAP_W_RAND: Workload = Workload {
    name: "swap-w-rand",
    writes: 100,
    ..PLAIN
};

pub const SWAP_R_RAND: Workload = Workload {
    name: "swap-r-rand",
    writes: 0,
    ..PLAIN
};

pub const SWAP_ZIPF: Workload = Workload {
    name: "swap-zipf",
    pattern: Pattern::Zipf { theta: 0.99 },
    ..PLAIN
};

pub const SWAP_STRIDE: Workload = Workload {
    name: "swap-stride",
    pattern: Pattern::Stride,
    ..PLAIN
};

pub const SWAP_PHASES: Workload = Workload {
    name: "swap-phases",
    pattern: Pattern::Phases,
    ..PLAIN
};

pub const FAULT_LATENCY: Workload = Workload {
    name: "fault-latency",
    writes: 0,
    timed: true,
    ..PLAIN
};

pub const ALL: [Workload; 8] = [
    SWAP_W_SEQ,
    SWAP_W_SEQ_MT,
    SWAP_W_RAND,
    SWAP_R_RAND,
    SWAP_ZIPF,
    SWAP_STRIDE,
    SWAP_PHASES,
    FAULT_LATENCY,
];

pub fn by_name(name: &str) -> Option<Workload> {
    ALL.into_iter().find(|workload| workload.name == name)
}

impl Workload {
    /// Its rates say more in bytes than in pages.
    pub fn is_sequential(&self) -> bool {
        self.pattern == Pattern::Sequential
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for workload in ALL {
            let same = ALL.iter().filter(|other| other.name == workload.name);
            assert_eq!(same.count(), 1, "{}", workload.name);
            assert_eq!(by_name(workload.name), Some(workload));
        }
        assert!(by_name("swap-none").is_none());
    }
}
