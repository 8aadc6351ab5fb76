//! The lists of a shard: linked through the cluster table by index.

use super::cluster::{ClusterInfo, ClusterState};
use hugeswap_mm::{PMD_ORDER, SWAP_NR_ORDERS};

/// Which allocator decides where a folio goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// Best fit by the largest free block; a folio without a contiguous place
    /// is spread over several extents.
    #[default]
    HugeSwap,
    /// The plain allocator of Linux 6.12, for comparison: scans clusters, and
    /// gives up on a folio for which it finds no aligned run.
    Linux612,
}

const NONE: u8 = 0;
pub const FREE: u8 = 1;
pub const DISCARD: u8 = 2;
pub const FULL: u8 = 3;
const PARTIAL: u8 = 4;
/// Orders a partly used cluster's largest free block can have: 0 to 8.
pub const TOPS: usize = PMD_ORDER as usize;
const NR_LISTS: usize = PARTIAL as usize + SWAP_NR_ORDERS * TOPS;

/// The list of clusters of `order` whose largest free block is `1 << top`:
/// part of `nonfull[order]` if `top >= order`, of `frag[order]` otherwise.
#[inline]
pub fn partial(order: u8, top: u8) -> u8 {
    PARTIAL + order * TOPS as u8 + top
}

/// `nonfull[order]` of [`Algorithm::Linux612`], which knows no largest block.
#[inline]
pub fn linux_nonfull(order: u8) -> u8 {
    PARTIAL + order
}

/// `frag[order]` of [`Algorithm::Linux612`].
#[inline]
pub fn linux_frag(order: u8) -> u8 {
    PARTIAL + SWAP_NR_ORDERS as u8 + order
}

/// The one list a cluster belongs on.
#[inline]
pub fn list_of(algorithm: Algorithm, ci: &ClusterInfo) -> u8 {
    match (ci.state, algorithm) {
        (ClusterState::Untouched | ClusterState::Discarding, _) => NONE,
        (ClusterState::Free, _) => FREE,
        (ClusterState::Discard, _) => DISCARD,
        (ClusterState::Full, _) => FULL,
        (ClusterState::Nonfull, Algorithm::Linux612) => linux_nonfull(ci.order),
        (ClusterState::Frag, Algorithm::Linux612) => linux_frag(ci.order),
        // A partly used cluster has a top of 1 to 9.
        (ClusterState::Nonfull | ClusterState::Frag, Algorithm::HugeSwap) => {
            partial(ci.order, ci.top.saturating_sub(1).min(TOPS as u8 - 1))
        }
    }
}

/// Ends of a list: index + 1, or 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListHead {
    head: u32,
    tail: u32,
    nr: u32,
}

/// Every list of one shard.
#[derive(Debug)]
pub struct Lists {
    heads: [ListHead; NR_LISTS],
    /// For each order a bit for each top whose list is not empty.
    tops: [u16; SWAP_NR_ORDERS],
}

/// Which end of a list a cluster is put at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    Head,
    Tail,
}

impl Lists {
    pub fn new() -> Self {
        Lists {
            heads: [ListHead::default(); NR_LISTS],
            tops: [0; SWAP_NR_ORDERS],
        }
    }

    #[inline]
    pub fn head(&self, list: u8) -> Option<u32> {
        self.heads[list as usize].head.checked_sub(1)
    }

    #[inline]
    pub fn nr(&self, list: u8) -> u32 {
        self.heads[list as usize].nr
    }

    /// Tops to be had among clusters of `order`, one bit each.
    #[inline]
    pub fn tops_of(&self, order: u8) -> u16 {
        self.tops[order as usize]
    }

    /// Tops to be had among all partly used clusters.
    #[inline]
    pub fn tops(&self) -> u16 {
        self.tops.iter().fold(0, |all, tops| all | tops)
    }

    #[inline]
    fn note_top(&mut self, list: u8) {
        if let Some(i) = list.checked_sub(PARTIAL) {
            let (order, top) = (i as usize / TOPS, i as usize % TOPS);
            let bit = 1 << top;
            if self.heads[list as usize].nr == 0 {
                self.tops[order] &= !bit;
            } else {
                self.tops[order] |= bit;
            }
        }
    }

    /// Takes a cluster off its list, if it is on one.
    #[inline]
    pub fn unlink(&mut self, clusters: &mut [ClusterInfo], idx: u32) {
        let ci = &mut clusters[idx as usize];
        let (list, next, prev) = (ci.list, ci.next, ci.prev);
        if list == NONE {
            return;
        }
        (ci.list, ci.next, ci.prev) = (NONE, 0, 0);
        let head = &mut self.heads[list as usize];
        head.nr -= 1;
        match prev {
            0 => head.head = next,
            p => clusters[p as usize - 1].next = next,
        }
        match next {
            0 => head.tail = prev,
            n => clusters[n as usize - 1].prev = prev,
        }
        self.note_top(list);
    }

    /// Puts a cluster that is on no list where its state says.
    #[inline]
    pub fn link(&mut self, clusters: &mut [ClusterInfo], idx: u32, algorithm: Algorithm, end: End) {
        let list = list_of(algorithm, &clusters[idx as usize]);
        if list == NONE {
            return;
        }
        let head = &mut self.heads[list as usize];
        head.nr += 1;
        let (next, prev) = match end {
            End::Head => (head.head, 0),
            End::Tail => (0, head.tail),
        };
        match next {
            0 => head.tail = idx + 1,
            n => clusters[n as usize - 1].prev = idx + 1,
        }
        match prev {
            0 => head.head = idx + 1,
            p => clusters[p as usize - 1].next = idx + 1,
        }
        let ci = &mut clusters[idx as usize];
        (ci.list, ci.next, ci.prev) = (list, next, prev);
        self.note_top(list);
    }

    /// Moves a cluster to the list its state says, if that is another.
    #[inline]
    pub fn relink(
        &mut self,
        clusters: &mut [ClusterInfo],
        idx: u32,
        algorithm: Algorithm,
        end: End,
    ) {
        let ci = &clusters[idx as usize];
        if ci.list != list_of(algorithm, ci) {
            self.unlink(clusters, idx);
            self.link(clusters, idx, algorithm, end);
        }
    }

    /// Walks every list; `seen` learns each cluster. An error says what is broken.
    pub fn validate(
        &self,
        clusters: &[ClusterInfo],
        mut seen: impl FnMut(u32),
    ) -> Result<(), &'static str> {
        for (id, head) in self.heads.iter().enumerate() {
            let (mut at, mut prev, mut nr) = (head.head, 0, 0);
            while at != 0 {
                let ci = clusters
                    .get(at as usize - 1)
                    .ok_or("link leads past the table")?;
                if usize::from(ci.list) != id {
                    return Err("cluster is on a list it does not name");
                }
                if ci.prev != prev {
                    return Err("back link does not match");
                }
                nr += 1;
                if nr > head.nr {
                    return Err("list is longer than its count");
                }
                seen(at - 1);
                prev = at;
                at = ci.next;
            }
            if nr != head.nr || head.tail != prev {
                return Err("list is shorter than its count, or its tail is wrong");
            }
            if let Some(i) = id.checked_sub(PARTIAL as usize) {
                let bit = self.tops[i / TOPS] >> (i % TOPS) & 1;
                if (bit == 1) != (nr > 0) {
                    return Err("bit of the tops does not match its list");
                }
            }
        }
        Ok(())
    }
}
