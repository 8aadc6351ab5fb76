//! Copying and clearing of huge pages, target sub-page last.
//!
//! It uses `mm` only. It may not make a system call, and knows nothing of swap: two addresses and a length
//! are all it is given. `copy-c` is its interface for C.
//!
//! A huge page is copied or cleared because one address in it was accessed.
//! When the program goes on, the cache lines of that *target* sub-page should
//! be the hottest, and the copy should not have cost the rest of the cache
//! more than it must. A [`Strategy`] says in which order and with which stores
//! the sub-pages are written.
//!
//! Context: any thread. Nothing here allocates, uses thread-local storage,
//! takes a lock, prints, or panics once the arguments are checked.
//!
//! Source and destination start at base-page boundaries; lengths are whole
//! base pages, any number of them, not only powers of two.
#![deny(unsafe_code)]

mod cpu;
mod error;
mod order;
mod plan;
mod raw;
mod strategy;
#[cfg(all(not(miri), target_arch = "x86_64"))]
mod x86;

pub use cpu::{init, Cpu, Isa};
pub use error::CopyError;
pub use order::{ranges, Chunks, Run, TargetLast, LOCALITY_RADIUS};
pub use raw::{clear_raw, clear_raw_on, copy_raw, copy_raw_on};
pub use strategy::Strategy;

/// Copies the huge page `src` to `dst`; `target` is the index of the sub-page
/// whose access made the copy necessary.
pub fn copy(
    dst: &mut [u8],
    src: &[u8],
    target: usize,
    strategy: Strategy,
) -> Result<(), CopyError> {
    if dst.len() != src.len() {
        return Err(CopyError::LengthMismatch);
    }
    raw::copy_slices(dst, src, target, strategy)
}

/// Clears the huge page `dst`; `target` as in [`copy`].
pub fn clear(dst: &mut [u8], target: usize, strategy: Strategy) -> Result<(), CopyError> {
    raw::clear_slice(dst, target, strategy)
}
