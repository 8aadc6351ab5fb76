//! The swap cache in a memory of the test's own: every short sequence of what can happen to a range, and long random
//! ones, against what must be true. After every effect the range is looked at as a core file would show it.

mod fake;
mod world;

use super::To;
use crate::policy::Unit;
use fake::Refusal;
use world::{Event, Setup, World};

const WHOLE: Setup = Setup {
    pages: 512,
    encrypt: false,
    compress: 0,
    mv: true,
};
const PART: Setup = Setup { pages: 24, ..WHOLE };

/// What happens in short sequences.
const EVENTS: [Event; 16] = [
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
    Event::Refuse(Refusal::Busy, 0, 1),
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

/// `./test --long` goes deeper.
fn depth(short: u32) -> u32 {
    let long = std::env::var_os("HUGESWAP_LONG_TESTS").is_some_and(|v| v != "0");
    short + u32::from(long)
}

#[test]
fn every_short_sequence_on_pieces() {
    every_sequence(PART, depth(3));
}

#[test]
fn every_short_sequence_on_a_folio() {
    every_sequence(WHOLE, depth(2));
}

fn random_event(rng: &mut fastrand::Rng, pages: usize) -> Event {
    let page = if rng.bool() {
        rng.usize(..4)
    } else {
        rng.usize(..pages)
    };
    let unit = match rng.u8(..5) {
        0 => Unit::Whole,
        1 => Unit::Rest,
        2 => Unit::Pages(16),
        _ => Unit::Pages(1),
    };
    let to = if rng.bool() { To::Device } else { To::Memory };
    match rng.u8(..24) {
        0..=3 => Event::Write(page, unit),
        4..=6 => Event::Read(page, unit),
        7 => Event::Zero(page),
        8..=11 => Event::End,
        12 => match rng.bool() {
            true => Event::Fail,
            false => Event::GoBad(page),
        },
        13..=14 => Event::Deactivate,
        15..=17 => Event::Leave(to),
        18 => Event::Discard(page, (page + 1 + rng.usize(..8)).min(pages)),
        19 => Event::DropUnseen(page),
        20 => Event::Settle,
        21 => Event::ReadAhead,
        22 => match rng.u8(..3) {
            0 => Event::SwapOff,
            _ => Event::WriteBack,
        },
        _ => {
            let why = [Refusal::Busy, Refusal::Again, Refusal::Invalid];
            Event::Refuse(why[rng.usize(..3)], rng.u32(..4), rng.usize(..4))
        }
    }
}

fn random_sequences(setup: Setup, sequences: usize) {
    let mut world = World::new(setup);
    let told = Tell(&mut world);
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..sequences {
        let n = rng.usize(1..60);
        let events: Vec<_> = (0..n)
            .map(|_| random_event(&mut rng, setup.pages))
            .collect();
        run(told.0, events);
    }
}

#[test]
fn random_sequences_on_pieces() {
    for encrypt in [false, true] {
        for compress in [0, 30] {
            let setup = Setup {
                encrypt,
                compress,
                ..PART
            };
            random_sequences(setup, 2000);
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
fn random_sequences_where_nothing_can_be_moved() {
    for pages in [24, 512] {
        let setup = Setup {
            pages,
            mv: false,
            ..WHOLE
        };
        random_sequences(setup, 100);
    }
}
