//! Where objects of up to 2.5 KiB lie, and whole pages: blocks of eight pages, each cut into objects of one size,
//! as zsmalloc's zspages are. Numbers only; the memory is [`super::Zpool`]'s.

use core::num::NonZeroU32;
use hugeswap_mm::PAGE_SIZE;

/// Pages of a block.
pub const BLOCK_PAGES: usize = 8;
pub const BLOCK: usize = BLOCK_PAGES * PAGE_SIZE;
/// Sizes differ by so much.
const STEP: usize = 64;
/// The largest object. What takes more is better left as it is.
pub const LARGEST: usize = 2560;
/// The class of pages that are stored as they are.
const RAW: u8 = (LARGEST / STEP) as u8;
const CLASSES: usize = RAW as usize + 1;
const OBJECTS_MAX: usize = BLOCK / STEP;
const WORDS: usize = OBJECTS_MAX / 64;
const INDEX_BITS: u32 = OBJECTS_MAX.trailing_zeros();
/// Blocks there can be at most: 128 GiB.
pub const MAX_BLOCKS: usize = 1 << 22;

/// An object of a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle(NonZeroU32);

impl Handle {
    fn new(block: u32, index: usize) -> Handle {
        let word = ((block + 1) << INDEX_BITS) | index as u32;
        Handle(NonZeroU32::new(word).unwrap_or(NonZeroU32::MIN))
    }

    pub fn to_word(self) -> u32 {
        self.0.get()
    }

    /// None for a word that is no handle.
    pub fn from_word(word: u32) -> Option<Handle> {
        let block = word >> INDEX_BITS;
        (1..=MAX_BLOCKS as u32)
            .contains(&block)
            .then(|| NonZeroU32::new(word).map(Handle))
            .flatten()
    }

    pub fn block(self) -> usize {
        (self.0.get() >> INDEX_BITS) as usize - 1
    }

    fn index(self) -> usize {
        self.0.get() as usize & (OBJECTS_MAX - 1)
    }

    /// Where the table of blocks says the class of its block, in bytes.
    pub fn class_at(self) -> usize {
        self.block() * size_of::<Block>() + core::mem::offset_of!(Block, class)
    }

    /// Where the object is, if its block is of that class, in bytes from the first block's start; and the bytes
    /// that are its.
    pub fn place_in_class(self, class: u8) -> Option<(usize, usize)> {
        let fits = usize::from(class) < CLASSES && self.index() < objects_of(class);
        let size = fits.then(|| size_of_class(class))?;
        Some((self.block() * BLOCK + self.index() * size, size))
    }
}

/// The smallest class for so many bytes.
fn class_of(bytes: usize) -> Option<u8> {
    match bytes {
        PAGE_SIZE => Some(RAW),
        _ => (bytes <= LARGEST).then(|| (bytes.max(1).div_ceil(STEP) - 1) as u8),
    }
}

fn size_of_class(class: u8) -> usize {
    match class {
        RAW => PAGE_SIZE,
        _ => (class as usize + 1) * STEP,
    }
}

fn objects_of(class: u8) -> usize {
    BLOCK / size_of_class(class)
}

/// A link to a block: its number and one; zero for none.
type Link = u32;

/// What is known of a block; all-zero bytes are one that was never used.
#[derive(Clone, Default)]
pub struct Block {
    used: [u64; WORDS],
    next: Link,
    prev: Link,
    live: u16,
    class: u8,
    /// Which list it is on: 0 for none.
    list: u8,
}

/// Lists that a block can be on.
const NONE: u8 = 0;
/// Without objects, with memory.
const EMPTY: u8 = 1;
/// With room, at least half full or less.
const FULLER: u8 = 2;
const EMPTIER: u8 = 3;
/// On none: what is in it goes elsewhere, and nothing comes.
const SPARSE: u8 = 4;

/// Sparse blocks that are looked at for the emptiest.
const LOOK: usize = 8;

/// Blocks of all sizes.
pub struct Slab {
    blocks: &'static mut [Block],
    fuller: [Link; CLASSES],
    emptier: [Link; CLASSES],
    empty: Link,
    empties: usize,
    /// Blocks whose memory was given back.
    gone: Link,
    /// Blocks from here on were never used.
    top: usize,
    /// Blocks with memory.
    open: usize,
    /// Bytes of all objects, as asked for.
    objects: usize,
    /// Places of each class that are free, in blocks that are not empty.
    free: [u32; CLASSES],
}

/// A place, and what was needed for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    pub handle: Handle,
    /// The block has no memory yet.
    pub opens: bool,
}

impl Slab {
    pub fn new(blocks: &'static mut [Block]) -> Slab {
        Slab {
            blocks,
            fuller: [0; CLASSES],
            emptier: [0; CLASSES],
            empty: 0,
            empties: 0,
            gone: 0,
            top: 0,
            open: 0,
            objects: 0,
            free: [0; CLASSES],
        }
    }

    /// Where the table of blocks is.
    pub fn table(&self) -> usize {
        self.blocks.as_ptr() as usize
    }

    /// Blocks that were ever used, and one more if there is one: all that the next object can lie in.
    pub fn reach(&self) -> usize {
        (self.top + 1).min(self.blocks.len())
    }

    /// Blocks with memory.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Bytes of all places that are taken.
    pub fn objects(&self) -> usize {
        self.objects
    }

    /// Where the object lies, from the first block's start.
    pub fn offset(&self, handle: Handle) -> Option<(usize, usize)> {
        let block = self.blocks.get(handle.block())?;
        let there = block.used[handle.index() / 64] >> (handle.index() % 64) & 1 != 0;
        handle.place_in_class(block.class).filter(|_| there)
    }

    /// A place for so many bytes, or for a page as it is, as long as no more than `most` blocks have memory. None
    /// where they are too many, or there is no block left.
    pub fn alloc(&mut self, bytes: usize, most: usize) -> Option<Placed> {
        let class = class_of(bytes)?;
        let c = class as usize;
        let (link, opens) = match self.with_room(c) {
            Some(link) => (link, false),
            None if self.empty == 0 && self.open >= most => return None,
            None => self.new_block(class)?,
        };
        let handle = self.take_place(link as usize - 1)?;
        Some(Placed { handle, opens })
    }

    /// Another place for an object that has one, in a block that others are in.
    pub fn alloc_beside(&mut self, handle: Handle) -> Option<Handle> {
        self.offset(handle)?;
        let link = self.with_room(self.blocks[handle.block()].class.into())?;
        self.take_place(link as usize - 1)
    }

    fn with_room(&self, class: usize) -> Option<Link> {
        let lists = [self.fuller[class], self.emptier[class]];
        lists.into_iter().find(|&link| link != 0)
    }

    fn take_place(&mut self, at: usize) -> Option<Handle> {
        let block = &self.blocks[at];
        let (class, fresh) = (block.class, block.live == 0);
        let block = &mut self.blocks[at];
        let index = (0..objects_of(class))
            .step_by(64)
            .map(|first| (first, !block.used[first / 64]))
            .find(|&(_, free)| free != 0)
            .map(|(first, free)| first + free.trailing_zeros() as usize)?;
        block.used[index / 64] |= 1 << (index % 64);
        block.live += 1;
        self.objects += size_of_class(class);
        self.free[class as usize] += if fresh { objects_of(class) as u32 } else { 0 };
        self.free[class as usize] -= 1;
        self.relist(at);
        Some(Handle::new(at as u32, index))
    }

    /// A block that is to become empty, for the others of its class have room for what is in it: from now on
    /// nothing comes there. Then call `end_sparse`. Pages as they are do not say whose they are, and stay.
    pub fn take_sparse(&mut self) -> Option<usize> {
        let spare = |c: usize| self.free[c] as usize / objects_of(c as u8) * size_of_class(c as u8);
        let class = (0..RAW.into()).filter(|&c| spare(c) > 0).max_by_key(|&c| {
            // The bytes that can be had.
            self.free[c] as usize * size_of_class(c as u8)
        })?;
        let mut link = [self.emptier[class], self.fuller[class]]
            .into_iter()
            .find(|&link| link != 0)?;
        let mut at = link as usize - 1;
        for _ in 0..LOOK {
            if link == 0 {
                break;
            }
            let here = link as usize - 1;
            if self.blocks[here].live < self.blocks[at].live {
                at = here;
            }
            link = self.blocks[here].next;
        }
        self.unlink(at);
        self.blocks[at].list = SPARSE;
        Some(at)
    }

    /// What is in the block.
    pub fn objects_in(&self, at: usize) -> impl Iterator<Item = Handle> {
        let block = &self.blocks[at];
        let (used, n) = (block.used, objects_of(block.class));
        let is_used = move |i: &usize| used[i / 64] >> (i % 64) & 1 != 0;
        (0..n)
            .filter(is_used)
            .map(move |i| Handle::new(at as u32, i))
    }

    /// The block is as any other again.
    pub fn end_sparse(&mut self, at: usize) {
        self.blocks[at].list = NONE;
        self.relist(at);
    }

    /// A block for a class, on no list, and whether it has no memory.
    fn new_block(&mut self, class: u8) -> Option<(Link, bool)> {
        let (link, opens) = if self.empty != 0 {
            let link = self.empty;
            self.unlink(link as usize - 1);
            (link, false)
        } else if self.gone != 0 {
            let link = self.gone;
            self.gone = self.blocks[link as usize - 1].next;
            (link, true)
        } else if self.top < self.blocks.len() {
            self.top += 1;
            (self.top as Link, true)
        } else {
            return None;
        };
        self.open += usize::from(opens);
        let block = &mut self.blocks[link as usize - 1];
        *block = Block {
            class,
            ..Block::default()
        };
        Some((link, opens))
    }

    /// Gives the place back; false if there was none.
    pub fn free(&mut self, handle: Handle) -> bool {
        if self.offset(handle).is_none() {
            return false;
        }
        let at = handle.block();
        let block = &mut self.blocks[at];
        block.used[handle.index() / 64] &= !(1 << (handle.index() % 64));
        block.live -= 1;
        let (class, empty) = (block.class, block.live == 0);
        self.objects -= size_of_class(class);
        self.free[class as usize] += 1;
        self.free[class as usize] -= if empty { objects_of(class) as u32 } else { 0 };
        self.relist(at);
        true
    }

    /// A block without objects beyond `keep` of them, whose memory is to be given back: then call `gone`.
    pub fn take_empty(&mut self, keep: usize) -> Option<usize> {
        if self.empties <= keep {
            return None;
        }
        let at = (self.empty as usize).checked_sub(1)?;
        self.unlink(at);
        Some(at)
    }

    /// Its memory was given back.
    pub fn gone(&mut self, at: usize) {
        self.open -= 1;
        self.blocks[at].next = self.gone;
        self.gone = at as Link + 1;
    }

    /// The list that fits what is in the block.
    fn relist(&mut self, at: usize) {
        let block = &self.blocks[at];
        if block.list == SPARSE {
            return;
        }
        let (live, all) = (usize::from(block.live), objects_of(block.class));
        let list = match live {
            0 => EMPTY,
            _ if live == all => NONE,
            _ if live * 2 >= all => FULLER,
            _ => EMPTIER,
        };
        if list != block.list {
            if block.list != NONE {
                self.unlink(at);
            }
            if list != NONE {
                self.link(at, list);
            }
        }
    }

    fn head(&mut self, list: u8, class: u8) -> &mut Link {
        match list {
            FULLER => &mut self.fuller[class as usize],
            EMPTIER => &mut self.emptier[class as usize],
            _ => &mut self.empty,
        }
    }

    fn link(&mut self, at: usize, list: u8) {
        let class = self.blocks[at].class;
        let head = self.head(list, class);
        let next = core::mem::replace(head, at as Link + 1);
        self.blocks[at].list = list;
        self.blocks[at].prev = 0;
        self.blocks[at].next = next;
        if next != 0 {
            self.blocks[next as usize - 1].prev = at as Link + 1;
        }
        self.empties += usize::from(list == EMPTY);
    }

    fn unlink(&mut self, at: usize) {
        let Block {
            next,
            prev,
            list,
            class,
            ..
        } = self.blocks[at];
        match prev {
            0 => *self.head(list, class) = next,
            prev => self.blocks[prev as usize - 1].next = next,
        }
        if next != 0 {
            self.blocks[next as usize - 1].prev = prev;
        }
        self.blocks[at].list = NONE;
        self.empties -= usize::from(list == EMPTY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const ALL: usize = usize::MAX;

    fn slab(blocks: usize) -> Slab {
        Slab::new(Box::leak(vec![Block::default(); blocks].into_boxed_slice()))
    }

    #[test]
    fn every_size_fits_its_place() {
        let mut s = slab(200);
        for bytes in 1..=LARGEST {
            let p = s.alloc(bytes, ALL).unwrap();
            let (at, size) = s.offset(p.handle).unwrap();
            assert!(size >= bytes && size < bytes + STEP);
            assert!(at % BLOCK + size <= BLOCK);
            assert_eq!(Handle::from_word(p.handle.to_word()), Some(p.handle));
            assert!(s.free(p.handle) && !s.free(p.handle));
        }
        assert_eq!(s.alloc(LARGEST + 1, ALL), None);
        let raw = s.alloc(PAGE_SIZE, ALL).unwrap().handle;
        assert_eq!(s.offset(raw).unwrap().1, PAGE_SIZE);
        assert!(s.free(raw));
        assert_eq!((Handle::from_word(0), Handle::from_word(511)), (None, None));
    }

    #[test]
    fn little_is_lost_at_the_end_of_a_block() {
        for class in 0..CLASSES as u8 {
            let used = objects_of(class) * size_of_class(class);
            assert!(BLOCK - used <= BLOCK * 9 / 100, "{class}: {used}");
        }
    }

    #[test]
    fn free_places_are_used_where_no_block_may_be_opened() {
        let mut s = slab(10);
        let all: Vec<_> = core::iter::from_fn(|| s.alloc(2048, 3)).collect();
        assert_eq!((all.len(), s.open()), (3 * 16, 3));
        assert_eq!(s.alloc(64, 3), None);
        assert!(s.free(all[5].handle));
        assert_eq!(s.alloc(64, 3), None, "the place is of another size");
        assert_eq!(s.alloc(2048, 3).map(|p| p.handle), Some(all[5].handle));
        // A block that has become empty takes what comes, of any size.
        assert!(all[16..32].iter().all(|p| s.free(p.handle)));
        let small = s.alloc(64, 3).unwrap();
        assert_eq!((small.opens, s.open()), (false, 3));
        assert_eq!(s.alloc(2048, 3), None);
    }

    #[test]
    fn pages_as_they_are_stay() {
        let mut s = slab(10);
        let raw: Vec<_> = (0..32)
            .map(|_| s.alloc(PAGE_SIZE, ALL).unwrap().handle)
            .collect();
        assert!(raw.iter().step_by(2).all(|&h| s.free(h)));
        assert_eq!(s.take_sparse(), None);
    }

    proptest! {
        #[test]
        fn objects_never_overlap(steps in proptest::collection::vec((any::<bool>(), 1..=LARGEST + 300), 1..400)) {
            let mut s = slab(64);
            let mut live: HashMap<u32, (usize, usize)> = HashMap::new();
            let mut asked = 0;
            for (add, n) in steps {
                if n % 7 == 0 {
                    // One block is emptied, as far as others have room.
                    if let Some(block) = s.take_sparse() {
                        for old in s.objects_in(block) {
                            let size = live.remove(&old.to_word()).unwrap().1;
                            let new = s.alloc_beside(old).unwrap();
                            prop_assert!(new.block() != block && s.free(old));
                            let at = s.offset(new).unwrap().0;
                            prop_assert!(live.insert(new.to_word(), (at, size)).is_none());
                        }
                        s.end_sparse(block);
                    }
                }
                if add {
                    let n = if n > LARGEST { PAGE_SIZE } else { n };
                    let Some(p) = s.alloc(n, ALL) else { continue };
                    let (at, size) = s.offset(p.handle).unwrap();
                    prop_assert!(live.values().all(|&(a, l)| at + size <= a || a + l <= at));
                    asked += size;
                    prop_assert!(live.insert(p.handle.to_word(), (at, size)).is_none());
                } else if let Some(&word) = live.keys().nth(n % live.len().max(1)) {
                    let (_, size) = live.remove(&word).unwrap();
                    asked -= size;
                    prop_assert!(s.free(Handle::from_word(word).unwrap()));
                    if n % 3 == 0 {
                        while let Some(block) = s.take_empty(1) {
                            prop_assert!(live.values().all(|&(a, _)| a / BLOCK != block));
                            s.gone(block);
                        }
                    }
                }
                prop_assert_eq!(s.objects(), asked);
                prop_assert!(s.open() * BLOCK >= asked);
            }
            for word in live.into_keys() {
                prop_assert!(s.free(Handle::from_word(word).unwrap()));
            }
            while let Some(block) = s.take_empty(0) {
                s.gone(block);
            }
            prop_assert_eq!((s.open(), s.objects()), (0, 0));
        }
    }
}
