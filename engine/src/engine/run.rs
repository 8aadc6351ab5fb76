//! This process's connection with the run's supervisor.
//!
//! The handler thread hears what comes, between faults, so that a supervisor that is stopped keeps
//! nobody waiting but those who ask for something. If the supervisor is gone the process ends: without
//! it nobody keeps the limit, nor knows whose slots are whose.
#![allow(unsafe_code)]

use super::failure::StartError;
use super::Engine;
use crate::control::link::{Address, Descriptors, Place, Reply, Request};
use crate::control::{Mapped, Proc, LAYOUT, MAX_DEVICES};
use crate::sys::limits::RoomForDescriptor;
use crate::sys::maps::MapsFile;
use crate::sys::pagemap::Pagemap;
use crate::sys::{fd, thread, uffd, Errno};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// How often a handler that never sleeps looks whether the supervisor is there: each so many turns.
const LOOK: u32 = 4096;

const NOTHING: u32 = 0;
const ASKED: u32 = 1;
const GRANTED: u32 = 2;
const REFUSED: u32 = 3;

pub(super) struct Link {
    pub(super) address: Address,
    fd: AtomicI32,
    /// A low number of the engine's table, kept for what comes: the program may have lowered its limit.
    spare: AtomicI32,
    /// The own page and the devices, in the engine's table.
    own: AtomicI32,
    devices: [AtomicI32; MAX_DEVICES],
    /// See `record`.
    record: [AtomicI32; 2],
    turns: AtomicU32,
    /// Of the place for a child: whether it was asked for, by which doorbell, and what came.
    state: AtomicU32,
    bell: AtomicUsize,
    id: AtomicU32,
    key: AtomicU64,
    page: AtomicUsize,
}

/// What a new image gets. Descriptors are in the engine's table.
pub(super) struct Joined {
    pub link: i32,
    pub id: u32,
    pub control: i32,
    /// Its own page. Rings hold it too.
    pub own: i32,
    pub devices: [i32; MAX_DEVICES],
    /// `/proc/self/maps` and `/proc/self/pagemap`, where they can be had.
    pub maps: Result<MapsFile, Errno>,
    pub pagemap: i32,
    /// Where faults are recorded, or -1.
    pub record: i32,
}

/// Connects with the supervisor; for a child that has a place, by that. `door`: a way for a child that
/// can't find the supervisor, or -1.
pub(super) fn join(
    address: &Address,
    place: Option<Place>,
    door: i32,
) -> Result<Joined, StartError> {
    let layout = LAYOUT;
    let hello = match place {
        Some(place) => Request::Child { layout, place },
        None => Request::Image {
            layout,
            secret: address.secret,
        },
    };
    let link = address.greet(hello, door).map_err(StartError::NoRun)?;
    let mut fds = Descriptors::default();
    let answer = Reply::receive(link, &mut fds);
    let (id, devices, also) = match answer {
        Ok(Reply::Welcome { id, devices, also }) => (id, devices, also),
        Ok(Reply::Refused(e)) | Err(e) => return Err(StartError::NoRun(e)),
        Ok(Reply::Place(_) | Reply::Group { .. }) => return Err(StartError::NoRun(Errno::EINVAL)),
    };
    let [control, own, rest @ ..] = fds.as_slice() else {
        return Err(StartError::NoRun(Errno::EINVAL));
    };
    let mut joined = Joined {
        link,
        id,
        control: *control,
        own: *own,
        devices: [-1; MAX_DEVICES],
        maps: Err(Errno::ENOENT),
        pagemap: -1,
        record: -1,
    };
    let n = devices as usize;
    let each = rest
        .get(..n)
        .filter(|_| n <= MAX_DEVICES)
        .ok_or(StartError::NoRun(Errno::EINVAL))?;
    joined.devices[..n].copy_from_slice(each);
    let mut more = rest[n..].iter().copied();
    let mut next = |is_there: bool| if is_there { more.next() } else { None };
    uffd::set_device(next(also.userfaultfd).unwrap_or(-1));
    joined.maps = next(also.maps).map_or_else(MapsFile::open, |fd| Ok(MapsFile::from_fd(fd)));
    joined.pagemap = next(also.pagemap)
        .or_else(|| Pagemap::open().ok().map(|p| p.fd()))
        .unwrap_or(-1);
    joined.record = next(also.record).unwrap_or(-1);
    Ok(joined)
}

impl Link {
    pub(super) fn new(address: Address, joined: &Joined) -> Link {
        Link {
            address,
            fd: AtomicI32::new(joined.link),
            spare: AtomicI32::new(joined.control),
            own: AtomicI32::new(joined.own),
            devices: joined.devices.map(AtomicI32::new),
            record: [joined.record, joined.id as i32].map(AtomicI32::new),
            turns: AtomicU32::new(0),
            state: AtomicU32::new(NOTHING),
            bell: AtomicUsize::new(0),
            id: AtomicU32::new(0),
            key: AtomicU64::new(0),
            page: AtomicUsize::new(0),
        }
    }

    pub(super) fn fd(&self) -> i32 {
        self.fd.load(Relaxed)
    }

    /// Where faults are recorded, or -1; and whose they are.
    pub(super) fn record(&self) -> (i32, u32) {
        let [file, id] = &self.record;
        (file.load(Relaxed), id.load(Relaxed) as u32)
    }

    /// The own page, and the devices.
    pub(super) fn files(&self) -> (i32, [i32; MAX_DEVICES]) {
        let devices = core::array::from_fn(|i| self.devices[i].load(Relaxed));
        (self.own.load(Relaxed), devices)
    }

    pub(super) fn join_again(&self, joined: &Joined) {
        self.fd.store(joined.link, Relaxed);
        self.spare.store(joined.control, Relaxed);
        self.own.store(joined.own, Relaxed);
        self.record[0].store(joined.record, Relaxed);
        if joined.id != 0 {
            self.record[1].store(joined.id as i32, Relaxed);
        }
        for (to, fd) in self.devices.iter().zip(joined.devices) {
            to.store(fd, Relaxed);
        }
        self.state.store(NOTHING, Relaxed);
    }

    fn place(&self) -> Place {
        Place {
            id: self.id.load(Relaxed),
            key: self.key.load(Relaxed),
        }
    }

    /// In the handler thread: asks for a place for a child. The doorbell is answered when the answer
    /// is there, and then only if this says so. `door` is a number of that thread's table, or -1.
    pub(super) fn ask(&self, bell: usize, door: i32, tid: u32) -> Result<(), Errno> {
        self.bell.store(bell, Relaxed);
        self.state.store(ASKED, Relaxed);
        let handed = (door >= 0).then(|| fd::of_thread(tid, door).ok()).flatten();
        fd::close(self.spare.load(Relaxed));
        let sent = Request::Fork.send_with(self.fd(), handed.as_slice());
        handed.inspect(|&fd| fd::close(fd));
        sent.inspect_err(|_| {
            self.state.store(REFUSED, Release);
        })
    }

    /// In the handler thread: a socket of that thread's table goes to the supervisor. The thread may be a child's in
    /// another pid namespace, and its number somebody else's here: so the socket must be the right one.
    pub(super) fn hand_door(&self, door: i32, tid: u32, inode: u64) -> Result<(), Errno> {
        let handed = fd::of_thread(tid, door)?;
        let sent = match fd::socket_inode(handed) {
            Ok(found) if found == inode => Request::Door.send_with(self.fd(), &[handed]),
            _ => Err(Errno::EINVAL),
        };
        fd::close(handed);
        sent
    }

    /// In the hook that asked, when the doorbell was answered.
    pub(super) fn granted(&self) -> Option<(Place, &'static Proc)> {
        while self.state.load(Acquire) == ASKED {
            thread::pause();
        }
        let granted = self.state.load(Acquire) == GRANTED;
        granted.then(|| {
            // SAFETY: mapped by `hear` with its size; unmapped by `Engine::fork_parent` after the
            // last use.
            let page = unsafe { &*(self.page.load(Relaxed) as *const Proc) };
            (self.place(), page)
        })
    }

    /// In the handler thread, after the fork: this process has no hold of the place any more.
    pub(super) fn let_go(&self) {
        if self.state.swap(NOTHING, AcqRel) == GRANTED {
            let place = self.place();
            // If the supervisor is gone `hear` finds out.
            let _ = Request::Forked { place }.send(self.fd());
        }
    }

    /// In the handler thread: takes what has come. Returns the doorbell that is to be answered now.
    pub(super) fn hear(&self, own: &Proc) -> Option<usize> {
        let turns = self.turns.load(Relaxed).wrapping_add(1);
        self.turns.store(turns, Relaxed);
        let mut fds = Descriptors::default();
        let is_asked = self.state.load(Relaxed) == ASKED;
        let _room = is_asked.then(|| RoomForDescriptor::make(self.spare.load(Relaxed)));
        let state = match Reply::look(self.fd(), &mut fds) {
            Err(Errno::EAGAIN) => return None,
            Err(_) => thread::end_killed(),
            Ok(Reply::Place(place)) if is_asked => {
                own.last_place.store(place.key, Release);
                let page = fds.as_slice().first().ok_or(Errno::EINVAL);
                // SAFETY: the supervisor's file, of this layout.
                match page.and_then(|&f| unsafe { Mapped::new(f) }) {
                    Ok(page) => {
                        self.id.store(place.id, Relaxed);
                        self.key.store(place.key, Relaxed);
                        let page = page.leak() as *const Proc;
                        self.page.store(page as usize, Relaxed);
                        GRANTED
                    }
                    Err(_) => {
                        fds.close();
                        let _ = Request::Forked { place }.send(self.fd());
                        REFUSED
                    }
                }
            }
            Ok(_) => REFUSED,
        };
        fds.close();
        is_asked.then(|| {
            let spare = fd::duplicate(self.fd()).unwrap_or(-1);
            self.spare.store(spare, Relaxed);
            self.state.store(state, Release);
            self.bell.load(Relaxed)
        })
    }

    /// Whether it is time to `hear`, though nothing woke the handler.
    pub(super) fn is_due(&self) -> bool {
        let turns = self.turns.load(Relaxed).wrapping_add(1);
        self.turns.store(turns, Relaxed);
        turns % LOOK == 0 || self.state.load(Relaxed) == ASKED
    }
}

impl Engine {
    /// In the handler thread, between faults.
    pub(super) fn hear_supervisor(&self, woken: bool) {
        if woken || self.link.is_due() {
            if let Some(bell) = self.link.hear(self.cache.charge.proc()) {
                self.end_ring(bell, Ok(()));
            }
        }
    }
}
