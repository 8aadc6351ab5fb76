//! The 512 bits of a cluster and the aligned free runs in them. Pure.
//!
//! A *block* is a free run of `1 << order` slots at a multiple of its length; it
//! is *maximal* if the block of twice the length around it is not free.

use hugeswap_mm::{PMD_ORDER, SWAPFILE_CLUSTER};

const WORDS: usize = SWAPFILE_CLUSTER / 64;
/// Order of a block that fills one word.
const WORD_ORDER: u8 = 6;

/// `ALIGNED[o]`: the bits of a word at multiples of `1 << o`.
const ALIGNED: [u64; 7] = [
    !0,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];

/// The same among the eight words, for orders 6 to 9.
const ALIGNED_WORDS: [u8; 4] = [!0, 0x55, 0x11, 1];

/// One bit for each slot of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Bitmap(pub [u64; WORDS]);

/// Bits of word `word` that belong to the run `[start, start + nr)`.
#[inline]
fn mask(word: usize, start: usize, nr: usize) -> u64 {
    let low = word * 64;
    let from = start.max(low);
    let to = (start + nr).min(low + 64);
    if from >= to {
        return 0;
    }
    (!0u64 >> (64 - (to - from))) << (from - low)
}

/// Words a non-empty run lies in.
#[inline]
fn words(start: usize, nr: usize) -> core::ops::RangeInclusive<usize> {
    start / 64..=((start + nr - 1) / 64).min(WORDS - 1)
}

/// From the starts of free blocks of `order` those of `order + 1`.
#[inline]
fn grow(starts: u64, order: u8) -> u64 {
    starts & (starts >> (1u32 << order)) & ALIGNED[order as usize + 1]
}

/// The same among whole words; `order` from 6 to 8.
#[inline]
fn grow_words(starts: u8, order: u8) -> u8 {
    let level = order - WORD_ORDER;
    starts & (starts >> (1u32 << level)) & ALIGNED_WORDS[level as usize + 1]
}

impl Bitmap {
    /// No bit set.
    pub const EMPTY: Bitmap = Bitmap([0; WORDS]);

    #[inline]
    pub fn set(&mut self, start: usize, nr: usize) {
        if nr == SWAPFILE_CLUSTER {
            self.0 = [!0; WORDS];
            return;
        }
        for w in words(start, nr) {
            self.0[w] |= mask(w, start, nr);
        }
    }

    /// With the run set, too.
    pub fn with(mut self, start: usize, nr: usize) -> Bitmap {
        self.set(start, nr);
        self
    }

    #[inline]
    pub fn clear(&mut self, start: usize, nr: usize) {
        if nr == SWAPFILE_CLUSTER {
            self.0 = [0; WORDS];
            return;
        }
        for w in words(start, nr) {
            self.0[w] &= !mask(w, start, nr);
        }
    }

    /// Whether every bit of the run is set.
    #[inline]
    pub fn all(&self, start: usize, nr: usize) -> bool {
        if nr == SWAPFILE_CLUSTER {
            return self.0.iter().fold(!0, |all, word| all & word) == !0;
        }
        words(start, nr).all(|w| {
            let mask = mask(w, start, nr);
            self.0[w] & mask == mask
        })
    }

    /// Whether any bit of the run is set.
    #[inline]
    pub fn any(&self, start: usize, nr: usize) -> bool {
        if nr == SWAPFILE_CLUSTER {
            return self.0.iter().fold(0, |any, word| any | word) != 0;
        }
        words(start, nr).any(|w| self.0[w] & mask(w, start, nr) != 0)
    }

    #[cfg(test)]
    pub fn get(&self, bit: usize) -> bool {
        self.0[bit / 64] >> (bit % 64) & 1 != 0
    }

    pub fn count(&self) -> u32 {
        self.0.iter().map(|w| w.count_ones()).sum()
    }

    /// Bit by bit through `f`, a word at a time.
    #[inline]
    pub fn zip(&self, other: &Bitmap, f: impl Fn(u64, u64) -> u64) -> Bitmap {
        let mut out = Bitmap::EMPTY;
        for w in 0..WORDS {
            out.0[w] = f(self.0[w], other.0[w]);
        }
        out
    }

    /// First run of set bits at or after `from`, as (start, length).
    pub fn next_run(&self, from: usize) -> Option<(usize, usize)> {
        let start = self.next_bit(from, 0)?;
        let end = self.next_bit(start, !0).unwrap_or(SWAPFILE_CLUSTER);
        Some((start, end - start))
    }

    /// First bit at or after `from` that is set once the map is XORed with `flip`.
    fn next_bit(&self, from: usize, flip: u64) -> Option<usize> {
        let mut w = from / 64;
        let mut keep = !0u64 << (from % 64);
        while w < WORDS {
            let word = (self.0[w] ^ flip) & keep;
            if word != 0 {
                return Some(w * 64 + word.trailing_zeros() as usize);
            }
            keep = !0;
            w += 1;
        }
        None
    }

    /// Longest run of set bits, aligned or not.
    pub fn longest_run(&self) -> (usize, usize) {
        let mut best = (0, 0);
        let mut from = 0;
        while from < SWAPFILE_CLUSTER {
            let Some((start, nr)) = self.next_run(from) else {
                break;
            };
            if nr > best.1 {
                best = (start, nr);
            }
            from = start + nr;
        }
        best
    }
}

// What follows reads the map as "set means in use".
impl Bitmap {
    /// Words without a bit in use, one bit each.
    #[inline]
    fn free_words(&self) -> u8 {
        let mut free = 0;
        for w in 0..WORDS {
            free |= u8::from(self.0[w] == 0) << w;
        }
        free
    }

    /// Order of the largest block; `None` when every slot is in use.
    pub fn largest_block(&self) -> Option<u8> {
        let mut words = self.free_words();
        if words != 0 {
            let mut order = WORD_ORDER;
            while order < PMD_ORDER {
                words = grow_words(words, order);
                if words == 0 {
                    break;
                }
                order += 1;
            }
            return Some(order);
        }
        let mut best = None;
        for used in self.0 {
            let mut starts = !used;
            let mut order = 0;
            while starts != 0 {
                best = best.max(Some(order));
                starts = grow(starts, order);
                order += 1;
            }
        }
        best
    }

    /// Order of the maximal block that holds the free slot `slot`.
    #[inline]
    pub fn block_around(&self, slot: usize) -> u8 {
        let used = self.0[slot / 64];
        if used != 0 {
            let bit = slot % 64;
            let mut order = 0;
            while order < WORD_ORDER {
                let len = 2usize << order;
                let base = bit & !(len - 1);
                if used >> base & (!0u64 >> (64 - len)) != 0 {
                    break;
                }
                order += 1;
            }
            return order;
        }
        let mut words = self.free_words();
        let mut order = WORD_ORDER;
        while order < PMD_ORDER {
            words = grow_words(words, order);
            let base = (slot / 64) & !((2usize << (order - WORD_ORDER)) - 1);
            if words >> base & 1 == 0 {
                break;
            }
            order += 1;
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xorshift(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    fn free_block(map: &Bitmap, start: usize, order: u8) -> bool {
        let nr = 1 << order;
        start % nr == 0 && (start..start + nr).all(|b| !map.get(b))
    }

    fn slow_around(map: &Bitmap, slot: usize) -> u8 {
        (0..=PMD_ORDER)
            .filter(|&o| free_block(map, slot & !((1 << o) - 1), o))
            .max()
            .unwrap()
    }

    /// Every answer against a search bit by bit, over maps of every density.
    #[test]
    fn blocks_against_plain_search() {
        let mut seed = 0x9e37_79b9_7f4a_7c15;
        for round in 0..3000 {
            let mut map = Bitmap::EMPTY;
            for _ in 0..round % 60 {
                let order = xorshift(&mut seed) % 8;
                let nr = 1usize << order;
                let start = xorshift(&mut seed) as usize % (512 / nr) * nr;
                map.set(start, nr);
            }
            let largest = (0..=PMD_ORDER)
                .filter(|&o| (0..512).any(|s| free_block(&map, s, o)))
                .max();
            assert_eq!(map.largest_block(), largest);
            for slot in (0..512).filter(|&s| !map.get(s)) {
                assert_eq!(map.block_around(slot), slow_around(&map, slot));
            }
        }
    }

    #[test]
    fn runs() {
        let mut map = Bitmap::EMPTY;
        assert_eq!(map.next_run(0), None);
        map.set(60, 10);
        map.set(500, 12);
        assert_eq!(map.next_run(0), Some((60, 10)));
        assert_eq!(map.next_run(65), Some((65, 5)));
        assert_eq!(map.next_run(70), Some((500, 12)));
        assert_eq!(map.longest_run(), (500, 12));
        assert!(map.all(60, 10) && !map.all(59, 2) && map.any(69, 100));
        map.clear(60, 10);
        assert_eq!(map.count(), 12);
    }
}
