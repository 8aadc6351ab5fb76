//! The swap cache in a memory of the test's own: every short sequence of what can happen to a range, and long random
//! ones, against what must be true. After every effect the range is looked at as a core file would show it.
#![allow(unsafe_code)]

mod fake;
mod truth;
mod world;

use super::{To, WRITE_BACK};
use crate::policy::Unit;
use fake::Refusal;
use truth::Setup;
use world::{Event, World};

const WHOLE: Setup = Setup {
    pages: 512,
    encrypt: false,
    compress: 0,
    mv: true,
    devices: true,
    lazyfree: false,
};
const PART: Setup = Setup { pages: 24, ..WHOLE };

/// What happens in short sequences.
const EVENTS: [Event; 19] = [
    Event::Write(1, Unit::Pages(1)),
    Event::Read(2, Unit::Pages(4)),
    Event::Write(9, Unit::Whole),
    Event::Zero(1),
    Event::End,
    Event::Fail,
    Event::Deactivate,
    Event::Leave(To::Device),
    Event::Leave(To::Memory),
    Event::Discard(1, 2),
    Event::DropUnseen(9),
    Event::Settle,
    Event::ReadAhead,
    Event::SwapOff,
    Event::GoBad(2),
    Event::MoveThereAndBack(1, 3, 1),
    Event::Refuse(Refusal::Busy, 0, 1),
    Event::Reclaim,
    Event::OldWrite(1),
];

fn run(world: &mut World, events: impl IntoIterator<Item = Event>) {
    for event in events {
        world.happen(event);
    }
    world.finish();
}

/// Says what happened where something goes wrong.
struct Tell<'w>(&'w mut World);

impl Drop for Tell<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("after {:?}", self.0.history);
        }
    }
}

/// Every sequence of so many events, each after pages were written, and the range swapped out or not.
fn every_sequence(setup: Setup, depth: u32) {
    let mut world = World::new(setup);
    let told = Tell(&mut world);
    let begin = [
        Event::Write(1, Unit::Pages(1)),
        Event::Write(2, Unit::Pages(1)),
        Event::Write(9, Unit::Pages(1)),
    ];
    let out = [Event::Deactivate, Event::Leave(To::Device), Event::End];
    for n in 0..EVENTS.len().pow(depth) {
        let each = (0..depth).map(|i| EVENTS[n / EVENTS.len().pow(i) % EVENTS.len()]);
        run(told.0, begin.into_iter().chain(out).chain(each.clone()));
        run(told.0, begin.into_iter().chain(each));
    }
}

/// What was taken out has come back, and is taken out again: then it has another second chance.
#[test]
fn what_came_back_does_not_make_others_leave() {
    let mut world = World::new(PART);
    let told = Tell(&mut world);
    let out = |world: &mut World| {
        world.happen(Event::Write(1, Unit::Pages(1)));
        world.happen(Event::Deactivate);
        world.taken()
    };
    let first = out(told.0);
    let n = told.0.staged(first);
    assert!(n > 0);
    told.0.happen(Event::Settle);
    assert_eq!(told.0.staged(first), 0);
    let second = out(told.0);
    told.0.leave_now(first, To::Device);
    assert!(told.0.is_inactive() && !told.0.is_in_flight());
    assert_eq!((told.0.staged(first), told.0.staged(second)), (0, n));
    told.0.leave_now(second, To::Device);
    assert!(told.0.is_in_flight());
    told.0.finish();
}

/// `./test --long` goes deeper.
fn is_long() -> bool {
    std::env::var_os("HUGESWAP_LONG_TESTS").is_some_and(|v| v != "0")
}

#[test]
fn every_short_sequence_on_pieces() {
    every_sequence(PART, if is_long() { 4 } else { 3 });
}

#[test]
fn every_short_sequence_on_pieces_that_stay() {
    let setup = Setup {
        lazyfree: true,
        ..PART
    };
    every_sequence(setup, if is_long() { 4 } else { 3 });
}

#[test]
fn every_short_sequence_on_a_folio() {
    every_sequence(WHOLE, if is_long() { 3 } else { 2 });
}

fn random_event(rng: &mut fastrand::Rng, world: &World, pages: usize) -> Event {
    let page = match rng.bool() {
        true => rng.usize(..4),
        false => rng.usize(..pages),
    };
    let to = match rng.bool() {
        true => To::Device,
        false => To::Memory,
    };
    // Half of the time what comes next, so that sequences get far.
    match rng.u8(..8) {
        0..=2 if world.is_in_flight() => return Event::End,
        3 if world.is_in_flight() && rng.bool() => return Event::Fail,
        0..=2 if world.is_inactive() => return Event::Leave(to),
        0 => return Event::Deactivate,
        _ => {}
    }
    let unit = match rng.u8(..5) {
        0 => Unit::Whole,
        1 => Unit::Rest,
        2 => Unit::Pages(16),
        _ => Unit::Pages(1),
    };
    let end = (page + 1 + rng.usize(..8)).min(pages);
    match rng.u8(..22) {
        0..=3 => Event::Write(page, unit),
        4..=6 => Event::Read(page, unit),
        7 => Event::ReadMany(0, rng.usize(..=pages)),
        8 => Event::Zero(page),
        9 => Event::WriteMany(page, end),
        10 => Event::WriteMany(0, pages),
        11 => Event::GoBad(page),
        12 => Event::Leave(to),
        13 => Event::Discard(page, end),
        14 => Event::DropUnseen(page),
        15 => match rng.bool() {
            true => Event::Settle,
            false => Event::MoveThereAndBack(page, end, rng.usize(..=512 - (end - page))),
        },
        16 => Event::ReadAhead,
        17 => match rng.bool() {
            true => Event::SwapOff,
            false => Event::WriteBack,
        },
        18 => Event::Deactivate,
        19 => Event::Reclaim,
        20 => Event::OldWrite(page),
        _ => {
            let why = [Refusal::Busy, Refusal::Again, Refusal::Invalid];
            Event::Refuse(why[rng.usize(..3)], rng.u32(..4), rng.usize(..4))
        }
    }
}

/// What long sequences come to: where one of these stays zero the test looks at less than it says.
fn counted(setup: Setup) -> Vec<&'static str> {
    let mut names = vec!["swpout_zero", "pgactivate", "move_hole"];
    if setup.devices {
        names.extend(["pswpout", "pswpin", "pswpout_again", "swap_clean"]);
        names.extend([
            "writeback_copied",
            "swapoff_pages",
            "pages_poisoned",
            "swap_read_errors",
        ]);
    }
    if setup.compress > 0 {
        names.extend(["zswpout", "zswpin"]);
    }
    if setup.devices && setup.compress > 0 {
        names.extend(["zswpwb", "zswap_ra"]);
    }
    if setup.lazyfree && setup.mv {
        names.extend(["lazyfree_reuse", "lazyfree_lost"]);
    }
    if setup.devices && setup.pages == 512 && setup.mv {
        names.extend([
            "swap_ra_hit",
            "thp_swpin",
            "thp_swpout",
            "thp_collapse_alloc",
        ]);
    }
    names
}

fn random_sequences(setup: Setup, sequences: usize) {
    let mut world = World::new(setup);
    let told = Tell(&mut world);
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..sequences * if is_long() { 20 } else { 1 } {
        for _ in 0..rng.usize(1..60) {
            let event = random_event(&mut rng, told.0, setup.pages);
            told.0.happen(event);
        }
        told.0.finish();
    }
    for name in counted(setup) {
        assert!(told.0.counted(name) > 0, "{name}");
    }
}

#[test]
fn random_sequences_on_pieces() {
    for encrypt in [false, true] {
        for compress in [0, 30] {
            for lazyfree in [false, true] {
                let setup = Setup {
                    encrypt,
                    compress,
                    lazyfree,
                    ..PART
                };
                random_sequences(setup, 1000);
            }
        }
    }
}

#[test]
fn random_sequences_on_a_folio() {
    for encrypt in [false, true] {
        for compress in [0, 30] {
            let setup = Setup {
                encrypt,
                compress,
                ..WHOLE
            };
            random_sequences(setup, 200);
        }
    }
}

#[test]
fn random_sequences_without_a_device() {
    for pages in [24, 512] {
        let setup = Setup {
            pages,
            compress: 50,
            devices: false,
            ..WHOLE
        };
        random_sequences(setup, 200);
    }
}

#[test]
fn random_sequences_where_nothing_can_be_moved() {
    for pages in [24, 512] {
        let setup = Setup {
            pages,
            mv: false,
            // Nothing stays all the same.
            lazyfree: true,
            ..WHOLE
        };
        random_sequences(setup, 100);
    }
}

/// Of an inactive folio most pages come back one by one, and then all of it: or not, where one can't be taken out again.
#[test]
fn a_hot_folio_comes_back_whole() {
    for how in [None, Some(Event::DropUnseen(5))] {
        let mut world = World::new(WHOLE);
        let told = Tell(&mut world);
        let begin = [
            Event::Write(0, Unit::Whole),
            Event::WriteMany(0, 512),
            Event::Deactivate,
            Event::ReadMany(0, 384),
            Event::WriteMany(0, 4),
        ];
        let end = [
            Event::Read(450, Unit::Pages(1)),
            Event::Read(511, Unit::Whole),
        ];
        for event in begin.into_iter().chain(how).chain(end) {
            told.0.happen(event);
        }
        let whole = told.0.counted("thp_collapse_alloc");
        let failed = told.0.counted("thp_collapse_alloc_failed");
        assert_eq!(
            (whole > 0, failed > 0),
            (how.is_none(), how.is_some()),
            "{how:?}"
        );
        told.0.finish();
    }
}

/// What is on a device, too, leaves compressed memory a little at a time: when that is a little too large the rest stays.
#[test]
fn clean_pages_leave_compressed_memory_in_turns() {
    let setup = Setup {
        compress: 50,
        ..WHOLE
    };
    let mut world = World::new(setup);
    let told = Tell(&mut world);
    let begin = [
        Event::Write(0, Unit::Whole),
        Event::WriteMany(0, 512),
        Event::Deactivate,
        Event::Leave(To::Device),
        Event::End,
    ];
    let back = (0..512).step_by(8);
    let back = back.flat_map(|page| [Event::Read(page, Unit::Pages(8)), Event::End]);
    let out = [Event::Deactivate, Event::Leave(To::Memory)];
    for event in begin.into_iter().chain(back).chain(out) {
        told.0.happen(event);
    }
    let before = told.0.compressed();
    told.0.happen(Event::WriteBack);
    let after = told.0.compressed();
    assert!(before > 2 * WRITE_BACK, "{before}");
    assert_eq!(after, before - WRITE_BACK);
    told.0.finish();
}
