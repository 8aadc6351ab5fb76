//! Where a range is in swap.

use super::SwapEntry;
use core::num::NonZeroU64;

/// Where the pages of one 2 MiB range are that are in swap. All-zero bytes are the `None` of
/// `Option<SwapPlace>`.
///
/// | word | meaning |
/// |---|---|
/// | a `SwapEntry` | a cluster: page `i` has the slot `i` after this one |
/// | all ones | each page has the slot that the range's table names |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwapPlace(NonZeroU64);

impl SwapPlace {
    /// No `SwapEntry` has this word.
    pub const SCATTERED: SwapPlace = SwapPlace(NonZeroU64::MAX);

    pub fn cluster(first: SwapEntry) -> SwapPlace {
        SwapPlace(NonZeroU64::new(first.to_raw()).unwrap_or(NonZeroU64::MAX))
    }

    /// The `Option<SwapPlace>` that has this word; `None` also for one that no place has.
    pub fn from_word(word: u64) -> Option<SwapPlace> {
        match word {
            u64::MAX => Some(SwapPlace::SCATTERED),
            _ => SwapEntry::from_raw(word).map(SwapPlace::cluster),
        }
    }

    /// The first slot of the cluster; `None` where there is a table instead.
    pub fn first(self) -> Option<SwapEntry> {
        SwapEntry::from_raw(self.0.get())
    }
}

/// A slot in the table of a range: 3 bits of a device and 29 of a slot, which is 2 TiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct SlotWord(u32);

impl SlotWord {
    const SLOT_BITS: u32 = 29;

    /// `None` if it does not fit.
    pub fn new(entry: SwapEntry) -> Option<SlotWord> {
        let device = u32::try_from(entry.device().index()).ok()?;
        let slot = u32::try_from(entry.slot()).ok()?;
        let fits = device < 1 << (u32::BITS - Self::SLOT_BITS) && slot < 1 << Self::SLOT_BITS;
        fits.then_some(SlotWord(device << Self::SLOT_BITS | slot))
    }

    /// Any word is one, but it may name no slot.
    pub const fn from_word(word: u32) -> SlotWord {
        SlotWord(word)
    }

    pub const fn to_word(self) -> u32 {
        self.0
    }

    pub fn entry(self) -> Option<SwapEntry> {
        let device = super::DeviceId::new((self.0 >> Self::SLOT_BITS) as u8)?;
        SwapEntry::new(device, (self.0 & ((1 << Self::SLOT_BITS) - 1)).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceId;

    #[test]
    fn round_trip() {
        for (device, slot) in [(0, 0), (7, (1 << 29) - 1), (3, 12345)] {
            let entry = SwapEntry::new(DeviceId::new(device).unwrap(), slot).unwrap();
            let place = SwapPlace::cluster(entry);
            assert_eq!(place.first(), Some(entry));
            assert_eq!(SwapPlace::from_word(entry.to_raw()), Some(place));
            assert_eq!(SlotWord::new(entry).unwrap().entry(), Some(entry));
        }
        assert_eq!(SwapPlace::SCATTERED.first(), None);
        assert_eq!(size_of::<Option<SwapPlace>>(), 8);
        assert_eq!(SwapPlace::from_word(0), None);
        assert_eq!(SwapPlace::from_word(1 << 63), None);
        assert_eq!(SwapPlace::from_word(u64::MAX), Some(SwapPlace::SCATTERED));
        let at = |device, slot| SwapEntry::new(DeviceId::new(device).unwrap(), slot).unwrap();
        assert_eq!(SlotWord::new(at(8, 0)), None);
        assert_eq!(SlotWord::new(at(0, 1 << 29)), None);
    }
}
