//! Which operation a number stands for. Pure: the same seed and number give the same operation,
//! whatever other operations are left out.

/// Operations of one sequence.
pub const STEPS: u64 = 12;

/// A stream of numbers that is the same everywhere.
pub struct Rng(u64);

pub fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    pub fn new(seed: u64, id: u64) -> Rng {
        Rng(mix(seed ^ mix(id)))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Pages of a part: mostly few.
    pub fn some_pages(&mut self, most: usize) -> usize {
        let n = match self.below(16) {
            0..=8 => 1 + self.below(16),
            9..=11 => 1 + self.below(128),
            12 | 13 => 512 * (1 + self.below(2)) - 1 + self.below(3),
            14 => 1 + self.below(512),
            _ => return self.pages(most),
        };
        n.min(most)
    }

    /// Mostly few pages, sometimes many, often at the edge of 2 MiB.
    pub fn pages(&mut self, most: usize) -> usize {
        let n = match self.below(16) {
            0..=4 => 1 + self.below(8),
            5..=8 => 1 + self.below(64),
            9 | 10 => 256 << self.below(2),
            11 => 512 * (1 + self.below(4)),
            12 | 13 => 512 * (1 + self.below(3)) - 1 + self.below(3),
            14 => 1 + self.below(2000),
            _ => 1 + self.below(8000),
        };
        n.min(most)
    }
}

/// A kind of operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Map,
    MapOver,
    MapFile,
    Unmap,
    Write,
    Read,
    Protect,
    Advise,
    PageOut,
    Lock,
    Remap,
    RemapPart,
    RemapKeep,
    Brk,
    Name,
    Refused,
    ProcessMadvise,
    Fork,
    Wait,
    Kill,
    Stop,
    Namespace,
    Spawn,
    Threads,
    ForkUnderThreads,
    SignalStack,
    BadAddress,
    Pipe,
    File,
    Vector,
    Socket,
    VmReadv,
    Direct,
    Uring,
    Splice,
    Futex,
}

use Kind::*;

/// Kinds, their names for `--without`, and how often they come.
pub const KINDS: [(Kind, &str, u32); 36] = [
    (Map, "map", 14),
    (MapOver, "map-over", 4),
    (MapFile, "map-file", 2),
    (Unmap, "unmap", 8),
    (Write, "write", 24),
    (Read, "read", 18),
    (Protect, "protect", 8),
    (Advise, "advise", 12),
    (PageOut, "pageout", 16),
    (Lock, "lock", 3),
    (Remap, "remap", 7),
    (RemapPart, "remap-part", 3),
    (RemapKeep, "remap-keep", 3),
    (Brk, "brk", 4),
    (Name, "name", 2),
    (Refused, "refused", 4),
    (ProcessMadvise, "process-madvise", 3),
    (Fork, "fork", 2),
    (Wait, "wait", 3),
    (Kill, "kill", 1),
    (Stop, "stop", 1),
    (Namespace, "namespace", 1),
    (Spawn, "spawn", 1),
    (Threads, "threads", 2),
    (ForkUnderThreads, "fork-threads", 1),
    (SignalStack, "signal-stack", 2),
    (BadAddress, "bad-address", 3),
    (Pipe, "pipe", 3),
    (File, "file", 3),
    (Vector, "vector", 3),
    (Socket, "socket", 2),
    (VmReadv, "vm-readv", 2),
    (Direct, "direct", 3),
    (Uring, "uring", 2),
    (Splice, "splice", 2),
    (Futex, "futex", 2),
];

/// Which kinds there are in a run.
pub struct Mixture(Vec<(Kind, &'static str, u32)>);

impl Mixture {
    pub fn new(without: &[String], only: &[String]) -> Mixture {
        let kinds = KINDS.into_iter().filter(|(_, name, _)| {
            let named = |list: &[String]| list.iter().any(|n| n == name);
            !named(without) && (only.is_empty() || named(only))
        });
        Mixture(kinds.collect())
    }

    pub fn has(&self, kind: Kind) -> bool {
        self.0.iter().any(|k| k.0 == kind)
    }

    pub fn pick(&self, r: &mut Rng) -> (Kind, &'static str) {
        let sum: u32 = self.0.iter().map(|k| k.2).sum();
        let mut at = r.below(sum.max(1) as usize) as u32;
        for &(kind, name, weight) in &self.0 {
            if at < weight {
                return (kind, name);
            }
            at -= weight;
        }
        (Read, "read")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_number_is_the_same_operation() {
        let all = Mixture::new(&[], &[]);
        for id in 0..100 {
            let once = all.pick(&mut Rng::new(7, id));
            assert_eq!(once, all.pick(&mut Rng::new(7, id)));
        }
    }

    #[test]
    fn kinds_can_be_left_out() {
        let m = Mixture::new(&["fork".into()], &["fork".into(), "read".into()]);
        for id in 0..100 {
            assert_eq!(m.pick(&mut Rng::new(1, id)).1, "read");
        }
    }
}
