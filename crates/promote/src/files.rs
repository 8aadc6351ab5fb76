//! From the kernel's name of a file (device and inode) to an open file.
//!
//! In this order: the way that led there last time; on ext4 the inode's file
//! handle, which needs no path; the descriptors of the process that read it,
//! which works inside containers and for files without a name; with `--path`
//! the walked directories, and then nothing but these.
//!
//! No descriptor is kept, so no file is kept alive and no mount busy.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::page::{kernel_dev, FileId, Time};
use crate::sys::Handle;

/// Why a file is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Skip {
    /// Below none of the given paths.
    NotSelected,
    /// Nobody has it open any more, and no handle leads to it.
    NotFound,
    /// We may not open it.
    NotPermitted,
    /// A directory, a device: not promoted.
    NotRegular,
    /// On a network or in user space: to open it might wait for ever.
    Remote,
}

#[derive(Clone, Debug)]
struct Mount {
    id: u64,
    dev: u32,
    point: PathBuf,
    kind: String,
}

/// A way to a file that does not keep it open.
#[derive(Clone, Debug)]
enum Way {
    Path(PathBuf),
    Handle(PathBuf, Handle),
}

#[derive(Debug, Default)]
struct Walked {
    files: HashMap<FileId, PathBuf>,
    at: Option<Time>,
}

#[derive(Debug, Default)]
pub struct Files {
    /// With `--path`: what may be promoted.
    roots: Vec<PathBuf>,
    walked: Walked,
    mounts: Vec<Mount>,
    mounts_at: Option<Time>,
    ways: HashMap<FileId, Way>,
    /// What could not be opened, and until when that is not tried again.
    skipped: HashMap<FileId, (Skip, Time)>,
}

/// What could not be opened is not tried again for so long; a file whose
/// reader was gone may have another soon.
const SKIP_FOR: Duration = Duration::from_secs(10);
const NOT_FOUND_FOR: Duration = Duration::from_secs(1);
const FRESH: Duration = Duration::from_secs(10);
/// Files remembered at most.
const MOST: usize = 1 << 16;
const MOST_WALKED: usize = 1 << 20;
/// Descriptors of a process that are looked at.
const MOST_FDS: usize = 1 << 14;

const OPEN_FLAGS: i32 =
    libc::O_NOATIME | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC | libc::O_NOFOLLOW;

impl Files {
    pub fn new(roots: Vec<PathBuf>) -> Files {
        Files {
            roots,
            ..Files::default()
        }
    }

    /// Opens a file for reading. `pid` has read it lately.
    pub fn open(&mut self, id: FileId, pid: Option<u32>, now: Time) -> Result<File, Skip> {
        if let Some(&(skip, until)) = self.skipped.get(&id) {
            if now < until {
                return Err(skip);
            }
            self.skipped.remove(&id);
        }
        let opened = self.find(id, pid, now);
        match &opened {
            Err(skip) => {
                if self.skipped.len() >= MOST {
                    self.skipped.clear();
                }
                let span = match skip {
                    Skip::NotFound => NOT_FOUND_FOR,
                    _ => SKIP_FOR,
                };
                self.skipped.insert(id, (*skip, now.after(span)));
            }
            Ok(file) => {
                if !self.ways.contains_key(&id) {
                    self.remember(id, file);
                }
            }
        }
        opened
    }

    fn find(&mut self, id: FileId, pid: Option<u32>, now: Time) -> Result<File, Skip> {
        self.refresh_mounts(now);
        if let Some(way) = self.ways.get(&id).cloned() {
            match self.follow(&way, id) {
                Ok(file) => return Ok(file),
                Err(_) => self.ways.remove(&id),
            };
        }
        if !self.roots.is_empty() {
            return self.find_walked(id, now);
        }
        let mut denied = false;
        for mount in self.mounts_of(id.dev) {
            if remote(&mount.kind) {
                return Err(Skip::Remote);
            }
            if mount.kind != "ext4" {
                break;
            }
            let Some(handle) = Handle::ext4(id.ino) else {
                break;
            };
            match self.follow(&Way::Handle(mount.point, handle), id) {
                Ok(file) => return Ok(file),
                Err(Skip::NotRegular) => return Err(Skip::NotRegular),
                Err(Skip::NotPermitted) => denied = true,
                Err(_) => {}
            }
        }
        match pid.map(|pid| self.find_open(id, pid)) {
            Some(Ok(file)) => Ok(file),
            Some(Err(Skip::NotFound)) | None if denied => Err(Skip::NotPermitted),
            Some(Err(skip)) => Err(skip),
            None => Err(Skip::NotFound),
        }
    }

    fn mounts_of(&self, dev: u32) -> Vec<Mount> {
        let of = |mount: &&Mount| mount.dev == dev;
        self.mounts.iter().filter(of).cloned().collect()
    }

    /// The way to it without a path, where the file system has handles and we
    /// see its mount.
    fn remember(&mut self, id: FileId, file: &File) {
        let Ok(handle) = Handle::of(file.as_fd()) else {
            return;
        };
        let Some(mount) = self.mounts.iter().find(|mount| mount.dev == id.dev) else {
            return;
        };
        if self.ways.len() >= MOST {
            self.ways.clear();
        }
        let way = Way::Handle(mount.point.clone(), handle);
        self.ways.insert(id, way);
    }

    fn follow(&self, way: &Way, id: FileId) -> Result<File, Skip> {
        let file = match way {
            Way::Path(path) => open(path, libc::O_NOFOLLOW)?,
            Way::Handle(point, handle) => {
                let mount = open_dir(point).map_err(skip)?;
                let flags = libc::O_RDONLY | OPEN_FLAGS;
                match handle.open(mount.as_fd(), flags) {
                    Ok(fd) => File::from(fd),
                    Err(err) => return Err(skip(err)),
                }
            }
        };
        self.verify(file, id, None)
    }

    /// Is it the file that was meant? Paths and numbers of inodes are used
    /// again.
    fn verify(&self, file: File, id: FileId, pid: Option<u32>) -> Result<File, Skip> {
        let meta = file.metadata().map_err(skip)?;
        if !meta.is_file() {
            return Err(Skip::NotRegular);
        }
        if meta.ino() != id.ino {
            return Err(Skip::NotFound);
        }
        if kernel_dev(meta.dev()) == id.dev {
            return Ok(file);
        }
        // btrfs gives each subvolume a device of its own; an overlay shows
        // its own device and the inode of the file below.
        let Some(mount) = self.mount_of(&file, pid) else {
            return Err(Skip::NotFound);
        };
        if mount.dev == id.dev || mount.kind == "overlay" {
            Ok(file)
        } else {
            Err(Skip::NotFound)
        }
    }

    /// The mount through which a file was opened: in our table, or in that of
    /// the process whose descriptor led there.
    fn mount_of(&self, file: &File, pid: Option<u32>) -> Option<Mount> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
        let line = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
        let id: u64 = line.trim().parse().ok()?;
        let by_id = |mounts: &[Mount]| mounts.iter().find(|mount| mount.id == id).cloned();
        by_id(&self.mounts).or_else(|| {
            let text = fs::read(format!("/proc/{}/mountinfo", pid?)).ok()?;
            by_id(&parse_mounts(&text))
        })
    }

    /// Looks through the descriptors of a process, without asking their file
    /// systems anything: some answer when they like.
    fn find_open(&self, id: FileId, pid: u32) -> Result<File, Skip> {
        let mut worst = Skip::NotFound;
        for descriptor in descriptors(pid).map_err(skip)? {
            if descriptor.ino != id.ino {
                continue;
            }
            if let Some(mount) = &descriptor.mount {
                if remote(&mount.kind) {
                    worst = Skip::Remote;
                    continue;
                }
                if mount.dev != id.dev && mount.kind != "overlay" {
                    continue;
                }
            }
            let path = descriptor.path(pid);
            match regular(&path)
                .and_then(|()| open(&path, 0))
                .and_then(|file| self.verify(file, id, Some(pid)))
            {
                Ok(file) => return Ok(file),
                Err(Skip::NotFound) => {}
                Err(other) => worst = other,
            }
        }
        Err(worst)
    }

    fn find_walked(&mut self, id: FileId, now: Time) -> Result<File, Skip> {
        if !self.walked.files.contains_key(&id) {
            let old = self.walked.at.is_none_or(|at| now.since(at) >= FRESH);
            if old {
                self.walk(now);
            }
        }
        let Some(path) = self.walked.files.get(&id).cloned() else {
            return Err(Skip::NotSelected);
        };
        self.follow(&Way::Path(path), id)
    }

    /// Walks the given directories.
    fn walk(&mut self, now: Time) {
        self.walked.at = Some(now);
        self.walked.files.clear();
        let mut todo: Vec<PathBuf> = self.roots.clone();
        // Of which superblock the files of a `stat` device are.
        let mut devices: HashMap<u64, u32> = HashMap::new();
        let mut met: HashSet<(u64, u64)> = HashSet::new();
        while let Some(path) = todo.pop() {
            let Ok(meta) = fs::symlink_metadata(&path) else {
                continue;
            };
            if meta.is_dir() && met.insert((meta.dev(), meta.ino())) {
                let entries = fs::read_dir(&path).into_iter().flatten().flatten();
                todo.extend(entries.map(|entry| entry.path()));
            } else if meta.is_file() && self.walked.files.len() < MOST_WALKED {
                let dev = *devices.entry(meta.dev()).or_insert_with(|| {
                    let mount = open(&path, 0)
                        .ok()
                        .and_then(|file| self.mount_of(&file, None));
                    match mount {
                        Some(mount) if mount.kind == "btrfs" => mount.dev,
                        _ => kernel_dev(meta.dev()),
                    }
                });
                let ino = meta.ino();
                self.walked.files.insert(FileId { dev, ino }, path);
            }
        }
    }

    /// The files that are known: those below the given paths, or those that
    /// processes have open.
    pub fn known(&mut self, now: Time) -> Vec<FileId> {
        self.refresh_mounts(now);
        if !self.roots.is_empty() {
            if self.walked.at.is_none_or(|at| now.since(at) >= FRESH) {
                self.walk(now);
            }
            let mut known: Vec<FileId> = self.walked.files.keys().copied().collect();
            known.sort();
            return known;
        }
        let mut known: HashSet<FileId> = self.ways.keys().copied().collect();
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = process
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            let Some(pid) = pid.filter(|&pid: &u32| pid != std::process::id()) else {
                continue;
            };
            for descriptor in descriptors(pid).unwrap_or_default() {
                let Some(mount) = &descriptor.mount else {
                    continue;
                };
                let id = FileId {
                    dev: mount.dev,
                    ino: descriptor.ino,
                };
                if remote(&mount.kind)
                    || !self.mounts.iter().any(|mount| mount.dev == id.dev)
                    || known.contains(&id)
                    || known.len() >= MOST
                {
                    continue;
                }
                let path = descriptor.path(pid);
                if let Ok(file) = regular(&path).and_then(|()| open(&path, 0)) {
                    known.insert(id);
                    self.remember(id, &file);
                }
            }
        }
        let mut known: Vec<FileId> = known.into_iter().collect();
        known.sort();
        known
    }

    fn refresh_mounts(&mut self, now: Time) {
        if self.mounts_at.is_some_and(|at| now.since(at) < FRESH) {
            return;
        }
        if let Ok(text) = fs::read("/proc/self/mountinfo") {
            self.mounts = parse_mounts(&text);
            self.mounts_at = Some(now);
        }
    }
}

fn open(path: &Path, more: i32) -> Result<File, Skip> {
    let flags = (OPEN_FLAGS & !libc::O_NOFOLLOW) | more;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags);
    match options.open(path) {
        Ok(file) => Ok(file),
        // Only the owner and root may leave the access time alone.
        Err(err) if err.raw_os_error() == Some(libc::EPERM) => options
            .custom_flags(flags & !libc::O_NOATIME)
            .open(path)
            .map_err(skip),
        Err(err) => Err(skip(err)),
    }
}

fn open_dir(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_CLOEXEC)
        .open(path)
}

fn skip(err: io::Error) -> Skip {
    match err.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => Skip::NotPermitted,
        Some(libc::ELOOP | libc::EISDIR | libc::ENXIO) => Skip::NotRegular,
        _ => Skip::NotFound,
    }
}

/// Of a process, as /proc tells of it.
struct Descriptor {
    number: String,
    ino: u64,
    /// None: one that the kernel has made for itself, as for memory files.
    mount: Option<Mount>,
}

impl Descriptor {
    fn path(&self, pid: u32) -> PathBuf {
        format!("/proc/{pid}/fd/{}", self.number).into()
    }
}

fn descriptors(pid: u32) -> io::Result<Vec<Descriptor>> {
    let dir = fs::read_dir(format!("/proc/{pid}/fdinfo"))?;
    let entries: Vec<_> = dir.flatten().take(MOST_FDS).collect();
    let mut found = Vec::new();
    if entries.is_empty() {
        // A thread of the kernel.
        return Ok(found);
    }
    let mounts = parse_mounts(&fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default());
    for entry in entries {
        let info = fs::read_to_string(entry.path()).unwrap_or_default();
        let number = |name: &str| -> Option<u64> {
            let line = info.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse().ok()
        };
        let (Some(ino), Some(mount)) = (number("ino:"), number("mnt_id:")) else {
            continue;
        };
        found.push(Descriptor {
            number: entry.file_name().to_string_lossy().into_owned(),
            ino,
            mount: mounts.iter().find(|known| known.id == mount).cloned(),
        });
    }
    Ok(found)
}

/// Opening a pipe or a device may do something; a file of a local file system
/// is only looked at.
fn regular(path: &Path) -> Result<(), Skip> {
    if fs::metadata(path).map_err(skip)?.is_file() {
        Ok(())
    } else {
        Err(Skip::NotRegular)
    }
}

/// File systems whose calls wait for somebody else.
fn remote(kind: &str) -> bool {
    [
        "fuse", "nfs", "cifs", "smb", "9p", "ceph", "afs", "virtiofs",
    ]
    .iter()
    .any(|prefix| kind.starts_with(prefix))
}

/// "36 35 98:0 /root /point options ... - type source options"
fn parse_mounts(text: &[u8]) -> Vec<Mount> {
    let mut mounts = Vec::new();
    for line in text.split(|&byte| byte == b'\n') {
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let parse = || -> Option<Mount> {
            let text = |index: usize| std::str::from_utf8(words.get(index)?).ok();
            let (major, minor) = text(2)?.split_once(':')?;
            let dash = words.iter().position(|&word| word == b"-")?;
            Some(Mount {
                id: text(0)?.parse().ok()?,
                dev: (major.parse::<u32>().ok()? << 20) | minor.parse::<u32>().ok()?,
                point: PathBuf::from(std::ffi::OsString::from_vec(unescape(words.get(4)?))),
                kind: text(dash + 1)?.to_owned(),
            })
        };
        mounts.extend(parse());
    }
    mounts
}

/// The kernel writes blanks, tabs, newlines and backslashes as \ooo.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, more)) = rest.split_first() {
        let digits = rest.get(1..4).filter(|digits| {
            first == b'\\' && digits.iter().all(|digit| (b'0'..b'8').contains(digit))
        });
        match digits {
            Some(digits) => {
                let value = digits
                    .iter()
                    .fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                out.push(value as u8);
                rest = &rest[4..];
            }
            None => {
                out.push(first);
                rest = more;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_of(path: &Path) -> FileId {
        let meta = fs::metadata(path).unwrap();
        FileId {
            dev: kernel_dev(meta.dev()),
            ino: meta.ino(),
        }
    }

    fn dir(name: &str) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("hugeswap-files-{name}-{}", std::process::id()));
        fs::create_dir_all(dir.join("below")).unwrap();
        dir
    }

    #[test]
    fn mounts_are_parsed() {
        let text = b"36 35 98:1 / /mnt\\040a rw,noatime master:1 - ext4 /dev/root rw\nbad line\n";
        let mounts = parse_mounts(text);
        assert_eq!(mounts.len(), 1);
        assert_eq!(mounts[0].dev, (98 << 20) | 1);
        assert_eq!(mounts[0].point, PathBuf::from("/mnt a"));
        assert_eq!(mounts[0].kind, "ext4");
    }

    #[test]
    fn paths_select() {
        let dir = dir("paths");
        let (inside, outside) = (dir.join("below/in"), dir.join("out"));
        fs::write(&inside, "1").unwrap();
        fs::write(&outside, "2").unwrap();
        let mut files = Files::new(vec![dir.join("below")]);
        assert!(files.open(id_of(&inside), None, Time(1)).is_ok());
        let err = files.open(id_of(&outside), None, Time(1)).unwrap_err();
        assert_eq!(err, Skip::NotSelected);
        assert_eq!(files.known(Time(1)), [id_of(&inside)]);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_replaced_file_is_not_the_file() {
        let dir = dir("replaced");
        let path = dir.join("below/file");
        fs::write(&path, "1").unwrap();
        let id = id_of(&path);
        let mut files = Files::new(vec![dir.clone()]);
        assert!(files.open(id, None, Time(1)).is_ok());
        fs::write(dir.join("new"), "2").unwrap();
        fs::rename(dir.join("new"), &path).unwrap();
        let err = files.open(id, None, Time(2)).unwrap_err();
        assert!(matches!(err, Skip::NotFound | Skip::NotSelected), "{err:?}");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_readers_descriptor_leads_to_a_file_without_a_name() {
        let dir = dir("unnamed");
        let path = dir.join("file");
        fs::write(&path, "1").unwrap();
        let id = id_of(&path);
        let reader = File::open(&path).unwrap();
        fs::remove_dir_all(dir).unwrap();
        let mut files = Files::default();
        let pid = Some(std::process::id());
        assert!(files.open(id, pid, Time(1)).is_ok());
        drop(reader);
        let err = files.open(id, pid, Time(2)).unwrap_err();
        assert_eq!(err, Skip::NotFound, "our own descriptor is not kept");
    }

    #[test]
    fn a_dead_reader_is_no_error() {
        let mut files = Files::default();
        let id = FileId {
            dev: 0xfff << 20,
            ino: 3,
        };
        let err = files.open(id, Some(u32::MAX >> 2), Time(1)).unwrap_err();
        assert_eq!(err, Skip::NotFound);
    }
}
