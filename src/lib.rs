//! Swap huge pages out and in as a whole, in user space, on a stock kernel.
//!
//! Modules are ranked: each imports only from those above it in this list.
#![deny(unsafe_code)]

pub mod mm;
pub mod swapfile;
pub mod sync;
