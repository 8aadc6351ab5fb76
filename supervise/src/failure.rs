//! Why there is no run, or none any more, and the exit status that says so.

/// As the shell: 126 cannot be run, 127 not found; 125 is ours, as with env(1) and timeout(1).
pub const EXIT_USAGE: u8 = 2;
pub const EXIT_OURS: u8 = 125;
pub const EXIT_CANNOT_RUN: u8 = 126;
pub const EXIT_NOT_FOUND: u8 = 127;

/// A message for the user, and the exit status that goes with it.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub message: String,
}

impl Failure {
    /// What was asked for makes no sense, wherever it is asked.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure {
            code: EXIT_USAGE,
            message: message.into(),
        }
    }

    pub(crate) fn ours(message: impl Into<String>) -> Failure {
        Failure {
            code: EXIT_OURS,
            message: message.into(),
        }
    }
}
