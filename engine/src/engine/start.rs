//! Starting the engine's threads, in a new process and in a forked child.
#![allow(unsafe_code)]

use super::failure::{StartError, EXIT_START};
use super::run::{self, Joined, Link};
use super::{faults, probe, Doorbells, Engine, ENGINE};
use crate::charge::Charge;
use crate::control::link::{Address, Place, Request};
use crate::control::{self, keep_from_children, Control, Mapped};
use crate::device::file::FileDevice;
use crate::device::Device;
use crate::dump::Signpost;
use crate::fault::Handler;
use crate::pressure::{Kick, Pressure};
use crate::reclaim::Reclaim;
use crate::swap_cache::{Kernel, SwapCache};
use crate::sync::Mutex;
use crate::sys::arch;
use crate::sys::futex::{self, Scope};
use crate::sys::limits::{Raised, RoomForDescriptor};
use crate::sys::maps::MapsFile;
use crate::sys::sched;
use crate::sys::task::{self, Ended, FirstThread};
use crate::sys::thread::{self, Files};
use crate::sys::uffd::{Needs, Source, Uffd};
use crate::sys::{fd, mem, Errno};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use std::os::fd::{FromRawFd, OwnedFd};

/// Says which addresses (start, end) a child has to register. Asked by the engine's thread, which
/// has room in its table for the descriptor that this takes; the program's may be full.
pub type Regions = dyn Fn(MapsFile) -> Result<Vec<(usize, usize)>, Errno> + Sync;

/// What the first engine thread is told, and tells.
pub(super) struct Start<'a> {
    address: Address,
    /// In a child: its place in the run.
    place: Option<Place>,
    /// In a child: what to register again.
    regions: &'a Regions,
    /// Where an engine starts again: a socket from which its descriptors come. In a child, or a new program: the
    /// supervisor's door. -1: none.
    pub(super) socket: i32,
    /// 0 while it works, then 1.
    done: AtomicU32,
    result: Mutex<Result<(), StartError>>,
}

impl Start<'_> {
    fn new(address: Address) -> Start<'static> {
        Start {
            address,
            place: None,
            regions: &|_| Ok(Vec::new()),
            socket: -1,
            done: AtomicU32::new(0),
            result: Mutex::new(Ok(())),
        }
    }

    pub(super) fn with_socket(address: Address, socket: i32) -> Start<'static> {
        Start {
            socket,
            ..Start::new(address)
        }
    }

    pub(super) fn run(&self, entry: extern "C" fn(*mut u8)) -> Result<(), StartError> {
        let arg = self as *const Start<'_> as *mut u8;
        let _limits = Raised::raise();
        // SAFETY: the entry only uses what engine threads may; `self` outlives its use, because
        // we wait for `done` here.
        let start = || unsafe { thread::spawn(entry, arg, Files::Own) };
        let tid = sched::start_ordinary(start).map_err(StartError::Resources)?;
        while self.done.load(Acquire) == 0 {
            let woken = futex::wait(&self.done, 0, Some(1000), Scope::Process);
            // A filter of system calls can end a single thread.
            if !woken && !task::is_alive(tid) && self.done.load(Acquire) == 0 {
                return Err(StartError::Resources(Errno::ESRCH));
            }
        }
        *self.result.lock()
    }

    pub(super) fn finish(&self, r: Result<(), StartError>) {
        *self.result.lock() = r;
        self.done.store(1, Release);
        futex::wake(&self.done, 1, Scope::Process);
    }
}

/// Starts the engine of this process, in the run that the address names. `door`: a way to the supervisor for a
/// program that can't find it, or -1; the caller's.
pub fn start(address: Address, door: i32) -> Result<&'static Engine, StartError> {
    Start::with_socket(address, door).run(first_main)?;
    super::get().ok_or(StartError::Resources(Errno::ENOMEM))
}

impl Engine {
    /// In a forked child: new descriptors, registrations and threads over the old tables.
    pub(super) fn restart(&'static self, regions: &Regions, place: Place, door: i32) {
        let s = Start {
            place: Some(place),
            regions,
            socket: door,
            ..Start::new(self.link.address)
        };
        if let Err(e) = s.run(child_main) {
            self.cache.charge.log(&format!(
                "the engine could not start in forked child {}: {e}: ending the child",
                thread::getpid()
            ));
            thread::exit_group(EXIT_START);
        }
    }
}

extern "C" fn first_main(arg: *mut u8) {
    // SAFETY: `Start::run` waits for us and keeps it alive.
    let s = unsafe { &*(arg as *const Start<'_>) };
    // The thread's descriptor table is a copy of the program's: keeping any of it open would keep
    // the program's pipes and sockets from ending.
    fd::close_all_but(&[s.socket]);
    match run::join(&s.address, s.place, s.socket).and_then(|joined| build(s, &joined)) {
        Ok(e) => {
            ENGINE.store(e as *const Engine as *mut Engine, Release);
            run(e, s);
        }
        Err(e) => s.finish(Err(e)),
    }
}

extern "C" fn child_main(arg: *mut u8) {
    // SAFETY: `Start::run` waits for us and keeps it alive.
    let s = unsafe { &*(arg as *const Start<'_>) };
    fd::close_all_but(&[s.socket]);
    let Some(e) = super::get() else {
        return s.finish(Err(StartError::Resources(Errno::EINVAL)));
    };
    match run::join(&s.address, s.place, s.socket).and_then(|joined| rebuild(e, s, &joined)) {
        Ok(()) => run(e, s),
        Err(err) => s.finish(Err(err)),
    }
}

/// The program's and staging's. The supervisor gets the first as well.
fn open_uffds(control: &Control, link: i32) -> Result<(Uffd, Uffd, u64), StartError> {
    let s = &control.settings;
    let needs = Needs::of_user_mode_only(s.user_mode_only != 0);
    let (program, source, features) =
        probe::open_program(needs, s.no_move != 0).map_err(StartError::Userfaultfd)?;
    if source == Source::UserModeOnly && needs == Needs::AllFaults {
        return Err(StartError::Userfaultfd(Errno(libc::EPERM)));
    }
    Request::Faults
        .send_with(link, &[program.fd()])
        .map_err(StartError::NoRun)?;
    let (staging, _) = Uffd::open(features, needs).map_err(StartError::Userfaultfd)?;
    Ok((program, staging, features))
}

pub(super) fn open_devices(
    control: &Control,
    joined: &Joined,
) -> Result<Vec<Box<dyn Device>>, StartError> {
    let mut devices: Vec<Box<dyn Device>> = Vec::new();
    for (d, &fd) in control.devices().iter().zip(&joined.devices) {
        // SAFETY: the supervisor sent it to us; owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        devices.push(open_device(fd, d, control, joined.own)?);
    }
    Ok(devices)
}

fn open_device(
    fd: OwnedFd,
    d: &control::DeviceEntry,
    run: &Control,
    line: i32,
) -> Result<Box<dyn Device>, StartError> {
    use crate::device::file::{Options, Via};
    use crate::device::ram::{OnDiscard, RamDevice};
    let failed = StartError::Device(Errno(libc::EIO));
    if d.kind != control::FILE {
        let on_discard = if d.kind == control::FILLED_RAM {
            OnDiscard::Keep
        } else {
            OnDiscard::Free
        };
        // Not where the program may have had a mapping, to which a child of its may come back.
        let at = mem::addresses_of_threads(d.max_bytes as usize).unwrap_or(0);
        // SAFETY: the addresses are nobody else's, or the kernel's choice.
        return unsafe { RamDevice::from_fd_at(fd, d.max_bytes, on_discard, at) }
            .map(|r| faults::around(r, &run.settings.faults))
            .map_err(|_| failed);
    }
    let mut o = Options::new(d.max_bytes);
    if run.settings.no_io_uring != 0 {
        o.via = Via::Sync;
    }
    o.line = Some(line);
    o.inject = faults::below(&run.settings.faults);
    FileDevice::from_fd_with(fd, &o)
        .map(|f| faults::around(f, &run.settings.faults))
        .map_err(|_| failed)
}

fn build(s: &Start<'_>, joined: &Joined) -> Result<&'static Engine, StartError> {
    // SAFETY: the supervisor's files, of this layout.
    let (control, own) = unsafe {
        (
            Control::map(joined.control).map_err(StartError::Resources)?,
            Mapped::new(joined.own).map_err(StartError::Resources)?,
        )
    };
    let own = own.leak();
    keep_from_children(own);
    control::set_current(own);
    own.engine_tids[0].store(thread::gettid(), Release);
    // Asking the processor what it is can be slow in a virtual machine: now, not at a fault.
    crate::mm::copy::init();
    let (program, staging, features) = open_uffds(control, joined.link)?;
    let devices = open_devices(control, joined)?;
    let charge = Charge::new(control, joined.id, own, joined.link);
    let abilities = probe::abilities(features, &control.settings);
    let memory = Kernel::new(program, staging, joined.pagemap);
    let cache = SwapCache::new(memory, charge, abilities).map_err(StartError::Resources)?;
    let doorbells = Doorbells::new().map_err(StartError::Resources)?;
    doorbells
        .register(program)
        .map_err(StartError::Userfaultfd)?;
    let maps = joined.maps.map_err(StartError::Resources)?;
    let signpost = Signpost::new(
        cache.ranges.roots(),
        cache.frames.base(),
        cache.sealer.keys.wrapped(),
        cache.zswap.places(),
    );
    let engine = Box::leak(Box::new(Engine {
        cache,
        devices: AtomicPtr::new(Box::leak(Box::new(devices))),
        doorbells,
        maps: AtomicI32::new(maps.fd()),
        pressure: Pressure::default(),
        link: Link::new(s.address, joined),
        frozen: AtomicU32::new(0),
        reclaim_parked: AtomicU32::new(0),
        reclaim_ready: AtomicU32::new(0),
        aside: AtomicU32::new(0),
        aside_socket: AtomicI32::new(-1),
        aside_tid: AtomicU32::new(0),
        change: AtomicPtr::new(core::ptr::null_mut()),
        managed_bytes: AtomicU64::new(0),
        signpost,
    }));
    engine.hand_keys();
    engine.put_signpost_up();
    Ok(engine)
}

fn rebuild(e: &'static Engine, s: &Start<'_>, joined: &Joined) -> Result<(), StartError> {
    let control = e.cache.charge.control;
    let own = e.cache.charge.proc();
    own.engine_tids[0].store(thread::gettid(), Release);
    e.link.join_again(joined);
    e.cache.charge.set_link(joined.link);
    e.cache.forget_own();
    e.cache.sealer.keys.fork_child();
    e.hand_keys();
    let (program, staging, _) = open_uffds(control, joined.link)?;
    e.cache
        .start_over(program, staging, joined.pagemap)
        .map_err(StartError::Resources)?;
    let devices = open_devices(control, joined)?;
    // The inherited devices stand for rings and descriptors of the parent: they are forgotten.
    e.devices.store(Box::leak(Box::new(devices)), Release);
    e.doorbells
        .register(program)
        .map_err(StartError::Userfaultfd)?;
    let maps = joined.maps.map_err(StartError::Resources)?;
    e.maps.store(maps.fd(), Release);
    for (start, end) in (s.regions)(maps).map_err(StartError::Resources)? {
        program
            .register_missing(start, end - start)
            .map_err(StartError::Userfaultfd)?;
    }
    e.cache.tell_of_writes();
    Ok(())
}

/// Becomes the fault handler, after starting reclaim on the same descriptors.
pub(super) fn run(e: &'static Engine, s: &Start<'_>) {
    // For reclaim too, which inherits it.
    let _ = sched::shortest_slice();
    let kick = Kick::new(&e.cache.charge, &e.pressure);
    let mut handler = match Handler::new(&e.cache, e.devices(), kick) {
        Ok(h) => h,
        Err(err) => return s.finish(Err(StartError::Resources(err))),
    };
    // SAFETY: the entry only uses what engine threads may; the engine is never freed.
    let spawned =
        unsafe { thread::spawn(reclaim_main, e as *const Engine as *mut u8, Files::Shared) };
    if let Err(err) = spawned {
        return s.finish(Err(StartError::Resources(err)));
    }
    // Both threads call the C library while they set themselves up. The thread that waits for us
    // changes its code next (see the preloaded library), so that must be over.
    while e.reclaim_ready.load(Acquire) == 0 {
        futex::wait(&e.reclaim_ready, 0, None, Scope::Process);
    }
    thread::refuse_filters();
    s.finish(Ok(()));
    handler.listen_to(e.link.fd());
    let (file, id) = e.link.record();
    handler.record_to(file, id);
    loop {
        let woken = handler.turn(&mut |h, f| e.answer(h, f));
        e.hear_supervisor(woken);
        if e.leaves(&mut handler) {
            return e.leave(handler);
        }
    }
}

/// How often reclaim looks whether the program is still there.
const LOOK_NS: u64 = 500_000_000;

impl Engine {
    /// Threads can end one by one, and then ours would be left alone: the process ends as its first
    /// thread ended.
    fn end_with_program(&self, first: &FirstThread, looked_ns: &mut u64) {
        let now = thread::now_ns();
        if now - *looked_ns < LOOK_NS {
            return;
        }
        *looked_ns = now;
        if let Some(Ended { status, threads }) = first.ended() {
            if threads == self.own_threads() + 1 || self.counts_no_other() {
                task::end_as(status);
            }
        }
    }

    /// The same where the kernel has threads for our rings, too.
    fn counts_no_other(&self) -> bool {
        let _room = RoomForDescriptor::make(-1);
        self.threads_of_program() == 0
    }

    /// How many threads the program has.
    pub fn threads_of_program(&self) -> usize {
        task::count(&self.own_tids()).of_program
    }

    /// How many threads of the process are the engine's, with those that carry out its requests.
    pub fn threads_of_engine(&self) -> usize {
        task::count(&self.own_tids()).of_engine
    }

    /// How many threads of the process are the engine's.
    pub fn own_threads(&self) -> usize {
        let alive = |&&tid: &&u32| tid != 0 && task::is_alive(tid);
        self.own_tids().iter().filter(alive).count()
    }

    pub fn is_own_thread(&self, tid: u32) -> bool {
        tid != 0 && self.own_tids().contains(&tid) && task::is_alive(tid)
    }

    fn own_tids(&self) -> [u32; 3] {
        [0, 1, 2].map(|i| self.cache.charge.proc().engine_tids[i].load(Acquire))
    }

    /// The hooks have a thread too, which is not the program's.
    pub fn note_deputy(&self, tid: u32) {
        self.cache.charge.proc().engine_tids[2].store(tid, Release);
    }
}

extern "C" fn reclaim_main(arg: *mut u8) {
    // SAFETY: the engine is never freed.
    let e = unsafe { &*(arg as *const Engine) };
    e.cache.charge.proc().engine_tids[1].store(thread::gettid(), Release);
    let kick = Kick::new(&e.cache.charge, &e.pressure);
    let Ok(mut reclaim) = Reclaim::new(&e.cache, e.devices(), kick) else {
        e.cache
            .charge
            .log("reclaim could not start: no memory for its queues");
        thread::exit_group(EXIT_START);
    };
    // While limits are raised for the start.
    let first = FirstThread::open();
    thread::refuse_filters();
    // It copies folios of the program's, which may have a key.
    arch::open_all_keys();
    e.reclaim_ready.store(1, Release);
    futex::wake(&e.reclaim_ready, 1, Scope::Process);
    let mut looked_ns = 0;
    loop {
        e.end_with_program(&first, &mut looked_ns);
        e.reclaim_gives_up();
        let fork = e.frozen.load(Acquire);
        if fork % 2 == 1 {
            reclaim.drain();
            e.reclaim_parked.store(fork, Release);
            futex::wake(&e.reclaim_parked, u32::MAX, Scope::Process);
            e.stay_parked(fork);
            if e.is_left() {
                return first.close();
            }
            // The child has the old key. Only this thread seals.
            e.cache.sealer.keys.fork_parent();
        }
        reclaim.turn();
    }
}
