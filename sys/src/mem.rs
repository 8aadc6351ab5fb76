//! Mappings of the engine's own, and calls on the program's.

use super::arena;
use super::limits::beyond_memory;
use super::syscall::{syscall, Errno};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use hugeswap_mm::PMD_SIZE;

pub use super::arena::{forget_threads_own, range as arena, set_up as set_up_arena};
pub use super::mmap::{
    close, madvise, map_at_noreplace, move_contents, move_mapping, mprotect, munmap,
};

/// Mappings of the engine's own that could be taken for the program's.
static OWN: [[AtomicUsize; 2]; 64] = [const { [const { AtomicUsize::new(0) }; 2] }; 64];
static OWN_LEN: AtomicUsize = AtomicUsize::new(0);

/// What `map_anon` and `reserve_aligned` mapped, as far as it is noted, what threads have, and the arena.
pub fn own() -> impl Iterator<Item = (usize, usize)> {
    let noted = OWN[..OWN_LEN.load(Relaxed).min(OWN.len())]
        .iter()
        .map(|[s, e]| (s.load(Relaxed), e.load(Relaxed)));
    noted.chain(arena::range())
}

/// Whether the address lies in such memory.
pub fn is_own(addr: usize) -> bool {
    own().any(|(start, end)| addr >= start && addr < end)
}

/// What is small is noted while there is room for it: before there is an arena, at the start.
fn note_mapped(start: usize, len: usize) {
    if len >= 1 << 20 || OWN_LEN.load(Relaxed) < OWN.len() / 2 {
        note_own(start, len);
    }
}

fn note_own(start: usize, len: usize) {
    if let Some([s, e]) = OWN.get(OWN_LEN.fetch_add(1, Relaxed)) {
        s.store(start, Relaxed);
        e.store(start + len, Relaxed);
    }
}

/// Maps anonymous private memory of the engine's own; never managed.
/// It is not touched here, so a large table costs only what is used of it.
pub fn map_anon(len: usize) -> Result<*mut u8, Errno> {
    if let Some(at) = arena::take(len, hugeswap_mm::PAGE_SIZE) {
        return at.map(|at| at as *mut u8);
    }
    // SAFETY: a new mapping at an address of the kernel's choice harms nobody.
    unsafe {
        syscall(
            libc::SYS_mmap,
            [
                0,
                len,
                (libc::PROT_READ | libc::PROT_WRITE) as usize,
                (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize,
                usize::MAX,
                0,
            ],
        )
    }
    .map(|a| {
        note_mapped(a, len);
        a as *mut u8
    })
}

/// As `map_anon`, for what an engine thread has: a forked child, which has no such thread, does not
/// inherit it.
pub fn map_threads_own(len: usize) -> Result<*mut u8, Errno> {
    let a = match arena::take_threads_own(len) {
        Some(at) => at? as *mut u8,
        None => {
            let at = map_anon(len)?;
            note_own(at as usize, len);
            at
        }
    };
    // SAFETY: contents do not change.
    unsafe { madvise(a as usize, len, libc::MADV_DONTFORK) }?;
    Ok(a)
}

/// Addresses for a large mapping of the caller's that a forked child does not inherit, where the kernel places
/// none of the program's. None if there is not that much: the tables need room, too.
pub fn addresses_of_threads(len: usize) -> Option<usize> {
    const MOST: usize = 256 << 30;
    (len <= MOST)
        .then(|| arena::reserve_threads_own(len, PMD_SIZE))
        .flatten()
}

/// What a mapping is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read,
    Write,
}

/// Maps a file that is shared with the supervisor; to write means to read too.
pub fn map_shared(fd: i32, len: usize, access: Access) -> Result<usize, Errno> {
    let at = match arena::take(len, hugeswap_mm::PAGE_SIZE) {
        Some(at) => at?,
        None => 0,
    };
    let over = if at == 0 { 0 } else { libc::MAP_FIXED };
    let prot = match access {
        Access::Read => libc::PROT_READ,
        Access::Write => libc::PROT_READ | libc::PROT_WRITE,
    };
    let flags = (libc::MAP_SHARED | over) as usize;
    let args = [at, len, prot as usize, flags, fd as usize, 0];
    // SAFETY: a new mapping, over addresses that were taken for it.
    let map = || beyond_memory(|| unsafe { syscall(libc::SYS_mmap, args) });
    let mut mapped = map();
    if mapped == Err(Errno::ENOMEM) && arena::use_spare() {
        mapped = map();
    }
    if mapped.is_err() && at != 0 {
        // SAFETY: taken just now, and nobody knows of it.
        unsafe { unmap_own(at, len) };
    }
    mapped
}

/// The end of what `map_anon`, `map_shared` or `reserve_aligned` mapped.
///
/// # Safety
/// Nothing may use it any more.
pub unsafe fn unmap_own(addr: usize, len: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        if !arena::give_back(addr, len) {
            let _ = munmap(addr, len);
        }
    }
}

/// A 2 MiB-aligned stretch of inaccessible addresses, for mappings of the caller's.
pub fn reserve_aligned(len: usize) -> Result<usize, Errno> {
    if let Some(at) = arena::reserve(len, PMD_SIZE) {
        return at;
    }
    let whole = len + PMD_SIZE;
    // SAFETY: as map_anon.
    let a = unsafe {
        syscall(
            libc::SYS_mmap,
            [
                0,
                whole,
                libc::PROT_NONE as usize,
                (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize,
                usize::MAX,
                0,
            ],
        )
    }?;
    let start = (a + PMD_SIZE - 1) & !(PMD_SIZE - 1);
    note_mapped(start, len);
    let end = start + len;
    // SAFETY: the edges belong to the mapping just made and nobody knows of them.
    unsafe {
        if start > a {
            let _ = munmap(a, start - a);
        }
        if a + whole > end {
            let _ = munmap(end, a + whole - end);
        }
    }
    Ok(start)
}

/// A table of `n` zeroed elements in memory of the engine's own that is touched only as used.
///
/// # Safety
/// All-zero bytes must be a valid `T`.
pub unsafe fn map_table<T>(n: usize) -> Result<&'static mut [T], Errno> {
    let a = map_anon(n * size_of::<T>())? as *mut T;
    // SAFETY: mapped with this size, page-aligned, never unmapped, handed out once.
    Ok(unsafe { core::slice::from_raw_parts_mut(a, n) })
}

/// Copies memory of the program's, of which part may be missing or not mapped at all.
///
/// # Safety
/// `to` must be memory of the engine's own of that length.
pub unsafe fn copy_from_program(from: usize, to: *mut u8, len: usize) -> Result<(), Errno> {
    let here = libc::iovec {
        iov_base: to.cast(),
        iov_len: len,
    };
    let there = libc::iovec {
        iov_base: from as *mut _,
        iov_len: len,
    };
    // SAFETY: the caller's contract; the kernel looks whether the source may be read.
    let n = unsafe {
        syscall(
            libc::SYS_process_vm_readv,
            [
                // Not the process's: its first thread may have ended.
                super::syscall::gettid() as usize,
                &here as *const _ as usize,
                1,
                &there as *const _ as usize,
                1,
                0,
            ],
        )
    }?;
    if n == len {
        Ok(())
    } else {
        Err(Errno(libc::EFAULT))
    }
}

/// Which of `n` (at most 512) pages from `addr` on are in memory (mincore).
pub fn resident(addr: usize, n: usize) -> Result<impl Iterator<Item = bool>, Errno> {
    let mut vec = [0u8; 512];
    // SAFETY: the vector is large enough for n <= 512 pages.
    unsafe {
        syscall(
            libc::SYS_mincore,
            [addr, n.min(512) * 4096, vec.as_mut_ptr() as usize],
        )
    }?;
    Ok(vec.into_iter().take(n).map(|b| b & 1 != 0))
}

/// Pages that `is_any_resident` looks at, at most.
pub const LOOK: usize = 16 << 10;

/// Whether any of `n` pages from `addr` on is in memory.
pub fn is_any_resident(addr: usize, n: usize) -> Result<bool, Errno> {
    let mut vec = [0u8; LOOK];
    let n = n.min(LOOK);
    // SAFETY: the vector has an element for each page.
    unsafe {
        syscall(
            libc::SYS_mincore,
            [addr, n * hugeswap_mm::PAGE_SIZE, vec.as_mut_ptr() as usize],
        )
    }?;
    Ok(vec[..n].iter().any(|b| b & 1 != 0))
}
