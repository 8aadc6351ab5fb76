//! The way down: a thread of the program waits for a page.
//!
//! One handler thread takes the messages of the program's userfaultfd and carries the reads out.
//! It never blocks on a read: the transfer's end finds the range again by its tag. It blocks only
//! when memory has to be freed first, and then reclaim works.
#![allow(unsafe_code)]

mod ahead;
mod near;
mod spin;
mod stream;
mod stride;
mod transfer;
mod unit;
mod working_set;

use crate::control::SwapIn;
use crate::device::{Device, Queue};
use crate::mm::{Pmd, PAGE_SIZE, PMD_NR};
use crate::pressure::Kick;
use crate::swap_cache::{Ahead, FillBuffers, Found, Frame, Gather, Plan, SwapCache, MAX_FRAMES};
use crate::sys::thread::now_ns;
use crate::sys::uffd::{Msg, PageFault};
use crate::sys::{syscall, Errno};
use ahead::{AheadQueue, AHEAD_MAX};
use near::Near;
use spin::Spin;
use stream::Streams;
use stride::{Stride, Strides};
use transfer::{Read, To, Transfer, DEPTH, GATHERS};
use working_set::WorkingSet;

/// A walk that gets so many pages at a time is no passing one.
const FAR: usize = 64;
/// How long the handler looks for more before it sleeps. Waking a sleeping thread on another CPU
/// costs tens of microseconds in a virtual machine, as much as a read of the disk.
const SPIN_NS: u64 = 50_000;
/// As long as a read is in flight.
const SPIN_READ_NS: u64 = 150_000;
/// A moment's pause between two looks that took so long was another thread's.
const PREEMPTED_NS: u64 = 20_000;

/// Memory is not tight when this part of the limit is free.
const ROOMY: i64 = 16;
/// Times that MADV_WILLNEED waits for memory.
const WILL_NEED_WAITS: usize = 16;
/// Ranges in which what can be read ahead is looked for.
const AHEAD_LOOK: i32 = 64;

/// The fault handler's own state; one thread uses it.
pub struct Handler<'e> {
    cache: &'e SwapCache,
    kick: Kick<'e>,
    queues: Vec<Box<dyn Queue>>,
    buffers: FillBuffers,
    gathers: [Gather; GATHERS],
    transfers: [Option<Transfer>; DEPTH],
    in_flight: usize,
    streams: Streams,
    strides: Strides,
    working_set: WorkingSet,
    ahead: AheadQueue,
    spin: Spin,
    near: Near<'e>,
    /// The connection with the supervisor, which wakes this thread too.
    link: i32,
}

impl<'e> Handler<'e> {
    /// All memory that the handler will ever need is allocated here.
    pub fn new(
        cache: &'e SwapCache,
        devices: &[Box<dyn Device>],
        kick: Kick<'e>,
    ) -> Result<Self, Errno> {
        let mut queues = Vec::with_capacity(devices.len());
        for d in devices {
            queues.push(d.queue(DEPTH as u32).map_err(|_| Errno::ENOMEM)?);
        }
        Ok(Handler {
            cache,
            kick,
            queues,
            buffers: FillBuffers::new()?,
            gathers: [Gather::new()?, Gather::new()?],
            transfers: [const { None }; DEPTH],
            in_flight: 0,
            streams: Streams::default(),
            strides: Strides::default(),
            working_set: WorkingSet::default(),
            ahead: AheadQueue::new(),
            spin: Spin::new(),
            near: Near::new(kick),
            link: -1,
        })
    }

    /// From now on sleep ends when something comes there.
    pub fn listen_to(&mut self, link: i32) {
        self.link = link;
    }

    /// What takes rights from this thread. Where it runs depends on them.
    pub fn with_fewer_rights<R>(&mut self, give_up: impl FnOnce() -> R) -> R {
        self.near.leave();
        let r = give_up();
        self.near = Near::new(self.kick);
        r
    }

    /// Serves what there is, then sleeps until there is more. `other` gets the faults that lie in
    /// the engine's own doorbell pages.
    /// True when something has come by the link.
    pub fn turn(&mut self, other: &mut dyn FnMut(&mut Self, &PageFault) -> bool) -> bool {
        !self.look(other) && !self.look_again(other) && self.sleep()
    }

    /// Serves the faults and ends the transfers that are there. False if there were none.
    fn look(&mut self, other: &mut dyn FnMut(&mut Self, &PageFault) -> bool) -> bool {
        let mut msgs = [Msg::default(); 16];
        // Reading takes locks that whoever faults needs too; asking takes none.
        let program = self.cache.program();
        let n = match program.has_message() {
            true => program.read(&mut msgs).len(),
            false => 0,
        };
        let faults = || msgs[..n].iter().filter_map(Msg::page_fault);
        // Reclaim first: to serve the others we may have to wait for it.
        let kick = self.kick;
        for f in faults().filter(|f| kick.is_reclaim(f.tid)) {
            self.cache.serve_reclaim(&f);
        }
        for f in faults().filter(|f| !kick.is_reclaim(f.tid)) {
            if !other(self, &f) {
                self.serve(&f);
            }
        }
        self.kick_queues();
        self.kick.looked();
        let found = self.reap(false) || n > 0;
        if !found && self.in_flight == 0 {
            self.near.looked_in_vain();
        }
        found
    }

    /// Looks for a while, where that has been worth it.
    fn look_again(&mut self, other: &mut dyn FnMut(&mut Self, &PageFault) -> bool) -> bool {
        if !self.spin.may() {
            return false;
        }
        let limit = if self.in_flight > 0 {
            SPIN_READ_NS
        } else {
            SPIN_NS
        };
        let start = now_ns();
        let mut preempted = false;
        let found = loop {
            if self.look(other) {
                self.spin.worked();
                break true;
            }
            // Asked after looking: where the program runs on this CPU the time was its own.
            let looked = now_ns();
            if looked - start >= limit {
                self.spin.failed();
                break false;
            }
            for _ in 0..4 {
                core::hint::spin_loop();
            }
            preempted |= now_ns() - looked > PREEMPTED_NS;
        };
        // Beside a thread that jumps the processor is that thread's, as it should be.
        if preempted && self.kick.near() == 0 {
            self.spin.gives_way();
        }
        found
    }

    /// Waits until no transfer of the handler is in flight and nothing is held ahead.
    pub fn drain(&mut self) {
        while self.in_flight > 0 {
            self.kick_queues();
            self.reap(true);
        }
        while self.drop_oldest_ahead() {}
    }

    /// At the thread's end, when it has drained.
    pub fn end(mut self) {
        self.drain();
        let gathers = self.gathers.iter().map(Gather::touched);
        let own = self.buffers.touched() + gathers.sum::<usize>();
        self.cache.uncharge_own(own);
    }

    fn kick_queues(&mut self) {
        if self.in_flight > 0 {
            for q in &mut self.queues {
                q.kick();
            }
        }
    }

    fn sleep(&mut self) -> bool {
        let mut fds = [libc::pollfd {
            fd: -1,
            events: libc::POLLIN,
            revents: 0,
        }; 2 + crate::control::MAX_DEVICES];
        fds[0].fd = self.cache.program().fd();
        // The kernel passes over a number below zero.
        fds[1].fd = self.link;
        let mut n = 2;
        let behind = self.queues.iter().any(|q| q.is_behind());
        for q in &self.queues {
            if q.in_flight() > 0 {
                if let Some(fd) = q.poll_fd() {
                    fds[n].fd = fd;
                    n += 1;
                }
            }
        }
        let moment = libc::timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        let limit = if behind {
            &raw const moment as usize
        } else {
            0
        };
        // SAFETY: array and time outlive the call; no signal mask.
        let _ = unsafe { syscall(libc::SYS_ppoll, [fds.as_mut_ptr() as usize, n, limit, 0, 8]) };
        fds[1].revents != 0
    }

    fn serve(&mut self, f: &PageFault) {
        let start_ns = now_ns();
        self.near.seen(f.tid, start_ns);
        let pmd = Pmd::of(f.addr);
        let page = crate::mm::page_in_pmd(f.addr);
        let ranges = &self.cache.ranges;
        let resident = |p: Pmd| ranges.get(p).is_some_and(|r| r.lock().present.is_full());
        let mode = self.cache.charge.control.swap_in();
        let found = self.cache.find(pmd, page);
        let goes_on = self.streams.walk(pmd, page, resident);
        let stride = self.stride(f.tid, pmd, page, found, goes_on.is_some());
        if goes_on.is_none() && stride.is_none() {
            self.streams.begin(pmd, page);
        }
        let limit = self.cache.charge.limit();
        let new = unit::first_touch(mode, self.is_tight(limit), goes_on);
        if found == Found::Nowhere && new < PMD_NR {
            self.streams.brought(new);
        }
        let (walk, pages) = goes_on.map_or((None, 1), |w| (w.enters, w.pages));
        // Who wants one page of each range looks like a walk too, but does not leave a range behind that
        // is all there.
        let left_all = walk.is_some_and(|step| {
            let from = pmd.0.checked_add_signed(-step);
            from.is_some_and(|from| resident(Pmd(from)))
        });
        let jumps = pages == 1 && stride.is_none();
        // Once for each fault, however often it is tried.
        let mut fits = None;
        let set = stride.map(|s| s.pages_of(pmd, page, pmd));
        let mut ahead = None;
        let mut frame: Option<(Frame, bool)> = None;
        let mut stalled = false;
        // Pages for a walk or a first touch.
        let mut took = if self.ahead.has(pmd) { PMD_NR } else { 0 };
        loop {
            let plan = self.cache.fault(
                f,
                new,
                |present, hints, miss| {
                    let fits = miss.is_some_and(|miss| {
                        *fits.get_or_insert_with(|| {
                            jumps
                                && mode == SwapIn::Auto
                                && self.working_set.jumped(f.tid, miss, limit, start_ns)
                        })
                    });
                    let seen = unit::Seen {
                        fits,
                        vacant: present.is_empty(),
                        walk,
                        left_all,
                        pages,
                        stride: set,
                    };
                    let choice = unit::choose(mode, hints, seen);
                    ahead = choice.ahead;
                    choice.unit
                },
                &mut frame,
                &mut self.buffers,
            );
            match plan {
                Plan::Served => {
                    self.ahead.remove(pmd);
                    self.cache.stats().pgminfault.inc();
                    self.cache.stats().fault_ns.record(now_ns() - start_ns);
                    break;
                }
                Plan::Loaded(pages) => {
                    self.cache.stats().pgminfault.inc();
                    let took_ns = now_ns() - start_ns;
                    self.cache.stats().fault_ns.record(took_ns);
                    self.cache.load_took(pages, took_ns);
                    if jumps {
                        self.near.jump(f.tid);
                    } else {
                        took = pages;
                    }
                    break;
                }
                Plan::Wait => {
                    self.cache.stats().pgmajfault.inc();
                    break;
                }
                Plan::Unknown => {
                    self.cache.stats().fault_unknown.inc();
                    break;
                }
                Plan::ReadWhole {
                    frame,
                    pages,
                    entry,
                } => {
                    self.cache.stats().pgmajfault.inc();
                    self.near.leave();
                    took = if jumps { 0 } else { pages.count() };
                    self.submit(Read {
                        pmd,
                        to: To::Frame(frame),
                        pages,
                        entry,
                        page,
                        start_ns,
                    });
                    break;
                }
                Plan::Fill {
                    buffer,
                    pages,
                    entry,
                } => {
                    self.cache.stats().pgmajfault.inc();
                    if jumps {
                        self.near.jump(f.tid);
                    } else if stride.is_none() {
                        // Who has come so far will enter the next range.
                        let far = pages.count() >= FAR;
                        took = if far { PMD_NR } else { pages.count() };
                    }
                    self.submit(Read {
                        pmd,
                        to: To::Buffer(buffer),
                        pages,
                        entry,
                        page,
                        start_ns,
                    });
                    break;
                }
                Plan::NeedFrame { zeroed } => {
                    if zeroed {
                        took = PMD_NR;
                    }
                    frame = self.ready_frame(zeroed);
                    if frame.is_none() {
                        self.wait_for_memory(&mut stalled);
                    }
                }
                Plan::NeedRoom(pages) => self.make_room(pages, &mut stalled),
                Plan::NeedBuffer => {
                    self.kick_queues();
                    self.reap(true);
                }
            }
        }
        self.end_stall(stalled);
        if let Some((f, zeroed)) = frame {
            self.cache.frames.put_ready(f, zeroed);
        }
        if let Some((step, window)) = ahead.or(unit::passing(mode, walk)) {
            let window = window.unwrap_or_else(|| self.streams.window());
            let why = Ahead::Walk { rest: left_all };
            self.read_ahead(pmd, step, window, why);
        } else if let Some(s) = stride {
            self.read_stride(s, pmd, page);
        }
        self.kick.took(took);
        if self.cache.free_pages() < self.kick.low_pages() {
            self.kick.kick();
        }
    }

    /// Memory has been full, and little of it has been given back since.
    fn is_tight(&self, limit: i64) -> bool {
        self.cache.free_pages() < limit / ROOMY && self.cache.lru.has_evicted()
    }

    /// Where the thread will be next, if it strides.
    fn stride(
        &mut self,
        tid: u32,
        pmd: Pmd,
        page: usize,
        found: Found,
        walks: bool,
    ) -> Option<Stride> {
        if found != Found::Swap {
            // What lies in memory at the time says little: of a range in a frame all comes at once.
            return None;
        }
        let at = stream::number(pmd, page);
        if walks || self.cache.charge.control.swap_in() != SwapIn::Auto {
            self.strides.walks(tid, at);
            return None;
        }
        let stride = self.strides.seen(tid, at)?;
        self.cache.stats().stride_ra_hit.add(stride.passed.into());
        self.cache.stats().stride_ra.add(stride.beyond.into());
        Some(stride)
    }

    /// Begins to read what a stride comes to in other ranges than the one it is in.
    fn read_stride(&mut self, stride: Stride, pmd: Pmd, page: usize) {
        let mut last = pmd;
        for next in stride.ranges(pmd, page) {
            if next == last {
                continue;
            }
            last = next;
            let set = stride.pages_of(pmd, page, next);
            let plan = self.cache.begin_set_ahead(next, set, &mut self.buffers);
            if let Some(Plan::Fill {
                buffer,
                pages,
                entry,
            }) = plan
            {
                self.submit(Read {
                    pmd: next,
                    to: To::Buffer(buffer),
                    pages,
                    entry,
                    page: 0,
                    start_ns: 0,
                });
            }
        }
    }

    /// A frame for a folio to come in: a ready one, or one within the limit.
    fn ready_frame(&mut self, zeroed: bool) -> Option<(Frame, bool)> {
        if let Some(f) = self.cache.frames.take_ready(zeroed) {
            return Some(f);
        }
        if let Some(f) = self.cache.prepare_ready(true) {
            return Some((f, true));
        }
        self.drop_oldest_ahead();
        self.cache.frames.take_ready(zeroed)
    }

    /// Room for base pages comes from ready frames when nothing else is left.
    fn make_room(&mut self, pages: usize, stalled: &mut bool) {
        let _ = pages;
        if !self.cache.release_ready() && !self.drop_oldest_ahead() {
            self.wait_for_memory(stalled);
        }
    }

    /// MADV_WILLNEED: begins to read what of these ranges is in swap, as far as there is room or can
    /// be made in a moment.
    pub fn will_need(&mut self, ranges: impl Iterator<Item = Pmd>) {
        let mut stalled = false;
        let mut waits = WILL_NEED_WAITS;
        for pmd in ranges {
            // What was asked for before and not touched keeps its place.
            if self.is_full_ahead() {
                break;
            }
            while !self.begin_ahead(pmd, Ahead::Said) {
                if waits == 0 {
                    self.end_stall(stalled);
                    return self.kick_queues();
                }
                waits -= 1;
                self.wait_for_memory(&mut stalled);
            }
        }
        self.end_stall(stalled);
        self.kick_queues();
    }

    fn is_full_ahead(&self) -> bool {
        self.ahead.len() >= AHEAD_MAX || self.in_flight >= DEPTH / 2
    }

    fn drop_oldest_ahead(&mut self) -> bool {
        for _ in 0..self.ahead.len() {
            let Some(p) = self.ahead.pop() else { break };
            let Some(r) = self.cache.ranges.get(p) else {
                continue;
            };
            let mut g = r.lock();
            if self.cache.drop_ahead(&mut g) {
                return true;
            }
            if g.ahead {
                // Still being read: it keeps its place in the queue.
                self.ahead.push(p);
            }
        }
        false
    }

    /// Lets reclaim work; meanwhile our own transfers go on.
    fn wait_for_memory(&mut self, stalled: &mut bool) {
        if !*stalled {
            self.cache.stats().allocstall.inc();
            *stalled = true;
            self.kick.set_starving(true);
        }
        self.kick.kick();
        self.kick_queues();
        self.serve_reclaim();
        if !self.reap(false) {
            self.kick.wait_for_progress();
        }
    }

    fn end_stall(&self, stalled: bool) {
        if stalled {
            self.kick.set_starving(false);
        }
    }

    /// While we wait for reclaim it must not wait for us: answers its faults. Other threads are
    /// sent back to fault again.
    pub fn serve_reclaim(&self) {
        let mut msgs = [Msg::default(); 16];
        for m in self.cache.program().read(&mut msgs) {
            let Some(f) = m.page_fault() else { continue };
            if self.kick.is_reclaim(f.tid) {
                self.cache.serve_reclaim(&f);
            } else {
                self.cache
                    .program()
                    .wake(f.addr & !(PAGE_SIZE - 1), PAGE_SIZE);
            }
        }
    }

    /// Begins to read the next folios of a walk, as far as frames are at hand.
    fn read_ahead(&mut self, pmd: Pmd, step: i32, mut window: usize, why: Ahead) {
        for k in 1..=AHEAD_LOOK {
            if window == 0 || self.is_full_ahead() {
                return;
            }
            let Some(n) = (pmd.0 as i64 + (step * k) as i64).try_into().ok() else {
                return;
            };
            let next = Pmd(n);
            let Some(r) = self.cache.ranges.get(next) else {
                return;
            };
            if r.lock().present.is_full() {
                continue;
            }
            window -= 1;
            if !self.begin_ahead(next, why) {
                return;
            }
        }
    }

    /// Begins to read the range, if that makes sense; false if there is no frame for it.
    fn begin_ahead(&mut self, pmd: Pmd, why: Ahead) -> bool {
        let range = self.cache.ranges.get(pmd);
        if !range.is_some_and(|r| self.cache.may_read_ahead(r, why)) {
            return true;
        }
        // Never the last frames: faults come first.
        if self.cache.frames.ready() <= 2 {
            match self.cache.prepare_ready(false) {
                Some(f) => self.cache.frames.put_ready(f, true),
                None => return false,
            }
        }
        let mut frame = self.cache.frames.take_ready(false);
        if let Some(Plan::ReadWhole {
            frame: fr,
            pages,
            entry,
        }) = self.cache.begin_ahead(pmd, &mut frame)
        {
            self.ahead.push(pmd);
            self.submit(Read {
                pmd,
                to: To::Frame(fr),
                pages,
                entry,
                page: 0,
                start_ns: 0,
            });
        }
        if let Some((f, zeroed)) = frame {
            self.cache.frames.put_ready(f, zeroed);
        }
        true
    }
}

const _: () = assert!(AHEAD_MAX < MAX_FRAMES);
