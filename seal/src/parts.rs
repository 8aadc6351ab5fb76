//! What a seal is made of: how, with which key, under which nonce, and the tag that comes of it.

use hugeswap_mm::SwapEntry;

/// Keys of a ring at most; so many forks, with something in swap that was written between each of them.
pub const GENERATIONS: usize = 1 << 16;

/// What is done to pages on their way to a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// They are written as they are, and summed.
    Check,
    Encrypt,
}

/// What proves a page to be the one that was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Tag(pub [u8; 16]);

impl Tag {
    /// Its bytes in order are those of the first word and those of the second, the lowest first.
    pub fn to_words(self) -> [u64; 2] {
        let all = u128::from_le_bytes(self.0);
        [all as u64, (all >> 64) as u64]
    }

    pub fn from_words([low, high]: [u64; 2]) -> Tag {
        Tag((u128::from(high) << 64 | u128::from(low)).to_le_bytes())
    }
}

/// A number that was never used before with its key: 16 bits of the key's generation, 48 of a count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Nonce(pub(crate) u64);

impl Nonce {
    const COUNT_BITS: u32 = 48;
    /// No page was sealed with this.
    pub const NONE: Nonce = Nonce(0);

    pub(crate) fn new(generation: usize, count: u64) -> Option<Nonce> {
        let fits = count > 0 && count < 1 << Self::COUNT_BITS && generation < GENERATIONS;
        fits.then_some(Nonce((generation as u64) << Self::COUNT_BITS | count))
    }

    /// Any word is one, but it may be none that was used.
    pub const fn from_word(word: u64) -> Nonce {
        Nonce(word)
    }

    pub const fn to_word(self) -> u64 {
        self.0
    }

    /// Which key of the ring.
    pub fn generation(self) -> usize {
        (self.0 >> Self::COUNT_BITS) as usize
    }

    pub(crate) fn bytes(self, at: SwapEntry) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
        bytes[8..].copy_from_slice(&at.to_raw().to_le_bytes());
        bytes
    }
}

/// A key of the ring.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Key(pub(crate) [u8; 16]);
