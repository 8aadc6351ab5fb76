//! The swap-slot allocator: where on the swap devices a folio goes.
//!
//! It uses `mm`, and of `sys` memory. It may not do I/O, know of processes, or take a lock that is not
//! its own.
//!
//! Slots of 4 KiB in clusters of 512, orders 0 to 9, several devices by
//! priority. A folio of any order gets its slots whenever enough are free:
//! nearly always one contiguous extent, otherwise a few. It does no I/O, takes
//! nothing from a heap once a device is added, uses no thread-local storage,
//! and every lock it has is taken by [`SwapSpace::fork_prepare`].
//!
//! `docs/allocator.md` explains the structures, the states and the order of
//! attempts.
//!
//! ```
//! use hugeswap_mm::{Extents, Order};
//! use hugeswap_swapfile::{DeviceConfig, SwapConfig, SwapSpace};
//!
//! let space = SwapSpace::new(SwapConfig::default());
//! space.add_device(&DeviceConfig::from_bytes(64 << 20)?)?;
//! let mut extents = Extents::new();
//! space.alloc(Order::PMD, &mut extents)?;
//! assert_eq!(extents.len(), 1);
//! space.free_extents(&extents)?;
//! assert_eq!(space.used_slots(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

pub mod sync;

mod bitmap;
mod cluster;
mod device;
mod discard;
mod error;
mod linux612;
mod lists;
mod memory;
pub mod mixed_test;
mod refs;
mod segments;
mod shard;
mod space;
mod spread;
mod stats;

pub mod thp_test;
mod upkeep;
mod validate;

pub use device::DeviceConfig;
pub use error::{AddDeviceError, DeviceError, EntryError, Inconsistent, NoRoom};
pub use lists::Algorithm;
pub use segments::Segment;
pub use space::{SwapConfig, SwapSpace};
pub use stats::{OrderStats, Stats};

/// Shards a device has at most.
const MAX_SHARDS: usize = 64;

/// Bytes of bookkeeping for each slot, all counted but the few kilobytes a
/// device has once.
pub const METADATA_PER_SLOT: f64 = (core::mem::size_of::<cluster::ClusterInfo>() as f64)
    / hugeswap_mm::SWAPFILE_CLUSTER as f64
    + core::mem::size_of::<u16>() as f64;
