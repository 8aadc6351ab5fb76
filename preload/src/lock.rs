//! mlock and its like, and other memory that must stay where it is.
//!
//! Pages that the kernel has locked can't be moved out, so the engine is told to leave them alone.
//! They come in by small copies, as locking them faults them in.

use crate::bare::lay_bare;
use crate::manageable::{RW, TOP};
use crate::state::state;
use crate::stretch::reserve;
use crate::{maps, sandbox};
use hugeswap::engine::Engine;
use hugeswap::mm::PAGE_SIZE;
use hugeswap::sys::{limits, mem, rights, syscall, Errno};

type Result<T> = core::result::Result<T, Errno>;

const MCL_ONFAULT: i32 = 4;
const MLOCK_ONFAULT: i32 = libc::MLOCK_ONFAULT as i32;

/// As the kernel counts them: a length near the largest number is none.
fn whole_pages(addr: usize, len: usize) -> Result<(usize, usize)> {
    let start = addr & !(PAGE_SIZE - 1);
    let len = len.wrapping_add(addr - start).wrapping_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1);
    let end = start.checked_add(len).ok_or(Errno::EINVAL)?;
    Ok((start, end))
}

pub fn lock(e: &Engine, addr: usize, len: usize, flags: i32) -> Result<usize> {
    let (start, end) = whole_pages(addr, len)?;
    let _own = reserve(start, end);
    lay_bare(start.min(TOP), end.min(TOP))?;
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
    lay_bare(start.min(TOP), end.min(TOP))?;
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

/// As `let_go`, where all of it is readable and writable.
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
    let current = match flags & libc::MCL_CURRENT != 0 {
        true => to_be_locked(e, bell)?,
        false => Vec::new(),
    };
    may_lock(current.iter().map(|(from, to)| to - from).sum())?;
    state().lock().lock_future = match flags & libc::MCL_FUTURE != 0 {
        true => flags,
        false => 0,
    };
    // From here on the kernel finds nothing wrong, whatever becomes of single mappings.
    for (from, to) in current {
        let _ = lock_as(e, from, to - from, flags);
    }
    Ok(0)
}

/// What of the program's is there now.
fn to_be_locked(e: &Engine, bell: usize) -> Result<Vec<(usize, usize)>> {
    let mut all = Vec::new();
    for m in maps::all(e, bell)? {
        let managed = state().lock().regions.intersects(m.start, m.end);
        if m.prot != libc::PROT_NONE && (managed || !m.anonymous) {
            all.push((m.start, m.end));
        }
    }
    Ok(all)
}

/// Whether this thread may lock so many bytes in all (mlockall in mm/mlock.c).
fn may_lock(bytes: usize) -> Result<()> {
    const CAP_IPC_LOCK: u32 = 14;
    // A filter of the program's may end who asks; then it is for the kernel to say, mapping by mapping.
    if !sandbox::is_allowed(libc::SYS_capget, [0; 6]) || rights::has(CAP_IPC_LOCK) {
        return Ok(());
    }
    match limits::soft(libc::RLIMIT_MEMLOCK) {
        0 => Err(Errno(libc::EPERM)),
        most if bytes > most => Err(Errno::ENOMEM),
        _ => Ok(()),
    }
}

/// As mlockall says: errors are those of locking. What can't be brought in is locked all the same.
fn lock_as(e: &Engine, addr: usize, len: usize, flags: i32) -> Result<()> {
    lock(e, addr, len, MLOCK_ONFAULT)?;
    if flags & MCL_ONFAULT == 0 {
        // SAFETY: contents do not change.
        let _ = unsafe { syscall(libc::SYS_mlock2, [addr, len, 0]) };
    }
    Ok(())
}

pub fn unlock_all(e: &Engine, bell: usize) -> Result<usize> {
    state().lock().lock_future = 0;
    // SAFETY: contents do not change.
    unsafe { syscall(libc::SYS_munlockall, []) }?;
    e.cache.sealer.keys.lock_pages();
    forget(e, bell, 0, usize::MAX)?;
    Ok(0)
}

/// New memory of the program's, under mlockall(MCL_FUTURE).
pub fn mapped(e: &Engine, addr: usize, len: usize) -> Result<()> {
    let flags = state().lock().lock_future;
    match flags {
        0 => Ok(()),
        flags => lock_as(e, addr, len, flags),
    }
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
