//! What a core file of a dead process says of the pages that are not in it.
//!
//! While the kernel writes a core file it asks no userfaultfd, and the engine's threads are dead: pages
//! in swap are holes there, and so are those that were on their way. But the tables and the frames are
//! memory of the process too, so they are in the file, and the slots stay as they are until the
//! supervisor has taken the dead process's entry back. Before that it reads the tables here and puts the
//! pages in their places.
//!
//! Nothing of what is read is trusted: the file may be cut, or be somebody else's work.

use crate::{
    HandleTable, Nonces, SlotTable, Snapshot, Tags, HANDLES_AT, LEAF, NONCES_AT, ROOT, SLOTS_AT,
};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use hugeswap_mm::{PageMask, Pmd, SlotWord, SwapEntry, PAGE_SIZE, PMD_NR, PMD_SIZE};
use hugeswap_seal::{Key, Nonce, Tag, Unwrap, Wrapped};
use hugeswap_zpool::Handle;

const MAGIC: u64 = 0x6875_6765_6475_6d70;
const WORDS: usize = 9;

/// Where a process has its tables. Its entry of the control page says where this is.
#[repr(C)]
pub struct Signpost {
    magic: u64,
    layout: u64,
    /// The same number in the control page: the file is of this process, since it started or was
    /// forked.
    key: AtomicU64,
    roots: [u64; 2],
    frames: u64,
    /// The encrypted copy of its keys.
    keys: u64,
    /// Compressed memory: where its objects begin, and its table of blocks.
    pool: [u64; 2],
}

const _: () = assert!(size_of::<Signpost>() == WORDS * 8);

impl Signpost {
    /// `roots` as `Ranges::roots` says, `frames` as `Frames::base`, `keys` as `Keys::wrapped`, `pool` as
    /// `Zswap::places`.
    pub fn new(roots: [usize; 2], frames: usize, keys: usize, pool: [usize; 2]) -> Signpost {
        Signpost {
            magic: MAGIC,
            layout: Snapshot::LAYOUT,
            key: AtomicU64::new(0),
            roots: roots.map(|r| r as u64),
            frames: frames as u64,
            keys: keys as u64,
            pool: pool.map(|at| at as u64),
        }
    }

    /// Sets a key that is not zero.
    pub fn renew(&self, random: u64) -> u64 {
        self.key.store(random | 1, Relaxed);
        random | 1
    }
}

/// Memory of a dead process.
pub trait Memory {
    /// Reads as much as there is room for; false if part of it is not there. What was never touched
    /// reads as zeros.
    fn read(&self, at: u64, into: &mut [u8]) -> bool;
}

/// Why the tables can't be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreadable {
    /// It is of another process.
    Foreign,
    /// They are not all in the file.
    Cut,
}

/// Where neighbouring pages of a range are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// At this address of the process.
    Memory(u64),
    /// In compressed memory: at this address of the process an object of so many bytes, for one page.
    Object(u64, usize),
    /// In this slot and those after it, sealed with these, one for each page.
    Slot(SwapEntry, Vec<(Nonce, Tag)>),
}

/// The tables of a dead process.
pub struct Tables<'m, M> {
    memory: &'m M,
    roots: [u64; 2],
    frames: u64,
    keys: u64,
    pool: [u64; 2],
}

fn word<const N: usize>(bytes: &[u8], i: usize) -> [u8; N] {
    let mut w = [0; N];
    w.copy_from_slice(&bytes[i * N..(i + 1) * N]);
    w
}

impl<'m, M: Memory> Tables<'m, M> {
    /// `signpost` and `key` are from the process's entry of the control page.
    pub fn find(memory: &'m M, signpost: u64, key: u64) -> Result<Self, Unreadable> {
        let mut bytes = [0; WORDS * 8];
        if !memory.read(signpost, &mut bytes) {
            return Err(Unreadable::Cut);
        }
        let w: [u64; WORDS] = core::array::from_fn(|i| u64::from_ne_bytes(word(&bytes, i)));
        if w[..3] != [MAGIC, Snapshot::LAYOUT, key] || key == 0 {
            return Err(Unreadable::Foreign);
        }
        Ok(Tables {
            memory,
            roots: [w[3], w[4]],
            frames: w[5],
            keys: w[6],
            pool: [w[7], w[8]],
        })
    }

    /// Calls `f` with pages that are not in the program's own memory, or only if they were on their way,
    /// in the order of their addresses, as far as they are in one piece.
    pub fn for_each(&self, mut f: impl FnMut(Pmd, Range<usize>, Source)) -> Result<(), Unreadable> {
        // So many descriptors at a time.
        const BATCH: usize = 64;
        let mut batch = vec![0; BATCH * Snapshot::BYTES];
        for (i, leaf) in self.leaves(0)?.into_iter().enumerate() {
            if leaf == 0 {
                continue;
            }
            for first in (0..LEAF).step_by(BATCH) {
                self.read(leaf, first * Snapshot::BYTES, &mut batch)?;
                for (j, bytes) in batch.chunks_exact(Snapshot::BYTES).enumerate() {
                    let Ok(bytes) = bytes.try_into() else {
                        continue;
                    };
                    let pmd = Pmd((i * LEAF + first + j) as u32);
                    self.range(pmd, &Snapshot::decode(bytes), &mut f)?;
                }
            }
        }
        Ok(())
    }

    fn leaves(&self, root: usize) -> Result<Vec<u64>, Unreadable> {
        let mut bytes = vec![0; ROOT * 8];
        self.read(self.roots[root], 0, &mut bytes)?;
        Ok(bytes
            .chunks_exact(8)
            .map(|b| u64::from_ne_bytes(word(b, 0)))
            .collect())
    }

    fn read(&self, base: u64, offset: usize, into: &mut [u8]) -> Result<(), Unreadable> {
        let at = base.checked_add(offset as u64);
        match at.is_some_and(|at| self.memory.read(at, into)) {
            true => Ok(()),
            false => Err(Unreadable::Cut),
        }
    }

    fn range(
        &self,
        pmd: Pmd,
        s: &Snapshot,
        f: &mut impl FnMut(Pmd, Range<usize>, Source),
    ) -> Result<(), Unreadable> {
        let pages = s.pages();
        for (frame, pages) in [pages.in_frame, pages.moving] {
            for run in pages.runs() {
                let at = u64::from(frame) * PMD_SIZE as u64 + (run.start * PAGE_SIZE) as u64;
                if let Some(at) = self.frames.checked_add(at) {
                    f(pmd, run, Source::Memory(at));
                }
            }
        }
        if !pages.compressed.is_empty() {
            let handles = self.table::<HandleTable>(pmd, HANDLES_AT)?;
            for page in pages.compressed.runs().flatten() {
                let handle = Handle::from_word(u32::from_ne_bytes(word(&handles, page)));
                let object = handle.and_then(|h| self.object(h));
                // What can't be found is told as missing when it is read.
                let (at, bytes) = object.unwrap_or_default();
                f(pmd, page..page + 1, Source::Object(at, bytes));
            }
        }
        let Some(place) = s.entry.filter(|_| !pages.swapped.is_empty()) else {
            return Ok(());
        };
        let seals = self.seals(pmd, s.nonce)?;
        let sealed = |run: &Range<usize>| run.clone().map(&seals).collect();
        match place.first() {
            Some(first) => {
                let slot = |page: usize| first.checked_add(page as u64);
                pieces(pages.swapped, slot, |run, entry| {
                    let sealed = sealed(&run);
                    f(pmd, run, Source::Slot(entry, sealed));
                });
            }
            None => {
                let table = self.slot_table(pmd)?;
                let slot = |page: usize| {
                    SlotWord::from_word(u32::from_ne_bytes(word(&table, page))).entry()
                };
                pieces(pages.swapped, slot, |run, entry| {
                    let sealed = sealed(&run);
                    f(pmd, run, Source::Slot(entry, sealed));
                });
            }
        }
        Ok(())
    }

    /// Where an object is, and its bytes.
    fn object(&self, handle: Handle) -> Option<(u64, usize)> {
        let [base, blocks] = self.pool;
        let mut class = [0];
        self.read(blocks, handle.class_at(), &mut class).ok()?;
        let (at, bytes) = handle.place_in_class(class[0])?;
        Some((base.checked_add(at as u64)?, bytes))
    }

    /// See `Ranges::slots`.
    fn slot_table(&self, pmd: Pmd) -> Result<Vec<u8>, Unreadable> {
        self.table::<SlotTable>(pmd, SLOTS_AT)
    }

    /// The range's table of a kind that begins so far behind the leaf's tables.
    fn table<T>(&self, pmd: Pmd, at: usize) -> Result<Vec<u8>, Unreadable> {
        let (leaf, i) = (pmd.0 as usize / LEAF, pmd.0 as usize % LEAF);
        let mut pointer = [0; 8];
        self.read(self.roots[1], leaf * 8, &mut pointer)?;
        let mut table = vec![0; size_of::<T>()];
        self.read(
            u64::from_ne_bytes(pointer),
            at + i * size_of::<T>(),
            &mut table,
        )?;
        Ok(table)
    }

    /// What the pages of a range were sealed with; `one`: all of them, if it is not none.
    fn seals(&self, pmd: Pmd, one: Nonce) -> Result<impl Fn(usize) -> (Nonce, Tag), Unreadable> {
        let tags = self.table::<Tags>(pmd, 0)?;
        let nonces = match one {
            Nonce::NONE => Some(self.table::<Nonces>(pmd, NONCES_AT)?),
            _ => None,
        };
        Ok(move |page| {
            let own = |all: &Vec<u8>| Nonce::from_word(u64::from_ne_bytes(word(all, page)));
            let nonce = nonces.as_ref().map_or(one, own);
            (nonce, Tag(word(&tags, page)))
        })
    }

    /// A key of the process, by the supervisor's for it.
    pub fn key(&self, unwrap: Unwrap, generation: usize) -> Option<Key> {
        let mut bytes = [0; Wrapped::BYTES];
        let at = generation.checked_mul(Wrapped::BYTES)?;
        self.read(self.keys, at, &mut bytes).ok()?;
        unwrap.unwrap(&Wrapped::decode(&bytes), generation)
    }
}

/// Runs of pages in neighbouring slots.
fn pieces(
    pages: PageMask,
    slot: impl Fn(usize) -> Option<SwapEntry>,
    mut f: impl FnMut(Range<usize>, SwapEntry),
) {
    let mut at = 0;
    while let Some(start) = pages.next_from(at) {
        at = start + 1;
        let Some(entry) = slot(start) else { continue };
        while at < PMD_NR && pages.has(at) {
            let next = entry.checked_add((at - start) as u64);
            if next.is_none() || slot(at) != next {
                break;
            }
            at += 1;
        }
        f(start..at, entry);
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::Ranges;
    use hugeswap_mm::{DeviceId, SwapPlace};
    use hugeswap_seal::Keys;

    /// This process, from `from` on.
    struct Here {
        from: u64,
    }

    impl Memory for Here {
        fn read(&self, at: u64, into: &mut [u8]) -> bool {
            let there = at >= self.from.max(4096);
            if there {
                // SAFETY: the tests below keep what they name mapped.
                let bytes = unsafe { core::slice::from_raw_parts(at as *const u8, into.len()) };
                into.copy_from_slice(bytes);
            }
            there
        }
    }

    fn at(device: u8, slot: u64) -> SwapEntry {
        SwapEntry::new(DeviceId::new(device).unwrap(), slot).unwrap()
    }

    #[test]
    fn pages_are_found_where_they_are() {
        let ranges = Ranges::new().unwrap();
        let frames = 0x1000_0000;
        {
            let mut g = ranges.get_or_map(Pmd(5)).unwrap().lock();
            g.swapped = PageMask::of(0..4).or(PageMask::of(8..9));
            g.entry = Some(SwapPlace::cluster(at(0, 512)));
            g.become_inactive(3, PageMask::of(2..3));
            g.nonce = Nonce::from_word(77);
            drop(g);
            let table = ranges.slots(Pmd(20_000)).unwrap();
            let mut g = ranges.get_or_map(Pmd(20_000)).unwrap().lock();
            g.swapped = PageMask::of(1..4);
            g.entry = Some(SwapPlace::SCATTERED);
            for (page, slot) in [(1, 700), (2, 701), (3, 99)] {
                table.set(page, SlotWord::new(at(1, slot)).unwrap());
                let nonces = ranges.nonces(Pmd(20_000)).unwrap();
                nonces.set(page, Nonce::from_word(page as u64));
                let [own, one] = [20_000, 5].map(|pmd| ranges.tags(Pmd(pmd)).unwrap());
                own.set(page, Tag([page as u8; 16]));
                one.set(page, Tag([9; 16]));
            }
        }
        let keys = Keys::new().unwrap();
        let post = Signpost::new(ranges.roots(), frames, keys.wrapped(), [0; 2]);
        let key = post.renew(1234);
        let here = Here { from: 0 };
        let signpost = &post as *const Signpost as u64;
        let find = |memory, key| Tables::find(memory, signpost, key);
        let mut got = Vec::new();
        find(&here, key)
            .unwrap()
            .for_each(|pmd, run, from| got.push((pmd.0, run, from)))
            .unwrap();
        let one = |tag| (Nonce::from_word(77), Tag([tag; 16]));
        let own = |page: u8| (Nonce::from_word(page.into()), Tag([page; 16]));
        let in_frame = frames as u64 + 3 * PMD_SIZE as u64 + 2 * PAGE_SIZE as u64;
        assert_eq!(
            got,
            [
                (5, 2..3, Source::Memory(in_frame)),
                (5, 0..2, Source::Slot(at(0, 512), vec![one(0), one(9)])),
                (5, 3..4, Source::Slot(at(0, 515), vec![one(9)])),
                (5, 8..9, Source::Slot(at(0, 520), vec![one(0)])),
                (20_000, 1..3, Source::Slot(at(1, 700), vec![own(1), own(2)])),
                (20_000, 3..4, Source::Slot(at(1, 99), vec![own(3)])),
            ]
        );
        let tables = find(&here, key).unwrap();
        assert!(tables.key(keys.unwrap(), 0).is_some());
        assert!(tables.key(keys.unwrap(), 1).is_none());
        assert!(tables.key(Unwrap([1, 2]), 0).is_none());
        // Somebody else's, and one that is cut.
        for other in [0, key + 2] {
            assert_eq!(find(&here, other).err(), Some(Unreadable::Foreign));
        }
        let cut = Here { from: u64::MAX };
        assert_eq!(find(&cut, key).err(), Some(Unreadable::Cut));
        let bad = Tables {
            memory: &here,
            roots: [0, u64::MAX],
            frames: u64::MAX,
            keys: u64::MAX,
            pool: [u64::MAX; 2],
        };
        assert_eq!(bad.for_each(|_, _, _| ()), Err(Unreadable::Cut));
    }
}
