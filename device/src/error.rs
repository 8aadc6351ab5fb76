//! Errors of devices: what happened, not which errno said so.

use std::fmt;
use std::path::PathBuf;

/// Why a transfer failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IoError {
    /// The medium failed: the data of this range can't be read, or was not written.
    Io,
    /// The file system or thin-provisioned device is full.
    NoSpace,
    /// The device is no longer there, or somebody closed or replaced our descriptor.
    Gone,
    /// The request reaches past the device's capacity.
    OutOfRange,
    /// The request is not page-aligned, empty, or longer than 2 MiB.
    Invalid,
    /// The file ends before the request does: somebody truncated it.
    UnexpectedEnd,
    /// Repeated attempts made no progress.
    Stalled,
    /// Anything else, with its errno.
    Other(i32),
}

impl IoError {
    /// The meaning of an errno of a read or write.
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            libc::EIO | libc::EREMOTEIO | libc::EILSEQ | libc::ENODATA | libc::EUCLEAN => Self::Io,
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Self::NoSpace,
            libc::EBADF | libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN | libc::ENOTBLK => {
                Self::Gone
            }
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io => f.write_str("the swap device reported an input/output error"),
            Self::NoSpace => f.write_str("no space left on the swap device"),
            Self::Gone => f.write_str("the swap device is gone or its descriptor was closed"),
            Self::OutOfRange => f.write_str("request past the end of the swap device"),
            Self::Invalid => f.write_str("malformed request"),
            Self::UnexpectedEnd => f.write_str("the swap file is shorter than it should be"),
            Self::Stalled => f.write_str("the swap device makes no progress"),
            Self::Other(errno) => write!(f, "the swap device failed with errno {errno}"),
        }
    }
}

impl std::error::Error for IoError {}

/// The queue already holds as many requests as it was made for; reap first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFull;

impl fmt::Display for QueueFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the queue holds its full depth of requests")
    }
}

impl std::error::Error for QueueFull {}

/// Why an operation on an open device failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceError {
    /// The file system is full.
    NoSpace,
    /// Growing further would pass the device's own limit of this many bytes.
    LimitReached { limit: u64 },
    /// The range is not page-aligned or lies past the capacity.
    OutOfRange,
    /// The device can't do this.
    Unsupported,
    /// Not enough kernel or process memory for a queue.
    NoMemory,
    /// The device is gone or its descriptor was closed.
    Gone,
    /// Anything else, with its errno.
    Other(i32),
}

impl DeviceError {
    pub(crate) fn from_errno(errno: i32) -> Self {
        match errno {
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Self::NoSpace,
            libc::EOPNOTSUPP | libc::ENOSYS => Self::Unsupported,
            libc::ENOMEM => Self::NoMemory,
            libc::EBADF | libc::ENODEV | libc::ENXIO => Self::Gone,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSpace => f.write_str("no space left for the swap file"),
            Self::LimitReached { limit } => {
                write!(f, "the swap device has reached its limit of {limit} bytes")
            }
            Self::OutOfRange => f.write_str("range outside the swap device"),
            Self::Unsupported => f.write_str("the swap device does not support this"),
            Self::NoMemory => f.write_str("not enough memory for a request queue"),
            Self::Gone => f.write_str("the swap device is gone or its descriptor was closed"),
            Self::Other(errno) => write!(f, "the swap device failed with errno {errno}"),
        }
    }
}

impl std::error::Error for DeviceError {}

/// Why a device could not be opened. The message says what to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenError {
    /// Mounted, a member of a volume, swap in use, or held by another hugeswap.
    InUse { path: PathBuf },
    /// A regular file that holds data and was not made by hugeswap.
    NotEmpty { path: PathBuf },
    /// A block device that carries a file system, partition table, swap header, ...
    Signature { path: PathBuf, what: &'static str },
    /// A block device with data that is nobody's known format and no swap of ours.
    UnknownData { path: PathBuf },
    /// A regular file others could read, write or reach by another name.
    Insecure { path: PathBuf, why: &'static str },
    /// Neither directory, regular file nor block device.
    WrongKind { path: PathBuf },
    /// io_uring was asked for and is refused here.
    NoUring { errno: i32 },
    /// The kernel refused; `action` is what was tried.
    Os {
        path: PathBuf,
        action: &'static str,
        errno: i32,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { path } => write!(
                f,
                "{} is in use (mounted, part of a volume, active swap, or held by another \
                 process); unmount it or choose another",
                path.display()
            ),
            Self::NotEmpty { path } => write!(
                f,
                "{} holds data and was not made by hugeswap; choose another file or a directory, or \
                 remove it if its contents may be lost",
                path.display()
            ),
            Self::Signature { path, what } => write!(
                f,
                "{} carries {what}; if its contents may be lost, erase it with \"wipefs -a\" \
                 first, or choose another",
                path.display()
            ),
            Self::UnknownData { path } => write!(
                f,
                "{} holds data of a kind that is not known; if it may be lost, give --overwrite, \
                 or choose another",
                path.display()
            ),
            Self::Insecure { path, why } => write!(
                f,
                "{} {why}, so others could see the program's memory; choose a directory, or a file \
                 that is not there yet",
                path.display()
            ),
            Self::WrongKind { path } => write!(
                f,
                "{} is neither a directory, a regular file nor a block device",
                path.display()
            ),
            Self::NoUring { errno } => write!(
                f,
                "io_uring is refused here: {}",
                std::io::Error::from_raw_os_error(*errno)
            ),
            Self::Os {
                path,
                action,
                errno,
            } => write!(
                f,
                "can't {action} {}: {}{}",
                path.display(),
                std::io::Error::from_raw_os_error(*errno),
                advice(*errno)
            ),
        }
    }
}

/// What the user can do about an errno of opening.
fn advice(errno: i32) -> &'static str {
    match errno {
        libc::EACCES | libc::EPERM => "; choose a place you may write to with --swap",
        libc::EROFS => "; it is read-only, choose another place with --swap",
        libc::ENOSPC | libc::EDQUOT => "; free space or choose another place with --swap",
        libc::ENOENT => "; create the directory first or choose another with --swap",
        _ => "",
    }
}

impl std::error::Error for OpenError {}
