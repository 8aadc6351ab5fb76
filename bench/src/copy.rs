//! `hugeswap bench huge-copy` and `hugeswap bench anon-cow-seq`: copying and
//! clearing of huge pages under cache pressure.
//!
//! Each command is an `Args` and a `run`, in a file of its own.

#![allow(unsafe_code)]

pub mod anon_cow_seq;
pub mod huge_copy;

mod clock;
mod method;
mod plot;
mod probe;
mod process;
mod region;
mod stats;
