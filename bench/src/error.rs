//! What can go wrong while something is measured.

use std::fmt;
use std::io;
use std::process::ExitStatus;

use super::swap_args::PlanError;
use hugeswap_host::cgroup;
use hugeswap_host::kernel_swap;
use hugeswap_host::size::MIB;
use hugeswap_host::undo::Interrupted;

#[derive(Debug)]
pub enum Error {
    /// The arguments don't make sense.
    Plan(PlanError),
    Usage(String),
    Group(cgroup::Error),
    KernelSwap(kernel_swap::Error),
    Io {
        what: &'static str,
        err: io::Error,
    },
    /// The program ended badly.
    Failed {
        who: String,
        status: ExitStatus,
    },
    OutOfMemory {
        who: String,
        limit: u64,
    },
    Corrupt {
        who: String,
        errors: u64,
    },
    /// The worker's report is not what it should be.
    Report(String),
    /// A program gave another result than without a limit.
    Wrong {
        who: String,
        what: String,
    },
    /// A command that is measured is not installed.
    Missing(&'static str),
    /// A program was not done in time.
    TooLong,
    /// The machine was stopped for a while.
    StoodStill,
    Interrupted,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Plan(err) => err.fmt(f),
            Error::Usage(text) => f.write_str(text),
            Error::Group(err) => err.fmt(f),
            Error::KernelSwap(err) => err.fmt(f),
            Error::Io { what, err } => write!(f, "can't {what}: {err}"),
            Error::Failed { who, status } => {
                write!(f, "under {who} the program ended with {status}")
            }
            Error::OutOfMemory { who, limit } => write!(
                f,
                "under {who} the program was killed at its limit of {} MiB",
                limit / MIB
            ),
            Error::Corrupt { who, errors } => {
                write!(
                    f,
                    "DATA LOST under {who}: {errors} words did not hold what was written"
                )
            }
            Error::Report(what) => write!(f, "the worker's report can't be read: {what}"),
            Error::Wrong { who, what } => write!(f, "WRONG RESULT under {who}: {what}"),
            Error::Missing(package) => write!(
                f,
                "{package} is not installed: 'apt-get install {package}' does that"
            ),
            Error::TooLong => f.write_str("the program was not done in time"),
            Error::StoodStill => f.write_str("the machine stood still for some seconds"),
            Error::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl From<cgroup::Error> for Error {
    fn from(err: cgroup::Error) -> Error {
        Error::Group(err)
    }
}

impl From<kernel_swap::Error> for Error {
    fn from(err: kernel_swap::Error) -> Error {
        match err {
            kernel_swap::Error::Interrupted => Error::Interrupted,
            err => Error::KernelSwap(err),
        }
    }
}

impl From<Interrupted> for Error {
    fn from(_: Interrupted) -> Error {
        Error::Interrupted
    }
}

pub fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |err| Error::Io { what, err }
}
