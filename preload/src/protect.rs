//! mprotect, and pkey_mprotect. The kernel comes first: of what it refuses nothing is said, and where it stopped half-way
//! its own list of mappings says what is true.

use crate::bare::lay_bare;
use crate::frame::Result;
use crate::manageable::{is_writable, pages, PROT, RW, TOP};
use crate::state::state;
use crate::stretch::reserve;
use crate::{lock, maps};
use hugeswap::engine::{Engine, Stretch};
use hugeswap::mm::PAGE_SIZE;
use hugeswap::sys::mem;
use hugeswap::sys::syscall::{check, raw};

/// With a key if it is pkey_mprotect; -1: the mapping keeps its own.
pub fn mprotect(e: &Engine, bell: usize, a: [usize; 6], key: Option<i32>) -> Result<usize> {
    let (addr, len, prot) = (a[0], a[1], a[2] as i32);
    let nr = match key {
        None => libc::SYS_mprotect,
        Some(_) => libc::SYS_pkey_mprotect,
    };
    // SAFETY: the program's own call.
    let plain = || check(unsafe { raw(nr, a) });
    let end = pages(len)
        .filter(|_| addr % PAGE_SIZE == 0)
        .and_then(|len| addr.checked_add(len))
        .filter(|end| *end <= TOP);
    let Some(end) = end else {
        plain()?;
        return Ok(0);
    };
    let _own = reserve(addr, end);
    lay_bare(addr, end)?;
    let ours = state().lock().regions.overlaps(addr, end);
    if ours.is_empty() {
        plain()?;
        return Ok(0);
    }
    let made_apart = match prot & PROT {
        libc::PROT_NONE => set_apart(addr, end),
        _ => vec![],
    };
    if let Err(err) = plain() {
        join(&made_apart);
        learn(e, bell, &ours);
        return Err(err);
    }
    if prot & PROT != libc::PROT_NONE {
        let apart = state().lock().apart.overlaps(addr, end);
        join(&apart);
    }
    note_key(&ours, key);
    for (s, t) in ours {
        if is_writable(prot) {
            // Its lock is not held over what follows, which waits for ranges.
            let movable = state().lock().movable(s, t);
            for (s, t) in movable {
                e.add_writable(s, t - s)?;
            }
        } else {
            e.remove_writable(s, t - s)?;
        }
    }
    Ok(0)
}

/// Memory with a key of its own stays where it is: a move to or from a mapping without it is refused, and
/// our own threads, whose rights are those of a new thread, may not touch it.
fn note_key(ours: &[Stretch], key: Option<i32>) {
    let Some(key) = key.filter(|&key| key >= 0) else {
        return;
    };
    let mut s = state().lock();
    for &(from, to) in ours {
        match key {
            0 => s.keyed.remove(from, to),
            _ => s.keyed.insert(from, to),
        }
    }
}

/// What may be moved of these stretches, by the kernel's list of mappings. Where that can't be had they
/// are left alone.
fn learn(e: &Engine, bell: usize, ours: &[Stretch]) {
    let all = maps::all(e, bell).unwrap_or_default();
    for &(start, end) in ours {
        let known: Vec<_> = all
            .iter()
            .map(|m| (m.start.max(start), m.end.min(end), m.prot))
            .filter(|(s, t, _)| s < t)
            .collect();
        if known.is_empty() {
            let _ = e.remove_writable(start, end - start);
        }
        for (s, t, prot) in known {
            if prot != RW {
                let _ = e.remove_writable(s, t - s);
            } else {
                let _ = lock::movable_again(e, s, t);
            }
        }
    }
}

/// What the program makes inaccessible must not become one mapping with the window, which is
/// inaccessible too: a core dump would go through all 4 TiB, because pages of theirs have been used. A
/// mapping with other advice stays apart; this one does nothing to anonymous memory, and the program's
/// own advice of this kind is kept from the kernel. Says what was not apart before.
fn set_apart(start: usize, end: usize) -> Vec<Stretch> {
    let mut new = Vec::new();
    let ours = state().lock().regions.overlaps(start, end);
    for (from, to) in ours {
        // SAFETY: contents do not change. Where it is refused, or there are other mappings between, it
        // is as before.
        let _ = unsafe { mem::madvise(from, to - from, libc::MADV_RANDOM) };
        let mut s = state().lock();
        let was = s.apart.overlaps(from, to);
        s.apart.insert(from, to);
        let mut rest = crate::window::Extents::new();
        rest.insert(from, to);
        for (from, to) in was {
            rest.remove(from, to);
        }
        new.extend(rest.iter());
    }
    new
}

/// The end of `set_apart`.
fn join(apart: &[Stretch]) {
    for &(from, to) in apart {
        // SAFETY: contents do not change.
        let _ = unsafe { mem::madvise(from, to - from, libc::MADV_NORMAL) };
        state().lock().apart.remove(from, to);
    }
}
