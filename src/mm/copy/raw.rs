//! The loops over a plan that touch raw memory.
#![allow(unsafe_code)]

use super::error::{check_addr, check_disjoint, check_len};
use super::order::{ranges, Run, TargetLast};
use super::{CopyError, Strategy};
use crate::mm::PAGE_SIZE;

/// [`super::copy`] on raw memory: `len` bytes from `src` to `dst`.
///
/// Overlap, alignment, length and target are checked and refused, not assumed.
///
/// # Safety
/// If the checks pass, `src` must be readable and `dst` writable for `len`
/// bytes for the duration of the call, and nothing else may write either or
/// read `dst` meanwhile. `dst` need not be initialised.
pub unsafe fn copy_raw(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    target: usize,
    strategy: Strategy,
) -> Result<(), CopyError> {
    let nr = check_len(len, target)?;
    check_addr(dst as usize, len)?;
    check_addr(src as usize, len)?;
    check_disjoint(dst as usize, src as usize, len)?;
    each_run(nr, target, strategy, |run| {
        let at = run.first * PAGE_SIZE;
        // SAFETY: every run of a plan lies within the `nr` sub-pages, which the
        // caller vouches for and the checks above have shown to be disjoint.
        unsafe { core::ptr::copy_nonoverlapping(src.add(at), dst.add(at), run.nr * PAGE_SIZE) }
    });
    Ok(())
}

/// [`super::clear`] on raw memory: `len` bytes at `dst`.
///
/// # Safety
/// If the checks pass, `dst` must be writable for `len` bytes for the duration
/// of the call, and nothing else may access it meanwhile. It need not be
/// initialised.
pub unsafe fn clear_raw(
    dst: *mut u8,
    len: usize,
    target: usize,
    strategy: Strategy,
) -> Result<(), CopyError> {
    let nr = check_len(len, target)?;
    check_addr(dst as usize, len)?;
    each_run(nr, target, strategy, |run| {
        // SAFETY: every run of a plan lies within the `nr` sub-pages, which the
        // caller vouches for.
        unsafe { core::ptr::write_bytes(dst.add(run.first * PAGE_SIZE), 0, run.nr * PAGE_SIZE) }
    });
    Ok(())
}

pub(super) fn copy_slices(
    dst: &mut [u8],
    src: &[u8],
    target: usize,
    strategy: Strategy,
) -> Result<(), CopyError> {
    let len = dst.len().min(src.len());
    // SAFETY: `src` is shared and `dst` exclusive for at least `len` bytes.
    unsafe { copy_raw(dst.as_mut_ptr(), src.as_ptr(), len, target, strategy) }
}

pub(super) fn clear_slice(
    dst: &mut [u8],
    target: usize,
    strategy: Strategy,
) -> Result<(), CopyError> {
    // SAFETY: `dst` is exclusive for its whole length.
    unsafe { clear_raw(dst.as_mut_ptr(), dst.len(), target, strategy) }
}

#[inline]
fn each_run(nr: usize, target: usize, strategy: Strategy, mut f: impl FnMut(Run)) {
    match strategy {
        Strategy::Ascending => f(Run { first: 0, nr }),
        Strategy::TargetLast => {
            TargetLast::new(nr, target).for_each(|first| f(Run { first, nr: 1 }))
        }
        Strategy::Ranges => ranges(nr, target).into_iter().flatten().for_each(f),
    }
}
