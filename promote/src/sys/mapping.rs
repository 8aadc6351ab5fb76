//! A file's pages: mapped, entered, asked for, moved.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::OnceLock;

use super::{check, owned};
use crate::page::PAGE;

const MPOL_MF_MOVE: libc::c_int = 1 << 1;
const MPOL_MF_MOVE_ALL: libc::c_int = 1 << 2;

/// A file in memory that what is read is written to; a page of it.
fn sink() -> io::Result<BorrowedFd<'static>> {
    static SINK: OnceLock<std::fs::File> = OnceLock::new();
    if let Some(sink) = SINK.get() {
        return Ok(sink.as_fd());
    }
    let file = memory_file(0)?;
    Ok(SINK.get_or_init(|| file).as_fd())
}

/// A file of so many bytes in memory, as tmpfs has them.
pub fn memory_file(size: u64) -> io::Result<std::fs::File> {
    // SAFETY: the name ends in 0.
    let fd = unsafe { owned(libc::memfd_create(c"hugeswap".as_ptr(), libc::MFD_CLOEXEC).into())? };
    let file = std::fs::File::from(fd);
    file.set_len(size)?;
    Ok(file)
}

/// Which folios may be moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mapped {
    /// Those that others have mapped too.
    ByAnyone,
    ByUsAlone,
}

/// A part of a file, mapped to be looked at.
pub struct Mapping {
    base: *mut libc::c_void,
    pages: usize,
}

impl Mapping {
    /// `first` counts pages.
    pub fn new(file: BorrowedFd, first: u64, pages: usize) -> io::Result<Mapping> {
        // SAFETY: a new mapping; nothing is replaced.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                pages * PAGE as usize,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                (first * PAGE) as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Mapping { base, pages };
        // No readahead, whatever the file's pages are marked with: nothing is
        // read from the disk because we look.
        mapping.advise(0, pages, libc::MADV_RANDOM)?;
        Ok(mapping)
    }

    fn advise(&self, first: usize, pages: usize, advice: libc::c_int) -> io::Result<()> {
        assert!(first + pages <= self.pages);
        // SAFETY: within our mapping, and no advice of ours changes memory.
        let ret = unsafe { libc::madvise(self.address(first), pages * PAGE as usize, advice) };
        check(ret.into()).map(drop)
    }

    fn address(&self, page: usize) -> *mut libc::c_void {
        assert!(page <= self.pages);
        self.base.wrapping_byte_add(page * PAGE as usize)
    }

    /// The virtual page number of a page.
    pub fn vpn(&self, page: usize) -> u64 {
        self.address(page) as u64 / PAGE
    }

    /// Which pages the page cache has, as `mincore` says: bit 0.
    pub fn resident(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0u8; self.pages];
        // SAFETY: the vector has a byte for each page of our mapping.
        let ret = unsafe {
            libc::mincore(
                self.base,
                self.pages * PAGE as usize,
                bytes.as_mut_ptr().cast(),
            )
        };
        check(ret.into())?;
        Ok(bytes)
    }

    /// Enters pages into our page table, with what the kernel enters around
    /// them. A byte of each is written to a file in memory: the kernel reads
    /// it, so a file that has become shorter is an error and not a SIGBUS.
    /// (MADV_POPULATE_READ would be simpler, but marks pages accessed.)
    pub fn enter(&self, pages: &[usize]) -> io::Result<()> {
        let sink = sink()?;
        let bytes: Vec<libc::iovec> = pages
            .iter()
            .map(|&page| libc::iovec {
                iov_base: self.address(page),
                iov_len: 1,
            })
            .collect();
        for mut some in bytes.chunks(512) {
            while !some.is_empty() {
                // SAFETY: each byte is in our mapping, which the kernel reads
                // as it would any address.
                let ret = unsafe {
                    libc::pwritev(
                        sink.as_raw_fd(),
                        some.as_ptr(),
                        some.len() as libc::c_int,
                        0,
                    )
                };
                // What comes after those that were read can't be.
                let read = usize::try_from(ret).unwrap_or(0);
                some = some.get(read + 1..).unwrap_or_default();
            }
        }
        Ok(())
    }

    /// On which node each of `pages` is; a negative number is an errno.
    pub fn nodes(&self, pages: &[usize]) -> io::Result<Vec<i32>> {
        self.move_pages(pages, None, 0)
    }

    /// Moves the folios of `pages` to `node`; gives
    /// their nodes or errnos, as far as the kernel has written them.
    pub fn migrate(&self, pages: &[usize], node: i32, mapped: Mapped) -> io::Result<Vec<i32>> {
        let flags = match mapped {
            Mapped::ByAnyone => MPOL_MF_MOVE_ALL,
            Mapped::ByUsAlone => MPOL_MF_MOVE,
        };
        self.move_pages(pages, Some(&vec![node; pages.len()]), flags)
    }

    fn move_pages(
        &self,
        pages: &[usize],
        nodes: Option<&[libc::c_int]>,
        flags: libc::c_int,
    ) -> io::Result<Vec<i32>> {
        let addresses: Vec<_> = pages.iter().map(|&page| self.address(page)).collect();
        // What the kernel does not write was not moved.
        let mut status = vec![-libc::EBUSY; pages.len()];
        // SAFETY: all three arrays have one entry for each page.
        let ret = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                pages.len(),
                addresses.as_ptr(),
                nodes.map_or(ptr::null(), <[_]>::as_ptr),
                status.as_mut_ptr(),
                flags,
            )
        };
        // A positive result is how many were not moved; their status says so.
        check(ret)?;
        Ok(status)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Unmapping marks pages accessed that the hardware has marked in our
        // page table, except in mappings that are read from begin to end
        // (before Linux 6.3 those with MADV_RANDOM are marked too). So that
        // is what this is, from here on, and the pages' age stays theirs.
        let _ = self.advise(0, self.pages, libc::MADV_SEQUENTIAL);
        // SAFETY: our own mapping; nothing points into it.
        unsafe { libc::munmap(self.base, self.pages * PAGE as usize) };
    }
}
