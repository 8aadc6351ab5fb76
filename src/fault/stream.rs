//! Which faults belong to a walk through memory.
//!
//! A walk enters 2 MiB ranges one after the other, each at its edge. A jump lands anywhere. The
//! rule looks at the last ranges that faulted: a fault near the first page of the range after one
//! of them (or near the last page of the range before) goes on with that walk. Faults inside a
//! range that follow each other page by page make its start known as a walk too.

use crate::mm::{Pmd, PMD_NR};

const HEADS: usize = 8;
/// Pages at a range's edge in which a walk is expected to enter it.
const EDGE: usize = 32;
const WINDOW_MAX: usize = 4;

#[derive(Clone, Copy, Default)]
struct Head {
    pmd: u32,
    page: u32,
    /// -1 or 1 once it walks, 0 before.
    step: i32,
    /// Times it went on.
    length: u32,
}

#[derive(Default)]
pub struct Streams {
    heads: [Head; HEADS],
    next: usize,
    last: usize,
}

impl Streams {
    /// The direction of the walk that a fault belongs to.
    pub fn classify(&mut self, pmd: Pmd, page: usize) -> Option<i32> {
        let (p, page) = (pmd.0, page as u32);
        for i in 0..HEADS {
            let h = &mut self.heads[i];
            if h.length == 0 {
                continue;
            }
            let step = if p == h.pmd.wrapping_add(1) && (page as usize) < EDGE && h.step >= 0 {
                1
            } else if p.wrapping_add(1) == h.pmd && page as usize >= PMD_NR - EDGE && h.step <= 0 {
                -1
            } else if p == h.pmd && page > h.page && page - h.page <= EDGE as u32 && h.step >= 0 {
                // Inside the range, going up a few pages at a time.
                h.page = page;
                h.length += 1;
                self.last = i;
                return (h.length > 2).then_some(1);
            } else {
                continue;
            };
            *h = Head {
                pmd: p,
                page,
                step,
                length: h.length + 1,
            };
            self.last = i;
            return Some(step);
        }
        self.last = self.next;
        self.heads[self.next] = Head {
            pmd: p,
            page,
            step: 0,
            length: 1,
        };
        self.next = (self.next + 1) % HEADS;
        None
    }

    /// Folios to read ahead for the walk that was last seen.
    pub fn window(&self) -> usize {
        match self.heads[self.last].length {
            0..=1 => 0,
            n => (n as usize - 1).min(WINDOW_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_up_and_down() {
        let mut s = Streams::default();
        assert_eq!(s.classify(Pmd(10), 0), None);
        assert_eq!(s.classify(Pmd(11), 0), Some(1));
        assert_eq!(s.classify(Pmd(12), 3), Some(1));
        assert_eq!(s.window(), 2);
        assert_eq!(s.classify(Pmd(90), 511), None);
        assert_eq!(s.classify(Pmd(89), 511), Some(-1));
        assert_eq!(s.classify(Pmd(13), 0), Some(1));
        assert_eq!(s.window(), 3);
    }

    #[test]
    fn jumps_are_not_walks() {
        let mut s = Streams::default();
        let mut x = 1u64;
        let mut walks = 0;
        for _ in 0..10_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
            let p = (x >> 33) as usize % (1000 * PMD_NR);
            walks += s.classify(Pmd((p / PMD_NR) as u32), p % PMD_NR).is_some() as usize;
        }
        assert!(walks < 100, "{walks}");
    }
}
