//! Why the engine does not start.

use crate::sys::Errno;

/// Exit status when the engine cannot start: EX_OSERR.
pub const EXIT_START: i32 = 71;

/// Why the engine did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// No userfaultfd with the rights that were asked for.
    Userfaultfd(Errno),
    /// A swap device could not be opened.
    Device(Errno),
    /// A thread or mapping could not be made.
    Resources(Errno),
    /// The run's supervisor can't be reached, or takes no more processes.
    NoRun(Errno),
}

impl core::fmt::Display for StartError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            StartError::Userfaultfd(e) => write!(
                f,
                "userfaultfd is not available to this user ({e}); `hugeswap doctor` says what to do"
            ),
            StartError::Device(e) => write!(f, "a swap device could not be opened ({e})"),
            StartError::Resources(e) => write!(f, "no threads or memory for the engine ({e})"),
            StartError::NoRun(e) => write!(f, "the run's supervisor can't be reached ({e})"),
        }
    }
}
