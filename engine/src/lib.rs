//! Swap huge pages out and in as a whole, in user space, on a stock kernel.
//!
//! The engine: a program's memory, where each part of it is, and the threads that bring it in and take
//! it out.
//! It runs inside the program, on threads of its own, and divides nothing with other processes but what
//! `control` says. It may use every room below it and shows them under their old names, so that
//! a user of the library needs this crate only. It may not know of the library that is preloaded, of
//! the supervisor, or of the command.
//!
//! Modules are ranked: each imports only from those above it in this list.
#![deny(unsafe_code)]

pub mod mm {
    //! Units of memory, and copying of huge pages.
    pub use hugeswap_mm::*;
    pub use hugeswap_page_copy as copy;
}
pub use hugeswap_policy as policy;

pub use hugeswap_sys as sys;
pub use hugeswap_sys::sync;

pub use hugeswap_seal as seal;

pub use hugeswap_control as control;
pub use hugeswap_control::stats;

pub mod progress;

pub mod charge;
pub mod pressure;

pub use hugeswap_device as device;
pub use hugeswap_swapfile as swapfile;

pub use hugeswap_zpool as zpool;

pub use hugeswap_vma as vma;
pub use hugeswap_vma::dump;

pub mod swap_cache;
pub mod swap_io;

pub mod fault;
pub mod reclaim;

pub mod engine;
