//! The contract with the kernel. Raw system calls only, except for `probe`: nothing here touches
//! `errno`, thread-local storage or the C library, so all of it may run on an engine thread, in a
//! hook, or in a forked child before anything else was set up again.
//!
//! It uses `mm` only. It may not know what the memory is for: policy, counters and messages are for those
//! above it.
#![allow(unsafe_code)]

pub mod arch;
mod arena;
mod borrowed;
pub mod bpf;
pub mod fd;
pub mod futex;
pub mod gate;
pub mod limits;
pub mod load;
pub mod maps;
pub mod mem;
mod mmap;
pub mod pagemap;
pub mod pages;
pub mod probe;
pub mod request;
pub mod rights;
pub mod sched;
mod sleep;
pub mod sync;
pub mod syscall;
pub mod task;
pub mod thread;
pub mod uffd;

pub use syscall::{syscall, Errno};
