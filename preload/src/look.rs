//! What the program asks of its memory and the kernel can't know: our mappings look like memory to it.

use crate::frame::Result;
use crate::state::{state, Area};
use hugeswap::mm::PAGE_SIZE;
use hugeswap::sys::syscall::{check, raw};
use hugeswap::sys::Errno;

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
