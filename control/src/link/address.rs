//! Where a process finds the supervisor: by an address, or by a door.

use super::message::{Reply, Request, Secret};
use super::packet::{pass, Descriptors};
use super::socket::{connect, listen, name_no_sender, name_sender, pair, ROOM};
use hugeswap_sys::{fd, Errno};

/// Environment variable that carries the address.
pub const ENV: &str = "HUGESWAP_RUN";
const PREFIX: &[u8] = b"hugeswap-";

/// A connection with the supervisor, which has the other end of `door`. `hello` is the first packet.
pub fn knock(door: i32, hello: Request) -> Result<i32, Errno> {
    // Made here: so the kernel says whose it is. The maker of two sockets may be a process that knows nothing
    // of this; so the packet names its sender too.
    let [ours, theirs] = pair()?;
    let passed = pass(door, &[theirs])
        .and_then(|()| name_sender(ours))
        .and_then(|()| hello.send(ours))
        .and_then(|()| name_no_sender(ours));
    fd::close(theirs);
    passed.map(|()| ours).inspect_err(|_| fd::close(ours))
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
/// for another network namespace. And what to say there.
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
