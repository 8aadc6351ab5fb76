//! What the commands ask of the machine they run on: memory groups, the kernel's own swap, sizes and
//! where to swap to, what is said on standard output, and how everything set up is taken down again.
//!
//! It may use the devices and the kernel contract of `hugeswap`. It knows nothing of runs, benchmarks
//! or the command line as a whole: `supervise`, `bench` and `cli` take from here what they would
//! otherwise take from one another.
#![deny(unsafe_code)]
// These end the command with a panic where nothing can be written: `out` has what stands for them.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[macro_use]
pub mod out;
pub mod aside;
pub mod cgroup;
pub mod columns;
pub mod cpu_latency;
mod group_end;
pub mod in_use;
pub mod kernel_swap;
pub mod os;
pub mod progress;
pub mod size;
pub mod sizing;
pub mod swap_spec;
pub mod undo;
