//! Memory of the bookkeeping. One test, so that nothing else in the process
//! touches memory meanwhile.
#![cfg(not(loom))]

use hugeswap_mm::{Extents, Order};
use hugeswap_swapfile::{DeviceConfig, SwapConfig, SwapSpace, METADATA_PER_SLOT};
use std::time::Instant;

fn resident_pages() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn bookkeeping_is_small_and_lazy() {
    const { assert!(METADATA_PER_SLOT <= 8.0) };
    // 1 TiB: address space only, and in no time.
    let config = DeviceConfig::from_bytes(1 << 40).unwrap();
    let mut best = u128::MAX;
    for _ in 0..5 {
        let space = SwapSpace::new(SwapConfig::default());
        let before = resident_pages();
        let start = Instant::now();
        space.add_device(&config).unwrap();
        best = best.min(start.elapsed().as_micros());
        assert!(resident_pages() - before < 64, "memory was touched");
        let mut out = Extents::new();
        space.alloc(Order::PMD, &mut out).unwrap();
        space.free(out[0].entry, 512).unwrap();
    }
    println!("1 TiB set up in {best} us");
    assert!(best < 1000, "{best} us");

    // 4 GiB, every slot taken by two users: all that can be touched is.
    let slots = 1u64 << 20;
    let space = SwapSpace::new(SwapConfig::default());
    let mut out = Extents::new();
    let before = resident_pages();
    space.add_device(&DeviceConfig::new(slots)).unwrap();
    while space.alloc(Order::PMD, &mut out).is_ok() {
        space.dup(out[0].entry, 512).unwrap();
    }
    assert_eq!(space.used_slots(), slots);
    let bytes = (resident_pages() - before) * 4096;
    let per_slot = bytes as f64 / slots as f64;
    println!("{per_slot:.3} bytes for each slot");
    assert!(per_slot <= 8.0, "{per_slot}");
}
