//! The whole loop, on machines that are made up.

use std::time::Duration;

use super::made::{file, Happens, Made, FAST, SLOW};
use super::{Config, Daemon, End};
use crate::ledger::For;
use crate::machine::Machine;
use crate::policy::Limits;
use crate::stats::Stats;
use crate::tiers::{Fast, Route};
use crate::trace::points::Kind;

/// MiB, in pages.
const MIB: u64 = 256;

fn config() -> Config {
    Config {
        routes: vec![Route {
            from: SLOW,
            to: FAST,
        }],
        fast: Fast::default(),
        limits: Limits::default(),
        interval: Duration::from_secs(1),
        budget: 0.01,
        work: 0.5,
        demote: false,
        observe: false,
        once: false,
    }
}

/// Lets it go on for so many seconds.
fn run(config: Config, machine: Made, seconds: u64) -> Daemon<Made> {
    let mut daemon = Daemon::new(config, machine);
    let end = daemon.run(|stats| stats.seconds < seconds as f64).unwrap();
    assert_eq!(end, End::Asked);
    daemon.stats();
    daemon
}

fn stats(daemon: &Daemon<Made>) -> &Stats {
    &daemon.stats
}

#[test]
fn what_is_read_in_a_loop_is_promoted_however_many_processors_there_are() {
    for cpus in [2, 8, 32, 128, 512] {
        // The last one reads: whoever begins with the first meets it last.
        let machine = Made::new(cpus)
            .slow(file(1), 64)
            .reads(cpus - 1, file(1), 2.0);
        let daemon = run(config(), machine, 60);
        let fast = daemon.machine.fast(file(1)) as u64;
        assert!(fast >= 60 * MIB, "{fast} with {cpus}: {:?}", stats(&daemon));
        let (watched, all) = (stats(&daemon).processors_watched, stats(&daemon).processors);
        assert!(watched <= 8 && all == cpus as usize, "{watched} of {all}");
        assert_eq!(stats(&daemon).pgpromote_success, fast);
    }
}

/// As dear as on a machine of 128 processors on which each is paid for, at a tenth of the default's budget.
#[test]
fn what_can_not_be_afforded_is_done_more_rarely_and_said() {
    let mut machine = Made::new(128).slow(file(1), 16).reads(77, file(1), 4.0);
    // Nobody reads it, and so there is always something to watch for.
    machine = machine.slow(file(2), 1);
    machine.dear.switch = 21_000_000;
    machine.dear.ask = 9_000_000;
    machine.dear.wake = 200_000;
    let daemon = run(
        Config {
            budget: 0.001,
            ..config()
        },
        machine,
        1800,
    );
    let stats = stats(&daemon);
    let (switched, fast) = (daemon.machine.switched.len(), daemon.machine.fast(file(1)));
    // A quarter of the window at most lies between two.
    assert!(switched >= 1800 / 17, "{switched}");
    assert!((15.0..=15.1).contains(&stats.watch_every), "{stats:?}");
    assert!(stats.switch_cost >= 0.04, "{stats:?}");
    assert!(fast as u64 >= 12 * MIB, "{fast}: {stats:?}");
}

#[test]
fn the_budget_holds_whatever_is_read() {
    for (cpus, budget) in [(2, 0.01), (128, 0.01), (128, 0.05)] {
        // More is read than can be promoted: nothing can be moved.
        let mut machine = Made::new(cpus).slow(file(1), 256);
        machine.stuck = true;
        for cpu in 0..cpus {
            machine = machine.reads(cpu, file(1), 5.0);
        }
        let config = Config { budget, ..config() };
        let daemon = run(config, machine, 60);
        let moving = daemon.ledger.of(For::Moving);
        let (share, stats) = (daemon.machine.share(moving), stats(&daemon));
        assert!(
            share < budget * 1.2 + 0.002,
            "{share} of {budget}: {stats:?}"
        );
        assert!(stats.overhead_sampling < budget * 1.1, "{stats:?}");
        assert!(stats.numa_hint_page_cache > 0, "{stats:?}");
        assert!(stats.failed.busy > 0, "{stats:?}");
    }
}

#[test]
fn while_no_page_is_slow_nothing_is_watched() {
    let mut machine = Made::new(128).slow(file(1), 16).reads(3, file(1), 4.0);
    machine.files.insert(file(1), vec![FAST; 4096]);
    let daemon = run(config(), machine, 120);
    assert!(daemon.machine.switched.is_empty());
    assert!(daemon.machine.share(0) < 0.002, "{:?}", daemon.stats);
    assert_eq!(daemon.stats.sample_duty, 0.0);
}

/// Older kernels tell of activations, and there the events stay on: but not for nothing.
#[test]
fn activations_are_watched_while_some_page_is_slow() {
    let machine = || {
        let mut machine = Made::new(8).slow(file(1), 16).slow(file(2), 16);
        machine.kind = Kind::Activations;
        machine.files.insert(file(2), vec![FAST; 16 * MIB as usize]);
        machine
            .then(30, Happens::Vanishes(file(1)))
            .then(200, Happens::Demotes(file(2)))
    };
    for (seconds, watches) in [(20, true), (150, false), (260, true)] {
        let daemon = run(config(), machine(), seconds);
        assert_eq!(daemon.machine.watching(), watches, "after {seconds}");
        let duty = if watches { 1.0 } else { 0.0 };
        assert_eq!(daemon.stats.sample_duty, duty, "after {seconds}");
        assert!(daemon.machine.switched.len() <= 2, "after {seconds}");
    }
}

/// Pages come to the slow node and go again and again: switching the events has its budget here too.
#[test]
fn activations_are_not_switched_on_and_off_all_the_time() {
    let mut machine = Made::new(128).slow(file(1), 1);
    machine.kind = Kind::Activations;
    machine.dear.switch = 30_000_000;
    for second in 1..600 {
        let happens = match second % 2 {
            0 => Happens::Demotes(file(1)),
            _ => Happens::Promotes(file(1)),
        };
        machine = machine.then(second, happens);
    }
    let daemon = run(config(), machine, 600);
    let (switched, share) = (daemon.machine.switched.len(), daemon.machine.share(0));
    assert!((2..60).contains(&switched), "{switched}");
    assert!(share < 0.01, "{share}: {:?}", daemon.stats);
}

#[test]
fn files_vanish_and_shrink_meanwhile() {
    let mut machine = Made::new(8).slow(file(0), 32).reads(0, file(0), 4.0);
    for ino in 1..40 {
        machine = machine
            .slow(file(ino), 4)
            .reads(ino as u32 % 8, file(ino), 2.0);
        machine = machine.then(
            2 + ino / 4,
            match ino % 3 {
                0 => Happens::Shrinks(file(ino), 100),
                1 => Happens::Shrinks(file(ino), 0),
                _ => Happens::Vanishes(file(ino)),
            },
        );
    }
    let daemon = run(config(), machine, 90);
    assert!(
        daemon.machine.fast(file(0)) as u64 >= 30 * MIB,
        "{:?}",
        daemon.stats
    );
    // It has looked for such as had gone, and not for ever.
    assert!(daemon.machine.missed < 39 * 10, "{}", daemon.machine.missed);
}

/// The machine sleeps, for a day at last.
#[test]
fn a_clock_that_jumps_stops_nothing() {
    let mut machine = Made::new(16).slow(file(1), 32).reads(5, file(1), 2.0);
    for (second, seconds) in [(3, 5), (11, 3600), (3700, 86_400)] {
        machine = machine.then(second, Happens::Jumps(seconds * 1_000_000));
    }
    machine = machine.then(91_000, Happens::Demotes(file(1)));
    let mut daemon = Daemon::new(config(), machine);
    let mut before = 0.0;
    let end = daemon.run(|stats| {
        assert!(stats.seconds >= before);
        before = stats.seconds;
        assert!((0.0..=1.0).contains(&stats.sample_duty), "{stats:?}");
        stats.seconds < 91_200.0
    });
    assert_eq!(end.unwrap(), End::Asked);
    assert!(
        daemon.machine.fast(file(1)) as u64 >= 30 * MIB,
        "{:?}",
        daemon.stats
    );
    assert!(daemon.machine.longest <= Duration::from_secs(1));
}

#[test]
fn a_signal_ends_it_at_once_whatever_it_does() {
    for (second, once) in (0..24).map(|n| (n / 2, n % 2 == 1)) {
        let machine = Made::new(128).slow(file(1), 512).reads(99, file(1), 1.0);
        let machine = machine.then(second, Happens::Signal);
        let mut daemon = Daemon::new(Config { once, ..config() }, machine);
        let end = daemon.run(|_| true).unwrap();
        let seconds = daemon.machine.seconds();
        // Once ends by itself too.
        assert!(end == End::Signal || once, "at {second}");
        assert!(seconds <= second + 1, "{seconds}, not {second}");
    }
}

fn once() -> Config {
    Config {
        once: true,
        ..config()
    }
}

#[test]
fn once_promotes_and_ends() {
    for cpus in [2, 8, 128] {
        let machine = Made::new(cpus)
            .slow(file(1), 16)
            .reads(cpus - 1, file(1), 4.0);
        let daemon = run_once(once(), machine);
        let fast = daemon.machine.fast(file(1)) as u64;
        assert!(fast >= 14 * MIB, "{fast}: {:?}", daemon.stats);
        assert!(daemon.machine.seconds() < 5, "{:?}", daemon.stats);
    }
}

/// How often it reports is once.
fn run_once(config: Config, machine: Made) -> Daemon<Made> {
    let mut daemon = Daemon::new(config, machine);
    let mut reports = 0;
    let end = daemon.run(|_| {
        reports += 1;
        true
    });
    assert_eq!((end.unwrap(), reports), (End::Asked, 1));
    daemon
}

/// What hinders it does not keep it for ever.
#[test]
fn once_ends_without_room_with_a_limit_and_with_files_that_go() {
    let machine = || Made::new(4).slow(file(1), 64).reads(1, file(1), 4.0);
    let [mut full, mut some, mut stuck] = [(); 3].map(|()| machine());
    full.room = 0;
    some.room = 8 * MIB;
    stuck.stuck = true;
    let gone = machine().then(1, Happens::Vanishes(file(1)));
    let limits = Limits {
        rate: Some(2 * MIB),
        ..Limits::default()
    };
    for (machine, limits) in [
        (full, Limits::default()),
        (some, Limits::default()),
        (stuck, Limits::default()),
        (gone, Limits::default()),
        (machine(), limits),
    ] {
        let daemon = run_once(Config { limits, ..once() }, machine);
        assert!(daemon.machine.seconds() < 120, "{:?}", daemon.stats);
    }
}

/// Two files that are as hot as one another, and room for one; who has it keeps it.
#[test]
fn equals_do_not_change_places_again_and_again() {
    for demote in [false, true] {
        let mut machine = Made::new(4).slow(file(1), 32).slow(file(2), 32);
        machine = machine.reads(0, file(1), 2.0).reads(1, file(2), 2.0);
        machine.room = 32 * MIB;
        let daemon = run(Config { demote, ..config() }, machine, 600);
        let stats = stats(&daemon);
        let fast = daemon.machine.fast(file(1)) + daemon.machine.fast(file(2));
        assert!(fast as u64 >= 28 * MIB, "{fast}: {stats:?}");
        assert!(stats.numa_pages_migrated < 3 * 32 * MIB, "{stats:?}");
    }
}

/// A file that is read twelve times as often as another, and room for it and little more: whenever the daemon
/// begins, and wherever the two are then.
#[test]
fn the_hottest_come_first() {
    let (scan, hot) = (file(1), file(2));
    for (room, start) in [8, 12, 24]
        .into_iter()
        .flat_map(|room| (0..20).map(move |start| (room, start)))
    {
        let mut machine = Made::new(2).slow(scan, 72).slow(hot, 6);
        machine = machine.reads(0, scan, 4.0).reads(1, hot, 48.0);
        machine.room = room * MIB;
        machine.costs(start * 31_700_000);
        let daemon = run(config(), machine, 60);
        let fast = [hot, scan].map(|id| daemon.machine.fast(id) as u64);
        assert_eq!(fast, [6 * MIB, (room - 6) * MIB], "{:?}", daemon.stats);
    }
}

/// What is read now takes the room of what was read before.
#[test]
fn what_is_cold_makes_room() {
    let mut machine = Made::new(4).slow(file(1), 32).slow(file(2), 32);
    machine = machine.reads_within(0, file(1), 2.0, 0..60);
    machine = machine.reads_within(1, file(2), 2.0, 100..1000);
    machine.room = 32 * MIB;
    let config = Config {
        demote: true,
        ..config()
    };
    let daemon = run(config, machine, 400);
    let fast = [1, 2].map(|ino| daemon.machine.fast(file(ino)) as u64);
    assert!(
        fast[0] < 8 * MIB && fast[1] > 24 * MIB,
        "{fast:?}: {:?}",
        daemon.stats
    );
    assert!(daemon.stats.pgdemote_proactive > 0);
}

/// The kernel takes back what was promoted, before it was of use: it is let be.
#[test]
fn what_does_no_good_is_done_ever_more_rarely() {
    let mut machine = Made::new(4).slow(file(1), 64).reads(0, file(1), 2.0);
    for second in 1..1200 {
        machine = machine.then(3 * second, Happens::Demotes(file(1)));
    }
    let daemon = run(config(), machine, 3600);
    let stats = stats(&daemon);
    assert!(stats.backoffs >= 3, "{stats:?}");
    // Each time would be 1200 times.
    assert!(stats.numa_pages_migrated < 100 * 64 * MIB, "{stats:?}");
}

#[test]
fn observing_moves_nothing() {
    let machine = Made::new(4).slow(file(1), 16).reads(0, file(1), 4.0);
    let config = Config {
        observe: true,
        ..config()
    };
    let daemon = run(config, machine, 60);
    assert!(daemon.stats.pgpromote_candidate > 0);
    assert_eq!(daemon.machine.fast(file(1)), 0);
}
