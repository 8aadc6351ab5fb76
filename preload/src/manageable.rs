//! Which of the program's memory can be managed.

use crate::arch::MAP_SPECIAL;
use hugeswap::mm::PAGE_SIZE;

/// One past the addresses that can be managed.
pub const TOP: usize = 1 << 47;

pub const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// The mapping is private anonymous memory of the ordinary kind, which can be managed.
pub fn is_ordinary(prot: i32, flags: i32) -> bool {
    const SPECIAL: i32 =
        libc::MAP_STACK | libc::MAP_GROWSDOWN | libc::MAP_HUGETLB | libc::MAP_LOCKED | MAP_SPECIAL;
    flags & libc::MAP_TYPE == libc::MAP_PRIVATE
        && flags & libc::MAP_ANONYMOUS != 0
        && flags & SPECIAL == 0
        && prot & libc::PROT_EXEC == 0
}

/// Whether there are tables for these addresses. With five levels of page tables the kernel has more of
/// them, and gives them to programs that hint at them.
pub fn can_be_managed(at: usize, len: usize) -> bool {
    at.checked_add(len).is_some_and(|end| end <= TOP)
}

/// Of a protection, what the kernel looks at: not PROT_SEM, nor what has no meaning.
pub const PROT: i32 = RW | libc::PROT_EXEC;
/// Of code.
pub const RX: i32 = libc::PROT_READ | libc::PROT_EXEC;

/// Whether the engine may move pages of this protection.
pub fn is_writable(prot: i32) -> bool {
    prot & PROT == RW
}

/// Whole pages; None for none, or too many.
pub fn pages(len: usize) -> Option<usize> {
    (len != 0)
        .then(|| len.checked_next_multiple_of(PAGE_SIZE))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeswap::mm::PMD_SIZE;

    #[test]
    fn addresses_beyond_47_bits_are_left_alone() {
        assert!(can_be_managed(TOP - PMD_SIZE, PMD_SIZE));
        assert!(!can_be_managed(TOP - PMD_SIZE, 2 * PMD_SIZE));
        assert!(!can_be_managed(1 << 50, PMD_SIZE) && !can_be_managed(usize::MAX, 2));
    }
}
