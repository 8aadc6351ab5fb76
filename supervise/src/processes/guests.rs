//! Who connects: a program that begins, or a child that was promised a place. At first it is a guest; what it
//! says makes it a member.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use hugeswap_control::link::{self, Also, Descriptors, Place, Received, Reply, Request, Secret};
use hugeswap_control::LAYOUT;
use hugeswap_sys::Errno;

use super::engine_threads::lock;
use super::guest::{Came, Guest};
use super::ready::{token, DOOR, GUEST, LISTENING, PROCESS, SOCKET};
use super::{Member, Processes, AGAIN};
use crate::groups;
use crate::life::Id;
use crate::object::Object;
use crate::sys::{self, errno, own, Process};

/// Connections that have not said what they are.
const MOST_GUESTS: usize = 256;

/// Connections, or packets of one, that are taken before others have their turn.
pub(super) const AT_A_TIME: usize = 64;

/// Doors of an image by which nobody has come yet.
const MOST_DOORS: usize = 64;

/// It may be had in a while.
fn passes(e: Errno) -> bool {
    matches!(
        e.0,
        libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS
    )
}

impl Processes {
    pub(super) fn let_in(&mut self, listening: u32) {
        let door = self.door.listening.get(listening as usize);
        let Some(door) = door.map(AsRawFd::as_raw_fd) else {
            return;
        };
        for _ in 0..AT_A_TIME {
            match link::accept(door) {
                Ok(fd) => self.meet(own(fd), Came::ToTheSupervisor),
                Err(e) if passes(e) => {
                    // They wait outside: nobody is refused for our want.
                    self.door
                        .listening
                        .iter()
                        .for_each(|l| self.poller.remove(l));
                    self.closed_until = Some(Instant::now() + AGAIN);
                    return;
                }
                Err(_) => return,
            }
        }
    }

    fn meet(&mut self, socket: OwnedFd, came: Came) {
        let (pid, process) = Process::of_peer(&socket);
        let n = self.next_guest;
        if self.poller.add(&socket, token(GUEST, n)).is_err() {
            return;
        }
        self.next_guest = n.wrapping_add(1);
        self.send_one_away();
        self.guests.insert(
            n,
            Guest {
                socket,
                pid,
                process,
                said: None,
                came,
            },
        );
    }

    /// A child of that image may come by this socket, once.
    pub(super) fn open_door(&mut self, by: Id, socket: OwnedFd) {
        let n = self.next_guest;
        if self.poller.add(&socket, token(DOOR, n)).is_err() {
            return;
        }
        self.next_guest = n.wrapping_add(1);
        let its: Vec<u32> = self
            .doors
            .iter()
            .filter(|(_, (id, _))| *id == by)
            .map(|(&n, _)| n)
            .collect();
        if its.len() >= MOST_DOORS {
            self.doors.remove(&its[0]);
        }
        self.doors.insert(n, (by, socket));
    }

    pub(super) fn hear_door(&mut self, n: u32) {
        let Some((_, door)) = self.doors.remove(&n) else {
            return;
        };
        self.poller.remove(&door);
        let mut fds = [-1];
        if link::take(door.as_raw_fd(), &mut fds).is_err() || fds[0] < 0 {
            return;
        }
        let socket = own(fds[0]);
        if link::name_sender(socket.as_raw_fd()).is_ok() {
            self.meet(socket, Came::ByDoor);
        }
    }

    /// Anybody on the machine may connect and say nothing: not too many of them.
    fn send_one_away(&mut self) {
        if self.guests.len() < MOST_GUESTS {
            return;
        }
        let silent = self.guests.iter().find(|(_, g)| g.said.is_none());
        if let Some(n) = silent.map(|(&n, _)| n) {
            self.guests.remove(&n);
        }
    }

    /// What could not be done for want of descriptors or memory.
    pub(super) fn try_again(&mut self) {
        if self.closed_until.is_none_or(|t| Instant::now() < t) {
            return;
        }
        self.closed_until = None;
        for (l, n) in self.door.listening.iter().zip(0..) {
            if self.poller.add(l, token(LISTENING, n)).is_err() {
                self.closed_until = Some(Instant::now() + AGAIN);
            }
        }
        let waiting: Vec<u32> = self
            .guests
            .iter()
            .filter_map(|(&n, g)| g.said.map(|_| n))
            .collect();
        waiting.into_iter().for_each(|n| self.welcome(n));
    }

    pub(super) fn hear_guest(&mut self, n: u32) {
        let Some(guest) = self.guests.get_mut(&n) else {
            return;
        };
        let mut fds = Descriptors::default();
        let socket = guest.socket.as_raw_fd();
        let said = Request::receive_from(socket, &mut fds);
        // Guests have none to send.
        fds.close();
        let is_it = |sender| guest.came != Came::ByDoor || sender == Some(guest.pid);
        match said {
            Err(Errno::EAGAIN) => {}
            Ok((Received::Packet(Some(said)), sender)) if guest.said.is_none() && is_it(sender) => {
                let _ = link::name_no_sender(socket);
                guest.said = Some(said);
                self.welcome(n);
            }
            // Gone, or nobody of ours.
            _ => {
                self.guests.remove(&n);
            }
        }
    }

    fn welcome(&mut self, n: u32) {
        let Some(mut guest) = self.guests.remove(&n) else {
            return;
        };
        if let Some(Request::Declined { secret }) = guest.said {
            self.note_declined(&guest, secret);
            return;
        }
        if let Some(Request::Group {
            secret,
            bytes,
            name,
        }) = guest.said
        {
            let made = self.groups.make(secret, bytes, &name);
            let reply = made.map_or_else(Reply::Refused, |secret| Reply::Group { secret });
            let _ = reply.send(guest.socket.as_raw_fd(), &[]);
            return;
        }
        match self.admit(&mut guest) {
            Ok(()) => {}
            Err(e) if passes(e) => {
                self.closed_until.get_or_insert(Instant::now() + AGAIN);
                self.guests.insert(n, guest);
            }
            Err(e) => {
                let _ = Reply::Refused(e).send(guest.socket.as_raw_fd(), &[]);
            }
        }
    }

    /// The program goes on when it has its answer: it is known by then, however soon it is over.
    fn note_declined(&mut self, guest: &Guest, secret: Secret) {
        if self.groups.of_secret(secret).is_some() {
            self.declined.push(guest.pid);
        }
        let _ = Reply::Refused(Errno(libc::EOPNOTSUPP)).send(guest.socket.as_raw_fd(), &[]);
    }

    /// Makes the guest a member, if it is one. On an error nothing has changed.
    fn admit(&mut self, guest: &mut Guest) -> Result<(), Errno> {
        let said = guest.said.ok_or(Errno::EINVAL)?;
        let denied = Errno(libc::EPERM);
        let (place, group) = match said {
            Request::Image { layout, secret } if layout == LAYOUT => {
                (None, self.groups.of_secret(secret).ok_or(denied)?)
            }
            // Its place says which.
            Request::Child { layout, place } if layout == LAYOUT => (Some(place), groups::RUN),
            _ => return Err(denied),
        };
        let (object, id) = match place {
            None => (Arc::new(Object::new().map_err(|e| errno(&e))?), None),
            Some(Place { id, key }) => {
                let member = self.members.get(&id).filter(|m| m.key == key);
                let member = member.ok_or(Errno::ESRCH)?;
                (Arc::clone(&member.object), Some(id))
            }
        };
        let handle = object.handle().map_err(|e| errno(&e))?;
        let socket = guest.socket.try_clone().map_err(|e| errno(&e))?;
        let process = guest.process.take().map(Arc::new);
        let id = match id {
            None => {
                if let Some(process) = &process {
                    self.replace(guest.pid, process);
                }
                let id = self.life.begin();
                self.members.insert(id, Member::new(object, None, group, 0));
                id
            }
            Some(id) if self.life.speak(id) => id,
            Some(_) => return Err(Errno::ESRCH),
        };
        self.has_come = true;
        self.poller.remove(&guest.socket);
        if let Some(p) = process.as_ref().filter(|_| self.ends) {
            p.kill();
        }
        let watched = self.poller.add(&socket, token(SOCKET, id)).is_ok();
        if let Some(p) = &process {
            // Without it the connection's end tells as much, a little later.
            let _ = self.poller.add(p.as_fd(), token(PROCESS, id));
        }
        if let Some(m) = self.members.get_mut(&id) {
            (m.pid, m.process) = (guest.pid, process);
            lock(&self.pages).push((id, m.pid, Arc::clone(&m.object)));
            m.socket = Some(socket);
        }
        let sent = self.greet(guest, id, &handle)?;
        if !sent || !watched {
            self.hang_up(id);
        }
        Ok(())
    }

    /// Hands a member what it needs of us. Whether it has got it.
    fn greet(&self, guest: &Guest, id: Id, handle: &OwnedFd) -> Result<bool, Errno> {
        let [control, devices @ ..] = &self.handed[..] else {
            return Err(Errno::EINVAL);
        };
        let [maps, pagemap] = self.files_of(guest).map(|f| f.map(OwnedFd::from));
        let also = Also {
            userfaultfd: self.userfaultfd.is_some(),
            maps: maps.is_some(),
            pagemap: pagemap.is_some(),
            record: self.record.is_some(),
        };
        let each = [control, handle].into_iter().chain(devices);
        let each = each.chain(&self.userfaultfd).chain(&maps).chain(&pagemap);
        let each = each.chain(&self.record);
        let fds: Vec<RawFd> = each.map(AsRawFd::as_raw_fd).collect();
        let welcome = Reply::Welcome {
            id,
            devices: devices.len() as u32,
            also,
        };
        Ok(welcome.send(guest.socket.as_raw_fd(), &fds).is_ok())
    }

    /// A process speaks for a new image: those that it was are gone, with all their threads.
    fn replace(&mut self, pid: u32, process: &Process) {
        let was = |m: &Member| {
            let theirs = m.process.as_deref();
            // Nobody else can have its number as long as it is not dead.
            pid != 0 && m.pid == pid && theirs.is_some_and(|p| !p.is_dead()) && !process.is_dead()
        };
        let old: Vec<Id> = self
            .members
            .iter()
            .filter(|(&id, m)| was(m) && !self.life.is_dead(id))
            .map(|(&id, _)| id)
            .collect();
        for id in old {
            self.died(id);
            if let Some(m) = self.members.get_mut(&id) {
                // It leaves no core file.
                (m.is_replaced, m.is_examined) = (true, true);
                m.page().forget_keys();
            }
        }
    }

    /// What a process may be unable to open itself: without /proc, or after it gave up rights.
    fn files_of(&self, guest: &Guest) -> [Option<File>; 2] {
        if !self.proc_is_ours || guest.pid == 0 {
            return [None, None];
        }
        let open = |name: &str| File::open(format!("/proc/{}/{name}", guest.pid)).ok();
        let files = [open("maps"), open("pagemap")];
        // As long as it waits for us the number is its own.
        match sys::is_hung_up(&guest.socket) {
            true => [None, None],
            false => files,
        }
    }
}
