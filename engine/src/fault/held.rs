//! Faults that wait until it is this process's turn. Pure.
//!
//! Where the processes of a run use more than there is, the supervisor has some of them wait, so that others get on
//! (`supervise/src/arbiter/thrash.rs`). One that waits goes on with the pages that it has, and each thread sleeps in its next
//! fault. Nothing is kept of that but the address: when the turn comes the threads are woken, and fault again.

use crate::mm::PAGE_SIZE;

/// Pages that threads wait for. Faults beyond are served.
const MOST: usize = 64;
/// A page that is waited for comes again when a signal interrupts its thread. In a system call the kernel tries
/// again at once, until the page is there: so after so many of these such pages are served.
const AGAIN: usize = 16;
/// Longer than this nobody waits, whatever the supervisor says: it may have been stopped.
const LONGEST_NS: u64 = 30_000_000_000;

pub struct Held {
    pages: [usize; MOST],
    nr: usize,
    again: usize,
    since_ns: u64,
}

impl Held {
    pub const fn new() -> Held {
        Held {
            pages: [0; MOST],
            nr: 0,
            again: 0,
            since_ns: 0,
        }
    }

    pub fn nr(&self) -> usize {
        self.nr
    }

    /// A thread waits for the page at `addr`. False if it is to be served.
    pub fn put(&mut self, addr: usize, now_ns: impl FnOnce() -> u64) -> bool {
        let page = addr & !(PAGE_SIZE - 1);
        if self.pages[..self.nr].contains(&page) {
            self.again += 1;
            return self.again <= AGAIN;
        }
        let Some(place) = self.pages.get_mut(self.nr) else {
            return false;
        };
        if self.nr == 0 {
            (self.since_ns, self.again) = (now_ns(), 0);
        }
        *place = page;
        self.nr += 1;
        true
    }

    pub fn have_waited_too_long(&self, now_ns: u64) -> bool {
        self.nr > 0 && now_ns.saturating_sub(self.since_ns) > LONGEST_NS
    }

    /// Lets them go: `wake` gets the pages. Says how long the first of them has waited.
    pub fn let_go(&mut self, now_ns: u64, wake: impl FnMut(usize)) -> u64 {
        let nr = core::mem::take(&mut self.nr);
        self.pages[..nr].iter().copied().for_each(wake);
        now_ns.saturating_sub(self.since_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn woken(held: &mut Held, now_ns: u64) -> (Vec<usize>, u64) {
        let mut pages = Vec::new();
        let waited = held.let_go(now_ns, |page| pages.push(page));
        (pages, waited)
    }

    #[test]
    fn each_page_is_woken_once() {
        let mut held = Held::new();
        assert!(held.put(0x1234, || 10) && held.put(0x5000, || 20) && held.put(0x1fff, || 30));
        assert_eq!(held.nr(), 2);
        assert_eq!(woken(&mut held, 110), (vec![0x1000, 0x5000], 100));
        assert_eq!((held.nr(), woken(&mut held, 120).0), (0, vec![]));
    }

    #[test]
    fn those_for_whom_there_is_no_place_do_not_wait() {
        let mut held = Held::new();
        assert!((0..MOST).all(|i| held.put(i * PAGE_SIZE, || 0)));
        assert!(!held.put(MOST * PAGE_SIZE, || 0) && held.put(7, || 0));
        assert_eq!(woken(&mut held, 0).0.len(), MOST);
        assert!(held.put(MOST * PAGE_SIZE, || 0));
    }

    #[test]
    fn one_that_comes_again_and_again_is_served() {
        let mut held = Held::new();
        assert!((0..=AGAIN).all(|_| held.put(0x1000, || 0)));
        assert!(!held.put(0x1000, || 0) && held.put(0x2000, || 0));
        assert_eq!(woken(&mut held, 0).0, vec![0x1000, 0x2000]);
        assert!(held.put(0x1000, || 0) && held.put(0x1000, || 0));
    }

    #[test]
    fn nobody_waits_for_ever() {
        let mut held = Held::new();
        assert!(!held.have_waited_too_long(u64::MAX), "nobody waits");
        held.put(0, || 5);
        held.put(PAGE_SIZE, || LONGEST_NS);
        assert!(!held.have_waited_too_long(LONGEST_NS));
        assert!(held.have_waited_too_long(LONGEST_NS + 6));
    }
}
