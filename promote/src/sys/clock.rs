//! Times and counts that the kernel keeps of this thread.
#![allow(unsafe_code)]

/// Major faults of this thread so far: reads from a disk that we have caused.
pub fn major_faults() -> u64 {
    usage(libc::RUSAGE_THREAD).ru_majflt as u64
}

/// Processor time of this thread, in nanoseconds.
pub fn cpu_nanos() -> u64 {
    nanos(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The clock that the records are stamped with, in microseconds.
pub fn monotonic_micros() -> u64 {
    nanos(libc::CLOCK_MONOTONIC) / 1000
}

fn nanos(clock: libc::clockid_t) -> u64 {
    // SAFETY: the kernel fills the timespec.
    let time = unsafe {
        let mut time = std::mem::zeroed::<libc::timespec>();
        libc::clock_gettime(clock, &mut time);
        time
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn usage(who: libc::c_int) -> libc::rusage {
    // SAFETY: all zeroes is a valid rusage, and the kernel fills it.
    unsafe {
        let mut usage = std::mem::zeroed();
        libc::getrusage(who, &mut usage);
        usage
    }
}
