//! Memory for the tables of a device: reserved as address space, given by the
//! kernel page by page as it is touched, zero until then.
#![allow(unsafe_code)]

use core::ops::{Deref, DerefMut};
#[cfg(not(loom))]
use hugeswap_sys::mem;

/// A type for which memory full of zeroes is a value, and that needs no drop.
///
/// # Safety
/// Both hold, and the alignment is at most a page.
pub unsafe trait Zeroed: Copy {}

/// A slice of `T` in an anonymous mapping of its own.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct LazySlice<T: Zeroed> {
    base: core::ptr::NonNull<T>,
    len: usize,
}

#[cfg(not(loom))]
// SAFETY: it owns its memory like a boxed slice.
unsafe impl<T: Zeroed + Send> Send for LazySlice<T> {}
#[cfg(not(loom))]
// SAFETY: shared references to it give only shared references to `T`.
unsafe impl<T: Zeroed + Sync> Sync for LazySlice<T> {}

#[cfg(not(loom))]
impl<T: Zeroed> LazySlice<T> {
    /// `None` when the kernel grants no address space.
    pub fn new(len: usize) -> Option<Self> {
        let bytes = len.checked_mul(core::mem::size_of::<T>())?;
        if bytes == 0 {
            return Some(LazySlice {
                base: core::ptr::NonNull::dangling(),
                len: 0,
            });
        }
        // The engine's own memory, and known as such to the hooks.
        let base = mem::map_anon(bytes).ok()?.cast::<libc::c_void>();
        // A huge page for the first touch would cost 2 MiB and its clearing.
        // SAFETY: the range is the mapping just made; the advice changes no content.
        let _ = unsafe { mem::madvise(base as usize, bytes, libc::MADV_NOHUGEPAGE) };
        let base = core::ptr::NonNull::new(base.cast::<T>())?;
        Some(LazySlice { base, len })
    }

    /// Gives the memory back and reads as zeroes again.
    pub fn reset(&mut self) {
        let bytes = self.len * core::mem::size_of::<T>();
        if bytes != 0 {
            // SAFETY: the range is our mapping, `&mut self` says nobody looks
            // at it, and `T: Zeroed` makes the zeroes that follow values.
            let _ =
                unsafe { mem::madvise(self.base.as_ptr() as usize, bytes, libc::MADV_DONTNEED) };
        }
    }
}

#[cfg(not(loom))]
impl<T: Zeroed> Drop for LazySlice<T> {
    fn drop(&mut self) {
        let bytes = self.len * core::mem::size_of::<T>();
        if bytes != 0 {
            // SAFETY: the range is our mapping and nothing borrows it any more.
            unsafe { mem::unmap_own(self.base.as_ptr() as usize, bytes) };
        }
    }
}

#[cfg(not(loom))]
impl<T: Zeroed> Deref for LazySlice<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `base` is valid for `len` values: the mapping is that long,
        // page-aligned, and its zeroes are values of `T: Zeroed`.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

#[cfg(not(loom))]
impl<T: Zeroed> DerefMut for LazySlice<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` makes it the only reference.
        unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

/// Under loom the tables are small, and the heap will do.
#[cfg(loom)]
#[derive(Debug)]
pub struct LazySlice<T: Zeroed>(Vec<T>);

#[cfg(loom)]
impl<T: Zeroed> LazySlice<T> {
    pub fn new(len: usize) -> Option<Self> {
        // SAFETY: `T: Zeroed` says that zeroes are a value.
        Some(LazySlice(vec![unsafe { core::mem::zeroed() }; len]))
    }

    pub fn reset(&mut self) {
        // SAFETY: as above.
        self.0.fill(unsafe { core::mem::zeroed() });
    }
}

#[cfg(loom)]
impl<T: Zeroed> Deref for LazySlice<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

#[cfg(loom)]
impl<T: Zeroed> DerefMut for LazySlice<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}
