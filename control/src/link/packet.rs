//! One packet: its words, and the descriptors that come with it.

use crate::MAX_DEVICES;
use hugeswap_sys::syscall::uninterrupted;
use hugeswap_sys::{fd, syscall, Errno};

/// Descriptors in a packet at most.
pub const MOST_FDS: usize = MAX_DEVICES + 8;
/// Words of a packet, and of one with a name behind it.
pub(super) const WORDS: usize = 4;
const WORDS_NAMED: usize = WORDS + MOST_NAME / 8;
/// Bytes of a group's name.
pub const MOST_NAME: usize = 64;

/// The words behind the first are the name, if there is one; without they are zero and not sent.
pub(super) type Packet = [u64; WORDS_NAMED];

pub(super) fn packet(words: [u64; WORDS]) -> Packet {
    let mut packet = [0; WORDS_NAMED];
    packet[..WORDS].copy_from_slice(&words);
    packet
}
fn bytes_of(packet: &Packet) -> usize {
    match packet[WORDS..].iter().all(|&w| w == 0) {
        true => WORDS * 8,
        false => WORDS_NAMED * 8,
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

pub(super) fn send(socket: i32, packet: &Packet, fds: &[i32], flags: i32) -> Result<(), Errno> {
    let fds = &fds[..fds.len().min(MOST_FDS)];
    let mut packet = *packet;
    let piece = (packet.as_mut_ptr(), bytes_of(&packet));
    let mut control = ControlMessage::new(fds);
    let len = if fds.is_empty() { 0 } else { control.len };
    let at = (&raw mut control).cast();
    let flags = (flags | libc::MSG_NOSIGNAL) as usize;
    with_header(piece, at, len, |header| {
        let args = [socket as usize, &raw const *header as usize, flags];
        // SAFETY: the header and what it names outlive the call.
        uninterrupted(|| unsafe { syscall(libc::SYS_sendmsg, args) })
    })?;
    Ok(())
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
pub(super) fn receive(
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
    let flags = (flags | libc::MSG_CMSG_CLOEXEC) as usize;
    let (n, got) = with_header(piece, at, room, |header| {
        let args = [socket as usize, &raw mut *header as usize, flags];
        // SAFETY: the header and what it names outlive the call.
        let n = uninterrupted(|| unsafe { syscall(libc::SYS_recvmsg, args) })?;
        Ok((n, header.msg_controllen))
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
