//! Room on the fast node: cold file pages are moved to the slow one.

use std::io;

use super::walk::Goal;
use super::{found, Daemon};
use crate::machine::Machine;
use crate::page::{Block, FileId, BATCH_BLOCKS, BLOCK_PAGES};
use crate::place::sum_where;
use crate::tiers::Route;

/// Room that is made at once by demotion: 16 MiB.
pub(super) const DEMOTE_PAGES: u64 = 4096;
/// Pages of a window that make it worth to look at all of them again soon: a quarter.
const WORTH_IT: u64 = super::WINDOW / 4;
/// Windows looked at for cold pages in one interval.
const DEMOTE_LOOKS: usize = 256;

impl<M: Machine> Daemon<M> {
    /// Moves cold file pages from the fast node to the slow one: such that were not accessed within
    /// the window, or much less than what they make room for, whose heat is given.
    pub(super) fn demote(&mut self, route: Route, heat: u16) -> io::Result<()> {
        // Everything looks cold to one who has just come.
        if self.now().since(self.started) < self.config.limits.window {
            return Ok(());
        }
        let mut demoted = 0;
        for _ in 0..DEMOTE_LOOKS {
            if demoted >= DEMOTE_PAGES {
                break;
            }
            let Some((id, file, first)) = self.walk(Goal::ColdPages) else {
                break;
            };
            match self.demote_window(id, &file, first, route, heat)? {
                Some(pages) => demoted += pages,
                None => break,
            }
        }
        for room in self.room.values_mut() {
            room.forget();
        }
        Ok(())
    }

    /// Moves what is cold of the window that begins with the page `first`. Says how many pages were moved;
    /// `None` if the slow node or the rate limit has no room for them.
    fn demote_window(
        &mut self,
        id: FileId,
        file: &M::File,
        first: u64,
        route: Route,
        heat: u16,
    ) -> io::Result<Option<u64>> {
        let at = self.now();
        let base = first / BLOCK_PAGES;
        let block = |index: u64| Block {
            file: id,
            index: base + index,
        };
        let cold: Vec<u64> = (0..BATCH_BLOCKS)
            .filter(|&index| self.policy.cold(block(index), heat, at))
            .collect();
        if cold.is_empty() {
            return Ok(Some(0));
        }
        let wanted = found::pages_of(&cold, 0);
        let Some((window, nodes)) = self.look(file, first, &wanted) else {
            return Ok(Some(0));
        };
        self.stats.disk_reads += self.machine.disk_reads(&window);
        let pages = found::on(&nodes, route.to);
        let folios = self.machine.folios(&window, &pages);
        let needed: u64 = folios.iter().map(|folio| folio.pages).sum();
        if needed == 0 {
            return Ok(Some(0));
        }
        if needed >= WORTH_IT {
            self.cold.worth_it();
        }
        if needed > self.policy.rate.room(at) || needed > self.room(route.from, at) {
            return Ok(None);
        }
        let moved = self.migrate(&window, &folios, route.from)?;
        let pages = sum_where(&folios, &moved);
        self.stats.pgdemote_proactive += pages;
        for index in cold {
            self.policy.demoted(block(index), self.now());
        }
        Ok(Some(pages))
    }
}
