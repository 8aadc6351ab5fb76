//! What the hooks know of the address space.

use crate::window::{Extents, Window};
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
    /// Stays where it is for another reason: guard pages, mutexes that the kernel reads.
    pub pinned: Extents,
    /// Made inaccessible by the program, and kept apart from the window (`hooks::protect`).
    pub apart: Extents,
    /// What is mapped from now on is locked: the flags of mlockall, 0 for none.
    pub lock_future: i32,
    /// The kernel's mapping carries flags that a later mapping at its place must not inherit.
    pub flagged: Extents,
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
            apart: Extents::new(),
            lock_future: 0,
            flagged: Extents::new(),
        }
    }

    /// Whether the stretch has anything to do with us.
    pub fn is_ours(&self, start: usize, end: usize) -> bool {
        self.regions.intersects(start, end) || (start < self.window.end && end > self.window.start)
    }

    /// The parts of a managed stretch that reclaim may take, as far as protection allows.
    pub fn movable(&self, start: usize, end: usize) -> Vec<(usize, usize)> {
        let mut out = Extents::new();
        out.insert(start, end);
        for (s, e) in self
            .locked
            .overlaps(start, end)
            .into_iter()
            .chain(self.pinned.overlaps(start, end))
        {
            out.remove(s, e);
        }
        out.iter().collect()
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
    fn areas_are_told_apart() {
        let mut s = State::empty();
        s.window = crate::window::Window::new(1000, 2000);
        s.regions.insert(1000, 2000);
        s.regions.insert(3000, 4000);
        assert!(s.window.take_at(1100, 1300));
        assert!(s.window.take_at(1400, 1500));
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
