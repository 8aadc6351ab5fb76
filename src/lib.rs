//! Swap huge pages out and in as a whole, in user space, on a stock kernel.
//!
//! Modules are ranked: each imports only from those above it in this list.
#![deny(unsafe_code)]

pub mod mm;
pub mod sys;

pub mod sync;

pub mod seal;

pub mod stats;

pub mod control;

pub mod charge;
pub mod pressure;

pub mod device;
pub mod swapfile;

pub mod zpool;

pub mod vma;

pub mod dump;

pub mod swap_cache;

pub mod fault;
pub mod reclaim;

pub mod engine;
