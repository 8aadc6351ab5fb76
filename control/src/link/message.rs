//! What processes ask, what they are answered, and how either is written into a packet.

use super::packet::{packet, receive, send, Descriptors, Packet, Received, MOST_NAME, WORDS};
use hugeswap_sys::Errno;

/// What a process asks or says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// A new image of a program: the layout that it was built for, and the secret of its address.
    Image { layout: u64, secret: Secret },
    /// A forked child, which has this place.
    Child { layout: u64, place: Place },
    /// A place for a child. With it may come a socket, for a child that can't find the supervisor: there
    /// it sends its connection (`knock`).
    Fork,
    /// The parent has no hold of the child's place any more: there is a child, or there is none.
    Forked { place: Place },
    /// There is something new in its page.
    Call,
    /// Descriptor: the userfaultfd of its program's memory, for the time when its engine is gone and
    /// somebody else still uses that memory.
    Faults,
    /// Descriptor: a socket by which the program that the process becomes will send its connection, as in `Fork`.
    Door,
    /// A new image of a program that does without hugeswap, and has said why. It is answered with a refusal.
    Declined { secret: Secret },
    /// A group within the one that this is the secret of, for the program that the process becomes: its name, and
    /// bytes for all of it. The answer is the group's own secret.
    Group {
        secret: Secret,
        bytes: u64,
        name: GroupName,
    },
}

/// The name of a group: UTF-8, with zeros behind it.
pub type GroupName = [u8; MOST_NAME];

/// None if it is too long.
pub fn group_name(text: &str) -> Option<GroupName> {
    let mut name = [0; MOST_NAME];
    name.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
    Some(name)
}

/// What it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Its number. Descriptors: the control page, its own page, so many devices, and what else there is.
    Welcome {
        id: u32,
        devices: u32,
        also: Also,
    },
    /// Descriptor: the child's own page.
    Place(Place),
    /// What whoever belongs to the group says in place of the run's secret.
    Group {
        secret: Secret,
    },
    Refused(Errno),
}

/// Files that a process may be unable to open itself, as far as the supervisor can; in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Also {
    /// `/dev/userfaultfd`.
    pub userfaultfd: bool,
    /// The process's `/proc/PID/maps` and `/proc/PID/pagemap`.
    pub maps: bool,
    pub pagemap: bool,
    /// Where faults are recorded.
    pub record: bool,
}

impl Also {
    fn word(self) -> u64 {
        let all = [self.userfaultfd, self.maps, self.pagemap, self.record];
        let bits = all
            .iter()
            .zip(0..)
            .map(|(&is_there, bit)| u64::from(is_there) << bit);
        bits.sum()
    }

    fn of_word(w: u64) -> Also {
        Also {
            userfaultfd: w & 1 != 0,
            maps: w & 2 != 0,
            pagemap: w & 4 != 0,
            record: w & 8 != 0,
        }
    }
}

/// A place in the run for a child that is being forked. The key is known to its parent and to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub id: u32,
    pub key: u64,
}

/// What only processes of the run know. The name of a socket is no secret.
pub type Secret = [u64; 2];
fn with_name_of(words: [u64; WORDS], name: &GroupName) -> Packet {
    let mut packet = packet(words);
    for (to, from) in packet[WORDS..].iter_mut().zip(name.chunks_exact(8)) {
        *to = u64::from_ne_bytes(core::array::from_fn(|i| from[i]));
    }
    packet
}

fn name_of(packet: &Packet) -> GroupName {
    core::array::from_fn(|i| packet[WORDS + i / 8].to_ne_bytes()[i % 8])
}

impl Request {
    fn packet(self) -> Packet {
        let words = match self {
            Request::Image { layout, secret } => [1, layout, secret[0], secret[1]],
            Request::Child { layout, place } => [2, layout, place.id.into(), place.key],
            Request::Fork => [3, 0, 0, 0],
            Request::Forked { place } => [4, 0, place.id.into(), place.key],
            Request::Call => [5, 0, 0, 0],
            Request::Faults => [6, 0, 0, 0],
            Request::Door => [7, 0, 0, 0],
            Request::Declined { secret } => [8, 0, secret[0], secret[1]],
            Request::Group {
                secret,
                bytes,
                ref name,
            } => return with_name_of([9, bytes, secret[0], secret[1]], name),
        };
        packet(words)
    }

    fn of_packet(packet: Packet) -> Option<Request> {
        let [kind, layout, a, b, ..] = packet;
        let place = || {
            Some(Place {
                id: a.try_into().ok()?,
                key: b,
            })
        };
        Some(match kind {
            1 => Request::Image {
                layout,
                secret: [a, b],
            },
            2 => Request::Child {
                layout,
                place: place()?,
            },
            3 => Request::Fork,
            4 => Request::Forked { place: place()? },
            5 => Request::Call,
            6 => Request::Faults,
            7 => Request::Door,
            8 => Request::Declined { secret: [a, b] },
            9 => Request::Group {
                secret: [a, b],
                bytes: layout,
                name: name_of(&packet),
            },
            _ => return None,
        })
    }

    pub fn send(self, socket: i32) -> Result<(), Errno> {
        self.send_with(socket, &[])
    }

    pub fn send_with(self, socket: i32, fds: &[i32]) -> Result<(), Errno> {
        send(socket, &self.packet(), fds, 0)
    }

    /// The next one; None if the packet is none of these. Without waiting.
    pub fn receive(socket: i32, fds: &mut Descriptors) -> Result<Received<Option<Request>>, Errno> {
        Request::receive_from(socket, fds).map(|(got, _)| got)
    }

    /// As `receive`, and the number here of the process that has sent it, if `name_sender` was called.
    pub fn receive_from(
        socket: i32,
        fds: &mut Descriptors,
    ) -> Result<(Received<Option<Request>>, Option<u32>), Errno> {
        let mut sender = None;
        let got = receive(socket, libc::MSG_DONTWAIT, fds, &mut sender)?;
        let request = match got {
            Received::End => Received::End,
            Received::Packet(p) => Received::Packet(p.and_then(Request::of_packet)),
        };
        Ok((request, sender))
    }
}

impl Reply {
    /// Does not wait for somebody who takes no answers: EAGAIN.
    pub fn send(self, socket: i32, fds: &[i32]) -> Result<(), Errno> {
        let words = match self {
            Reply::Welcome { id, devices, also } => [1, id.into(), devices.into(), also.word()],
            Reply::Place(p) => [2, p.id.into(), p.key, 0],
            Reply::Refused(e) => [3, e.0 as u32 as u64, 0, 0],
            Reply::Group { secret } => [4, 0, secret[0], secret[1]],
        };
        send(socket, &packet(words), fds, libc::MSG_DONTWAIT)
    }

    /// Waits for it. The supervisor's end is an error: ECONNRESET.
    pub fn receive(socket: i32, fds: &mut Descriptors) -> Result<Reply, Errno> {
        Reply::get(socket, 0, fds)
    }

    /// As `receive`, without waiting: EAGAIN.
    pub fn look(socket: i32, fds: &mut Descriptors) -> Result<Reply, Errno> {
        Reply::get(socket, libc::MSG_DONTWAIT, fds)
    }

    fn get(socket: i32, flags: i32, fds: &mut Descriptors) -> Result<Reply, Errno> {
        let Received::Packet(packet) = receive(socket, flags, fds, &mut None)? else {
            return Err(Errno(libc::ECONNRESET));
        };
        let id = |w: u64| u32::try_from(w).map_err(|_| Errno::EINVAL);
        match packet {
            Some([1, i, n, also, ..]) => Ok(Reply::Welcome {
                id: id(i)?,
                devices: id(n)?,
                also: Also::of_word(also),
            }),
            Some([2, i, key, ..]) => Ok(Reply::Place(Place { id: id(i)?, key })),
            Some([3, e, ..]) => Ok(Reply::Refused(Errno(e as i32))),
            Some([4, _, a, b, ..]) => Ok(Reply::Group { secret: [a, b] }),
            _ => Err(Errno::EINVAL),
        }
    }
}
