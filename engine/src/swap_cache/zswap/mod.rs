//! The way through compressed memory: pages go there instead of to a device, come back when they are
//! wanted, and go on when there is too much of it.
//!
//! A page in `compressed` has an object in the pool, named by the range's table of handles. Under the range's
//! lock pages come and go; without it, while the range is being written, they are only made.
#![allow(unsafe_code)]

mod batches;
mod beside;

use super::frames::Left;
use super::plan::Plan;
use super::{Dir, FillBuffers, Frame, Memory, SwapCache, Taken};
use crate::control::{Compress, CompressCodec, Settings};
use crate::mm::{Page, PageMask, Pmd, PAGE_SIZE, PMD_NR};
use crate::policy::{Admission, Admits, Effort, Fill, List, Unit, Use};
use crate::sys::thread::{cpu_ns, now_ns};
use crate::sys::Errno;
use crate::vma::{Had, IoState, Queue, RangeGuard};
use crate::zpool::{By, Codec, Handle, How, Outcome, Owner, Pages, Zpool, LARGEST};
use batches::{Batches, Made};
use core::sync::atomic::Ordering::Relaxed;

/// Percent of the limit that compressed memory takes at most where there is no device.
const ALONE_MOST: i64 = 90;
/// A walk that gets no more than so many pages may be none.
const FEW: usize = 4;
/// Faults that take no longer, and have to read, are quick.
const QUICK_NS: u32 = 60_000;
/// Blocks of compressed memory that are emptied at a time.
const COMPACT: usize = 64;
/// Pages of a range that go on to a device at a time: until they are written they take more memory than they did.
pub const WRITE_BACK: usize = 128;

/// Compressed memory, if there is to be any.
pub struct Zswap {
    /// In a place of its own: what a `None` leaves unused would be copied from a stack that has had keys on it.
    pool: Option<Box<Zpool>>,
    share: Compress,
    /// There is no device: what can't stay here can't leave.
    alone: bool,
    admission: Admission,
    queue: Queue,
    /// What is being compressed.
    batches: Box<Batches<Store>>,
}

/// Pages of a range in a frame are to be stored.
#[derive(Clone, Copy)]
struct Store {
    pmd: Pmd,
    frame: Frame,
    how: How,
    /// Pages that the pool may have.
    most: usize,
}

impl Zswap {
    pub(super) fn new(settings: &Settings) -> Result<Zswap, Errno> {
        let (share, alone) = (settings.compress(), settings.devices == 0);
        let limit = settings.limit_bytes / PAGE_SIZE as u64;
        Ok(Zswap {
            alone,
            pool: match share {
                Compress::Off => None,
                _ => Some(Box::new(Zpool::new(settings.limit_bytes, codec(settings))?)),
            },
            share,
            admission: match share {
                Compress::Auto if !alone => Admission::new(limit),
                Compress::Percent(n) if !alone => Admission::of_share(limit, n),
                _ => Admission::none(),
            },
            queue: Queue::default(),
            batches: Box::new(Batches::new()),
        })
    }

    /// See `Zpool::places`; zeros where there is no pool.
    pub fn places(&self) -> [usize; 2] {
        self.pool.as_deref().map_or([0; 2], Zpool::places)
    }

    /// In a forked child.
    pub fn reset_locks(&self) {
        self.queue.reset_lock();
        self.batches.reset_lock();
        if let Some(pool) = &self.pool {
            pool.reset_lock();
        }
    }

    /// How the next page is stored.
    fn how(&self) -> How {
        match self.alone {
            true if self.admission.shrinks() => How::Anyhow,
            true => How::AsIs,
            false => How::Small,
        }
    }

    /// How much of the limit the pool takes is to be found out.
    fn decides(&self) -> bool {
        self.share == Compress::Auto && !self.alone
    }

    /// The pool, if something is to be found out of pages that leave: its size, or the codec.
    fn learns(&self) -> Option<&Zpool> {
        self.pool.as_deref().filter(|_| !self.alone)
    }

    /// Pages that the pool may have at any moment. What is more than [`Zswap::most`] goes on to a device, if there is one.
    fn most_now(&self, limit: i64) -> usize {
        match self.alone {
            true => self.most(limit),
            false => usize::MAX,
        }
    }

    /// Pages that the pool may take.
    fn most(&self, limit: i64) -> usize {
        match self.share {
            Compress::Off => 0,
            // What is not here has to be resident.
            Compress::Auto if self.alone => (limit.max(0) / 100 * ALONE_MOST) as usize,
            Compress::Auto => self.admission.most(limit),
            Compress::Percent(n) => (limit.max(0) * i64::from(n) / 100) as usize,
        }
    }
}

/// The one codec, if it is not to be chosen.
fn codec(settings: &Settings) -> Option<Codec> {
    match settings.codec() {
        CompressCodec::Auto => None,
        CompressCodec::Lz4 => Some(Codec::Lz4),
        CompressCodec::Zstd => Some(Codec::Zstd),
    }
}

/// What became of pages that were to go on to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteBack {
    /// There is nothing in compressed memory.
    Nothing,
    /// They had slots already, or were gone.
    Freed,
    /// They can't now.
    Later,
    /// They are in a frame, and the range is inactive: call `start_write`.
    Ready(Taken),
}

/// Objects that pages have become, and no range has yet.
pub(super) type Handles = [Option<Handle>; PMD_NR];

impl<M: Memory> SwapCache<M> {
    /// Of `pages`, which are in the frame of a range that is being written, those that were stored: those
    /// that became small, and without a device the others as they are, as long as there is room. For the
    /// reclaim thread, without the range's lock.
    pub(super) fn store(
        &self,
        pmd: Pmd,
        frame: Frame,
        pages: PageMask,
        list: List,
        handles: &mut Handles,
    ) -> PageMask {
        let z = &self.zswap;
        let Some(pool) = z.pool.as_ref().filter(|_| !pages.is_empty()) else {
            return PageMask::EMPTY;
        };
        match self.admits(pool, pmd, pages, list) {
            Admits::All => {}
            Admits::Probe => {
                self.probe(pool, frame, pages);
                return PageMask::EMPTY;
            }
            Admits::Nothing => return PageMask::EMPTY,
        }
        let (how, most) = (z.how(), z.most_now(self.charge.limit()));
        let what = Store {
            pmd,
            frame,
            how,
            most,
        };
        let call = || self.charge.progress.make();
        let work = |what: &Store, pages| self.store_batch(pool, what, pages, By::Reclaim);
        let start = cpu_ns();
        let mut tally = z.batches.all(what, pages, handles, call, work);
        tally.ns += cpu_ns() - start;
        if how != How::AsIs {
            let (stored, bytes) = (tally.stored.count(), tally.bytes);
            z.admission.compressed(stored, bytes, tally.poor, tally.ns);
        }
        let stats = self.stats();
        stats.zswap_reject_compress_poor.add(tally.poor as u64);
        stats.zswpout_zstd.add(tally.small);
        stats.zswpout_ns.add(tally.ns);
        tally.stored
    }

    /// Stores some of what the reclaim thread is storing, where there is any left. For the handler, which waits for memory.
    pub fn help_to_store(&self) -> bool {
        let z = &self.zswap;
        let work =
            |pool| move |what: &Store, pages| self.store_batch(pool, what, pages, By::Handler);
        z.pool.as_ref().is_some_and(|p| z.batches.one(work(p)))
    }

    fn store_batch(&self, pool: &Zpool, what: &Store, pages: PageMask, by: By) -> Made {
        let mut made = Made::default();
        // Of the reclaim thread the processor time of all its batches counts: asking for it takes as long as compressing a page.
        let start = (by == By::Handler).then(now_ns);
        for (page, to) in pages.runs().flatten().zip(&mut made.handles) {
            let pmd = what.pmd;
            let from = (self.frames.addr(what.frame) + page * PAGE_SIZE) as *const Page;
            // SAFETY: the page was moved into the frame, which is the reclaim thread's for now; nobody writes there.
            let from = unsafe { &*from };
            match pool.store(from, Owner { pmd, page }, what.how, what.most, by) {
                Some(s) => {
                    self.charge.charge(s.grown.0);
                    *to = Some(s.handle);
                    made.tally.stored.insert(page);
                    made.tally.bytes += s.bytes.next_multiple_of(64);
                    made.tally.small += u64::from(s.codec == Some(Codec::Zstd));
                }
                // There is no room; of another size there may be.
                None if pool.pages() >= what.most => {}
                None => made.tally.poor += 1,
            }
        }
        made.tally.ns = start.map_or(0, |start| now_ns() - start);
        self.charge_codecs(pool);
        if by == By::Handler {
            let stored = made.tally.stored.count();
            self.stats().zswpout_direct.add(stored as u64);
        }
        made
    }

    /// What is to be done with pages that leave.
    fn admits(&self, pool: &Zpool, pmd: Pmd, pages: PageMask, list: List) -> Admits {
        let z = &self.zswap;
        if z.alone {
            return Admits::All;
        }
        let (now, fill) = (self.lru.time(), || self.fill(pool));
        self.take(pool, z.admission.leave(pmd, pages, list, now, fill));
        match list {
            List::Walk => Admits::Nothing,
            List::Main if !z.decides() => Admits::All,
            List::Main => z.admission.admits(),
        }
    }

    /// Compresses one of these pages, to see what comes of it.
    fn probe(&self, pool: &Zpool, frame: Frame, pages: PageMask) {
        let Some(page) = pages.next_from(0) else {
            return;
        };
        let from = (self.frames.addr(frame) + page * PAGE_SIZE) as *const Page;
        // SAFETY: the page was moved into the frame, which is ours for now; nobody writes there.
        let (size, took) = pool.try_out(unsafe { &*from });
        self.charge_codecs(pool);
        let bytes = size.map_or(0, |n| n.next_multiple_of(64));
        let (small, poor) = (usize::from(size.is_some()), usize::from(size.is_none()));
        self.zswap.admission.compressed(small, bytes, poor, took);
    }

    /// Objects that no range has.
    pub(super) fn forget_stored(&self, pages: PageMask, handles: &Handles) {
        if let Some(pool) = self.zswap.pool.as_ref().filter(|_| !pages.is_empty()) {
            let all = pages.runs().flatten();
            let freed = pool.free(all.filter_map(|page| handles[page]));
            self.shrunk(freed);
        }
    }

    /// What codecs have begun to use counts from then on.
    fn charge_codecs(&self, pool: &Zpool) {
        let Pages(pages) = pool.newly_used();
        if pages > 0 {
            self.charge.charge(pages);
        }
    }

    fn shrunk(&self, Pages(pages): Pages) {
        if pages > 0 {
            self.charge.uncharge(pages);
        }
    }

    /// The pages that were stored are the range's from here on, and not in the frame any more. Returns those
    /// for which that is so: not what has come back meanwhile.
    pub(super) fn take_stored(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        stored: PageMask,
        handles: &Handles,
    ) -> PageMask {
        let Some(table) = self.ranges.handles(pmd) else {
            self.forget_stored(stored, handles);
            return PageMask::EMPTY;
        };
        let came_back = stored.and(g.present);
        self.forget_stored(came_back, handles);
        let stored = stored.minus(came_back);
        if stored.is_empty() {
            return stored;
        }
        if g.tables.insert(Had::HANDLES) {
            self.charge.charge(1);
        }
        for page in stored.runs().flatten() {
            if let Some(handle) = handles[page] {
                table.set(page, Some(handle));
            }
        }
        g.compressed = g.compressed.or(stored);
        g.leave_frame(stored);
        self.enqueue(pmd, g);
        self.stats().zswpout.add(stored.count() as u64);
        stored
    }

    fn enqueue(&self, pmd: Pmd, g: &mut RangeGuard<'_>) {
        if !g.queued && !g.compressed.is_empty() {
            g.queued = true;
            self.zswap.queue.push(&self.ranges, pmd);
        }
    }

    /// The object of each of `pages`, which are compressed. The caller has the range's lock.
    fn handles_of(&self, pmd: Pmd, pages: PageMask) -> impl Iterator<Item = (usize, Handle)> + '_ {
        let table = self.ranges.handles(pmd);
        let mut at = 0;
        core::iter::from_fn(move || {
            let page = pages.next_from(at)?;
            at = page + 1;
            Some((page, table?.get(page)))
        })
        .filter_map(|(page, handle)| Some((page, handle?)))
    }

    /// What is in compressed memory of these pages is not needed any more.
    pub(super) fn drop_compressed(&self, pmd: Pmd, g: &mut RangeGuard<'_>, pages: PageMask) {
        let gone = g.compressed.and(pages);
        let Some(pool) = self.zswap.pool.as_ref().filter(|_| !gone.is_empty()) else {
            return;
        };
        g.compressed = g.compressed.minus(gone);
        let freed = pool.free(self.handles_of(pmd, gone).map(|(_, handle)| handle));
        self.shrunk(freed);
        if self.zswap.alone && freed.0 > 0 && self.full.swap(false, Relaxed) {
            // Where compressed memory was full there is room again.
            self.end_grace();
        }
    }

    /// Opens `pages`, which are compressed, each to its place; returns those that could be. The others are lost: a thread that touches them gets SIGBUS.
    fn open_compressed(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        pages: PageMask,
        by: By,
        place: impl Fn(usize) -> *mut u8,
    ) -> PageMask {
        let mut opened = PageMask::EMPTY;
        if let Some(pool) = self.zswap.pool.as_ref().filter(|_| !pages.is_empty()) {
            let start = now_ns();
            for (page, handle) in self.handles_of(pmd, pages) {
                // SAFETY: the place is memory of the engine's own that nobody else uses now.
                let to = unsafe { &mut *(place(page) as *mut Page) };
                if pool.load(handle, to, by).is_ok() {
                    opened.insert(page);
                }
            }
            self.stats().zswpin_ns.add(now_ns() - start);
            self.charge_codecs(pool);
        }
        let wrong = pages.minus(opened);
        if !wrong.is_empty() {
            self.stats().swap_corrupt.add(wrong.count() as u64);
            self.drop_compressed(pmd, g, wrong);
            self.lose(pmd, g, wrong);
        }
        opened
    }

    /// The fault on a page in compressed memory: it comes back with its neighbours there that `unit` names.
    pub(super) fn load(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        page: usize,
        unit: Unit,
        buffers: &mut FillBuffers,
    ) -> Plan {
        let pages = match unit {
            // What is hardly a walk: to come back for one more costs less here than one in vain.
            Unit::Pages(n) if n <= FEW => Unit::Pages(1),
            unit => unit,
        };
        let pages = pages.of(g.compressed, page);
        let n = pages.count();
        if !self.charge_for_fault(n) {
            return Plan::NeedRoom;
        }
        let Some((base, new)) = buffers.lend(n) else {
            self.charge.uncharge(n);
            return Plan::NeedBuffer;
        };
        self.charge_own(new);
        let at = |page| base.wrapping_add(pages.rank(page) * PAGE_SIZE);
        let opened = self.open_compressed(pmd, g, pages, By::Handler, at);
        let mut got = PageMask::EMPTY;
        for run in opened.runs() {
            got = got.or(self.copy_run(pmd, run, |page| at(page) as *const u8));
        }
        self.charge.uncharge(pages.minus(got).count());
        g.belongs_to(List::Main);
        self.drop_compressed(pmd, g, got);
        self.became_present(pmd, g, got);
        self.stats().zswpin.add(got.count() as u64);
        if !got.has(page) {
            self.memory.wake(pmd.page_addr(page), PAGE_SIZE);
        }
        Plan::Loaded { pages: n }
    }

    fn take(&self, pool: &Zpool, codec: Use) {
        if codec == Use::Other {
            pool.take_other_codec();
        }
    }

    fn fill(&self, pool: &Zpool) -> Fill {
        let effort = |o: Outcome| Effort {
            bytes: o.bytes,
            out_ns: o.out_ns,
            back_ns: o.back_ns,
        };
        Fill {
            codecs: pool.outcomes().map(|both| both.map(effort)),
            pages: pool.pages(),
            stored: pool.stored(),
            bytes: pool.object_bytes(),
            limit: self.charge.limit(),
        }
    }

    /// Pages are resident, which may have been away.
    pub(super) fn note_return(&self, pmd: Pmd, pages: PageMask) {
        let z = &self.zswap;
        if let Some(pool) = z.learns().filter(|_| self.lru.has_evicted()) {
            let (now, fill) = (|| self.lru.time(), || self.fill(pool));
            self.take(pool, z.admission.come_back(pmd, pages, now, fill));
        }
    }

    /// These had left, and never were away.
    pub(super) fn note_stay(&self, pmd: Pmd, pages: PageMask) {
        if self.zswap.learns().is_some() {
            self.zswap.admission.stayed(pmd, pages);
        }
    }

    /// A fault took so long that found its pages in compressed memory.
    pub fn load_took(&self, pages: usize, ns: u64) {
        self.zswap.admission.pool_took(pages, ns);
    }

    /// One took so long that had to read them.
    pub fn read_took(&self, pages: usize, ns: u64) {
        self.zswap.admission.device_took(pages, ns);
    }

    /// Whether a fault that has to read takes so little time that others can wait for it.
    pub fn reads_are_quick(&self) -> bool {
        self.zswap.admission.device_ns() < QUICK_NS
    }

    /// Opens all that is compressed of the range, each page to its place in the frame, which is ready as a
    /// whole. They stay where they are, too.
    pub(super) fn load_into(&self, pmd: Pmd, g: &mut RangeGuard<'_>, frame: Frame) -> PageMask {
        let base = self.frames.addr(frame);
        let pages = g.compressed;
        let place = |page| (base + page * PAGE_SIZE) as *mut u8;
        let opened = self.open_compressed(pmd, g, pages, By::Handler, place);
        self.stats().zswpin.add(opened.count() as u64);
        opened
    }

    /// Whether compressed memory takes more than it may.
    pub fn has_too_much_compressed(&self) -> bool {
        let z = &self.zswap;
        let limit = self.charge.limit();
        let pool = z.pool.as_ref().filter(|_| !z.alone);
        pool.is_some_and(|p| p.pages() > z.most(limit))
    }

    /// Pages that compressed memory takes, and its codecs.
    #[cfg(test)]
    pub(super) fn pool_pages(&self) -> usize {
        let pool = self.zswap.pool.as_ref();
        pool.map_or(0, |p| p.pages() + p.codec_pages())
    }

    /// What leaves stays in compressed memory.
    pub fn swaps_nowhere(&self) -> bool {
        self.zswap.alone
    }

    /// Notes what compressed memory takes.
    pub fn count_compressed(&self) {
        let Some(pool) = &self.zswap.pool else { return };
        let (s, bytes) = (self.stats(), |pages: usize| (pages * PAGE_SIZE) as u64);
        s.zswap_pool_bytes.set(bytes(pool.pages()));
        s.peak_zswap_pool_bytes.raise_to(bytes(pool.pages()));
        s.zswap_stored_bytes.set(bytes(pool.stored()));
        s.zswap_object_bytes.set(pool.object_bytes() as u64);
    }

    /// Moves what is in compressed memory together, where much of that is unused; a little at a time. For the
    /// reclaim thread.
    pub fn compact_compressed(&self) {
        for _ in 0..COMPACT {
            let is_sparse = self.zswap.pool.as_ref().is_some_and(|p| p.is_sparse());
            if !is_sparse || !self.empty_a_block() {
                return;
            }
        }
    }

    /// Has what is in one block of compressed memory lie in others. Whether that has given memory back. For the
    /// reclaim thread.
    pub fn empty_a_block(&self) -> bool {
        let Some(pool) = &self.zswap.pool else {
            return false;
        };
        let Some(shrunk) = pool.compact(|handle| self.relocate(pool, handle)) else {
            return false;
        };
        self.shrunk(shrunk);
        self.stats().zswap_compacted.inc();
        shrunk.0 > 0
    }

    /// Has an object lie elsewhere, if it is a range's.
    fn relocate(&self, pool: &Zpool, handle: Handle) {
        let Some(Owner { pmd, page }) = pool.owner(handle) else {
            return;
        };
        let Some(r) = self.ranges.get(pmd) else {
            return;
        };
        // Under the lock it is neither freed nor moved to another range.
        let g = r.lock();
        let table = self.ranges.handles(pmd).filter(|_| g.compressed.has(page));
        let Some(table) = table.filter(|table| table.get(page) == Some(handle)) else {
            return;
        };
        if let Some(new) = pool.relocate(handle) {
            table.set(page, Some(new));
            let freed = pool.free([handle].into_iter());
            self.shrunk(freed);
        }
    }

    /// Takes what has been in compressed memory longest out of it. For the reclaim thread.
    pub fn begin_write_back(&self) -> WriteBack {
        let Some(pmd) = self.zswap.queue.pop(&self.ranges) else {
            return WriteBack::Nothing;
        };
        let Some(r) = self.ranges.get(pmd) else {
            return WriteBack::Freed;
        };
        let mut g = r.lock();
        g.queued = false;
        if g.io() != IoState::Idle || !self.can_take() {
            // Whoever reads the range counts on what is here.
            self.enqueue(pmd, &mut g);
            return WriteBack::Later;
        }
        let clean = g.compressed.and(g.swapped).first(WRITE_BACK);
        self.drop_compressed(pmd, &mut g, clean);
        // What is left has its turn at the end.
        self.enqueue(pmd, &mut g);
        let all = g.compressed;
        if !clean.is_empty() || all.is_empty() {
            return WriteBack::Freed;
        }
        let Some(frame) = self.take_empty_for_pieces() else {
            return WriteBack::Later;
        };
        let pages = all.first(WRITE_BACK);
        self.charge.charge(pages.count());
        let opened = self.open_into(frame, pmd, &mut g, pages);
        self.charge.uncharge(pages.minus(opened).count());
        if opened.is_empty() {
            self.empty(frame, Left::Pieces);
            return WriteBack::Later;
        }
        g.huge = false;
        g.become_inactive(frame.0, opened);
        self.drop_compressed(pmd, &mut g, opened);
        self.stats().zswpwb.add(opened.count() as u64);
        WriteBack::Ready(Taken::of(pmd, &g))
    }

    /// Unpacks compressed pages into a frame of which they are missing; says which it could.
    fn open_into(
        &self,
        frame: Frame,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        pages: PageMask,
    ) -> PageMask {
        let scratch = self.scratch.at(0);
        let mut opened = PageMask::EMPTY;
        for page in pages.runs().flatten() {
            let one = PageMask::of(page..page + 1);
            if self
                .open_compressed(pmd, g, one, By::Reclaim, |_| scratch)
                .is_empty()
            {
                continue;
            }
            let to = self.frames.addr(frame) + page * PAGE_SIZE;
            let filled = self.memory.copy(Dir::Out, to, scratch, PAGE_SIZE);
            if filled.is_ok() {
                opened.insert(page);
            }
        }
        opened
    }

    /// The compressed pages of a range become those of another; `there` says where. Both are held by the
    /// caller, and the old one's say nothing of them any more.
    pub(super) fn move_compressed(
        &self,
        from: Pmd,
        pages: PageMask,
        to: (Pmd, &mut RangeGuard<'_>),
        there: impl Fn(usize) -> usize,
    ) {
        let (pmd, g) = to;
        let Some(table) = self.ranges.handles(pmd).filter(|_| !pages.is_empty()) else {
            return;
        };
        if g.tables.insert(Had::HANDLES) {
            self.charge.charge(1);
        }
        for (page, handle) in self.handles_of(from, pages) {
            let page = there(page);
            table.set(page, Some(handle));
            g.compressed.insert(page);
            if let Some(pool) = &self.zswap.pool {
                pool.set_owner(handle, Owner { pmd, page });
            }
        }
        self.enqueue(pmd, g);
    }
}

const _: () = assert!(LARGEST < PAGE_SIZE && WRITE_BACK <= PMD_NR);
