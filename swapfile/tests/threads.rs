//! One thread allocates and others free, as in the engine: what is free is never refused, no slot is given
//! twice, and the child of a fork amid that work goes on with its copy.
#![cfg(not(loom))]

use hugeswap_mm::{DeviceId, Extent, Extents};
use hugeswap_swapfile::{Segment, SwapSpace};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::mpsc::sync_channel;

fn space(devices: u64, clusters: u64) -> SwapSpace {
    let space = SwapSpace::new(&vec![clusters; devices as usize]).unwrap();
    for device in (0..devices as u8).filter_map(DeviceId::new) {
        space.online(Segment {
            device,
            start: 0,
            end: clusters * 512,
        });
    }
    space
}

fn run(devices: u64, rounds: u32) {
    let clusters = 8;
    let space = space(devices, clusters);
    let all = devices * clusters * 512;
    let given = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let freeing: Vec<_> = (0..2)
            .map(|_| {
                let (sender, receiver) = sync_channel::<Extent>(1 << 16);
                let (space, given) = (&space, &given);
                scope.spawn(move || {
                    for extent in receiver {
                        let freed = space.free(extent.entry, extent.nr.into());
                        assert_eq!(freed, Ok(u64::from(extent.nr)));
                        given.fetch_sub(u64::from(extent.nr), AcqRel);
                    }
                });
                sender
            })
            .collect();
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = move |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 20) % below
        };
        let mut out = Extents::new();
        let mut kept: Vec<Extent> = Vec::new();
        for round in 0..rounds {
            let nr = 1 + next(if round % 2 == 0 { 512 } else { 16 });
            // What is free and not counted down yet counts as given: never the other way round.
            let free = all.saturating_sub(given.load(Acquire));
            let got = space.alloc_from_all(nr as usize, &mut out);
            assert!(got || free < nr, "round {round}: {nr} of {free} refused");
            if got {
                assert_eq!(out.nr_slots() as u64, nr);
                given.fetch_add(nr, AcqRel);
                kept.extend_from_slice(&out);
            }
            while kept.len() > 600 || !got && !kept.is_empty() {
                let at = next(kept.len() as u64) as usize;
                let to = next(2) as usize;
                freeing[to].send(kept.swap_remove(at)).unwrap();
                if got && kept.len() <= 600 || !got && next(8) == 0 {
                    break;
                }
            }
        }
        for extent in kept {
            freeing[0].send(extent).unwrap();
        }
    });
    assert_eq!((space.used_slots(), space.validate()), (0, Ok(())));
}

#[test]
fn what_is_free_is_not_refused() {
    run(1, 100_000);
}

#[test]
fn nor_over_several_devices() {
    run(4, 100_000);
}

#[test]
fn fork_amid_threads() {
    let space = space(2, 16);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (space, stop) = (&space, &stop);
        scope.spawn(move || {
            let mut out = Extents::new();
            let mut nr = 0;
            while !stop.load(Relaxed) {
                nr = (nr + 37) % 512;
                assert!(space.alloc_on(DeviceId::FIRST, nr + 1, &mut out));
                for extent in out.iter() {
                    space.free(extent.entry, extent.nr.into()).unwrap();
                }
            }
        });
        let mut out = Extents::new();
        for _ in 0..100 {
            space.lend();
            space.fork_prepare();
            // SAFETY: the child allocates nothing and leaves by _exit.
            let child = unsafe { libc::fork() };
            // SAFETY: answers the prepare above, once in each process.
            unsafe { space.fork_release() };
            if child == 0 {
                space.start_over();
                let nothing = !space.alloc_from_all(1, &mut out) && space.used_slots() == 0;
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!nothing)) };
            }
            let mut status = 0;
            // SAFETY: waits for our own child.
            unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(status, 0);
            space.end_loans(DeviceId::FIRST, u64::MAX, |_| false);
        }
        stop.store(true, Relaxed);
    });
    space.end_loans(DeviceId::FIRST, u64::MAX, |_| false);
    assert_eq!((space.used_slots(), space.validate()), (0, Ok(())));
}
