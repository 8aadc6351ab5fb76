//! What is known of one cluster.
//!
//! Three bits tell the state of a slot; nothing else may set them:
//!
//! ```text
//!  used held lent
//!   0    0    0   free
//!   1    1    0   has a user
//!   1    1    1   has a user, and others may read it: it was lent at a fork
//!   1    0    1   freed, but lent
//!   1    0    0   the device failed on it: never handed out
//! ```
//! A slot that was lent stays taken when its user goes, until the loan ends. Lending marks no slot. It
//! counts the table's `lends` up, and a cluster that is behind (`lends`) marks what it holds when it is
//! next looked at.

use super::bitmap::Bitmap;
use super::memory::Zeroed;
use hugeswap_mm::{PMD_ORDER, SWAPFILE_CLUSTER};

/// Bookkeeping of 512 slots, protected by the lock of its device. All zero is a cluster that is not ours.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct ClusterInfo {
    /// Ours to use. All else stands here only as long as it is.
    pub online: bool,
    /// Which list it is linked on; follows from `online` and `top`.
    pub list: u8,
    /// One more than the order of the largest free block; 0 when there is none.
    pub top: u8,
    /// Slots that have a user or are lent.
    pub count: u16,
    /// Slots that are never handed out.
    pub bad: u16,
    /// How many of the table's lends are marked in `lent`.
    pub lends: u32,
    /// Neighbours on the list: index + 1, or 0.
    pub next: u32,
    pub prev: u32,
    pub used: Bitmap,
    pub held: Bitmap,
    pub lent: Bitmap,
}

#[allow(unsafe_code)]
// SAFETY: integers, arrays of integers, and a bool whose zero is `false`; nothing to drop; an alignment
// of 64 is below a page.
unsafe impl Zeroed for ClusterInfo {}

/// `top` of a cluster with every slot free.
pub const TOP_EMPTY: u8 = PMD_ORDER + 1;

impl ClusterInfo {
    /// Whether every slot is free.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0 && self.bad == 0
    }

    /// Slots that were freed while they were lent.
    #[inline]
    pub fn put_off(&self) -> Bitmap {
        self.lent.zip(&self.held, |lent, held| lent & !held)
    }

    /// Slots that have a user or are lent.
    #[inline]
    pub fn taken(&self) -> Bitmap {
        self.held.zip(&self.lent, |held, lent| held | lent)
    }

    /// The longest run of free slots: its start and length.
    #[inline]
    pub fn longest_free_run(&self) -> (usize, usize) {
        if self.top == TOP_EMPTY {
            return (0, SWAPFILE_CLUSTER);
        }
        let free = self.used.zip(&Bitmap::EMPTY, |used, _| !used);
        free.longest_run()
    }

    #[inline]
    pub fn recompute_top(&mut self) {
        self.top = self.used.largest_block().map_or(0, |order| order + 1);
    }
}
