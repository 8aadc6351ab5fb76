//! Blocks that wait to be promoted, in the order of files: it matters for moving, and large folios
//! are met once.

use std::collections::BTreeMap;

use crate::hot::Region;
use crate::page::{Block, FileId, BATCH_BLOCKS};

/// Blocks of one file within one 2 MiB of it, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub file: FileId,
    pub blocks: Vec<u64>,
}

#[derive(Debug, Default)]
pub struct Queue {
    /// Blocks of each region, as bits; never none.
    regions: BTreeMap<Region, u32>,
    len: usize,
    /// Where the last batch ended: the queue is walked round, so that nothing at its end starves.
    cursor: Option<Region>,
}

impl Queue {
    /// Takes in blocks of a region, as bits, at most so many that are new; gives how many found no
    /// room.
    pub fn insert(&mut self, region: Region, blocks: u32, room: usize) -> u64 {
        let waiting = self.regions.get_mut(&region);
        let mut new = blocks & !waiting.as_deref().copied().unwrap_or(0);
        if new == 0 {
            return 0;
        }
        let mut refused = 0;
        while new.count_ones() as usize > room {
            // From the end.
            new &= !(1 << (31 - new.leading_zeros()));
            refused += 1;
        }
        match waiting {
            Some(waiting) => *waiting |= new,
            None if new != 0 => {
                self.regions.insert(region, new);
            }
            None => {}
        }
        self.len += new.count_ones() as usize;
        refused
    }

    /// Those of a region that wait.
    pub fn blocks(&self, region: Region) -> u32 {
        self.regions.get(&region).copied().unwrap_or(0)
    }

    /// Takes out the next region.
    pub fn pop(&mut self) -> Option<Batch> {
        let after = self.cursor.and_then(|cursor| {
            let next = self
                .regions
                .range(cursor..)
                .find(|(&region, _)| region > cursor);
            next.map(|(&region, _)| region)
        });
        let region = match after {
            Some(region) => region,
            None => *self.regions.first_key_value()?.0,
        };
        let blocks = self.regions.remove(&region)?;
        self.len -= blocks.count_ones() as usize;
        self.cursor = Some(region);
        let all = 0..BATCH_BLOCKS;
        let blocks = all.filter(|at| blocks >> at & 1 == 1);
        Some(Batch {
            file: region.file,
            blocks: blocks.map(|at| region.index * BATCH_BLOCKS + at).collect(),
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = Block> + '_ {
        self.regions.iter().flat_map(|(region, &blocks)| {
            let all = (0..BATCH_BLOCKS).filter(move |at| blocks >> at & 1 == 1);
            all.map(|at| Block {
                file: region.file,
                index: region.index * BATCH_BLOCKS + at,
            })
        })
    }

    /// Everything goes to another.
    pub fn pour_into(&mut self, other: &mut Queue) {
        while let Some((region, blocks)) = self.regions.pop_first() {
            other.insert(region, blocks, usize::MAX);
        }
        self.len = 0;
    }

    /// In blocks.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn clear(&mut self) {
        self.regions.clear();
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::FileId;

    fn region(ino: u64, index: u64) -> Region {
        Region {
            file: FileId { dev: 1, ino },
            index,
        }
    }

    #[test]
    fn blocks_come_out_once_and_in_order() {
        let mut queue = Queue::default();
        assert_eq!(queue.insert(region(2, 0), 0b1, 100), 0);
        assert_eq!(queue.insert(region(1, 5), 0x8000_0001, 100), 0);
        assert_eq!(queue.insert(region(1, 5), 0b11, 100), 0);
        assert_eq!(queue.len(), 4);
        let found: Vec<Block> = queue.iter().collect();
        assert_eq!(found[2].index, 5 * 32 + 31);
        assert_eq!(queue.pop().unwrap().blocks, [160, 161, 191]);
        // What comes in behind the cursor waits its turn.
        queue.insert(region(1, 5), 0b1, 100);
        assert_eq!(queue.pop().unwrap().file.ino, 2);
        assert_eq!(queue.pop().unwrap().blocks, [160]);
        assert_eq!(queue.pop(), None);
        assert!(queue.is_empty());
    }

    #[test]
    fn it_takes_no_more_than_there_is_room_for() {
        let mut queue = Queue::default();
        assert_eq!(queue.insert(region(1, 0), 0xff, 5), 3);
        assert_eq!(queue.blocks(region(1, 0)), 0x1f);
        assert_eq!(
            queue.insert(region(1, 0), 0x1f, 0),
            0,
            "they are there already"
        );
    }
}
