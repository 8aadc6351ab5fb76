//! Opening a swap file: in a directory, at a path, or on a block device.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::super::guarded_fd::GuardedFd;
use super::super::os::{self, Errno};
use super::store::Store;
use super::{contents, signature, FileDevice, OpenError, Options};
use hugeswap_mm::PAGE_SIZE;

/// Marks an existing file as ours, so that it may be used again after a run that was killed.
const MARK: &CStr = c"user.hugeswap";

const READ_WRITE: i32 = libc::O_RDWR | libc::O_NOCTTY | libc::O_NONBLOCK;

impl FileDevice {
    /// Opens what `--swap` names:
    ///
    /// * a directory: a nameless file in it;
    /// * a path that does not exist: a file created there, mode 0600, and unlinked at once;
    /// * an existing regular file: used if it is this user's, has mode 0600 and one name, is not in
    ///   use, and holds no data or was marked as ours by an earlier run;
    /// * a block device: used if it is not in use, can be written, and carries nothing, or swap of an
    ///   earlier run; its last page says from then on that it is ours.
    pub fn open(path: &Path, options: &Options) -> Result<Self, OpenError> {
        let at = Place { path, options };
        let name =
            CString::new(path.as_os_str().as_bytes()).map_err(|_| at.os("open", libc::ENOENT))?;
        // The kind is known only once it is open; O_PATH opens anything and disturbs nothing.
        let probe = match os::open(None, &name, libc::O_PATH, 0) {
            Ok(probe) => probe,
            Err(libc::ENOENT) => return at.create(&name),
            Err(errno) => return Err(at.os("open", errno)),
        };
        let stat = os::fstat(probe.as_fd()).map_err(|errno| at.os("stat", errno))?;
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFDIR => at.directory(&name),
            libc::S_IFREG => at.regular(&name),
            libc::S_IFBLK => at.block(&name),
            _ => Err(OpenError::WrongKind { path: path.into() }),
        }
    }

    /// Whether a block device could be opened so, as a check; nothing is written to it.
    pub fn examine(path: &Path, options: &Options) -> Result<(), OpenError> {
        let at = Place { path, options };
        let name =
            CString::new(path.as_os_str().as_bytes()).map_err(|_| at.os("open", libc::ENOENT))?;
        at.examine_block(&name).map(drop)
    }

    /// What of a block device is for swap.
    pub fn bytes_of(path: &Path) -> Result<u64, OpenError> {
        let options = Options::new(u64::MAX);
        let at = Place {
            path,
            options: &options,
        };
        let name =
            CString::new(path.as_os_str().as_bytes()).map_err(|_| at.os("open", libc::ENOENT))?;
        let fd = os::open(None, &name, libc::O_RDONLY | libc::O_NONBLOCK, 0)
            .map_err(|errno| at.os("open", errno))?;
        let size = os::block_size_bytes(fd.as_fd());
        size.map(contents::usable)
            .map_err(|errno| at.os("find the size of", errno))
    }

    /// Like [`from_fd`](Self::from_fd), with all options.
    pub fn from_fd_with(fd: OwnedFd, options: &Options) -> Result<Self, OpenError> {
        let path = Path::new("(inherited)");
        let at = Place { path, options };
        let stat = os::fstat(fd.as_fd()).map_err(|errno| at.os("stat", errno))?;
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFREG | libc::S_IFBLK => at.finish(fd),
            _ => Err(OpenError::WrongKind { path: path.into() }),
        }
    }
}

/// What is being opened.
struct Place<'a> {
    path: &'a Path,
    options: &'a Options,
}

impl Place<'_> {
    fn os(&self, action: &'static str, errno: Errno) -> OpenError {
        OpenError::Os {
            path: self.path.into(),
            action,
            errno,
        }
    }

    /// Opens with `O_DIRECT`, without where that is refused.
    fn try_direct(
        &self,
        dir: Option<BorrowedFd<'_>>,
        name: &CStr,
        flags: i32,
    ) -> Result<OwnedFd, Errno> {
        if !self.options.buffered {
            match os::open(dir, name, flags | libc::O_DIRECT, 0o600) {
                Err(libc::EINVAL | libc::EOPNOTSUPP) => {}
                other => return other,
            }
        }
        os::open(dir, name, flags, 0o600)
    }

    /// A nameless file in a directory; where the file system has none, one that loses its name at
    /// once.
    fn directory(&self, name: &CStr) -> Result<FileDevice, OpenError> {
        // O_EXCL: nobody can give the nameless file a name later.
        let nameless = READ_WRITE | libc::O_TMPFILE | libc::O_EXCL;
        match self.try_direct(None, name, nameless) {
            Ok(fd) => return self.finish(fd),
            Err(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT | libc::EINVAL) => {}
            Err(errno) => return Err(self.os("create a swap file in", errno)),
        }
        let dir = os::open(None, name, libc::O_PATH | libc::O_DIRECTORY, 0)
            .map_err(|errno| self.os("open", errno))?;
        let mut random = [0; 16];
        os::random(&mut random).map_err(|errno| self.os("name a swap file in", errno))?;
        let file = CString::new(format!(".hugeswap-{:032x}", u128::from_ne_bytes(random)))
            .map_err(|_| self.os("name a swap file in", libc::EINVAL))?;
        self.create_in(Some(dir.as_fd()), &file)
    }

    fn create(&self, name: &CStr) -> Result<FileDevice, OpenError> {
        self.create_in(None, name)
    }

    fn create_in(&self, dir: Option<BorrowedFd<'_>>, name: &CStr) -> Result<FileDevice, OpenError> {
        let flags = READ_WRITE | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        // Some file systems refuse O_DIRECT only after having created the file. So it is made
        // without, and opened a second time, with.
        let fd = os::open(dir, name, flags, 0o600)
            .map_err(|errno| self.os("create a swap file at", errno))?;
        let again = self.try_direct(dir, name, READ_WRITE | libc::O_NOFOLLOW);
        let unlinked = os::unlink(dir, name);
        let same = again.as_ref().is_ok_and(|again| {
            os::identity(fd.as_raw_fd())
                .is_ok_and(|ours| os::identity(again.as_raw_fd()) == Ok(ours))
        });
        unlinked.map_err(|errno| self.os("unlink the swap file", errno))?;
        self.finish(if same { again.unwrap_or(fd) } else { fd })
    }

    /// An existing file is used only if nothing can be lost by it and nobody else can see into
    /// it: it belongs to this user, has one name and mode 0600, is held by no other hugeswap, and
    /// either holds no data at all (empty or never written) or carries our mark from an earlier
    /// run. It is not unlinked: it was not ours to remove.
    fn regular(&self, name: &CStr) -> Result<FileDevice, OpenError> {
        let insecure = |why| OpenError::Insecure {
            path: self.path.into(),
            why,
        };
        let fd = self
            .try_direct(None, name, READ_WRITE | libc::O_NOFOLLOW)
            .map_err(|errno| match errno {
                libc::ELOOP => insecure("is a symbolic link"),
                libc::ETXTBSY => OpenError::InUse {
                    path: self.path.into(),
                },
                errno => self.os("open", errno),
            })?;
        let stat = os::fstat(fd.as_fd()).map_err(|errno| self.os("stat", errno))?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(OpenError::WrongKind {
                path: self.path.into(),
            });
        }
        if stat.st_uid != os::effective_uid() {
            return Err(insecure("belongs to another user"));
        }
        if stat.st_mode & 0o077 != 0 {
            return Err(insecure("is not private (its mode should be 0600)"));
        }
        if stat.st_nlink > 1 {
            return Err(insecure("has more than one name"));
        }
        os::try_lock(fd.as_fd()).map_err(|errno| match errno {
            libc::EWOULDBLOCK => OpenError::InUse {
                path: self.path.into(),
            },
            errno => self.os("lock", errno),
        })?;
        let untouched = os::seek_data(fd.as_fd(), 0) == Ok(None);
        if !untouched && !os::has_xattr(fd.as_fd(), MARK) {
            return Err(OpenError::NotEmpty {
                path: self.path.into(),
            });
        }
        // Without the mark the file still serves; the next run just asks to remove it.
        let _unmarked = os::set_xattr(fd.as_fd(), MARK, b"1");
        self.finish(fd)
    }

    /// A block device is opened exclusively, which fails while it is mounted or part of a volume,
    /// and refused if it carries something known, unless forced, or data at all, unless allowed.
    fn block(&self, name: &CStr) -> Result<FileDevice, OpenError> {
        let (fd, size) = self.examine_block(name)?;
        // Marked through the page cache, as it was looked at: the page is not aligned in memory.
        let other =
            os::open(None, name, libc::O_RDWR, 0).map_err(|errno| self.os("open", errno))?;
        contents::mark(other.as_fd(), size).map_err(|errno| self.os("write to", errno))?;
        self.finish(fd)
    }

    fn examine_block(&self, name: &CStr) -> Result<(OwnedFd, u64), OpenError> {
        let opened = self.try_direct(None, name, READ_WRITE | libc::O_EXCL);
        let fd = opened.map_err(|errno| match errno {
            libc::EBUSY => OpenError::InUse {
                path: self.path.into(),
            },
            errno => self.os("open", errno),
        })?;
        // Opening one for writing is not refused.
        if os::block_is_read_only(fd.as_fd()) == Ok(true) {
            return Err(self.os("write to", libc::EROFS));
        }
        let size =
            os::block_size_bytes(fd.as_fd()).map_err(|errno| self.os("find the size of", errno))?;
        if !self.options.force {
            // Looked at through the page cache: the pieces are small and not aligned.
            let look =
                os::open(None, name, libc::O_RDONLY, 0).map_err(|errno| self.os("open", errno))?;
            let found = contents::look(size, |offset, buffer| {
                os::pread_slice(look.as_fd(), buffer, offset).is_ok()
            })
            .map_err(|signature::Unreadable| self.os("read", libc::EIO))?;
            contents::refuse(found, self.options.overwrite, self.path)?;
        }
        Ok((fd, size))
    }

    fn finish(&self, fd: OwnedFd) -> Result<FileDevice, OpenError> {
        let stat = os::fstat(fd.as_fd()).map_err(|errno| self.os("stat", errno))?;
        let block = stat.st_mode & libc::S_IFMT == libc::S_IFBLK;
        let size = if block {
            os::block_size_bytes(fd.as_fd()).map_err(|errno| self.os("find the size of", errno))?
        } else {
            u64::try_from(stat.st_size).unwrap_or(0)
        };
        let whole_pages = |bytes: u64| bytes - bytes % PAGE_SIZE as u64;
        let limit = whole_pages(self.options.max_bytes);
        let max_bytes = if block {
            limit.min(contents::usable(size))
        } else {
            limit
        };
        let direct = self.settle_direct(&fd, block)?;
        let store = Store {
            block,
            direct,
            max_bytes,
            capacity: AtomicU64::new(whole_pages(size).min(max_bytes)),
            can_reserve: AtomicBool::new(true),
            can_discard: AtomicBool::new(!block || self.options.discard_blocks),
            short_transfers: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            line: self.options.line,
            inject: self.options.inject.clone(),
            fd: GuardedFd::new(fd).map_err(|errno| self.os("stat", errno))?,
        };
        FileDevice::build(store, self.path.display().to_string(), self.options)
    }

    /// Whether requests will really go past the page cache; takes `O_DIRECT` away where the
    /// device wants more than page alignment.
    fn settle_direct(&self, fd: &OwnedFd, block: bool) -> Result<bool, OpenError> {
        let flags = os::status_flags(fd.as_fd()).map_err(|errno| self.os("query", errno))?;
        if flags & libc::O_DIRECT == 0 {
            return Ok(false);
        }
        let fs = os::fstatfs(fd.as_fd()).map_err(|errno| self.os("query", errno))?;
        // tmpfs accepts the flag and ignores it (block devices have their node on a tmpfs).
        if !block && fs.f_type == libc::TMPFS_MAGIC {
            return Ok(false);
        }
        let alignment = if block {
            os::block_logical(fd.as_fd()).ok()
        } else {
            os::direct_alignment(fd.as_fd())
        };
        if alignment.is_some_and(|bytes| bytes == 0 || bytes > PAGE_SIZE as u32) {
            os::set_status_flags(fd.as_fd(), flags & !libc::O_DIRECT)
                .map_err(|errno| self.os("query", errno))?;
            return Ok(false);
        }
        Ok(true)
    }
}
