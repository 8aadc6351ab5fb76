//! Names of places in swap.

use super::PMD_SIZE;
use core::num::NonZeroU64;

/// The place of one 2 MiB range in swap: a device and a cluster of 512 slots on it. The page `i`
/// of the range has the cluster's slot `i`. All-zero bytes are the `None` of `Option<SwapPlace>`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwapPlace(NonZeroU64);

impl SwapPlace {
    pub fn new(device: usize, cluster: usize) -> SwapPlace {
        // The low half is never zero, so neither is the whole.
        SwapPlace(NonZeroU64::MIN.saturating_add((device as u64) << 32 | cluster as u64))
    }
    pub fn device(self) -> usize {
        ((self.0.get() - 1) >> 32) as usize
    }
    pub fn cluster(self) -> usize {
        (self.0.get() - 1) as u32 as usize
    }
    /// Byte offset of the cluster on its device.
    pub fn offset(self) -> u64 {
        self.cluster() as u64 * PMD_SIZE as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        for (d, c) in [(0, 0), (0, u32::MAX as usize), (7, 5)] {
            let e = SwapPlace::new(d, c);
            assert_eq!((e.device(), e.cluster()), (d, c));
        }
        assert_eq!(size_of::<Option<SwapPlace>>(), 8);
    }
}
