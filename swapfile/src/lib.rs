//! The swap-slot allocator: where on the swap devices pages go.
//!
//! It uses `mm`, and of `sys` memory. It may not do I/O, know of processes, or take a lock that is not
//! its own.
//!
//! Slots of 4 KiB in clusters of 512, of which those are used that are ours. Whatever is asked for gets its
//! slots whenever enough are free: nearly always one contiguous extent, otherwise a few. It takes nothing
//! from a heap once it is made, uses no thread-local storage, and every lock it has is taken by
//! [`SwapSpace::fork_prepare`]. One thread allocates; others free.
//!
//! `docs/allocator.md` explains the structures and how a place is found.
//!
//! ```
//! use hugeswap_mm::{DeviceId, Extents};
//! use hugeswap_swapfile::{Segment, SwapSpace};
//!
//! let space = SwapSpace::new(&[32])?;
//! let device = DeviceId::FIRST;
//! space.online(Segment { device, start: 0, end: 16 * 512 });
//! let mut extents = Extents::new();
//! assert!(space.alloc_on(device, 300, &mut extents));
//! assert_eq!(extents.len(), 1);
//! space.free(extents[0].entry, 300)?;
//! assert_eq!(space.used_slots(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

pub mod sync;

mod bitmap;
mod cluster;
mod error;
mod lists;
mod memory;
mod space;
mod table;

pub use error::{AddDeviceError, EntryError, Inconsistent};
pub use space::{Segment, SwapSpace};

/// Bytes of bookkeeping for each slot of a cluster that is ours.
pub const METADATA_PER_SLOT: f64 =
    (core::mem::size_of::<cluster::ClusterInfo>() as f64) / hugeswap_mm::SWAPFILE_CLUSTER as f64;
