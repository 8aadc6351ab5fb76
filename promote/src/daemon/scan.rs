//! Walks over all windows of the known files: for cold pages, and to learn which frame is of which
//! file where the kernel names frames only.

use std::fs::File;

use super::{now, Daemon, MOST_FRAMES, WINDOW};
use crate::ledger::For;
use crate::page::{FileId, Time, PAGE};

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
