//! mmap, munmap, and the same for System V's shared memory.
//!
//! The kernel is asked first, with the stretch held (`engine::Hold`): what it refuses has changed
//! nothing. A mapping that replaces others is made by the program's own call, in one step.

use crate::bare::{lay_bare, refill};
use crate::frame::Result;
use crate::manageable::{can_be_managed, is_ordinary, is_writable, pages, PROT, RW, TOP};
use crate::maps::{self, holes};
use crate::state::{state, Area};
use crate::stretch::reserve;
use crate::{gate, lock};
use hugeswap::engine::{Engine, Fate, Stretch};
use hugeswap::mm::{PAGE_SIZE, PMD_SIZE};
use hugeswap::sys::syscall::{check, raw};
use hugeswap::sys::{mem, syscall, Errno};

pub const FIXED: i32 = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;

/// `left_alone`: what is mapped is not to be managed.
pub fn mmap(e: &Engine, bell: usize, a: [usize; 6], left_alone: bool) -> Result<usize> {
    let (prot, flags) = (a[2] as i32 & PROT, a[3] as i32);
    // The kernel wants an offset of whole pages also where it does not use it.
    let Some(len) = pages(a[1]).filter(|_| a[5] % PAGE_SIZE == 0) else {
        // SAFETY: the program's own call.
        return check(unsafe { raw(libc::SYS_mmap, a) });
    };
    let owner = match !left_alone && is_ordinary(prot, flags & !FIXED) {
        true => Owner::Engine,
        false => Owner::Kernel,
    };
    let at = if flags & FIXED != 0 {
        mmap_fixed(e, bell, a, len, owner)?
    } else {
        mmap_anywhere(e, bell, a, len, owner)?
    };
    let private = libc::MAP_ANONYMOUS | libc::MAP_PRIVATE;
    let is_private = flags & (libc::MAP_ANONYMOUS | libc::MAP_TYPE) == private;
    let counts = is_private && prot != libc::PROT_NONE && (left_alone || flags & FIXED == 0);
    if counts && owner == Owner::Kernel {
        e.cache.stats().unmanaged_bytes.add(len as u64);
    }
    if lock::mapped(e, at, len).is_err() && flags & FIXED == 0 {
        // Under mlockall(MCL_FUTURE) there is no more than may be locked.
        munmap(e, bell, at, len)?;
        return Err(Errno(libc::EAGAIN));
    }
    Ok(at)
}

fn mmap_anywhere(
    e: &Engine,
    bell: usize,
    a: [usize; 6],
    len: usize,
    owner: Owner,
) -> Result<usize> {
    let (addr, prot, flags) = (a[0], a[2] as i32 & PROT, a[3] as i32);
    // SAFETY: the program's own call.
    let plain = || check(unsafe { raw(libc::SYS_mmap, a) });
    if owner == Owner::Kernel {
        return plain();
    }
    let adopted = |got: usize| {
        // Whoever unmapped what was there before may not be through.
        let _own = reserve(got, got + len);
        adopt(e, bell, got, len, prot, Contents::of_flags(flags));
        got
    };
    if is_meant(addr, len) {
        let got = plain()?;
        if len >= PMD_SIZE {
            return Ok(adopted(got));
        }
        e.cache.stats().unmanaged_bytes.add(len as u64);
        return Ok(got);
    }
    refill(e, bell);
    let Some(at) = state().lock().window.take(len, 0) else {
        return plain().map(adopted);
    };
    if let Err(err) = open(e, at, len, prot) {
        let _own = reserve(at, at + len);
        abandon(e, bell, at, len);
        return Err(err);
    }
    if flags & libc::MAP_POPULATE != 0 && prot & libc::PROT_WRITE != 0 {
        const MADV_POPULATE_WRITE: i32 = 23;
        // SAFETY: fills the mapping just made; the handler serves the faults.
        let _ = unsafe { mem::madvise(at, len, MADV_POPULATE_WRITE) };
    }
    Ok(at)
}

/// Whether a mapping is to lie where it hints at. A hint below 4 GiB means it (compressed pointers); a hint for a large mapping
/// too, and one for a place that code can be called at from where there is some. Other small ones are only spread about by
/// theirs. And a hint to where the window lies is that to the end of what was mapped before (Boehm's collector): the kernel would
/// find it taken and lay the mapping elsewhere, near the libraries, where the next hint seemed to mean it.
fn is_meant(addr: usize, len: usize) -> bool {
    addr != 0
        && (addr < 1 << 32 || len >= PMD_SIZE || is_within_reach(addr))
        && !state().lock().window.occupies(addr)
}

/// Whether a call reaches that place from the program's code, or from that of its libraries. (LuaJIT looks for memory
/// there to translate to, and without it begins again and again.)
fn is_within_reach(addr: usize) -> bool {
    const REACH: usize = 1 << 31;
    // SAFETY: an entry of the vector that the kernel gave.
    let program = unsafe { libc::getauxval(libc::AT_ENTRY) } as usize;
    let libraries = is_within_reach as *const () as usize;
    [program, libraries]
        .iter()
        .any(|code| code.abs_diff(addr) < REACH)
}

/// Makes a stretch of the window accessible that was just taken.
fn open(e: &Engine, at: usize, len: usize, prot: i32) -> Result<()> {
    if prot != libc::PROT_NONE {
        // SAFETY: nobody else uses the stretch.
        unsafe { mem::mprotect(at, len, prot) }?;
    }
    match is_writable(prot) {
        true => e.add_writable(at, len),
        false => Ok(()),
    }
}

/// Gives up what was taken of the window, whatever was done with it; it is reserved.
fn abandon(e: &Engine, bell: usize, at: usize, len: usize) {
    if unmap(e, bell, at, at + len).is_err() {
        let _ = e.remove_writable(at, len);
        state().lock().window.give(at, at + len);
    }
}

/// What is in a mapping that was just made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// Nobody has touched it.
    NoPages,
    /// The kernel or another thread may have.
    MaybePages,
}

impl Contents {
    /// Right after mmap with these flags.
    fn of_flags(flags: i32) -> Contents {
        match flags & libc::MAP_POPULATE {
            0 => Contents::NoPages,
            _ => Contents::MaybePages,
        }
    }
}

/// Whose a stretch is after a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Managed, or bare.
    Engine,
    /// The kernel's: a file, shared memory, or other memory that is not managed.
    Kernel,
}

/// A mapping that the kernel placed: manage it where it is. It is reserved.
pub fn adopt(e: &Engine, bell: usize, at: usize, len: usize, prot: i32, contents: Contents) {
    // Beyond 47 bits there are no tables.
    if !can_be_managed(at, len) || e.register(bell, at, len).is_err() {
        e.cache.stats().unmanaged_bytes.add(len as u64);
        let mut s = state().lock();
        if s.window.holds(at, at + len) {
            s.foreign.insert(at, at + len);
            s.window.claim(at, at + len);
        }
        return;
    }
    {
        let mut s = state().lock();
        s.put_region(at, at + len);
        // Where the hint led into what was bare, and `refill` found it taken.
        s.foreign.remove(at, at + len);
        s.window.claim(at, at + len);
    }
    if contents == Contents::MaybePages {
        let _ = e.adopt_resident(bell, at, len);
    }
    if is_writable(prot) {
        let _ = e.add_writable(at, len);
    }
}

fn mmap_fixed(e: &Engine, bell: usize, a: [usize; 6], len: usize, owner: Owner) -> Result<usize> {
    let (addr, prot, flags) = (a[0], a[2] as i32 & PROT, a[3] as i32);
    // SAFETY: the program's own call.
    let plain = |a: [usize; 6]| check(unsafe { raw(libc::SYS_mmap, a) });
    let Some(end) = addr
        .checked_add(len)
        .filter(|end| addr % PAGE_SIZE == 0 && *end <= TOP)
    else {
        return plain(a);
    };
    let _own = reserve(addr, end);
    if !state().lock().is_ours(addr, end) {
        let at = plain(a)?;
        // As with a hint: what is large is managed wherever it lies. JVMs reserve their heaps so.
        if owner == Owner::Engine && at == addr && len >= PMD_SIZE {
            adopt(e, bell, at, len, prot, Contents::of_flags(flags));
        }
        return Ok(at);
    }
    if flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE {
        return map_noreplace(e, bell, a, (addr, end), owner);
    }
    map_over(e, bell, a, (addr, end), owner)
}

/// MAP_FIXED where something of ours is, by the kernel's own call; the stretch is reserved.
pub fn map_over(
    e: &Engine,
    bell: usize,
    mut a: [usize; 6],
    (start, end): (usize, usize),
    owner: Owner,
) -> Result<usize> {
    if owner == Owner::Engine {
        // So that it is one mapping with what is around it.
        a[3] |= libc::MAP_NORESERVE as usize;
    }
    replace(e, bell, (start, end), owner, || {
        // SAFETY: the program's own call.
        check(unsafe { raw(libc::SYS_mmap, a) })
    })?;
    if owner == Owner::Engine {
        let prot = a[2] as i32;
        adopt(e, bell, start, end - start, prot, Contents::MaybePages);
    }
    Ok(start)
}

/// `map` replaces what is in the stretch, all of it or, failing, nothing. It is reserved.
pub fn replace<T>(
    e: &Engine,
    bell: usize,
    (start, end): (usize, usize),
    owner: Owner,
    map: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let hold = e.hold(bell, (start, end))?;
    // Nobody else takes it meanwhile.
    let free = state().lock().window.take_free(start, end);
    match map() {
        Ok(r) => {
            hold.end((start, end), Fate::Unmapped);
            let mut s = state().lock();
            s.forget(start, end);
            s.window.claim(start, end);
            if owner == Owner::Kernel {
                s.put_foreign(start, end);
            }
            Ok(r)
        }
        Err(err) => {
            let holes = holes(e, bell, (start, end));
            hold.end_parts(&holes, Fate::Unmapped);
            let mut s = state().lock();
            for (from, to) in free {
                s.window.give(from, to);
            }
            s.unmapped(&holes);
            Err(err)
        }
    }
}

fn map_noreplace(
    e: &Engine,
    bell: usize,
    a: [usize; 6],
    (start, end): (usize, usize),
    owner: Owner,
) -> Result<usize> {
    let free = {
        let mut s = state().lock();
        let is_used = |(area, _, _): &(Area, usize, usize)| {
            matches!(area, Area::Window | Area::Region | Area::Foreign)
        };
        if s.areas(start, end).iter().any(is_used) {
            return Err(Errno::EEXIST);
        }
        // With the same lock held: from here on it is nobody else's.
        let free = s.window.free_in(start, end);
        s.window.claim(start, end);
        free
    };
    let prot = a[2] as i32;
    if owner == Owner::Engine && free == [(start, end)] {
        // As if it had been taken from the window for it.
        let opened = open(e, start, end - start, prot);
        return match opened {
            Ok(()) => Ok(start),
            Err(err) => {
                abandon(e, bell, start, end - start);
                Err(err)
            }
        };
    }
    // The program sees a hole where our inaccessible mapping is.
    let away = |(from, to): &(usize, usize)| {
        // SAFETY: nobody uses it.
        unsafe { mem::munmap(*from, to - from) }
    };
    let mapped = free.iter().try_for_each(away).and_then(|()| {
        // SAFETY: the program's own call.
        check(unsafe { raw(libc::SYS_mmap, a) })
    });
    if let Err(err) = mapped {
        let mut s = state().lock();
        s.regions.remove(start, end);
        s.window.strip(start, end);
        return Err(err);
    }
    if owner == Owner::Engine {
        adopt(e, bell, start, end - start, prot, Contents::MaybePages);
    } else {
        state().lock().put_foreign(start, end);
    }
    Ok(start)
}

pub fn munmap(e: &Engine, bell: usize, addr: usize, len: usize) -> Result<usize> {
    let end = pages(len)
        .filter(|_| addr % PAGE_SIZE == 0)
        .and_then(|len| addr.checked_add(len))
        .filter(|end| *end <= TOP);
    let Some(end) = end else {
        // SAFETY: the program's own call.
        unsafe { mem::munmap(addr, len) }?;
        return Ok(0);
    };
    if state().lock().take_foreign(addr, end) {
        // It may wait for a thread of the program's that serves a userfaultfd.
        // SAFETY: the program's own call.
        let r = gate::outside(|| unsafe { mem::munmap(addr, end - addr) });
        if r.is_err() {
            let mut s = state().lock();
            s.foreign.insert(addr, end);
            s.window.claim(addr, end);
        }
        return r.map(|()| 0);
    }
    let _own = reserve(addr, end);
    unmap(e, bell, addr, end)?;
    Ok(0)
}

/// munmap of whole pages that are reserved: all of it, or nothing. What of the window was not in use is
/// unmapped with the rest.
pub fn unmap(e: &Engine, bell: usize, start: usize, end: usize) -> Result<()> {
    // SAFETY: the program's own call.
    let plain = || unsafe { mem::munmap(start, end - start) };
    let (ours, unused) = {
        let s = state().lock();
        (s.is_ours(start, end), s.window.is_free(start, end))
    };
    if !ours {
        return plain();
    }
    if unused {
        return Ok(());
    }
    replace(e, bell, (start, end), Owner::Engine, plain)?;
    let mut s = state().lock();
    s.window.strip(start, end);
    Ok(())
}

/// The break moved down: what is given up is mapped anew. It reads as zeros if the heap grows again, and
/// nothing that was said of it holds any more.
pub fn map_heap_anew(e: &Engine, bell: usize, start: usize, end: usize) -> Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let a = [
        start,
        end - start,
        RW as usize,
        flags as usize,
        usize::MAX,
        0,
    ];
    let _own = reserve(start, end);
    map_over(e, bell, a, (start, end), Owner::Engine)?;
    state().lock().in_heap.remove(start, end);
    Ok(())
}

/// shmat(2).
pub fn attach(e: &Engine, bell: usize, a: [usize; 6]) -> Result<usize> {
    // SAFETY: the program's own call.
    let plain = || check(unsafe { raw(libc::SYS_shmat, a) });
    let Some((start, end)) = attached(a).filter(|s| s.1 <= TOP) else {
        // Where the kernel likes, or an error.
        return plain();
    };
    let _own = reserve(start, end);
    if !state().lock().is_ours(start, end) {
        return plain();
    }
    if a[2] & libc::SHM_REMAP as usize == 0 {
        lay_bare(start, end)?;
        plain()?;
        state().lock().put_foreign(start, end);
        return Ok(start);
    }
    replace(e, bell, (start, end), Owner::Kernel, plain)
}

/// shmdt(2). What lay over the window is there no more, wherever mremap has put it and whatever took its place in
/// part: so it is looked for, and nobody else changes anything meanwhile.
pub fn detach(e: &Engine, bell: usize, addr: usize) -> Result<usize> {
    let _own = reserve(0, TOP);
    // SAFETY: the program's own call.
    unsafe { syscall(libc::SYS_shmdt, [addr]) }?;
    let foreign: Vec<_> = state().lock().foreign.iter().collect();
    if !foreign.is_empty() {
        let all = maps::all(e, bell)?;
        let gone = maps::missing(foreign.into_iter(), &all);
        state().lock().unmapped(&gone);
    }
    Ok(0)
}

/// Where shmat is told to attach. None: where the kernel likes, or nowhere.
pub fn attached(a: [usize; 6]) -> Option<Stretch> {
    let round = a[2] & libc::SHM_RND as usize != 0;
    let start = if round { a[1] & !(PAGE_SIZE - 1) } else { a[1] };
    if start == 0 || start % PAGE_SIZE != 0 {
        return None;
    }
    let len = segment_bytes(a[0]).and_then(pages)?;
    Some((start, start.checked_add(len)?))
}

/// The size of a segment of shared memory.
fn segment_bytes(id: usize) -> Option<usize> {
    // SAFETY: all-zero bytes are a valid structure, which outlives the call.
    unsafe {
        let mut ds: libc::shmid_ds = core::mem::zeroed();
        let args = [id, libc::IPC_STAT as usize, &raw mut ds as usize];
        syscall(libc::SYS_shmctl, args).ok()?;
        Some(ds.shm_segsz)
    }
}
