//! What the program asks of its memory and the kernel can't know: our mappings look like memory to it.

use crate::bare::lay_bare;
use crate::frame::Result;
use crate::manageable::{pages, TOP};
use crate::state::{state, Area};
use crate::stretch::reserve;
use hugeswap::mm::PAGE_SIZE;
use hugeswap::sys::syscall::{check, raw};
use hugeswap::sys::Errno;

/// mseal(2), which no C library has a function for yet.
pub const SYS_MSEAL: i64 = 462;

/// A call that changes mappings, and refuses a stretch with holes.
pub fn with_holes(nr: i64, a: [usize; 6]) -> Result<usize> {
    // SAFETY: the program's own call.
    let plain = || check(unsafe { raw(nr, a) });
    let end = pages(a[1]).and_then(|len| a[0].checked_add(len));
    let Some(end) = end.filter(|&end| a[0] % PAGE_SIZE == 0 && end <= TOP) else {
        return plain();
    };
    let _own = reserve(a[0], end);
    lay_bare(a[0], end)?;
    plain()
}

/// mincore(2), by which unwinders find out whether an address is mapped: what of the window
/// is unused is not.
pub fn mincore(a: [usize; 6]) -> Result<usize> {
    // SAFETY: the program's own call.
    let said = check(unsafe { raw(libc::SYS_mincore, a) })?;
    let (start, end) = (a[0], a[0] + a[1].next_multiple_of(PAGE_SIZE));
    let is_free = |(area, _, _): &(Area, usize, usize)| *area == Area::Free;
    let is_unused = state().lock().areas(start, end).iter().any(is_free);
    match is_unused {
        true => Err(Errno::ENOMEM),
        false => Ok(said),
    }
}
