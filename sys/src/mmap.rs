//! Calls on mappings, whosever they are.

use super::syscall::{syscall, Errno};

/// Maps anonymous private memory at exactly `addr`; fails with EEXIST where something is mapped.
///
/// # Safety
/// The range must be the caller's to use.
pub unsafe fn map_at_noreplace(addr: usize, len: usize, prot: i32) -> Result<(), Errno> {
    // SAFETY: the caller's contract; nothing existing is replaced.
    let got = unsafe {
        syscall(
            libc::SYS_mmap,
            [
                addr,
                len,
                prot as usize,
                (libc::MAP_PRIVATE
                    | libc::MAP_ANONYMOUS
                    | libc::MAP_NORESERVE
                    | libc::MAP_FIXED_NOREPLACE) as usize,
                usize::MAX,
                0,
            ],
        )
    }?;
    if got != addr {
        // A kernel before 4.17 takes the address as a hint.
        // SAFETY: the mapping just made.
        let _ = unsafe { munmap(got, len) };
        return Err(Errno::EEXIST);
    }
    Ok(())
}

/// # Safety
/// Nothing may use the range any more.
pub unsafe fn munmap(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    unsafe { syscall(libc::SYS_munmap, [addr, len]) }.map(drop)
}

/// # Safety
/// As the advice: MADV_DONTNEED drops the contents.
pub unsafe fn madvise(addr: usize, len: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    unsafe { syscall(libc::SYS_madvise, [addr, len, advice as usize]) }.map(drop)
}

/// # Safety
/// Nothing may rely on the former protection.
pub unsafe fn mprotect(addr: usize, len: usize, prot: i32) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    unsafe { syscall(libc::SYS_mprotect, [addr, len, prot as usize]) }.map(drop)
}

const MREMAP_DONTUNMAP: i32 = 4;

/// Moves what is mapped to `to`, where it replaces what is there. The old mapping stays as it is, with nothing in it
/// (Linux 5.7); the new one belongs to no userfaultfd.
///
/// # Safety
/// What is at `to` is the caller's, and nobody needs it.
pub unsafe fn move_contents(from: usize, to: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    unsafe { remap(from, to, len, MREMAP_DONTUNMAP) }
}

/// Moves a mapping with all that is in it to `to`, where it replaces what is there.
///
/// # Safety
/// As `move_contents`; and nobody uses the mapping at its old place.
pub unsafe fn move_mapping(from: usize, to: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    unsafe { remap(from, to, len, 0) }
}

unsafe fn remap(from: usize, to: usize, len: usize, also: i32) -> Result<(), Errno> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | also;
    // SAFETY: the caller's contract.
    unsafe { syscall(libc::SYS_mremap, [from, len, len, flags as usize, to]) }.map(drop)
}

/// Replaces whatever is mapped there by addresses that are taken and inaccessible.
///
/// # Safety
/// Nothing may use the range any more.
pub unsafe fn close(addr: usize, len: usize) -> Result<(), Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let prot = libc::PROT_NONE as usize;
    // SAFETY: the caller's contract.
    unsafe {
        syscall(
            libc::SYS_mmap,
            [addr, len, prot, flags as usize, usize::MAX, 0],
        )
    }
    .map(drop)
}
