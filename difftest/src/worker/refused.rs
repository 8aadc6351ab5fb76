//! Calls that fail, and change nothing or only what came first; and advice by process_madvise.
#![allow(unsafe_code)]

use super::shadow::{Part, CELLS, FREED, LOCKED, PAGE, RW};
use super::sys::{self, errno, fail_with};
use super::world::World;
use crate::plan::Rng;

const RWI: i32 = RW as i32;
const ANON: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
/// One past the addresses that a program gets unless it asks for others.
const TOP: usize = 1 << 47;
/// No processor has as many for programs: with five levels of page tables there are 2^56 less a page.
const BEYOND: usize = 1 << 56;

/// A system call as it is: -1 and errno.
fn call(nr: i64, a: [usize; 6]) -> (i64, i32) {
    // SAFETY: who calls this tells the model what may have changed.
    let r = unsafe { libc::syscall(nr, a[0], a[1], a[2], a[3], a[4], a[5]) };
    (r, if r == -1 { errno() } else { 0 })
}

fn must_fail(what: &str, want: i32, (r, e): (i64, i32)) {
    if r != -1 || e != want {
        fail_with(format_args!("{what} gives {r}, errno {e}, not {want}"));
    }
}

pub fn refused(w: &mut World, r: &mut Rng) {
    let Some(p) = w.part(r) else { return };
    let (at, len) = (w.shadow().addr(p), p.count * PAGE);
    let fixed = (ANON | libc::MAP_FIXED) as usize;
    let none = usize::MAX;
    let move_to = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
    match r.below(12) {
        0 => must_fail(
            "munmap of no page's begin",
            libc::EINVAL,
            call(libc::SYS_munmap, [at + 8, len, 0, 0, 0, 0]),
        ),
        1 => must_fail(
            "mmap of nothing",
            libc::EINVAL,
            call(libc::SYS_mmap, [at, 0, RWI as usize, fixed, none, 0]),
        ),
        2 => must_fail(
            "mmap of no file",
            libc::EBADF,
            call(
                libc::SYS_mmap,
                [
                    at,
                    len,
                    RWI as usize,
                    (libc::MAP_PRIVATE | libc::MAP_FIXED) as usize,
                    none,
                    0,
                ],
            ),
        ),
        3 => {
            // SAFETY: a C string.
            let fd = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY) };
            let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as usize;
            must_fail(
                "mmap of a file that can't be read",
                libc::EACCES,
                call(
                    libc::SYS_mmap,
                    [at, len, RWI as usize, flags, fd as usize, 0],
                ),
            );
            sys::close(fd);
        }
        4 => must_fail(
            "mremap onto itself",
            libc::EINVAL,
            call(libc::SYS_mremap, [at, len, len, move_to, at, 0]),
        ),
        5 => must_fail(
            "mremap to a place, without leave to move",
            libc::EINVAL,
            call(
                libc::SYS_mremap,
                [at, len, len, libc::MREMAP_FIXED as usize, at + len, 0],
            ),
        ),
        6 => {
            let flags = libc::MREMAP_MAYMOVE as usize;
            let (r, e) = call(libc::SYS_mremap, [at, len, TOP, flags, 0, 0]);
            // EFAULT: of several mappings; EINVAL: Linux 6.17; EAGAIN: more than may be locked.
            let known = [libc::ENOMEM, libc::EFAULT, libc::EINVAL, libc::EAGAIN];
            if r != -1 || !known.contains(&e) {
                fail_with(format_args!("mremap to 128 TiB gives {r}, errno {e}"));
            }
        }
        7 => must_fail(
            "mprotect with what does not exist",
            libc::EINVAL,
            call(libc::SYS_mprotect, [at, len, 1 << 20, 0, 0, 0]),
        ),
        8 => must_fail(
            "advice that does not exist",
            libc::EINVAL,
            call(libc::SYS_madvise, [at, len, 999, 0, 0, 0]),
        ),
        9 => must_fail(
            "mlock2 with flags that do not exist",
            libc::EINVAL,
            call(libc::SYS_mlock2, [at, len, 8, 0, 0, 0]),
        ),
        10 => must_fail(
            "munmap beyond all addresses",
            libc::EINVAL,
            call(libc::SYS_munmap, [at, BEYOND, 0, 0, 0, 0]),
        ),
        _ => into_a_hole(w, r, p),
    }
    w.check(p);
}

/// From the region's end into nothing: what comes before the hole has happened.
fn into_a_hole(w: &mut World, r: &mut Rng, p: Part) {
    let from = w.shadow().pages(p.region) - p.count;
    let p = Part { from, ..p };
    let (at, len) = (w.shadow().addr(p), p.count * PAGE);
    let mut there = [0u8];
    let answer = [at + len, PAGE, there.as_mut_ptr() as usize, 0, 0, 0];
    if call(libc::SYS_mincore, answer) != (-1, libc::ENOMEM)
        || !w.shadow().all(p, |g| g.flags & LOCKED == 0)
    {
        return;
    }
    if r.one_in(2) {
        let prot = [libc::PROT_READ, RWI][r.below(2)];
        must_fail(
            "mprotect into a hole",
            libc::ENOMEM,
            call(libc::SYS_mprotect, [at, len + PAGE, prot as usize, 0, 0, 0]),
        );
        w.shadow().each(p, |g| g.prot = prot as u8);
    } else {
        must_fail(
            "MADV_DONTNEED into a hole",
            libc::ENOMEM,
            call(
                libc::SYS_madvise,
                [at, len + PAGE, libc::MADV_DONTNEED as usize, 0, 0, 0],
            ),
        );
        drop_all(w, p);
    }
    w.check(p);
}

fn drop_all(w: &mut World, p: Part) {
    w.shadow().each(p, |g| {
        g.cell = [0; CELLS];
        g.flags &= !FREED;
    });
}

/// Up to four, without those that are locked.
fn parts_to_advise(w: &mut World, r: &mut Rng) -> Option<Vec<Part>> {
    let mut parts = Vec::new();
    for _ in 0..1 + r.below(4) {
        let p = w.part(r)?;
        if w.shadow().all(p, |g| g.flags & LOCKED == 0) {
            parts.push(p);
        }
    }
    Some(parts)
}

/// Several parts at once; sometimes with one at the end that can't be.
pub fn process_madvise(w: &mut World, r: &mut Rng) {
    const MADV_COLD: i32 = 20;
    const MADV_PAGEOUT: i32 = 21;
    let advice = [
        libc::MADV_DONTNEED,
        libc::MADV_DONTNEED,
        libc::MADV_FREE,
        libc::MADV_WILLNEED,
        MADV_COLD,
        MADV_PAGEOUT,
    ][r.below(6)];
    let Some(parts) = parts_to_advise(w, r) else {
        return;
    };
    let mut list: Vec<[usize; 2]> = Vec::new();
    for &p in &parts {
        list.push([w.shadow().addr(p), p.count * PAGE]);
    }
    if r.one_in(4) {
        list.push([8, PAGE]);
    }
    if list.is_empty() {
        return;
    }
    // SAFETY: no pointers.
    let me = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
    let args = [
        me as usize,
        list.as_ptr() as usize,
        list.len(),
        advice as usize,
        0,
        0,
    ];
    let (done, e) = call(libc::SYS_process_madvise, args);
    sys::close(me as i32);
    let want: usize = parts.iter().map(|p| p.count * PAGE).sum();
    // Kernels before 6.13 do not know all advice here.
    if done == -1 && e == libc::EINVAL {
        for p in parts {
            w.check(p);
        }
        return;
    }
    if done != want as i64 {
        fail_with(format_args!(
            "process_madvise {advice} of {want} bytes gives {done}, errno {e}"
        ));
    }
    for &p in &parts {
        match advice {
            libc::MADV_DONTNEED => drop_all(w, p),
            libc::MADV_FREE => w.shadow().each(p, |g| g.flags |= FREED),
            _ => {}
        }
    }
    for p in parts {
        w.check(p);
    }
}
