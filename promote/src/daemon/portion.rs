//! What part of the folios that were found is moved now, and what that means for their blocks.

use crate::page::BLOCK_PAGES;
use crate::place::Folio;
use crate::policy::Outcome;

/// Why not all of them are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Nothing,
    /// So many pages wait for the rate limit.
    Limited(u64),
    /// The fast node can't take them.
    NoRoom,
}

/// In order, as many as may be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Portion {
    pub folios: usize,
    pub pages: u64,
    pub rest: Rest,
}

impl Portion {
    /// Of so many pages that the rate limit allows and that the fast node has room for.
    pub fn of(folios: &[Folio], rate: u64, room: u64) -> Portion {
        let (mut pages, mut taken) = (0, 0);
        for folio in folios {
            if pages + folio.pages > rate.min(room) {
                break;
            }
            pages += folio.pages;
            taken += 1;
        }
        let left: u64 = folios[taken..].iter().map(|folio| folio.pages).sum();
        let rest = match left {
            0 => Rest::Nothing,
            left if rate < room => Rest::Limited(left),
            _ => Rest::NoRoom,
        };
        Portion {
            folios: taken,
            pages,
            rest,
        }
    }

    /// What became of the blocks of a window: `slow` are its pages that were wanted, in order,
    /// `folios` what they are of, and `moved` says it of those that were tried.
    pub fn tell(self, slow: &[usize], folios: &[Folio], moved: &[bool], blocks: &mut [Outcome]) {
        let mut folio = 0;
        for &page in slow {
            while folio + 1 < folios.len() && folios[folio + 1].page <= page {
                folio += 1;
            }
            let outcome = &mut blocks[page / BLOCK_PAGES as usize];
            outcome.slow += 1;
            match (moved.get(folio), self.rest) {
                (Some(true), _) => outcome.moved += 1,
                (None, Rest::Limited(_)) => outcome.left += 1,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = u64::MAX;

    fn folios(sizes: &[(usize, u64)]) -> Vec<Folio> {
        let folio = |&(page, pages)| Folio { page, pages };
        sizes.iter().map(folio).collect()
    }

    fn portion(folios: usize, pages: u64, rest: Rest) -> Portion {
        Portion {
            folios,
            pages,
            rest,
        }
    }

    #[test]
    fn whole_folios_are_taken_in_order() {
        let found = folios(&[(0, 16), (16, 64), (96, 1)]);
        let of = |rate, room| Portion::of(&found, rate, room);
        assert_eq!(of(ALL, ALL), portion(3, 81, Rest::Nothing));
        assert_eq!(of(81, 81), portion(3, 81, Rest::Nothing));
        assert_eq!(of(80, ALL), portion(2, 80, Rest::Limited(1)));
        // Not the small one behind a large one that does not fit: it is in order.
        assert_eq!(of(79, ALL), portion(1, 16, Rest::Limited(65)));
        assert_eq!(of(0, ALL), portion(0, 0, Rest::Limited(81)));
        assert_eq!(of(ALL, 79), portion(1, 16, Rest::NoRoom));
        assert_eq!(of(ALL, 0), portion(0, 0, Rest::NoRoom));
        // Who waits would find no room either.
        assert_eq!(of(20, 20), portion(1, 16, Rest::NoRoom));
        assert_eq!(Portion::of(&[], 0, 0), portion(0, 0, Rest::Nothing));
    }

    fn told(portion: Portion, moved: &[bool]) -> Vec<[u64; 3]> {
        // A folio of two blocks, one of a page, one that begins before what is wanted of it.
        let found = folios(&[(0, 32), (32, 1), (48, 32)]);
        let slow: Vec<usize> = (0..33).chain(64..80).collect();
        let mut blocks = vec![Outcome::default(); 5];
        portion.tell(&slow, &found, moved, &mut blocks);
        blocks
            .iter()
            .inspect(|block| assert_eq!(block.fast, 0))
            .map(|block| [block.slow, block.moved, block.left])
            .collect()
    }

    #[test]
    fn each_block_learns_what_became_of_it() {
        let all = portion(3, 65, Rest::Nothing);
        let (none, moved) = ([0, 0, 0], [16, 16, 0]);
        assert_eq!(
            told(all, &[true, true, true]),
            [moved, moved, [1, 1, 0], none, moved]
        );
        // One that is busy stays and is not left over: it rests for a while.
        assert_eq!(
            told(all, &[true, false, true]),
            [moved, moved, [1, 0, 0], none, moved]
        );
        let limited = portion(1, 32, Rest::Limited(33));
        assert_eq!(
            told(limited, &[true]),
            [moved, moved, [1, 0, 1], none, [16, 0, 16]]
        );
        // Without room there is nothing to wait for.
        let full = portion(0, 0, Rest::NoRoom);
        let stays = [16, 0, 0];
        assert_eq!(told(full, &[]), [stays, stays, [1, 0, 0], none, stays]);
    }
}
