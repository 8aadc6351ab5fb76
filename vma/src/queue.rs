//! Ranges with pages in compressed memory, in the order in which the first of these came there. Links live in
//! the descriptors.

use super::table::Ranges;
use core::sync::atomic::Ordering::Relaxed;
use hugeswap_mm::Pmd;
use hugeswap_sys::sync::Mutex;

#[derive(Default)]
struct Ends {
    /// Number + 1 of a range; 0: none.
    head: u32,
    tail: u32,
}

/// Its lock is taken inside a range's lock, never around one.
pub struct Queue(Mutex<Ends>);

impl Default for Queue {
    fn default() -> Queue {
        Queue(Mutex::new(Ends::default()))
    }
}

impl Queue {
    /// Appends; the range must not be in it.
    pub fn push(&self, t: &Ranges, pmd: Pmd) {
        let at = |l: u32| l.checked_sub(1).and_then(|l| t.get(Pmd(l)));
        let Some(r) = t.get(pmd) else { return };
        let mut ends = self.0.lock();
        r.queue_next.store(0, Relaxed);
        match at(ends.tail) {
            Some(last) => last.queue_next.store(pmd.0 + 1, Relaxed),
            None => ends.head = pmd.0 + 1,
        }
        ends.tail = pmd.0 + 1;
    }

    /// Takes the first.
    pub fn pop(&self, t: &Ranges) -> Option<Pmd> {
        let mut ends = self.0.lock();
        let pmd = Pmd(ends.head.checked_sub(1)?);
        ends.head = t.get(pmd)?.queue_next.load(Relaxed);
        if ends.head == 0 {
            ends.tail = 0;
        }
        Some(pmd)
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
    fn first_in_first_out() {
        let t = Ranges::new().unwrap();
        let q = Queue::default();
        assert_eq!(q.pop(&t), None);
        for round in 0..2 {
            for i in [4, 2, 9] {
                t.get_or_map(Pmd(i)).unwrap();
                q.push(&t, Pmd(i));
            }
            assert_eq!(q.pop(&t), Some(Pmd(4)), "{round}");
            q.push(&t, Pmd(4));
            let rest: Vec<_> = core::iter::from_fn(|| q.pop(&t)).collect();
            assert_eq!(rest, [2, 9, 4].map(Pmd), "{round}");
        }
    }
}
