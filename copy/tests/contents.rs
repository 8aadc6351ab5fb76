//! What is copied and cleared, what is refused, and that nothing else is
//! written.

use hugeswap_mm::PAGE_SIZE;
use hugeswap_page_copy::{self as copy, CopyError, Isa, Strategy};

/// Page-aligned memory for slices.
#[derive(Clone)]
struct Pages(Vec<Page>);

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_SIZE]);

impl Pages {
    fn new(nr: usize, seed: u64) -> Self {
        let mut state = seed | 1;
        let mut pages = vec![Page([0; PAGE_SIZE]); nr];
        for page in &mut pages {
            for chunk in page.0.chunks_exact_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                chunk.copy_from_slice(&state.to_le_bytes());
            }
        }
        Self(pages)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: an array of pages is its bytes, without padding.
        unsafe { core::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * PAGE_SIZE) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.0.len() * PAGE_SIZE;
        // SAFETY: as above; the borrow is exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}

fn sizes() -> &'static [usize] {
    if cfg!(miri) {
        &[1, 2, 5]
    } else {
        &[1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 64, 128, 257, 512, 2048]
    }
}

/// All targets of small pages, the edges and some inner ones of large pages.
fn targets(nr: usize) -> Vec<usize> {
    if nr <= 32 {
        return (0..nr).collect();
    }
    let inner = (0..16).map(|i| i * nr / 16 + i);
    let mut all: Vec<usize> = inner.chain([1, 2, nr / 2, nr - 2, nr - 1]).collect();
    all.retain(|&n| n < nr);
    all
}

#[test]
fn copies_everything_and_nothing_else() {
    for &nr in sizes() {
        let src = Pages::new(nr, 1);
        let before = Pages::new(nr + 2, 2);
        for strategy in Strategy::ALL {
            for target in targets(nr) {
                let mut dst = before.clone();
                let inner = PAGE_SIZE..(nr + 1) * PAGE_SIZE;
                copy::copy(
                    &mut dst.bytes_mut()[inner.clone()],
                    src.bytes(),
                    target,
                    strategy,
                )
                .unwrap();
                let what = (nr, target, strategy);
                assert!(dst.bytes()[inner.clone()] == *src.bytes(), "{what:?}");
                assert!(dst.bytes()[..inner.start] == before.bytes()[..inner.start]);
                assert!(dst.bytes()[inner.end..] == before.bytes()[inner.end..]);
            }
        }
    }
}

#[test]
fn clears_everything_and_nothing_else() {
    for &nr in sizes() {
        let before = Pages::new(nr + 2, 3);
        for strategy in Strategy::ALL {
            for target in targets(nr) {
                let mut dst = before.clone();
                let inner = PAGE_SIZE..(nr + 1) * PAGE_SIZE;
                copy::clear(&mut dst.bytes_mut()[inner.clone()], target, strategy).unwrap();
                let what = (nr, target, strategy);
                assert!(
                    dst.bytes()[inner.clone()].iter().all(|&b| b == 0),
                    "{what:?}"
                );
                assert!(dst.bytes()[..inner.start] == before.bytes()[..inner.start]);
                assert!(dst.bytes()[inner.end..] == before.bytes()[inner.end..]);
            }
        }
    }
}

#[test]
fn refuses_bad_arguments_and_writes_nothing() {
    for strategy in Strategy::ALL {
        let src = Pages::new(4, 4);
        let before = Pages::new(4, 5);
        let mut dst = before.clone();
        let mut copy = |d: core::ops::Range<usize>, s: core::ops::Range<usize>, target| {
            let got = copy::copy(&mut dst.bytes_mut()[d], &src.bytes()[s], target, strategy);
            assert!(dst.bytes() == before.bytes());
            got.unwrap_err()
        };
        let p = PAGE_SIZE;
        assert_eq!(copy(0..4 * p, 0..4 * p, 4), CopyError::TargetOutside);
        assert_eq!(
            copy(0..4 * p, 0..4 * p, usize::MAX),
            CopyError::TargetOutside
        );
        assert_eq!(copy(0..0, 0..0, 0), CopyError::Empty);
        assert_eq!(copy(0..p + 1, 0..p + 1, 0), CopyError::PartialPage);
        assert_eq!(copy(0..p - 1, 0..p - 1, 0), CopyError::PartialPage);
        assert_eq!(copy(0..p, 0..2 * p, 0), CopyError::LengthMismatch);
        assert_eq!(copy(1..p + 1, 0..p, 0), CopyError::Misaligned);
        assert_eq!(copy(0..p, 64..p + 64, 0), CopyError::Misaligned);

        let mut clear = |d: core::ops::Range<usize>, target| {
            let got = copy::clear(&mut dst.bytes_mut()[d], target, strategy);
            assert!(dst.bytes() == before.bytes());
            got.unwrap_err()
        };
        assert_eq!(clear(0..4 * p, 4), CopyError::TargetOutside);
        assert_eq!(clear(0..0, 0), CopyError::Empty);
        assert_eq!(clear(0..p + 1, 0), CopyError::PartialPage);
        assert_eq!(clear(8..p + 8, 0), CopyError::Misaligned);
    }
}

#[test]
fn refuses_overlap_and_bad_addresses() {
    let before = Pages::new(6, 6);
    let mut pages = before.clone();
    let start = pages.bytes_mut().as_mut_ptr();
    let p = PAGE_SIZE;
    for strategy in Strategy::ALL {
        for (d, s) in [(0, 0), (0, 1), (1, 0), (0, 3), (2, 0)] {
            // SAFETY: refused before anything is touched; in bounds anyway.
            let got =
                unsafe { copy::copy_raw(start.add(d * p), start.add(s * p), 4 * p, 0, strategy) };
            assert_eq!(got, Err(CopyError::Overlap), "{d} {s}");
        }
        let null = core::ptr::null_mut::<u8>();
        let high = core::ptr::without_provenance_mut::<u8>(usize::MAX - p + 1);
        for (d, s) in [(null, start), (start, null), (high, start), (start, high)] {
            // SAFETY: refused before anything is touched.
            let got = unsafe { copy::copy_raw(d, s, 2 * p, 0, strategy) };
            assert_eq!(got, Err(CopyError::BadAddress));
        }
        for d in [null, high] {
            // SAFETY: refused before anything is touched.
            let got = unsafe { copy::clear_raw(d, 2 * p, 0, strategy) };
            assert_eq!(got, Err(CopyError::BadAddress));
        }
        // SAFETY: refused before anything is touched: longer than any object.
        let got = unsafe { copy::clear_raw(start, usize::MAX - p + 1, 0, strategy) };
        assert_eq!(got, Err(CopyError::BadAddress));
    }
    assert!(pages.bytes() == before.bytes());

    // Adjacent is not overlapping.
    let start = pages.bytes_mut().as_mut_ptr();
    // SAFETY: two disjoint halves of one exclusive allocation.
    let got = unsafe { copy::copy_raw(start.add(3 * p), start, 3 * p, 1, Strategy::default()) };
    assert_eq!(got, Ok(()));
    assert!(pages.bytes()[3 * p..] == before.bytes()[..3 * p]);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has none of these instructions")]
fn every_instruction_set_stays_within_bounds() {
    // Source and destination end at unmapped pages, and begin after some.
    for nr in [1, 2, 3, 16, 40, 512] {
        let (dst, src) = (Guarded::new(nr), Guarded::new(nr));
        let pattern = Pages::new(nr, 7);
        let len = nr * PAGE_SIZE;
        // SAFETY: both are `len` writable bytes of their own.
        unsafe { core::ptr::copy_nonoverlapping(pattern.bytes().as_ptr(), src.0, len) };
        for isa in Isa::ALL {
            for strategy in Strategy::ALL {
                for target in [0, nr / 2, nr - 1] {
                    // SAFETY: as above, and disjoint.
                    let (got, seen) = unsafe {
                        core::ptr::write_bytes(dst.0, 0x5a, len);
                        let got = copy::copy_raw_on(isa, dst.0, src.0, len, target, strategy);
                        (got, core::slice::from_raw_parts(dst.0, len))
                    };
                    if isa > Isa::detected() {
                        assert_eq!(got, Err(CopyError::Unsupported));
                        continue;
                    }
                    assert_eq!(got, Ok(()));
                    assert!(
                        seen == pattern.bytes(),
                        "{isa:?} {strategy:?} {nr} {target}"
                    );
                    // SAFETY: as above.
                    let (got, seen) = unsafe {
                        let got = copy::clear_raw_on(isa, dst.0, len, target, strategy);
                        (got, core::slice::from_raw_parts(dst.0, len))
                    };
                    assert_eq!(got, Ok(()));
                    assert!(seen.iter().all(|&b| b == 0), "{isa:?} {strategy:?}");
                }
            }
        }
    }
}

/// Pages between two unmapped ones.
struct Guarded(*mut u8, usize);

impl Guarded {
    fn new(nr: usize) -> Self {
        let len = (nr + 2) * PAGE_SIZE;
        // SAFETY: a new anonymous mapping; its first and last page are taken
        // away again before anyone else sees it.
        unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = libc::mmap(core::ptr::null_mut(), len, prot, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            let start = at.cast::<u8>();
            for guard in [start, start.add(len - PAGE_SIZE)] {
                assert_eq!(libc::mprotect(guard.cast(), PAGE_SIZE, libc::PROT_NONE), 0);
            }
            Self(start.add(PAGE_SIZE), len)
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the whole mapping of `new`.
        unsafe { libc::munmap(self.0.sub(PAGE_SIZE).cast(), self.1) };
    }
}
