//! Files by handle: a file's name without a path.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::{check, owned};

/// What `name_to_handle_at` gives: a file's name without a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    kind: libc::c_int,
    bytes: Vec<u8>,
}

const HANDLE_BYTES: usize = 128;

#[repr(C)]
struct FileHandle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    handle: [u8; HANDLE_BYTES],
}

impl Handle {
    pub fn new(kind: libc::c_int, bytes: Vec<u8>) -> Handle {
        Handle { kind, bytes }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn of(file: BorrowedFd) -> io::Result<Handle> {
        let mut raw = FileHandle {
            bytes: HANDLE_BYTES as libc::c_uint,
            kind: 0,
            handle: [0; HANDLE_BYTES],
        };
        let mut mount = 0;
        // SAFETY: the structure has room for as many bytes as it says.
        let ret = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                file.as_raw_fd(),
                c"".as_ptr(),
                &mut raw,
                &mut mount as *mut libc::c_int,
                libc::AT_EMPTY_PATH,
            )
        };
        check(ret)?;
        let bytes = raw.handle.get(..raw.bytes as usize);
        Ok(Handle {
            kind: raw.kind,
            bytes: bytes.ok_or(io::ErrorKind::InvalidData)?.to_vec(),
        })
    }

    /// Opens it; `mount` is any directory of its file system.
    pub fn open(&self, mount: BorrowedFd, flags: libc::c_int) -> io::Result<OwnedFd> {
        let mut raw = FileHandle {
            bytes: self.bytes.len() as libc::c_uint,
            kind: self.kind,
            handle: [0; HANDLE_BYTES],
        };
        raw.handle[..self.bytes.len()].copy_from_slice(&self.bytes);
        // SAFETY: the structure has the bytes that it says.
        unsafe {
            owned(libc::syscall(
                libc::SYS_open_by_handle_at,
                mount.as_raw_fd(),
                &raw,
                flags,
            ))
        }
    }
}

/// `XFS_IOC_BULKSTAT`.
const BULKSTAT: libc::c_ulong = 0x8040_587f;

/// `struct xfs_bulkstat_req` with room for one answer.
#[repr(C)]
struct Bulkstat {
    ino: u64,
    flags: u32,
    wanted: u32,
    given: u32,
    group: u32,
    reserved: [u64; 5],
    found: u64,
    sizes_and_times: [u64; 7],
    generation: u32,
    rest: [u32; 31],
}

/// The generation of an inode on xfs; `dir` is of that file system.
pub fn xfs_generation(dir: BorrowedFd, ino: u64) -> io::Result<u32> {
    let mut request = Bulkstat {
        ino,
        flags: 0,
        wanted: 1,
        given: 0,
        group: 0,
        reserved: [0; 5],
        found: 0,
        sizes_and_times: [0; 7],
        generation: 0,
        rest: [0; 31],
    };
    const { assert!(size_of::<Bulkstat>() == 64 + 192) };
    // SAFETY: the request has a head of 64 bytes and room for the one answer, of 192, that it asks for.
    let ret = unsafe { libc::ioctl(dir.as_raw_fd(), BULKSTAT, &mut request) };
    check(ret.into())?;
    // It gives the next one that is in use, if that one is not.
    if request.given == 1 && request.found == ino {
        Ok(request.generation)
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}
