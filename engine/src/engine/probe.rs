//! What this kernel can do, tried out at start.
#![allow(unsafe_code)]

use crate::mm::PMD_SIZE;
use crate::swap_cache::Abilities;
use crate::sys::pagemap::Pagemap;
use crate::sys::uffd::{self, Needs, Source, Uffd};
use crate::sys::{mem, Errno};

/// Opens the program's userfaultfd with every feature that helps and is there.
pub fn open_program(needs: Needs, no_move: bool) -> Result<(Uffd, Source, u64), Errno> {
    let full = uffd::FEATURE_PAGEFAULT_FLAG_WP
        | uffd::FEATURE_THREAD_ID
        | uffd::FEATURE_POISON
        | uffd::FEATURE_MOVE;
    let sets = [
        full,
        full & !uffd::FEATURE_MOVE,
        uffd::FEATURE_PAGEFAULT_FLAG_WP | uffd::FEATURE_THREAD_ID,
    ];
    let mut last = Errno::EINVAL;
    for features in sets {
        if no_move && features & uffd::FEATURE_MOVE != 0 {
            continue;
        }
        match Uffd::open(features, needs) {
            Ok((u, source)) => return Ok((u, source, features)),
            // EINVAL: a feature is unknown to this kernel.
            Err(Errno::EINVAL) => last = Errno::EINVAL,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

/// Finds out what `features` does not say.
pub fn abilities(features: u64) -> Abilities {
    let mv = features & uffd::FEATURE_MOVE != 0;
    Abilities {
        mv,
        pt_reclaim: mv && frees_page_tables().unwrap_or(false),
        poison: features & uffd::FEATURE_POISON != 0,
    }
}

/// Whether MADV_DONTNEED frees page tables: gives a range one, drops its memory, and sees whether
/// a huge page takes the place.
fn frees_page_tables() -> Result<bool, Errno> {
    let addr = mem::reserve_aligned(PMD_SIZE)?;
    // SAFETY: the scratch range is ours alone.
    unsafe {
        let r = (|| {
            mem::mprotect(addr, PMD_SIZE, libc::PROT_READ | libc::PROT_WRITE)?;
            mem::madvise(addr, PMD_SIZE, libc::MADV_NOHUGEPAGE)?;
            (addr as *mut u8).write_volatile(1);
            mem::madvise(addr, PMD_SIZE, libc::MADV_DONTNEED)?;
            mem::madvise(addr, PMD_SIZE, libc::MADV_HUGEPAGE)?;
            (addr as *mut u8).write_volatile(1);
            let map = Pagemap::open()?;
            let huge = map.is_huge(addr, PMD_SIZE);
            map.close();
            huge
        })();
        mem::unmap_own(addr, PMD_SIZE);
        r
    }
}
