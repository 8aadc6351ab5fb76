//! What is known of one cluster, and which list it is on.
//!
//! Three bits tell the state of a slot; nothing else may set them:
//!
//! ```text
//!  used held cached
//!   0    0    0     free
//!   1    1    0     has users
//!   1    1    1     has users, and a folio in the swap cache
//!   1    0    1     only the swap cache has it: the adaptive reclaim's prey; or freed, but lent
//!   1    0    0     bad, the header, or past the end: never handed out
//! ```
//! A slot that was lent to a forked process counts as cached until the loan ends: nobody may write
//! it, and it stays taken when its user goes. Lending marks no slot. It counts the shard's `lends`
//! up, and a cluster that is behind (`lends`) marks what it holds when it is next looked at.
//!
//! The users beyond the first, and the mark "bad once it is free", are in the
//! slot's word of `swap_map` (see [`Shard`](super::shard::Shard)), which is not
//! even looked at while the cluster's `marked` is zero.

use super::bitmap::Bitmap;
use super::memory::Zeroed;
use hugeswap_mm::SWAPFILE_CLUSTER;

/// Where a cluster is. One enumeration for all of it, and each state with a
/// list names exactly one, so that no two can be taken for each other; zero,
/// which fresh memory reads as, is a state of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum ClusterState {
    /// Never used since the device was added; all zero, on no list. On a device in segments: not
    /// ours to use.
    #[default]
    Untouched = 0,
    /// Every slot free, on the free list.
    Free = 1,
    /// Every slot free, waits on the discard list to be discarded.
    Discard = 2,
    /// Every slot free, its discard is under way; on no list.
    Discarding = 3,
    /// Has room for a folio of its own order, on `nonfull[order]`.
    Nonfull = 4,
    /// Has room, but (6.12: perhaps) not for its own order, on `frag[order]`.
    Frag = 5,
    /// No free slot, on the full list.
    Full = 6,
}

/// Bookkeeping of 512 slots, protected by the lock of its shard.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct ClusterInfo {
    pub state: ClusterState,
    /// The order of the first folio put in since it was empty.
    pub order: u8,
    /// Id of the list it is linked on; follows from state, order and top.
    pub list: u8,
    /// One more than the order of the largest free block; 0 when there is none.
    pub top: u8,
    /// Slots that have users or are cached.
    pub count: u16,
    /// Slots that are never handed out.
    pub bad: u16,
    /// Slots whose word in `swap_map` is not zero.
    pub marked: u16,
    /// Where the last folio was put.
    pub cursor: u16,
    /// How many of the shard's lends are marked in `cached`.
    pub lends: u32,
    /// Neighbours on the list: index + 1, or 0.
    pub next: u32,
    pub prev: u32,
    pub used: Bitmap,
    pub held: Bitmap,
    pub cached: Bitmap,
}

#[allow(unsafe_code)]
// SAFETY: integers, arrays of integers, and an enumeration whose zero is
// `Untouched`; nothing to drop; an alignment of 64 is below a page.
unsafe impl Zeroed for ClusterInfo {}

/// `top` of a cluster with every slot free.
pub const TOP_EMPTY: u8 = hugeswap_mm::PMD_ORDER + 1;

impl ClusterInfo {
    /// Whether every slot is free.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0 && self.bad == 0
    }

    /// Slots that may be handed out now.
    #[inline]
    pub fn free_slots(&self) -> usize {
        SWAPFILE_CLUSTER - usize::from(self.count) - usize::from(self.bad)
    }

    /// Slots only the swap cache has.
    #[inline]
    pub fn cache_only(&self) -> Bitmap {
        self.cached.zip(&self.held, |cached, held| cached & !held)
    }

    /// Slots that are never handed out.
    pub fn bad_slots(&self) -> Bitmap {
        let taken = self.held.zip(&self.cached, |held, cached| held | cached);
        self.used.zip(&taken, |used, taken| used & !taken)
    }

    #[inline]
    pub fn recompute_top(&mut self) {
        self.top = self.used.largest_block().map_or(0, |order| order + 1);
    }
}
