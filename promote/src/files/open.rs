//! Opening a file that others name. Users may put anything in its place: a pipe, a device, a file
//! of a server that does not answer. So it is named first (O_PATH), which does nothing to it;
//! looked at; and only then opened, by that name and no other.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use super::skip::Skip;
use crate::page::FileId;
use crate::sys::{self, What};

/// A file that is named and not open.
pub struct Named {
    file: File,
    pub what: What,
    /// The mount that it is seen through.
    pub mount: Option<u64>,
}

impl Named {
    pub fn new(file: io::Result<File>) -> Result<Named, Skip> {
        let file = file.map_err(skip)?;
        let what = sys::what(file.as_fd()).map_err(skip)?;
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()));
        let info = info.unwrap_or_default();
        let line = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
        let mount = line.and_then(|id| id.trim().parse().ok());
        Ok(Named { file, what, mount })
    }

    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    /// Opens it for reading, without marking it accessed where that is allowed.
    pub fn open(&self) -> Result<File, Skip> {
        if !self.what.regular {
            return Err(Skip::NotRegular);
        }
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        let open = |flags| {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(flags).open(self.path())
        };
        match open(flags | libc::O_NOATIME) {
            // Only the owner and root may leave the access time alone.
            Err(err) if err.raw_os_error() == Some(libc::EPERM) => open(flags).map_err(skip),
            other => other.map_err(skip),
        }
    }

    /// Opens it as a directory.
    pub fn open_dir(&self) -> io::Result<File> {
        let flags = libc::O_DIRECTORY | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(flags).open(self.path())
    }

    /// Where its entries are found, if it is a directory.
    pub fn entries(&self) -> PathBuf {
        self.path()
    }

    pub fn file(&self) -> &File {
        &self.file
    }
}

pub fn skip(err: io::Error) -> Skip {
    match err.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => Skip::NotPermitted,
        Some(libc::ELOOP | libc::EXDEV | libc::EISDIR | libc::ENXIO) => Skip::NotRegular,
        _ => Skip::NotFound,
    }
}

/// Has somebody a lease on it, for writing? To open it would take that away, and who has it (Samba,
/// a server of NFS) has to write back all that he holds.
pub fn leased(locks: &str, id: FileId) -> bool {
    let holds = |line: &str| {
        // "1: LEASE  ACTIVE    WRITE 1234 08:01:131 0 EOF"
        let mut words = line.split_whitespace().skip(1);
        let kind = words.next()?;
        let (_, mode, _) = (words.next()?, words.next()?, words.next()?);
        let mut place = words.next()?.split(':');
        let major = u32::from_str_radix(place.next()?, 16).ok()?;
        let minor = u32::from_str_radix(place.next()?, 16).ok()?;
        let ino = place.next()?.parse().ok()?;
        let dev = (major << 20) | (minor & 0xf_ffff);
        let lease = matches!(kind, "LEASE" | "DELEG") && mode != "READ";
        Some(lease && FileId { dev, ino } == id)
    };
    locks.lines().any(|line| holds(line) == Some(true))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileTypeExt;

    use super::*;

    #[test]
    fn leases_are_read() {
        let text = "1: POSIX  ADVISORY  WRITE 812 08:01:131 0 EOF\n\
                    2: LEASE  ACTIVE    WRITE 900 103:02:77 0 EOF\n\
                    3: LEASE  ACTIVE    READ  900 08:01:78 0 EOF\n\
                    4: LEASE  BREAKING  UNLCK 901 08:01:79 0 EOF\n\
                    3: -> LEASE\nbad\n";
        let id = |major: u32, ino| FileId {
            dev: (major << 20) | if major == 8 { 1 } else { 2 },
            ino,
        };
        assert!(leased(text, id(0x103, 77)));
        assert!(leased(text, id(8, 79)));
        assert!(!leased(text, id(8, 77)));
        assert!(!leased(text, id(8, 78)), "reading is what we do too");
        assert!(!leased(text, id(8, 131)));
    }

    #[test]
    fn a_device_is_named_and_not_opened() {
        let named = Named::new(sys::name_of("/dev/null".as_ref(), 0)).unwrap();
        assert!(!named.what.regular);
        assert_eq!(named.open().unwrap_err(), Skip::NotRegular);
        assert!(named
            .file()
            .metadata()
            .unwrap()
            .file_type()
            .is_char_device());
    }
}
