//! Whether the kernel or the engine copies a folio that is shared since a fork, when one of its
//! sharers writes to it.
//!
//! The kernel takes the huge page apart and copies 4 KiB for each page that is written. A program that writes page
//! after page pays 512 faults for a folio; so once that is seen its folios are copied whole, the target page last
//! (reference 004), and those that come next before they are written to. A program that jumps keeps the kernel's
//! way, which copies the needed pages and nothing else.

use hugeswap_mm::{Pmd, PMD_NR};

/// Walks that are remembered.
const WALKS: usize = 4;
/// Folios that are copied ahead of their first write, at most.
const AHEAD_MAX: usize = 8;
/// Of a folio that a walk has left so many pages are copied.
const WALKED: usize = PMD_NR * 3 / 4;
/// Folios in a row that nobody else has any more, before it is taken for settled that all are.
const ALONE: usize = 3;
/// Writes that go on with nothing, before it is taken for settled that this process jumps.
const JUMPS_MAX: usize = 16;

/// What is to be done about the first write to a folio that is shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Write {
    /// No other process has this one any more: there is nothing to copy.
    Own,
    /// The kernel copies the pages of this one as they are written.
    ByPage,
    /// So many folios are copied whole, from this one on, in that direction.
    Whole { step: i32, folios: usize },
    /// It is the kernel's, and there is no need to be told of others.
    Stop,
}

#[derive(Clone, Copy, Debug)]
struct Walk {
    /// The last folio that was given away: to the kernel, or to be copied whole.
    at: Pmd,
    /// Its direction; 0 as long as only one folio was seen.
    step: i32,
    /// Copied whole.
    folios: usize,
}

impl Walk {
    /// The step by which it would come there.
    fn step_to(&self, pmd: Pmd) -> Option<i32> {
        let step = pmd.0 as i64 - self.at.0 as i64;
        let goes_on = match self.step {
            0 => step.abs() == 1,
            known => step == known as i64,
        };
        goes_on.then_some(step as i32)
    }
}

/// What is remembered of the writes since a fork.
#[derive(Debug, Default)]
pub struct SharedWrites {
    walks: [Option<Walk>; WALKS],
    next: usize,
    alone: usize,
    jumps: usize,
    whole: usize,
}

impl SharedWrites {
    /// The first write to a folio. `alone`: nobody else has it any more. `copied`: how many pages of that range are the process's own by now. `shared`:
    /// whether that range is a folio that can be copied as a whole.
    pub fn write(
        &mut self,
        pmd: Pmd,
        alone: bool,
        copied: impl Fn(Pmd) -> usize,
        shared: impl Fn(Pmd) -> bool,
    ) -> Write {
        self.alone = if alone { self.alone + 1 } else { 0 };
        match self.alone {
            0 => {}
            1..ALONE => return Write::Own,
            _ => return Write::Stop,
        }
        for walk in self.walks.iter_mut().flatten() {
            let Some(step) = walk.step_to(pmd) else {
                continue;
            };
            // One write in each folio looks like a walk too, but leaves the rest of it alone.
            if walk.step == 0 && copied(walk.at) < WALKED {
                continue;
            }
            let ahead = walk.folios.clamp(1, AHEAD_MAX);
            let nth = |k: usize| pmd.0.checked_add_signed(step * k as i32).map(Pmd);
            let folios = 1
                + (1..ahead)
                    .take_while(|&k| nth(k).is_some_and(&shared))
                    .count();
            walk.at = nth(folios - 1).unwrap_or(pmd);
            walk.step = step;
            walk.folios += folios;
            self.whole += folios;
            return Write::Whole { step, folios };
        }
        self.jumps += 1;
        if self.jumps > JUMPS_MAX + self.whole {
            return Write::Stop;
        }
        self.walks[self.next % WALKS] = Some(Walk {
            at: pmd,
            step: 0,
            folios: 0,
        });
        self.next += 1;
        Write::ByPage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dense(_: Pmd) -> usize {
        PMD_NR
    }

    /// What comes of writes to these folios; those that were copied ahead are not told.
    fn go(at: impl Iterator<Item = u32>, copied: impl Fn(Pmd) -> usize) -> Vec<(u32, Write)> {
        let mut writes = SharedWrites::default();
        let mut done = std::collections::BTreeSet::new();
        let mut out = Vec::new();
        for n in at {
            if done.contains(&n) {
                continue;
            }
            let w = writes.write(Pmd(n), false, &copied, |p| {
                p.0 < 1000 && !done.contains(&p.0)
            });
            if let Write::Whole { step, folios } = w {
                done.extend((0..folios as i32).map(|k| n.wrapping_add_signed(step * k)));
            }
            out.push((n, w));
        }
        out
    }

    #[test]
    fn a_walk_is_seen_at_its_second_folio() {
        let step = 1;
        let said = go(100..140, dense);
        let whole = |folios| Write::Whole { step, folios };
        assert_eq!(
            said[..5],
            [
                (100, Write::ByPage),
                (101, whole(1)),
                (102, whole(1)),
                (103, whole(2)),
                (105, whole(4)),
            ]
        );
        assert!(said[5..].iter().all(|(_, w)| *w == whole(8)), "{said:?}");
    }

    #[test]
    fn it_goes_downwards_too_and_ends_where_nothing_is_shared() {
        let said = go((0..40).rev(), dense);
        assert_eq!(said[0], (39, Write::ByPage));
        assert_eq!(
            said[1].1,
            Write::Whole {
                step: -1,
                folios: 1
            }
        );
        let all: usize = said.iter().map(|(_, w)| folios(*w)).sum();
        assert_eq!(all, 39);
        let said = go(990..1010, dense);
        assert!(said
            .iter()
            .all(|(n, w)| n + folios(*w) as u32 <= 1001 || folios(*w) == 1));
    }

    fn folios(w: Write) -> usize {
        match w {
            Write::Whole { folios, .. } => folios,
            Write::Own | Write::ByPage | Write::Stop => 0,
        }
    }

    #[test]
    fn who_is_alone_need_not_say_so_for_each() {
        let mut writes = SharedWrites::default();
        let mut say = |n, alone| writes.write(Pmd(n), alone, dense, |_| true);
        assert_eq!(say(0, true), Write::Own);
        assert_eq!(say(1, true), Write::Own);
        assert_eq!(say(2, false), Write::ByPage);
        assert_eq!(say(3, true), Write::Own);
        assert_eq!(say(4, true), Write::Own);
        assert_eq!(say(5, true), Write::Stop);
    }

    #[test]
    fn one_write_in_each_folio_is_no_walk() {
        let said = go(0..12, |_| 1);
        assert!(said.iter().all(|(_, w)| *w == Write::ByPage), "{said:?}");
    }

    #[test]
    fn who_jumps_is_left_alone() {
        let said = go((0..100).map(|k| k * 37 % 997), dense);
        assert_eq!(said[JUMPS_MAX].1, Write::Stop);
        assert!(said[..JUMPS_MAX].iter().all(|(_, w)| *w == Write::ByPage));
    }

    #[test]
    fn several_walk_side_by_side() {
        let said = go((0..60).map(|k| k / 3 + k % 3 * 100), dense);
        let by_page = said.iter().filter(|(_, w)| *w == Write::ByPage).count();
        assert_eq!(by_page, 3, "{said:?}");
    }
}
