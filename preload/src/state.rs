//! What the hooks know of the address space.

use crate::window::{Extents, Window};
use hugeswap::mm::PAGE_SIZE;
use hugeswap::sync::Mutex;

pub struct State {
    pub window: Window,
    /// Registered with the engine: the window and what was adopted.
    pub regions: Extents,
    /// Mappings of other kinds that the program put over parts of the window.
    pub foreign: Extents,
    /// A forked child finds zeros here: MADV_WIPEONFORK.
    pub wiped: Extents,
    /// Locked by mlock and its like.
    pub locked: Extents,
    /// Stays where it is for another reason: mutexes that the kernel reads.
    pub pinned: Extents,
    /// Guard pages: MADV_GUARD_INSTALL.
    pub guarded: Extents,
    /// Has a protection key.
    pub keyed: Extents,
    /// Made inaccessible by the program, and kept apart from the window (`protect`).
    pub apart: Extents,
    /// What is mapped from now on is locked: the flags of mlockall, 0 for none.
    pub lock_future: i32,
    /// Let go of for userfaultfds of the program's own.
    pub released: Extents,
    /// Addresses that the break may come to, and what of them the program has mapped itself.
    pub heap: (usize, usize),
    pub in_heap: Extents,
}

/// What lies at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Area {
    Outside,
    /// In the window, not mapped as far as the program knows.
    Free,
    /// In the window, mapped.
    Window,
    /// Managed, outside the window.
    Region,
    /// In the window, but not ours.
    Foreign,
}

static STATE: Mutex<State> = Mutex::new(State::empty());

pub fn state() -> &'static Mutex<State> {
    &STATE
}

impl State {
    const fn empty() -> State {
        State {
            window: Window::empty(),
            regions: Extents::new(),
            foreign: Extents::new(),
            wiped: Extents::new(),
            locked: Extents::new(),
            pinned: Extents::new(),
            guarded: Extents::new(),
            keyed: Extents::new(),
            apart: Extents::new(),
            lock_future: 0,
            released: Extents::new(),
            heap: (0, 0),
            in_heap: Extents::new(),
        }
    }

    /// Whether the stretch has anything to do with us.
    pub fn is_ours(&self, start: usize, end: usize) -> bool {
        self.regions.intersects(start, end) || (start < self.window.end && end > self.window.start)
    }

    /// If all of the stretch is the program's own business, though in the window, it is struck out, for
    /// it to be unmapped.
    pub fn take_foreign(&mut self, start: usize, end: usize) -> bool {
        let all = self.window.holds(start, end) && self.foreign.contains(start, end);
        if all {
            self.foreign.remove(start, end);
            self.window.strip(start, end);
        }
        all
    }

    /// Whether a call is about memory that is none of ours, so that there is nothing to be noted.
    pub fn is_elsewhere(&self, call: usize, a: [usize; 6]) -> bool {
        use crate::frame::*;
        if !matches!(
            call,
            MUNMAP
                | MPROTECT
                | PKEY_MPROTECT
                | MADVISE
                | MREMAP
                | MLOCK
                | MLOCK2
                | MUNLOCK
                | MINCORE
                | MSEAL
                | MBIND
        ) {
            return false;
        }
        if call == MREMAP && a[3] & libc::MREMAP_FIXED as usize != 0 {
            return false;
        }
        let start = a[0] & !(PAGE_SIZE - 1);
        let end = a[0]
            .checked_add(a[1])
            .and_then(|e| e.checked_next_multiple_of(PAGE_SIZE));
        let Some(end) = end.filter(|&e| e > start) else {
            return false;
        };
        let is_foreign = |(area, _, _): &(Area, usize, usize)| match area {
            Area::Outside => true,
            // Its place is given back, or it takes some of what is next to it.
            Area::Foreign => !matches!(call, MUNMAP | MREMAP),
            _ => false,
        };
        !self.is_ours(start, end)
            || self.foreign.intersects(start, end) && self.areas(start, end).iter().all(is_foreign)
    }

    /// The parts of the stretch that are managed, and that reclaim may take as far as protection allows.
    pub fn movable(&self, start: usize, end: usize) -> Vec<(usize, usize)> {
        let mut out = Extents::new();
        for (s, e) in self.regions.overlaps(start, end) {
            out.insert(s, e);
        }
        for set in [&self.locked, &self.pinned, &self.guarded, &self.keyed] {
            for (s, e) in set.overlaps(start, end) {
                out.remove(s, e);
            }
        }
        out.iter().collect()
    }

    /// The stretch was unmapped, or something new is mapped there: what was said of it is no more.
    pub fn forget(&mut self, start: usize, end: usize) {
        for set in [
            &mut self.regions,
            &mut self.foreign,
            &mut self.wiped,
            &mut self.locked,
            &mut self.pinned,
            &mut self.guarded,
            &mut self.keyed,
            &mut self.apart,
            &mut self.released,
            &mut self.in_heap,
        ] {
            set.remove(start, end);
        }
    }

    /// The program has mapped it, and it is managed.
    pub fn put_region(&mut self, start: usize, end: usize) {
        self.regions.insert(start, end);
        let (from, to) = (start.max(self.heap.0), end.min(self.heap.1));
        self.in_heap.insert(from, to);
    }

    /// Of the heap's addresses: nothing is there that the program has mapped itself, nor a hole that it has made.
    pub fn is_unused_heap(&self, start: usize, end: usize) -> bool {
        self.regions.contains(start, end) && !self.in_heap.intersects(start, end)
    }

    /// Of the heap's addresses, where the program has unmapped what was there, or has mapped what is not ours.
    pub fn missing_heap(&self, start: usize, end: usize) -> Vec<(usize, usize)> {
        let mut rest = Extents::new();
        rest.insert(start, end);
        for (from, to) in self.regions.overlaps(start, end) {
            rest.remove(from, to);
        }
        rest.iter().collect()
    }

    /// Nothing is mapped there any more.
    pub fn unmapped(&mut self, holes: &[(usize, usize)]) {
        for &(from, to) in holes {
            self.forget(from, to);
            self.window.strip(from, to);
        }
    }

    /// A mapping that is not ours lies there.
    pub fn put_foreign(&mut self, start: usize, end: usize) {
        let (from, to) = (start.max(self.window.start), end.min(self.window.end));
        if from < to {
            self.foreign.insert(from, to);
            self.window.claim(from, to);
        }
    }

    /// Something was mapped where nothing was known to be: it is not ours, but for what has become so meanwhile.
    pub fn found_taken(&mut self, start: usize, end: usize) {
        let mut rest = Extents::new();
        rest.insert(start, end);
        for (from, to) in self.regions.overlaps(start, end) {
            rest.remove(from, to);
        }
        for (from, to) in rest.iter() {
            self.put_foreign(from, to);
        }
    }

    fn area(&self, at: usize) -> Area {
        if self.foreign.contains(at, at + 1) {
            Area::Foreign
        } else if at >= self.window.start && at < self.window.end {
            if self.window.is_free(at, at + 1) {
                Area::Free
            } else if self.regions.contains(at, at + 1) {
                Area::Window
            } else {
                Area::Outside
            }
        } else if self.regions.contains(at, at + 1) {
            Area::Region
        } else {
            Area::Outside
        }
    }

    /// Splits `[start, end)` by what lies there.
    pub fn areas(&self, start: usize, end: usize) -> Vec<(Area, usize, usize)> {
        let mut cuts = vec![start, end];
        for (s, e) in self
            .regions
            .overlaps(start, end)
            .into_iter()
            .chain(self.foreign.overlaps(start, end))
            .chain(self.window.free_in(start, end))
        {
            cuts.push(s);
            cuts.push(e);
        }
        for c in [self.window.start, self.window.end] {
            if c > start && c < end {
                cuts.push(c);
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2)
            .map(|w| (self.area(w[0]), w[0], w[1]))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_elsewhere_are_left_alone() {
        use crate::frame::*;
        let at = |page: usize| page * PAGE_SIZE;
        let mut s = State::empty();
        s.window = crate::window::Window::new(at(100), at(200));
        s.regions.insert(at(100), at(200));
        s.window.claim(at(110), at(120));
        s.regions.remove(at(110), at(120));
        s.foreign.insert(at(110), at(120));
        let elsewhere = |call, from, to, flags| {
            s.is_elsewhere(call, [at(from), at(to) - at(from), 0, flags, 0, 0])
        };
        assert!(elsewhere(MUNMAP, 1, 100, 0) && elsewhere(MADVISE, 200, 201, 0));
        assert!(!elsewhere(MUNMAP, 99, 101, 0) && !elsewhere(MMAP, 1, 2, 0));
        assert!(elsewhere(MADVISE, 110, 120, 0) && !elsewhere(MUNMAP, 110, 120, 0));
        assert!(!elsewhere(MREMAP, 110, 120, 0));
        assert!(!elsewhere(MADVISE, 110, 121, 0) && !elsewhere(MADVISE, 5, 5, 0));
        let fixed = libc::MREMAP_FIXED as usize;
        assert!(elsewhere(MREMAP, 1, 2, 0) && !elsewhere(MREMAP, 1, 2, fixed));
    }

    #[test]
    fn only_what_is_managed_may_leave() {
        let mut s = State::empty();
        s.regions.insert(100, 300);
        s.regions.insert(500, 600);
        assert_eq!(s.movable(0, 1000), [(100, 300), (500, 600)]);
        s.pinned.insert(120, 130);
        s.guarded.insert(125, 150);
        s.guarded.remove(125, 150);
        assert_eq!(s.movable(110, 400), [(110, 120), (130, 300)]);
        assert!(s.movable(300, 500).is_empty());
    }

    #[test]
    fn what_was_adopted_meanwhile_is_ours() {
        let mut s = State::empty();
        s.window = crate::window::Window::new(1000, 2000);
        s.regions.insert(1200, 1300);
        s.window.claim(1200, 1300);
        s.found_taken(1100, 1400);
        assert_eq!(
            s.foreign.iter().collect::<Vec<_>>(),
            [(1100, 1200), (1300, 1400)]
        );
        assert_eq!(s.areas(1200, 1300), [(Area::Window, 1200, 1300)]);
    }

    #[test]
    fn areas_are_told_apart() {
        let mut s = State::empty();
        s.window = crate::window::Window::new(1000, 2000);
        s.regions.insert(1000, 2000);
        s.regions.insert(3000, 4000);
        s.window.claim(1100, 1300);
        s.window.claim(1400, 1500);
        s.regions.remove(1400, 1500);
        s.foreign.insert(1400, 1500);
        use Area::*;
        assert_eq!(
            s.areas(900, 3100),
            [
                (Outside, 900, 1000),
                (Free, 1000, 1100),
                (Window, 1100, 1300),
                (Free, 1300, 1400),
                (Foreign, 1400, 1500),
                (Free, 1500, 2000),
                (Outside, 2000, 3000),
                (Region, 3000, 3100)
            ]
        );
    }
}
