//! Which way a fault goes, by what is known of its page: a table, without a lock, a system call or memory.

use crate::vma::{IoState, RangeGuard};

/// What a fault finds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub io: IoState,
    /// The page is there, and was protected against being written to.
    pub wp: bool,
    pub present: bool,
    /// In the range's frame, or on its way to a frame or a buffer.
    pub moving: bool,
    pub swapped: bool,
    pub compressed: bool,
    /// In its slot, and still mapped: see `lazyfree`.
    pub lazy: bool,
    /// It could not be read back, and is poisoned.
    pub lost: bool,
    /// The range is used in pieces: some can be read while its frame holds others.
    pub in_pieces: bool,
}

/// What is done with a frame that would be in the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum First {
    Nothing,
    /// Its pages go back to the program.
    Settle,
    /// It was read ahead, for another page; it is forgotten.
    Forget,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// A transfer is in flight; its end wakes everybody.
    Wait,
    /// Out of compressed memory.
    Decompress,
    /// The folio that was read ahead for this fault.
    MapAhead,
    /// Out of the frame that reclaim has moved it to.
    Rescue,
    /// The same, while the frame is being written.
    CopyBack,
    /// From its slot, while the frame goes on holding other pages.
    ReadBeside,
    /// From its slot.
    Read,
    /// A write to what is in its slot, and still mapped.
    Reuse,
    /// It should be there: an old message, or it was dropped behind our back.
    Recheck,
    /// Its poison is put there again.
    Poison,
    /// It was never touched: zeros.
    New,
}

impl Seen {
    pub fn of(g: &RangeGuard<'_>, page: usize, wp: bool) -> Seen {
        Seen {
            io: g.io(),
            wp,
            present: g.present.has(page),
            moving: g.moving().has(page),
            swapped: g.swapped.has(page),
            compressed: g.compressed.has(page),
            lazy: g.lazy.has(page),
            lost: g.lost.has(page),
            in_pieces: !g.huge && !g.salvage,
        }
    }

    pub fn way(self) -> (First, Way) {
        use IoState::*;
        let missing = !self.wp && !self.present;
        match self.io {
            Idle | Inactive | Filling | Writing | Ahead if self.wp && self.lazy => {
                (First::Nothing, Way::Reuse)
            }
            Idle | Inactive | Filling | Writing if missing && self.compressed => {
                (First::Nothing, Way::Decompress)
            }
            Ahead if missing && (self.compressed || self.moving) => (First::Nothing, Way::MapAhead),
            Inactive if missing && self.moving => (First::Nothing, Way::Rescue),
            Writing if missing && self.moving => (First::Nothing, Way::CopyBack),
            Idle => (First::Nothing, self.at_rest()),
            // What needs no read has nothing to do with what the frame holds.
            Inactive | Writing if !(missing && self.swapped) => (First::Nothing, self.at_rest()),
            Inactive if self.in_pieces => (First::Nothing, Way::ReadBeside),
            Inactive => (First::Settle, Way::Read),
            Ahead if !missing => (First::Nothing, Way::Recheck),
            Ahead => (First::Forget, self.at_rest()),
            Reading | Filling | Writing | Leaving | Held => (First::Nothing, Way::Wait),
        }
    }

    /// Where no transfer is in flight and no frame is in the way.
    fn at_rest(self) -> Way {
        match self {
            Seen { wp: true, .. } | Seen { present: true, .. } => Way::Recheck,
            Seen { swapped: true, .. } => Way::Read,
            Seen { lost: true, .. } => Way::Poison,
            _ => Way::New,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use IoState::*;

    const STATES: [IoState; 8] = [
        Idle, Reading, Filling, Writing, Ahead, Inactive, Leaving, Held,
    ];

    /// Everything that a fault can find, and much that it can't.
    fn all() -> impl Iterator<Item = Seen> {
        STATES.into_iter().flat_map(|io| {
            (0..256).map(move |bits: u32| {
                let is = |n: u32| bits >> n & 1 == 1;
                Seen {
                    io,
                    wp: is(0),
                    present: is(1),
                    moving: is(2),
                    swapped: is(3),
                    compressed: is(4),
                    lost: is(5),
                    in_pieces: is(6),
                    lazy: is(7),
                }
            })
        })
    }

    fn missing(s: &Seen) -> bool {
        !s.wp && !s.present
    }

    #[test]
    fn nothing_that_is_somewhere_becomes_zeros() {
        for s in all() {
            let somewhere = s.present || s.moving && s.io != Idle;
            let somewhere = somewhere || s.swapped || s.compressed || s.lost;
            let (first, way) = s.way();
            if way == Way::New {
                assert!(!somewhere && !s.wp, "{s:?}");
            }
            // Of what is there only its protection and its absence are looked at.
            if !missing(&s) {
                let as_it_is = matches!(way, Way::Recheck | Way::Wait);
                assert!(
                    as_it_is || way == Way::Reuse && s.wp && s.lazy,
                    "{s:?} {way:?}"
                );
                assert_eq!(first, First::Nothing, "{s:?}");
            }
        }
    }

    #[test]
    fn the_newest_copy_is_taken() {
        for s in all().filter(missing) {
            let (first, way) = s.way();
            let reads = matches!(way, Way::Read | Way::ReadBeside);
            if reads {
                // What compressed memory or a frame holds is newer than a slot, or the same.
                assert!(s.swapped && !s.compressed, "{s:?} {way:?}");
                assert!(!s.moving || s.io == Idle, "{s:?} {way:?}");
            }
            match way {
                Way::Decompress => assert!(s.compressed, "{s:?}"),
                Way::Rescue => assert!(s.moving && s.io == Inactive, "{s:?}"),
                Way::CopyBack => assert!(s.moving && s.io == Writing, "{s:?}"),
                Way::MapAhead => assert!(s.io == Ahead, "{s:?}"),
                Way::Poison => assert!(s.lost && !s.swapped, "{s:?}"),
                _ => {}
            }
            match first {
                First::Settle => assert!(s.io == Inactive && way == Way::Read, "{s:?}"),
                First::Forget => assert!(s.io == Ahead && !s.moving, "{s:?}"),
                First::Nothing => {}
            }
        }
    }

    #[test]
    fn transfers_of_the_page_itself_are_waited_for() {
        for s in all() {
            let (_, way) = s.way();
            match s.io {
                Leaving | Held | Reading => assert_eq!(way, Way::Wait, "{s:?}"),
                // The range's only buffer or frame is in use.
                Filling | Writing if missing(&s) && s.swapped && !s.compressed && !s.moving => {
                    assert_eq!(way, Way::Wait, "{s:?}");
                }
                Idle | Inactive | Ahead => assert_ne!(way, Way::Wait, "{s:?}"),
                _ => {}
            }
        }
    }
}
