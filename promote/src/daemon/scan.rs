//! Walks over all windows of the known files: for cold pages, and to learn which frame is of which
//! file where the kernel names frames only.

use std::fs::File;
use std::time::Duration;

use super::{now, Daemon, MOST_FRAMES, WINDOW};
use crate::ledger::For;
use crate::page::{FileId, Time, PAGE};

/// A pass over all known files is not begun again sooner.
const SCAN_PAUSE: Duration = Duration::from_secs(2);

/// A walk over all windows of the known files, a few at a time.
#[derive(Debug, Default)]
pub(super) struct Walk {
    files: Vec<FileId>,
    /// Of `files`, and page within it.
    at: (usize, u64),
    begun: Option<Time>,
    /// Passes one after another that have found nothing.
    in_vain: u32,
    found: bool,
}

impl Walk {
    /// Does a pass begin now? The one before is at its end. What was in vain again and again is done
    /// more rarely, up to once in `longest`.
    fn begins(&mut self, now: Time, longest: Duration) -> bool {
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
    pub(super) fn worth_it(&mut self) {
        self.found = true;
    }
}

impl Daemon {
    /// The next window of a walk over the known files: for cold pages, or to
    /// learn frames. `None` at the end of a pass.
    pub(super) fn walk(&mut self, cold: bool) -> Option<(FileId, File, u64)> {
        let at = now();
        let walk = if cold { &mut self.cold } else { &mut self.scan };
        let mut walk = std::mem::take(walk);
        let longest = self.config.limits.window;
        if walk.begins(at, longest) {
            walk.files = self.files.known(at);
            walk.at = (0, 0);
            walk.begun = Some(at);
        }
        let mut found = None;
        while let Some(&id) = walk.files.get(walk.at.0) {
            let size = self.files.open(id, None, at).ok().and_then(|file| {
                let size = file.metadata().ok()?.len().div_ceil(PAGE);
                Some((file, size))
            });
            match size {
                Some((file, size)) if walk.at.1 < size => {
                    found = Some((id, file, walk.at.1));
                    walk.at.1 += WINDOW;
                    break;
                }
                _ => walk.at = (walk.at.0 + 1, 0),
            }
        }
        *(if cold { &mut self.cold } else { &mut self.scan }) = walk;
        found
    }

    /// Where the kernel names frames only: learns which frames on the slow
    /// nodes are of which file, and takes those that the kernel has activated
    /// before for hot.
    pub(super) fn scan(&mut self, end: Time) {
        loop {
            let at = now();
            if at >= end || self.debt(at).is_some() {
                return;
            }
            self.drain();
            self.enter(For::Fixed);
            let next = self.walk(false);
            if let Some((id, file, first)) = &next {
                self.learn_frames(*id, file, *first, at);
                // Pages come to the slow nodes at any time.
                self.scan.worth_it();
            }
            self.enter(For::Looking);
            if next.is_none() {
                return;
            }
        }
    }

    pub(super) fn learn_frames(&mut self, id: FileId, file: &File, first: u64, at: Time) {
        let all = 0..WINDOW as usize;
        let Some((window, nodes)) = self.look(file, first, &[all]) else {
            return;
        };
        self.stats.disk_reads += window.disk_reads;
        let slow: Vec<usize> = nodes
            .iter()
            .filter(|&&(_, node)| self.config.routes.iter().any(|route| route.from == node))
            .map(|&(page, _)| page)
            .collect();
        let Some(frames) = &mut self.frames else {
            return;
        };
        let (pages, pfns): (Vec<u64>, Vec<u64>) = frames
            .pfns(&window, &slow)
            .into_iter()
            .zip(slow)
            .filter_map(|(pfn, page)| Some((first + page as u64, pfn?)))
            .unzip();
        for ((&page, &pfn), active) in pages.iter().zip(&pfns).zip(frames.active(&pfns)) {
            if self.owners.len() >= MOST_FRAMES {
                self.owners.clear();
            }
            self.owners.insert(pfn, (id, page));
            if active {
                self.policy.activated(id, page, at);
            }
        }
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
