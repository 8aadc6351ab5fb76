//! Sockets of Unix that keep packets apart: made, named, listened at.

use hugeswap_sys::syscall::uninterrupted;
use hugeswap_sys::{fd, syscall, Errno};

/// Bytes of a socket's name at most, as the kernel has it.
pub(super) const ROOM: usize = 108;
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
/// From now on packets that are sent or received here say who has sent them.
pub fn name_sender(socket: i32) -> Result<(), Errno> {
    set_pass_cred(socket, 1)
}

/// From now on they do not any more.
pub fn name_no_sender(socket: i32) -> Result<(), Errno> {
    set_pass_cred(socket, 0)
}

fn set_pass_cred(socket: i32, value: i32) -> Result<(), Errno> {
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
    let args = [fd as usize, &raw const name as usize, 2 + bytes.len()];
    // SAFETY: the name outlives the call.
    match uninterrupted(|| unsafe { syscall(call, args) }) {
        Ok(_) => Ok(fd),
        Err(e) => {
            fd::close(fd);
            Err(e)
        }
    }
}

pub(super) fn connect(bytes: &[u8]) -> Result<i32, Errno> {
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
