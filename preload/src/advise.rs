//! madvise, and process_madvise of the process itself.
//!
//! What the kernel does is asked of it first. It goes from one mapping to the next: where it stops, what
//! came before has happened, and that is what the tables are told.

use crate::bare::lay_bare;
use crate::frame::Result;
use crate::manageable::{pages, TOP};
use crate::state::state;
use crate::stretch::reserve;
use crate::{lock, maps, sandbox};
use hugeswap::engine::{Engine, Fate, Stretch};
use hugeswap::mm::PAGE_SIZE;
use hugeswap::policy::{Huge, Pattern};
use hugeswap::sys::syscall::{check, raw};
use hugeswap::sys::{mem, syscall, Errno};

const MADV_COLD: i32 = 20;
const MADV_PAGEOUT: i32 = 21;
const MADV_DONTNEED_LOCKED: i32 = 24;
const MADV_COLLAPSE: i32 = 25;
const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;

pub fn madvise(e: &Engine, bell: usize, addr: usize, len: usize, advice: i32) -> Result<usize> {
    let end = pages(len)
        .filter(|_| addr % PAGE_SIZE == 0)
        .and_then(|len| addr.checked_add(len))
        .filter(|end| *end <= TOP);
    let Some(end) = end else {
        // SAFETY: the program's own call.
        unsafe { mem::madvise(addr, len, advice) }?;
        return Ok(0);
    };
    let _own = reserve(addr, end);
    lay_bare(addr, end)?;
    let ours = state().lock().regions.overlaps(addr, end);
    if ours.is_empty() {
        // SAFETY: the program's own call.
        unsafe { mem::madvise(addr, len, advice) }?;
        return Ok(0);
    }
    advise(e, bell, (addr, end), &ours, advice)?;
    Ok(0)
}

/// The stretch is reserved; `ours` are its managed parts.
fn advise(e: &Engine, bell: usize, stretch: Stretch, ours: &[Stretch], advice: i32) -> Result<()> {
    let (start, end) = stretch;
    let hint = |say: &dyn Fn(&mut hugeswap::policy::Hints)| {
        ours.iter().try_for_each(|&(s, t)| e.hint(s, t - s, say))
    };
    match advice {
        libc::MADV_DONTNEED | MADV_DONTNEED_LOCKED => drop_pages(e, bell, stretch, advice),
        MADV_GUARD_INSTALL => install_guards(e, bell, stretch),
        MADV_GUARD_REMOVE => remove_guards(e, bell, stretch),
        libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK => wipe_on_fork(e, bell, stretch, advice),
        // Free to be dropped at any time, and now is best: once a page is moved out nobody can tell
        // whether it was written since, and it would have to be written to swap.
        libc::MADV_FREE => unlocked(stretch, ours, |part| {
            drop_pages(e, bell, part, libc::MADV_DONTNEED)
        }),
        MADV_COLD => unlocked(stretch, ours, |(s, t)| {
            e.cool(s, t - s);
            Ok(())
        }),
        MADV_PAGEOUT => unlocked(stretch, ours, |(s, t)| {
            e.page_out(s, t - s);
            Ok(())
        }),
        // The kernel is not told: how it serves faults depends on this flag (`Engine::advise`).
        libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE => {
            let huge = match advice {
                libc::MADV_HUGEPAGE => Huge::Wanted,
                _ => Huge::Unwanted,
            };
            hint(&|h| h.huge = huge)?;
            is_mapped(stretch)
        }
        libc::MADV_NORMAL | libc::MADV_SEQUENTIAL | libc::MADV_RANDOM => {
            let pattern = match advice {
                libc::MADV_SEQUENTIAL => Pattern::Sequential,
                libc::MADV_RANDOM => Pattern::Random,
                _ => Pattern::Normal,
            };
            hint(&|h| h.pattern = pattern)?;
            is_mapped(stretch)
        }
        libc::MADV_WILLNEED => {
            for &(s, t) in ours {
                e.will_need(bell, s, t - s);
            }
            is_mapped(stretch)
        }
        // The kernel's merging has nothing to do here.
        MADV_COLLAPSE | libc::MADV_MERGEABLE | libc::MADV_UNMERGEABLE => is_mapped(stretch),
        // SAFETY: the program's own call.
        _ => unsafe { mem::madvise(start, end - start, advice) },
    }
}

fn drop_pages(e: &Engine, bell: usize, stretch: Stretch, advice: i32) -> Result<()> {
    let hold = e.hold(bell, stretch)?;
    let (done, said) = apply(e, bell, stretch, advice);
    hold.end_parts(&done, Fate::Dropped);
    said
}

/// Markers in the page table, in place of contents: nothing of ours may come there.
fn install_guards(e: &Engine, bell: usize, stretch: Stretch) -> Result<()> {
    let hold = e.hold(bell, stretch)?;
    let (done, said) = apply(e, bell, stretch, MADV_GUARD_INSTALL);
    hold.end_parts(&done, Fate::Unmapped);
    let mut s = state().lock();
    for (from, to) in done {
        for (from, to) in s.regions.overlaps(from, to) {
            s.guarded.insert(from, to);
        }
    }
    said
}

fn remove_guards(e: &Engine, bell: usize, stretch: Stretch) -> Result<()> {
    let (done, said) = apply(e, bell, stretch, MADV_GUARD_REMOVE);
    for (from, to) in done {
        state().lock().guarded.remove(from, to);
        lock::let_go(e, bell, from, to)?;
    }
    said
}

/// MADV_WIPEONFORK, or its end.
fn wipe_on_fork(e: &Engine, bell: usize, stretch: Stretch, advice: i32) -> Result<()> {
    let (done, said) = apply(e, bell, stretch, advice);
    let mut s = state().lock();
    for (from, to) in done {
        s.wiped.remove(from, to);
        if advice == libc::MADV_WIPEONFORK {
            for (from, to) in s.regions.overlaps(from, to) {
                s.wiped.insert(from, to);
            }
        }
    }
    said
}

/// Makes the call, and says where it took effect.
fn apply(
    e: &Engine,
    bell: usize,
    (start, end): Stretch,
    advice: i32,
) -> (Vec<Stretch>, Result<()>) {
    // SAFETY: the program's own call.
    let call = |from: usize, to: usize| unsafe { mem::madvise(from, to - from, advice) };
    let said = call(start, end);
    let Err(err) = said else {
        return (vec![(start, end)], Ok(()));
    };
    match err {
        // There are holes: it has gone on behind them.
        Errno::ENOMEM if is_mapped((start, end)).is_err() => (vec![(start, end)], said),
        // It stopped at a mapping. Done twice it is the same: so once more, one mapping at a time.
        _ => {
            let mut done = Vec::new();
            for m in maps::all(e, bell).unwrap_or_default() {
                let (from, to) = (m.start.max(start), m.end.min(end));
                if from >= to {
                    continue;
                }
                // Some kernels ask about seals before they begin: then nothing has happened. What the tables say is
                // how it was before.
                let resident = || e.first_resident((from, to));
                if err == Errno::EPERM && done.is_empty() && resident().is_some_and(is_resident) {
                    break;
                }
                if call(from, to).is_err() {
                    break;
                }
                done.push((from, to));
            }
            (done, said)
        }
    }
}

fn is_resident(page: usize) -> bool {
    mem::resident(page, 1).is_ok_and(|mut p| p.next() == Some(true))
}

/// ENOMEM where there is a hole; nothing else is asked of the kernel, and nothing done.
fn is_mapped((start, end): Stretch) -> Result<()> {
    let args = [start, end - start, libc::MS_ASYNC as usize];
    // SAFETY: anonymous memory has nothing to be written.
    unsafe { syscall(libc::SYS_msync, args) }.map(drop)
}

/// What the kernel does not do to locked memory: it goes from one mapping to the next, and ends at the
/// first that is locked.
fn unlocked(
    (start, end): Stretch,
    ours: &[Stretch],
    f: impl Fn(Stretch) -> Result<()>,
) -> Result<()> {
    let locked = state().lock().locked.overlaps(start, end);
    let stop = locked.first().map_or(end, |l| l.0);
    for &(s, t) in ours {
        if s < stop {
            f((s, t.min(stop)))?;
        }
    }
    match stop < end {
        true => Err(Errno::EINVAL),
        false => is_mapped((start, end)),
    }
}

/// process_madvise(2). Of itself a process may ask anything, by `madvise`; what it asks of others says the kernel.
pub fn process_madvise(
    a: [usize; 6],
    madvise: impl Fn([usize; 6]) -> Result<usize>,
) -> Result<usize> {
    // SAFETY: the program's own call.
    let plain = |a: [usize; 6]| check(unsafe { raw(libc::SYS_process_madvise, a) });
    if !is_self(a[0] as i32) {
        return plain(a);
    }
    // Without memory: what the kernel says of the rest.
    plain([a[0], 0, 0, a[3], a[4], 0])?;
    const MOST: usize = 1024;
    let n = a[2];
    if n == 0 || n > MOST {
        return plain(a);
    }
    let mut list = vec![[0usize; 2]; n];
    let to = list.as_mut_ptr().cast();
    // SAFETY: memory of ours, as long as said.
    unsafe { mem::copy_from_program(a[1], to, n * size_of::<[usize; 2]>()) }?;
    let total: usize = list.iter().map(|v| v[1].min(1 << 48)).sum();
    if total > i64::MAX as usize || list.iter().any(|v| v[1] > i64::MAX as usize) {
        return Err(Errno::EINVAL);
    }
    let is_beyond = |[addr, len]: &[usize; 2]| addr.checked_add(*len).is_none_or(|end| end > TOP);
    if list.iter().any(is_beyond) {
        return Err(Errno::EFAULT);
    }
    let mut done = 0;
    for [addr, len] in list {
        let asked = match len {
            0 => Ok(0),
            _ => madvise([addr, len, a[3], 0, 0, 0]),
        };
        match asked {
            Ok(_) => done += len,
            Err(err) if done == 0 => return Err(err),
            Err(_) => break,
        }
    }
    Ok(done)
}

const PIDFD_SELF_THREAD: i32 = -10000;
const PIDFD_SELF_THREAD_GROUP: i32 = -10001;
/// PIDFD_GET_INFO: a mask of what is asked for, a group, and then numbers.
const GET_INFO: usize = 3 << 30 | 64 << 16 | 0xff << 8 | 11;

/// A number that stands for this process in each of its threads (Linux 6.14), if the descriptor does in
/// the caller's.
pub fn name_self(pidfd: usize) -> usize {
    let asks = [pidfd, GET_INFO, 1 << 40, 0, 0, 0];
    if sandbox::is_allowed(libc::SYS_ioctl, asks) && is_self(pidfd as i32) {
        return PIDFD_SELF_THREAD as usize;
    }
    pidfd
}

/// Whether the descriptor stands for this process.
fn is_self(pidfd: i32) -> bool {
    if matches!(pidfd, PIDFD_SELF_THREAD | PIDFD_SELF_THREAD_GROUP) {
        return true;
    }
    const PID: u64 = 1;
    let mut info = [0u64; 8];
    info[0] = PID;
    let args = [pidfd as usize, GET_INFO, info.as_mut_ptr() as usize];
    // SAFETY: the structure has 64 bytes, as the request says.
    let asked = unsafe { syscall(libc::SYS_ioctl, args) };
    let tgid = (info[2] >> 32) as u32;
    asked.is_ok() && info[0] & PID != 0 && tgid == hugeswap::sys::thread::getpid()
}
