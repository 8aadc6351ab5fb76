//! What members say, and how their connections and processes end.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::Release;
use std::sync::Arc;

use hugeswap_control::link::{Descriptors, Place, Received, Reply, Request};
use hugeswap_sys::thread::random;
use hugeswap_sys::Errno;

use super::guests::AT_A_TIME;
use super::ready::{token, ORPHAN};
use super::{Member, Processes};
use crate::groups;
use crate::life::Id;
use crate::object::Object;
use crate::orphans;
use crate::sys::{errno, own};

/// Children of an image that have a place, and have not spoken yet: more than these can't be on their way.
const MOST_UNBORN: usize = 512;

impl Processes {
    /// Takes a packet of the image's, if there is one; says whether there was.
    pub(super) fn hear(&mut self, id: Id) -> bool {
        let Some(socket) = self.members.get(&id).and_then(|m| m.socket.as_ref()) else {
            return false;
        };
        let mut fds = Descriptors::default();
        let said = Request::receive(socket.as_raw_fd(), &mut fds);
        let mut fds: Vec<OwnedFd> = fds.as_slice().iter().map(|&fd| own(fd)).collect();
        match said {
            Err(Errno::EAGAIN) => return false,
            Ok(Received::Packet(Some(Request::Fork))) => {
                if let Some(door) = fds.pop() {
                    self.open_door(id, door);
                }
                self.promise(id);
            }
            Ok(Received::Packet(Some(Request::Door))) => {
                if let Some(door) = fds.pop() {
                    self.open_door(id, door);
                }
            }
            Ok(Received::Packet(Some(Request::Call))) => {
                if let Some(m) = self.members.get(&id) {
                    m.page().called.store(0, Release);
                }
            }
            Ok(Received::Packet(Some(Request::Forked { place }))) => {
                let child = self.members.get(&place.id);
                if child.is_some_and(|c| c.key == place.key) {
                    self.life.let_go(id, place.id);
                }
            }
            Ok(Received::Packet(Some(Request::Faults))) => {
                let faults = fds.pop().filter(orphans::is_one);
                self.let_go_of_faults(id);
                if let Some(m) = self.members.get_mut(&id) {
                    m.faults = faults;
                }
            }
            Ok(Received::End) => {
                self.orphan(id);
                self.hang_up(id);
            }
            // Anything else no engine of ours says.
            _ => self.hang_up(id),
        }
        true
    }

    /// An image forks: its child gets a place.
    fn promise(&mut self, by: Id) {
        let unborn = |m: &&Member| m.parent == Some(by) && m.pid == 0;
        let made = match self.members.values().filter(unborn).count() < MOST_UNBORN {
            true => Object::new().and_then(|o| o.handle().map(|h| (o, h))),
            false => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        };
        let reply = made.map_err(|e| errno(&e)).and_then(|(object, handle)| {
            let id = self.life.promise(by).ok_or(Errno::EAGAIN)?;
            let key = random();
            let group = self.members.get(&by).map_or(groups::RUN, |m| m.group);
            let child = Member::new(Arc::new(object), Some(by), group, key);
            self.members.insert(id, child);
            if let Some(parent) = self.members.get_mut(&by) {
                parent.last_place = key;
            }
            Ok((Place { id, key }, handle))
        });
        // Those of whose slots the child may read know it before it is there.
        self.tell();
        let Some(socket) = self.members.get(&by).and_then(|m| m.socket.as_ref()) else {
            return;
        };
        let socket = socket.as_raw_fd();
        let refuse = |e: Errno| Reply::Refused(e).send(socket, &[]);
        let answered = match reply {
            Ok((place, handle)) => match Reply::Place(place).send(socket, &[handle.as_raw_fd()]) {
                // There may be too many descriptors on their way.
                Err(_) => {
                    self.life.let_go(by, place.id);
                    refuse(Errno::EAGAIN)
                }
                sent => sent,
            },
            Err(e) => refuse(e),
        };
        if answered.is_err() {
            // It would wait for ever.
            self.hang_up(by);
        }
    }

    /// The image says nothing any more.
    pub(super) fn hang_up(&mut self, id: Id) {
        self.life.fall_silent(id);
        if let Some(socket) = self.members.get_mut(&id).and_then(|m| m.socket.take()) {
            self.poller.remove(&socket);
        }
    }

    pub(super) fn let_go_of_faults(&mut self, id: Id) {
        if let Some(faults) = self.members.get_mut(&id).and_then(|m| m.faults.take()) {
            self.poller.remove(&faults);
        }
    }

    /// Its engine is gone; its memory perhaps not.
    fn orphan(&mut self, id: Id) {
        if let Some(faults) = self.members.get(&id).and_then(|m| m.faults.as_ref()) {
            // A second time it is there already.
            let _ = self.poller.add(faults, token(ORPHAN, id));
            orphans::begin(faults);
        }
    }

    /// The process of an image is dead.
    pub(super) fn died(&mut self, id: Id) {
        // What it said last.
        for _ in 0..AT_A_TIME {
            if !self.hear(id) {
                break;
            }
        }
        self.orphan(id);
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        if let Some(p) = &member.process {
            self.poller.remove(p.as_fd());
        }
        member.is_gone = true;
        self.life.die(id);
        self.hang_up(id);
    }
}
