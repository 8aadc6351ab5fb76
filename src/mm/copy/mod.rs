//! Copying and clearing of huge pages, target sub-page last.
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

mod error;
mod order;
mod raw;

pub use error::CopyError;
pub use order::{ranges, Run, TargetLast, LOCALITY_RADIUS};
pub use raw::{clear_raw, copy_raw};

/// Order and kind of stores of a copy or clear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// From begin to end.
    Ascending,
    /// The order of reference 004, one sub-page at a time: [`TargetLast`].
    #[default]
    TargetLast,
    /// Mainline's three contiguous ranges: [`ranges()`].
    Ranges,
}

impl Strategy {
    /// Every strategy, in the order of the tables.
    pub const ALL: [Self; 3] = [Self::Ascending, Self::TargetLast, Self::Ranges];

    /// The name that the command line and the tables use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ascending => "ascending",
            Self::TargetLast => "target-last",
            Self::Ranges => "ranges",
        }
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
