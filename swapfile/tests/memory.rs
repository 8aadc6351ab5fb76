//! Memory of the bookkeeping. One test, so that nothing else in the process
//! touches memory meanwhile.
#![cfg(not(loom))]

use hugeswap_mm::{DeviceId, Extents};
use hugeswap_swapfile::{Segment, SwapSpace, METADATA_PER_SLOT};

fn resident_pages() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn bookkeeping_is_small_and_lazy() {
    let id = DeviceId::FIRST;
    let segment = |end| Segment {
        device: id,
        start: 0,
        end,
    };
    // 1 TiB: address space only, also where others' slots are freed after a fork.
    let before = resident_pages();
    let space = SwapSpace::new(&[1 << 19]).unwrap();
    space.online(segment(16 * 512));
    let mut out = Extents::new();
    assert!(space.alloc_on(id, 512, &mut out));
    space.free(out[0].entry, 512).unwrap();
    space.lend();
    for slot in (1..1 << 28).step_by(1 << 18) {
        let others = out[0].entry.checked_add(slot).unwrap();
        assert!(space.free(others, 1).is_err());
    }
    // What is looked at reads as zeros, which takes no memory of its own; the rest is noise.
    assert!(resident_pages() - before < 64, "memory was touched");

    // 4 GiB, every slot in use and lent: all that can be touched is.
    let slots = 1u64 << 20;
    let before = resident_pages();
    let space = SwapSpace::new(&[slots / 512]).unwrap();
    space.online(segment(slots));
    while space.alloc_on(id, 512, &mut out) {}
    assert_eq!(space.used_slots(), slots);
    let bytes = (resident_pages() - before) * 4096;
    let per_slot = bytes as f64 / slots as f64;
    println!("{per_slot:.3} bytes for each slot");
    assert!(per_slot <= METADATA_PER_SLOT + 0.1, "{per_slot}");
}
