//! How far walks go, learned from those before: how many of the pages that walks went after they had come to 2^k were
//! the last.
//!
//! So what is brought in for one follows from what it is likely to use, and not from how often it went on: a program
//! that reads objects of three pages ends its walks after three, one that scans never does. A walk has ended if nothing
//! has gone on with it until its place was needed for another. A program that scans the same memory again and again
//! always ends at the same place; that is one page among many thousands before it.

use hugeswap_mm::PMD_NR;

/// 2^0 to 2^15 pages: 128 MiB. A walk that has come further goes on as others did from there.
const LEVELS: usize = 16;
/// So likely it must be that the last page of what is brought in is used: of single pages, where one too many costs little
/// and one too few a fault; of a whole range, which makes others leave; and of ranges that nobody waits for. By the
/// traces of real programs (docs/policies.md): a tenth up or down makes little difference.
const LIKELY: f32 = 0.3;
const LIKELY_WHOLE: f32 = 0.5;
const LIKELY_AHEAD: f32 = 0.8;
/// So many times what it has come to at most: else a stride whose pages are all among what is brought in would look
/// like a walk.
const GROWTH: u64 = 4;
/// How many are thought to come to twice as much before anything was seen, of single faults, of walks, and of those that
/// take whole ranges; and as how many walks that counts.
const FIRST: [f32; 3] = [0.2, 0.75, 0.85];
const WEIGHT: f32 = 4.0;
/// An average forgets: it is over so many walks, nearly.
const MEMORY: f32 = 32.0;

/// Of walks that have come to 2^k pages, and not yet to twice that.
#[derive(Clone, Copy)]
struct Level {
    /// Pages that they went on.
    went: f32,
    /// How many of them ended.
    ended: f32,
    /// The logarithm of the part of pages that are not the last: what one more page makes of the likelihood.
    page: f32,
}

impl Level {
    /// As if `WEIGHT` walks had been seen, of which this part came to twice the level.
    fn first(level: usize, on: f32) -> Level {
        let page = on.ln() / (1u64 << level) as f32;
        let ended = WEIGHT * (1.0 - on);
        Level {
            went: ended / -page.exp_m1() - ended,
            ended,
            page,
        }
    }

    /// A walk has gone so many pages on from there.
    fn went_on(&mut self, pages: u64) {
        self.note(pages, 0.0);
    }

    /// The same, and has come to its end.
    fn ended_after(&mut self, pages: u64) {
        self.note(pages, 1.0);
    }

    fn note(&mut self, pages: u64, ends: f32) {
        let keep = 1.0 - 1.0 / MEMORY;
        self.went = self.went * keep + pages as f32;
        self.ended = self.ended * keep + ends;
        self.page = -(self.ended / self.went.max(f32::MIN_POSITIVE)).ln_1p();
    }
}

pub struct Lengths([Level; LEVELS]);

impl Default for Lengths {
    fn default() -> Lengths {
        let first = |level| match level {
            0 => FIRST[0],
            _ if level < self::level(PMD_NR as u64) => FIRST[1],
            _ => FIRST[2],
        };
        Lengths(core::array::from_fn(|level| {
            Level::first(level, first(level))
        }))
    }
}

/// The last level that a walk of so many pages has come to.
fn level(pages: u64) -> usize {
    (pages.max(1).ilog2() as usize).min(LEVELS - 1)
}

/// The parts of a walk from one length to another, by levels: which, and how many pages of it.
fn parts(from: u64, to: u64) -> impl Iterator<Item = (usize, u64)> {
    let mut at = from.max(1);
    core::iter::from_fn(move || {
        let level = level(at);
        let end = match level < LEVELS - 1 {
            true => to.min(2 << level),
            false => to,
        };
        let pages = end.checked_sub(at).filter(|pages| *pages > 0)?;
        at = end;
        Some((level, pages))
    })
}

impl Lengths {
    /// A walk that had come to so many pages has come to more.
    pub fn goes_on(&mut self, from: u64, to: u64) {
        for passed in level(from)..level(to) {
            self.0[passed].went_on(1 << passed);
        }
    }

    /// A walk of so many pages has come to its end.
    pub fn ended(&mut self, pages: u64) {
        let level = level(pages);
        self.0[level].ended_after(pages.max(1) - (1 << level));
    }

    /// How likely a walk that has come to `from` pages comes to so many.
    fn likely(&self, from: u64, to: u64) -> f32 {
        let each = parts(from, to).map(|(level, pages)| self.0[level].page * pages as f32);
        each.sum::<f32>().exp()
    }

    /// Pages to bring in for a walk that has come to so many, with the one that is waited for: a power of two, `most` at most.
    pub fn window(&self, pages: u64, most: u64) -> u64 {
        let mut window = 1;
        while 2 * window <= most.min(GROWTH * pages)
            && self.likely(pages, pages + 2 * window - 1) >= LIKELY
        {
            window *= 2;
        }
        window
    }

    /// Whether it is likely to use up a range.
    pub fn takes_whole(&self, pages: u64) -> bool {
        self.likely(pages, pages + PMD_NR as u64) >= LIKELY_WHOLE
    }

    /// How many ranges after that it is so likely to use up that they may be read ahead, `most` at most.
    pub fn ahead(&self, pages: u64, most: usize) -> usize {
        let to = |n: &usize| pages + ((n + 1) * PMD_NR) as u64;
        let comes = |n: &usize| self.likely(pages, to(n)) >= LIKELY_AHEAD;
        (1..=most).take_while(comes).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks of these lengths, of which every step is seen.
    fn after(walks: impl Iterator<Item = u64>) -> Lengths {
        let mut lengths = Lengths::default();
        for walk in walks {
            (1..walk).for_each(|at| lengths.goes_on(at, at + 1));
            lengths.ended(walk);
        }
        lengths
    }

    /// Beyond which no walk of these tests comes.
    const MOST: u64 = 64;

    #[test]
    fn at_first_a_jump_brings_a_page_and_walks_grow() {
        let lengths = Lengths::default();
        let windows = [1, 2, 8, 40].map(|pages| lengths.window(pages, MOST));
        assert_eq!(windows, [1, 8, 32, 64]);
        // A range that was walked through, and the next as well.
        assert!(!lengths.takes_whole(40) && lengths.takes_whole(512));
        let ahead = [512, 2048, 8192].map(|pages| lengths.ahead(pages, 4));
        assert!(ahead[0] == 0 && ahead[1] >= 1 && ahead[2] == 4, "{ahead:?}");
    }

    #[test]
    fn jumps_bring_one_page() {
        let lengths = after((0..200).map(|_| 1));
        assert_eq!(lengths.window(1, MOST), 1);
        // Should one walk all the same, it is taken for what walks were thought to be.
        assert!(lengths.window(8, MOST) > 8);
    }

    #[test]
    fn objects_of_some_pages_come_as_such() {
        let lengths = after((0..200).map(|_| 4));
        assert_eq!([1, 4].map(|pages| lengths.window(pages, MOST)), [4, 1]);
        assert!(!lengths.takes_whole(4));
    }

    #[test]
    fn who_scans_gets_as_much_as_there_is() {
        let lengths = after((0..40).map(|_| 100_000));
        assert_eq!([1, 4, 16].map(|p| lengths.window(p, MOST)), [4, 16, 64]);
        assert!(lengths.takes_whole(16));
        assert_eq!(lengths.ahead(600, 4), 4);
    }

    /// The end of the data is no reason to give less of what is before it.
    #[test]
    fn who_scans_the_same_again_and_again_gets_as_much_every_time() {
        for pages in [40_000, 100_000, 1 << 20] {
            let lengths = after((0..200).map(|_| pages));
            for at in [512, pages / 2, pages - 50] {
                assert_eq!(lengths.window(at, MOST), MOST, "{pages} {at}");
                assert!(lengths.takes_whole(at), "{pages} {at}");
                // As the end comes near, less.
                let least = if at == pages - 50 { 1 } else { 4 };
                assert!(lengths.ahead(at, 4) >= least, "{pages} {at}");
            }
        }
    }

    /// Most faults are jumps, and the few that are none go on for ever: one does not spoil the other.
    #[test]
    fn jumps_say_nothing_about_walks() {
        let lengths = after((0..400).map(|i| if i % 40 == 0 { 50_000 } else { 1 }));
        assert_eq!(lengths.window(1, MOST), 1);
        assert!(lengths.window(16, MOST) == 64 && lengths.takes_whole(600));
    }

    #[test]
    fn another_phase_is_learned_soon() {
        let lengths = after((0..300).map(|i| if i < 200 { 1000 } else { 1 }));
        assert_eq!(lengths.window(1, MOST), 1);
        let lengths = after((0..300).map(|i| if i < 200 { 1 } else { 1000 }));
        assert_eq!(lengths.window(1, MOST), 4);
    }

    #[test]
    fn less_is_always_likelier() {
        let walks = (0..500).map(|i: u64| i * i % 97 * (1 + i % 7) + 1);
        let lengths = after(walks);
        for from in [1, 2, 3, 5, 64, 511, 512, 700, 40_000, 1 << 20] {
            let mut before = 1.0;
            for more in [0, 1, 2, 3, 7, 64, 512, 5000, 1 << 22] {
                let likely = lengths.likely(from, from + more);
                assert!(
                    (0.0..=before).contains(&likely),
                    "{from} {more}: {likely} {before}"
                );
                before = likely;
            }
        }
    }
}
