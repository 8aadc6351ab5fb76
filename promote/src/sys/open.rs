//! Opening without doing anything to what is opened, until it is known what it is.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{check, owned};

/// A name for what `path`, relative to `dir`, leads to below it by no symbolic link.
pub fn name_below(dir: BorrowedFd, path: &Path, more: libc::c_int) -> io::Result<File> {
    let below = libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS | libc::RESOLVE_BENEATH;
    openat2(dir.as_raw_fd(), path, libc::O_PATH | more, below)
}

/// The same of an absolute path.
pub fn name_of(path: &Path, more: libc::c_int) -> io::Result<File> {
    let without = libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
    openat2(libc::AT_FDCWD, path, libc::O_PATH | more, without)
}

/// The same of the descriptor of a process.
pub fn name_of_descriptor(path: &Path) -> io::Result<File> {
    openat2(libc::AT_FDCWD, path, libc::O_PATH, 0)
}

fn openat2(dir: libc::c_int, path: &Path, flags: libc::c_int, resolve: u64) -> io::Result<File> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: all zeroes is a valid structure; the path ends in 0, and the size is the structure's.
    let fd = unsafe {
        let mut how: libc::open_how = std::mem::zeroed();
        how.flags = (flags | libc::O_CLOEXEC) as u64;
        how.resolve = resolve;
        owned(libc::syscall(
            libc::SYS_openat2,
            dir,
            path.as_ptr(),
            &how,
            size_of::<libc::open_how>(),
        ))?
    };
    Ok(File::from(fd))
}

/// What a name is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct What {
    pub regular: bool,
    pub directory: bool,
    pub ino: u64,
    /// As the kernel keeps it.
    pub dev: u32,
}

/// Asks nobody but the kernel: a file system whose answers come from elsewhere is not waited for.
pub fn what(name: BorrowedFd) -> io::Result<What> {
    // SAFETY: all zeroes is a valid structure, which the kernel fills; the empty path ends in 0.
    let stat = unsafe {
        let mut stat: libc::statx = std::mem::zeroed();
        check(
            libc::statx(
                name.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC,
                libc::STATX_TYPE | libc::STATX_INO,
                &mut stat,
            )
            .into(),
        )?;
        stat
    };
    let kind = u32::from(stat.stx_mode) & libc::S_IFMT;
    Ok(What {
        regular: kind == libc::S_IFREG,
        directory: kind == libc::S_IFDIR,
        ino: stat.stx_ino,
        dev: (stat.stx_dev_major << 20) | (stat.stx_dev_minor & 0xf_ffff),
    })
}

/// A lease for writing, as file servers take them. For tests.
#[cfg(test)]
pub struct Lease(File);

#[cfg(test)]
impl Lease {
    pub fn take(file: File) -> io::Result<Lease> {
        // SAFETY: the command takes a number. Should it be broken after all, the signal is ignored.
        unsafe {
            libc::signal(libc::SIGIO, libc::SIG_IGN);
            check(libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK).into())?;
        }
        Ok(Lease(file))
    }

    pub fn held(&self) -> bool {
        // SAFETY: the command takes nothing.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_GETLEASE) == libc::F_WRLCK }
    }
}
