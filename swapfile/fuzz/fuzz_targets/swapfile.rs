//! The swap-slot allocator beside its model: the input is a list of operations
//! of eight bytes each.
#![no_main]

#[path = "../../tests/model/mod.rs"]
mod model;

use libfuzzer_sys::fuzz_target;
use model::{Model, Op, SEGMENTS};

fn decode(bytes: [u8; 8]) -> Op {
    let [kind, small, a0, a1, b0, b1, c0, c1] = bytes;
    let a = u16::from_le_bytes([a0, a1]);
    let from = u64::from(u16::from_le_bytes([b0, b1]));
    let nr = u64::from(u16::from_le_bytes([c0, c1])) % 512 + 1;
    let (which, second) = (usize::from(a), small & 1 != 0);
    let seg = u64::from(small) % (SEGMENTS + 1);
    match kind % 16 {
        0 => Op::Online(seg),
        1 => Op::Offline(seg),
        2..=5 => Op::Alloc {
            second,
            nr: nr as usize,
        },
        6 => Op::AllocFromAll(nr as usize),
        7..=9 => Op::Free { which, from, nr },
        10 => Op::FreeWild {
            raw: u64::from(small % 4 + 1) << 36 | u64::from(a),
            nr: nr - 1,
        },
        11 => Op::GiveUp { which, from, nr },
        12 => Op::Lend,
        13 => Op::EndLoans {
            kept: u64::from(a) | from << 16,
        },
        14 => Op::Leave {
            second,
            leaving: small & 2 != 0,
        },
        _ if small == 0 => Op::StartOver,
        _ => Op::EndLoans { kept: 0 },
    }
}

fuzz_target!(|data: &[u8]| {
    let mut model = Model::new();
    for (i, op) in data.chunks_exact(8).enumerate() {
        if let Ok(op) = <[u8; 8]>::try_from(op) {
            model.play(decode(op));
        }
        if i % 8 == 7 {
            model.check().unwrap();
        }
    }
    model.check().unwrap();
});
