//! Walks over all windows of the known files: for cold pages, and to learn which frame is of which
//! file where the kernel names frames only.

use super::walk::{Goal, Walk};
use super::{Daemon, MOST_FRAMES, WINDOW};
use crate::ledger::For;
use crate::machine::Machine;
use crate::page::{FileId, Time};

impl<M: Machine> Daemon<M> {
    /// The next window of a walk over the known files. `None` at the end of a pass.
    pub(super) fn walk(&mut self, goal: Goal) -> Option<(FileId, M::File, u64)> {
        let at = self.now();
        let mut walk = std::mem::take(self.walk_for(goal));
        let longest = self.config.limits.window;
        if walk.begins(at, longest) {
            walk.files = self.machine.known();
            walk.at = (0, 0);
            walk.begun = Some(at);
        }
        let mut found = None;
        while let Some(&id) = walk.files.get(walk.at.0) {
            let size = self.machine.open(id, None).ok().and_then(|file| {
                let size = self.machine.size(&file).ok()?;
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
        *self.walk_for(goal) = walk;
        found
    }

    fn walk_for(&mut self, goal: Goal) -> &mut Walk {
        match goal {
            Goal::ColdPages => &mut self.cold,
            Goal::Frames => &mut self.scan,
        }
    }

    /// Where the kernel names frames only: learns which frames on the slow
    /// nodes are of which file, and takes those that the kernel has activated
    /// before for hot.
    pub(super) fn scan(&mut self, end: Time) {
        loop {
            let at = self.now();
            if at >= end || self.debt(at).is_some() {
                return;
            }
            self.drain();
            self.enter(For::Fixed);
            let next = self.walk(Goal::Frames);
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

    pub(super) fn learn_frames(&mut self, id: FileId, file: &M::File, first: u64, at: Time) {
        let all = 0..WINDOW as usize;
        let Some((window, nodes)) = self.look(file, first, &[all]) else {
            return;
        };
        self.stats.disk_reads += self.machine.disk_reads(&window);
        let slow: Vec<usize> = nodes
            .iter()
            .filter(|&&(_, node)| self.config.routes.iter().any(|route| route.from == node))
            .map(|&(page, _)| page)
            .collect();
        let frames = self.machine.frames(&window, &slow);
        for (page, frame) in slow.into_iter().zip(frames) {
            let Some((pfn, active)) = frame else {
                continue;
            };
            let page = first + page as u64;
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
