//! Threads whose demands together are exactly what there is: none may ever be
//! refused, whatever the others take and give back meanwhile.
#![cfg(not(loom))]

use hugeswap_mm::{Extent, Extents, Order};
use hugeswap_swapfile::{DeviceConfig, SwapConfig, SwapSpace};

const THREADS: u64 = 4;
const BUDGET: u64 = 2048;

fn run(devices: u64, rounds: u32) {
    let space = SwapSpace::new(SwapConfig {
        nr_cpus: 4,
        ..SwapConfig::default()
    });
    for _ in 0..devices {
        space
            .add_device(&DeviceConfig::new(THREADS * BUDGET / devices))
            .unwrap();
    }
    std::thread::scope(|scope| {
        for seed in 1..=THREADS {
            let space = &space;
            scope.spawn(move || {
                let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let mut next = move |below: u64| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    (random >> 20) % below
                };
                let mut out = Extents::new();
                let mut held: Vec<Extent> = Vec::new();
                let mut left = BUDGET;
                for round in 0..rounds {
                    let order = Order::new(next(10) as u8).unwrap();
                    while left < order.nr_pages() as u64 {
                        let at = next(held.len() as u64) as usize;
                        let extent = held.swap_remove(at);
                        let freed = space.free(extent.entry, extent.nr.into());
                        assert_eq!(freed, Ok(u64::from(extent.nr)));
                        left += u64::from(extent.nr);
                    }
                    if let Err(e) = space.alloc(order, &mut out) {
                        panic!("round {round}, {order:?}, {left} slots due: {e}");
                    }
                    assert_eq!(out.nr_slots(), order.nr_pages());
                    left -= order.nr_pages() as u64;
                    held.extend_from_slice(&out);
                }
                for extent in held {
                    space.free(extent.entry, extent.nr.into()).unwrap();
                }
            });
        }
    });
    assert_eq!((space.used_slots(), space.validate()), (0, Ok(())));
}

#[test]
fn nobody_is_refused_what_is_due() {
    run(1, 200_000);
}

#[test]
fn nor_over_several_devices() {
    run(4, 200_000);
}
