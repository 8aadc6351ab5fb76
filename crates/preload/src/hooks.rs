//! What the program asks of its address space.
//!
//! Each function does what the system call of its name does, and keeps the engine's tables true.
//! They run on a hook's stack with signals blocked (see `entry`). The state's lock is not held
//! while waiting for a transfer.

use crate::entry::{
    Frame, BRK, CLONE, CLONE3, FORK, MADVISE, MLOCK, MLOCK2, MLOCKALL, MMAP, MPROTECT, MREMAP,
    MUNLOCK, MUNLOCKALL, MUNMAP, PIN, RELEASE, SANDBOX,
};
use crate::state::{state, Area};
use crate::{fork, lock};
use hugeswap::engine::Engine;
use hugeswap::mm::{PAGE_SIZE, PMD_SIZE};
use hugeswap::sys::syscall::{check, raw};
use hugeswap::sys::{mem, Errno};
use hugeswap::vma::{Huge, Pattern};

type Result<T> = core::result::Result<T, Errno>;

pub const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// The system call that a function of the C library stands for, as it is.
pub fn plain(call: usize, a: [usize; 6]) -> i64 {
    let nr = match call {
        MMAP => libc::SYS_mmap,
        MUNMAP => libc::SYS_munmap,
        MPROTECT => libc::SYS_mprotect,
        MADVISE => libc::SYS_madvise,
        MREMAP => libc::SYS_mremap,
        MLOCK => libc::SYS_mlock,
        MUNLOCK => libc::SYS_munlock,
        MLOCK2 => libc::SYS_mlock2,
        MLOCKALL => libc::SYS_mlockall,
        MUNLOCKALL => libc::SYS_munlockall,
        FORK => libc::SYS_fork,
        CLONE => libc::SYS_clone,
        CLONE3 => libc::SYS_clone3,
        _ => return -(libc::ENOSYS as i64),
    };
    // SAFETY: the kernel call that the caller asked for, with the caller's arguments.
    unsafe { raw(nr, a) }
}

pub fn run(f: &mut Frame) {
    let a = f.args;
    let bell = f.bell();
    let Some(e) = hugeswap::engine::get() else {
        f.result = plain(f.call, a);
        return;
    };
    let r = match f.call {
        MMAP => mmap(e, bell, a),
        MUNMAP => munmap(e, a[0], a[1]),
        MPROTECT => mprotect(e, a[0], a[1], a[2] as i32),
        MADVISE => madvise(e, bell, a[0], a[1], a[2] as i32),
        MREMAP => mremap(e, bell, a),
        BRK => crate::brk::brk(e, a[0]),
        FORK => fork::fork(e, f),
        CLONE => fork::clone(e, f, libc::SYS_clone),
        CLONE3 => fork::clone(e, f, libc::SYS_clone3),
        MLOCK => lock::lock(e, a[0], a[1], 0),
        MUNLOCK => lock::unlock(e, bell, a[0], a[1]),
        MLOCK2 => lock::lock(e, a[0], a[1], a[2] as i32),
        MLOCKALL => lock::lock_all(e, bell, a[0] as i32),
        MUNLOCKALL => lock::unlock_all(e, bell),
        PIN => lock::pin(e, a[0], a[1]),
        SANDBOX => crate::sandbox::note(a[0]),
        RELEASE => crate::release::registered(e, bell, a[0]),
        _ => Err(Errno(libc::ENOSYS)),
    };
    if let (MMAP, Ok(at)) = (f.call, r) {
        lock::mapped(e, at, a[1]);
    }
    f.result = match r {
        Ok(v) => v as i64,
        Err(e) => -(e.0 as i64),
    };
}

fn pages(len: usize) -> Option<usize> {
    (len != 0)
        .then(|| len.checked_next_multiple_of(PAGE_SIZE))
        .flatten()
}

/// The mapping is private anonymous memory of the ordinary kind, which can be managed.
fn is_ordinary(prot: i32, flags: i32) -> bool {
    const SPECIAL: i32 = libc::MAP_STACK
        | libc::MAP_GROWSDOWN
        | libc::MAP_HUGETLB
        | libc::MAP_LOCKED
        | libc::MAP_32BIT;
    flags & libc::MAP_TYPE == libc::MAP_PRIVATE
        && flags & libc::MAP_ANONYMOUS != 0
        && flags & SPECIAL == 0
        && prot & libc::PROT_EXEC == 0
        && prot & !(RW | libc::PROT_EXEC) == 0
}

/// Whether the engine may move pages of this protection.
fn is_writable(prot: i32) -> bool {
    prot == RW
}

fn mmap(e: &Engine, bell: usize, a: [usize; 6]) -> Result<usize> {
    let (addr, prot, flags) = (a[0], a[2] as i32, a[3] as i32);
    // SAFETY: the program's own call.
    let plain = || check(unsafe { raw(libc::SYS_mmap, a) });
    let Some(len) = pages(a[1]) else {
        return plain();
    };
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 {
        return mmap_fixed(e, bell, a, len, prot, flags);
    }
    if !is_ordinary(prot, flags) {
        if flags & libc::MAP_ANONYMOUS != 0
            && flags & libc::MAP_TYPE == libc::MAP_PRIVATE
            && prot != libc::PROT_NONE
        {
            e.cache.stats().unmanaged_bytes.add(len as u64);
        }
        return plain();
    }
    // A hint below 4 GiB means it (compressed pointers); a hint for a large mapping too. Small
    // ones are only spread about by theirs.
    if addr != 0 && (addr < 1 << 32 || len >= PMD_SIZE) {
        let got = plain()?;
        if len >= PMD_SIZE {
            adopt(e, bell, got, len, prot);
        }
        return Ok(got);
    }
    refill(e, bell);
    let Some(at) = state().lock().window.take(len, 0) else {
        let got = plain()?;
        adopt(e, bell, got, len, prot);
        return Ok(got);
    };
    if let Err(err) = open(e, at, len, prot) {
        state().lock().window.give(at, at + len);
        return Err(err);
    }
    if flags & libc::MAP_POPULATE != 0 && prot & libc::PROT_WRITE != 0 {
        const MADV_POPULATE_WRITE: i32 = 23;
        // SAFETY: fills the mapping just made; the handler serves the faults.
        let _ = unsafe { mem::madvise(at, len, MADV_POPULATE_WRITE) };
    }
    Ok(at)
}

/// Maps and registers what was unmapped of the window, once that is worth a request.
fn refill(e: &Engine, bell: usize) {
    let Some(bare) = state().lock().window.take_bare() else {
        return;
    };
    let mut mapped = Vec::with_capacity(bare.len());
    for (from, to) in bare.iter() {
        // SAFETY: nothing is replaced. Where something is mapped by now, it stays.
        if unsafe { mem::map_at_noreplace(from, to - from, libc::PROT_NONE) }.is_ok() {
            mapped.push((from, to));
        }
    }
    let registered = e.register_all(bell, &mapped).is_ok();
    let mut s = state().lock();
    for (from, to) in mapped {
        if registered {
            s.regions.insert(from, to);
            s.window.give(from, to);
        }
    }
}

/// Makes a stretch of the window accessible.
fn open(e: &Engine, at: usize, len: usize, prot: i32) -> Result<()> {
    if prot != libc::PROT_NONE {
        // SAFETY: the stretch was just taken; nobody else uses it.
        unsafe { mem::mprotect(at, len, prot) }?;
    }
    if is_writable(prot) {
        e.set_writable(at, len, true)?;
    }
    Ok(())
}

/// A mapping that the kernel placed: manage it where it is.
fn adopt(e: &Engine, bell: usize, at: usize, len: usize, prot: i32) {
    if e.register(bell, at, len).is_err() {
        e.cache.stats().unmanaged_bytes.add(len as u64);
        let mut s = state().lock();
        if s.window.holds(at, at + len) {
            s.foreign.insert(at, at + len);
        }
        return;
    }
    {
        let mut s = state().lock();
        s.regions.insert(at, at + len);
        // Where the hint led into what was bare.
        s.window.claim(at, at + len);
    }
    // The kernel may have populated it: MAP_POPULATE, mlockall.
    let _ = e.adopt_resident(at, len);
    if is_writable(prot) {
        let _ = e.set_writable(at, len, true);
    }
}

fn mmap_fixed(
    e: &Engine,
    bell: usize,
    a: [usize; 6],
    len: usize,
    prot: i32,
    flags: i32,
) -> Result<usize> {
    let addr = a[0];
    // SAFETY: the program's own call.
    let plain = |a: [usize; 6]| check(unsafe { raw(libc::SYS_mmap, a) });
    let end = addr.checked_add(len).ok_or(Errno::ENOMEM)?;
    let noreplace = flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE;
    let ordinary = is_ordinary(prot, flags & !(libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE));
    let (inside, in_window) = {
        let s = state().lock();
        if addr % PAGE_SIZE != 0 || !s.is_ours(addr, end) {
            drop(s);
            return plain(a);
        }
        let is_used = |(area, _, _): &(Area, usize, usize)| {
            matches!(area, Area::Window | Area::Region | Area::Foreign)
        };
        if noreplace && s.areas(addr, end).iter().any(is_used) {
            return Err(Errno::EEXIST);
        }
        let inside = s.regions.contains(addr, end) && !s.foreign.intersects(addr, end);
        (inside, s.window.holds(addr, end))
    };
    clear(e, addr, len)?;
    if inside && ordinary {
        // The same registered mapping with new contents and protection.
        // SAFETY: the program replaces what is there.
        unsafe {
            drop_memory(addr, len)?;
            protect(addr, len, prot)?;
        }
        state().lock().window.claim(addr, end);
        if is_writable(prot) {
            e.set_writable(addr, len, true)?;
        }
        return Ok(addr);
    }
    let mut b = a;
    if in_window && noreplace {
        // Our inaccessible mapping may be in the way; the program sees a hole there.
        b[3] = (flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED) as usize;
    }
    let got = plain(b)?;
    {
        let mut s = state().lock();
        s.window.claim(got, got + len);
        s.regions.remove(got, got + len);
        s.foreign.remove(got, got + len);
        s.apart.remove(got, got + len);
        if !ordinary {
            s.foreign.insert(got, got + len);
        }
    }
    if ordinary {
        adopt(e, bell, got, len, prot);
    }
    Ok(got)
}

/// Takes the stretch out of the tables: nothing of it is moved or read any more.
pub fn clear(e: &Engine, addr: usize, len: usize) -> Result<()> {
    e.set_writable(addr, len, false)?;
    e.discard(addr, len);
    e.forget_hints(addr, len);
    let flagged = {
        let mut s = state().lock();
        s.wiped.remove(addr, addr + len);
        s.locked.remove(addr, addr + len);
        s.pinned.remove(addr, addr + len);
        let f = s.flagged.overlaps(addr, addr + len);
        s.flagged.remove(addr, addr + len);
        f
    };
    for (from, to) in flagged {
        // The next mapping at this place must not inherit what was said of this one.
        for advice in [libc::MADV_DOFORK, libc::MADV_KEEPONFORK, libc::MADV_DODUMP] {
            // SAFETY: contents do not change.
            let _ = unsafe { mem::madvise(from, to - from, advice) };
        }
    }
    Ok(())
}

/// MADV_DONTNEED, also for locked memory.
///
/// # Safety
/// The contents must not be needed.
pub unsafe fn drop_memory(addr: usize, len: usize) -> Result<()> {
    // SAFETY: the caller's contract.
    unsafe {
        match mem::madvise(addr, len, libc::MADV_DONTNEED) {
            Err(Errno::EINVAL) => {
                hugeswap::sys::syscall(libc::SYS_munlock, [addr, len])?;
                mem::madvise(addr, len, libc::MADV_DONTNEED)
            }
            r => r,
        }
    }
}

fn munmap(e: &Engine, addr: usize, len: usize) -> Result<usize> {
    // SAFETY: the program's own call.
    let plain = |addr: usize, len: usize| unsafe { mem::munmap(addr, len) };
    let aligned = pages(len).filter(|_| addr % PAGE_SIZE == 0);
    let Some(end) = aligned.and_then(|l| addr.checked_add(l)) else {
        plain(addr, len)?;
        return Ok(0);
    };
    let areas = state().lock().areas(addr, end);
    for (area, s, t) in areas {
        let n = t - s;
        match area {
            Area::Outside => plain(s, n)?,
            Area::Free => {}
            Area::Foreign => forget_and(s, t, false, || plain(s, n))?,
            Area::Window | Area::Region => {
                clear(e, s, n)?;
                forget_and(s, t, true, || plain(s, n))?;
            }
        }
    }
    Ok(0)
}

/// Strikes a stretch out, then unmaps it. In this order: once it is unmapped another thread may
/// map there and have that registered, and a child that does not know of it finds zeros.
fn forget_and(
    start: usize,
    end: usize,
    managed: bool,
    unmap: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let strike = |on: bool| {
        let mut s = state().lock();
        let set = if managed {
            &mut s.regions
        } else {
            &mut s.foreign
        };
        if on {
            set.remove(start, end);
            s.apart.remove(start, end);
            s.window.strip(start, end);
        } else {
            set.insert(start, end);
            s.window.claim(start, end);
        }
    };
    strike(true);
    unmap().inspect_err(|_| strike(false))
}

/// mprotect of managed memory. What the program makes inaccessible must not become one mapping with
/// the window, which is inaccessible too: a core dump would go through all 4 TiB, because pages of
/// theirs have been used. A mapping with other advice stays apart; this one does nothing to
/// anonymous memory, and the program's own advice of this kind is kept from the kernel.
///
/// # Safety
/// As mprotect.
pub unsafe fn protect(addr: usize, len: usize, prot: i32) -> Result<()> {
    let end = addr + len;
    let advise = |from: usize, to: usize, advice: i32| {
        // SAFETY: contents do not change. Where it is refused, or there are other mappings between,
        // it is as before.
        let _ = unsafe { mem::madvise(from, to - from, advice) };
    };
    if prot == libc::PROT_NONE {
        let ours = state().lock().regions.overlaps(addr, end);
        for (from, to) in ours {
            advise(from, to, libc::MADV_RANDOM);
            state().lock().apart.insert(from, to);
        }
    }
    // SAFETY: the caller's contract.
    unsafe { mem::mprotect(addr, len, prot) }?;
    if prot != libc::PROT_NONE {
        let apart = state().lock().apart.overlaps(addr, end);
        for (from, to) in apart {
            advise(from, to, libc::MADV_NORMAL);
            state().lock().apart.remove(from, to);
        }
    }
    Ok(())
}

fn mprotect(e: &Engine, addr: usize, len: usize, prot: i32) -> Result<usize> {
    // SAFETY: the program's own call.
    let plain = || unsafe { mem::mprotect(addr, len, prot) };
    let Some(n) = pages(len).filter(|_| addr % PAGE_SIZE == 0) else {
        plain()?;
        return Ok(0);
    };
    let end = addr.checked_add(n).ok_or(Errno::ENOMEM)?;
    let ours: Vec<_> = {
        let s = state().lock();
        if s.window.is_touched(addr, end) {
            // Part of it is not mapped, as far as the program knows.
            return Err(Errno::ENOMEM);
        }
        s.regions.overlaps(addr, end)
    };
    if ours.is_empty() {
        plain()?;
        return Ok(0);
    }
    // SAFETY: the program's own call.
    let ours_too = || unsafe { protect(addr, n, prot) };
    if is_writable(prot) {
        ours_too()?;
        for (s, t) in ours {
            let movable = state().lock().movable(s, t);
            for (s, t) in movable {
                e.set_writable(s, t - s, true)?;
            }
        }
    } else {
        for (s, t) in ours {
            e.set_writable(s, t - s, false)?;
        }
        ours_too()?;
    }
    Ok(0)
}

fn madvise(e: &Engine, bell: usize, addr: usize, len: usize, advice: i32) -> Result<usize> {
    // SAFETY: the program's own call.
    let plain = || unsafe { mem::madvise(addr, len, advice) };
    let Some(n) = pages(len).filter(|_| addr % PAGE_SIZE == 0) else {
        plain()?;
        return Ok(0);
    };
    let end = addr.checked_add(n).ok_or(Errno::ENOMEM)?;
    let ours = {
        let s = state().lock();
        if s.window.is_touched(addr, end) {
            return Err(Errno::ENOMEM);
        }
        s.regions.overlaps(addr, end)
    };
    if ours.is_empty() {
        plain()?;
        return Ok(0);
    }
    const MADV_COLD: i32 = 20;
    const MADV_PAGEOUT: i32 = 21;
    const MADV_DONTNEED_LOCKED: i32 = 24;
    const MADV_COLLAPSE: i32 = 25;
    const MADV_GUARD_INSTALL: i32 = 102;
    const MADV_GUARD_REMOVE: i32 = 103;
    if matches!(
        advice,
        libc::MADV_DONTNEED | libc::MADV_FREE | MADV_COLD | MADV_PAGEOUT | MADV_GUARD_INSTALL
    ) {
        // The kernel goes from one mapping to the next, and ends at the first that is locked.
        let locked = state().lock().locked.overlaps(addr, end);
        if let Some(&(from, _)) = locked.first() {
            if from > addr {
                madvise(e, bell, addr, from - addr, advice)?;
            }
            return Err(Errno::EINVAL);
        }
    }
    match advice {
        libc::MADV_DONTNEED | MADV_DONTNEED_LOCKED => {
            for &(s, t) in &ours {
                e.discard(s, t - s);
            }
            if let Err(err) = plain() {
                // Locked memory: it is resident, and stays so.
                for &(s, t) in &ours {
                    let _ = e.adopt_resident(s, t - s);
                }
                return Err(err);
            }
        }
        // Free to be dropped at any time: what is in swap is dropped now, what is resident stays
        // until it is evicted.
        libc::MADV_FREE => {
            for &(s, t) in &ours {
                e.discard_swapped(s, t - s);
            }
        }
        // The kernel is not told: how it serves faults depends on this flag (`Engine::advise`).
        libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE => {
            let huge = if advice == libc::MADV_HUGEPAGE {
                Huge::Wanted
            } else {
                Huge::Unwanted
            };
            for &(s, t) in &ours {
                e.hint(s, t - s, |h| h.huge = huge)?;
            }
        }
        MADV_COLLAPSE => {}
        MADV_COLD => {
            for &(s, t) in &ours {
                e.cool(s, t - s);
            }
        }
        MADV_PAGEOUT => {
            for &(s, t) in &ours {
                e.page_out(s, t - s);
            }
        }
        // Markers in the page table, in place of contents: nothing of ours may come there.
        MADV_GUARD_INSTALL => {
            for &(s, t) in &ours {
                e.set_writable(s, t - s, false)?;
                e.discard(s, t - s);
                state().lock().pinned.insert(s, t);
            }
            plain()?;
        }
        MADV_GUARD_REMOVE => {
            plain()?;
            for &(s, t) in &ours {
                state().lock().pinned.remove(s, t);
                lock::let_go(e, bell, s, t)?;
            }
        }
        libc::MADV_WIPEONFORK => {
            plain()?;
            let mut s = state().lock();
            for (from, to) in ours {
                s.wiped.insert(from, to);
                s.flagged.insert(from, to);
            }
        }
        libc::MADV_KEEPONFORK => {
            plain()?;
            state().lock().wiped.remove(addr, end);
        }
        libc::MADV_WILLNEED => {
            for &(s, t) in &ours {
                e.will_need(bell, s, t - s);
            }
        }
        libc::MADV_NORMAL | libc::MADV_SEQUENTIAL | libc::MADV_RANDOM => {
            let pattern = match advice {
                libc::MADV_SEQUENTIAL => Pattern::Sequential,
                libc::MADV_RANDOM => Pattern::Random,
                _ => Pattern::Normal,
            };
            for &(s, t) in &ours {
                e.hint(s, t - s, |h| h.pattern = pattern)?;
            }
        }
        // The kernel's merging has nothing to do here.
        libc::MADV_MERGEABLE | libc::MADV_UNMERGEABLE => {}
        libc::MADV_DONTFORK | libc::MADV_DONTDUMP => {
            plain()?;
            let mut s = state().lock();
            for (from, to) in ours {
                s.flagged.insert(from, to);
            }
        }
        _ => plain()?,
    }
    Ok(0)
}

/// What is locked stays locked, wherever it goes.
fn mremap(e: &Engine, bell: usize, a: [usize; 6]) -> Result<usize> {
    let (Some(old_len), Some(new_len)) = (pages(a[1]), pages(a[2])) else {
        return remap(e, bell, a);
    };
    let old = a[0];
    let locked = old
        .checked_add(old_len)
        .map_or(vec![], |end| state().lock().locked.overlaps(old, end));
    if locked.is_empty() {
        return remap(e, bell, a);
    }
    for &(s, t) in &locked {
        lock::unlock(e, bell, s, t - s)?;
    }
    let r = remap(e, bell, a);
    let (at, len) = match r {
        Ok(new) => (new, new_len),
        Err(_) => (old, old_len),
    };
    for (s, t) in locked {
        let (from, mut to) = (s - old, (t - old).min(len));
        if t == old + old_len {
            to = len;
        }
        if from < to {
            let _ = lock::lock(e, at + from, to - from, 0);
        }
    }
    r
}

fn remap(e: &Engine, bell: usize, a: [usize; 6]) -> Result<usize> {
    let (old, flags, fixed) = (a[0], a[3] as i32, a[4]);
    // SAFETY: the program's own call.
    let plain = || check(unsafe { raw(libc::SYS_mremap, a) });
    let (Some(old_len), Some(new_len)) = (pages(a[1]), pages(a[2])) else {
        return plain();
    };
    if old % PAGE_SIZE != 0 || old.checked_add(old_len).is_none() {
        return plain();
    }
    let old_end = old + old_len;
    {
        let s = state().lock();
        let target_ours = flags & libc::MREMAP_FIXED != 0
            && fixed
                .checked_add(new_len)
                .is_some_and(|t| s.is_ours(fixed, t));
        if !s.regions.intersects(old, old_end) && !target_ours {
            drop(s);
            return plain();
        }
        if s.window.is_touched(old, old_end) || !s.regions.contains(old, old_end) {
            return Err(Errno::EFAULT);
        }
    }
    let keep_old = flags & libc::MREMAP_DONTUNMAP != 0;
    let is_fixed = flags & libc::MREMAP_FIXED != 0;
    if keep_old && old_len != new_len {
        return Err(Errno::EINVAL);
    }
    let prot = crate::maps::protection(e, bell, old)?;
    if !is_fixed && !keep_old {
        if new_len <= old_len {
            if new_len < old_len {
                munmap(e, old + new_len, old_len - new_len)?;
            }
            return Ok(old);
        }
        let grown = {
            let mut s = state().lock();
            s.window.holds(old, old_end) && s.window.take_at(old_end, old + new_len)
        };
        if grown {
            if let Err(err) = open(e, old_end, new_len - old_len, prot) {
                state().lock().window.give(old_end, old + new_len);
                return Err(err);
            }
            return Ok(old);
        }
        if flags & libc::MREMAP_MAYMOVE == 0 {
            return Err(Errno::ENOMEM);
        }
    }
    let new = if is_fixed {
        if fixed % PAGE_SIZE != 0 || flags & libc::MREMAP_MAYMOVE == 0 {
            return Err(Errno::EINVAL);
        }
        let end = fixed.checked_add(new_len).ok_or(Errno::EINVAL)?;
        if fixed < old_end && old < end {
            return Err(Errno::EINVAL);
        }
        let anon = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let args = [fixed, new_len, RW as usize, anon as usize, usize::MAX, 0];
        mmap_fixed(e, bell, args, new_len, RW, anon)?
    } else {
        refill(e, bell);
        let at = state()
            .lock()
            .window
            .take(new_len, old % PMD_SIZE)
            .ok_or(Errno::ENOMEM)?;
        open(e, at, new_len, RW)?;
        at
    };
    let n = old_len.min(new_len);
    if !is_writable(prot) {
        // SAFETY: for the time of the move; other threads must not use memory that is being moved.
        unsafe { mem::mprotect(old, old_len, RW) }?;
    }
    move_contents(e, bell, old, new, n);
    if !is_writable(prot) {
        mprotect(e, new, new_len, prot)?;
    }
    if keep_old {
        e.discard(old, old_len);
        // SAFETY: the contents were moved; the program asked for the old place to stay, empty.
        unsafe { drop_memory(old, old_len) }?;
        if !is_writable(prot) {
            // SAFETY: as it was before.
            unsafe { mem::mprotect(old, old_len, prot) }?;
        }
    } else {
        munmap(e, old, old_len)?;
    }
    Ok(new)
}

/// Brings the contents of `[old, old+len)` to `new`: by page tables and swap entries where that
/// can be done, by copying what is left.
fn move_contents(e: &Engine, bell: usize, old: usize, new: usize, len: usize) {
    let managed = state().lock().regions.contains(new, new + len);
    if managed && old % PMD_SIZE == new % PMD_SIZE && e.move_contents(bell, old, new, len).is_ok() {
        return;
    }
    for off in (0..len).step_by(PAGE_SIZE) {
        if e.holds(old + off) {
            // SAFETY: both pages are mapped readable and writable; faults on them are served,
            // because no lock of ours is held here.
            unsafe {
                core::ptr::copy_nonoverlapping(
                    (old + off) as *const u8,
                    (new + off) as *mut u8,
                    PAGE_SIZE,
                )
            };
        }
    }
}
