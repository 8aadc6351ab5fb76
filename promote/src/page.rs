//! What is counted and named: pages, blocks, files, times.

use std::time::Duration;

use serde::Serialize;

/// Bytes of a page, x86-64.
pub const PAGE: u64 = 4096;

/// Pages of a block, the unit in which accesses are remembered: 64 KiB. Finer
/// costs memory, coarser promotes cold neighbours of what is hot.
pub const BLOCK_PAGES: u64 = 16;

/// Blocks that are looked at and moved together at most: 2 MiB.
pub const BATCH_BLOCKS: u64 = 32;

/// A file, as the kernel's events name it: the device of its superblock (which
/// is not what `stat` says on btrfs) and its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct FileId {
    /// As the kernel keeps it: major << 20 | minor.
    pub dev: u32,
    pub ino: u64,
}

/// A block of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    pub file: FileId,
    pub index: u64,
}

/// Microseconds from a start that nobody needs to know: of the daemon's clock,
/// or of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time(pub u64);

impl Time {
    pub fn after(self, span: Duration) -> Time {
        Time(self.0.saturating_add(span.as_micros() as u64))
    }

    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// The kernel's encoding of a device number from the one that `stat` gives.
pub fn kernel_dev(st_dev: u64) -> u32 {
    (libc::major(st_dev) << 20) | (libc::minor(st_dev) & 0xf_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_the_kernels() {
        assert_eq!(kernel_dev(libc::makedev(8, 1)), (8 << 20) | 1);
        assert_eq!(kernel_dev(libc::makedev(259, 70_000)), (259 << 20) | 70_000);
    }
}
