//! The allocator's locking, every interleaving of it (within loom's bounds):
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p hugeswap-swapfile --test loom
//! ```
#![cfg(loom)]

use hugeswap_mm::{DeviceId, Extents};
use hugeswap_swapfile::sync::Lock;
use hugeswap_swapfile::{Segment, SwapSpace};
use loom::sync::Arc;
use loom::thread;

fn explore(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(f);
}

const ID: DeviceId = DeviceId::FIRST;

fn segment() -> Segment {
    Segment {
        device: ID,
        start: 0,
        end: 2 * 512,
    }
}

fn space() -> Arc<SwapSpace> {
    let space = SwapSpace::new(&[2]).unwrap();
    space.online(segment());
    Arc::new(space)
}

/// The lock alone: what one holder wrote, the next one sees.
#[test]
fn lock_excludes() {
    explore(|| {
        let lock = Arc::new(Lock::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let lock = lock.clone();
                thread::spawn(move || *lock.lock() += 1)
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*lock.lock(), 2);
    });
}

/// Around fork: nobody gets in between `hold` and `release_held`.
#[test]
fn held_lock_excludes() {
    explore(|| {
        let lock = Arc::new(Lock::new(0));
        let other = {
            let lock = lock.clone();
            thread::spawn(move || *lock.lock() += 1)
        };
        lock.hold();
        assert!(lock.try_lock().is_none());
        // SAFETY: held just above.
        unsafe { lock.release_held() };
        other.join().unwrap();
        assert_eq!(*lock.lock(), 1);
    });
}

/// One takes while another gives back: no slot is given twice, none is lost.
#[test]
fn allocate_and_free() {
    explore(|| {
        let space = space();
        let mut out = Extents::new();
        assert!(space.alloc_on(ID, 512, &mut out));
        let entry = out[0].entry;
        let other = {
            let space = space.clone();
            thread::spawn(move || {
                space.free(entry, 256).unwrap();
                space.free(entry.checked_add(256).unwrap(), 256).unwrap();
            })
        };
        // 512 are free all the time, and more as the other goes on.
        for nr in [300, 200] {
            assert!(space.alloc_from_all(nr, &mut out));
            for extent in out.iter() {
                space.free(extent.entry, extent.nr.into()).unwrap();
            }
        }
        other.join().unwrap();
        assert_eq!(space.used_slots(), 0);
        assert_eq!(space.validate(), Ok(()));
    });
}

/// A slot that was lent is freed while the loan ends: it is free in the end, and once.
#[test]
fn the_end_of_a_loan_and_a_free() {
    explore(|| {
        let space = space();
        let mut out = Extents::new();
        assert!(space.alloc_on(ID, 3, &mut out));
        let entry = out[0].entry;
        space.lend();
        let other = {
            let space = space.clone();
            thread::spawn(move || space.free(entry, 3).unwrap())
        };
        space.end_loans(ID, u64::MAX, |_| false);
        let freed = other.join().unwrap();
        assert!(freed == 0 || freed == 3, "{freed}");
        assert_eq!(space.used_slots(), 0);
        assert_eq!(space.validate(), Ok(()));
    });
}

/// A cluster goes away only if nothing of it is in use, whenever that is.
#[test]
fn a_cluster_goes_away_empty() {
    explore(|| {
        let space = space();
        let mut out = Extents::new();
        assert!(space.alloc_on(ID, 512, &mut out));
        let entry = out[0].entry;
        let other = {
            let space = space.clone();
            thread::spawn(move || space.free(entry, 512).unwrap())
        };
        let gone = space.offline(segment());
        assert!(gone & 2 != 0, "{gone:b}");
        other.join().unwrap();
        assert_eq!(space.free_slots(), if gone & 1 != 0 { 0 } else { 512 });
        assert_eq!(space.validate(), Ok(()));
    });
}
