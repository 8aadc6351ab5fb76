//! Swap entries that go from one range to another, under nobody's eyes: a thread that looks through all
//! ranges must know whether some were on their way.

use core::sync::atomic::{AtomicU32, Ordering::SeqCst};

#[derive(Default)]
pub struct Moves {
    begun: AtomicU32,
    ended: AtomicU32,
}

/// One that is under way, until this is dropped.
pub struct Moving<'a>(&'a Moves);

/// When a look through all ranges began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Since(u32);

impl Moves {
    pub fn begin(&self) -> Moving<'_> {
        self.begun.fetch_add(1, SeqCst);
        Moving(self)
    }

    pub fn now(&self) -> Since {
        Since(self.ended.load(SeqCst))
    }

    /// Whether all that was ever begun had ended by then.
    pub fn none_since(&self, then: Since) -> bool {
        self.begun.load(SeqCst) == then.0
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_spoilt_by_what_moves_at_any_time_of_it() {
        let moves = Moves::default();
        assert!(moves.none_since(moves.now()));
        let before = moves.begin();
        let then = moves.now();
        // It had begun before the look did, and ends during it.
        drop(before);
        assert!(!moves.none_since(then));
        let then = moves.now();
        assert!(moves.none_since(then));
        let during = moves.begin();
        assert!(!moves.none_since(then));
        drop(during);
        assert!(!moves.none_since(then));
        assert!(moves.none_since(moves.now()));
    }
}
