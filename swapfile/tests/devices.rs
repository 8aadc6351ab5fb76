//! Devices: errors, priorities, turns, overflow, growth, swapoff, laziness, fork.
#![cfg(not(loom))]

use hugeswap_mm::{DeviceId, Extent, Extents, Order, SwapEntry, MAX_SLOTS};
use hugeswap_swapfile::{
    AddDeviceError, Algorithm, DeviceConfig, DeviceError, EntryError, SwapConfig, SwapSpace,
};
use std::time::Duration;

fn space() -> SwapSpace {
    SwapSpace::new(SwapConfig {
        algorithm: Algorithm::HugeSwap,
        nr_cpus: 1,
    })
}

fn clusters(nr: u64) -> DeviceConfig {
    DeviceConfig::new(nr * 512)
}

fn alloc(space: &SwapSpace, order: u8) -> Vec<Extent> {
    let mut out = Extents::new();
    space.alloc(Order::new(order).unwrap(), &mut out).unwrap();
    out.to_vec()
}

#[test]
fn errors_are_clear() {
    let space = space();
    let says = |config: &DeviceConfig, text: &str| {
        assert_eq!(space.add_device(config).unwrap_err().to_string(), text);
    };
    says(
        &DeviceConfig::new(0),
        "a swap device of zero size has no room",
    );
    assert_eq!(
        DeviceConfig::from_bytes(0).unwrap_err(),
        AddDeviceError::ZeroSize
    );
    assert_eq!(
        DeviceConfig::from_bytes(10_000).unwrap_err().to_string(),
        "the size of a swap device is a multiple of 4096 bytes, not 10000"
    );
    for prio in [-1, 32768] {
        let config = DeviceConfig {
            prio: Some(prio),
            ..clusters(1)
        };
        says(
            &config,
            &format!("swap priority {prio} is out of range: 0 to 32767"),
        );
    }
    let keyed = DeviceConfig {
        key: 0xabc,
        ..clusters(1)
    };
    space.add_device(&keyed).unwrap();
    says(&keyed, "swap device 0xabc is in use already");
    assert!(matches!(
        space.add_device(&DeviceConfig::new(MAX_SLOTS + 1)),
        Err(AddDeviceError::TooLarge { .. })
    ));
    for _ in 1..32 {
        space.add_device(&clusters(1)).unwrap();
    }
    says(&clusters(1), "more than 32 swap devices");
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn wrong_entries_change_nothing() {
    let space = space();
    let id = space.add_device(&clusters(2)).unwrap();
    let entry = SwapEntry::new(id, 100).unwrap();
    let nowhere = SwapEntry::new(DeviceId::new(7).unwrap(), 0).unwrap();
    assert_eq!(space.free(entry, 1), Err(EntryError::NotInUse));
    assert_eq!(space.free(nowhere, 1), Err(EntryError::NoSuchSlot));
    assert_eq!(space.free(entry, 0), Err(EntryError::NoSuchSlot));
    assert_eq!(space.free(entry, 1000), Err(EntryError::NoSuchSlot));
    assert_eq!(space.cache_clear(entry, 1), Err(EntryError::NotCached));
    assert_eq!(space.used_slots(), 0);
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn priorities_turns_and_overflow() {
    let space = space();
    let with = |prio| DeviceConfig {
        prio: Some(prio),
        ..clusters(4)
    };
    let low = space.add_device(&with(1)).unwrap();
    let (a, b) = (
        space.add_device(&with(9)).unwrap(),
        space.add_device(&with(9)).unwrap(),
    );
    let last = space.add_device(&clusters(4)).unwrap();
    // Equals in turn by cluster, then down: large orders too, unlike the kernel.
    let order: Vec<_> = (0..16)
        .map(|_| alloc(&space, 9)[0].entry.device())
        .collect();
    assert_eq!(order[..8], [a, b, a, b, a, b, a, b]);
    assert_eq!(order[8..12], [low; 4]);
    assert_eq!(order[12..], [last; 4]);
    assert!(space.alloc(Order::ZERO, &mut Extents::new()).is_err());
    assert_eq!(space.validate(), Ok(()));
}

/// All CPUs of a rotational device write one after the other's slots.
#[test]
fn rotational_has_one_current_cluster() {
    let space = SwapSpace::new(SwapConfig {
        nr_cpus: 8,
        ..SwapConfig::default()
    });
    let config = DeviceConfig {
        rotational: true,
        ..clusters(64)
    };
    space.add_device(&config).unwrap();
    for i in 0..2048 {
        // From another thread each time, so from any CPU.
        let entry = if i % 256 == 0 {
            std::thread::scope(|s| s.spawn(|| alloc(&space, 0)).join().unwrap())
        } else {
            alloc(&space, 0)
        };
        assert_eq!(entry[0].entry.slot(), i);
    }
}

/// A folio's users are added to all of its extents or to none.
#[test]
fn dup_of_a_spread_folio_is_all_or_nothing() {
    let space = space();
    space.add_device(&clusters(1)).unwrap();
    let all: Vec<_> = (0..512).map(|_| alloc(&space, 0)[0].entry).collect();
    for entry in all.iter().filter(|e| e.slot() % 2 == 0) {
        space.free(*entry, 1).unwrap();
    }
    let folio = alloc(&space, 2);
    assert_eq!(folio.len(), 4);
    for _ in 1..32768 {
        space.dup(folio[2].entry, 1).unwrap();
    }
    assert_eq!(space.dup_extents(&folio), Err(EntryError::TooManyUsers));
    assert_eq!(space.users(folio[0].entry), Ok(1));
    for _ in 1..32768 {
        space.free(folio[2].entry, 1).unwrap();
    }
    space.dup_extents(&folio).unwrap();
    assert_eq!(space.free_extents(&folio), Ok(0));
    assert_eq!(space.free_extents(&folio), Ok(4));
    assert_eq!(space.free_extents(&folio), Err(EntryError::NotInUse));
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn small_folios_share_a_cluster_before_the_turn_passes() {
    let space = space();
    let (a, b) = (
        space
            .add_device(&DeviceConfig {
                prio: Some(1),
                ..clusters(2)
            })
            .unwrap(),
        space
            .add_device(&DeviceConfig {
                prio: Some(1),
                ..clusters(2)
            })
            .unwrap(),
    );
    let devices: Vec<_> = (0..128)
        .map(|_| alloc(&space, 4)[0].entry.device())
        .collect();
    for (i, turn) in devices.chunks(32).enumerate() {
        assert_eq!(turn, [[a; 32], [b; 32]][i % 2], "turn {i}");
    }
}

#[test]
fn every_slot_of_several_devices_serves_large_folios() {
    let space = space();
    for _ in 0..3 {
        space.add_device(&DeviceConfig::new(700)).unwrap();
    }
    // 2100 slots hold four folios of 512, the last from what all three have left.
    let mut folios: Vec<_> = (0..4).map(|_| alloc(&space, 9)).collect();
    assert_eq!(space.free_slots(), 2100 - 4 * 512);
    assert!(folios[3].len() > 1);
    assert_eq!(
        space
            .alloc(Order::PMD, &mut Extents::new())
            .unwrap_err()
            .free,
        52
    );
    for extent in folios.drain(..).flatten() {
        space.free(extent.entry, extent.nr.into()).unwrap();
    }
    assert_eq!(space.free_slots(), 2100);
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn spread_only_when_nothing_else_fits() {
    let space = space();
    let id = space.add_device(&clusters(2)).unwrap();
    let all: Vec<_> = (0..1024).map(|_| alloc(&space, 0)[0].entry).collect();
    // Every second slot free: 512 slots, and no two of them neighbours.
    for entry in all.iter().filter(|e| e.slot() % 2 == 0) {
        space.free(*entry, 1).unwrap();
    }
    assert_eq!(space.alloc_contiguous(Order::new(1).unwrap()), None);
    assert_eq!(
        space.alloc_best(Order::PMD).map(|(_, o)| o),
        Some(Order::ZERO)
    );
    let extents = alloc(&space, 7);
    assert_eq!(extents.len(), 128);
    assert_eq!(space.stats().orders[7].spread_extents, 128);
    assert_eq!(space.device_used_slots(id), 512 + 1 + 128);
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn swapoff_while_others_run() {
    let space = space();
    let a = space
        .add_device(&DeviceConfig {
            prio: Some(5),
            ..clusters(4)
        })
        .unwrap();
    let b = space
        .add_device(&DeviceConfig {
            prio: Some(1),
            ..clusters(8)
        })
        .unwrap();
    let mut folios: Vec<Vec<Extent>> = (0..100).map(|i| alloc(&space, i % 5)).collect();
    space
        .dup(folios[3][0].entry, folios[3][0].nr.into())
        .unwrap();
    assert_eq!(space.swapoff_end(a), Err(DeviceError::NotDraining));
    space.swapoff_begin(a).unwrap();
    assert!(matches!(
        space.swapoff_end(a),
        Err(DeviceError::InUse { .. })
    ));
    // Move every folio, with all its users.
    for folio in &mut folios {
        let order = Order::new(folio[0].nr.trailing_zeros() as u8).unwrap();
        let users = space.users(folio[0].entry).unwrap();
        let moved = alloc(&space, order.get());
        assert_eq!(moved[0].entry.device(), b);
        for _ in 1..users {
            space.dup(moved[0].entry, moved[0].nr.into()).unwrap();
        }
        space.note_moved(folio[0].nr.into());
        for _ in 0..users {
            space.free(folio[0].entry, folio[0].nr.into()).unwrap();
        }
        *folio = moved;
    }
    assert_eq!(space.next_in_use(a, 0), None);
    space.swapoff_end(a).unwrap();
    assert_eq!(
        space.free(SwapEntry::new(a, 0).unwrap(), 1),
        Err(EntryError::NoSuchSlot)
    );
    // Its tables serve the next device.
    assert_eq!(space.add_device(&clusters(3)), Ok(a));
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn growth() {
    let space = space();
    let id = space
        .add_device(&DeviceConfig {
            reserve_slots: 3000,
            ..DeviceConfig::new(100)
        })
        .unwrap();
    assert_eq!(space.total_slots(), 100);
    for to in [101, 600, 1024, 1025, 3000] {
        space.grow(id, to).unwrap();
        assert_eq!((space.total_slots(), space.validate()), (to, Ok(())));
        while space
            .alloc(Order::new(6).unwrap(), &mut Extents::new())
            .is_ok()
        {}
        assert!(space.free_slots() < 64);
    }
    for to in [2999, 3001] {
        assert!(matches!(
            space.grow(id, to),
            Err(DeviceError::BadSize { .. })
        ));
    }
}

#[test]
fn discard_in_batches() {
    let space = space();
    space
        .add_device(&DeviceConfig {
            discard: true,
            ..clusters(4)
        })
        .unwrap();
    let folios: Vec<_> = (0..4).map(|_| alloc(&space, 9)).collect();
    for folio in &folios {
        space.free(folio[0].entry, 512).unwrap();
    }
    let mut batch = Extents::new();
    assert_eq!(space.next_discard(&mut batch, 3), 3);
    assert_eq!(space.free_slots(), 512);
    // What waits can be had, what is being discarded can't.
    alloc(&space, 9);
    let error = space.alloc(Order::ZERO, &mut Extents::new()).unwrap_err();
    assert_eq!((error.free, error.discarding), (0, 3 * 512));
    // A slot found bad in the meantime stays out.
    space.mark_bad(batch[0].entry, 1).unwrap();
    assert_eq!(space.discard_done(&batch), 3);
    assert_eq!(space.discard_done(&batch), 0);
    assert_eq!(space.free_slots(), 3 * 512 - 1);
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn cache_keeps_slots_and_reclaim_finds_them() {
    let space = space();
    space.add_device(&clusters(2)).unwrap();
    let folio = alloc(&space, 9)[0];
    space.cache_set(folio.entry, 512).unwrap();
    assert_eq!(space.free(folio.entry, 512), Ok(0));
    assert_eq!(space.used_slots(), 512);
    let mut out = Extents::new();
    assert_eq!(space.reclaim_full(8, false, &mut out), 0, "half is free");
    let other = alloc(&space, 0)[0];
    assert_eq!(space.reclaim_full(8, false, &mut out), 1);
    assert_eq!(out[..], [folio]);
    assert_eq!(space.cache_clear(folio.entry, 512), Ok(512));
    space.free(other.entry, 1).unwrap();
    assert_eq!((space.used_slots(), space.validate()), (0, Ok(())));
}

#[test]
fn room_is_made_of_what_only_the_cache_has() {
    let space = space();
    space.add_device(&clusters(2)).unwrap();
    let folios: Vec<_> = (0..64).map(|_| alloc(&space, 4)[0]).collect();
    for folio in &folios[..40] {
        space.cache_set(folio.entry, 16).unwrap();
        assert_eq!(space.free(folio.entry, 16), Ok(0));
    }
    let (mut out, mut spare) = (Extents::new(), Extents::new());
    let let_go = |run: Extent| space.cache_clear(run.entry, run.nr.into()).is_ok();
    for order in [9, 7] {
        let order = Order::new(order).unwrap();
        space
            .alloc_or_reclaim(order, &mut out, &mut spare, let_go)
            .unwrap();
    }
    assert_eq!(space.used_slots(), 1024);
    let refused = space.alloc_or_reclaim(Order::ZERO, &mut out, &mut spare, let_go);
    assert_eq!(refused.unwrap_err().free, 0);
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn slots_shared_and_bad() {
    let space = space();
    space.add_device(&clusters(1)).unwrap();
    let folio = alloc(&space, 4)[0];
    space.dup(folio.entry, 16).unwrap();
    let middle = folio.entry.checked_add(5).unwrap();
    space.mark_bad(middle, 1).unwrap();
    assert_eq!(space.free(folio.entry, 16), Ok(0));
    assert_eq!(space.users(folio.entry), Ok(1));
    assert_eq!(space.free(folio.entry, 16), Ok(15));
    assert_eq!(space.total_slots(), 511);
    let mut slots = Vec::new();
    let mut out = Extents::new();
    while space.alloc(Order::ZERO, &mut out).is_ok() {
        slots.push(out[0].entry);
    }
    assert_eq!(slots.len(), 511);
    assert!(!slots.contains(&middle));
}

#[test]
fn too_many_users() {
    let space = space();
    space.add_device(&clusters(1)).unwrap();
    let entry = alloc(&space, 0)[0].entry;
    for _ in 1..32768 {
        space.dup(entry, 1).unwrap();
    }
    assert_eq!(space.dup(entry, 1), Err(EntryError::TooManyUsers));
    assert_eq!(space.users(entry), Ok(32768));
}

/// The child of a fork amid the work of other threads goes on with its copy.
#[test]
fn fork_amid_threads() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let space = SwapSpace::new(SwapConfig {
        nr_cpus: 2,
        ..SwapConfig::default()
    });
    space
        .add_device(&DeviceConfig {
            discard: true,
            ..clusters(32)
        })
        .unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2u8 {
            let (space, stop) = (&space, &stop);
            scope.spawn(move || {
                let mut out = Extents::new();
                let mut order = seed;
                while !stop.load(Ordering::Relaxed) {
                    order = (order + 3) % 10;
                    if space.alloc(Order::new(order).unwrap(), &mut out).is_ok() {
                        for e in out.iter() {
                            space.free(e.entry, e.nr.into()).unwrap();
                        }
                    }
                }
            });
        }
        for _ in 0..100 {
            space.fork_prepare();
            // SAFETY: the child allocates nothing and leaves by _exit.
            let child = unsafe { libc::fork() };
            // SAFETY: answers the prepare above, once in each process.
            unsafe { space.fork_release() };
            if child == 0 {
                let alone = space.alloc_contiguous(Order::ZERO).is_some();
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!alone)) };
            }
            let mut status = 0;
            // SAFETY: waits for our own child.
            unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(status, 0);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!((space.used_slots(), space.validate()), (0, Ok(())));
}

/// CPU time of the calling thread, so that what else runs on the machine does
/// not count, but waiting for each other's cache lines and locks does.
fn thread_time() -> Duration {
    // SAFETY: the kernel fills the structure, for which zeroes are a value.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
        time
    };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Two threads on their own CPUs do nearly twice the work of one.
#[test]
#[ignore = "measures: run it alone, with --release"]
fn scales_over_two_threads() {
    const ROUNDS: u32 = 1_000_000;
    let space = SwapSpace::new(SwapConfig::default());
    space.add_device(&clusters(1024)).unwrap();
    let per_pair = |threads: usize, order: u8| {
        let barrier = std::sync::Barrier::new(threads);
        let (space, barrier) = (&space, &barrier);
        let worker = move |cpu: usize| {
            // SAFETY: the set lives on the stack for the call.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(cpu, &mut set);
                libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set);
            }
            let mut out = Extents::new();
            barrier.wait();
            let start = thread_time();
            for _ in 0..ROUNDS {
                space.alloc(Order::new(order).unwrap(), &mut out).unwrap();
                space.free(out[0].entry, out[0].nr.into()).unwrap();
            }
            thread_time() - start
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|cpu| scope.spawn(move || worker(cpu)))
                .collect();
            workers
                .into_iter()
                .map(|w| w.join().unwrap())
                .max()
                .unwrap()
        })
        .as_secs_f64()
            / f64::from(ROUNDS)
    };
    for order in [0, 4, 9] {
        // The least of several, for each: the machine may be busy.
        let least = |threads| (0..9).map(|_| per_pair(threads, order)).fold(1.0, f64::min);
        let (one, two) = (least(1), least(2));
        let times = 2.0 * one / two;
        println!(
            "order {order}: {:.1} ns alone, {:.1} ns by two: {times:.2} times the work of one",
            one * 1e9,
            two * 1e9
        );
        assert!(times >= 1.8, "order {order}: {times:.2}");
    }
}
