//! Which place is taken, of those that would do.
#![cfg(not(loom))]

use hugeswap_mm::{DeviceId, Extents, SwapEntry};
use hugeswap_swapfile::{Segment, SwapSpace};

const ID: DeviceId = DeviceId::FIRST;

fn space(online: u64) -> SwapSpace {
    let space = SwapSpace::new(&[8]).unwrap();
    space.online(Segment {
        device: ID,
        start: 0,
        end: online * 512,
    });
    space
}

/// Places as (first slot, number).
fn alloc(space: &SwapSpace, nr: usize) -> Vec<(u64, u16)> {
    let mut out = Extents::new();
    assert!(space.alloc_on(ID, nr, &mut out));
    out.iter().map(|e| (e.entry.slot(), e.nr)).collect()
}

fn free(space: &SwapSpace, slot: u64, nr: u64) {
    let entry = SwapEntry::new(ID, slot).unwrap();
    assert_eq!(space.free(entry, nr), Ok(nr));
}

/// Clusters that are full but for these.
fn holes(space: &SwapSpace, holes: &[(u64, u64)]) {
    for _ in holes {
        alloc(space, 512);
    }
    for &(slot, nr) in holes {
        free(space, slot, nr);
    }
}

#[test]
fn the_smallest_block_that_holds_it() {
    let space = space(4);
    holes(&space, &[(64, 64), (512 + 16, 16), (1024 + 256, 256)]);
    assert_eq!(alloc(&space, 10), [(512 + 16, 10)]);
    assert_eq!(alloc(&space, 33), [(64, 33)]);
    assert_eq!(alloc(&space, 100), [(1024 + 256, 100)]);
    // What fits nowhere else takes the empty cluster, and does not lie in pieces.
    assert_eq!(alloc(&space, 300), [(3 * 512, 300)]);
}

#[test]
fn in_pieces_the_longest_first() {
    let space = space(2);
    holes(&space, &[(64, 64), (512 + 16, 16)]);
    assert_eq!(alloc(&space, 80), [(64, 64), (512 + 16, 16)]);
    let mut out = Extents::new();
    assert!(!space.alloc_on(ID, 1, &mut out));
    assert!(out.is_empty());
}

#[test]
fn the_cluster_that_was_emptied_last() {
    let space = space(8);
    for _ in 0..3 {
        alloc(&space, 512);
    }
    free(&space, 512, 512);
    assert_eq!(alloc(&space, 512), [(512, 512)]);
    free(&space, 2 * 512, 512);
    assert_eq!(alloc(&space, 5), [(2 * 512, 5)]);
    assert_eq!(alloc(&space, 512), [(3 * 512, 512)]);
}
