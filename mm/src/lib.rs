//! Units of memory: pages, ranges, masks of pages. Pure; no kernel calls.
//!
//! It uses nothing, and everything uses it. It may not make a system call, allocate, or know where memory
//! comes from: all of it is numbers.
#![deny(unsafe_code)]

mod entry;
mod mask;
mod place;
pub use entry::{DeviceId, Extent, Extents, SwapEntry, MAX_SLOTS, MAX_SWAPFILES, SWAPFILE_CLUSTER};
pub use mask::PageMask;
pub use place::{SlotWord, SwapPlace};

/// Bytes of a base page.
pub const PAGE_SIZE: usize = 4096;
/// The bytes of one.
pub type Page = [u8; PAGE_SIZE];
/// Order of a PMD-sized folio: 2 MiB is `1 << 9` base pages.
pub const PMD_ORDER: u8 = 9;
/// Base pages in a PMD-sized folio.
pub const PMD_NR: usize = 1 << PMD_ORDER;
/// Bytes of a PMD-sized folio.
pub const PMD_SIZE: usize = PAGE_SIZE << PMD_ORDER;

/// A 2 MiB-aligned range of the program's addresses, by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Pmd(pub u32);

impl Pmd {
    /// The range that holds `addr`.
    #[inline]
    pub fn of(addr: usize) -> Pmd {
        Pmd((addr / PMD_SIZE) as u32)
    }
    /// Its first address.
    #[inline]
    pub fn addr(self) -> usize {
        self.0 as usize * PMD_SIZE
    }
    /// Address of its page `page`.
    #[inline]
    pub fn page_addr(self, page: usize) -> usize {
        self.addr() + page * PAGE_SIZE
    }
}

/// Number of the page of `addr` within its 2 MiB range.
#[inline]
pub fn page_in_pmd(addr: usize) -> usize {
    addr % PMD_SIZE / PAGE_SIZE
}

/// The parts of `[addr, addr + len)` by 2 MiB range: the range and which pages of it.
/// Bounds that are not page-aligned are widened to whole pages.
pub fn split_by_pmd(
    addr: usize,
    len: usize,
) -> impl Iterator<Item = (Pmd, core::ops::Range<usize>)> {
    let start = addr / PAGE_SIZE;
    let end = (addr + len).div_ceil(PAGE_SIZE);
    let mut at = start;
    core::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let pmd = at / PMD_NR;
        let stop = end.min((pmd + 1) * PMD_NR);
        let part = (Pmd(pmd as u32), at - pmd * PMD_NR..stop - pmd * PMD_NR);
        at = stop;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_at_range_borders() {
        let parts: Vec<_> = split_by_pmd(PMD_SIZE - PAGE_SIZE, 2 * PAGE_SIZE + PMD_SIZE).collect();
        assert_eq!(
            parts,
            vec![(Pmd(0), 511..512), (Pmd(1), 0..512), (Pmd(2), 0..1)]
        );
        assert_eq!(split_by_pmd(0, 0).count(), 0);
    }
}
