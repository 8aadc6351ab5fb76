//! mremap, by the kernel's own call: so what was said of a mapping goes along with it, and pages that
//! a device writes into stay what they are. The kernel takes the new mapping out of the userfaultfd; it is
//! registered again, and the tables follow, while everybody who touches it waits.

use crate::bare::{lay_bare, refill};
use crate::frame::Result;
use crate::lock;
use crate::manageable::{is_writable, pages, RW, TOP};
use crate::map::{munmap, replace, Owner};
use crate::maps::{self, holes, Mapping};
use crate::state::{state, Area, State};
use crate::stretch::{reserve, reserve_two};
use crate::window::Extents;
use hugeswap::engine::{Engine, Fate, Stretch};
use hugeswap::mm::{PAGE_SIZE, PMD_SIZE};
use hugeswap::sync::Mutex;
use hugeswap::sys::syscall::{check, raw};
use hugeswap::sys::{mem, thread, Errno};

/// One mapping is on its way at a time: two would bear the same mark, and be joined where they meet.
static ON_THE_WAY: Mutex<()> = Mutex::new(());

/// EX_SOFTWARE.
const EXIT_LOST: i32 = 70;

#[derive(Clone, Copy)]
struct Call {
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: i32,
    fixed: usize,
}

impl Call {
    /// SAFETY of the callers: the program's own call, or part of it.
    fn make(&self, flags: i32, new: usize) -> Result<usize> {
        let a = [self.old, self.old_len, self.new_len, flags as usize, new, 0];
        // SAFETY: as above.
        check(unsafe { raw(libc::SYS_mremap, a) })
    }

    fn keeps_old(&self) -> bool {
        self.flags & libc::MREMAP_DONTUNMAP != 0
    }
}

pub fn mremap(e: &Engine, bell: usize, a: [usize; 6]) -> Result<usize> {
    // SAFETY: the program's own call.
    let plain = || check(unsafe { raw(libc::SYS_mremap, a) });
    let (old, flags, fixed) = (a[0], a[3] as i32, a[4]);
    let fits = |at: usize, len: usize| at.checked_add(len).is_some_and(|end| end <= TOP);
    let (old_len, new_len) = match (pages(a[1]), pages(a[2])) {
        (Some(old_len), Some(new_len)) => (old_len, new_len),
        (None, Some(new_len)) if a[1] == 0 && fits(fixed, new_len) => {
            return mirror(e, bell, a, (fixed, fixed + new_len));
        }
        _ => return plain(),
    };
    // MREMAP_DONTUNMAP takes an address too: the kernel looks at it, and has it for a hint.
    let moves = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
    if moves && fits(old, old_len) && !fits(fixed, new_len) {
        // Beyond 47 bits nothing is managed: what is in swap would be left behind.
        if state().lock().is_ours(old, old + old_len) {
            return Err(Errno::EINVAL);
        }
    }
    if old % PAGE_SIZE != 0
        || !fits(old, old_len)
        || new_len > TOP
        || moves && !fits(fixed, new_len)
    {
        return plain();
    }
    let known = libc::MREMAP_FIXED | libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    let source = (old, old + old_len);
    let overlap = fixed < source.1 && old < fixed + new_len;
    let refused = a[3] & !(known as usize) != 0
        || moves && flags & libc::MREMAP_MAYMOVE == 0
        || flags & libc::MREMAP_DONTUNMAP != 0 && old_len != new_len
        || moves && (fixed % PAGE_SIZE != 0 || overlap);
    if refused {
        // The kernel says how.
        return plain();
    }
    let c = Call {
        old,
        old_len,
        new_len,
        flags,
        fixed,
    };
    if moves {
        return move_there(e, bell, &c);
    }
    if new_len <= old_len {
        return shrink(e, bell, &c);
    }
    match grow(e, bell, &c) {
        Err(Errno::ENOMEM) if flags & libc::MREMAP_MAYMOVE != 0 => move_there(e, bell, &c),
        r => r,
    }
}

/// An old size of 0: shared memory is mapped once more, and stays where it is.
fn mirror(e: &Engine, bell: usize, a: [usize; 6], target: Stretch) -> Result<usize> {
    // SAFETY: the program's own call.
    let plain = || check(unsafe { raw(libc::SYS_mremap, a) });
    let known = libc::MREMAP_FIXED | libc::MREMAP_MAYMOVE;
    // Of other flags the kernel wants none here; and where it is free to choose the window is taken.
    if a[3] != known as usize || target.0 % PAGE_SIZE != 0 {
        return plain();
    }
    let _own = reserve(target.0, target.1);
    if !state().lock().is_ours(target.0, target.1) {
        return plain();
    }
    replace(e, bell, target, Owner::Kernel, plain)
}

/// Makes a mapping shorter where it is, or leaves it as long. It goes as munmap does.
fn shrink(e: &Engine, bell: usize, c: &Call) -> Result<usize> {
    let source = (c.old, c.old + c.old_len);
    let own = reserve_two(source, (source.1, source.1));
    lay_bare(source.0, source.1)?;
    let unchanged = Call {
        old_len: c.new_len,
        ..*c
    };
    unchanged.make(0, 0)?;
    drop(own);
    if c.new_len < c.old_len {
        munmap(e, bell, c.old + c.new_len, c.old_len - c.new_len)?;
    }
    Ok(c.old)
}

/// Makes a mapping longer where it is. ENOMEM where that can't be.
fn grow(e: &Engine, bell: usize, c: &Call) -> Result<usize> {
    let (end, new_end) = (c.old + c.old_len, c.old + c.new_len);
    let _own = reserve_two((c.old, new_end), (new_end, new_end));
    let managed = {
        let s = state().lock();
        if !s.is_ours(c.old, new_end) {
            drop(s);
            return c.make(0, 0);
        }
        // Where something is in the way nothing has to make room: the kernel says so.
        let in_use = |(area, _, _): &(Area, usize, usize)| {
            matches!(area, Area::Window | Area::Region | Area::Foreign)
        };
        if new_end > TOP || s.areas(end, new_end).iter().any(in_use) {
            drop(s);
            return c.make(0, 0);
        }
        s.regions.contains(end - 1, end)
    };
    lay_bare(c.old, new_end)?;
    {
        // Nobody else gets what follows meanwhile.
        let mut s = state().lock();
        s.window.claim(end, new_end);
    }
    if let Err(err) = c.make(0, 0) {
        let mut s = state().lock();
        for (from, to) in unmapped(&s.regions, &s.foreign, end, new_end) {
            s.window.strip(from, to);
        }
        return Err(err);
    }
    if !managed {
        state().lock().put_foreign(end, new_end);
        return Ok(c.old);
    }
    let locked = note_growth(&mut state().lock(), end, new_end);
    if locked {
        // They came at once.
        let _ = e.adopt_resident(bell, end, new_end - end);
    } else {
        let grown = || match maps::protection(e, bell, c.old)? {
            RW => lock::movable_again(e, end, new_end),
            _ => Ok(()),
        };
        // It has grown, whatever comes of this: what can't be told of stays in memory.
        let _ = grown();
    }
    Ok(c.old)
}

/// A mapping that grew is registered, and so is what it grew by, of which the same is said. Whether that is
/// locked.
fn note_growth(s: &mut State, end: usize, new_end: usize) -> bool {
    s.put_region(end, new_end);
    let locked = s.locked.contains(end - 1, end);
    for set in [&mut s.locked, &mut s.wiped, &mut s.keyed] {
        if set.contains(end - 1, end) {
            set.insert(end, new_end);
        }
    }
    locked
}

/// What of the stretch is in none of the sets.
fn unmapped(one: &Extents, two: &Extents, start: usize, end: usize) -> Vec<Stretch> {
    let mut rest = Extents::new();
    rest.insert(start, end);
    for (from, to) in one
        .overlaps(start, end)
        .into_iter()
        .chain(two.overlaps(start, end))
    {
        rest.remove(from, to);
    }
    rest.iter().collect()
}

/// To a place that the program says, or to one in the window.
fn move_there(e: &Engine, bell: usize, c: &Call) -> Result<usize> {
    let source = (c.old, c.old + c.old_len);
    if c.flags & libc::MREMAP_FIXED != 0 {
        let _own = reserve_two(source, (c.fixed, c.fixed + c.new_len));
        let involved = {
            let s = state().lock();
            s.is_ours(source.0, source.1) || s.is_ours(c.fixed, c.fixed + c.new_len)
        };
        if !involved {
            return c.make(c.flags, c.fixed);
        }
        lay_bare(source.0, source.1)?;
        return move_parts(e, bell, c);
    }
    if !state().lock().is_ours(source.0, source.1) {
        return c.make(c.flags, 0);
    }
    refill(e, bell);
    // With the same place in a range folios stay whole.
    let taken = state().lock().window.take(c.new_len, c.old % PMD_SIZE);
    let at = taken.ok_or(Errno::ENOMEM)?;
    let _own = reserve_two(source, (at, at + c.new_len));
    let placed = Call {
        flags: c.flags | libc::MREMAP_FIXED,
        fixed: at,
        ..*c
    };
    let moved = lay_bare(source.0, source.1).and_then(|()| {
        // To where it is told the kernel moves several mappings, if they keep their length, and may stop
        // half-way. The program has not told it, and is refused.
        match c.old_len == c.new_len && parts_of(e, bell, source)?.len() > 1 {
            true => c.make(c.flags, 0),
            false => move_one(e, bell, &placed),
        }
    });
    moved.inspect_err(|_| {
        // The kernel may have unmapped it.
        // SAFETY: nobody uses it.
        let _ = unsafe { mem::munmap(at, c.new_len) };
        let mut s = state().lock();
        s.regions.remove(at, at + c.new_len);
        s.window.strip(at, at + c.new_len);
    })
}

/// MREMAP_FIXED of a stretch with several mappings, or with holes behind one: since Linux 6.17 they move one after
/// the other, and what is over the holes stays.
fn move_parts(e: &Engine, bell: usize, c: &Call) -> Result<usize> {
    let (start, end) = (c.old, c.old + c.old_len);
    let parts = parts_of(e, bell, (start, end))?;
    let ends_early = parts.last().is_some_and(|m| m.end < end);
    let several = (parts.len() > 1 || ends_early) && c.old_len == c.new_len;
    if !several || parts[0].start > start || !moves_several() {
        return move_one(e, bell, c);
    }
    for m in parts {
        let (from, to) = (m.start.max(start), m.end.min(end));
        let one = Call {
            old: from,
            old_len: to - from,
            new_len: to - from,
            fixed: c.fixed + (from - start),
            ..*c
        };
        move_one(e, bell, &one)?;
    }
    Ok(c.fixed)
}

/// The mappings of a stretch.
fn parts_of(e: &Engine, bell: usize, (start, end): Stretch) -> Result<Vec<Mapping>> {
    let here = |m: &Mapping| m.start < end && m.end > start;
    Ok(maps::all(e, bell)?.into_iter().filter(here).collect())
}

/// Whether this kernel moves several mappings with one call.
fn moves_several() -> bool {
    let all = 4 * PAGE_SIZE;
    let Ok(at) = mem::map_anon(all) else {
        return false;
    };
    let at = at as usize;
    let c = Call {
        old: at,
        old_len: 2 * PAGE_SIZE,
        new_len: 2 * PAGE_SIZE,
        flags: libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
        fixed: at + 2 * PAGE_SIZE,
    };
    // SAFETY: just mapped, and nobody knows of it.
    let moved = unsafe { mem::mprotect(at, PAGE_SIZE, libc::PROT_READ) }
        .and_then(|()| c.make(c.flags, c.fixed));
    // SAFETY: as above.
    unsafe { mem::unmap_own(at, all) };
    moved.is_ok()
}

/// Moves one mapping, or part of one, to `fixed`. Both places are reserved.
fn move_one(e: &Engine, bell: usize, c: &Call) -> Result<usize> {
    let (source, target) = ((c.old, c.old + c.old_len), (c.fixed, c.fixed + c.new_len));
    let n = c.old_len.min(c.new_len);
    // What does not move is unmapped first, whatever lies there.
    let (moving, rest) = ((source.0, source.0 + n), (source.0 + n, source.1));
    let managed = state().lock().regions.contains(moving.0, moving.1);
    let hold = e.hold_two(bell, source, target)?;
    if managed {
        hold.prepare_move(source.0, target.0, n)?;
    }
    let free = state().lock().window.take_free(target.0, target.1);
    let made = match managed {
        true => move_registered(e, bell, c),
        false => c.make(c.flags, c.fixed).map(drop),
    };
    if let Err(err) = made {
        // What was at the new place is there, or the kernel has unmapped it first, and so the rest.
        let mut holes = holes(e, bell, target);
        if rest.0 < rest.1 {
            holes.extend(maps::holes(e, bell, rest));
        }
        hold.end_parts(&holes, Fate::Unmapped);
        let mut s = state().lock();
        for (from, to) in free {
            s.window.give(from, to);
        }
        s.unmapped(&holes);
        return Err(err);
    }
    let said = take_along(&mut state().lock(), c, managed);
    if managed {
        hold.moved(source.0, target.0, n);
        if c.keeps_old() {
            hold.end(source, Fate::Dropped);
            // What another thread has touched there, before it was registered again.
            let _ = e.adopt_resident(bell, source.0, n);
        } else {
            // What it has grown by lies where something else was.
            let grown = (target.0 + n, target.1);
            hold.end_parts(&[source, grown], Fate::Unmapped);
        }
    } else {
        hold.end_parts(&[source, target], Fate::Unmapped);
    }
    if managed && c.new_len > n {
        let (from, len) = (target.0 + n, c.new_len - n);
        if said.locked_to_end(n) {
            let _ = e.adopt_resident(bell, from, len);
        } else {
            let grown = || match maps::protection(e, bell, target.0)? {
                prot if is_writable(prot) => lock::movable_again(e, from, from + len),
                _ => Ok(()),
            };
            // As in `grow`: it has moved.
            let _ = grown();
        }
    }
    Ok(target.0)
}

/// What is said of the mapping that `c` has moved is said of its new place.
fn take_along(s: &mut State, c: &Call, managed: bool) -> Said {
    let (source, target) = ((c.old, c.old + c.old_len), (c.fixed, c.fixed + c.new_len));
    let n = c.old_len.min(c.new_len);
    let said = Said::of(s, source, n);
    s.forget(target.0, target.1);
    if managed {
        s.put_region(target.0, target.1);
    } else {
        s.put_foreign(target.0, target.1);
    }
    said.repeat(s, target.0, n, c.new_len);
    if c.keeps_old() {
        s.locked.remove(source.0, source.1);
    } else {
        s.forget(source.0, source.1);
        s.window.strip(source.0, source.1);
    }
    said
}

/// Moves a registered mapping. The kernel joins it with its new neighbours, if it can, and then takes
/// out of the userfaultfd what it has joined: others' memory, too. So it must look different on the way.
/// Advice of this kind does nothing to anonymous memory, and the program's own is kept from the kernel.
fn move_registered(e: &Engine, bell: usize, c: &Call) -> Result<()> {
    let n = c.old_len.min(c.new_len);
    let (source, target) = ((c.old, c.old + n), (c.fixed, c.fixed + c.new_len));
    let apart: Vec<Stretch> = state().lock().apart.overlaps(source.0, source.1);
    let _alone = ON_THE_WAY.lock();
    let mark = |(from, to): Stretch, advice: i32| {
        // SAFETY: contents do not change.
        unsafe { mem::madvise(from, to - from, advice) }
    };
    // As it was at the place that is `by` higher, or as near as the kernel lets us.
    let unmark = |at: Stretch, by: isize| {
        let _ = mark(at, libc::MADV_NORMAL);
        for &(from, to) in &apart {
            let [from, to] = [from, to].map(|a| a.wrapping_add_signed(by));
            if from >= at.0 && to <= at.1 {
                let _ = mark((from, to), libc::MADV_RANDOM);
            }
        }
    };
    let marked = match mark(source, libc::MADV_SEQUENTIAL) {
        // What has holes is no mapping: mremap has its own word for that.
        Err(Errno::ENOMEM) if is_unmapped(source) => Ok(()),
        r => r,
    };
    let moved = marked
        .and_then(|()| c.make(c.flags, c.fixed))
        .and_then(|_| register(e, bell, c));
    if moved.is_err() || c.keeps_old() {
        unmark(source, 0);
    }
    if moved.is_ok() {
        unmark(target, target.0.wrapping_sub(source.0) as isize);
    }
    moved
}

/// The moved mapping is the engine's again; or else it goes back, for what of it is in swap would be
/// zeros. Where the old one stays, the kernel lets go of that too if nothing was ever touched there.
fn register(e: &Engine, bell: usize, c: &Call) -> Result<()> {
    let n = c.old_len.min(c.new_len);
    let old = || match c.keeps_old() {
        true => e.register(bell, c.old, n),
        false => Ok(()),
    };
    let Err(err) = e.register(bell, c.fixed, c.new_len).and_then(|()| old()) else {
        return Ok(());
    };
    let back = Call {
        old: c.fixed,
        old_len: c.new_len,
        new_len: n,
        flags: libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
        fixed: c.old,
    };
    let again = back
        .make(back.flags, back.fixed)
        .and_then(|_| e.register(bell, c.old, n));
    if again.is_err() {
        e.cache
            .charge
            .log("memory that mremap moved can't be managed any more: ending the program");
        thread::exit_group(EXIT_LOST);
    }
    Err(err)
}

/// All of it, or part of it.
fn is_unmapped((start, end): Stretch) -> bool {
    let args = [start, end - start, libc::MS_ASYNC as usize];
    // SAFETY: anonymous memory has nothing to be written.
    let asked = unsafe { hugeswap::sys::syscall(libc::SYS_msync, args) };
    asked == Err(Errno::ENOMEM)
}

/// What was said of a mapping that moves, from its start.
struct Said {
    locked: Vec<Stretch>,
    pinned: Vec<Stretch>,
    guarded: Vec<Stretch>,
    wiped: Vec<Stretch>,
    keyed: Vec<Stretch>,
    apart: Vec<Stretch>,
}

impl Said {
    fn of(s: &State, (start, _): Stretch, len: usize) -> Said {
        let of = |set: &Extents| {
            let parts = set.overlaps(start, start + len).into_iter();
            parts.map(|(a, b)| (a - start, b - start)).collect()
        };
        Said {
            locked: of(&s.locked),
            pinned: of(&s.pinned),
            guarded: of(&s.guarded),
            wiped: of(&s.wiped),
            keyed: of(&s.keyed),
            apart: of(&s.apart),
        }
    }

    /// What is said of the end of a mapping is said of what it grows by; but for pages of their own.
    fn repeat(&self, s: &mut State, at: usize, len: usize, new_len: usize) {
        for (set, parts, grows) in [
            (&mut s.locked, &self.locked, true),
            (&mut s.wiped, &self.wiped, true),
            (&mut s.keyed, &self.keyed, true),
            (&mut s.apart, &self.apart, true),
            (&mut s.pinned, &self.pinned, false),
            (&mut s.guarded, &self.guarded, false),
        ] {
            for &(from, to) in parts {
                let to = if grows && to == len { new_len } else { to };
                set.insert(at + from, at + to);
            }
        }
    }

    fn locked_to_end(&self, len: usize) -> bool {
        self.locked.last().is_some_and(|l| l.1 == len)
    }
}
