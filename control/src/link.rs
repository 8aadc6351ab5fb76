//! How processes of a run speak with its supervisor: packets on a Unix socket, with descriptors.
//!
//! A new image of a program finds the supervisor by an [`Address`] in its environment. The kernel says
//! who speaks; a process is never believed which one it is.

use hugeswap_sys::{fd, syscall, Errno};

/// Environment variable that carries the address.
pub const ENV: &str = "HUGESWAP_RUN";
/// Descriptors in a packet at most.
pub const MOST_FDS: usize = super::MAX_DEVICES + 8;
/// Words of a packet, and of one with a name behind it.
const WORDS: usize = 4;
const WORDS_NAMED: usize = WORDS + MOST_NAME / 8;
/// Bytes of a group's name.
pub const MOST_NAME: usize = 64;
const PREFIX: &[u8] = b"hugeswap-";
const ROOM: usize = 108;

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

/// The words behind the first are the name, if there is one; without they are zero and not sent.
type Packet = [u64; WORDS_NAMED];

fn packet(words: [u64; WORDS]) -> Packet {
    let mut packet = [0; WORDS_NAMED];
    packet[..WORDS].copy_from_slice(&words);
    packet
}

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

fn bytes_of(packet: &Packet) -> usize {
    match packet[WORDS..].iter().all(|&w| w == 0) {
        true => WORDS * 8,
        false => WORDS_NAMED * 8,
    }
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

    /// As `receive`, and the number here of the process that has sent it, if it `names_sender`.
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

/// What came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received<T> {
    Packet(T),
    /// The other side has closed its socket, or is dead.
    End,
}

/// Descriptors that came with a packet; the caller's to close.
#[derive(Clone, Copy)]
pub struct Descriptors {
    fds: [i32; MOST_FDS],
    len: usize,
}

impl Default for Descriptors {
    fn default() -> Descriptors {
        Descriptors {
            fds: [-1; MOST_FDS],
            len: 0,
        }
    }
}

impl Descriptors {
    pub fn as_slice(&self) -> &[i32] {
        &self.fds[..self.len]
    }

    pub fn close(&mut self) {
        self.as_slice().iter().for_each(|&f| fd::close(f));
        self.len = 0;
    }
}

/// Two sockets of which each hears the other.
pub fn pair() -> Result<[i32; 2], Errno> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    let mut two = [-1; 2];
    let args = [
        libc::AF_UNIX as usize,
        kind as usize,
        0,
        two.as_mut_ptr() as usize,
    ];
    // SAFETY: room for two numbers.
    unsafe { syscall(libc::SYS_socketpair, args) }.map(|_| two)
}

/// Sends descriptors, of which some may be missing: less than zero.
pub fn pass(socket: i32, fds: &[i32]) -> Result<(), Errno> {
    let mut there = Descriptors::default();
    let mut which = 0;
    for (i, &fd) in fds.iter().enumerate().filter(|f| *f.1 >= 0) {
        *there.fds.get_mut(there.len).ok_or(Errno::EINVAL)? = fd;
        there.len += 1;
        which |= 1 << i;
    }
    send(socket, &packet([which, 0, 0, 0]), there.as_slice(), 0)
}

/// From now on, or no more, packets that are sent or received here say who has sent them.
pub fn names_sender(socket: i32, on: bool) -> Result<(), Errno> {
    let value = i32::from(on);
    let args = [
        socket as usize,
        libc::SOL_SOCKET as usize,
        libc::SO_PASSCRED as usize,
        &raw const value as usize,
        size_of_val(&value),
    ];
    // SAFETY: the value outlives the call.
    unsafe { syscall(libc::SYS_setsockopt, args) }.map(|_| ())
}

/// A connection with the supervisor, which has the other end of `door`. `hello` is the first packet.
pub fn knock(door: i32, hello: Request) -> Result<i32, Errno> {
    // Made here: so the kernel says whose it is. Who has made two sockets may be somebody who knows nothing of
    // this; so the packet says too who has sent it.
    let [ours, theirs] = pair()?;
    let passed = pass(door, &[theirs])
        .and_then(|()| names_sender(ours, true))
        .and_then(|()| hello.send(ours))
        .and_then(|()| names_sender(ours, false));
    fd::close(theirs);
    passed.map(|()| ours).inspect_err(|_| fd::close(ours))
}

/// Takes what `pass` has sent. Without waiting.
pub fn take(socket: i32, fds: &mut [i32]) -> Result<(), Errno> {
    let mut came = Descriptors::default();
    let Received::Packet(Some([which, ..])) =
        receive(socket, libc::MSG_DONTWAIT, &mut came, &mut None)?
    else {
        came.close();
        return Err(Errno(libc::ECONNRESET));
    };
    if came.len != which.count_ones() as usize || which >> fds.len() != 0 {
        came.close();
        return Err(Errno(libc::EMFILE));
    }
    let mut next = came.as_slice().iter();
    for (i, fd) in fds.iter_mut().enumerate() {
        let there = (which >> i & 1 != 0).then(|| next.next()).flatten();
        *fd = there.copied().unwrap_or(-1);
    }
    Ok(())
}

#[repr(C, align(8))]
struct ControlMessage {
    len: usize,
    level: i32,
    kind: i32,
    fds: [i32; MOST_FDS],
}

const HEAD: usize = core::mem::offset_of!(ControlMessage, fds);

impl ControlMessage {
    fn new(fds: &[i32]) -> ControlMessage {
        let mut m = ControlMessage {
            len: HEAD + size_of_val(fds),
            level: libc::SOL_SOCKET,
            kind: libc::SCM_RIGHTS,
            fds: [-1; MOST_FDS],
        };
        m.fds[..fds.len()].copy_from_slice(fds);
        m
    }
}

/// `struct msghdr` with one piece of data.
fn with_header<R>(
    (packet, bytes): (*mut u64, usize),
    control: *mut u8,
    controllen: usize,
    f: impl FnOnce(&mut libc::msghdr) -> R,
) -> R {
    let mut piece = libc::iovec {
        iov_base: packet.cast(),
        iov_len: bytes,
    };
    // SAFETY: all-zero is a valid header.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    header.msg_control = control.cast();
    header.msg_controllen = controllen;
    f(&mut header)
}

fn send(socket: i32, packet: &Packet, fds: &[i32], flags: i32) -> Result<(), Errno> {
    let fds = &fds[..fds.len().min(MOST_FDS)];
    let mut packet = *packet;
    let piece = (packet.as_mut_ptr(), bytes_of(&packet));
    let mut control = ControlMessage::new(fds);
    let len = if fds.is_empty() { 0 } else { control.len };
    let at = (&raw mut control).cast();
    with_header(piece, at, len, |header| loop {
        let flags = (flags | libc::MSG_NOSIGNAL) as usize;
        // SAFETY: the header and what it names outlive the call.
        let sent = unsafe {
            syscall(
                libc::SYS_sendmsg,
                [socket as usize, header as *const _ as usize, flags],
            )
        };
        match sent {
            Err(Errno::EINTR) => {}
            r => return r.map(|_| ()),
        }
    })
}

/// Room for what comes with a packet: its sender, and descriptors.
#[repr(C)]
struct Control {
    sender: [u64; SENDER / 8],
    message: ControlMessage,
}

/// What a sender takes: a head, and three numbers.
const SENDER: usize = (HEAD + size_of::<libc::ucred>()).next_multiple_of(8);

impl Control {
    /// The messages of the first `len` bytes, with their heads.
    fn each(&self, len: usize, mut f: impl FnMut(i32, &[u8])) {
        let start = (&raw const *self).cast::<u8>();
        // SAFETY: the structure itself, of whole words without gaps.
        let all = unsafe { core::slice::from_raw_parts(start, size_of::<Control>()) };
        let mut rest = all.get(..len).unwrap_or(all);
        while let Some(head) = rest.get(..HEAD) {
            let word = |at: usize| -> [u8; 4] { core::array::from_fn(|i| head[at + i]) };
            let length = u64::from_ne_bytes(core::array::from_fn(|i| head[i])) as usize;
            let Some(data) = rest.get(HEAD..length) else {
                return;
            };
            if i32::from_ne_bytes(word(8)) == libc::SOL_SOCKET {
                f(i32::from_ne_bytes(word(12)), data);
            }
            rest = rest.get(length.next_multiple_of(8)..).unwrap_or(&[]);
        }
    }
}

/// A packet of another size is none.
fn receive(
    socket: i32,
    flags: i32,
    fds: &mut Descriptors,
    sender: &mut Option<u32>,
) -> Result<Received<Option<Packet>>, Errno> {
    fds.len = 0;
    let mut packet = packet([0; WORDS]);
    let piece = (packet.as_mut_ptr(), size_of::<Packet>());
    let mut control = Control {
        sender: [0; SENDER / 8],
        message: ControlMessage::new(&[]),
    };
    let (at, room) = ((&raw mut control).cast(), size_of::<Control>());
    let (n, got) = with_header(piece, at, room, |header| loop {
        let flags = (flags | libc::MSG_CMSG_CLOEXEC) as usize;
        // SAFETY: the header and what it names outlive the call.
        let n = unsafe {
            syscall(
                libc::SYS_recvmsg,
                [socket as usize, header as *mut _ as usize, flags],
            )
        };
        match n {
            Err(Errno::EINTR) => {}
            r => return r.map(|n| (n, header.msg_controllen)),
        }
    })?;
    control.each(got, |kind, data| {
        let mut numbers = data
            .chunks_exact(4)
            .map(|n| i32::from_ne_bytes([n[0], n[1], n[2], n[3]]));
        match kind {
            libc::SCM_RIGHTS => {
                for (to, fd) in fds.fds.iter_mut().zip(numbers) {
                    *to = fd;
                    fds.len += 1;
                }
            }
            // The process comes before its users.
            libc::SCM_CREDENTIALS => *sender = numbers.next().map(|pid| pid as u32),
            _ => {}
        }
    });
    Ok(match n {
        0 => Received::End,
        n if n == bytes_of(&packet) => Received::Packet(Some(packet)),
        _ => Received::Packet(None),
    })
}

/// A descriptor that a program was started with, for one that can't find the supervisor: its number, and the
/// socket that it was, for a program between them may have closed it and opened another. Follows the
/// address in the environment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Door {
    pub number: i32,
    pub inode: u64,
}

const BEFORE_DOOR: u8 = b'@';

impl Door {
    /// One of two sockets of which the supervisor is to get the other.
    pub fn of(number: i32) -> Result<Door, Errno> {
        let inode = fd::socket_inode(number)?;
        Ok(Door { number, inode })
    }

    /// What the environment says: the address alone, and the door behind it.
    pub fn split(text: &[u8]) -> (&[u8], Option<Door>) {
        let Some(at) = text.iter().rposition(|&b| b == BEFORE_DOOR) else {
            return (text, None);
        };
        let number = |text: &[u8]| core::str::from_utf8(text).ok()?.parse().ok();
        let mut parts = text[at + 1..].splitn(2, |&b| b == b'.');
        let parts = (parts.next().and_then(number), parts.next().and_then(number));
        let door = match parts {
            (Some(n), Some(inode)) => i32::try_from(n).ok().map(|number| Door { number, inode }),
            _ => None,
        };
        (&text[..at], door)
    }

    /// Writes it behind the address.
    pub fn write(self, to: &mut impl core::fmt::Write) -> core::fmt::Result {
        write!(to, "{}{}.{}", BEFORE_DOOR as char, self.number, self.inode)
    }

    /// It is still that socket.
    pub fn is_there(self) -> bool {
        fd::socket_inode(self.number) == Ok(self.inode)
    }
}

/// Where the supervisor is: an abstract name, which needs no file system and no rights, and a path,
/// for another network name space. And what to say there.
#[derive(Clone, Copy)]
pub struct Address {
    name: [u8; ROOM],
    name_len: usize,
    pub secret: Secret,
    path: [u8; ROOM],
    path_len: usize,
}

fn hex(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(core::str::from_utf8(text).ok()?, 16).ok()
}

impl Address {
    /// As [`Address::text`] makes it.
    pub fn parse(text: &[u8]) -> Option<Address> {
        let mut parts = text.splitn(3, |&b| b == b':');
        let (key, secret, path) = (parts.next()?, parts.next()?, parts.next()?);
        let secret = [hex(secret.get(..16)?)?, hex(secret.get(16..)?)?];
        let mut a = Address {
            name: [0; ROOM],
            name_len: 1 + PREFIX.len() + key.len(),
            secret,
            path: [0; ROOM],
            path_len: path.len(),
        };
        // The first byte of an abstract name is zero; a path ends with one.
        a.name[1..1 + PREFIX.len()].copy_from_slice(PREFIX);
        let name = a.name.get_mut(1 + PREFIX.len()..a.name_len)?;
        name.copy_from_slice(key);
        if path.len() >= ROOM || key.is_empty() {
            return None;
        }
        a.path[..path.len()].copy_from_slice(path);
        Some(a)
    }

    pub fn text(key: &str, secret: Secret, path: &str) -> String {
        format!("{key}:{:016x}{:016x}:{path}", secret[0], secret[1])
    }

    /// The same address for a group: what the environment of its programs says.
    pub fn with_secret(text: &str, secret: Secret) -> Option<String> {
        let mut parts = text.splitn(3, ':');
        let (key, _, path) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Address::text(key, secret, path))
    }

    pub fn path(&self) -> &[u8] {
        &self.path[..self.path_len]
    }

    /// A connection to the supervisor.
    pub fn connect(&self) -> Result<i32, Errno> {
        let by_name = connect(&self.name[..self.name_len]);
        match by_name {
            Err(_) if self.path_len > 0 => connect(&self.path[..self.path_len + 1]),
            r => r,
        }
    }

    /// Says hello to the supervisor, where it can't be found by a door of that number (or -1). The door is closed.
    pub fn greet(&self, hello: Request, door: i32) -> Result<i32, Errno> {
        let found = self.connect().and_then(|link| {
            let sent = hello.send(link);
            sent.map(|()| link).inspect_err(|_| fd::close(link))
        });
        let link = match found {
            Err(_) if door >= 0 => knock(door, hello),
            r => r,
        };
        fd::close(door);
        link
    }

    /// The program does without hugeswap: waits until the supervisor knows it. Nothing is to be done where it can't.
    pub fn decline(&self, door: i32) {
        let secret = self.secret;
        if let Ok(link) = self.greet(Request::Declined { secret }, door) {
            let mut fds = Descriptors::default();
            let _ = Reply::receive(link, &mut fds);
            fds.close();
            fd::close(link);
        }
    }

    /// A socket to which processes connect by the abstract name.
    pub fn listen(&self) -> Result<i32, Errno> {
        listen(&self.name[..self.name_len])
    }
}

#[repr(C)]
struct Name {
    family: u16,
    bytes: [u8; ROOM],
}

fn socket() -> Result<i32, Errno> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = unsafe { syscall(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0]) }?;
    Ok(fd as i32)
}

/// `call` is bind or connect.
fn with_name(call: i64, bytes: &[u8]) -> Result<i32, Errno> {
    let mut name = Name {
        family: libc::AF_UNIX as u16,
        bytes: [0; ROOM],
    };
    name.bytes
        .get_mut(..bytes.len())
        .ok_or(Errno::EINVAL)?
        .copy_from_slice(bytes);
    let fd = socket()?;
    loop {
        // SAFETY: the name outlives the call.
        let done = unsafe {
            syscall(
                call,
                [fd as usize, &raw const name as usize, 2 + bytes.len()],
            )
        };
        match done {
            Ok(_) => return Ok(fd),
            Err(Errno::EINTR) => {}
            Err(e) => {
                fd::close(fd);
                return Err(e);
            }
        }
    }
}

fn connect(bytes: &[u8]) -> Result<i32, Errno> {
    with_name(libc::SYS_connect, bytes)
}

/// A socket that listens: at a path if the bytes begin with a slash (and end with a zero).
pub fn listen(bytes: &[u8]) -> Result<i32, Errno> {
    let fd = with_name(libc::SYS_bind, bytes)?;
    // SAFETY: no pointers.
    match unsafe { syscall(libc::SYS_listen, [fd as usize, 4096]) } {
        Ok(_) => Ok(fd),
        Err(e) => {
            fd::close(fd);
            Err(e)
        }
    }
}

/// A waiting process's connection, if there is one. The listening socket does not block.
pub fn accept(listening: i32) -> Result<i32, Errno> {
    let flags = libc::SOCK_CLOEXEC as usize;
    // SAFETY: no name is asked for.
    let fd = unsafe { syscall(libc::SYS_accept4, [listening as usize, 0, 0, flags]) }?;
    Ok(fd as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELCOME: Reply = Reply::Welcome {
        id: 3,
        devices: 1,
        also: Also {
            userfaultfd: false,
            maps: true,
            pagemap: false,
            record: true,
        },
    };

    #[test]
    fn packets_carry_descriptors() {
        let address = {
            let key = format!("test-{}", std::process::id());
            Address::parse(Address::text(&key, [1, 2], "").as_bytes()).unwrap()
        };
        let listening = address.listen().unwrap();
        let ours = address.connect().unwrap();
        let theirs = accept(listening).unwrap();
        let place = Place {
            id: 7,
            key: 1 << 63,
        };
        let mut fds = Descriptors::default();
        Request::Faults.send_with(ours, &[0]).unwrap();
        assert_eq!(
            Request::receive(theirs, &mut fds),
            Ok(Received::Packet(Some(Request::Faults)))
        );
        assert_eq!(fds.as_slice().len(), 1);
        fds.close();
        Request::Call.send(ours).unwrap();
        assert_eq!(
            Request::receive(theirs, &mut fds),
            Ok(Received::Packet(Some(Request::Call)))
        );
        Request::Forked { place }.send(ours).unwrap();
        assert_eq!(
            Request::receive(theirs, &mut fds),
            Ok(Received::Packet(Some(Request::Forked { place })))
        );
        assert_eq!(Request::receive(theirs, &mut fds), Err(Errno::EAGAIN));
        WELCOME.send(theirs, &[0, 1, 2]).unwrap();
        assert_eq!(Reply::receive(ours, &mut fds), Ok(WELCOME));
        assert_eq!(fds.as_slice().len(), 3);
        fds.close();
        let group = Request::Group {
            secret: [5, 6],
            bytes: 1 << 30,
            name: group_name("a name of more than eight bytes").unwrap(),
        };
        group.send(ours).unwrap();
        assert_eq!(
            Request::receive(theirs, &mut fds),
            Ok(Received::Packet(Some(group)))
        );
        let secret = [7, u64::MAX];
        Reply::Group { secret }.send(theirs, &[]).unwrap();
        assert_eq!(Reply::receive(ours, &mut fds), Ok(Reply::Group { secret }));
        assert_eq!(group_name(&"n".repeat(MOST_NAME + 1)), None);
        send(ours, &packet([99, 0, 0, 0]), &[0], 0).unwrap();
        assert_eq!(
            Request::receive(theirs, &mut fds),
            Ok(Received::Packet(None))
        );
        fd::close(ours);
        assert_eq!(Request::receive(theirs, &mut fds), Ok(Received::End));
        fd::close(theirs);
        fd::close(listening);
    }

    #[test]
    fn descriptors_keep_their_places() {
        let [ours, theirs] = pair().unwrap();
        pass(ours, &[0, -1, 2]).unwrap();
        fd::close(ours);
        let mut fds = [7; 4];
        take(theirs, &mut fds).unwrap();
        assert!(fds[0] >= 0 && fds[2] >= 0 && fds[0] != fds[2]);
        assert_eq!([fds[1], fds[3]], [-1, -1]);
        assert!(take(theirs, &mut fds).is_err());
        for f in [fds[0], fds[2], theirs] {
            fd::close(f);
        }
        let [door, outside] = pair().unwrap();
        let ours = knock(outside, Request::Call).unwrap();
        take(door, &mut fds[..1]).unwrap();
        names_sender(fds[0], true).unwrap();
        let mut none = Descriptors::default();
        let me = std::process::id();
        let said = |request| Ok((Received::Packet(Some(request)), Some(me)));
        assert_eq!(
            Request::receive_from(fds[0], &mut none),
            said(Request::Call)
        );
        // With descriptors, too.
        Request::Fork.send_with(ours, &[0, 1]).unwrap();
        assert_eq!(
            Request::receive_from(fds[0], &mut none),
            said(Request::Fork)
        );
        assert_eq!(none.as_slice().len(), 2);
        none.close();
        // Nobody waits for who takes no answers.
        let refused = Reply::Refused(Errno::EINVAL);
        while refused.send(fds[0], &[]).is_ok() {}
        assert_eq!(refused.send(fds[0], &[]), Err(Errno::EAGAIN));
        for f in [door, outside, ours, fds[0]] {
            fd::close(f);
        }
    }

    #[test]
    fn doors_behind_addresses() {
        let [ours, theirs] = pair().unwrap();
        let door = Door::of(ours).unwrap();
        let mut text = Address::text("key", [1, 2], "/a@b");
        assert_eq!(Door::split(b"key").1, None);
        let plain = text.clone();
        door.write(&mut text).unwrap();
        assert_eq!(Door::split(text.as_bytes()), (plain.as_bytes(), Some(door)));
        assert!(door.is_there() && Door::of(theirs) != Ok(door));
        fd::close(ours);
        assert!(!door.is_there());
        fd::close(theirs);
        assert_eq!(Door::split(b"key@1.x"), (&b"key"[..], None));
    }

    #[test]
    fn addresses() {
        assert!(Address::parse(b"").is_none());
        assert!(Address::parse(b"key:1:/x").is_none());
        assert!(Address::parse(b"key").is_none());
        let secret = [u64::MAX, 5];
        assert!(Address::parse(Address::text("", secret, "").as_bytes()).is_none());
        assert!(Address::parse(Address::text(&"k".repeat(200), secret, "").as_bytes()).is_none());
        let text = Address::text("key", secret, "/proc/1/fd/3");
        let a = Address::parse(text.as_bytes()).unwrap();
        assert_eq!(a.secret, secret);
        let of_group = Address::with_secret(&text, [3, 4]).unwrap();
        assert_eq!(of_group, Address::text("key", [3, 4], "/proc/1/fd/3"));
        assert_eq!(Address::with_secret("key", [3, 4]), None);
        assert_eq!(a.path(), b"/proc/1/fd/3");
        assert!(a.connect().is_err());
    }
}
