//! Whether the handler looks for more before it sleeps.

use crate::sys::sched::Cpus;

/// Sleeps without looking first, after looking was in vain.
const PAUSE_MAX: u32 = 64;

/// Whether it pays to look again before sleeping.
pub struct Spin {
    /// More than one CPU is there to do so.
    possible: bool,
    pause: u32,
    skip: u32,
}

impl Spin {
    pub fn new() -> Spin {
        Spin {
            possible: Cpus::allowed().map_or(1, |c| c.count()) > 1,
            pause: 0,
            skip: 0,
        }
    }

    pub fn failed(&mut self) {
        self.pause = (self.pause * 2).clamp(1, PAUSE_MAX);
        self.skip = self.pause;
    }
    pub fn worked(&mut self) {
        self.pause = 0;
    }
    /// Others wait for a processor, the program's own threads among them: looking takes it from them.
    pub fn gives_way(&mut self) {
        self.pause = PAUSE_MAX;
        self.skip = PAUSE_MAX;
    }
    pub fn may(&mut self) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.possible
    }
}
