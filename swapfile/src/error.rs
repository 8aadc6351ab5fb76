//! What can go wrong, each with a message for the person who reads it.

use core::fmt;
use hugeswap_mm::MAX_SWAPFILES;

/// Why there can't be such devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddDeviceError {
    /// Larger than slots can be numbered.
    TooLarge { clusters: u64 },
    /// All device numbers are taken.
    TooManyDevices,
    /// The kernel gives no address space for the tables.
    NoMemory,
}

impl fmt::Display for AddDeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { clusters } => {
                write!(
                    f,
                    "a swap device of {clusters} clusters is larger than supported"
                )
            }
            Self::TooManyDevices => write!(f, "more than {MAX_SWAPFILES} swap devices"),
            Self::NoMemory => write!(f, "no address space for the tables of a swap device"),
        }
    }
}

impl std::error::Error for AddDeviceError {}

/// An entry was used in a way its slot does not allow. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryError {
    /// No such device, or no such slot on it.
    NoSuchSlot,
    /// A slot of the run has no user.
    NotInUse,
}

impl fmt::Display for EntryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchSlot => "no such swap slot",
            Self::NotInUse => "swap slot is not in use",
        })
    }
}

impl std::error::Error for EntryError {}

/// The first contradiction `validate()` met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inconsistent {
    pub what: &'static str,
    pub device: usize,
    /// If it is about one.
    pub cluster: Option<u32>,
}

impl fmt::Display for Inconsistent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.device)?;
        if let Some(cluster) = self.cluster {
            write!(f, ", its cluster {cluster}")?;
        }
        write!(f, ": {}", self.what)
    }
}

impl std::error::Error for Inconsistent {}
