//! What the swap cache asks of memory: that pages move, are copied, and go. The kernel does it for a program
//! ([`Kernel`]); the tests have a memory of their own, which knows where each page is and refuses when it is told to.
#![allow(unsafe_code)]

use crate::mm::{PageMask, Pmd};
use crate::sys::pagemap::Pagemap;
use crate::sys::uffd::{Refused, Uffd};
use crate::sys::{mem, Errno};
use core::ops::Range;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// Which way pages go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dir {
    /// From the program to a frame.
    Out,
    /// From a frame to the program.
    In,
}

/// Addresses are of the program, or of frames; lengths are in bytes, whole pages.
pub trait Memory {
    /// Moves the pages of `src` to `dst`, where none may be, and wakes who waits for them. `uncounted`: see
    /// [`Uffd::mv`].
    ///
    /// # Safety
    /// As [`Uffd::mv`].
    unsafe fn mv(
        &self,
        dir: Dir,
        dst: usize,
        src: usize,
        len: usize,
        uncounted: &mut usize,
    ) -> Result<(), Refused>;

    /// Fills missing pages with a copy: of the program, and wakes who waits; or of a frame (see [`Uffd::copy`]).
    fn copy(&self, dir: Dir, dst: usize, src: *const u8, len: usize) -> Result<(), Refused>;

    /// Fills missing pages of the program with a copy that traps writes (see `trap_writes`).
    fn copy_protected(&self, dst: usize, src: *const u8, len: usize) -> Result<(), Refused>;

    /// Who touches these missing pages of the program gets SIGBUS.
    fn poison(&self, at: usize, len: usize) -> Result<(), Refused>;

    /// Who writes to these pages of the program waits.
    fn trap_writes(&self, at: usize, len: usize) -> Result<(), Errno>;

    /// The end of `trap_writes`.
    fn allow_writes(&self, at: usize, len: usize) -> Result<(), Errno>;

    /// Threads of the program that wait there look again.
    fn wake(&self, at: usize, len: usize);

    /// The pages and what is in them go; they are missing then.
    ///
    /// # Safety
    /// Nobody needs what is in them.
    unsafe fn drop_pages(&self, at: usize, len: usize) -> Result<(), Errno>;

    /// As `drop_pages`, also where the program has locked them.
    ///
    /// # Safety
    /// As `drop_pages`.
    unsafe fn drop_even_locked(&self, at: usize, len: usize) -> Result<(), Errno>;

    /// The kernel may take the pages and what is in them, one by one, now or later, unless they are written to.
    ///
    /// # Safety
    /// Nobody relies on what is in them.
    unsafe fn free_lazily(&self, at: usize, len: usize) -> Result<(), Errno>;

    /// What is missing is there then, zeroed, and what is shared with other processes is this one's own.
    fn populate(&self, at: usize, len: usize) -> Result<(), Errno>;

    /// Reads pages of the program or of a frame, which may be gone: an error then.
    ///
    /// # Safety
    /// `to` is memory of the engine's own, of that length.
    unsafe fn read(&self, from: usize, to: *mut u8, len: usize) -> Result<(), Errno>;

    /// Whether anything is mapped at these addresses of the program.
    fn is_mapped(&self, at: usize, pages: usize) -> bool;

    /// Which of these pages of a range of the program are there; none where it can't be known.
    fn which_are_there(&self, pmd: Pmd, pages: Range<usize>) -> Option<PageMask>;

    /// Whether one huge page is there; none where it can't be known.
    fn is_huge(&self, at: usize, len: usize) -> Option<bool>;

    /// Pages may be moved to these addresses.
    fn accept(&self, at: usize, len: usize) -> Result<(), Errno>;
}

/// Memory as the kernel has it, reached by two userfaultfds and a page map. All change in a forked child.
pub struct Kernel {
    program: AtomicI32,
    staging: AtomicI32,
    /// `/proc/self/pagemap`; -1 where it cannot be had.
    pagemap: AtomicI32,
}

impl Kernel {
    pub fn new(program: Uffd, staging: Uffd, pagemap: i32) -> Kernel {
        Kernel {
            program: AtomicI32::new(program.fd()),
            staging: AtomicI32::new(staging.fd()),
            pagemap: AtomicI32::new(pagemap),
        }
    }

    pub(super) fn set(&self, program: Uffd, staging: Uffd, pagemap: i32) {
        self.program.store(program.fd(), Relaxed);
        self.staging.store(staging.fd(), Relaxed);
        self.pagemap.store(pagemap, Relaxed);
    }

    #[inline]
    pub(super) fn program(&self) -> Uffd {
        Uffd::from_fd(self.program.load(Relaxed))
    }

    #[inline]
    pub(super) fn staging(&self) -> Uffd {
        Uffd::from_fd(self.staging.load(Relaxed))
    }

    pub(super) fn pagemap_fd(&self) -> i32 {
        self.pagemap.load(Relaxed)
    }

    #[inline]
    pub(super) fn pagemap(&self) -> Pagemap {
        Pagemap::from_fd(self.pagemap_fd())
    }

    #[inline]
    fn at_end_of(&self, dir: Dir) -> Uffd {
        match dir {
            Dir::Out => self.staging(),
            Dir::In => self.program(),
        }
    }
}

impl Memory for Kernel {
    #[inline]
    unsafe fn mv(
        &self,
        dir: Dir,
        dst: usize,
        src: usize,
        len: usize,
        uncounted: &mut usize,
    ) -> Result<(), Refused> {
        // SAFETY: the caller's contract.
        unsafe {
            self.at_end_of(dir)
                .mv(dst, src, len, self.pagemap(), uncounted)
        }
    }

    #[inline]
    fn copy(&self, dir: Dir, dst: usize, src: *const u8, len: usize) -> Result<(), Refused> {
        self.at_end_of(dir).copy(dst, src, len)
    }

    fn copy_protected(&self, dst: usize, src: *const u8, len: usize) -> Result<(), Refused> {
        self.program().copy_protected(dst, src, len)
    }

    fn poison(&self, at: usize, len: usize) -> Result<(), Refused> {
        self.program().poison(at, len)
    }

    fn trap_writes(&self, at: usize, len: usize) -> Result<(), Errno> {
        self.program().trap_writes(at, len)
    }

    fn allow_writes(&self, at: usize, len: usize) -> Result<(), Errno> {
        self.program().allow_writes(at, len)
    }

    #[inline]
    fn wake(&self, at: usize, len: usize) {
        self.program().wake(at, len);
    }

    #[inline]
    unsafe fn drop_pages(&self, at: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: the caller's contract.
        unsafe { mem::madvise(at, len, libc::MADV_DONTNEED) }
    }

    unsafe fn drop_even_locked(&self, at: usize, len: usize) -> Result<(), Errno> {
        // Since Linux 5.18.
        const MADV_DONTNEED_LOCKED: i32 = 24;
        // SAFETY: the caller's contract.
        unsafe { mem::madvise(at, len, MADV_DONTNEED_LOCKED) }
    }

    unsafe fn free_lazily(&self, at: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: the caller's contract.
        unsafe { mem::madvise(at, len, libc::MADV_FREE) }
    }

    fn populate(&self, at: usize, len: usize) -> Result<(), Errno> {
        const MADV_POPULATE_WRITE: i32 = 23;
        // SAFETY: contents do not change; a page of the program's that is missing is served by the handler.
        unsafe { mem::madvise(at, len, MADV_POPULATE_WRITE) }
    }

    unsafe fn read(&self, from: usize, to: *mut u8, len: usize) -> Result<(), Errno> {
        // SAFETY: the caller's contract.
        unsafe { mem::copy_from_program(from, to, len) }
    }

    fn is_mapped(&self, at: usize, pages: usize) -> bool {
        mem::resident(at, pages).is_ok()
    }

    fn which_are_there(&self, pmd: Pmd, pages: Range<usize>) -> Option<PageMask> {
        let resident = mem::resident(pmd.page_addr(pages.start), pages.len()).ok()?;
        let mut there = PageMask::EMPTY;
        for (page, _) in pages.zip(resident).filter(|(_, is_there)| *is_there) {
            there.insert(page);
        }
        Some(there)
    }

    fn is_huge(&self, at: usize, len: usize) -> Option<bool> {
        self.pagemap().is_huge(at, len).ok()
    }

    fn accept(&self, at: usize, len: usize) -> Result<(), Errno> {
        self.staging().register_destination(at, len)
    }
}
