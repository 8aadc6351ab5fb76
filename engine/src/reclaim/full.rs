//! What there is no room for: the supervisor is asked for more, and if there is none that is said.

use super::more::Step;
use super::Reclaim;
use crate::sys::thread::now_ns;
use crate::sys::{fd, thread};
use core::sync::atomic::Ordering::Relaxed;

impl Reclaim<'_> {
    /// There is no room in compressed memory, and no device. A fork that needs room for the child is no reason to take
    /// it for full: it asks for what can be had.
    pub(super) fn no_room(&mut self) -> Step {
        let (charge, proc) = (&self.cache.charge, self.kick.proc());
        if charge.is_capped() {
            return Step::Wait;
        }
        let answer = proc.more(self.more.question());
        let step = self.more.no_room(charge.limit(), answer, now_ns());
        match step {
            Step::Ask(question) => {
                proc.ask_for_more(question);
                charge.call();
                self.await_supervisor();
            }
            Step::Wait => self.await_supervisor(),
            Step::Full => proc.ask_for_no_more(),
        }
        step
    }

    pub(super) fn has_room(&mut self) {
        if self.more.has_room() {
            self.kick.proc().ask_for_no_more();
        }
    }

    /// Whether there is room in swap or compressed memory, or none to be had: that only the supervisor can say.
    pub(super) fn has_swap(&mut self) -> bool {
        let c = self.cache;
        let has = match c.swaps_nowhere() {
            // How much may be compressed follows from a limit that is still to come.
            true => c.charge.limit() > 0,
            false => c.slots.prepare(&c.charge, self.devices),
        };
        if !has {
            c.prepare_seal_buffer();
            self.await_supervisor();
        }
        has
    }

    /// Without the supervisor nobody goes on.
    pub(super) fn await_supervisor(&mut self) {
        self.awaits_swap = true;
        // The handler may wait for us, and then hears nothing.
        if fd::is_hung_up(self.cache.charge.link()) {
            thread::end_killed();
        }
    }

    pub(super) fn note_full(&mut self) {
        self.full_since_ns = now_ns();
        self.cache.full.store(true, Relaxed);
        self.cache.stats().swap_full.inc();
        // Who swaps a device off while the others are too small is told so, and can change it.
        if !self.swapoff.is_active() {
            self.warn_full();
        }
    }

    fn warn_full(&mut self) {
        let charge = &self.cache.charge;
        let [ends, goes_on] = match self.cache.swaps_nowhere() {
            true => NO_ROOM_IN_MEMORY,
            false => NO_ROOM_IN_SWAP,
        };
        if charge.control.settings.strict != 0 {
            charge.log(ends);
            crate::sys::thread::exit_group(EXIT_FULL);
        }
        if !self.warned_full {
            self.warned_full = true;
            charge.log(goes_on);
        }
    }
}

/// What is said when there is no room for what is to leave: with `--strict`, and without.
const NO_ROOM_IN_SWAP: [&str; 2] = [
    "swap is full and --strict was given: ending the program. \
     Give a larger --swap-size, another --swap, or more --memory",
    "warning: swap is full, or its disk, or a quota there; the program goes on above its memory limit. \
     Give --swap-size, or a larger one, or another --swap",
];
const NO_ROOM_IN_MEMORY: [&str; 2] = [
    "compressed memory is full and --strict was given: ending the program. \
     Give a place to swap to with --swap, or more --memory",
    "warning: compressed memory is full; the program goes on above its memory limit. \
     Give a place to swap to with --swap, or more --memory",
];

/// Exit status of a program that was ended because swap is full: ENOMEM would be unclear, this is
/// what the shell reports for one killed for memory (128 + SIGKILL).
const EXIT_FULL: i32 = 137;
