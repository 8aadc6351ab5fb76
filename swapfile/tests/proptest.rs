//! Random operations on the allocator and on the model.
#![cfg(not(loom))]

mod model;

use model::{Model, Op, SEGMENTS};
use proptest::prelude::*;

fn ops() -> impl Strategy<Value = Op> {
    let nr = || prop_oneof![Just(512usize), Just(1), 1..512usize, 1..16usize];
    // All of it, half of the times: so clusters get empty.
    let part = || {
        prop_oneof![
            (any::<usize>(), Just(0u64), Just(512u64)),
            (any::<usize>(), 0..512u64, 1..513u64),
        ]
    };
    prop_oneof![
        4 => (0..=SEGMENTS).prop_map(Op::Online),
        3 => (0..=SEGMENTS).prop_map(Op::Offline),
        20 => (any::<bool>(), nr()).prop_map(|(second, nr)| Op::Alloc { second, nr }),
        5 => nr().prop_map(Op::AllocFromAll),
        20 => part().prop_map(|(which, from, nr)| Op::Free { which, from, nr }),
        1 => (0u64..4 << 36, 0u64..600).prop_map(|(raw, nr)| Op::FreeWild { raw, nr }),
        1 => (1u64..4, 0u64..FAR, 0u64..513)
            .prop_map(|(device, slot, nr)| Op::FreeWild { raw: device << 36 | slot, nr }),
        1 => part().prop_map(|(which, from, nr)| Op::GiveUp { which, from, nr }),
        2 => Just(Op::Lend),
        1 => Just(Op::EndLoans { kept: 0 }),
        1 => any::<u64>().prop_map(|kept| Op::EndLoans { kept }),
        1 => (any::<bool>(), any::<bool>())
            .prop_map(|(second, leaving)| Op::Leave { second, leaving }),
        1 => prop_oneof![9 => Just(Op::Lend), 1 => Just(Op::StartOver)],
    ]
}

/// Slots of the larger device, and some more.
const FAR: u64 = 13_000;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn like_the_model(ops in prop::collection::vec(ops(), 1..200)) {
        let mut model = Model::new();
        model.play(Op::Online(2));
        for op in ops {
            model.play(op);
            model.check().map_err(|err| TestCaseError::fail(format!("{op:?}: {err}")))?;
        }
    }
}

/// Lending takes the same time however much there is: nothing but a count changes.
#[test]
fn what_is_lent_stays_until_the_loan_ends() {
    let mut model = Model::new();
    let alloc = |nr| Op::Alloc { second: false, nr };
    for op in [Op::Online(0), alloc(512), Op::Lend, alloc(3)] {
        model.play(op);
    }
    let (whole, (few, _)) = (model.given[0], model.given[1]);
    assert!(!model.space.is_own(whole.0, 1));
    assert!(model.space.is_own(few, 3));
    model.play(Op::Free {
        which: 0,
        from: 0,
        nr: 512,
    });
    assert_eq!(model.space.used_slots(), 515);
    model.play(Op::EndLoans { kept: 0 });
    assert_eq!(model.space.used_slots(), 3);
    model.check().unwrap();
}

/// A slot that the device failed on does not come back when the loan ends.
#[test]
fn what_was_given_up_is_never_handed_out() {
    let mut model = Model::new();
    for op in [
        Op::Online(0),
        Op::Alloc {
            second: false,
            nr: 512,
        },
        Op::Lend,
        Op::GiveUp {
            which: 0,
            from: 100,
            nr: 8,
        },
        Op::Free {
            which: 0,
            from: 0,
            nr: 100,
        },
        Op::EndLoans { kept: 0 },
        Op::Offline(0),
    ] {
        model.play(op);
        model.check().unwrap();
    }
    assert_eq!(model.space.free_slots(), 100);
}

#[test]
fn devices_that_can_not_be() {
    use hugeswap_swapfile::SwapSpace;
    let says = |clusters: &[u64]| SwapSpace::new(clusters).unwrap_err().to_string();
    assert_eq!(says(&[0; 33]), "more than 32 swap devices");
    assert_eq!(
        says(&[1, 1 << 28]),
        "a swap device of 268435456 clusters is larger than supported"
    );
}
