//! What is refused before a byte is touched, and the checks themselves. Pure.

use hugeswap_mm::PAGE_SIZE;

/// Why a copy or clear was refused. Nothing has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CopyError {
    /// The length is zero.
    Empty,
    /// The length is not a whole number of base pages.
    PartialPage,
    /// Source and destination differ in length.
    LengthMismatch,
    /// The target sub-page lies outside the huge page.
    TargetOutside,
    /// Source or destination is not aligned to a base page.
    Misaligned,
    /// Source or destination is null or runs past the end of the address space.
    BadAddress,
    /// Source and destination overlap.
    Overlap,
    /// The processor lacks the instructions that were asked for.
    Unsupported,
}

impl CopyError {
    /// The message, in the manner of `strerror`.
    pub const fn message(self) -> &'static str {
        match self {
            Self::Empty => "the length is zero",
            Self::PartialPage => "the length is not a whole number of base pages",
            Self::LengthMismatch => "source and destination differ in length",
            Self::TargetOutside => "the target sub-page lies outside the huge page",
            Self::Misaligned => "source or destination is not aligned to a base page",
            Self::BadAddress => "source or destination is null or wraps around",
            Self::Overlap => "source and destination overlap",
            Self::Unsupported => "the processor lacks these instructions",
        }
    }
}

impl core::fmt::Display for CopyError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for CopyError {}

/// Number of sub-pages in `len` bytes, with `target` among them.
pub(super) const fn check_len(len: usize, target: usize) -> Result<usize, CopyError> {
    if len == 0 {
        return Err(CopyError::Empty);
    }
    if len % PAGE_SIZE != 0 {
        return Err(CopyError::PartialPage);
    }
    let nr = len / PAGE_SIZE;
    if target >= nr {
        return Err(CopyError::TargetOutside);
    }
    Ok(nr)
}

/// `start..start + len` is page-aligned, not null and within what one Rust
/// object may span.
pub(super) const fn check_addr(start: usize, len: usize) -> Result<(), CopyError> {
    if start % PAGE_SIZE != 0 {
        return Err(CopyError::Misaligned);
    }
    if start == 0 || len > isize::MAX as usize || start.checked_add(len).is_none() {
        return Err(CopyError::BadAddress);
    }
    Ok(())
}

/// Two ranges of `len` bytes, both checked by [`check_addr`], are disjoint.
pub(super) const fn check_disjoint(a: usize, b: usize, len: usize) -> Result<(), CopyError> {
    if a.abs_diff(b) < len {
        return Err(CopyError::Overlap);
    }
    Ok(())
}
