//! Units of memory: pages, folios and their orders. Pure; no kernel calls.

/// Bytes of a base page.
pub const PAGE_SIZE: usize = 4096;
/// Order of a PMD-sized folio: 2 MiB is `1 << 9` base pages.
pub const PMD_ORDER: u8 = 9;
/// Base pages in a PMD-sized folio.
pub const PMD_NR: usize = 1 << PMD_ORDER;
/// Bytes of a PMD-sized folio.
pub const PMD_SIZE: usize = PAGE_SIZE << PMD_ORDER;

mod entry;
pub use entry::{
    DeviceId, Extent, Extents, Order, SwapEntry, MAX_SLOTS, MAX_SWAPFILES, SWAPFILE_CLUSTER,
    SWAP_NR_ORDERS,
};
