//! Whether the handler looks for more before it sleeps, and for how long.
//!
//! Who sleeps has to be woken: 2 µs where its CPU was busy, and 20 to 60 where the CPU had been halted and is
//! one of a virtual machine. A miss of a thread that jumps has two such waits of ours, for the read and for the
//! thread's next fault. So we look as long as what we wait for usually takes, if that is not long. How long the
//! waits are is seen in all of them, in those that we slept through as well.
//!
//! Looking costs a processor. Where more threads want one than there are (`crowd`) it is left to them, and for a
//! while where another thread, and not the host, has had ours.

use crate::sys::sched::Cpus;

/// Whose processor the handler is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Its own, as far as is known.
    Own,
    /// That of a thread that jumps, which has it whenever it wants it.
    Colocated,
    /// More threads want a processor than there are.
    Crowd,
}

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// A thread's next fault.
    Fault,
    /// The end of a read, or a fault.
    Read,
}

/// Waits that are usually longer are slept through: those for a fault, and for a read. (A thread that works longer
/// between its faults loses less by each.)
const WORTH_NS: [u64; 2] = [100_000, 250_000];
/// A single wait counts no more than so much, and is looked for no longer.
const LONGEST_NS: u64 = 500_000;
/// Of how many waits the usual one is the average.
const WAITS: u64 = 8;
/// How long a wait is looked for: so many times the usual one.
const TIMES: u64 = 4;
/// But so long at least.
const SHORTEST_NS: u64 = 50_000;
/// How long who gives way to everybody at once may look.
const COLOCATED_NS: u64 = 2_000_000;
/// Another thread that had the processor for so long wants it. (One that faults soon gives it back soon.)
const TAKEN_NS: u64 = 1_000_000;
/// Waits slept through after that.
const PAUSE: u32 = 64;

/// Whether it pays to look again before sleeping.
pub struct Spin {
    /// More than one CPU is there to do so.
    possible: bool,
    /// How long waits last.
    usual_ns: [u64; 2],
    skip: u32,
}

impl Spin {
    pub fn new() -> Spin {
        Spin::on(Cpus::allowed().map_or(1, |c| c.count()))
    }

    fn on(cpus: u32) -> Spin {
        Spin {
            possible: cpus > 1,
            usual_ns: [0; 2],
            skip: 0,
        }
    }

    /// How long to look; None is not at all.
    pub fn limit_ns(&mut self, wait: Wait, place: Place) -> Option<u64> {
        if !self.possible || place == Place::Crowd {
            return None;
        }
        let usual = self.usual_ns[wait as usize];
        if place == Place::Colocated {
            return (usual < LONGEST_NS / 2).then_some(COLOCATED_NS);
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        let limit = (usual * TIMES).clamp(SHORTEST_NS, LONGEST_NS);
        (usual <= WORTH_NS[wait as usize]).then_some(limit)
    }

    /// A wait is over.
    pub fn lasted(&mut self, wait: Wait, ns: u64) {
        let usual = &mut self.usual_ns[wait as usize];
        *usual = (*usual * (WAITS - 1) + ns.min(LONGEST_NS)) / WAITS;
    }

    /// Between two looks the processor was another thread's for so long.
    pub fn was_taken(&mut self, ns: u64) {
        if ns >= TAKEN_NS {
            self.skip = PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(waits: impl IntoIterator<Item = u64>) -> Spin {
        let mut spin = Spin::on(2);
        waits.into_iter().for_each(|ns| spin.lasted(Wait::Read, ns));
        spin
    }

    #[test]
    fn looks_as_long_as_waits_last() {
        let limit = |us: u64| after([us * 1000; 50]).limit_ns(Wait::Read, Place::Own);
        assert_eq!(limit(1), Some(SHORTEST_NS));
        let usual = limit(80).unwrap();
        assert!((300_000..=320_000).contains(&usual), "{usual}");
        assert_eq!(limit(200), Some(LONGEST_NS));
        assert_eq!(limit(1000), None);
        // The other kind has a history of its own.
        assert!(after([1_000_000; 50])
            .limit_ns(Wait::Fault, Place::Own)
            .is_some());
    }

    #[test]
    fn one_long_wait_changes_nothing_and_short_ones_are_learned_asleep() {
        let short = [80_000; 50];
        let mut spin = after(short.into_iter().chain([1 << 40]));
        assert!(spin.limit_ns(Wait::Read, Place::Own).is_some());
        let mut spin = after([1 << 40; 50]);
        let waits = (0..50).take_while(|_| {
            spin.lasted(Wait::Read, 130_000);
            spin.limit_ns(Wait::Read, Place::Own).is_none()
        });
        assert!((2..20).contains(&waits.count()));
    }

    #[test]
    fn gives_way_to_threads_that_stay() {
        let mut spin = after([80_000; 50]);
        spin.was_taken(TAKEN_NS - 1);
        assert!(spin.limit_ns(Wait::Read, Place::Own).is_some());
        spin.was_taken(TAKEN_NS);
        for _ in 0..PAUSE {
            assert_eq!(spin.limit_ns(Wait::Read, Place::Own), None);
        }
        assert!(spin.limit_ns(Wait::Read, Place::Own).is_some());
        // Near it does so anyway.
        spin.was_taken(TAKEN_NS);
        assert_eq!(
            spin.limit_ns(Wait::Read, Place::Colocated),
            Some(COLOCATED_NS)
        );
    }

    #[test]
    fn never_in_a_crowd() {
        let mut spin = after([80_000; 50]);
        assert_eq!(spin.limit_ns(Wait::Read, Place::Crowd), None);
        assert!(spin.limit_ns(Wait::Read, Place::Own).is_some());
    }

    #[test]
    fn never_on_one_processor() {
        let mut spin = Spin::on(1);
        assert_eq!(spin.limit_ns(Wait::Fault, Place::Own), None);
        assert_eq!(spin.limit_ns(Wait::Fault, Place::Colocated), None);
    }
}
