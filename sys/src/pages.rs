//! Pages of the engine's own, which it fills and gives back.

use super::mem::{map_anon, map_threads_own};
use super::mmap::madvise;
use super::syscall::Errno;
use core::ops::Range;
use core::ptr::NonNull;
use hugeswap_mm::{Page, PAGE_SIZE};

/// Pages that are zeros until they are written to. They stay mapped for ever: the threads that have them end
/// with the process.
pub struct OwnPages {
    base: NonNull<Page>,
    pages: usize,
}

// SAFETY: nobody else knows the address, and all that reads or writes through `&self` is the caller's, by a raw pointer.
unsafe impl Send for OwnPages {}
// SAFETY: as above.
unsafe impl Sync for OwnPages {}

impl OwnPages {
    pub fn new(pages: usize) -> Result<OwnPages, Errno> {
        Self::at_base(map_anon(pages * PAGE_SIZE)?, pages)
    }

    /// A forked child does not have them (see [`map_threads_own`]).
    pub fn of_thread(pages: usize) -> Result<OwnPages, Errno> {
        Self::at_base(map_threads_own(pages * PAGE_SIZE)?, pages)
    }

    fn at_base(base: *mut u8, pages: usize) -> Result<OwnPages, Errno> {
        let base = NonNull::new(base.cast::<Page>()).ok_or(Errno::ENOMEM)?;
        Ok(OwnPages { base, pages })
    }

    /// The address of a page. One too far is the last one's.
    #[inline]
    pub fn at(&self, page: usize) -> *mut u8 {
        let page = page.min(self.pages.saturating_sub(1));
        self.base.as_ptr().wrapping_add(page).cast()
    }

    /// These pages are zeros again, and take no memory. False if the kernel refused.
    pub fn forget(&mut self, pages: Range<usize>) -> bool {
        let within = pages.start <= pages.end && pages.end <= self.pages;
        let (at, len) = (self.at(pages.start) as usize, pages.len() * PAGE_SIZE);
        // SAFETY: our own mapping, to which nobody has a reference.
        within && unsafe { madvise(at, len, libc::MADV_DONTNEED) }.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_is_zeros_and_nothing_else() {
        let mut pages = OwnPages::new(3).unwrap();
        // SAFETY: nobody else has them.
        let write = |pages: &OwnPages, i| unsafe { pages.at(i).write(7) };
        // SAFETY: the same.
        let read = |pages: &OwnPages, i| unsafe { pages.at(i).read() };
        for i in 0..3 {
            write(&pages, i);
        }
        assert!(pages.forget(1..2));
        assert_eq!([0, 1, 2].map(|i| read(&pages, i)), [7, 0, 7]);
        assert!(!pages.forget(2..4));
        assert_eq!(pages.at(9), pages.at(2));
    }
}
