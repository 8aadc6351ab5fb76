//! Who hands out slots in the tests of allocators.

use super::linux612::Linux612;
use hugeswap_mm::{DeviceId, Extent, Extents, SwapEntry, PAGE_SIZE, SWAPFILE_CLUSTER};
use hugeswap_swapfile::{Segment, SwapSpace};

/// Which allocator decides where a folio goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// What `hugeswap run` has, by the engine's calls.
    #[default]
    HugeSwap,
    /// The plain allocator of Linux 6.12, for comparison: scans clusters, and
    /// gives up on a folio for which it finds no aligned run.
    Linux612,
}

/// Whether a device has a header: then its first slot is not to be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    Yes,
    No,
}

#[derive(Debug)]
pub enum Slots {
    HugeSwap(SwapSpace),
    Linux612(Box<Linux612>),
}

impl Slots {
    /// A device of so many bytes.
    pub fn new(algorithm: Algorithm, bytes: u64, header: Header) -> Result<Slots, String> {
        let slots = bytes / PAGE_SIZE as u64;
        let clusters = slots / SWAPFILE_CLUSTER as u64;
        let mut new = match algorithm {
            Algorithm::HugeSwap => {
                let space = SwapSpace::new(&[clusters]).map_err(|err| err.to_string())?;
                space.online(Segment {
                    device: DeviceId::FIRST,
                    start: 0,
                    end: clusters * SWAPFILE_CLUSTER as u64,
                });
                Slots::HugeSwap(space)
            }
            Algorithm::Linux612 => Slots::Linux612(Box::new(Linux612::new(clusters as usize))),
        };
        match &mut new {
            _ if header == Header::No => {}
            Slots::HugeSwap(space) => {
                space.alloc_on(DeviceId::FIRST, 1, &mut Extents::new());
            }
            Slots::Linux612(linux) => linux.mark_header(),
        }
        Ok(new)
    }

    /// Slots for so many pages. The engine asks one device after the other, and then for what is free
    /// anywhere.
    pub fn alloc(&mut self, nr: usize, out: &mut Extents) -> bool {
        out.clear();
        match self {
            Slots::HugeSwap(space) => {
                space.alloc_on(DeviceId::FIRST, nr, out) || space.alloc_from_all(nr, out)
            }
            Slots::Linux612(linux) => {
                let order = nr.next_power_of_two().trailing_zeros() as u8;
                let Some(slot) = linux.alloc(order).filter(|_| nr.is_power_of_two()) else {
                    return false;
                };
                let entry = SwapEntry::new(DeviceId::FIRST, slot);
                entry.is_some_and(|entry| {
                    out.push(Extent {
                        entry,
                        nr: nr as u16,
                    })
                })
            }
        }
    }

    /// Gives back slots of one cluster.
    pub fn free(&mut self, entry: SwapEntry, nr: u64) {
        match self {
            Slots::HugeSwap(space) => {
                let freed = space.free(entry, nr);
                debug_assert_eq!(freed, Ok(nr));
            }
            Slots::Linux612(linux) => linux.free(entry.slot(), nr as usize),
        }
    }
}
