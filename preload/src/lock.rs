//! mlock and its like, and other memory that must stay where it is.
//!
//! Pages that the kernel has locked can't be moved out, so the engine is told to leave them alone.
//! They come in by small copies, as locking them faults them in.

use crate::bare::lay_bare;
use crate::manageable::{RW, TOP};
use crate::maps;
use crate::state::state;
use crate::stretch::reserve;
use hugeswap::engine::Engine;
use hugeswap::mm::PAGE_SIZE;
use hugeswap::sys::{mem, syscall, Errno};

type Result<T> = core::result::Result<T, Errno>;

const MCL_ONFAULT: i32 = 4;

fn whole_pages(addr: usize, len: usize) -> Result<(usize, usize)> {
    let start = addr & !(PAGE_SIZE - 1);
    let end = addr
        .checked_add(len)
        .and_then(|e| e.checked_next_multiple_of(PAGE_SIZE))
        .ok_or(Errno::EINVAL)?;
    Ok((start, end))
}

pub fn lock(e: &Engine, addr: usize, len: usize, flags: i32) -> Result<usize> {
    let (start, end) = whole_pages(addr, len)?;
    let _own = reserve(start, end);
    lay_bare(start, end.min(TOP))?;
    // SAFETY: the program's own call; contents do not change.
    unsafe { syscall(libc::SYS_mlock2, [addr, len, flags as usize]) }?;
    let ours = {
        let mut s = state().lock();
        let ours = s.regions.overlaps(start, end);
        for &(from, to) in &ours {
            s.locked.insert(from, to);
        }
        ours
    };
    for (from, to) in ours {
        e.remove_writable(from, to - from)?;
    }
    Ok(0)
}

pub fn unlock(e: &Engine, bell: usize, addr: usize, len: usize) -> Result<usize> {
    let (start, end) = whole_pages(addr, len)?;
    let _own = reserve(start, end);
    lay_bare(start, end.min(TOP))?;
    // SAFETY: the program's own call; contents do not change.
    unsafe { syscall(libc::SYS_munlock, [addr, len]) }?;
    forget(e, bell, start, end)?;
    Ok(0)
}

/// The stretch is not locked any more.
fn forget(e: &Engine, bell: usize, start: usize, end: usize) -> Result<()> {
    let was = {
        let mut s = state().lock();
        let was = s.locked.overlaps(start, end);
        s.locked.remove(start, end);
        was
    };
    for (from, to) in was {
        let_go(e, bell, from, to)?;
    }
    Ok(())
}

/// Reclaim may take what is readable and writable of the stretch, unless something else is said
/// of it.
pub fn let_go(e: &Engine, bell: usize, start: usize, end: usize) -> Result<()> {
    for m in maps::all(e, bell)? {
        let (from, to) = (m.start.max(start), m.end.min(end));
        if from >= to || m.prot != RW {
            continue;
        }
        movable_again(e, from, to)?;
    }
    Ok(())
}

/// As `let_go`, where all of it is readable and writable, and managed.
pub fn movable_again(e: &Engine, start: usize, end: usize) -> Result<()> {
    let parts = state().lock().movable(start, end);
    for (s, t) in parts {
        e.add_writable(s, t - s)?;
    }
    Ok(())
}

/// As mlockall(2), for the program's memory: the engine's own is never swapped, and much of it
/// never touched.
pub fn lock_all(e: &Engine, bell: usize, flags: i32) -> Result<usize> {
    let known = libc::MCL_CURRENT | libc::MCL_FUTURE | MCL_ONFAULT;
    if flags & !known != 0 || flags & (libc::MCL_CURRENT | libc::MCL_FUTURE) == 0 {
        return Err(Errno::EINVAL);
    }
    state().lock().lock_future = if flags & libc::MCL_FUTURE != 0 {
        flags
    } else {
        0
    };
    if flags & libc::MCL_CURRENT == 0 {
        return Ok(0);
    }
    for m in maps::all(e, bell)? {
        let managed = state().lock().regions.intersects(m.start, m.end);
        if m.prot != libc::PROT_NONE && (managed || !m.anonymous) {
            let r = lock(e, m.start, m.end - m.start, on_fault(flags));
            if managed {
                r?;
            }
        }
    }
    Ok(0)
}

fn on_fault(flags: i32) -> i32 {
    (flags & MCL_ONFAULT != 0) as i32
}

pub fn unlock_all(e: &Engine, bell: usize) -> Result<usize> {
    state().lock().lock_future = 0;
    // SAFETY: contents do not change.
    unsafe { syscall(libc::SYS_munlockall, []) }?;
    forget(e, bell, 0, usize::MAX)?;
    Ok(0)
}

/// New memory of the program's, under mlockall(MCL_FUTURE).
pub fn mapped(e: &Engine, addr: usize, len: usize) -> Result<()> {
    let flags = state().lock().lock_future;
    if flags != 0 {
        lock(e, addr, len, on_fault(flags))?;
    }
    Ok(())
}

/// The pages stay resident from now on, until they are unmapped.
pub fn pin(e: &Engine, addr: usize, len: usize) -> Result<usize> {
    let (start, end) = whole_pages(addr, len)?;
    let ours = {
        let mut s = state().lock();
        let ours = s.regions.overlaps(start, end);
        for &(from, to) in &ours {
            s.pinned.insert(from, to);
        }
        ours
    };
    for (from, to) in ours {
        e.remove_writable(from, to - from)?;
        const MADV_POPULATE_WRITE: i32 = 23;
        // SAFETY: contents do not change; the handler serves the faults.
        unsafe { mem::madvise(from, to - from, MADV_POPULATE_WRITE) }?;
    }
    Ok(0)
}

/// In a forked child, which inherits no locks.
pub fn in_child(e: &Engine, bell: usize) {
    state().lock().lock_future = 0;
    let _ = forget(e, bell, 0, usize::MAX);
}
