//! Room on the fast node: cold file pages are moved to the slow one.

use std::io;

use super::{found, Daemon};
use crate::machine::Machine;
use crate::page::{Block, BATCH_BLOCKS, BLOCK_PAGES};
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
            let Some((id, file, first)) = self.walk(true) else {
                break;
            };
            let at = self.now();
            let base = first / BLOCK_PAGES;
            let cold: Vec<u64> = (0..BATCH_BLOCKS)
                .filter(|index| {
                    let block = Block {
                        file: id,
                        index: base + index,
                    };
                    self.policy.cold(block, heat, at)
                })
                .collect();
            if cold.is_empty() {
                continue;
            }
            let wanted = found::pages_of(&cold, 0);
            let Some((window, nodes)) = self.look(&file, first, &wanted) else {
                continue;
            };
            self.stats.disk_reads += self.machine.disk_reads(&window);
            let pages = found::on(&nodes, route.to);
            let folios = self.machine.folios(&window, &pages);
            let needed: u64 = folios.iter().map(|folio| folio.pages).sum();
            if needed == 0 {
                continue;
            }
            if needed >= WORTH_IT {
                self.cold.worth_it();
            }
            if needed > self.policy.rate.room(at) || needed > self.room(route.from, at) {
                break;
            }
            let moved = self.migrate(&window, &folios, route.from)?;
            let pages = sum_where(&folios, &moved);
            demoted += pages;
            self.stats.pgdemote_proactive += pages;
            for index in cold {
                let block = Block {
                    file: id,
                    index: base + index,
                };
                self.policy.demoted(block, self.now());
            }
        }
        for room in self.room.values_mut() {
            room.forget();
        }
        Ok(())
    }
}
