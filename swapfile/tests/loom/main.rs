//! The allocator's locking, every interleaving of it (within loom's bounds):
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p hugeswap-swapfile --test loom
//! ```
#![cfg(loom)]

use hugeswap_mm::{Extents, Order};
use hugeswap_swapfile::sync::Lock;
use hugeswap_swapfile::{Algorithm, DeviceConfig, SwapConfig, SwapSpace};
use loom::sync::Arc;
use loom::thread;

fn explore(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(f);
}

fn space(slots: u64, discard: bool) -> Arc<SwapSpace> {
    let space = SwapSpace::new(SwapConfig {
        algorithm: Algorithm::HugeSwap,
        nr_cpus: 2,
    });
    let config = DeviceConfig {
        discard,
        // Enough clusters that they are dealt to two shards.
        reserve_slots: 16 * 512,
        ..DeviceConfig::new(slots)
    };
    space.add_device(&config).unwrap();
    Arc::new(space)
}

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
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

/// Two take and give back at once: no slot is given twice, none is lost.
#[test]
fn allocate_and_free() {
    explore(|| {
        let space = space(2 * 512, false);
        let work = |space: Arc<SwapSpace>| {
            let mut out = Extents::new();
            space.alloc(order(9), &mut out).unwrap();
            let entry = out[0].entry;
            space.free(entry, 256).unwrap();
            space.free(entry.checked_add(256).unwrap(), 256).unwrap();
        };
        let other = {
            let space = space.clone();
            thread::spawn(move || work(space))
        };
        work(space.clone());
        other.join().unwrap();
        assert_eq!(space.used_slots(), 0);
        assert_eq!(space.validate(), Ok(()));
    });
}

/// Two want the last 256 slots, which lie in two clusters of two shards, and
/// each wants all: one gets them. (Without the lock `gathering` each may take
/// half and both fail.)
#[test]
fn last_slots_go_to_one() {
    explore(|| {
        let space = space(2 * 512, false);
        let mut out = Extents::new();
        for _ in 0..2 {
            space.alloc(order(9), &mut out).unwrap();
            space.free(out[0].entry, 128).unwrap();
        }
        let want = |space: &SwapSpace| space.alloc(order(8), &mut Extents::new()).is_ok();
        let other = {
            let space = space.clone();
            thread::spawn(move || want(&space))
        };
        let here = want(&space);
        let there = other.join().unwrap();
        assert!(here != there, "here {here}, there {there}");
        assert_eq!(space.free_slots(), 0);
        assert_eq!(space.validate(), Ok(()));
    });
}

/// Two users of a slot leave at once: it gets free once.
#[test]
fn last_user_frees() {
    explore(|| {
        let space = space(512, false);
        let mut out = Extents::new();
        space.alloc(order(0), &mut out).unwrap();
        let entry = out[0].entry;
        space.dup(entry, 1).unwrap();
        let other = {
            let space = space.clone();
            thread::spawn(move || space.free(entry, 1).unwrap())
        };
        let freed = space.free(entry, 1).unwrap() + other.join().unwrap();
        assert_eq!(freed, 1);
        assert_eq!(space.validate(), Ok(()));
    });
}

/// A cluster is being discarded while another thread wants a place: it gets
/// none of the cluster's slots before the discard is done.
#[test]
fn discard_excludes_allocation() {
    explore(|| {
        let space = space(512, true);
        let mut out = Extents::new();
        space.alloc(order(9), &mut out).unwrap();
        space.free(out[0].entry, 512).unwrap();
        let discarding = Arc::new(loom::sync::atomic::AtomicBool::new(false));
        let other = {
            let (space, discarding) = (space.clone(), discarding.clone());
            thread::spawn(move || {
                let mut batch = Extents::new();
                if space.next_discard(&mut batch, 1) == 1 {
                    discarding.store(true, loom::sync::atomic::Ordering::SeqCst);
                    discarding.store(false, loom::sync::atomic::Ordering::SeqCst);
                    assert_eq!(space.discard_done(&batch), 1);
                }
            })
        };
        if space.alloc(order(0), &mut out).is_ok() {
            assert!(!discarding.load(loom::sync::atomic::Ordering::SeqCst));
        }
        other.join().unwrap();
        assert_eq!(space.validate(), Ok(()));
    });
}
