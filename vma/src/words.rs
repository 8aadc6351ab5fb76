//! What is known of each page of a range, in tables beside its descriptor: tags, nonces, slots, handles.
//!
//! All-zero bytes are valid. What a table says is true for whoever has the range's lock, or its transfer; of a range that is
//! held, for the hook that holds it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use hugeswap_mm::{SlotWord, PMD_NR};
use hugeswap_seal::{Nonce, Tag};
use hugeswap_zpool::Handle;

/// What can be in a table.
pub trait Stored: Copy {
    /// Its place. All-zero bytes are a valid one.
    type Place: Default;
    fn load(place: &Self::Place) -> Self;
    fn store(self, place: &Self::Place);
}

impl Stored for SlotWord {
    type Place = AtomicU32;
    fn load(place: &AtomicU32) -> SlotWord {
        SlotWord::from_word(place.load(Relaxed))
    }
    fn store(self, place: &AtomicU32) {
        place.store(self.to_word(), Relaxed);
    }
}

impl Stored for Option<Handle> {
    type Place = AtomicU32;
    fn load(place: &AtomicU32) -> Option<Handle> {
        Handle::from_word(place.load(Relaxed))
    }
    fn store(self, place: &AtomicU32) {
        place.store(self.map_or(0, Handle::to_word), Relaxed);
    }
}

impl Stored for Nonce {
    type Place = AtomicU64;
    fn load(place: &AtomicU64) -> Nonce {
        Nonce::from_word(place.load(Relaxed))
    }
    fn store(self, place: &AtomicU64) {
        place.store(self.to_word(), Relaxed);
    }
}

impl Stored for Tag {
    type Place = [AtomicU64; 2];
    fn load(place: &[AtomicU64; 2]) -> Tag {
        Tag::from_words([0, 1].map(|i| place[i].load(Relaxed)))
    }
    fn store(self, place: &[AtomicU64; 2]) {
        for (place, word) in place.iter().zip(self.to_words()) {
            place.store(word, Relaxed);
        }
    }
}

/// One for each page of a range.
#[repr(transparent)]
pub struct Table<T: Stored>([T::Place; PMD_NR]);

/// Tags of the pages of a range that are in slots, 8 KiB.
pub type Tags = Table<Tag>;
/// Nonces of these pages where they were not all sealed at once, 4 KiB.
pub type Nonces = Table<Nonce>;
/// Slots of the pages of a range that is not in one cluster, 2 KiB.
pub type SlotTable = Table<SlotWord>;
/// Handles of the pages of a range that are in compressed memory, 2 KiB.
pub type HandleTable = Table<Option<Handle>>;

impl<T: Stored> Default for Table<T> {
    fn default() -> Self {
        Table(core::array::from_fn(|_| T::Place::default()))
    }
}

impl<T: Stored> Table<T> {
    #[inline]
    pub fn get(&self, page: usize) -> T {
        T::load(&self.0[page])
    }

    #[inline]
    pub fn set(&self, page: usize, what: T) {
        what.store(&self.0[page]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_got() {
        let (tags, nonces) = (Tags::default(), Nonces::default());
        assert_eq!(
            (tags.get(511), nonces.get(0)),
            (Tag::default(), Nonce::NONE)
        );
        let tag = Tag(core::array::from_fn(|i| i as u8));
        tags.set(510, tag);
        nonces.set(3, Nonce::from_word(77));
        assert_eq!((tags.get(510), tags.get(511)), (tag, Tag::default()));
        assert_eq!(
            (nonces.get(3), nonces.get(2)),
            (Nonce::from_word(77), Nonce::NONE)
        );
        assert_eq!(HandleTable::default().get(9), None);
        // As a core file's reader finds them.
        assert_eq!(size_of::<Tags>(), PMD_NR * size_of::<Tag>());
    }
}
