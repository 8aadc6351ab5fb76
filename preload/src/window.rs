//! Addresses for the program's anonymous memory.
//!
//! The window is one inaccessible mapping, registered with the engine once. A mapping of the
//! program is a stretch of it made accessible. A stretch that it unmaps is really unmapped, so that
//! a thread that touches
//! it finds nothing there: it is *bare*. When enough is bare it is mapped and registered again, all
//! with one request. Small mappings are put next to each other, so that together they fill 2 MiB
//! ranges; mappings of 2 MiB and more begin at such a range.

use hugeswap::mm::PMD_SIZE;
use std::collections::BTreeMap;

/// A set of addresses as disjoint, not touching stretches: start to end.
#[derive(Default)]
pub struct Extents(BTreeMap<usize, usize>);

impl Extents {
    pub const fn new() -> Extents {
        Extents(BTreeMap::new())
    }

    pub fn insert(&mut self, mut start: usize, mut end: usize) {
        if start >= end {
            return;
        }
        // Everything that overlaps or touches becomes one.
        while let Some((&s, &e)) = self.0.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.0.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.0.insert(start, end);
    }

    pub fn remove(&mut self, start: usize, end: usize) {
        if start >= end {
            return;
        }
        while let Some((&s, &e)) = self.0.range(..end).next_back() {
            if e <= start {
                break;
            }
            self.0.remove(&s);
            if s < start {
                self.0.insert(s, start);
            }
            if e > end {
                self.0.insert(end, e);
            }
        }
    }

    /// The parts of `[start, end)` that are in the set.
    pub fn overlaps(&self, start: usize, end: usize) -> Vec<(usize, usize)> {
        if start >= end {
            return Vec::new();
        }
        let first = self
            .0
            .range(..=start)
            .next_back()
            .map_or(start, |(&s, _)| s);
        self.0
            .range(first..end)
            .map(|(&s, &e)| (s.max(start), e.min(end)))
            .filter(|(s, e)| s < e)
            .collect()
    }

    pub fn contains(&self, start: usize, end: usize) -> bool {
        self.0
            .range(..=start)
            .next_back()
            .is_some_and(|(_, &e)| e >= end)
    }

    pub fn intersects(&self, start: usize, end: usize) -> bool {
        self.0
            .range(..end)
            .next_back()
            .is_some_and(|(_, &e)| e > start)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.0.iter().map(|(&s, &e)| (s, e))
    }
}

/// The window's free addresses.
#[derive(Default)]
pub struct Window {
    pub start: usize,
    pub end: usize,
    /// Mapped, inaccessible, registered.
    free: Extents,
    /// Not mapped.
    bare: Extents,
    bare_bytes: usize,
}

/// So much may be bare before it is made free again.
const BARE_BYTES: usize = 64 << 20;
const BARE_PIECES: usize = 64;

impl Window {
    pub const fn empty() -> Window {
        Window {
            start: 0,
            end: 0,
            free: Extents::new(),
            bare: Extents::new(),
            bare_bytes: 0,
        }
    }

    pub fn new(start: usize, end: usize) -> Window {
        let mut free = Extents::default();
        free.insert(start, end);
        Window {
            start,
            end,
            free,
            bare: Extents::new(),
            bare_bytes: 0,
        }
    }

    /// Whether the kernel finds that place taken, by memory of the program's or by what is free for it.
    pub fn occupies(&self, at: usize) -> bool {
        (self.start..self.end).contains(&at) && !self.bare.contains(at, at + 1)
    }

    pub fn holds(&self, start: usize, end: usize) -> bool {
        start >= self.start && end <= self.end
    }

    /// Takes a free stretch. From 2 MiB on it begins `phase` bytes into a 2 MiB range.
    pub fn take(&mut self, len: usize, phase: usize) -> Option<usize> {
        let large = len >= PMD_SIZE || phase != 0;
        let at = self.free.iter().find_map(|(s, e)| {
            let at = if large {
                let base = s & !(PMD_SIZE - 1);
                let at = base + phase % PMD_SIZE;
                if at < s {
                    at + PMD_SIZE
                } else {
                    at
                }
            } else {
                s
            };
            (at.checked_add(len)? <= e).then_some(at)
        })?;
        self.free.remove(at, at + len);
        Some(at)
    }

    /// The window begins later: what was taken below is no part of it any more.
    pub fn begin_at(&mut self, start: usize) {
        self.start = start;
    }

    /// Takes what is free of the stretch, and says what that was.
    pub fn take_free(&mut self, start: usize, end: usize) -> Vec<(usize, usize)> {
        let free = self.free.overlaps(start, end);
        self.free.remove(start, end);
        free
    }

    /// Takes what is free of the stretch, or bare.
    pub fn claim(&mut self, start: usize, end: usize) {
        self.free.remove(start, end);
        let bare: usize = self
            .bare
            .overlaps(start, end)
            .iter()
            .map(|(s, e)| e - s)
            .sum();
        self.bare.remove(start, end);
        self.bare_bytes -= bare;
    }

    /// The stretch was unmapped.
    pub fn strip(&mut self, start: usize, end: usize) {
        let (start, end) = (start.max(self.start), end.min(self.end));
        if start < end {
            self.claim(start, end);
            self.bare.insert(start, end);
            self.bare_bytes += end - start;
        }
    }

    /// The bare stretches, if it is time to map them again: the caller has to give them back
    /// afterwards.
    pub fn take_bare(&mut self) -> Option<Extents> {
        if self.bare_bytes < BARE_BYTES && self.bare.len() < BARE_PIECES {
            return None;
        }
        self.bare_bytes = 0;
        Some(core::mem::take(&mut self.bare))
    }

    pub fn give(&mut self, start: usize, end: usize) {
        self.free.insert(start.max(self.start), end.min(self.end));
    }

    pub fn free_in(&self, start: usize, end: usize) -> Vec<(usize, usize)> {
        self.free.overlaps(start, end)
    }

    pub fn is_free(&self, start: usize, end: usize) -> bool {
        self.free.contains(start, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_merge_and_split() {
        let mut x = Extents::default();
        x.insert(10, 20);
        x.insert(30, 40);
        x.insert(20, 30);
        assert_eq!(x.iter().collect::<Vec<_>>(), [(10, 40)]);
        x.remove(15, 35);
        assert_eq!(x.iter().collect::<Vec<_>>(), [(10, 15), (35, 40)]);
        assert_eq!(x.overlaps(12, 37), [(12, 15), (35, 37)]);
        assert!(x.contains(36, 40) && !x.contains(14, 16));
        assert!(x.intersects(14, 16) && !x.intersects(15, 35));
        x.insert(0, 100);
        assert_eq!(x.iter().collect::<Vec<_>>(), [(0, 100)]);
    }

    #[test]
    fn extents_agree_with_a_bitmap() {
        let mut x = Extents::default();
        let mut model = [false; 200];
        let mut r = 7u64;
        let mut rand = |n: u64| {
            r = r
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            ((r >> 33) % n) as usize
        };
        for _ in 0..5000 {
            let (a, n) = (rand(180), rand(20));
            let on = rand(2) == 0;
            if on {
                x.insert(a, a + n);
            } else {
                x.remove(a, a + n);
            }
            model[a..a + n].fill(on);
            let mut seen = [false; 200];
            let mut last = None;
            for (s, e) in x.iter() {
                assert!(s < e && last.is_none_or(|l| l < s));
                last = Some(e);
                seen[s..e].fill(true);
            }
            assert_eq!(seen, model);
            let (a, n) = (rand(180), rand(20) + 1);
            assert_eq!(x.contains(a, a + n), model[a..a + n].iter().all(|b| *b));
            assert_eq!(x.intersects(a, a + n), model[a..a + n].iter().any(|b| *b));
        }
    }

    #[test]
    fn small_ones_share_a_range_and_large_ones_begin_one() {
        let mut w = Window::new(0x4000_0000, 0x8000_0000);
        let a = w.take(4096, 0).unwrap();
        let b = w.take(1 << 20, 0).unwrap();
        assert_eq!(b, a + 4096);
        let c = w.take(3 << 20, 0).unwrap();
        assert_eq!(c % PMD_SIZE, 0);
        let d = w.take(4096, 0).unwrap();
        assert!(d < c);
        w.give(c, c + (3 << 20));
        w.claim(c, c + 4096);
        assert!(w.free_in(c, c + 4096).is_empty() && w.is_free(c + 4096, c + 8192));
        let e = w.take(8192, 0x3000).unwrap();
        assert_eq!(e % PMD_SIZE, 0x3000);
        assert!(w.take(1 << 40, 0).is_none());
    }

    #[test]
    fn what_is_bare_is_given_back_at_once() {
        let mut w = Window::new(0x4000_0000, 0x8000_0000);
        let a = w.take(BARE_BYTES, 0).unwrap();
        w.strip(a, a + BARE_BYTES / 2);
        assert!(w.free_in(a, a + BARE_BYTES).is_empty() && w.take_bare().is_none());
        w.strip(a, a + BARE_BYTES);
        let bare = w.take_bare().unwrap();
        assert_eq!(bare.iter().collect::<Vec<_>>(), [(a, a + BARE_BYTES)]);
        assert!(w.take_bare().is_none());
        w.strip(a, a + 4096);
        w.claim(a, a + 8192);
        assert_eq!(w.bare_bytes, 0);
    }
}
