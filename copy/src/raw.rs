//! The loops over a plan that touch raw memory.
#![allow(unsafe_code)]

use super::cpu::{init, Cpu, Isa};
use super::error::CopyError;
use super::error::{check_addr, check_disjoint, check_len};
use super::plan::{each, each_of_clear, Stores, SMALL, TINY};
use super::strategy::Strategy;
#[cfg(all(not(miri), target_arch = "x86_64"))]
use super::x86;
use hugeswap_mm::PAGE_SIZE;

/// How far ahead of a streaming copy its source is prefetched.
#[cfg(all(not(miri), target_arch = "x86_64"))]
const STREAM_AHEAD: isize = 4096;

/// [`super::copy`] on raw memory: `len` bytes from `src` to `dst`.
///
/// Overlap, alignment, length and target are checked and refused, not assumed.
/// On return all stores are ordered before whatever publishes the page.
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
    // SAFETY: the caller's promise is the one that is asked for.
    unsafe { copy_raw_on(Isa::detected(), dst, src, len, target, strategy) }
}

/// [`copy_raw`] with chosen instructions, for tests and comparisons.
///
/// # Safety
/// As [`copy_raw`]. Instructions that the processor lacks are refused.
pub unsafe fn copy_raw_on(
    isa: Isa,
    dst: *mut u8,
    src: *const u8,
    len: usize,
    target: usize,
    strategy: Strategy,
) -> Result<(), CopyError> {
    let nr = check_len(len, target)?;
    check_addr(dst.addr(), len)?;
    check_addr(src.addr(), len)?;
    check_disjoint(dst.addr(), src.addr(), len)?;
    let cpu = init();
    if isa > cpu.isa {
        return Err(CopyError::Unsupported);
    }
    let mut streamed = false;
    each(nr, target, strategy, window(cpu), |step| {
        streamed |= step.stores == Stores::Stream;
        let at = step.run.first * PAGE_SIZE;
        let ahead = (step.next as isize - step.run.first as isize) * PAGE_SIZE as isize;
        // SAFETY: every run of a plan lies within the `nr` sub-pages, which the
        // caller vouches for and the checks above have shown to be disjoint;
        // the processor has `isa`.
        unsafe {
            let (d, s) = (dst.add(at), src.add(at));
            copy_run(
                isa,
                cpu.fast_string,
                d,
                s,
                step.run.nr * PAGE_SIZE,
                step.stores,
                ahead,
            );
        }
    });
    // Blocks leave the target in a cache, but not in the nearest one.
    let warm = strategy == Strategy::Auto && nr > TINY && nr <= SMALL;
    // SAFETY: the target lies within the page; the processor has `isa`.
    unsafe { finish(isa, dst.add(target * PAGE_SIZE), streamed, warm) };
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
    // SAFETY: the caller's promise is the one that is asked for.
    unsafe { clear_raw_on(Isa::detected(), dst, len, target, strategy) }
}

/// [`clear_raw`] with chosen instructions, for tests and comparisons.
///
/// # Safety
/// As [`clear_raw`]. Instructions that the processor lacks are refused.
pub unsafe fn clear_raw_on(
    isa: Isa,
    dst: *mut u8,
    len: usize,
    target: usize,
    strategy: Strategy,
) -> Result<(), CopyError> {
    let nr = check_len(len, target)?;
    check_addr(dst.addr(), len)?;
    let cpu = init();
    if isa > cpu.isa {
        return Err(CopyError::Unsupported);
    }
    let mut streamed = false;
    each_of_clear(nr, target, strategy, window(cpu), |step| {
        streamed |= step.stores == Stores::Stream;
        // SAFETY: every run of a plan lies within the `nr` sub-pages, which the
        // caller vouches for; the processor has `isa`.
        unsafe {
            let d = dst.add(step.run.first * PAGE_SIZE);
            clear_run(
                isa,
                cpu.fast_string,
                d,
                step.run.nr * PAGE_SIZE,
                step.stores,
            );
        }
    });
    // Blocks leave the target in a cache, but not in the nearest one.
    let warm = strategy == Strategy::Auto && nr > TINY && nr <= SMALL.max(window(cpu));
    // SAFETY: the target lies within the page; the processor has `isa`.
    unsafe { finish(isa, dst.add(target * PAGE_SIZE), streamed, warm) };
    Ok(())
}

/// Sub-pages that [`Strategy::Auto`] leaves in the cache: half of the share,
/// the other half being for the source and for what the program had there.
const fn window(cpu: Cpu) -> usize {
    cpu.cache_share / 2 / PAGE_SIZE
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

/// # Safety
/// Disjoint, page-aligned, `len` a positive multiple of the base page; the
/// processor has `isa`.
#[cfg(all(not(miri), target_arch = "x86_64"))]
#[inline]
unsafe fn copy_run(
    isa: Isa,
    fast: bool,
    dst: *mut u8,
    src: *const u8,
    len: usize,
    stores: Stores,
    ahead: isize,
) {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        match (isa, stores) {
            (_, Stores::Plain) => core::ptr::copy_nonoverlapping(src, dst, len),
            (Isa::Portable, _) => portable_copy(dst, src, len),
            (_, Stores::Block) if fast => x86::copy_string(dst, src, len),
            (Isa::Sse2, Stores::Stream) => x86::stream_sse2(dst, src, len, STREAM_AHEAD),
            (Isa::Avx2, Stores::Stream) => x86::stream_avx2(dst, src, len, STREAM_AHEAD),
            (Isa::Avx512, Stores::Stream) => x86::stream_avx512(dst, src, len, STREAM_AHEAD),
            (Isa::Sse2, _) => x86::copy_sse2(dst, src, len, ahead),
            (Isa::Avx2, _) => x86::copy_avx2(dst, src, len, ahead),
            (Isa::Avx512, _) => x86::copy_avx512(dst, src, len, ahead),
        }
    }
}

/// # Safety
/// As [`copy_run`].
#[cfg(all(not(miri), target_arch = "x86_64"))]
#[inline]
unsafe fn clear_run(isa: Isa, fast: bool, dst: *mut u8, len: usize, stores: Stores) {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        match (isa, stores) {
            (Isa::Portable, _) | (_, Stores::Plain) => core::ptr::write_bytes(dst, 0, len),
            (_, Stores::Block | Stores::Single) if fast => x86::clear_string(dst, len),
            (Isa::Sse2, Stores::Stream) => x86::wipe_sse2(dst, len),
            (Isa::Avx2, Stores::Stream) => x86::wipe_avx2(dst, len),
            (Isa::Avx512, Stores::Stream) => x86::wipe_avx512(dst, len),
            (Isa::Sse2, _) => x86::clear_sse2(dst, len),
            (Isa::Avx2, _) => x86::clear_avx2(dst, len),
            (Isa::Avx512, _) => x86::clear_avx512(dst, len),
        }
    }
}

/// Orders what has been `streamed` (other stores are ordered already), fetches the target sub-page if `warm`, and
/// leaves the registers clean.
///
/// # Safety
/// The processor has `isa`.
#[cfg(all(not(miri), target_arch = "x86_64"))]
unsafe fn finish(isa: Isa, target: *const u8, streamed: bool, warm: bool) {
    if streamed {
        x86::fence();
    }
    if warm {
        x86::prefetch_page(target);
    }
    if isa >= Isa::Avx2 {
        // SAFETY: the processor has `isa`.
        unsafe { x86::leave_wide() }
    }
}

/// # Safety
/// Disjoint, `len` a positive multiple of the base page.
#[cfg(any(miri, not(target_arch = "x86_64")))]
unsafe fn copy_run(_: Isa, _: bool, dst: *mut u8, src: *const u8, len: usize, _: Stores, _: isize) {
    // SAFETY: the caller's promise, passed on.
    unsafe { portable_copy(dst, src, len) }
}

/// # Safety
/// As [`copy_run`].
#[cfg(any(miri, not(target_arch = "x86_64")))]
unsafe fn clear_run(_: Isa, _: bool, dst: *mut u8, len: usize, _: Stores) {
    // SAFETY: the caller's promise, passed on.
    unsafe { core::ptr::write_bytes(dst, 0, len) }
}

/// # Safety
/// None here; the other architecture's needs it.
#[cfg(any(miri, not(target_arch = "x86_64")))]
unsafe fn finish(_: Isa, _: *const u8, _: bool, _: bool) {}

/// One sub-page at a time: the C library's `memcpy` copies large blocks
/// downwards when source and destination have the same offset in a page.
///
/// # Safety
/// As [`copy_run`].
unsafe fn portable_copy(dst: *mut u8, src: *const u8, len: usize) {
    for at in (0..len).step_by(PAGE_SIZE) {
        // SAFETY: within `len`, which is a multiple of the base page.
        unsafe { core::ptr::copy_nonoverlapping(src.add(at), dst.add(at), PAGE_SIZE) }
    }
}
