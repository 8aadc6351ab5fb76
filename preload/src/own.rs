//! The program's calls on addresses that are the engine's own (`sys::arena`). To the program nothing is mapped
//! there, and nothing can be: it is told what the kernel says of such addresses.

use crate::frame::{
    Result, MADVISE, MBIND, MINCORE, MLOCK, MLOCK2, MMAP, MPROTECT, MREMAP, MSEAL, MUNLOCK, MUNMAP,
    PKEY_MPROTECT, SHMAT,
};
use crate::manageable::{pages, TOP};
use crate::map;
use hugeswap::engine::Stretch;
use hugeswap::mm::PAGE_SIZE;
use hugeswap::sys::{mem, Errno};

/// What is left of a call that touches such addresses.
pub struct Rest {
    /// The call is made for what lies before them, and then for what lies behind them.
    pub parts: [Option<Stretch>; 2],
    /// What the call says where that has gone well.
    pub said: Result<usize>,
}

/// None: the call touches none of them, or the kernel refuses it anyway.
pub fn rest(call: usize, a: [usize; 6]) -> Option<Rest> {
    rest_around(mem::arena()?, call, a)
}

fn rest_around(own: Stretch, call: usize, a: [usize; 6]) -> Option<Rest> {
    let touches = |s: Option<Stretch>| s.is_some_and(|(start, end)| start < own.1 && own.0 < end);
    let (stretch, target) = stretches(call, a);
    if !touches(stretch) && !touches(target) {
        return None;
    }
    let before = stretch
        .filter(|s| s.0 < own.0)
        .map(|s| (s.0, s.1.min(own.0)));
    let behind = stretch
        .filter(|s| s.1 > own.1)
        .map(|s| (s.0.max(own.1), s.1));
    let (parts, said) = match call {
        MUNMAP => ([before, behind], Ok(0)),
        // It goes on behind a hole.
        MADVISE => ([before, behind], Err(Errno::ENOMEM)),
        // These stop there.
        MPROTECT | PKEY_MPROTECT | MLOCK | MLOCK2 | MUNLOCK => ([before, None], Err(Errno::ENOMEM)),
        MMAP if is_noreplace(a) => ([None; 2], Err(Errno::EEXIST)),
        SHMAT => ([None; 2], Err(Errno::EINVAL)),
        MBIND => ([None; 2], Err(Errno::EFAULT)),
        MREMAP if touches(stretch) => ([None; 2], Err(Errno::EFAULT)),
        _ => ([None; 2], Err(Errno::ENOMEM)),
    };
    Some(Rest { parts, said })
}

fn is_noreplace(a: [usize; 6]) -> bool {
    let flag = libc::MAP_FIXED_NOREPLACE;
    a[3] as i32 & flag == flag
}

/// The addresses that the call is about, and those that it moves them to.
fn stretches(call: usize, a: [usize; 6]) -> (Option<Stretch>, Option<Stretch>) {
    let moves = libc::MREMAP_FIXED | libc::MREMAP_MAYMOVE;
    match call {
        MUNMAP | MADVISE | MPROTECT | PKEY_MPROTECT | MINCORE | MSEAL | MBIND => {
            (aligned(a[0], a[1]), None)
        }
        MLOCK | MLOCK2 | MUNLOCK => {
            let within = a[0] % PAGE_SIZE;
            let len = a[1].checked_add(within).filter(|_| a[1] != 0);
            (len.and_then(|len| aligned(a[0] - within, len)), None)
        }
        MMAP if a[3] as i32 & map::FIXED != 0 => (aligned(a[0], a[1]), None),
        // Without a length a mapping that is shared is mapped once more.
        MREMAP if a[3] as i32 & moves == moves => (aligned(a[0], a[1].max(1)), aligned(a[4], a[2])),
        MREMAP => (aligned(a[0], a[1].max(1)), None),
        SHMAT => (map::attached(a), None),
        _ => (None, None),
    }
}

/// None where the kernel refuses such addresses as a whole.
fn aligned(start: usize, len: usize) -> Option<Stretch> {
    let end = start.checked_add(pages(len)?)?;
    (start % PAGE_SIZE == 0 && end < TOP).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(page: usize) -> usize {
        page * PAGE_SIZE
    }
    const OWN: Stretch = (at(100), at(200));

    /// What is left of a call on these pages, and what it says; None: it goes its way.
    fn left(
        call: usize,
        from: usize,
        to: usize,
        flags: i32,
    ) -> Option<([Option<Stretch>; 2], Result<usize>)> {
        let a = [at(from), at(to - from), 0, flags as usize, 0, 0];
        rest_around(OWN, call, a).map(|r| (r.parts, r.said))
    }

    #[test]
    fn what_lies_beside_goes_its_way() {
        for call in [MUNMAP, MADVISE, MPROTECT, MINCORE, MLOCK, MREMAP] {
            assert!(left(call, 90, 100, 0).is_none() && left(call, 200, 201, 0).is_none());
        }
        assert!(left(MMAP, 100, 110, 0).is_none(), "a hint");
        let unaligned = [at(100) + 1, at(1), 0, 0, 0, 0];
        assert!(rest_around(OWN, MUNMAP, unaligned).is_none());
        assert!(rest_around(OWN, MLOCK, unaligned).is_some());
        assert!(rest_around(OWN, MLOCK, [at(100) + 1, 0, 0, 0, 0, 0]).is_none());
        // The kernel refuses all of it, and so nothing may have happened.
        let to_the_top = [at(90), TOP - at(90), 0, 0, 0, 0];
        let almost = [at(90), TOP - at(91), 0, 0, 0, 0];
        assert!(rest_around(OWN, MUNMAP, to_the_top).is_none());
        assert!(rest_around(OWN, MUNMAP, almost).is_some());
    }

    #[test]
    fn as_of_what_is_not_mapped() {
        let (before, behind) = (Some((at(90), at(100))), Some((at(200), at(210))));
        let no = Err(Errno::ENOMEM);
        assert_eq!(left(MUNMAP, 100, 200, 0), Some(([None; 2], Ok(0))));
        assert_eq!(left(MUNMAP, 90, 210, 0), Some(([before, behind], Ok(0))));
        assert_eq!(left(MADVISE, 90, 210, 0), Some(([before, behind], no)));
        assert_eq!(left(MPROTECT, 90, 210, 0), Some(([before, None], no)));
        assert_eq!(left(MUNLOCK, 150, 210, 0), Some(([None; 2], no)));
        assert_eq!(left(MINCORE, 90, 150, 0), Some(([None; 2], no)));
    }

    #[test]
    fn nothing_comes_there() {
        let said = |call, flags| left(call, 150, 151, flags).map(|(_, said)| said);
        let exists = Some(Err(Errno::EEXIST));
        assert_eq!(said(MMAP, libc::MAP_FIXED), Some(Err(Errno::ENOMEM)));
        assert_eq!(said(MMAP, libc::MAP_FIXED_NOREPLACE), exists);
        assert_eq!(said(MREMAP, 0), Some(Err(Errno::EFAULT)));
        let moved = |flags: i32| {
            let a = [at(1), at(1), at(1), flags as usize, at(150), 0];
            rest_around(OWN, MREMAP, a).map(|r| r.said)
        };
        let moves = libc::MREMAP_FIXED | libc::MREMAP_MAYMOVE;
        assert_eq!(moved(moves), Some(Err(Errno::ENOMEM)));
        assert_eq!(moved(libc::MREMAP_MAYMOVE), None);
    }
}
