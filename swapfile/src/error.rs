//! What can go wrong, each with a message for the person who reads it.

use core::fmt;
use hugeswap_mm::MAX_SWAPFILES;

/// Why a device can't be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddDeviceError {
    /// It has no room for even one slot.
    ZeroSize,
    /// Its size is not a multiple of the 4 KiB of a slot.
    NotPageMultiple { bytes: u64 },
    /// Larger than slots can be numbered.
    TooLarge { slots: u64 },
    /// May grow only to less than what it has.
    ReserveBelowSize { slots: u64, reserve: u64 },
    /// A priority is 0 to 32767; without one, a device ranks behind all that have one.
    PriorityOutOfRange { prio: i32 },
    /// The same device is in use already.
    AlreadyInUse { key: u64 },
    /// All device numbers are taken.
    TooManyDevices,
    /// The kernel gives no address space for the tables.
    NoMemory,
}

impl fmt::Display for AddDeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroSize => write!(f, "a swap device of zero size has no room"),
            Self::NotPageMultiple { bytes } => write!(
                f,
                "the size of a swap device is a multiple of 4096 bytes, not {bytes}"
            ),
            Self::TooLarge { slots } => {
                write!(f, "a swap device of {slots} slots is larger than supported")
            }
            Self::ReserveBelowSize { slots, reserve } => write!(
                f,
                "a swap device of {slots} slots can't be limited to {reserve}"
            ),
            Self::PriorityOutOfRange { prio } => {
                write!(f, "swap priority {prio} is out of range: 0 to 32767")
            }
            Self::AlreadyInUse { key } => {
                write!(f, "swap device {key:#x} is in use already")
            }
            Self::TooManyDevices => {
                write!(f, "more than {MAX_SWAPFILES} swap devices")
            }
            Self::NoMemory => write!(f, "no address space for the tables of a swap device"),
        }
    }
}

impl std::error::Error for AddDeviceError {}

/// No place for a folio, and what would make some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// Free slots left, over all devices: less than the folio needs, unless the
    /// algorithm insists on a contiguous place.
    pub free: u64,
    /// Slots that get free when the discards under way are done.
    pub discarding: u64,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no room in swap: {} slots free, {} being discarded",
            self.free, self.discarding
        )
    }
}

impl std::error::Error for NoRoom {}

/// An entry was used in a way its slot does not allow. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryError {
    /// No such device, or no such slot on it.
    NoSuchSlot,
    /// A slot of the run has no user.
    NotInUse,
    /// A slot of the run is not in the swap cache.
    NotCached,
    /// A slot of the run has as many users as can be counted.
    TooManyUsers,
}

impl fmt::Display for EntryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchSlot => "no such swap slot",
            Self::NotInUse => "swap slot is not in use",
            Self::NotCached => "swap slot is not in the swap cache",
            Self::TooManyUsers => "swap slot has too many users",
        })
    }
}

impl std::error::Error for EntryError {}

/// Why a device can't be swapped off or resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// Never added, or swapped off.
    NoSuchDevice,
    /// Slots still have users: bring their folios in or move them, then try again.
    InUse { slots: u64 },
    /// `swapoff_begin` was not called.
    NotDraining,
    /// Discards are under way.
    Discarding { slots: u64 },
    /// Devices only grow, and only up to their reserve.
    BadSize { slots: u64, reserve: u64 },
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchDevice => write!(f, "no such swap device"),
            Self::InUse { slots } => write!(f, "{slots} swap slots are still in use"),
            Self::NotDraining => write!(f, "the swap device is not being swapped off"),
            Self::Discarding { slots } => write!(f, "{slots} swap slots are being discarded"),
            Self::BadSize { slots, reserve } => write!(
                f,
                "a swap device can't be resized to {slots} slots: it only grows, to {reserve} at most"
            ),
        }
    }
}

impl std::error::Error for DeviceError {}

/// The first contradiction `validate()` met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inconsistent {
    pub what: &'static str,
    pub device: usize,
    pub shard: usize,
    /// Within the shard, if it is about one.
    pub cluster: Option<u32>,
}

impl fmt::Display for Inconsistent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}, shard {}", self.device, self.shard)?;
        if let Some(cluster) = self.cluster {
            write!(f, ", its cluster {cluster}")?;
        }
        write!(f, ": {}", self.what)
    }
}

impl std::error::Error for Inconsistent {}
