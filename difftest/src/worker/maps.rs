//! What a program does to its mappings.
#![allow(unsafe_code)]

use super::bad;
use super::shadow::{Part, CELLS, FREED, KEPT, LARGEST, LOCKED, PAGE, RW, WIPED};
use super::sys::{self, errno, fail, fail_with, must};
use super::world::World;
use crate::plan::Rng;

const PMD: usize = 2 << 20;
const ANON: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const RWI: i32 = RW as i32;
/// Locked at a time, at most, so that the limit is not in the way.
const LOCKED_MOST: usize = 2048;

/// mmap that must succeed.
///
/// # Safety
/// With MAP_FIXED, what is there belongs to the model, which is told.
unsafe fn mmap(at: usize, pages: usize, prot: i32, flags: i32, fd: i32) -> usize {
    // SAFETY: the caller's contract.
    let p = unsafe { libc::mmap(at as *mut _, pages * PAGE, prot, flags, fd, 0) };
    if p == libc::MAP_FAILED {
        fail_with(format_args!("mmap {pages} pages: errno {}", errno()));
    }
    p as usize
}

fn munmap(at: usize, pages: usize) {
    // SAFETY: the model has the stretch, and forgets it.
    must(
        unsafe { libc::munmap(at as *mut _, pages * PAGE) },
        "munmap",
    );
}

fn mprotect(at: usize, pages: usize, prot: i32) {
    // SAFETY: the model has the stretch, and is told.
    must(
        unsafe { libc::mprotect(at as *mut _, pages * PAGE, prot) },
        "mprotect",
    );
}

fn madvise(at: usize, pages: usize, advice: i32) -> i32 {
    // SAFETY: the model has the stretch, and is told.
    match unsafe { libc::madvise(at as *mut _, pages * PAGE, advice) } {
        0 => 0,
        _ => errno(),
    }
}

pub fn map(w: &mut World, r: &mut Rng) {
    let n = r.pages(LARGEST);
    if w.shadow().is_full() || n > w.shadow().free_pages() {
        return unmap(w, r);
    }
    let mut flags = ANON;
    if r.one_in(2) {
        flags |= libc::MAP_NORESERVE;
    }
    if r.one_in(8) {
        flags |= libc::MAP_POPULATE;
    }
    let later = r.one_in(4);
    let mut hint = 0;
    match r.below(8) {
        0 => hint = 0x1000_0000_0000 + r.below(1 << 20) * PMD,
        1 => hint = 0x1000_0000_0000 + r.below(1 << 20) * PMD + r.below(512) * PAGE,
        2 => hint = 0x1000_0000 + r.below(1 << 10) * PMD,
        _ => {}
    }
    let prot = if later { libc::PROT_NONE } else { RWI };
    // SAFETY: nothing is replaced.
    let at = unsafe { mmap(hint, n, prot, flags, -1) };
    if later {
        mprotect(at, n, RWI);
    }
    let region = w.shadow().add(at, n, RW);
    let whole = w.whole(region);
    if r.one_in(4) {
        w.check(whole);
    }
    if r.below(3) > 0 {
        w.write(r, whole);
    }
}

/// New memory over a part of the old, in one call.
pub fn map_over(w: &mut World, r: &mut Rng) {
    let Some(p) = w.part(r) else { return };
    if w.shadow().is_heap(p.region) {
        return;
    }
    let at = w.shadow().addr(p);
    if r.one_in(4) {
        // SAFETY: it must be refused.
        let got = unsafe {
            libc::mmap(
                at as *mut _,
                p.count * PAGE,
                RWI,
                ANON | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        if got != libc::MAP_FAILED || errno() != libc::EEXIST {
            fail("MAP_FIXED_NOREPLACE over memory that is mapped is not refused");
        }
        return w.check(p);
    }
    // SAFETY: the model is told.
    let got = unsafe { mmap(at, p.count, RWI, ANON | libc::MAP_FIXED, -1) };
    if got != at {
        fail("MAP_FIXED went elsewhere");
    }
    w.shadow().renew(p);
    if r.one_in(2) {
        w.check(p);
    } else {
        w.write(r, p);
    }
}

/// Whether a part can be taken out of its region.
fn may_split(w: &mut World, p: Part) -> bool {
    !w.shadow().is_full() && !w.shadow().is_heap(p.region)
}

/// A file over a part of the old, for a while; then memory again, or a hole.
pub fn map_file(w: &mut World, r: &mut Rng) {
    let Some(mut p) = w.part(r) else { return };
    if !may_split(w, p) {
        return;
    }
    p.count = p.count.min(1024);
    let at = w.shadow().addr(p);
    let kind = if r.one_in(2) {
        libc::MAP_SHARED
    } else {
        libc::MAP_PRIVATE
    };
    let fd = sys::temporary(&w.dir, p.count * PAGE);
    // SAFETY: the model is told below.
    unsafe { mmap(at, p.count, RWI, kind | libc::MAP_FIXED, fd) };
    for i in 0..p.count.min(4) {
        let word = (at + i * PAGE) as *mut u64;
        // SAFETY: the file's mapping, just made.
        unsafe {
            if word.read_volatile() != 0 {
                fail("a new file mapping is not empty");
            }
            word.write_volatile(1);
        }
    }
    if r.one_in(2) {
        // SAFETY: the model is told.
        unsafe { mmap(at, p.count, RWI, ANON | libc::MAP_FIXED, -1) };
        w.shadow().renew(p);
        w.check(p);
        w.write(r, p);
    } else {
        munmap(at, p.count);
        bad::is_a_hole(at, p.count);
        w.shadow().remove(p);
    }
    sys::close(fd);
}

pub fn unmap(w: &mut World, r: &mut Rng) {
    let Some(mut p) = w.part(r) else { return };
    if w.shadow().is_heap(p.region) {
        return;
    }
    if r.one_in(3) || w.shadow().is_full() {
        p = w.whole(p.region);
    }
    let at = w.shadow().addr(p);
    munmap(at, p.count);
    bad::is_a_hole(at, p.count);
    w.shadow().remove(p);
}

pub fn protect(w: &mut World, r: &mut Rng) {
    let Some(p) = w.part(r) else { return };
    let prot = [libc::PROT_NONE, libc::PROT_READ, RWI, RWI][r.below(4)];
    // A locked page that cannot be accessed is no longer populated: not looked at here.
    if w.shadow().all(p, |g| g.flags & LOCKED == 0) {
        let at = w.shadow().addr(p);
        mprotect(at, p.count, prot);
        w.shadow().each(p, |g| g.prot = prot as u8);
    }
    if r.one_in(2) {
        w.check(p);
    }
}

const MADV_COLD: i32 = 20;
const MADV_PAGEOUT: i32 = 21;
const MADV_POPULATE_READ: i32 = 22;
const MADV_POPULATE_WRITE: i32 = 23;
const MADV_DONTNEED_LOCKED: i32 = 24;
const MADV_COLLAPSE: i32 = 25;

const ADVICE: [i32; 21] = [
    libc::MADV_NORMAL,
    libc::MADV_RANDOM,
    libc::MADV_SEQUENTIAL,
    libc::MADV_WILLNEED,
    libc::MADV_DONTNEED,
    libc::MADV_FREE,
    libc::MADV_DONTFORK,
    libc::MADV_DOFORK,
    libc::MADV_MERGEABLE,
    libc::MADV_UNMERGEABLE,
    libc::MADV_HUGEPAGE,
    libc::MADV_NOHUGEPAGE,
    libc::MADV_DONTDUMP,
    libc::MADV_DODUMP,
    libc::MADV_WIPEONFORK,
    libc::MADV_KEEPONFORK,
    MADV_COLD,
    MADV_POPULATE_READ,
    MADV_POPULATE_WRITE,
    MADV_DONTNEED_LOCKED,
    MADV_COLLAPSE,
];

pub fn advise(w: &mut World, r: &mut Rng) {
    let advice = match r.below(3) {
        0 => libc::MADV_DONTNEED,
        1 if r.one_in(2) => libc::MADV_FREE,
        _ => ADVICE[r.below(ADVICE.len())],
    };
    let Some(p) = w.part(r) else { return };
    if w.shadow().is_heap(p.region) && matches!(advice, libc::MADV_DONTFORK) {
        return;
    }
    // A child's model has no room for more regions than ours.
    if advice == libc::MADV_DONTFORK && !w.shadow().is_full() && w.shadow().count() > 16 {
        return;
    }
    let at = w.shadow().addr(p);
    let failed = madvise(at, p.count, advice);
    let locked = !w.shadow().all(p, |g| g.flags & LOCKED == 0);
    let open = w.shadow().all(p, |g| g.prot == RW);
    let may_fail = match advice {
        // Depends on the kernel's configuration and luck.
        libc::MADV_MERGEABLE | libc::MADV_UNMERGEABLE | MADV_COLLAPSE => true,
        libc::MADV_DONTNEED | libc::MADV_FREE | MADV_COLD => locked,
        MADV_POPULATE_READ | MADV_POPULATE_WRITE => !open,
        _ => false,
    };
    let must_fail = locked && matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE)
        || !open && w.shadow().all(p, |g| g.prot == 0) && advice == MADV_POPULATE_WRITE;
    if failed != 0 && !may_fail || failed == 0 && must_fail {
        fail_with(format_args!("madvise {advice} gives {failed}"));
    }
    // The kernel goes from one mapping to the next, and ends at the first that is locked.
    let mut done = p;
    if failed != 0 {
        done.count = (0..p.count)
            .find(|&i| w.shadow().page_at(p.region, p.from + i).flags & LOCKED != 0)
            .unwrap_or(p.count);
    }
    match advice {
        libc::MADV_DONTNEED | MADV_DONTNEED_LOCKED => w.shadow().each(done, |g| {
            g.cell = [0; CELLS];
            g.flags &= !FREED;
        }),
        libc::MADV_FREE => w.shadow().each(done, |g| g.flags |= FREED),
        libc::MADV_DONTFORK => w.shadow().each(p, |g| g.flags |= KEPT),
        libc::MADV_DOFORK => w.shadow().each(p, |g| g.flags &= !KEPT),
        libc::MADV_WIPEONFORK => w.shadow().each(p, |g| g.flags |= WIPED),
        libc::MADV_KEEPONFORK => w.shadow().each(p, |g| g.flags &= !WIPED),
        _ => {}
    }
    if r.one_in(2) {
        w.check(p);
    }
}

/// Asks for a part to be swapped out.
pub fn page_out(w: &mut World, r: &mut Rng) {
    if let Some(p) = push_out(w, r).filter(|_| r.one_in(4)) {
        w.check(p);
    }
}

/// The same, and does not look.
pub fn push_out(w: &mut World, r: &mut Rng) -> Option<Part> {
    let p = w.part(r)?;
    let at = w.shadow().addr(p);
    let failed = madvise(at, p.count, MADV_PAGEOUT);
    if failed != 0 && w.shadow().all(p, |g| g.flags & LOCKED == 0) {
        fail_with(format_args!("MADV_PAGEOUT gives {failed}"));
    }
    Some(p)
}

pub fn lock(w: &mut World, r: &mut Rng) {
    let mut locked = 0;
    for region in 0..w.shadow().count() {
        for i in 0..w.shadow().pages(region) {
            locked += usize::from(w.shadow().page_at(region, i).flags & LOCKED != 0);
        }
    }
    let Some(mut p) = w.part(r) else { return };
    let at = w.shadow().addr(p);
    if r.one_in(2) || locked > 0 {
        p = w.whole(p.region);
        let at = w.shadow().addr(p);
        // SAFETY: contents do not change.
        must(
            unsafe { libc::munlock(at as *const _, p.count * PAGE) },
            "munlock",
        );
        w.shadow().each(p, |g| g.flags &= !LOCKED);
    } else if w.shadow().all(p, |g| g.prot == RW) && locked + p.count <= LOCKED_MOST {
        // SAFETY: contents do not change.
        let r = unsafe {
            if r.one_in(3) {
                libc::mlock2(at as *const _, p.count * PAGE, libc::MLOCK_ONFAULT)
            } else {
                libc::mlock(at as *const _, p.count * PAGE)
            }
        };
        must(r, "mlock");
        w.shadow().each(p, |g| g.flags |= LOCKED);
    }
    w.check(p);
}

/// Makes the whole region readable and writable, and nothing of it locked or special: a mapping
/// that mremap must take.
fn open_all(w: &mut World, region: usize) {
    let p = w.whole(region);
    let at = w.shadow().addr(p);
    mprotect(at, p.count, RWI);
    // SAFETY: contents do not change.
    must(
        unsafe { libc::munlock(at as *const _, p.count * PAGE) },
        "munlock",
    );
    madvise(at, p.count, libc::MADV_DOFORK);
    madvise(at, p.count, libc::MADV_KEEPONFORK);
    w.shadow().each(p, |g| {
        g.prot = RW;
        g.flags &= FREED;
    });
}

/// A free place for so many pages, anywhere within 2 MiB.
fn free_place(r: &mut Rng, pages: usize) -> usize {
    // SAFETY: nothing is replaced; what is not needed goes again.
    unsafe {
        let place = mmap(
            0,
            pages + 512,
            libc::PROT_NONE,
            ANON | libc::MAP_NORESERVE,
            -1,
        );
        let skip = r.below(512);
        if skip > 0 {
            munmap(place, skip);
        }
        munmap(place + (skip + pages) * PAGE, 512 - skip);
        place + skip * PAGE
    }
}

/// mremap; None where the kernel has the stretch in several mappings, or has no room, which the
/// program cannot foresee.
fn mremap(at: usize, old: usize, new: usize, flags: i32, to: usize) -> Option<usize> {
    // SAFETY: the model is told.
    let got = unsafe {
        libc::mremap(
            at as *mut _,
            old * PAGE,
            new * PAGE,
            flags,
            to as *mut libc::c_void,
        )
    };
    if got != libc::MAP_FAILED {
        return Some(got as usize);
    }
    let e = errno();
    let in_place = flags & libc::MREMAP_MAYMOVE == 0;
    let is_keep = flags & libc::MREMAP_DONTUNMAP != 0;
    if e == libc::EFAULT || e == libc::ENOMEM && in_place || e == libc::EINVAL && is_keep {
        return None;
    }
    fail_with(format_args!(
        "mremap {old} to {new} pages, flags {flags}: errno {e}"
    ));
}

/// Grows, shrinks or moves a region.
pub fn remap(w: &mut World, r: &mut Rng) {
    let Some(p) = w.part(r) else { return };
    let (region, old) = (p.region, w.shadow().pages(p.region));
    let n = if r.one_in(3) {
        r.pages(old)
    } else {
        old + r.pages(2000)
    };
    let room = w.shadow().free_pages();
    if w.shadow().is_heap(region) || n > LARGEST || n > old && n - old > room {
        return;
    }
    open_all(w, region);
    let at = w.shadow().at(region);
    let mut flags = if r.one_in(4) { 0 } else { libc::MREMAP_MAYMOVE };
    let mut to = 0;
    if r.one_in(3) {
        flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        to = free_place(r, n);
    }
    let Some(got) = mremap(at, old, n, flags, to) else {
        if to != 0 {
            // Whether the place is still there is the kernel's to say.
            // SAFETY: the place is ours.
            unsafe { libc::munmap(to as *mut _, n * PAGE) };
        }
        return;
    };
    if to != 0 && got != to {
        fail("MREMAP_FIXED went elsewhere");
    }
    if got != at {
        bad::is_a_hole(at, old);
    }
    w.shadow().moved(region, got);
    if n > old {
        w.shadow().grow(region, n - old, RW);
    } else if n < old {
        w.shadow().remove(Part {
            region,
            from: n,
            count: old - n,
        });
    }
    if r.one_in(2) {
        let p = w.whole(region);
        w.check(p);
    }
}

/// Takes a part of a region elsewhere.
pub fn remap_part(w: &mut World, r: &mut Rng) {
    let Some(p) = w.part(r) else { return };
    if !may_split(w, p) || w.shadow().count() + 2 > super::shadow::REGIONS {
        return;
    }
    open_all(w, p.region);
    let at = w.shadow().addr(p);
    let (flags, to) = if r.one_in(2) {
        (
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            free_place(r, p.count),
        )
    } else {
        // Growing by a page makes it move.
        (libc::MREMAP_MAYMOVE, 0)
    };
    let grow = usize::from(to == 0);
    if w.shadow().free_pages() < grow {
        return;
    }
    let Some(got) = mremap(at, p.count, p.count + grow, flags, to) else {
        if to != 0 {
            // SAFETY: the place is ours.
            unsafe { libc::munmap(to as *mut _, p.count * PAGE) };
        }
        return;
    };
    if got == at {
        // It had room behind it: only at the region's end.
        if p.from + p.count != w.shadow().pages(p.region) {
            fail("mremap grew over what is mapped behind");
        }
        return w.shadow().grow(p.region, grow, RW);
    }
    let region = w.shadow().split_off(p, got);
    w.shadow().grow(region, grow, RW);
    let p = w.whole(region);
    w.check(p);
}

/// The contents go elsewhere, the old place stays, empty.
pub fn remap_keep(w: &mut World, r: &mut Rng) {
    let Some(p) = w.part(r) else { return };
    let n = w.shadow().pages(p.region);
    if w.shadow().is_heap(p.region) || w.shadow().is_full() || n > w.shadow().free_pages() {
        return;
    }
    open_all(w, p.region);
    let at = w.shadow().at(p.region);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    let Some(got) = mremap(at, n, n, flags, 0) else {
        return;
    };
    w.shadow().moved(p.region, got);
    let empty = w.shadow().add(at, n, RW);
    for region in [empty, p.region] {
        let p = w.whole(region);
        w.check(p);
    }
}

/// The heap, as far as nobody else has changed the break meanwhile.
pub fn brk(w: &mut World, r: &mut Rng) {
    let sbrk = |by: isize| {
        // SAFETY: what lies behind our part of the heap is ours.
        let p = unsafe { libc::sbrk(by) };
        if p as isize == -1 {
            fail_with(format_args!("sbrk({by}): errno {}", errno()));
        }
        p as usize
    };
    let Some(region) = w.shadow().heap() else {
        if w.shadow().is_full() || w.shadow().free_pages() < 8 {
            return;
        }
        let now = sbrk(0);
        sbrk((now.next_multiple_of(PAGE) - now) as isize);
        let at = sbrk(8 * PAGE as isize);
        let region = w.shadow().add(at, 8, RW);
        return w.shadow().set_heap(region);
    };
    let p = w.whole(region);
    let end = w.shadow().addr(p) + p.count * PAGE;
    if sbrk(0) != end {
        return;
    }
    let n = r.pages(2000);
    if r.one_in(3) {
        let n = n.min(p.count - 1);
        if n == 0 {
            return;
        }
        sbrk(-((n * PAGE) as isize));
        if sbrk(0) != end - n * PAGE {
            fail("the break is not where it was put");
        }
        w.shadow().remove(Part {
            region,
            from: p.count - n,
            count: n,
        });
    } else {
        if p.count + n > LARGEST || n > w.shadow().free_pages() {
            return;
        }
        if sbrk((n * PAGE) as isize) != end {
            fail("the heap does not grow where it ends");
        }
        w.shadow().grow(region, n, RW);
        let new = Part {
            region,
            from: p.count,
            count: n,
        };
        w.check(new);
        if r.one_in(2) {
            w.write(r, new);
        }
    }
}

/// A name for a part, which makes it a mapping of its own.
pub fn name(w: &mut World, r: &mut Rng) {
    const PR_SET_VMA: i32 = 0x5356_4d41;
    const PR_SET_VMA_ANON_NAME: usize = 0;
    let Some(p) = w.part(r) else { return };
    let at = w.shadow().addr(p);
    // SAFETY: a C string; contents do not change. Kernels without the facility refuse.
    unsafe {
        libc::prctl(
            PR_SET_VMA,
            PR_SET_VMA_ANON_NAME,
            at,
            p.count * PAGE,
            if r.one_in(3) {
                core::ptr::null()
            } else {
                c"difftest".as_ptr()
            },
        )
    };
    if r.one_in(2) {
        w.check(p);
    }
}
