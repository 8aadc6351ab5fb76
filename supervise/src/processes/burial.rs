//! Images that nobody speaks for: are they gone, and who needs what they had?

use std::time::Duration;

use super::engine_threads::lock;
use super::{Member, Processes};
use crate::life::{Id, Stage};

/// Where nothing can be found out about a process, it is not waited longer for its core file.
const LATE: Duration = Duration::from_secs(1);

impl Processes {
    /// Looks whether images that nobody speaks for are gone, and forgets those whose swap nobody needs:
    /// others get what they had. `needed`: their swap is needed for something else.
    pub fn bury(&mut self, mut needed: impl FnMut(Id, &Member, bool) -> bool) {
        let ids: Vec<Id> = self.members.keys().copied().collect();
        for &id in &ids {
            let Some(stage @ (Stage::Loose | Stage::Dead)) = self.life.stage(id) else {
                continue;
            };
            let next = self.next_image(id);
            let borrows = self.life.borrows(id);
            let Some(m) = self.members.get_mut(&id) else {
                continue;
            };
            let is_held = m.object.is_held();
            m.is_gone |= !is_held;
            // An image that made room for another leaves no core file; one whose process has not been
            // found dead yet may.
            if !m.is_examined && (stage == Stage::Dead || m.process.is_none() || next) {
                if is_held && stage != Stage::Dead {
                    continue;
                }
                m.is_examined = next || !needed(id, m, borrows);
                if m.is_examined {
                    m.page().forget_keys();
                }
            }
            if m.is_examined && is_held && !m.is_given && self.life.is_idle(id) {
                m.is_given = true;
                let reached = m.reached();
                let not_reached = |d, cluster| !reached.contains(&(d, cluster));
                self.swap.owners().release(id, not_reached);
            }
            if m.is_examined && !is_held {
                self.life.end(id);
                self.let_go_of_faults(id);
            }
        }
        for id in ids {
            if !self.life.can_be_forgotten(id) {
                continue;
            }
            self.swap.owners().release(id, |_, _| true);
            self.life.forget(id);
            lock(&self.pages).retain(|(i, _, _)| *i != id);
            if let Some(mut m) = self.members.remove(&id) {
                if let Some(p) = &m.process {
                    self.poller.remove(p.as_fd());
                }
                m.hear_page(&mut self.heard);
                self.past.merge_ended(&m.page().stats);
                self.groups.keep_counters(m.group, &m.page().stats);
            }
        }
    }

    /// Whether the image's process goes on as another.
    fn next_image(&self, id: Id) -> bool {
        let Some(m) = self.members.get(&id) else {
            return false;
        };
        if m.process.is_none() || self.life.stage(id) == Some(Stage::Dead) {
            return false;
        }
        let is_next = |(&i, n): (&Id, &Member)| {
            i != id && n.pid == m.pid && self.life.stage(i) == Some(Stage::Live)
        };
        // One that is not managed has memory, and one that is dying has none.
        let has_memory = || {
            let statm = std::fs::read(format!("/proc/{}/statm", m.pid));
            statm.is_ok_and(|s| !s.starts_with(b"0 "))
        };
        let late = || m.loose_since.is_some_and(|s| s.elapsed() > LATE);
        !m.object.is_held() && (self.members.iter().any(is_next) || has_memory() || late())
    }
}
