//! Resident ranges in the order in which they became so. Links live in the descriptors.

use super::table::{Range, Ranges};
use crate::mm::Pmd;
use crate::sync::Mutex;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Number + 1 of a range; 0 ends the list.
type Link = u32;

#[derive(Default)]
struct Ends {
    head: Link,
    tail: Link,
    len: usize,
}

/// A list of ranges. Its lock is taken inside a range's lock, never around one.
pub struct Lru(Mutex<Ends>);

impl Default for Lru {
    fn default() -> Self {
        Lru(Mutex::new(Ends {
            head: 0,
            tail: 0,
            len: 0,
        }))
    }
}

fn link(t: &Ranges, l: Link) -> Option<(Pmd, &Range)> {
    let pmd = Pmd(l.checked_sub(1)?);
    t.get(pmd).map(|r| (pmd, r))
}

fn set(w: &AtomicU32, l: Link) {
    w.store(l, Relaxed);
}

impl Lru {
    pub fn len(&self) -> usize {
        self.0.lock().len
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends; the range must not be on the list.
    pub fn push(&self, t: &Ranges, pmd: Pmd) {
        let Some((_, r)) = link(t, pmd.0 + 1) else {
            return;
        };
        let mut e = self.0.lock();
        set(&r.lru_next, 0);
        set(&r.lru_prev, e.tail);
        match link(t, e.tail) {
            Some((_, last)) => set(&last.lru_next, pmd.0 + 1),
            None => e.head = pmd.0 + 1,
        }
        e.tail = pmd.0 + 1;
        e.len += 1;
    }

    /// Takes the oldest.
    pub fn pop(&self, t: &Ranges) -> Option<Pmd> {
        let mut e = self.0.lock();
        let (pmd, r) = link(t, e.head)?;
        e.head = r.lru_next.load(Relaxed);
        set(&r.lru_next, 0);
        match link(t, e.head) {
            Some((_, first)) => set(&first.lru_prev, 0),
            None => e.tail = 0,
        }
        e.len -= 1;
        Some(pmd)
    }

    /// Makes a range the oldest, if it is on the list: its lock, which the caller holds, keeps it
    /// there only if nobody has popped it already.
    pub fn hasten(&self, t: &Ranges, pmd: Pmd) -> bool {
        let mut e = self.0.lock();
        let l = pmd.0 + 1;
        let Some((_, r)) = link(t, l) else {
            return false;
        };
        if e.head == l {
            return true;
        }
        let (prev, next) = (r.lru_prev.load(Relaxed), r.lru_next.load(Relaxed));
        // Whoever is on the list and not its head has a neighbour that names it.
        match link(t, prev) {
            Some((_, before)) if before.lru_next.load(Relaxed) == l => {
                set(&before.lru_next, next);
            }
            _ => return false,
        }
        match link(t, next) {
            Some((_, after)) => set(&after.lru_prev, prev),
            None => e.tail = prev,
        }
        if let Some((_, first)) = link(t, e.head) {
            set(&first.lru_prev, l);
        }
        set(&r.lru_prev, 0);
        set(&r.lru_next, e.head);
        e.head = l;
        true
    }

    /// In a forked child.
    pub fn reset_lock(&self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_can_be_the_first() {
        let t = Ranges::new().unwrap();
        let l = Lru::default();
        for i in 1..=4 {
            t.get_or_map(Pmd(i)).unwrap();
            l.push(&t, Pmd(i));
        }
        assert!(l.hasten(&t, Pmd(3)) && l.hasten(&t, Pmd(4)) && l.hasten(&t, Pmd(4)));
        assert_eq!(l.pop(&t), Some(Pmd(4)));
        assert!(!l.hasten(&t, Pmd(4)) && !l.hasten(&t, Pmd(9)));
        l.push(&t, Pmd(5));
        let rest: Vec<_> = core::iter::from_fn(|| l.pop(&t)).collect();
        assert_eq!(rest, [3, 1, 2, 5].map(Pmd));
        assert!(l.is_empty());
    }

    #[test]
    fn first_in_first_out() {
        let t = Ranges::new().unwrap();
        let l = Lru::default();
        for i in [3, 1, 2] {
            t.get_or_map(Pmd(i)).unwrap();
            l.push(&t, Pmd(i));
        }
        assert_eq!(l.len(), 3);
        assert_eq!(l.pop(&t), Some(Pmd(3)));
        l.push(&t, Pmd(3));
        assert_eq!(
            (l.pop(&t), l.pop(&t), l.pop(&t), l.pop(&t)),
            (Some(Pmd(1)), Some(Pmd(2)), Some(Pmd(3)), None)
        );
    }
}
