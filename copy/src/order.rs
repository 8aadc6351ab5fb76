//! In which order the sub-pages of a huge page are processed. Pure.
//!
//! A plan is a sequence of [`Run`]s: contiguous sub-pages, processed upwards.
//! Every plan covers every sub-page exactly once.

/// Sub-pages on each side of the target that mainline's order keeps for last.
pub const LOCALITY_RADIUS: usize = 2;

/// A contiguous piece of a huge page, processed in ascending address order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First sub-page.
    pub first: usize,
    /// Number of sub-pages, at least 1.
    pub nr: usize,
}

/// The order of reference 004 (`process_huge_page`): the end that is farther
/// from the target first, then left and right in turn towards the target.
///
/// Sub-pages come one at a time; the last four are `n - 2, n + 1, n - 1, n`
/// where the page has them.
#[derive(Clone, Debug)]
pub struct TargetLast {
    /// Sub-pages of the far end still to come.
    far: core::ops::Range<usize>,
    far_descends: bool,
    /// Sub-pages of the symmetric part around the target still to come.
    around: core::ops::Range<usize>,
    right_next: bool,
}

impl TargetLast {
    /// Order for a huge page of `nr` sub-pages with target `n < nr`.
    pub const fn new(nr: usize, n: usize) -> Self {
        debug_assert!(n < nr);
        if n <= nr - n {
            // Target in the first half: the far end is the upper one.
            Self {
                far: 2 * n..nr,
                far_descends: true,
                around: 0..2 * n,
                right_next: false,
            }
        } else {
            let base = n - (nr - n);
            Self {
                far: 0..base,
                far_descends: false,
                around: base..nr,
                right_next: false,
            }
        }
    }
}

impl Iterator for TargetLast {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let far = if self.far_descends {
            self.far.next_back()
        } else {
            self.far.next()
        };
        if far.is_some() {
            return far;
        }
        let right = self.right_next;
        self.right_next = !right;
        if right {
            self.around.next_back()
        } else {
            self.around.next()
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.far.len() + self.around.len();
        (left, Some(left))
    }
}

impl ExactSizeIterator for TargetLast {}

/// Mainline's order (`folio_zero_user`): what lies right of the target's
/// neighbourhood, what lies left of it, then the neighbourhood.
///
/// Runs that would be empty are `None`.
pub const fn ranges(nr: usize, n: usize) -> [Option<Run>; 3] {
    let lo = n.saturating_sub(LOCALITY_RADIUS);
    let hi = if nr - n <= LOCALITY_RADIUS {
        nr
    } else {
        n + LOCALITY_RADIUS + 1
    };
    [run(hi, nr), run(0, lo), run(lo, hi)]
}

/// The order of the measured strategies: large runs, so that string moves and
/// hardware prefetch get going, with what the program reaches next written
/// latest.
///
/// Left of the target in one run; right of it in runs of `chunk` sub-pages from
/// the end downwards; then the right neighbours, the left neighbours and the
/// target itself.
#[derive(Clone, Debug)]
pub struct Chunks {
    left: core::ops::Range<usize>,
    right: core::ops::Range<usize>,
    chunk: usize,
    near: [Option<Run>; 3],
}

impl Chunks {
    /// Order for a huge page of `nr` sub-pages with target `n < nr`.
    pub const fn new(nr: usize, n: usize, chunk: usize) -> Self {
        debug_assert!(n < nr && chunk > 0);
        let lo = n.saturating_sub(LOCALITY_RADIUS);
        let hi = if nr - n <= LOCALITY_RADIUS {
            nr
        } else {
            n + LOCALITY_RADIUS + 1
        };
        Self {
            left: 0..lo,
            right: hi..nr,
            chunk,
            near: [run(n + 1, hi), run(lo, n), run(n, n + 1)],
        }
    }

    /// The next run, and whether it belongs to the target's neighbourhood.
    pub fn next_run(&mut self) -> Option<(Run, bool)> {
        if !self.left.is_empty() {
            let left = core::mem::replace(&mut self.left, 0..0);
            return run(left.start, left.end).map(|r| (r, false));
        }
        if !self.right.is_empty() {
            let end = self.right.end;
            let start = self.right.start.max(end.saturating_sub(self.chunk));
            self.right.end = start;
            return run(start, end).map(|r| (r, false));
        }
        self.near
            .iter_mut()
            .find_map(Option::take)
            .map(|r| (r, true))
    }
}

/// The run `start..end`, unless it is empty.
pub(super) const fn run(start: usize, end: usize) -> Option<Run> {
    if start < end {
        Some(Run {
            first: start,
            nr: end - start,
        })
    } else {
        None
    }
}
