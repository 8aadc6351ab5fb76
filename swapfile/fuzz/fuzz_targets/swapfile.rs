//! The swap-slot allocator beside its model: the input is a list of operations
//! of eight bytes each.
#![no_main]

#[path = "../../tests/model/mod.rs"]
mod model;

use hugeswap_swapfile::Algorithm;
use libfuzzer_sys::fuzz_target;
use model::{Model, Op};

fn decode(bytes: [u8; 8]) -> Op {
    let [kind, small, a0, a1, b0, b1, c0, c1] = bytes;
    let a = u16::from_le_bytes([a0, a1]);
    let b = u16::from_le_bytes([b0, b1]);
    let c = u16::from_le_bytes([c0, c1]);
    match kind % 20 {
        0..=2 => Op::Alloc { order: small },
        3 => Op::AllocBest { order: small },
        4 => Op::AllocNear {
            order: small,
            folio: a,
            beside: b,
        },
        5 | 6 => Op::Free {
            folio: a,
            from: b,
            nr: c,
        },
        7 => Op::FreeAll { folio: a },
        8 => Op::Dup {
            folio: a,
            from: b,
            nr: c,
        },
        9 => Op::CacheSet { folio: a },
        10 => Op::CacheClear { folio: a },
        11 => Op::MarkBad {
            folio: a,
            slot: b,
            anywhere: small & 1 != 0,
        },
        12 => Op::Discard { max: small },
        13 => Op::DiscardDone,
        14 => Op::Reclaim,
        15 => Op::Grow {
            device: small,
            slots: a,
        },
        16 => Op::SwapoffBegin { device: small },
        17 => Op::SwapoffCancel { device: small },
        18 => Op::SwapoffEnd { device: small },
        _ => Op::FreeWild {
            raw: u64::from(small % 4 + 1) << 36 | u64::from(a),
            nr: b,
        },
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let algorithm = match first & 3 {
        3 => Algorithm::Linux612,
        _ => Algorithm::HugeSwap,
    };
    let mut model = Model::new(algorithm);
    for (i, op) in rest.chunks_exact(8).enumerate() {
        if let Ok(op) = <[u8; 8]>::try_from(op) {
            model.apply(decode(op));
        }
        if i % 8 == 7 {
            model.check();
        }
    }
    model.check();
});
