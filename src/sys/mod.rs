//! The contract with the kernel.

pub mod probe;
