//! Which blocks are hot: those accessed a second time within a window; and how hot.
//!
//! Accesses are sampled, so a block may need more reads than two to be seen
//! twice; one that is read once is never seen twice. A read that goes on in
//! the same block (many small reads in a row) is the same access: the second
//! one has to come a little later than the first.
//!
//! Of long reads few are seen, and seldom two of the same place. But a reader that was further on in
//! these 2 MiB before has come back: what it reads now it reads again.
//!
//! Heat is a count of accesses of which half is forgotten in each quarter of the window.
//!
//! What is known of the 32 blocks of 2 MiB stands together, for a read is of many. Memory is
//! bounded: what was seen lives in two generations, each half a window long at least; the older is
//! dropped as a whole when the younger is full or old enough.

use std::collections::HashMap;
use std::time::Duration;

use crate::page::{Block, FileId, Time, BATCH_BLOCKS};

/// 2 MiB of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Region {
    pub file: FileId,
    pub index: u64,
}

impl Region {
    pub fn of(block: Block) -> (Region, usize) {
        let region = Region {
            file: block.file,
            index: block.index / BATCH_BLOCKS,
        };
        (region, (block.index % BATCH_BLOCKS) as usize)
    }
}

const BLOCKS: usize = BATCH_BLOCKS as usize;

/// What one access adds.
const ONE: u16 = 16;
/// Accesses that are nearer to each other than so many ticks count for one: a read has an event for
/// each piece of it.
const SAME: u32 = 2;

/// Blocks of a long read.
const LONG: u32 = 4;

/// Where a reader comes back and so many blocks of a region are known, it reads all of them.
const MOST: u32 = BATCH_BLOCKS as u32 / 2;

/// Times in ticks of some milliseconds, which come round after weeks: what is remembered is not that
/// old.
fn tick(time: Time) -> u32 {
    (time.0 >> 10) as u32
}

fn ticks(span: Duration) -> u32 {
    ((span.as_micros() >> 10) as u32).max(1)
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Which blocks were seen at all; the rest of what stands here is of these.
    known: u32,
    /// Those that rest: they were looked at lately, and nothing was to do.
    resting: u32,
    first: [u32; BLOCKS],
    last: [u32; BLOCKS],
    rest_until: [u32; BLOCKS],
    heat: [u16; BLOCKS],
    /// Where the long read began that was seen furthest on, and when.
    front: Option<(u8, u32)>,
}

#[derive(Debug)]
pub struct Hot {
    window: u32,
    gap: u32,
    half: u32,
    /// Regions of one generation at most.
    capacity: usize,
    young: HashMap<Region, Seen>,
    old: HashMap<Region, Seen>,
    /// Blocks that are known, of the young and of the old.
    blocks: [usize; 2],
    born: Time,
    generation: Duration,
    /// Generations that were dropped early because the table was full.
    pub overflows: u64,
}

impl Hot {
    /// `capacity` is in regions.
    pub fn new(window: Duration, gap: Duration, capacity: usize) -> Hot {
        Hot {
            window: ticks(window),
            gap: ticks(gap),
            half: ticks(window / 4),
            capacity,
            young: HashMap::new(),
            old: HashMap::new(),
            blocks: [0; 2],
            born: Time(0),
            generation: window,
            overflows: 0,
        }
    }

    /// Notes an access to some blocks of a region, as bits; gives those that are hot now.
    pub fn access(&mut self, region: Region, blocks: u32, now: Time) -> u32 {
        let (window, gap, half) = (self.window, self.gap, self.half);
        let seen = self.seen(region, now);
        let now = tick(now);
        let back = blocks.count_ones() >= LONG && seen.comes_back(blocks, now, window, gap);
        let mut hot = 0;
        let more = match seen.known.count_ones() {
            _ if !back => 0,
            // Of a read that is seen the beginning is missed, unless its first event was recorded.
            MOST.. => u32::MAX,
            _ => seen.known,
        };
        let mut left = blocks | more;
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            let bit = 1 << at;
            left &= left - 1;
            let since = now.wrapping_sub(seen.last[at]);
            if blocks & bit == 0 {
                // Read by the same reader before; it is on its way there.
                let read = seen.known & bit == 0 || since <= window;
                if read && !seen.rests(at, now) {
                    hot |= bit;
                }
                continue;
            }
            if back && !seen.rests(at, now) {
                hot |= bit;
            }
            if seen.known & bit == 0 || since > window {
                seen.first[at] = now;
                seen.heat[at] = ONE;
                seen.resting &= !bit;
            } else {
                if since >= SAME {
                    seen.heat[at] = cooled(seen.heat[at], since, half).saturating_add(ONE);
                }
                let second = now.wrapping_sub(seen.first[at]) > gap;
                if second && !seen.rests(at, now) {
                    hot |= bit;
                }
            }
            seen.last[at] = now;
        }
        let more = (blocks & !seen.known).count_ones();
        seen.known |= blocks;
        self.blocks[0] += more as usize;
        hot
    }

    /// Notes what others have found to be a second access; says whether there is something to do.
    pub fn activated(&mut self, block: Block, now: Time) -> bool {
        let (region, at) = Region::of(block);
        self.access(region, 1 << at, now);
        let seen = self.seen(region, now);
        !seen.rests(at, tick(now))
    }

    /// The entry of a region among the young; a new one, if need be.
    fn seen(&mut self, region: Region, now: Time) -> &mut Seen {
        if now.since(self.born) > self.generation {
            self.next_generation(now);
        }
        if self.young.len() >= self.capacity && !self.young.contains_key(&region) {
            self.overflows += 1;
            self.next_generation(now);
        }
        let (old, blocks) = (&mut self.old, &mut self.blocks);
        self.young.entry(region).or_insert_with(|| {
            let known = old.remove(&region).unwrap_or_default();
            let number = known.known.count_ones() as usize;
            blocks[1] -= number;
            blocks[0] += number;
            known
        })
    }

    /// Nothing is to do for `block` until `then`, hot or not.
    pub fn rest(&mut self, block: Block, then: Time) {
        let (region, at) = Region::of(block);
        for table in [&mut self.young, &mut self.old] {
            if let Some(seen) = table.get_mut(&region) {
                seen.rest_until[at] = tick(then);
                seen.resting |= 1 << at;
            }
        }
    }

    fn find(&self, block: Block, now: Time) -> Option<(&Seen, usize)> {
        let (region, at) = Region::of(block);
        let tables = [&self.young, &self.old];
        let seen = tables.into_iter().find_map(|table| table.get(&region))?;
        let since = tick(now).wrapping_sub(seen.last[at]);
        (seen.known >> at & 1 == 1 && since <= self.window).then_some((seen, at))
    }

    /// Was the block accessed within the window?
    pub fn accessed(&self, block: Block, now: Time) -> bool {
        self.find(block, now).is_some()
    }

    /// How often it was accessed of late.
    pub fn heat(&self, block: Block, now: Time) -> u16 {
        self.find(block, now).map_or(0, |(seen, at)| {
            let since = tick(now).wrapping_sub(seen.last[at]);
            cooled(seen.heat[at], since, self.half)
        })
    }

    /// Blocks that are remembered.
    pub fn len(&self) -> usize {
        self.blocks.iter().sum()
    }

    pub fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
    }

    fn next_generation(&mut self, now: Time) {
        self.old = std::mem::take(&mut self.young);
        self.blocks = [0, self.blocks[0]];
        self.born = now;
    }
}

impl Seen {
    /// Notes a long read; says whether one was further on before, and not just now.
    fn comes_back(&mut self, blocks: u32, now: u32, window: u32, gap: u32) -> bool {
        let from = blocks.trailing_zeros() as u8;
        match self.front {
            Some((front, at)) if now.wrapping_sub(at) <= window => {
                let back = from < front && now.wrapping_sub(at) > gap;
                if back || from >= front {
                    self.front = Some((from, now));
                }
                back
            }
            _ => {
                self.front = Some((from, now));
                false
            }
        }
    }

    fn rests(&mut self, at: usize, now: u32) -> bool {
        if self.resting >> at & 1 == 0 {
            return false;
        }
        let rests = (self.rest_until[at].wrapping_sub(now) as i32) > 0;
        if !rests {
            self.resting &= !(1 << at);
        }
        rests
    }
}

fn cooled(heat: u16, since: u32, half: u32) -> u16 {
    if since < half {
        return heat;
    }
    heat.checked_shr(since / half).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(index: u64) -> Block {
        Block {
            file: FileId { dev: 1, ino: 2 },
            index,
        }
    }

    fn at(ms: u64) -> Time {
        Time(1_000_000 + ms * 1024)
    }

    fn hot(capacity: usize) -> Hot {
        Hot::new(
            Duration::from_secs(60),
            Duration::from_millis(200),
            capacity,
        )
    }

    fn access(hot: &mut Hot, block: Block, now: Time) -> bool {
        let (region, at) = Region::of(block);
        hot.access(region, 1 << at, now) != 0
    }

    #[test]
    fn the_second_access_makes_hot() {
        let mut hot = hot(100);
        assert!(!access(&mut hot, block(1), at(0)));
        assert!(!access(&mut hot, block(2), at(1000)), "another block");
        assert!(access(&mut hot, block(1), at(1000)));
    }

    #[test]
    fn all_blocks_of_a_read_are_noted() {
        let mut hot = hot(100);
        let (region, _) = Region::of(block(70));
        assert_eq!(hot.access(region, u32::MAX, at(0)), 0);
        assert_eq!(hot.access(region, 0xf0, at(1000)), 0xf0);
        assert_eq!(hot.len(), 32);
    }

    #[test]
    fn reading_on_in_a_block_is_one_access() {
        let mut hot = hot(100);
        for ms in 0..190 {
            assert!(!access(&mut hot, block(1), at(ms)), "at {ms} ms");
        }
        assert!(
            access(&mut hot, block(1), at(201)),
            "a loop over a small file"
        );
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let mut hot = hot(100);
        access(&mut hot, block(1), at(0));
        assert!(!access(&mut hot, block(1), at(60_001)));
        assert!(
            access(&mut hot, block(1), at(115_000)),
            "counted from the new first"
        );
        access(&mut hot, block(2), at(120_000));
        assert!(!access(&mut hot, block(2), at(400_000)));
        assert!(hot.accessed(block(2), at(400_000)));
        assert!(!hot.accessed(block(2), at(500_000)));
    }

    #[test]
    fn a_block_at_rest_is_not_hot() {
        let mut hot = hot(100);
        access(&mut hot, block(1), at(0));
        hot.rest(block(1), at(5000));
        assert!(!access(&mut hot, block(1), at(4000)));
        assert!(access(&mut hot, block(1), at(5001)));
    }

    #[test]
    fn heat_is_how_often_and_goes_by() {
        let mut hot = hot(100);
        for turn in 0..100 {
            access(&mut hot, block(1), at(turn * 10));
            if turn % 10 == 0 {
                access(&mut hot, block(2), at(turn * 10));
            }
        }
        let (often, seldom) = (hot.heat(block(1), at(1000)), hot.heat(block(2), at(1000)));
        assert!(often > 8 * seldom, "{often} {seldom}");
        let later = hot.heat(block(1), at(31_000));
        assert!(later <= often / 4 && later > 0, "{later} of {often}");
        assert_eq!(hot.heat(block(1), at(62_000)), 0);
        assert_eq!(hot.heat(block(9), at(1000)), 0);
    }

    #[test]
    fn the_pieces_of_one_read_are_one_access() {
        let mut hot = hot(100);
        for _ in 0..17 {
            access(&mut hot, block(1), at(0));
        }
        assert_eq!(hot.heat(block(1), at(0)), ONE);
    }

    #[test]
    fn who_comes_back_reads_again() {
        let mut hot = hot(100);
        let (region, _) = Region::of(block(0));
        let from = |first: u32| u32::MAX << first;
        assert_eq!(hot.access(region, from(20), at(0)), 0);
        // At once: another piece of the same read, or another reader beside.
        assert_eq!(hot.access(region, from(10), at(50)), 0);
        assert_eq!(
            hot.access(region, 0xf0, at(1000)),
            u32::MAX,
            "most of it is known"
        );
        let (few, _) = Region::of(block(40));
        assert_eq!(hot.access(few, from(26), at(0)), 0);
        assert_eq!(hot.access(few, 0xf0, at(1000)), 0xf0 | from(26));
    }

    #[test]
    fn who_goes_on_slowly_reads_once() {
        let mut hot = hot(100);
        let (region, _) = Region::of(block(0));
        for turn in 0..8u64 {
            let blocks = 0xf << (4 * turn);
            assert_eq!(hot.access(region, blocks, at(turn * 3000)), 0);
        }
    }

    #[test]
    fn small_reads_do_not_come_back() {
        let mut hot = hot(100);
        for turn in 0..32 {
            assert!(!access(&mut hot, block(31 - turn), at(turn * 1000)));
        }
    }

    #[test]
    fn times_come_round() {
        let near = (u64::from(u32::MAX) << 10) - 500 * 1024;
        let mut hot = hot(100);
        assert!(!access(&mut hot, block(1), Time(near)));
        assert!(access(&mut hot, block(1), Time(near + 1000 * 1024)));
        hot.rest(block(1), Time(near + 2000 * 1024));
        assert!(!access(&mut hot, block(1), Time(near + 1500 * 1024)));
        assert!(access(&mut hot, block(1), Time(near + 2001 * 1024)));
    }

    #[test]
    fn memory_is_bounded() {
        let mut hot = hot(10);
        for index in 0..1000 {
            access(&mut hot, block(index * BATCH_BLOCKS), at(index));
            assert!(hot.len() <= 20);
        }
        assert!(hot.overflows > 90);
        assert!(hot.accessed(block(999 * BATCH_BLOCKS), at(1000)));
        assert!(!hot.accessed(block(5 * BATCH_BLOCKS), at(1000)));
    }
}
