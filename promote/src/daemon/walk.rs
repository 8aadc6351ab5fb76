//! How far a walk over the known files has come, and when the next begins.

use std::time::Duration;

use crate::page::{FileId, Time};

/// A pass over all known files is not begun again sooner.
const SCAN_PAUSE: Duration = Duration::from_secs(2);

/// What a walk is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    ColdPages,
    /// To learn which frame is of which file.
    Frames,
}

/// A walk over all windows of the known files, a few at a time.
#[derive(Debug, Default)]
pub struct Walk {
    pub files: Vec<FileId>,
    /// Of `files`, and page within it.
    pub at: (usize, u64),
    pub begun: Option<Time>,
    /// Passes one after another that have found nothing.
    in_vain: u32,
    found: bool,
}

impl Walk {
    /// Does a pass begin now? The one before is at its end. What was in vain again and again is done
    /// more rarely, up to once in `longest`.
    pub fn begins(&mut self, now: Time, longest: Duration) -> bool {
        let Some(begun) = self.begun.filter(|_| self.at.0 >= self.files.len()) else {
            return self.begun.is_none();
        };
        let in_vain = if self.found { 0 } else { self.in_vain + 1 };
        let rest = SCAN_PAUSE.saturating_mul(1 << in_vain.saturating_sub(1).min(16));
        let rested = now.since(begun) >= rest.min(longest.max(SCAN_PAUSE));
        if rested {
            self.in_vain = in_vain;
            self.found = false;
        }
        rested
    }

    /// There was something to be done about the window that was found last.
    pub fn worth_it(&mut self) {
        self.found = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When passes begin, in seconds, over files that are walked through at once.
    fn passes(longest: u64, until: u64, found: impl Fn(usize) -> bool) -> Vec<u64> {
        let mut walk = Walk::default();
        let mut begun = Vec::new();
        for second in 0..until {
            let now = Time(second * 1_000_000);
            if walk.begins(now, Duration::from_secs(longest)) {
                walk.begun = Some(now);
                begun.push(second);
                if found(begun.len()) {
                    walk.worth_it();
                }
            }
        }
        begun
    }

    #[test]
    fn what_finds_nothing_is_done_more_rarely() {
        assert_eq!(passes(60, 11, |_| true), [0, 2, 4, 6, 8, 10]);
        let never = passes(60, 300, |_| false);
        assert_eq!(never, [0, 2, 6, 14, 30, 62, 122, 182, 242]);
        // Found once again: as at the beginning.
        let once = passes(60, 40, |pass| pass == 4);
        assert_eq!(once, [0, 2, 6, 14, 16, 18, 22, 30]);
        // A window shorter than the pause.
        assert_eq!(passes(1, 9, |_| false), [0, 2, 4, 6, 8]);
        // A day of it.
        assert!(passes(60, 86_400, |_| false).len() > 1400);
    }

    #[test]
    fn a_pass_goes_on_to_its_end() {
        let mut walk = Walk {
            files: vec![FileId { dev: 1, ino: 2 }],
            begun: Some(Time(5)),
            ..Walk::default()
        };
        let later = Time(5).after(Duration::from_secs(3600));
        assert!(!walk.begins(later, SCAN_PAUSE));
        walk.at.0 = 1;
        assert!(walk.begins(later, SCAN_PAUSE));
    }
}
