//! Random operations on the allocator and on the model.
#![cfg(not(loom))]

mod model;

use hugeswap_swapfile::Algorithm;
use model::{Model, Op};
use proptest::prelude::*;

fn op() -> impl Strategy<Value = Op> {
    let n = any::<u16>;
    prop_oneof![
        // Large orders fill the devices, so that most cases run into "full".
        6 => (0u8..10).prop_map(|order| Op::Alloc { order }),
        6 => (6u8..10).prop_map(|order| Op::Alloc { order }),
        1 => (0u8..10).prop_map(|order| Op::AllocBest { order }),
        2 => (0u8..10, n(), 0u16..600).prop_map(|(order, folio, beside)| Op::AllocNear {
            order,
            folio,
            beside
        }),
        4 => (n(), n(), n()).prop_map(|(folio, from, nr)| Op::Free { folio, from, nr }),
        3 => n().prop_map(|folio| Op::FreeAll { folio }),
        2 => (n(), n(), n()).prop_map(|(folio, from, nr)| Op::Dup { folio, from, nr }),
        2 => n().prop_map(|folio| Op::CacheSet { folio }),
        1 => n().prop_map(|folio| Op::CacheClear { folio }),
        1 => (n(), n(), any::<bool>()).prop_map(|(folio, slot, anywhere)| Op::MarkBad {
            folio,
            slot,
            anywhere
        }),
        1 => any::<u8>().prop_map(|max| Op::Discard { max }),
        1 => Just(Op::DiscardDone),
        1 => Just(Op::Reclaim),
        1 => (any::<u8>(), n()).prop_map(|(device, slots)| Op::Grow { device, slots }),
        1 => any::<u8>().prop_map(|device| Op::SwapoffBegin { device }),
        1 => any::<u8>().prop_map(|device| Op::SwapoffCancel { device }),
        1 => any::<u8>().prop_map(|device| Op::SwapoffEnd { device }),
        1 => (0u64..3 << 36, n()).prop_map(|(raw, nr)| Op::FreeWild { raw, nr }),
    ]
}

fn run(algorithm: Algorithm, ops: &[Op]) {
    let mut model = Model::new(algorithm);
    model.check();
    for (i, op) in ops.iter().enumerate() {
        model.apply(*op);
        if i % 4 == 3 {
            model.check();
        }
    }
    model.check();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn agrees_with_the_model(ops in prop::collection::vec(op(), 1..300)) {
        run(Algorithm::HugeSwap, &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 50,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn plain_algorithm_agrees_with_the_model(ops in prop::collection::vec(op(), 1..300)) {
        run(Algorithm::Linux612, &ops);
    }
}
