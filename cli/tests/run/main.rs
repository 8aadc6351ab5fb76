//! `hugeswap run` as users know it: the real command, real programs, each in a memory control
//! group of its limit and 64 MiB, without the kernel's swap.
//!
//! Needs root and userfaultfd and fails with a message where one is missing. The longer variants
//! run with `HUGESWAP_LONG_TESTS=1`.

mod compressed;
mod core_dumps;
mod errors;
mod front;
mod groups;
mod hostile;
mod kill;
mod lazyfree;
mod limits;
mod lives;
mod memory;
mod outside;
mod own_state;
mod pass_through;
mod processes;
mod programs;
mod recorded;
mod runtimes;
mod sealed;
mod shared;
mod stats;
mod support;
mod swap_full;
mod swap_in;
mod swap_out;
mod swap_places;
mod swapoff;
mod syscalls;
mod thread_ends;
mod unmanaged;
