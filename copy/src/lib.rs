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
#[cfg(all(not(miri), target_arch = "x86_64"))]
mod x86;

pub use cpu::{init, Cpu, Isa};
pub use error::CopyError;
pub use order::{ranges, Chunks, Run, TargetLast, LOCALITY_RADIUS};
pub use raw::{clear_raw, clear_raw_on, copy_raw, copy_raw_on};

/// Order and kind of stores of a copy or clear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// From begin to end.
    Ascending,
    /// The order of reference 004, one sub-page at a time: [`TargetLast`].
    TargetLast,
    /// Mainline's three contiguous ranges: [`ranges()`].
    Ranges,
    /// Large blocks from the far ends towards the target, the target's
    /// neighbourhood last: [`Chunks`]. Everything stays in some cache.
    Chunks,
    /// Past the caches except for what lies around the target, which comes
    /// last.
    Streaming,
    /// [`Chunks`](Self::Chunks) for a page within half of the thread's share of
    /// the last-level cache; of a larger page, that much from the target on,
    /// and the rest past the caches.
    #[default]
    Auto,
}

impl Strategy {
    /// Every strategy, in the order of the tables.
    pub const ALL: [Self; 6] = [
        Self::Ascending,
        Self::TargetLast,
        Self::Ranges,
        Self::Chunks,
        Self::Streaming,
        Self::Auto,
    ];

    /// The name that the command line and the tables use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ascending => "ascending",
            Self::TargetLast => "target-last",
            Self::Ranges => "ranges",
            Self::Chunks => "chunks",
            Self::Streaming => "streaming",
            Self::Auto => "auto",
        }
    }

    /// The strategy of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }
}

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
