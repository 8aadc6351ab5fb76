//! From the kernel's name of a file (device and inode) to an open file.
//!
//! In this order: the way that led there last time; the inode's file handle, where the file system
//! has such as can be made from its number; the descriptors of the process that read it, which
//! works inside containers and for files without a name; with `--path` the walked directories, and
//! then nothing but these.
//!
//! No descriptor is kept, so no file is kept alive and no mount busy.

mod descriptors;
mod handles;
mod mounts;
mod open;
mod skip;

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

pub use skip::Skip;

use crate::page::{FileId, Time};
use crate::sys::{self, Handle};
use descriptors::descriptors;
use mounts::{parse_mounts, remote, Mount};
use open::{leased, skip, Named};

/// A way to a file that does not keep it open.
#[derive(Clone, Debug)]
enum Way {
    /// Below the root of that number.
    Below(usize, PathBuf),
    Handle(PathBuf, Handle),
}

#[derive(Debug, Default)]
struct Walked {
    files: HashMap<FileId, Way>,
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
                Err(Skip::Leased) => return Err(Skip::Leased),
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
            match self.find_by_number(&mount, id) {
                Err(Skip::NotFound) => {}
                Err(Skip::NotPermitted) => denied = true,
                other => return other,
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

    /// By handles that are made from the inode's number.
    fn find_by_number(&self, mount: &Mount, id: FileId) -> Result<File, Skip> {
        if !handles::from_number(&mount.kind) {
            return Err(Skip::NotFound);
        }
        let dir = self.mount_point(mount)?;
        let handle = handles::of(&mount.kind, dir.as_fd(), id.ino).ok_or(Skip::NotFound)?;
        self.by_handle(&dir, &handle, id)
    }

    fn by_handle(&self, dir: &File, handle: &Handle, id: FileId) -> Result<File, Skip> {
        let named = handle.open(dir.as_fd(), libc::O_PATH).map(File::from);
        self.verify(Named::new(named)?, id, None)
    }

    /// The root of a mount, if that is what its place leads to.
    fn mount_point(&self, mount: &Mount) -> Result<File, Skip> {
        let named = Named::new(sys::name_of(&mount.point, libc::O_DIRECTORY))?;
        if named.mount != Some(mount.id) {
            // Another is mounted over it, which may not answer.
            return Err(Skip::NotFound);
        }
        named.open_dir().map_err(skip)
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
        match way {
            Way::Below(root, path) => {
                let root = self.roots.get(*root).ok_or(Skip::NotFound)?;
                let root = sys::name_of(root, 0).map_err(skip)?;
                let named = Named::new(sys::name_below(root.as_fd(), path, 0))?;
                self.verify(named, id, None)
            }
            Way::Handle(point, handle) => {
                let on = |mount: &&Mount| mount.dev == id.dev && mount.point == *point;
                let mount = self.mounts.iter().find(on).ok_or(Skip::NotFound)?;
                self.by_handle(&self.mount_point(mount)?, handle, id)
            }
        }
    }

    /// Is it the file that was meant, and may it be opened? Paths and numbers of inodes are used
    /// again.
    fn verify(&self, named: Named, id: FileId, pid: Option<u32>) -> Result<File, Skip> {
        let mount = named.mount.and_then(|mount| self.mount(mount, pid));
        if mount.as_ref().is_some_and(|mount| remote(&mount.kind)) {
            return Err(Skip::Remote);
        }
        if !named.what.regular {
            return Err(Skip::NotRegular);
        }
        if named.what.ino != id.ino {
            return Err(Skip::NotFound);
        }
        match mount {
            // btrfs gives each subvolume a device of its own; an overlay shows
            // its own device and the inode of the file below.
            Some(mount) => {
                let same = named.what.dev == id.dev || mount.dev == id.dev;
                if !same && mount.kind != "overlay" {
                    return Err(Skip::NotFound);
                }
            }
            // A mount that nobody shows us. On a disk it may be; else only the kernel's own, of
            // files in memory, is known to answer.
            None => {
                let local = id.dev >> 20 != 0 || Some(id.dev) == memory_dev();
                if named.what.dev != id.dev || !local {
                    return Err(Skip::NotFound);
                }
            }
        }
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        if leased(&locks, id) {
            return Err(Skip::Leased);
        }
        named.open()
    }

    /// A mount by its number: in our table, or in that of the process whose descriptor led there.
    fn mount(&self, id: u64, pid: Option<u32>) -> Option<Mount> {
        let by_id = |mounts: &[Mount]| mounts.iter().find(|mount| mount.id == id).cloned();
        by_id(&self.mounts).or_else(|| {
            let text = fs::read(format!("/proc/{}/mountinfo", pid?)).ok()?;
            by_id(&parse_mounts(&text))
        })
    }

    /// Looks through the descriptors of a process.
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
            let named = Named::new(sys::name_of_descriptor(&descriptor.path(pid)));
            match named.and_then(|named| self.verify(named, id, Some(pid))) {
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
        let Some(way) = self.walked.files.get(&id).cloned() else {
            return Err(Skip::NotSelected);
        };
        self.follow(&way, id)
    }

    /// Walks the given directories, by no symbolic link and never out of them.
    fn walk(&mut self, now: Time) {
        self.walked.at = Some(now);
        self.walked.files.clear();
        for number in 0..self.roots.len() {
            let root = sys::name_of(&self.roots[number], 0);
            let Ok(root) = root else { continue };
            let mut todo = vec![PathBuf::from(".")];
            let mut met: HashSet<(u32, u64)> = HashSet::new();
            while let Some(path) = todo.pop() {
                let Ok(named) = Named::new(sys::name_below(root.as_fd(), &path, libc::O_NOFOLLOW))
                else {
                    continue;
                };
                let mount = named.mount.and_then(|mount| self.mount(mount, None));
                let Some(mount) = mount.filter(|mount| !remote(&mount.kind)) else {
                    continue;
                };
                let what = named.what;
                if what.regular && self.walked.files.len() < MOST_WALKED {
                    // Of a subvolume of btrfs the file system's device is what the events name.
                    let dev = if mount.kind == "btrfs" {
                        mount.dev
                    } else {
                        what.dev
                    };
                    let way = Way::Below(number, path);
                    self.walked.files.insert(FileId { dev, ino: what.ino }, way);
                } else if what.directory && met.insert((what.dev, what.ino)) {
                    let entries = fs::read_dir(named.entries())
                        .into_iter()
                        .flatten()
                        .flatten();
                    todo.extend(entries.map(|entry| path.join(entry.file_name())));
                }
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
                let named = Named::new(sys::name_of_descriptor(&descriptor.path(pid)));
                if let Ok(named) = named {
                    if named.what.regular && named.what.ino == id.ino {
                        known.insert(id);
                        self.remember(id, named.file());
                    }
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

/// The device of files in memory that have no mount: memfd, System V shared memory.
fn memory_dev() -> Option<u32> {
    let file = sys::memory_file(0).ok()?;
    Some(sys::what(file.as_fd()).ok()?.dev)
}

#[cfg(test)]
mod tests;
