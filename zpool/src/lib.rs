//! Compressed memory: pages of the program that have left it, each compressed alone (as zswap does it), in
//! slabs of the engine's own (as zsmalloc's).
//!
//! It uses `mm` and `sys`. It may not know of devices, and of ranges no more than their numbers: it is given pages and
//! gives handles back.
//!
//! The pool is private memory of the process: a forked child has a copy, and a core file holds it. Who
//! owns an object, and when it may be read or freed, is the range's lock's business (`swap_cache::zswap`);
//! the pool's own lock guards places only.
#![allow(unsafe_code)]

mod choice;
mod codec;
mod slab;

pub use choice::Outcome;
pub use codec::{Codec, Decoder, Encoder, Wrong};
pub use slab::{Handle, BLOCK_PAGES, LARGEST};

use choice::Choice;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use hugeswap_mm::{Page, Pmd, PAGE_SIZE, PMD_NR, PMD_SIZE};
use hugeswap_sys::limits::beyond_memory;
use hugeswap_sys::sync::Mutex;
use hugeswap_sys::{mem, thread, Errno};
use slab::{Block, Slab, BLOCK, MAX_BLOCKS};

/// An object begins with three words: its length, above which is its codec; and whose it is, a range and a
/// page. A thread that changes these last two has the range's lock; one that reads them without it takes what it finds for
/// a hint.
const LEN_BITS: u32 = 16;
const HEAD: usize = 3 * WORD;
const WORD: usize = size_of::<u32>();
const OWNER: usize = WORD;
/// Places that are free in blocks that are not empty may be this part of the pool.
const WASTE_PART: usize = 16;
/// Empty blocks that are kept for what comes next.
const SPARE: usize = 8;

pub struct Zpool {
    base: usize,
    slab: Mutex<Slab>,
    /// Bytes from the base on that are accessible: address space counts against RLIMIT_DATA only from then.
    open: AtomicUsize,
    stored: AtomicUsize,
    choice: Choice,
    /// One for each thread, so that none waits for another.
    encoders: [Mutex<Encoder>; 2],
    decoders: [Mutex<Decoder>; 2],
    /// Pages of memory that they take, and those of which nobody was told yet.
    codecs: AtomicUsize,
    newly_used: AtomicUsize,
}

/// Who stores a page, or gets it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    Handler = 0,
    Reclaim = 1,
}

/// How much the pool's memory has grown or shrunk, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pages(pub usize);

/// A page of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    pub pmd: Pmd,
    pub page: usize,
}

/// How a page is to be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// If it becomes small enough.
    Small,
    /// The same by LZ4, whatever pays.
    Quickly,
    /// As it is, if it does not.
    Anyhow,
    AsIs,
}

/// A page that was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stored {
    pub handle: Handle,
    /// The pool took so much more memory.
    pub grown: Pages,
    /// What the page takes now.
    pub bytes: usize,
    /// None if it is stored as it is.
    pub codec: Option<Codec>,
}

impl Zpool {
    /// One that can take so many bytes; the codec is chosen as it goes, if it is not given.
    pub fn new(bytes: u64, codec: Option<Codec>) -> Result<Zpool, Errno> {
        let n = (bytes / BLOCK as u64).clamp(1, MAX_BLOCKS as u64) as usize;
        // SAFETY: all-zero bytes are a block that was never used.
        let blocks = unsafe { mem::map_table::<Block>(n) }?;
        Ok(Zpool {
            base: mem::reserve_aligned((n * BLOCK).next_multiple_of(PMD_SIZE))?,
            slab: Mutex::new(Slab::new(blocks)),
            open: AtomicUsize::new(0),
            stored: AtomicUsize::new(0),
            choice: Choice::new(codec),
            encoders: [Mutex::new(Encoder::new()?), Mutex::new(Encoder::new()?)],
            decoders: [Mutex::new(Decoder::new()?), Mutex::new(Decoder::new()?)],
            codecs: AtomicUsize::new(0),
            newly_used: AtomicUsize::new(0),
        })
    }

    /// Pages of memory that the codecs take.
    pub fn codec_pages(&self) -> usize {
        self.codecs.load(Relaxed)
    }

    /// How many more they take than when this was asked last.
    pub fn newly_used(&self) -> Pages {
        Pages(self.newly_used.swap(0, Relaxed))
    }

    /// So many bytes are used from now on. Whether there are any.
    fn note_use(&self, bytes: usize) -> bool {
        if bytes > 0 {
            let pages = bytes.div_ceil(PAGE_SIZE);
            self.codecs.fetch_add(pages, Relaxed);
            self.newly_used.fetch_add(pages, Relaxed);
        }
        bytes > 0
    }

    /// Where objects begin, and the table of blocks: for the reader of a core file.
    pub fn places(&self) -> [usize; 2] {
        [self.base, self.slab.lock().table()]
    }

    /// Pages of memory that the pool takes.
    pub fn pages(&self) -> usize {
        self.slab.lock().open() * BLOCK_PAGES
    }

    /// Pages of the program that are in it.
    pub fn stored(&self) -> usize {
        self.stored.load(Relaxed)
    }

    /// Stores the page, if it becomes no larger than [`LARGEST`] or may be as it is. None also where there is no
    /// memory. Where the pool has `most` pages, what finds a place without more is stored.
    pub fn store(
        &self,
        page: &Page,
        owner: Owner,
        how: How,
        most: usize,
        by: By,
    ) -> Option<Stored> {
        if how == How::AsIs {
            return self.put(page, None, most);
        }
        let mut small = [0; LARGEST];
        let compressed = match how {
            How::Quickly => codec::compress_quickly(page, &mut small[HEAD..]),
            _ => self.compress(page, &mut small[HEAD..], by),
        };
        match compressed {
            Some((codec, n)) => {
                let what = n as u32 | (codec as u32) << LEN_BITS;
                let head = [what, owner.pmd.0, owner.page as u32];
                for (place, word) in small.chunks_exact_mut(WORD).zip(head) {
                    place.copy_from_slice(&word.to_ne_bytes());
                }
                self.put(&small[..n + HEAD], Some(codec), most)
            }
            None if how == How::Anyhow => self.put(page, None, most),
            None => None,
        }
    }

    /// The bytes that a page would take, if it became small enough, and the ns that compressing it takes.
    pub fn try_out(&self, page: &Page) -> (Option<usize>, u64) {
        let mut small = [0; LARGEST];
        let mut encoder = self.encoders[By::Reclaim as usize].lock();
        self.compare(&mut encoder, page, &mut small[HEAD..]);
        let start = thread::cpu_ns();
        let made = self.make(&mut encoder, self.choice.codec(), page, &mut small[HEAD..]);
        self.note_use(encoder.newly_used());
        (made.map(|(_, n)| n + HEAD), thread::cpu_ns() - start)
    }

    /// What has come of the codec in use, and of the other, where there is a choice.
    pub fn outcomes(&self) -> Option<[Outcome; 2]> {
        self.choice.outcomes()
    }

    /// The next pages are for the codec that is not in use.
    pub fn take_other_codec(&self) {
        self.choice.take_other();
    }

    fn compress(&self, page: &Page, to: &mut [u8], by: By) -> Option<(Codec, usize)> {
        let mut encoder = self.encoders[by as usize].lock();
        if by == By::Reclaim {
            self.compare(&mut encoder, page, to);
        }
        let made = self.make(&mut encoder, self.choice.codec(), page, to);
        self.note_use(encoder.newly_used());
        made
    }

    /// Compresses the page; by Zstandard, too, where it does not become small enough by LZ4.
    fn make(
        &self,
        encoder: &mut Encoder,
        codec: Codec,
        page: &Page,
        to: &mut [u8],
    ) -> Option<(Codec, usize)> {
        let made = encoder.compress(codec, page, to);
        if made.is_some() || codec != Codec::Lz4 || !self.choice.tries_again() {
            return made;
        }
        let made = encoder.compress(Codec::Zstd, page, to);
        self.choice.tried_again(made.is_some());
        made
    }

    /// Now and then the page is compressed by both codecs, to see which is better.
    fn compare(&self, encoder: &mut Encoder, page: &Page, to: &mut [u8]) {
        if self.choice.probes() {
            let lz4 = self.probe(encoder, Codec::Lz4, page, to);
            let zstd = self.probe(encoder, Codec::Zstd, page, to);
            if let Some((lz4, zstd)) = lz4.zip(zstd) {
                self.choice.learn(lz4, zstd);
            }
        }
    }

    /// What comes of the codec for this page. None where it needs none.
    fn probe(
        &self,
        encoder: &mut Encoder,
        codec: Codec,
        page: &Page,
        to: &mut [u8],
    ) -> Option<Outcome> {
        let start = thread::cpu_ns();
        let mut is_new = false;
        let made;
        let bytes = match self.make(encoder, codec, page, to) {
            Some((Codec::Word, _)) => return None,
            Some((codec, n)) => {
                made = thread::cpu_ns();
                let mut back = [0; PAGE_SIZE];
                let mut decoder = self.decoders[By::Reclaim as usize].lock();
                decoder.decompress(codec, &to[..n], &mut back).ok()?;
                is_new = self.note_use(decoder.newly_used());
                n
            }
            None => {
                made = thread::cpu_ns();
                PAGE_SIZE
            }
        };
        let opened = thread::cpu_ns();
        // Memory that is used for the first time takes longer.
        is_new |= self.note_use(encoder.newly_used());
        (!is_new).then_some(Outcome {
            bytes: bytes as u32,
            out_ns: (made - start) as u32,
            back_ns: (opened - made) as u32,
        })
    }

    fn put(&self, object: &[u8], codec: Option<Codec>, most: usize) -> Option<Stored> {
        let bytes = object.len();
        // Another thread may take the block that was to be ours: what is accessible counts while the lock is held.
        let mut slab = self.slab.lock();
        while slab.reach() * BLOCK > self.open.load(Acquire) {
            let end = slab.reach() * BLOCK;
            drop(slab);
            self.make_accessible(end).ok()?;
            slab = self.slab.lock();
        }
        let placed = slab.alloc(bytes, most.div_ceil(BLOCK_PAGES))?;
        let at = slab.offset(placed.handle)?.0;
        // SAFETY: the place is the object's alone, is accessible, and has room for it. Who moves objects together looks at
        // them after he had the lock.
        unsafe {
            core::ptr::copy_nonoverlapping(object.as_ptr(), (self.base + at) as *mut u8, bytes);
        }
        drop(slab);
        self.stored.fetch_add(1, Relaxed);
        let grown = Pages(if placed.opens { BLOCK_PAGES } else { 0 });
        Some(Stored {
            handle: placed.handle,
            grown,
            bytes,
            codec,
        })
    }

    /// The object's page again. The caller sees to it that nobody frees it meanwhile.
    pub fn load(&self, handle: Handle, to: &mut Page, by: By) -> Result<(), Wrong> {
        let (at, size) = self.slab.lock().offset(handle).ok_or(Wrong)?;
        // SAFETY: an object that is in use is accessible, and does not change.
        let object = unsafe { core::slice::from_raw_parts((self.base + at) as *const u8, size) };
        let mut decoder = self.decoders[by as usize].lock();
        let opened = open_object(object, to, &mut decoder);
        self.note_use(decoder.newly_used());
        opened
    }

    /// Whose the object is, as it says; none if there is none, or it is a page as it is.
    pub fn owner(&self, handle: Handle) -> Option<Owner> {
        let [pmd, page] = self.owner_words(handle)?;
        let page = page.load(Relaxed) as usize;
        (page < PMD_NR).then(|| Owner {
            pmd: Pmd(pmd.load(Relaxed)),
            page,
        })
    }

    /// The object is another's from now on. The caller has its range's lock.
    pub fn set_owner(&self, handle: Handle, owner: Owner) {
        if let Some([pmd, page]) = self.owner_words(handle) {
            pmd.store(owner.pmd.0, Relaxed);
            page.store(owner.page as u32, Relaxed);
        }
    }

    fn owner_words(&self, handle: Handle) -> Option<[&AtomicU32; 2]> {
        let (at, size) = self.slab.lock().offset(handle)?;
        let word = |i: usize| (self.base + at + OWNER + i * WORD) as *mut u32;
        // SAFETY: an object that is in use is accessible, and so is one that was freed just now, as long as its block
        // is sparse; these words of it are changed atomically, once it is there. Objects are aligned to more.
        (size < PAGE_SIZE).then(|| [0, 1].map(|i| unsafe { AtomicU32::from_ptr(word(i)) }))
    }

    /// Whether memory is to be had by moving objects together.
    pub fn is_sparse(&self) -> bool {
        let slab = self.slab.lock();
        let all = slab.open() * BLOCK;
        all - slab.objects() > all / WASTE_PART + SPARE * BLOCK
    }

    /// Has objects of a block move to others: `moves` does that for each, by [`Zpool::relocate`]. By how much the
    /// pool has shrunk; none if there is no such block. For the reclaim thread alone.
    pub fn compact(&self, mut moves: impl FnMut(Handle)) -> Option<Pages> {
        let block = self.slab.lock().take_sparse()?;
        let objects = self.slab.lock().objects_in(block);
        objects.for_each(&mut moves);
        self.slab.lock().end_sparse(block);
        Some(self.shrink(SPARE))
    }

    /// Copies the object to another place. The caller sees to it that nobody frees it meanwhile, and frees it then.
    pub fn relocate(&self, handle: Handle) -> Option<Handle> {
        let (from, new, to, size) = {
            let mut slab = self.slab.lock();
            let (from, size) = slab.offset(handle)?;
            let new = slab.alloc_beside(handle)?;
            (from, new, slab.offset(new)?.0, size)
        };
        // SAFETY: both places are accessible and have so many bytes; the old one is in use and does not change, the
        // new one is nobody's yet.
        unsafe {
            let place = |at: usize| (self.base + at) as *mut u8;
            core::ptr::copy_nonoverlapping(place(from), place(to), size);
        }
        self.stored.fetch_add(1, Relaxed);
        Some(new)
    }

    /// Bytes of all places that are taken.
    pub fn object_bytes(&self) -> usize {
        self.slab.lock().objects()
    }

    /// Gives objects' places back; by how much the pool has shrunk.
    pub fn free(&self, handles: impl Iterator<Item = Handle>) -> Pages {
        let mut freed = 0;
        {
            let mut slab = self.slab.lock();
            for handle in handles {
                freed += usize::from(slab.free(handle));
            }
        }
        self.stored.fetch_sub(freed, Relaxed);
        self.shrink(SPARE)
    }

    /// Gives the memory of empty blocks back, but for so many.
    pub fn shrink(&self, keep: usize) -> Pages {
        let mut pages = 0;
        loop {
            let Some(block) = self.slab.lock().take_empty(keep) else {
                return Pages(pages);
            };
            // SAFETY: the block has no object, and nobody else has it: it is on no list.
            let _ = unsafe { mem::madvise(self.base + block * BLOCK, BLOCK, libc::MADV_DONTNEED) };
            self.slab.lock().gone(block);
            pages += BLOCK_PAGES;
        }
    }

    fn make_accessible(&self, end: usize) -> Result<(), Errno> {
        let open = self.open.load(Acquire);
        if end <= open {
            return Ok(());
        }
        let end = end.next_multiple_of(PMD_SIZE);
        // SAFETY: our own reservation. Huge pages would be charged to the memory group before they are used.
        unsafe {
            let (at, len) = (self.base + open, end - open);
            beyond_memory(|| mem::mprotect(at, len, libc::PROT_READ | libc::PROT_WRITE))?;
            let _ = mem::madvise(at, len, libc::MADV_NOHUGEPAGE);
        }
        self.open.fetch_max(end, AcqRel);
        Ok(())
    }

    /// In a forked child, where whoever held the lock does not exist.
    pub fn reset_lock(&self) {
        self.slab.reset();
        self.encoders.iter().for_each(Mutex::reset);
        self.decoders.iter().for_each(Mutex::reset);
    }
}

/// The page of an object's bytes, all that its class has.
pub fn open_object(object: &[u8], to: &mut Page, decoder: &mut Decoder) -> Result<(), Wrong> {
    if let Ok(page) = <&Page>::try_from(object) {
        *to = *page;
        return Ok(());
    }
    let (head, rest) = object.split_at_checked(HEAD).ok_or(Wrong)?;
    let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let codec = u8::try_from(word(0) >> LEN_BITS).map_err(|_| Wrong)?;
    let codec = Codec::from_number(codec).ok_or(Wrong)?;
    let len = (word(0) & ((1 << LEN_BITS) - 1)) as usize;
    decoder.decompress(codec, rest.get(..len).ok_or(Wrong)?, to)
}

/// How many bytes an object can have.
pub const OBJECT_MAX: usize = PAGE_SIZE;

const _: () = assert!(LARGEST < PAGE_SIZE && LARGEST < 1 << LEN_BITS && LARGEST % WORD == 0);

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: usize = usize::MAX;

    fn page(seed: u64) -> Page {
        let mut x = seed;
        core::array::from_fn(|i| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed);
            // Compressible, and no two alike.
            if i % 8 < 1 {
                (x >> 40) as u8 & 63
            } else {
                0
            }
        })
    }

    #[test]
    fn pages_come_back_and_memory_goes() {
        for codec in [None, Some(Codec::Lz4), Some(Codec::Zstd)] {
            come_and_go(Zpool::new(64 << 20, codec).unwrap());
        }
    }

    fn come_and_go(pool: Zpool) {
        let mut grown = 0;
        let stored: Vec<_> = (0..2000)
            .map(|i| {
                let by = [By::Reclaim, By::Handler][i as usize % 2];
                let s = pool.store(&page(i), owner(i as usize), How::Small, ALL, by);
                let s = s.unwrap();
                grown += s.grown.0;
                s
            })
            .collect();
        assert_eq!((pool.stored(), pool.pages()), (2000, grown));
        assert!(grown < 2000, "{grown}");
        let mut back = [0; PAGE_SIZE];
        for (i, s) in stored.iter().enumerate() {
            assert_eq!(pool.load(s.handle, &mut back, By::Handler), Ok(()));
            assert!(back == page(i as u64), "{i}");
        }
        let shrunk = pool.free(stored.iter().map(|s| s.handle)).0 + pool.shrink(0).0;
        assert_eq!((shrunk, pool.pages(), pool.stored()), (grown, 0, 0));
        assert_eq!(
            pool.load(stored[0].handle, &mut back, By::Reclaim),
            Err(Wrong)
        );
    }

    fn owner(i: usize) -> Owner {
        let (pmd, page) = (Pmd((i / PMD_NR) as u32), i % PMD_NR);
        Owner { pmd, page }
    }

    /// Of each block a part is freed; what is left moves together, and is what it was.
    #[test]
    fn blocks_are_emptied() {
        for keeps in [2, 3, 7] {
            let pool = Zpool::new(64 << 20, Some(Codec::Lz4)).unwrap();
            let mut stored: Vec<_> = (0..4000)
                .map(|i| pool.store(&page(i), owner(i as usize), How::Small, ALL, By::Reclaim))
                .map(|s| s.unwrap().handle)
                .collect();
            let gone = |i: &usize| i % keeps != 0;
            pool.free((0..4000).filter(gone).map(|i| stored[i]));
            let (before, mut moved) = (pool.pages(), 0);
            let mut moves = |handle| {
                let Owner { pmd, page } = pool.owner(handle).unwrap();
                let i = pmd.0 as usize * PMD_NR + page;
                assert_eq!(stored[i], handle);
                stored[i] = pool.relocate(handle).unwrap();
                pool.free([handle].into_iter());
                moved += 1;
            };
            while pool.is_sparse() && pool.compact(&mut moves).is_some() {}
            pool.shrink(0);
            assert!(moved > 0 && pool.pages() < before, "{keeps}");
            let waste = pool.pages() * PAGE_SIZE - pool.object_bytes();
            assert!(
                waste < pool.pages() * PAGE_SIZE / 10 + SPARE * BLOCK,
                "{waste}"
            );
            assert_eq!(pool.stored(), 4000_usize.div_ceil(keeps));
            let mut back = [0; PAGE_SIZE];
            for i in (0..4000).filter(|i| !gone(i)) {
                assert_eq!(pool.load(stored[i], &mut back, By::Reclaim), Ok(()));
                assert!(back == page(i as u64), "{i}");
            }
        }
    }

    /// Two threads store, each frees what it has stored, and one moves things together.
    #[test]
    fn the_handler_and_reclaim_store_at_a_time() {
        for round in 0..5 {
            let pool = Zpool::new(64 << 20, Some(Codec::Lz4)).unwrap();
            let work = |by: By| {
                let mut back = [0; PAGE_SIZE];
                let mut kept = Vec::new();
                for i in 0..6000 {
                    let seed = i * 2 + by as u64 + round;
                    let s = pool.store(&page(seed), owner(i as usize), How::Small, ALL, by);
                    kept.push((seed, s.unwrap().handle));
                    if i % 3 == 0 {
                        let (seed, handle) = kept.swap_remove(i as usize / 2 % kept.len());
                        assert_eq!(pool.load(handle, &mut back, by), Ok(()));
                        assert!(back == page(seed), "{seed}");
                        pool.free([handle].into_iter());
                    }
                    if by == By::Reclaim && i % 16 == 0 && pool.is_sparse() {
                        pool.compact(|handle| {
                            let _ = pool.owner(handle);
                        });
                    }
                }
                for (seed, handle) in kept {
                    assert_eq!(pool.load(handle, &mut back, by), Ok(()));
                    assert!(back == page(seed), "{seed}");
                    pool.free([handle].into_iter());
                }
            };
            std::thread::scope(|s| {
                s.spawn(|| work(By::Handler));
                work(By::Reclaim);
            });
            assert_eq!(pool.stored(), 0);
        }
    }

    #[test]
    fn an_object_is_whose_it_was_given() {
        let pool = Zpool::new(64 << 20, None).unwrap();
        let handle = pool
            .store(&page(1), owner(700), How::Small, ALL, By::Reclaim)
            .unwrap()
            .handle;
        assert_eq!(pool.owner(handle), Some(owner(700)));
        pool.set_owner(handle, owner(13));
        assert_eq!(pool.owner(handle), Some(owner(13)));
        pool.free([handle].into_iter());
        assert_eq!(pool.owner(handle), None);
    }

    #[test]
    fn what_does_not_compress_is_stored_as_it_is_or_not() {
        let pool = Zpool::new(64 << 20, None).unwrap();
        let mut x = 1_u64;
        let noise: Page = core::array::from_fn(|_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 33) as u8
        });
        assert_eq!(
            pool.store(&noise, owner(0), How::Small, ALL, By::Reclaim),
            None
        );
        let stored: Vec<_> = (0..16)
            .map(|_| {
                pool.store(&noise, owner(0), How::Anyhow, ALL, By::Reclaim)
                    .unwrap()
            })
            .collect();
        assert_eq!((pool.pages(), pool.stored()), (16, 16));
        let mut back = [0; PAGE_SIZE];
        for s in stored {
            assert_eq!(s.bytes, PAGE_SIZE);
            assert!(pool.load(s.handle, &mut back, By::Handler).is_ok());
            assert!(back == noise);
        }
    }

    #[test]
    fn an_object_that_is_cut_is_wrong() {
        let mut to = [0; PAGE_SIZE];
        let mut decoder = Decoder::new().unwrap();
        for object in [&[][..], &[1], &[0; 16], &[200; 20], &[255; 19]] {
            assert_eq!(open_object(object, &mut to, &mut decoder), Err(Wrong));
        }
    }
}
