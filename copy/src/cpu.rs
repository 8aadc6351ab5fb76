//! What the processor offers: vector width, fast string moves, cache share.
//!
//! Found once by `cpuid` and kept in statics: no allocation, no thread-local
//! storage. `cpuid` traps in virtual machines, so call [`init`] before the
//! first fault.
#![allow(unsafe_code)]

use core::sync::atomic::{
    AtomicU8, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// Instructions that the copy loops use. Each implies those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Isa {
    /// The compiler's copy and fill: any architecture, no streaming stores.
    Portable = 1,
    /// 16-byte vectors.
    Sse2,
    /// 32-byte vectors.
    Avx2,
    /// 64-byte vectors.
    Avx512,
}

impl Isa {
    /// Every instruction set, widest last.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Sse2, Self::Avx2, Self::Avx512];

    /// The widest that this processor and its operating system support.
    pub fn detected() -> Self {
        known_isa().unwrap_or_else(|| init().isa)
    }

    /// The name that the command line uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Sse2 => "sse2",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// The instruction set of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|isa| isa.name() == name)
    }
}

/// What [`init`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The widest usable vectors.
    pub isa: Isa,
    /// `rep movsb` and `rep stosb` are fast (ERMS).
    pub fast_string: bool,
    /// Bytes of last-level cache per logical processor that shares it;
    /// `usize::MAX` where unknown.
    pub cache_share: usize,
}

/// Zero: not looked yet.
static ISA: AtomicU8 = AtomicU8::new(0);
static FAST_STRING: AtomicU8 = AtomicU8::new(0);
static CACHE_SHARE: AtomicUsize = AtomicUsize::new(0);

/// Looks at the processor, once, and remembers. Threads that race here store
/// the same values.
pub fn init() -> Cpu {
    if let Some(isa) = known_isa() {
        return Cpu {
            isa,
            fast_string: FAST_STRING.load(Relaxed) == 2,
            cache_share: CACHE_SHARE.load(Relaxed),
        };
    }
    let cpu = probe();
    CACHE_SHARE.store(cpu.cache_share, Relaxed);
    FAST_STRING.store(1 + u8::from(cpu.fast_string), Relaxed);
    // Last, for `known_isa`.
    ISA.store(cpu.isa as u8, Release);
    cpu
}

fn known_isa() -> Option<Isa> {
    match ISA.load(Acquire) {
        1 => Some(Isa::Portable),
        2 => Some(Isa::Sse2),
        3 => Some(Isa::Avx2),
        4 => Some(Isa::Avx512),
        _ => None,
    }
}

#[cfg(any(miri, not(target_arch = "x86_64")))]
fn probe() -> Cpu {
    Cpu {
        isa: Isa::Portable,
        fast_string: false,
        cache_share: usize::MAX,
    }
}

#[cfg(all(not(miri), target_arch = "x86_64"))]
fn probe() -> Cpu {
    let isa = if std::is_x86_feature_detected!("avx512f") {
        Isa::Avx512
    } else if std::is_x86_feature_detected!("avx2") {
        Isa::Avx2
    } else {
        Isa::Sse2
    };
    Cpu {
        isa,
        fast_string: cpuid(0, 0).0 >= 7 && cpuid(7, 0).1 & (1 << 9) != 0,
        cache_share: probe_cache_share(),
    }
}

/// Size of the last-level cache over the number of logical processors that
/// share it, from the deterministic cache leaf (Intel 4, AMD 0x8000_001d).
#[cfg(all(not(miri), target_arch = "x86_64"))]
fn probe_cache_share() -> usize {
    const AMD: u32 = 0x8000_001d;
    const TOPOEXT: u32 = 1 << 22;
    let amd = cpuid(0x8000_0000, 0).0 >= AMD && cpuid(0x8000_0001, 0).2 & TOPOEXT != 0;
    let leaf = if amd {
        AMD
    } else if cpuid(0, 0).0 >= 4 {
        4
    } else {
        return usize::MAX;
    };
    let mut share = usize::MAX;
    for index in 0..8 {
        let (a, b, c) = cpuid(leaf, index);
        let (kind, level) = (a & 0x1f, (a >> 5) & 7);
        if kind == 0 {
            break;
        }
        if level == 3 {
            let sharing = ((a >> 14) & 0xfff) as usize + 1;
            let line = (b & 0xfff) as usize + 1;
            let partitions = ((b >> 12) & 0x3ff) as usize + 1;
            let ways = ((b >> 22) & 0x3ff) as usize + 1;
            let sets = c as usize + 1;
            share = (line * partitions * ways).saturating_mul(sets) / sharing;
        }
    }
    share.max(1)
}

/// `eax`, `ebx`, `ecx` of a leaf.
#[cfg(all(not(miri), target_arch = "x86_64"))]
fn cpuid(leaf: u32, index: u32) -> (u32, u32, u32) {
    // SAFETY: every x86-64 processor has `cpuid`; unknown leaves answer
    // something and touch no memory.
    #[allow(unused_unsafe)]
    let r = unsafe { core::arch::x86_64::__cpuid_count(leaf, index) };
    (r.eax, r.ebx, r.ecx)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_look_sees_the_same() {
        let cpu = init();
        assert_eq!(cpu, init());
        assert_eq!(cpu, probe());
        assert_eq!(cpu.isa, Isa::detected());
        assert!(cpu.cache_share > 0);
    }

    #[test]
    fn names_come_back() {
        for isa in Isa::ALL {
            assert_eq!(Isa::from_name(isa.name()), Some(isa));
        }
        assert_eq!(Isa::from_name("mmx"), None);
    }
}
