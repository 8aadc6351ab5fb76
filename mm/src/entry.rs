//! Swap entries and extents: the words in which the places that folios were
//! swapped out to are talked about.

use super::{PAGE_SIZE, PMD_NR};
use core::num::NonZeroU64;

/// Slots of a cluster: as many as a PMD-sized folio has pages.
pub const SWAPFILE_CLUSTER: usize = PMD_NR;
/// Swap devices that can be in use at a time.
pub const MAX_SWAPFILES: usize = if cfg!(loom) { 2 } else { 32 };
/// Extents a folio can have: each of its pages may be on its own. (Loom's
/// threads have stacks of a few pages.)
const MAX_EXTENTS: usize = if cfg!(loom) { 4 } else { SWAPFILE_CLUSTER };
/// Bits of a slot number: 2^36 slots of 4 KiB are 256 TiB.
const SLOT_BITS: u32 = 36;
/// Slots a device can have.
pub const MAX_SLOTS: u64 = 1 << SLOT_BITS;

/// A swap device, numbered in the order of its adding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(u8);

impl DeviceId {
    /// The one added first.
    pub const FIRST: DeviceId = DeviceId(0);

    /// `None` at [`MAX_SWAPFILES`] and above.
    pub const fn new(id: u8) -> Option<DeviceId> {
        if (id as usize) < MAX_SWAPFILES {
            Some(DeviceId(id))
        } else {
            None
        }
    }

    /// For indexing arrays of [`MAX_SWAPFILES`].
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One slot of one device: where a base page is swapped out to.
///
/// ```text
///  63      42 41   36 35                                   0
/// +----------+-------+--------------------------------------+
/// |    0     | dev+1 |                 slot                 |
/// +----------+-------+--------------------------------------+
/// ```
/// The device is stored plus one, so that no entry is zero and
/// `Option<SwapEntry>` is one word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwapEntry(NonZeroU64);

impl SwapEntry {
    /// `None` if `slot` does not fit.
    #[inline]
    pub const fn new(device: DeviceId, slot: u64) -> Option<SwapEntry> {
        if slot >= MAX_SLOTS {
            return None;
        }
        match NonZeroU64::new(((device.0 as u64 + 1) << SLOT_BITS) | slot) {
            Some(word) => Some(SwapEntry(word)),
            None => None,
        }
    }

    /// The word, for a table of the caller's.
    #[inline]
    pub const fn to_raw(self) -> u64 {
        self.0.get()
    }

    /// Back from [`to_raw`](Self::to_raw); `None` for a word that is no entry.
    pub const fn from_raw(raw: u64) -> Option<SwapEntry> {
        let device = raw >> SLOT_BITS;
        if device == 0 || device > MAX_SWAPFILES as u64 {
            return None;
        }
        match NonZeroU64::new(raw) {
            Some(word) => Some(SwapEntry(word)),
            None => None,
        }
    }

    /// The device.
    #[inline]
    pub const fn device(self) -> DeviceId {
        DeviceId(((self.0.get() >> SLOT_BITS) - 1) as u8)
    }

    /// The slot on that device.
    #[inline]
    pub const fn slot(self) -> u64 {
        self.0.get() & (MAX_SLOTS - 1)
    }

    /// Byte offset on that device.
    #[inline]
    pub const fn byte_offset(self) -> u64 {
        self.slot() * PAGE_SIZE as u64
    }

    /// The entry `nr` slots on; `None` past the end of the numbering.
    #[inline]
    pub const fn checked_add(self, nr: u64) -> Option<SwapEntry> {
        match self.slot().checked_add(nr) {
            Some(slot) => SwapEntry::new(self.device(), slot),
            None => None,
        }
    }
}

impl core::fmt::Debug for SwapEntry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}:{}", self.device().index(), self.slot())
    }
}

/// A run of neighbouring slots of one device, within one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first slot.
    pub entry: SwapEntry,
    /// How many: 1 to [`SWAPFILE_CLUSTER`].
    pub nr: u16,
}

impl Extent {
    /// Bytes of the run.
    pub const fn bytes(self) -> usize {
        self.nr as usize * PAGE_SIZE
    }
}

/// Where one folio went: its extents in the order of its pages.
///
/// Nearly always one. A buffer of fixed size (8 KiB) that the caller owns and
/// uses again, so that finding room never allocates.
#[derive(Clone)]
pub struct Extents {
    len: usize,
    list: [Extent; MAX_EXTENTS],
}

impl Extents {
    /// An empty buffer.
    pub const fn new() -> Self {
        // Never read: only `list[..len]` is shown.
        const UNUSED: Extent = Extent {
            entry: SwapEntry(NonZeroU64::MIN),
            nr: 0,
        };
        Extents {
            len: 0,
            list: [UNUSED; MAX_EXTENTS],
        }
    }

    /// Forgets the extents; gives no slot back.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Slots of all extents together.
    pub fn nr_slots(&self) -> usize {
        self.iter().map(|e| usize::from(e.nr)).sum()
    }

    /// The slot of the folio's page `index`.
    pub fn entry_of(&self, index: usize) -> Option<SwapEntry> {
        let mut before = 0;
        for extent in self.iter() {
            let nr = usize::from(extent.nr);
            if index < before + nr {
                return extent.entry.checked_add((index - before) as u64);
            }
            before += nr;
        }
        None
    }

    /// Appends; `false` when the buffer is full.
    #[inline]
    pub fn push(&mut self, extent: Extent) -> bool {
        match self.list.get_mut(self.len) {
            Some(place) => {
                *place = extent;
                self.len += 1;
                true
            }
            None => false,
        }
    }
}

impl Default for Extents {
    fn default() -> Self {
        Extents::new()
    }
}

impl core::ops::Deref for Extents {
    type Target = [Extent];
    #[inline]
    fn deref(&self) -> &[Extent] {
        &self.list[..self.len]
    }
}

impl core::fmt::Debug for Extents {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_round_trip() {
        for (device, slot) in [(0, 0), (31, MAX_SLOTS - 1), (3, 12345)] {
            let device = DeviceId::new(device).unwrap();
            let entry = SwapEntry::new(device, slot).unwrap();
            assert_eq!((entry.device(), entry.slot()), (device, slot));
            assert_eq!(SwapEntry::from_raw(entry.to_raw()), Some(entry));
        }
        assert_eq!(SwapEntry::from_raw(0), None);
        assert_eq!(SwapEntry::from_raw(u64::MAX), None);
        assert_eq!(DeviceId::new(32), None);
        assert_eq!(SwapEntry::new(DeviceId(0), MAX_SLOTS), None);
        assert_eq!(core::mem::size_of::<Option<SwapEntry>>(), 8);
    }

    #[test]
    fn page_of_a_spread_folio() {
        let device = DeviceId(0);
        let at = |slot, nr| Extent {
            entry: SwapEntry::new(device, slot).unwrap(),
            nr,
        };
        let mut extents = Extents::new();
        assert!(extents.push(at(100, 3)) && extents.push(at(7, 1)));
        let slots: Vec<_> = (0..5)
            .map(|i| extents.entry_of(i).map(SwapEntry::slot))
            .collect();
        assert_eq!(slots, [Some(100), Some(101), Some(102), Some(7), None]);
        assert_eq!(extents.nr_slots(), 4);
    }
}
