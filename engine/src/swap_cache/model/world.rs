//! One range of a program, and all that can happen to it, in one thread: touches, transfers that end later, pages that
//! leave, what the program drops, calls that are refused. `truth` says what each page must have in it.

use super::super::*;
use super::fake::{At, Fake, Refusal};
use super::truth::{content, Content, Scene, Setup, Slot, Truth, WORDS};
use crate::control::{Answer, Compress, Grant, Proc, Settings, Writer, SEGMENT_CLUSTERS};
use crate::device::ram::RamDevice;
use crate::device::Device;
use crate::mm::PAGE_SIZE;
use crate::policy::intake::Amount;
use crate::policy::Unit;
use crate::sys::uffd::PageFault;
use core::cell::{Cell, RefCell};
use std::rc::Rc;

/// So often a page is asked for until it has to be there.
const TRIES: usize = 8;

/// Something that happens.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Event {
    Write(usize, Unit),
    Read(usize, Unit),
    /// The program reads these, one after the other, as long as none has to be waited for.
    ReadMany(usize, usize),
    /// The program writes to those that are there.
    WriteMany(usize, usize),
    /// The program fills the page with zeros.
    Zero(usize),
    /// The transfer in flight ends.
    End,
    /// It fails: a read as a whole, a write for its first page.
    Fail,
    /// All that is resident is taken out.
    Deactivate,
    /// What has been taken out leaves.
    Leave(To),
    /// The page's slot can't be read any more.
    GoBad(usize),
    /// A message of a write comes late.
    OldWrite(usize),
    /// The program drops pages, and says so.
    Discard(usize, usize),
    /// It drops one by a call that nobody sees.
    DropUnseen(usize),
    /// A hook, or a fork, wants nothing in a frame.
    Settle,
    /// `mremap`: pages go to a page of another range, from which on they lie there, and back.
    MoveThereAndBack(usize, usize, usize),
    ReadAhead,
    /// The first device is swapped off, a range at a time; or is on again.
    SwapOff,
    /// Compressed pages go on to a device.
    WriteBack,
    /// The kernel takes pages that it may take.
    Reclaim,
    /// The kernel refuses a move or copy, after so many others and so many pages.
    Refuse(Refusal, u32, usize),
}

/// The transfer in flight.
enum Pending {
    None,
    /// To a frame; `pages` as the device reads them.
    Whole(Frame, PageMask, crate::mm::SwapPlace),
    Fill(u32, PageMask, crate::mm::SwapPlace),
    Off(Transfer),
    /// What is written: of each page its slot, its place in memory, and its bytes when the write began.
    Write(Transfer, Vec<(SwapEntry, usize, Vec<u8>, Content)>),
}

pub struct World {
    inner: Rc<Scene>,
    devices: Vec<Box<dyn Device>>,
    buffers: FillBuffers,
    frame: Option<(Frame, Bytes)>,
    pending: Pending,
    /// A thread that was told to wait.
    waiting: Option<(usize, Unit)>,
    /// What was charged before anything happened.
    charged: i64,
    /// Which devices have been given out, as a whole.
    granted: [bool; 2],
    pub history: Vec<Event>,
}

/// The first of these pages, if so.
fn first_of(pages: PageMask, so: bool) -> PageMask {
    let first = pages.next_from(0).filter(|_| so);
    first.map_or(PageMask::EMPTY, |page| PageMask::of(page..page + 1))
}

/// A process's page of its own, with room for everything.
fn process(lazyfree: bool) -> &'static Proc {
    let page = crate::sys::mem::map_anon(Proc::BYTES).unwrap() as *const Proc;
    // SAFETY: mapped with this size and never unmapped; every bit pattern is valid.
    let page = unsafe { &*page };
    page.limit_pages.store(64 * PMD_NR as i64, Relaxed);
    page.lazyfree_limit.store(lazyfree.into(), Relaxed);
    page
}

impl World {
    pub fn new(setup: Setup) -> World {
        let settings = Settings {
            limit_bytes: 64 * PMD_SIZE as u64,
            encrypt: setup.encrypt.into(),
            compress: match setup.compress {
                0 => Compress::Off.to_word(),
                n => Compress::Percent(n).to_word(),
            },
            ..Settings::default()
        };
        let control = Writer::with_settings(
            settings,
            if setup.devices {
                &[(1, 0), (1, 1)]
            } else {
                &[]
            },
        );
        control.start_recycling();
        let charge = Charge::new(control.page(), 1, process(setup.lazyfree), -1);
        // A range, and one to move pages to.
        let bytes = 2 * PMD_SIZE;
        let base = crate::sys::mem::reserve_aligned(bytes).unwrap();
        // SAFETY: a reservation that nobody knows of.
        unsafe {
            crate::sys::mem::mprotect(base, bytes, libc::PROT_READ | libc::PROT_WRITE).unwrap();
        }
        let abilities = Abilities {
            mv: setup.mv,
            pt_reclaim: true,
            poison: true,
        };
        let cache = SwapCache::new(Fake::new(base, 2), charge, abilities).unwrap();
        let frames = cache.frames.base();
        // SAFETY: ours, and the test's memory moves pages by bytes.
        unsafe {
            let rw = libc::PROT_READ | libc::PROT_WRITE;
            crate::sys::mem::mprotect(frames, super::super::frames::MAX_FRAMES * PMD_SIZE, rw)
                .unwrap();
        }
        let disk = || {
            let memory = RamDevice::new(crate::control::SEGMENT_BYTES).unwrap();
            memory.grow(crate::control::SEGMENT_BYTES).unwrap();
            Box::new(memory) as Box<dyn Device>
        };
        let devices = match setup.devices {
            true => vec![disk(), disk()],
            false => vec![],
        };
        let pmd = Pmd::of(base);
        cache.ranges.get_or_map(pmd).unwrap().lock().writable = PageMask::of(0..setup.pages);
        let inner = Rc::new(Scene {
            cache,
            pmd,
            setup,
            truth: RefCell::new(Truth {
                pages: [0; PMD_NR],
                failed: PageMask::EMPTY,
                slots: Default::default(),
                bad: Default::default(),
                written: 0,
            }),
            blind: Cell::new(false),
        });
        let weak = Rc::downgrade(&inner);
        let watch = move || {
            if let Some(inner) = weak.upgrade() {
                inner.look_after_death();
            }
        };
        *inner.cache.memory.watch.borrow_mut() = Some(Rc::new(watch));
        let mut world = World {
            charged: inner.cache.charge.charged(),
            inner,
            devices,
            buffers: FillBuffers::new().unwrap(),
            frame: None,
            pending: Pending::None,
            waiting: None,
            granted: [false; 2],
            history: Vec::new(),
        };
        world.supply();
        world
    }

    /// How often something was counted (`Stats`).
    pub fn counted(&self, name: &str) -> u64 {
        let mut all = self.cache().stats().each();
        all.find(|&(n, _)| n == name).expect("a counter").1
    }

    fn cache(&self) -> &SwapCache<Fake> {
        &self.inner.cache
    }

    /// Gives slots, as the supervisor does.
    fn supply(&mut self) {
        let inner = Rc::clone(&self.inner);
        let (cache, p) = (&inner.cache, inner.cache.charge.proc());
        for _ in 0..4 {
            cache.slots.prepare(&cache.charge, &self.devices);
            for d in 0..self.devices.len() {
                if let Some(wish) = p.wish(d) {
                    let all = Grant {
                        segment: 0,
                        clusters: ((1u32 << SEGMENT_CLUSTERS) - 1) as u16,
                    };
                    let answer = match core::mem::replace(&mut self.granted[d], true) {
                        false => Answer::Granted(all),
                        true => Answer::Nothing,
                    };
                    p.answer(d, wish, answer);
                }
            }
        }
    }

    pub fn happen(&mut self, event: Event) {
        self.history.push(event);
        self.cache().memory.woken.borrow_mut().clear();
        match event {
            Event::Write(page, unit) => self.touch(page, unit, true),
            Event::Read(page, unit) => self.touch(page, unit, false),
            Event::ReadMany(start, end) => {
                let mut pages = start..end;
                while let (Some(page), None) = (pages.next(), self.waiting) {
                    self.touch(page, Unit::Pages(4), false);
                }
            }
            Event::WriteMany(start, end) => {
                for page in start..end {
                    if self.waiting.is_none() && self.at(page) == At::Page {
                        self.touch(page, Unit::Pages(1), true);
                    }
                }
            }
            Event::Zero(page) => self.zero(page),
            Event::OldWrite(page) => self.old_write(page),
            Event::End => self.end(true),
            Event::Fail => self.end(false),
            Event::Deactivate => self.deactivate(),
            Event::Leave(to) => self.leave(to),
            Event::Discard(start, end) => self.discard(PageMask::of(start..end)),
            Event::DropUnseen(page) => self.drop_unseen(page),
            Event::GoBad(page) => self.go_bad(page),
            Event::Settle => self.settle(),
            Event::MoveThereAndBack(start, end, there) => {
                self.move_there_and_back(start..end, there)
            }
            Event::ReadAhead => self.read_ahead(),
            Event::SwapOff => self.swap_off(),
            Event::WriteBack => {
                self.cache().begin_write_back();
            }
            Event::Reclaim => self.cache().memory.reclaim(),
            Event::Refuse(why, calls, after) => {
                let memory = &self.cache().memory;
                memory.refusal.set(Some((calls, why, after)));
            }
        }
        self.inner.look_after_death();
        self.inner.look_at_tables();
        self.wake();
    }

    fn is_protected(&self, page: usize) -> bool {
        let at = self.inner.pmd.page_addr(page);
        self.cache().memory.is_protected(at)
    }

    fn at(&self, page: usize) -> At {
        self.cache().memory.at(self.inner.pmd.page_addr(page))
    }

    pub fn is_in_flight(&self) -> bool {
        !matches!(self.pending, Pending::None)
    }

    pub fn is_inactive(&self) -> bool {
        self.inner.snapshot().io == IoState::Inactive
    }

    pub fn compressed(&self) -> usize {
        self.inner.snapshot().compressed.count()
    }

    fn is_settled(&self) -> bool {
        let range = self.cache().ranges.get(self.inner.pmd);
        let settled = range.unwrap().lock().io().is_settled();
        settled
    }

    /// Who was told to wait goes on when the transfer has ended: then somebody has woken it.
    fn wake(&mut self) {
        if !self.is_settled() {
            return;
        }
        if let Some((page, unit)) = self.waiting.take() {
            let at = self.inner.pmd.page_addr(page);
            let woken = self.cache().memory.woken.borrow().clone();
            let mine = |&(start, len): &(usize, usize)| (start..start + len).contains(&at);
            assert!(woken.iter().any(mine), "page {page} waits for ever");
            self.touch(page, unit, false);
        }
    }

    fn touch(&mut self, page: usize, unit: Unit, write: bool) {
        for _ in 0..16 {
            match self.at(page) {
                At::Page if write && self.is_protected(page) => {}
                At::Page => {
                    if write {
                        self.write(page);
                    }
                    return self.inner.look(page);
                }
                At::Poison => return self.inner.look(page),
                At::Nothing => {}
            }
            if !self.fault(page, unit, write) {
                return;
            }
        }
        panic!("page {page} is asked for again and again");
    }

    /// Nobody waits for what comes of it.
    fn old_write(&mut self, page: usize) {
        if self.waiting.is_none() {
            self.fault_on(page, Unit::Pages(1), true, true);
            self.waiting = None;
        }
    }

    /// False if the page has to be waited for.
    fn fault(&mut self, page: usize, unit: Unit, write: bool) -> bool {
        let wp = self.at(page) == At::Page;
        self.fault_on(page, unit, write, wp)
    }

    fn fault_on(&mut self, page: usize, unit: Unit, write: bool, wp: bool) -> bool {
        let inner = Rc::clone(&self.inner);
        let cache = &inner.cache;
        let fault = PageFault {
            addr: inner.pmd.page_addr(page),
            write,
            wp,
            tid: 1,
        };
        let zeros = if inner.setup.pages == PMD_NR {
            PMD_NR
        } else {
            4
        };
        let amount = Amount { zeros, unit };
        let plan = cache.fault(&fault, |_| amount, &mut self.frame, &mut self.buffers);
        let goes_on = match plan {
            Plan::Served | Plan::Loaded { .. } => true,
            Plan::NeedFrame { bytes } => {
                let ready = cache.frames.take_ready(bytes);
                let made = || Some((cache.prepare_for_fault()?, Bytes::Zeros));
                self.frame = ready.or_else(made);
                assert!(self.frame.is_some(), "there is room for everything");
                return true;
            }
            Plan::Wait => {
                assert!(
                    !matches!(self.pending, Pending::None),
                    "it waits for nothing"
                );
                self.waiting = Some((page, unit));
                false
            }
            Plan::ReadWhole {
                frame,
                pages,
                entry,
            } => {
                self.begin(Pending::Whole(frame, pages, entry));
                self.waiting = Some((page, unit));
                false
            }
            Plan::Fill {
                buffer,
                pages,
                entry,
            } => {
                self.begin(Pending::Fill(buffer, pages, entry));
                self.waiting = Some((page, unit));
                false
            }
            plan => panic!("{plan:?}"),
        };
        self.put_frame_back();
        goes_on
    }

    fn put_frame_back(&mut self) {
        if let Some((frame, bytes)) = self.frame.take() {
            self.cache().frames.put_ready(frame, bytes);
        }
    }

    fn begin(&mut self, pending: Pending) {
        assert!(matches!(self.pending, Pending::None), "two at a time");
        self.pending = pending;
    }

    fn write(&self, page: usize) {
        let mut truth = self.inner.truth.borrow_mut();
        truth.written += 1;
        let with = truth.written << 9 | page as u64;
        self.fill(&mut truth, page, with);
    }

    fn zero(&self, page: usize) {
        if self.at(page) == At::Page && !self.is_protected(page) {
            self.fill(&mut self.inner.truth.borrow_mut(), page, 0);
        }
    }

    fn fill(&self, truth: &mut Truth, page: usize, with: Content) {
        truth.pages[page] = with;
        let at = self.inner.pmd.page_addr(page);
        self.cache().memory.was_written(at);
        truth.failed = truth.failed.minus(PageMask::of(page..page + 1));
        for o in WORDS {
            // SAFETY: the page is there.
            unsafe { *((self.inner.pmd.page_addr(page) + o) as *mut u64) = with };
        }
    }

    fn end(&mut self, ok: bool) {
        let inner = Rc::clone(&self.inner);
        let (cache, pmd) = (&inner.cache, inner.pmd);
        match core::mem::replace(&mut self.pending, Pending::None) {
            Pending::None => {}
            Pending::Whole(frame, pages, entry) => {
                let to = cache.place_of(frame);
                let bad = self.read(pages, entry, |page| to.addr(page));
                let ok = ok && bad.is_empty();
                self.note(ok, pages);
                cache.swapin_done(pmd, ok);
            }
            Pending::Fill(buffer, pages, entry) => {
                let to = Source::packed(self.buffers.addr(buffer) as usize, pages);
                let bad = self.read(pages, entry, |page| to.addr(page));
                let ok = ok && bad.is_empty();
                self.note(ok, pages);
                cache.fill_done(pmd, ok, &mut self.buffers);
            }
            Pending::Off(t) => {
                let to = cache.place_of(t.frame);
                let bad = self.read(t.pages, t.entry, |page| to.addr(page));
                let failed = bad.or(first_of(t.pages, !ok));
                self.note(failed.is_empty(), failed);
                cache.leave_done(pmd, failed);
            }
            Pending::Write(t, pages) => {
                let failed = first_of(t.pages, !ok);
                for (i, (entry, at, bytes, content)) in pages.into_iter().enumerate() {
                    // SAFETY: memory of the transfer's.
                    let now = unsafe { core::slice::from_raw_parts(at as *const u8, PAGE_SIZE) };
                    assert!(now == bytes, "written while it is changed");
                    if i > 0 || ok {
                        let slot = Slot { bytes, content };
                        let mut truth = inner.truth.borrow_mut();
                        truth.slots.insert(entry, slot);
                        truth.bad.remove(&entry);
                    }
                }
                cache.writeback_done(pmd, t.pages, failed);
            }
        }
    }

    fn note(&self, ok: bool, pages: PageMask) {
        if !ok {
            let mut truth = self.inner.truth.borrow_mut();
            truth.failed = truth.failed.or(pages);
        }
    }

    /// Puts what the device has of the pages where it belongs. Gives those that can't be read.
    fn read(
        &self,
        pages: PageMask,
        entry: crate::mm::SwapPlace,
        to: impl Fn(usize) -> usize,
    ) -> PageMask {
        let truth = self.inner.truth.borrow();
        let mut bad = PageMask::EMPTY;
        for (page, entry) in self.inner.slots_of(entry, pages) {
            let Some(slot) = truth.slots.get(&entry) else {
                continue;
            };
            let to = to(page) as *mut u8;
            // SAFETY: memory of the transfer's.
            unsafe { core::ptr::copy_nonoverlapping(slot.bytes.as_ptr(), to, PAGE_SIZE) };
            if truth.bad.contains(&entry) {
                bad.insert(page);
            }
        }
        bad
    }

    /// The slot of the page can't be read until it is written again.
    fn go_bad(&self, page: usize) {
        let range = self.cache().ranges.get(self.inner.pmd).unwrap();
        let g = range.lock();
        let place = g.entry.filter(|_| g.swapped.has(page));
        if let Some(place) = place {
            let slots = self.inner.slots_of(place, PageMask::of(page..page + 1));
            let mut truth = self.inner.truth.borrow_mut();
            truth.bad.extend(slots.map(|(_, slot)| slot));
        }
    }

    fn deactivate(&self) {
        let (cache, pmd) = (self.cache(), self.inner.pmd);
        let range = cache.ranges.get(pmd).unwrap();
        {
            let mut g = range.lock();
            if !g.listed || !cache.lru.remove(&cache.ranges, pmd, g.list) {
                return;
            }
            g.asked = true;
        }
        cache.deactivate(pmd);
    }

    /// What is out of the range now.
    pub fn taken(&self) -> Taken {
        let (cache, pmd) = (self.cache(), self.inner.pmd);
        let g = cache.ranges.get(pmd).unwrap().lock();
        Taken::of(pmd, &g)
    }

    /// How much of that has not come back.
    pub fn staged(&self, taken: Taken) -> usize {
        self.cache().staged(taken)
    }

    fn leave(&mut self, to: To) {
        self.leave_now(self.taken(), to);
    }

    /// What was taken out leaves, unless it has come back.
    pub fn leave_now(&mut self, taken: Taken, to: To) {
        let inner = Rc::clone(&self.inner);
        let cache = &inner.cache;
        self.supply();
        if let Start::Write(t) = cache.start_write(taken, to, &self.devices) {
            let frame = cache.frames.addr(t.frame);
            let from = cache.seal(&t, t.pages, 0);
            let each = inner.slots_of(t.entry, t.pages).map(|(page, slot)| {
                let at = from.addr(page);
                // SAFETY: memory of the transfer's.
                let bytes = unsafe { core::slice::from_raw_parts(at as *const u8, PAGE_SIZE) };
                // SAFETY: a page of the frame.
                let content = unsafe { content(frame + page * PAGE_SIZE) };
                (slot, at, bytes.to_vec(), content.expect("whole pages"))
            });
            let pages = each.collect();
            self.begin(Pending::Write(t, pages));
        }
    }

    fn settle(&self) {
        if self.is_settled() {
            let (cache, pmd) = (self.cache(), self.inner.pmd);
            let mut g = cache.ranges.get(pmd).unwrap().lock();
            cache.settle(pmd, &mut g);
            cache.drop_lazy(pmd, &mut g, PageMask::FULL);
        }
    }

    fn discard(&self, pages: PageMask) {
        if !self.is_settled() {
            return;
        }
        let pages = pages.and(PageMask::of(0..self.inner.setup.pages));
        let cache = self.cache();
        self.inner.blind.set(true);
        for page in pages.runs().flatten() {
            let at = self.inner.pmd.page_addr(page);
            cache.memory.set(at, PAGE_SIZE, At::Nothing);
            let mut truth = self.inner.truth.borrow_mut();
            truth.pages[page] = 0;
        }
        let range = cache.ranges.get(self.inner.pmd).unwrap();
        cache.discard(self.inner.pmd, &mut range.lock(), pages);
        let mut truth = self.inner.truth.borrow_mut();
        truth.failed = truth.failed.minus(pages);
        self.inner.blind.set(false);
    }

    fn drop_unseen(&self, page: usize) {
        if self.at(page) == At::Page {
            let at = self.inner.pmd.page_addr(page);
            let is_lazy = self.is_protected(page);
            self.cache().memory.set(at, PAGE_SIZE, At::Nothing);
            if !is_lazy {
                self.inner.truth.borrow_mut().pages[page] = 0;
            }
        }
    }

    fn move_there_and_back(&self, pages: core::ops::Range<usize>, there: usize) {
        if !self.is_settled() {
            return;
        }
        self.settle();
        self.inner.blind.set(true);
        let (here, other) = (self.inner.pmd, Pmd(self.inner.pmd.0 + 1));
        let back = there..there + pages.len();
        for (from, pages, to, first) in [
            (here, pages.clone(), other, there),
            (other, back, here, pages.start),
        ] {
            let shift = Shift {
                from,
                to,
                pages,
                there: first,
            };
            self.cache().prepare_move(&shift).unwrap();
            for page in shift.pages.clone() {
                let to = to.page_addr(page - shift.pages.start + first);
                self.cache().memory.carry(from.page_addr(page), to);
            }
            self.cache().move_held(&shift);
        }
        self.inner.blind.set(false);
    }

    fn read_ahead(&mut self) {
        let inner = Rc::clone(&self.inner);
        let cache = &inner.cache;
        let range = cache.ranges.get(inner.pmd).unwrap();
        if !cache.may_read_ahead(range, Ahead::Said) {
            return;
        }
        let mut frame = cache.ready_within_limit().map(|f| (f, Bytes::Old));
        let plan = cache.begin_ahead(inner.pmd, &mut frame);
        self.frame = frame;
        self.put_frame_back();
        if let Some(Plan::ReadWhole {
            frame,
            pages,
            entry,
        }) = plan
        {
            self.begin(Pending::Whole(frame, pages, entry));
        }
    }

    fn swap_off(&mut self) {
        let inner = Rc::clone(&self.inner);
        let cache = &inner.cache;
        let mut first = DeviceSet::default();
        if self.devices.is_empty() {
            return;
        }
        if cache.slots.leaving().is_empty() {
            first.add(0);
        }
        cache.slots.set_leaving(first);
        if first.is_empty() {
            return;
        }
        let mut frame = cache.ready_within_limit();
        if let Leave::Read(t) = cache.begin_leave(inner.pmd, first, &mut frame) {
            self.begin(Pending::Off(t));
        }
        if let Some(frame) = frame {
            cache.put_or_clear(frame);
        }
    }

    /// Reads every page, and drops all: nothing may be left over.
    pub fn finish(&mut self) {
        self.cache().memory.refusal.set(None);
        self.cache().slots.set_leaving(DeviceSet::default());
        for _ in 0..4 {
            self.happen(Event::End);
        }
        let pages = self.inner.setup.pages;
        for page in 0..pages {
            for _ in 0..TRIES {
                // A page that never was there need not come.
                if self.at(page) != At::Nothing || self.inner.truth.borrow().pages[page] == 0 {
                    break;
                }
                self.happen(Event::Read(page, Unit::Whole));
                self.happen(Event::End);
            }
            let nowhere = self.at(page) == At::Nothing;
            assert!(!nowhere || self.inner.truth.borrow().pages[page] == 0);
            if self.at(page) != At::Nothing {
                self.inner.look(page);
            }
        }
        self.happen(Event::End);
        self.happen(Event::Settle);
        self.happen(Event::Discard(0, pages));
        self.inner.nothing_is_left(self.charged);
        self.history.clear();
    }
}
