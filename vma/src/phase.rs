//! What is under way for a range, and how that changes: pure, without a lock or memory.
//!
//! At most one transfer is in flight for a range. Its phase says which; what belongs to a phase is set with it:
//!
//! | from | to | by |
//! |---|---|---|
//! | Idle | Reading | `begin_reading` |
//! | Reading, if it is ahead of its fault and nobody waits | Ahead | `keep_ahead` |
//! | Idle, Inactive | Filling | `begin_filling` |
//! | Filling | Idle, or Inactive where it was | `end_filling` |
//! | Idle; Reading, to leave a device | Inactive | `become_inactive` |
//! | Idle | Leaving | `begin_leaving` |
//! | Leaving | Idle | `end_leaving` |
//! | Inactive | Writing | `begin_writing` |
//! | Reading, Ahead, Inactive, Writing | Idle | `end` |
//!
//! `RangeGuard` has these for whoever has the range's lock (`transitions`): nothing else can change the phase. A hook
//! holds a range in the phases that are settled (`RangeGuard::hold`), beside the phase.

use hugeswap_mm::PageMask;

/// The transfer in flight for a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum IoState {
    Idle = 0,
    Reading = 1,
    Filling = 2,
    Writing = 3,
    Ahead = 4,
    Inactive = 5,
    Leaving = 6,
    /// Settled, and held by a hook until the kernel has said what becomes of the pages.
    Held = 7,
}

/// In the word beside the state that the range has without it.
pub(super) const HELD: u32 = 8;

impl IoState {
    /// No transfer is in flight.
    pub fn is_settled(self) -> bool {
        matches!(self, IoState::Idle | IoState::Ahead | IoState::Inactive)
    }
}

impl IoState {
    pub(super) fn from_word(w: u32) -> IoState {
        match w & HELD {
            0 => IoState::below(w),
            _ => IoState::Held,
        }
    }

    /// The state, held or not.
    pub(super) fn below(w: u32) -> IoState {
        match w & !HELD {
            0 => IoState::Idle,
            1 => IoState::Reading,
            2 => IoState::Filling,
            3 => IoState::Writing,
            4 => IoState::Ahead,
            6 => IoState::Leaving,
            _ => IoState::Inactive,
        }
    }
}

/// What belongs to the transfer of a range.
#[derive(Clone, Copy, Debug)]
pub struct UnderWay {
    /// Pages of the transfer in flight, or in the frame.
    pub(super) pages: PageMask,
    /// Pages that may be in the frame `frame`: see the module `vma`.
    pub(super) in_frame: PageMask,
    pub(super) frame: u32,
    /// Staging frame or fill buffer of the transfer in flight.
    pub(super) buffer: u32,
    /// Somebody faulted while the transfer was in flight.
    pub(super) wanted: bool,
    /// The folio that is being written is to come back as a whole.
    pub(super) back: bool,
    /// The read in flight is ahead of its fault.
    pub(super) ahead: bool,
    /// How often pages have become inactive.
    pub(super) turn: u32,
}

/// Whether one phase may follow another.
pub(super) fn may_follow(from: IoState, to: IoState) -> bool {
    use IoState::*;
    match to {
        Idle => from != Held,
        Reading | Leaving => from == Idle,
        Filling => matches!(from, Idle | Inactive),
        Ahead => from == Reading,
        Inactive => matches!(from, Idle | Filling | Reading),
        Writing => from == Inactive,
        Held => false,
    }
}

/// Each gives the phase that the range has from then on.
impl UnderWay {
    /// These pages are read into the frame.
    pub(super) fn begin_reading(&mut self, frame: u32, pages: PageMask) -> IoState {
        self.pages = pages;
        self.buffer = frame;
        IoState::Reading
    }

    /// These pages are read into the fill buffer. What the frame of an inactive range has stays there.
    pub(super) fn begin_filling(&mut self, buffer: u32, pages: PageMask) -> IoState {
        self.in_frame = self.pages;
        self.frame = self.buffer;
        self.pages = pages;
        self.buffer = buffer;
        IoState::Filling
    }

    /// The range is again what it was before `begin_filling`.
    pub(super) fn end_filling(&mut self) -> IoState {
        self.pages = self.in_frame;
        self.buffer = self.frame;
        match self.in_frame.is_empty() {
            true => IoState::Idle,
            false => IoState::Inactive,
        }
    }

    /// These pages are in the frame, and nowhere else.
    pub(super) fn become_inactive(&mut self, frame: u32, pages: PageMask) -> IoState {
        self.turn = self.turn.wrapping_add(1);
        self.pages = pages;
        self.buffer = frame;
        IoState::Inactive
    }

    /// Nothing is under way any more. Who waits is another matter.
    pub(super) fn end(&mut self) -> IoState {
        self.pages = PageMask::EMPTY;
        (self.back, self.ahead) = (false, false);
        IoState::Idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [IoState; 8] = [
        IoState::Idle,
        IoState::Reading,
        IoState::Filling,
        IoState::Writing,
        IoState::Ahead,
        IoState::Inactive,
        IoState::Leaving,
        IoState::Held,
    ];

    #[test]
    fn nothing_is_written_or_mapped_that_was_not_there() {
        for from in ALL {
            // Only what lies in a frame alone can be written.
            assert_eq!(
                may_follow(from, IoState::Writing),
                from == IoState::Inactive
            );
            // What is held is let go before anything happens to it.
            for to in ALL {
                assert!(!may_follow(IoState::Held, to) && !may_follow(to, IoState::Held));
            }
            // No transfer begins beside another.
            for to in [IoState::Reading, IoState::Leaving] {
                assert_eq!(may_follow(from, to), from == IoState::Idle);
            }
        }
    }
}
