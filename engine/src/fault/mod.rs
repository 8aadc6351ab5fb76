//! The way down: a thread of the program waits for a page.
//!
//! One handler thread takes the messages of the program's userfaultfd and carries the reads out.
//! It never blocks on a read: the transfer's end finds the range again by its tag. It blocks only
//! when memory has to be freed first, and then reclaim works.

mod ahead;
mod colocation;
mod crowd;
mod held;
mod record;
mod shared;
mod spin;
mod transfer;

use crate::device::{Device, Until};
use crate::mm::{PageMask, Pmd, SwapPlace, PAGE_SIZE, PMD_NR};
use crate::policy::intake::{By, Decision, Fault, Other, ReadAhead};
use crate::policy::shared::SharedWrites;
use crate::policy::Intake;
use crate::pressure::Kick;
use crate::swap_cache::{Ahead, Bytes, FillBuffers, Frame, Gather, Plan, SwapCache};
use crate::swap_io::SwapIo;
use crate::sys::sched::Switches;
use crate::sys::thread::now_ns;
use crate::sys::uffd::{Msg, PageFault};
use crate::sys::{fd, Errno};
use crate::vma::Range;
use ahead::AheadQueue;
use colocation::Colocation;
use core::sync::atomic::Ordering::{Acquire, Release};
use crowd::Crowd;
use held::Held;
use record::Record;
use spin::{Place, Spin, Wait};
use transfer::{Read, To, Transfer, DEPTH, GATHERS};

/// A moment's pause between two looks that took so long was another thread's, or the host's. (Less than
/// `Spin::was_taken` minds: a switch that is not looked at now would be taken for one in the host's next pause.)
const PAUSED_NS: u64 = 20_000;

/// Memory of the handler's own that was not used for so long is given back.
const REST_NS: u64 = 1_000_000_000;
const REST: libc::timespec = libc::timespec {
    tv_sec: 1,
    tv_nsec: 1_000_000,
};
/// Requests that could not be handed in are tried again after that.
const MOMENT: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// Batches that the handler takes off reclaim's hands before it looks for other faults.
const HELP: usize = 8;

/// How often is looked whether faults that wait for their turn may go on, and the supervisor is told what time the
/// engine has taken.
const LOOK_NS: u64 = 5_000_000;
const LOOK: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: LOOK_NS as i64,
};

/// The fault handler's own state; one thread uses it.
pub struct Handler<'e> {
    cache: &'e SwapCache,
    kick: Kick<'e>,
    io: SwapIo<Transfer, DEPTH>,
    buffers: FillBuffers,
    gathers: [Gather; GATHERS],
    intake: Intake,
    shared_writes: SharedWrites,
    ahead: AheadQueue,
    spin: Spin,
    /// Since when there has been nothing to do.
    waits_since_ns: u64,
    switches: Switches,
    crowd: Crowd,
    held: Held,
    /// Processor time of this thread, as the supervisor was told last, and when that was.
    told_ns: u64,
    told_at_ns: u64,
    colocation: Colocation<'e>,
    /// When memory of its own was last given back.
    rested_ns: u64,
    /// The connection with the supervisor, which wakes this thread too.
    link: i32,
    /// Where faults are written down, if they are.
    record: Option<Record>,
}

/// A fault that is being served.
struct Serving {
    pmd: Pmd,
    page: usize,
    start_ns: u64,
    tid: u32,
    /// Made once, under the range's lock.
    decision: Option<Decision>,
    /// For what comes by one, and what that has in it.
    frame: Option<(Frame, Bytes)>,
    /// It has waited for memory.
    stalled: bool,
    /// Pages that it took for a walk or a first touch.
    took: usize,
}

impl Serving {
    fn read(&self, to: To, pages: PageMask, entry: SwapPlace) -> Read {
        Read {
            pmd: self.pmd,
            to,
            pages,
            entry,
            page: self.page,
            start_ns: self.start_ns,
        }
    }

    /// What a read of so many pages takes for a walk.
    fn takes(&mut self, pages: usize, by: By) {
        self.took = self.decision.map_or(0, |d| d.took(pages, by));
    }
}

impl<'e> Handler<'e> {
    /// All memory that the handler will ever need is allocated here.
    pub fn new(
        cache: &'e SwapCache,
        devices: &[Box<dyn Device>],
        kick: Kick<'e>,
    ) -> Result<Self, Errno> {
        Ok(Handler {
            cache,
            kick,
            io: SwapIo::new(devices, DEPTH)?,
            buffers: FillBuffers::new()?,
            gathers: [Gather::new()?, Gather::new()?],
            intake: Intake::default(),
            shared_writes: SharedWrites::default(),
            ahead: AheadQueue::new(),
            spin: Spin::new(),
            waits_since_ns: 0,
            switches: Switches::default(),
            crowd: Crowd::new(),
            held: Held::new(),
            told_ns: 0,
            told_at_ns: 0,
            colocation: Colocation::new(kick),
            rested_ns: 0,
            link: -1,
            record: None,
        })
    }

    /// From now on sleep ends when something comes there.
    pub fn listen_to(&mut self, link: i32) {
        self.link = link;
    }

    /// From now on faults are written down there; below 0 nowhere. `id`: the process's in the run.
    pub fn record_to(&mut self, file: i32, id: u32) {
        self.record = Record::to(file, id);
    }

    /// What takes rights from this thread. Where it runs depends on them.
    pub fn with_fewer_rights<R>(&mut self, give_up: impl FnOnce() -> R) -> R {
        self.colocation.leave();
        let r = give_up();
        self.colocation = Colocation::new(self.kick);
        r
    }

    /// Serves what there is, then sleeps until there is more. `other` gets the faults that lie in
    /// the engine's own doorbell pages.
    /// True when something has come by the link.
    pub fn turn(&mut self, other: &mut dyn FnMut(&mut Self, &PageFault) -> bool) -> bool {
        let now = now_ns();
        self.crowd.look(now, self.kick);
        if now - self.rested_ns > REST_NS {
            self.rested_ns = now;
            self.rest();
        }
        self.look_whose_turn(now);
        !self.look(other) && !self.look_again(other) && self.sleep()
    }

    /// Lets faults go on that have waited for their turn.
    fn look_whose_turn(&mut self, now_ns: u64) {
        let proc = self.kick.proc();
        if now_ns - self.told_at_ns > LOOK_NS {
            proc.count_engine_time(&mut self.told_ns);
            self.told_at_ns = now_ns;
        }
        if self.held.have_waited_too_long(now_ns) {
            proc.awaits_turn.store(0, Release);
        }
        if self.held.nr() > 0 && proc.awaits_turn.load(Acquire) == 0 {
            self.let_go();
        }
    }

    /// Whether the fault waits for the process's turn.
    fn holds(&mut self, f: &PageFault) -> bool {
        let proc = self.kick.proc();
        let waits = proc.awaits_turn.load(Acquire) != 0 && self.held.put(f.addr, now_ns);
        if waits {
            proc.held_faults.store(self.held.nr() as u32, Release);
            proc.stats.turn_wait.inc();
        }
        waits
    }

    /// Their threads fault again.
    fn let_go(&mut self) {
        let program = self.cache.program();
        let waited_ns = (self.held).let_go(now_ns(), |page| program.wake(page, PAGE_SIZE));
        let proc = self.kick.proc();
        proc.held_faults.store(0, Release);
        proc.stats.turn_wait_ns.add(waited_ns);
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
            if !other(self, &f) && !self.holds(&f) {
                self.serve(&f);
            }
        }
        self.io.kick();
        self.kick.looked();
        let found = self.reap(Until::Now) || n > 0;
        if !found && self.io.in_flight() == 0 {
            self.colocation.looked_in_vain();
        }
        found
    }

    /// What there is nothing of at the moment.
    fn waits_for(&self) -> Wait {
        match self.io.in_flight() {
            0 => Wait::Fault,
            _ => Wait::Read,
        }
    }

    /// Looks for a while, where that is worth it.
    fn look_again(&mut self, other: &mut dyn FnMut(&mut Self, &PageFault) -> bool) -> bool {
        let (wait, colocated) = (self.waits_for(), self.kick.colocated() != 0);
        let place = match (self.crowd.is_there(), colocated) {
            (true, _) => Place::Crowd,
            (false, true) => Place::Colocated,
            (false, false) => Place::Own,
        };
        let start = now_ns();
        self.waits_since_ns = start;
        let Some(limit) = self.spin.limit_ns(wait, place) else {
            return false;
        };
        loop {
            let began = now_ns();
            self.crowd.look(began, self.kick);
            if self.look(other) {
                self.spin.lasted(wait, began - start);
                return true;
            }
            // Asked after looking: where the program runs on this CPU the time was its own.
            let looked = now_ns();
            if looked - start >= limit {
                return false;
            }
            for _ in 0..4 {
                core::hint::spin_loop();
            }
            // Beside a thread that jumps the processor is that thread's, as it should be.
            let paused = now_ns() - looked;
            if !colocated && paused > PAUSED_NS && self.switches.has_grown() {
                self.spin.was_taken(paused);
            }
        }
    }

    /// Waits until no transfer of the handler is in flight and nothing is held ahead.
    pub fn drain(&mut self) {
        if self.held.nr() > 0 {
            self.let_go();
        }
        while self.io.in_flight() > 0 {
            self.io.kick();
            self.reap(Until::OneEnded);
        }
        while self.drop_oldest_ahead() {}
    }

    /// At the thread's end, when it has drained.
    pub fn end(mut self) {
        self.drain();
        self.flush_record();
        let own = self.own_pages();
        self.crowd.leave();
        self.cache.uncharge_own(own);
    }

    /// Memory of the handler's own that has not been used for a while is the program's again.
    fn rest(&mut self) {
        let gathers = self.gathers.iter_mut().map(Gather::rest);
        let pages = self.buffers.rest() + gathers.sum::<usize>();
        self.cache.uncharge_own(pages);
    }

    /// Pages of memory of its own that are charged.
    fn own_pages(&self) -> usize {
        let gathers = self.gathers.iter().map(Gather::touched);
        self.buffers.touched() + gathers.sum::<usize>()
    }

    fn flush_record(&mut self) {
        if let Some(record) = &mut self.record {
            record.flush(now_ns());
        }
    }

    fn sleep(&mut self) -> bool {
        self.flush_record();
        let wait = self.waits_for();
        let mut fds = [libc::pollfd {
            fd: -1,
            events: libc::POLLIN,
            revents: 0,
        }; 2 + crate::control::MAX_DEVICES];
        fds[0].fd = self.cache.program().fd();
        // The kernel passes over a number below zero.
        fds[1].fd = self.link;
        let mut n = 2;
        let behind = self.io.is_behind();
        for fd in self.io.poll_fds() {
            fds[n].fd = fd;
            n += 1;
        }
        let at_most = match (behind, self.held.nr()) {
            (true, _) => Some(MOMENT),
            (false, 1..) => Some(LOOK),
            // To give it back.
            (false, 0) => (self.own_pages() > 0).then_some(REST),
        };
        fd::wait_readable(&mut fds[..n], at_most);
        self.spin.lasted(wait, now_ns() - self.waits_since_ns);
        fds[1].revents != 0
    }

    fn serve(&mut self, f: &PageFault) {
        let start_ns = now_ns();
        self.colocation.seen(f.tid, start_ns);
        if self.crowd.is_there() {
            self.cache.stats().fault_crowded.inc();
        }
        if let Some(record) = &mut self.record {
            record.note(f.addr, f.write, f.tid, start_ns);
        }
        let pmd = Pmd::of(f.addr);
        let page = crate::mm::page_in_pmd(f.addr);
        if f.wp && self.write_to_shared(pmd, page) {
            self.cache.stats().pgminfault.inc();
            return;
        }
        let mut s = Serving {
            pmd,
            page,
            start_ns,
            tid: f.tid,
            decision: None,
            frame: None,
            stalled: false,
            took: if self.ahead.has(pmd) { PMD_NR } else { 0 },
        };
        let fault = self.describe(&s);
        loop {
            let (intake, decision) = (&mut self.intake, &mut s.decision);
            let ranges = &self.cache.ranges;
            let other = |p: Pmd| {
                let range = ranges.get(p).and_then(Range::try_lock);
                match range.filter(|g| g.is_all_there()) {
                    Some(g) if g.sparse.is() => Other::AllOfSparse,
                    Some(_) => Other::All,
                    None => Other::Part,
                }
            };
            let plan = self.cache.fault(
                f,
                |place| {
                    let decide = || intake.decide(fault, place, other);
                    let decision = decision.get_or_insert_with(decide);
                    decision.amount.within(self.cache.charge.limit())
                },
                &mut s.frame,
                &mut self.buffers,
            );
            if self.carry_out(plan, &mut s) {
                break;
            }
        }
        self.end_stall(s.stalled);
        if let Some((f, bytes)) = s.frame {
            self.cache.frames.put_ready(f, bytes);
        }
        if let Some(decision) = s.decision {
            self.read_beside(&s, decision);
        }
        self.kick.took(s.took);
        if self.cache.free_pages() < self.kick.low_pages() {
            self.kick.kick();
        }
    }

    /// What is read ahead of the next faults.
    fn read_beside(&mut self, s: &Serving, decision: Decision) {
        if let Some(stride) = decision.stride() {
            let stats = self.cache.stats();
            stats.stride_ra_hit.add(stride.passed.into());
            stats.stride_ra.add(stride.beyond.into());
        }
        match decision.ahead {
            ReadAhead::Nothing => {}
            ReadAhead::Ranges { step, window, rest } => {
                self.read_ahead(s.pmd, step, window, Ahead::Walk { rest });
            }
            ReadAhead::Pages(stride) => self.read_stride(stride, s.pmd, s.page),
        }
    }

    /// After a jump the handler moves to the thread's CPU; not in a crowd, where it would run after all others.
    fn follow(&mut self, s: &Serving) {
        if !s.decision.is_some_and(|d| d.jumps()) {
            return;
        }
        match self.crowd.is_there() {
            false => self.colocation.jump(s.tid),
            true => self.colocation.leave(),
        }
    }

    /// Does what is to be done for a fault; false where it has to be asked again.
    fn carry_out(&mut self, plan: Plan, s: &mut Serving) -> bool {
        let stats = self.cache.stats();
        match plan {
            Plan::Served => {
                self.ahead.remove(s.pmd);
                stats.pgminfault.inc();
                stats.fault_ns.record(now_ns() - s.start_ns);
            }
            Plan::Loaded { pages } => {
                stats.pgminfault.inc();
                let took_ns = now_ns() - s.start_ns;
                stats.fault_ns.record(took_ns);
                self.cache.load_took(pages, took_ns);
                self.kick.proc().count_return(took_ns);
                s.takes(pages, By::Frame);
                self.follow(s);
            }
            Plan::Wait => stats.pgmajfault.inc(),
            Plan::Unknown => stats.fault_unknown.inc(),
            Plan::ReadWhole {
                frame,
                pages,
                entry,
            } => {
                stats.pgmajfault.inc();
                self.colocation.leave();
                s.takes(pages.count(), By::Frame);
                self.submit(s.read(To::Frame(frame), pages, entry));
            }
            Plan::Fill {
                buffer,
                pages,
                entry,
            } => {
                stats.pgmajfault.inc();
                s.takes(pages.count(), By::Buffer);
                self.follow(s);
                self.submit(s.read(To::Buffer(buffer), pages, entry));
            }
            Plan::NeedFrame { bytes } => {
                if bytes == Bytes::Zeros {
                    s.took = PMD_NR;
                }
                s.frame = self.ready_frame(bytes);
                if s.frame.is_none() {
                    self.wait_for_memory(&mut s.stalled);
                }
                return false;
            }
            Plan::NeedRoom => {
                self.make_room(&mut s.stalled);
                return false;
            }
            Plan::NeedBuffer => {
                self.io.kick();
                self.reap(Until::OneEnded);
                return false;
            }
        }
        true
    }

    /// The fault, and how things stand, for the decision.
    fn describe(&self, s: &Serving) -> Fault {
        let cache = self.cache;
        Fault {
            tid: s.tid,
            pmd: s.pmd,
            page: s.page,
            mode: cache.charge.control.swap_in(),
            limit: cache.charge.limit(),
            free: cache.free_pages(),
            evicted: cache.lru.has_evicted(),
            recorded: self.record.is_some(),
            now_ns: s.start_ns,
        }
    }

    /// A frame for a folio to come in: a ready one, or one within the limit.
    fn ready_frame(&mut self, wanted: Bytes) -> Option<(Frame, Bytes)> {
        if let Some(f) = self.cache.frames.take_ready(wanted) {
            return Some(f);
        }
        if let Some(f) = self.cache.prepare_for_fault() {
            return Some((f, Bytes::Zeros));
        }
        self.drop_oldest_ahead();
        self.cache.frames.take_ready(wanted)
    }

    /// Room for base pages comes from ready frames when nothing else is left.
    fn make_room(&mut self, stalled: &mut bool) {
        if !self.cache.release_ready() && !self.drop_oldest_ahead() {
            self.wait_for_memory(stalled);
        }
    }

    /// Lets reclaim work; meanwhile our own transfers go on.
    fn wait_for_memory(&mut self, stalled: &mut bool) {
        if !*stalled {
            self.cache.stats().allocstall.inc();
            *stalled = true;
            self.kick.begin_starving();
        }
        self.kick.kick();
        self.io.kick();
        self.serve_reclaim();
        let seen = self.kick.progress();
        if !self.reap(Until::Now) && !self.help_reclaim(seen) {
            self.kick.wait_for_progress(seen);
        }
    }

    /// Until there is more progress than was `seen`, and not for long. False where nothing is to be done.
    fn help_reclaim(&self, seen: u32) -> bool {
        let goes_on = || self.kick.progress() == seen && self.cache.help_to_store();
        (0..HELP).take_while(|_| goes_on()).count() > 0
    }

    fn end_stall(&self, stalled: bool) {
        if stalled {
            self.kick.end_starving();
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
}
