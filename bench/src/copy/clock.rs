//! Time in nanoseconds, fine enough for a few dozen cache lines.

use std::time::Instant;

/// A point in time after everything before it has finished.
#[derive(Clone, Copy)]
pub struct Tick(u64);

/// Nanoseconds per tick.
#[derive(Clone, Copy)]
pub struct Clock {
    ns: f64,
}

impl Clock {
    /// Compares the processor's counter with the system's clock for 20 ms.
    pub fn calibrate() -> Self {
        let (start, from) = (Instant::now(), Tick::now());
        while start.elapsed().as_millis() < 20 {}
        let (ns, to) = (start.elapsed().as_nanos() as f64, Tick::now());
        Self {
            ns: ns / (to.0 - from.0).max(1) as f64,
        }
    }

    pub fn ns_since(self, from: Tick) -> f64 {
        Tick::now().0.saturating_sub(from.0) as f64 * self.ns
    }
}

impl Tick {
    #[cfg(target_arch = "x86_64")]
    pub fn now() -> Self {
        use core::arch::x86_64::{_mm_lfence, _rdtsc};
        // SAFETY: both instructions exist on every x86-64 processor.
        #[allow(unused_unsafe)]
        let ticks = unsafe {
            _mm_lfence();
            let ticks = _rdtsc();
            _mm_lfence();
            ticks
        };
        Self(ticks)
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub fn now() -> Self {
        use std::sync::OnceLock;
        static START: OnceLock<Instant> = OnceLock::new();
        Self(START.get_or_init(Instant::now).elapsed().as_nanos() as u64)
    }
}
