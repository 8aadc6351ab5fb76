//! Memory that the program registers with a userfaultfd of its own. The kernel allows one for each
//! mapping: so ours lets go of it, and it is unmanaged until it is unmapped.

use crate::bare::lay_bare;
use crate::lock;
use crate::manageable::TOP;
use crate::state::state;
use crate::stretch::reserve;
use hugeswap::engine::Engine;
use hugeswap::mm::PAGE_SIZE;
use hugeswap::sys::{mem, Errno};

/// The ioctl UFFDIO_REGISTER.
pub const REGISTER: usize = 0xc020_aa00;

/// In a hook, when that ioctl found the memory taken; and, `refused`, when it failed then all the same.
/// `registration` is its `struct uffdio_register`.
pub fn registered(
    e: &Engine,
    bell: usize,
    registration: usize,
    refused: bool,
) -> Result<usize, Errno> {
    let mut range = [0usize; 2];
    // SAFETY: memory of ours, as long as said.
    unsafe {
        mem::copy_from_program(registration, range.as_mut_ptr().cast(), size_of_val(&range))
    }?;
    let [start, len] = range;
    let end = start.checked_add(len).ok_or(Errno::EINVAL)?;
    if start % PAGE_SIZE != 0 || len % PAGE_SIZE != 0 || len == 0 || end > TOP {
        // The kernel refuses it.
        return Err(Errno::EINVAL);
    }
    let _own = reserve(start, end);
    if refused {
        take_back(e, bell, start, end);
        return Ok(0);
    }
    lay_bare(start, end)?;
    let ours = state().lock().regions.overlaps(start, end);
    for (from, to) in ours {
        release(e, bell, from, to)?;
    }
    Ok(0)
}

fn release(e: &Engine, bell: usize, from: usize, to: usize) -> Result<(), Errno> {
    let len = to - from;
    // Nothing leaves from here on.
    e.remove_writable(from, len)?;
    // What has left and is still there would lose its protection.
    e.drop_lazy(from, len);
    bring_in(e, from, to).inspect_err(|_| {
        // It stays ours, and the kernel refuses the registration.
        let _ = lock::let_go(e, bell, from, to);
    })?;
    // The tables forget it. Resident pages stay where they are; pages that were never touched must
    // stay
    // missing.
    e.discard(from, len);
    e.unregister(bell, from, len)?;
    // Another thread may have touched a page meanwhile.
    e.discard(from, len);
    e.forget_hints(from, len);
    e.cache.stats().unmanaged_bytes.add(len as u64);
    let mut s = state().lock();
    s.regions.remove(from, to);
    s.released.insert(from, to);
    if s.window.holds(from, to) {
        s.foreign.insert(from, to);
    }
    Ok(())
}

/// The kernel did not give it to the program's userfaultfd: it is ours again, what we have let go of.
fn take_back(e: &Engine, bell: usize, start: usize, end: usize) {
    let released = state().lock().released.overlaps(start, end);
    for (from, to) in released {
        // Refused where another of the program's has it since.
        if e.register(bell, from, to - from).is_err() {
            continue;
        }
        let mut s = state().lock();
        s.released.remove(from, to);
        s.foreign.remove(from, to);
        s.regions.insert(from, to);
        drop(s);
        let _ = e.adopt_resident(bell, from, to - from);
        let _ = lock::let_go(e, bell, from, to);
    }
}

/// Everything that the program has there comes into its memory.
fn bring_in(e: &Engine, from: usize, to: usize) -> Result<(), Errno> {
    let mut at = from;
    while at < to {
        let held = e.holds(at);
        let mut end = at + PAGE_SIZE;
        while end < to && e.holds(end) == held {
            end += PAGE_SIZE;
        }
        if held && populate(at, end).is_err() {
            for page in (at..end).step_by(PAGE_SIZE) {
                match populate(page, page + PAGE_SIZE) {
                    // A lost page, which stays so.
                    Ok(()) | Err(Errno(libc::EHWPOISON)) => {}
                    // It can't be read, for one.
                    Err(e) => return Err(e),
                }
            }
        }
        at = end;
    }
    Ok(())
}

fn populate(from: usize, to: usize) -> Result<(), Errno> {
    const MADV_POPULATE_READ: i32 = 22;
    // SAFETY: contents do not change; the handler serves the faults, for no lock is held.
    unsafe { mem::madvise(from, to - from, MADV_POPULATE_READ) }
}
