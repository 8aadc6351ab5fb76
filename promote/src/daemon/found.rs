//! What is asked of a window of a file, and what the answer means: which of its pages are to be moved from where.

use std::ops::Range;

use crate::page::BLOCK_PAGES;
use crate::policy::Outcome;
use crate::tiers::Route;

/// The pages of blocks, for a window that begins with the block `start`.
pub(super) fn pages_of(blocks: &[u64], start: u64) -> Vec<Range<usize>> {
    let pages = |block: &u64| {
        let page = ((block - start) * BLOCK_PAGES) as usize;
        page..page + BLOCK_PAGES as usize
    };
    blocks.iter().map(pages).collect()
}

/// Pages of a window that were found in the cache, by where they are.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Found {
    /// So many are where nothing is promoted from.
    pub fast: u64,
    /// Of each route, in its order, the pages at its slow end; none is without pages.
    pub slow: Vec<(Route, Vec<usize>)>,
}

impl Found {
    /// `nodes`: each page that was found, in order, and its node. Blocks learn which of their pages are fast.
    pub fn sort(nodes: &[(usize, u32)], routes: &[Route], blocks: &mut [Outcome]) -> Found {
        let mut found = Found::default();
        for &(page, node) in nodes {
            if routes.iter().all(|route| route.from != node) {
                blocks[page / BLOCK_PAGES as usize].fast += 1;
                found.fast += 1;
            }
        }
        for &route in routes {
            let pages = on(nodes, route.from);
            if !pages.is_empty() {
                found.slow.push((route, pages));
            }
        }
        found
    }
}

/// The pages on a node.
pub(super) fn on(nodes: &[(usize, u32)], node: u32) -> Vec<usize> {
    let there = nodes.iter().filter(|&&(_, at)| at == node);
    there.map(|&(page, _)| page).collect()
}

/// Where a file's pages go: to the fast node near its readers, where that has room for them.
pub(super) fn near(
    route: Route,
    near: Option<u32>,
    pages: u64,
    room: impl FnOnce(u32) -> u64,
) -> Route {
    match near.filter(|&to| to != route.from) {
        Some(to) if room(to) >= pages => Route { to, ..route },
        _ => route,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = BLOCK_PAGES as usize;

    fn route(from: u32, to: u32) -> Route {
        Route { from, to }
    }

    #[test]
    fn blocks_are_asked_for_within_their_window() {
        assert_eq!(
            pages_of(&[64, 65, 95], 64),
            [0..BLOCK, BLOCK..2 * BLOCK, 31 * BLOCK..32 * BLOCK]
        );
        assert!(pages_of(&[], 64).is_empty());
    }

    #[test]
    fn pages_are_sorted_by_where_they_are() {
        // Two slow nodes, and two that are none.
        let routes = [route(2, 0), route(3, 1)];
        let nodes = [(0, 0), (1, 2), (16, 3), (17, 2), (18, 1), (40, 2)];
        let mut blocks = vec![Outcome::default(); 4];
        let found = Found::sort(&nodes, &routes, &mut blocks);
        assert_eq!(found.fast, 2);
        assert_eq!(
            found.slow,
            [(routes[0], vec![1, 17, 40]), (routes[1], vec![16])]
        );
        let fast: Vec<_> = blocks.iter().map(|block| block.fast).collect();
        assert_eq!(fast, [1, 1, 0, 0]);
        assert!(blocks
            .iter()
            .all(|block| (block.slow, block.moved, block.left) == (0, 0, 0)));
    }

    #[test]
    fn what_is_fast_already_has_no_way() {
        let mut blocks = vec![Outcome::default(); 2];
        let found = Found::sort(&[(0, 0), (1, 0)], &[route(1, 0)], &mut blocks);
        assert_eq!((found.fast, found.slow.len()), (2, 0));
        assert_eq!(
            Found::sort(&[], &[route(1, 0)], &mut blocks),
            Found::default()
        );
        assert_eq!(on(&[(4, 1), (5, 0), (6, 1)], 1), [4, 6]);
    }

    #[test]
    fn pages_go_near_their_readers_where_there_is_room() {
        let usual = route(2, 0);
        assert_eq!(near(usual, Some(1), 5, |_| 5), route(2, 1));
        assert_eq!(near(usual, Some(1), 5, |_| 4), usual);
        assert_eq!(near(usual, None, 5, |_| 9), usual);
        // Readers on the slow node itself.
        assert_eq!(near(usual, Some(2), 5, |_| 9), usual);
    }
}
