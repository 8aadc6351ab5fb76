//! What is under way for a range, as whoever has its lock changes it: the transitions of `phase`, and the word on which
//! others wait for their end.

use super::phase::{may_follow, IoState};
use super::table::{RangeGuard, State};
use hugeswap_mm::PageMask;

impl State {
    /// Pages of the transfer in flight, or in the frame.
    #[inline]
    pub fn moving(&self) -> PageMask {
        self.under_way.pages
    }

    /// The frame or fill buffer of the transfer.
    #[inline]
    pub fn buffer(&self) -> u32 {
        self.under_way.buffer
    }

    /// Pages that `track` names; while Filling those that are inactive meanwhile.
    #[inline]
    pub fn in_frame(&self) -> PageMask {
        self.under_way.in_frame
    }

    /// How often pages of it have become inactive: which ones they are now.
    pub fn turn(&self) -> u32 {
        self.under_way.turn
    }

    /// Somebody faulted while the transfer was in flight.
    pub fn is_wanted(&self) -> bool {
        self.under_way.wanted
    }

    /// The folio that is being written is to come back as a whole.
    pub fn is_wanted_back(&self) -> bool {
        self.under_way.back
    }

    /// The read in flight is ahead of its fault.
    pub fn is_ahead(&self) -> bool {
        self.under_way.ahead
    }

    /// Somebody waits until the transfer ends.
    pub fn want(&mut self) {
        self.under_way.wanted = true;
    }

    /// Whether somebody waits, who is woken by the caller.
    pub fn take_wanted(&mut self) -> bool {
        core::mem::take(&mut self.under_way.wanted)
    }

    /// Somebody waits until the write ends, and wants the folio as a whole then.
    pub fn want_back(&mut self) {
        self.under_way.back = true;
        self.want();
    }

    /// The read that has begun is ahead of its fault.
    pub fn mark_ahead(&mut self) {
        self.under_way.ahead = true;
    }

    /// From now on these pages may be in that frame and nowhere else: nobody needs that but the reader of a core file.
    pub fn track(&mut self, frame: u32, pages: PageMask) {
        self.under_way.frame = frame;
        self.under_way.in_frame = pages;
    }

    /// The end of `track`.
    pub fn untrack(&mut self) {
        self.under_way.in_frame = PageMask::EMPTY;
    }

    /// Of an inactive range, or one that is being written: these pages are elsewhere, and not the frame's any more.
    pub fn leave_frame(&mut self, pages: PageMask) {
        self.under_way.pages = self.under_way.pages.minus(pages);
    }
}

impl RangeGuard<'_> {
    fn become_(&mut self, phase: IoState) {
        debug_assert!(may_follow(self.io(), phase), "{:?}, {phase:?}", self.io());
        self.set_io(phase);
    }

    /// These pages are read into the frame.
    pub fn begin_reading(&mut self, frame: u32, pages: PageMask) {
        let phase = self.under_way.begin_reading(frame, pages);
        self.become_(phase);
    }

    /// What was read ahead of its fault waits in its frame.
    pub fn keep_ahead(&mut self) {
        self.become_(IoState::Ahead);
    }

    /// These pages are read into the fill buffer. What the frame of an inactive range has stays there.
    pub fn begin_filling(&mut self, buffer: u32, pages: PageMask) {
        let phase = self.under_way.begin_filling(buffer, pages);
        self.become_(phase);
    }

    /// The range is again what it was before `begin_filling`.
    pub fn end_filling(&mut self) {
        let phase = self.under_way.end_filling();
        self.become_(phase);
        self.untrack();
    }

    /// These pages are in the frame, and nowhere else.
    pub fn become_inactive(&mut self, frame: u32, pages: PageMask) {
        let phase = self.under_way.become_inactive(frame, pages);
        self.become_(phase);
        self.untrack();
    }

    /// Faults wait, and nobody else changes the range.
    pub fn begin_leaving(&mut self) {
        self.become_(IoState::Leaving);
    }

    /// The end of `begin_leaving`.
    pub fn end_leaving(&mut self) {
        self.become_(IoState::Idle);
    }

    /// The frame's pages leave for good: from here on nobody changes them there.
    pub fn begin_writing(&mut self) {
        self.become_(IoState::Writing);
    }

    /// Nothing is under way any more. Who waits is another matter: see `take_wanted`.
    pub fn end(&mut self) {
        let phase = self.under_way.end();
        self.become_(phase);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ranges;
    use hugeswap_mm::Pmd;

    #[test]
    fn a_fill_gives_the_frame_back_as_it_was() {
        let ranges = Ranges::new().unwrap();
        let mut g = ranges.get_or_map(Pmd(5)).unwrap().lock();
        let pages = PageMask::of(3..9);
        g.become_inactive(7, pages);
        g.begin_filling(2, PageMask::of(20..24));
        assert_eq!((g.moving().count(), g.buffer()), (4, 2));
        assert_eq!(g.in_frame(), pages);
        g.end_filling();
        assert_eq!(g.io(), IoState::Inactive);
        assert_eq!((g.moving(), g.buffer()), (pages, 7));
        assert!(g.in_frame().is_empty());
        g.leave_frame(PageMask::of(0..4));
        g.begin_writing();
        g.want_back();
        assert!(g.is_wanted_back() && g.moving() == PageMask::of(4..9));
        g.end();
        assert!(!g.is_wanted_back() && g.moving().is_empty());
        // Who waits is not forgotten with the transfer.
        assert!(g.take_wanted() && !g.take_wanted());
        // From nothing a fill comes back to nothing.
        g.begin_filling(2, pages);
        assert!(g.in_frame().is_empty());
        g.end_filling();
        assert_eq!(g.io(), IoState::Idle);
    }
}
