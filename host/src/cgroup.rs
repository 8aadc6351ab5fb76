//! Memory control groups, version 1 or 2, whichever is mounted.
//!
//! A [`Group`] is a child of the caller's own group, so that limits which are
//! in force stay in force. It is removed, with whoever is inside, when dropped.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::group_end::kill_all;
use crate::undo::{Guard, Undo};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Version::V1 => "v1",
            Version::V2 => "v2",
        })
    }
}

#[derive(Debug)]
pub enum Error {
    /// No memory controller, neither v1 nor v2.
    NotMounted,
    /// v2: neither the own group nor one above it gives its children limits.
    NotDelegated(PathBuf),
    Io {
        what: &'static str,
        path: PathBuf,
        err: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotMounted => write!(
                f,
                "no memory control group is mounted: mount one with \
                 'mount -t cgroup2 none /sys/fs/cgroup', or start the kernel without cgroup_disable=memory"
            ),
            Error::NotDelegated(path) => write!(
                f,
                "the control group {} may not limit its children's memory: start this under \
                 'systemd-run --scope -p Delegate=yes', or as root",
                path.display()
            ),
            Error::Io { what, path, err } => {
                write!(f, "can't {what} {}: {err}", path.display())?;
                if err.kind() == io::ErrorKind::PermissionDenied {
                    write!(f, "; run this as root, or under 'systemd-run --scope -p Delegate=yes'")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for Error {}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |err| Error::Io { what, path, err }
}

/// Swap that a group may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    None,
    Unlimited,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub memory: u64,
    pub swap: Swap,
    /// v1 only: v2 has no such setting per group.
    pub swappiness: Option<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    /// `None` on v2 before Linux 5.19.
    pub peak: Option<u64>,
    /// How often the limit was hit. v1 counts that only where swap is allowed:
    /// otherwise the limit of memory and swap together is hit first, and recent
    /// kernels don't count those.
    pub limit_hits: u64,
    pub oom_kills: u64,
}

/// Where this process is in the tree of memory groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    pub version: Version,
    /// Where the tree is mounted: no parent is above this.
    mount: PathBuf,
    pub path: PathBuf,
}

/// What a memory group, or one above it, leaves to a program that starts in it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRoom {
    pub limit: u64,
    /// The limit, less what is in use and can't be dropped.
    pub left: u64,
}

impl Own {
    pub fn find() -> Result<Own, Error> {
        let read = |path: &str| fs::read_to_string(path).map_err(io_error("read", Path::new(path)));
        let own = own_in(
            &read("/proc/self/mountinfo")?,
            &read("/proc/self/cgroup")?,
            |mount| {
                fs::read_to_string(mount.join("cgroup.controllers"))
                    .is_ok_and(|list| has_word(&list, "memory"))
            },
        );
        own.ok_or(Error::NotMounted)
    }

    /// This group, or that above it whose limit is the smallest in force here, with that; `None` without a limit.
    pub fn limiting(&self) -> Option<(Own, u64)> {
        let (limit, path) = self
            .limits()
            // Of two that are the same the outer one holds for more.
            .min_by_key(|(limit, dir)| (*limit, dir.as_os_str().len()))?;
        let group = Own {
            path: path.to_owned(),
            ..self.clone()
        };
        Some((group, limit))
    }

    /// The smallest limit in force here.
    pub fn limit(&self) -> Option<u64> {
        self.limiting().map(|(_, limit)| limit)
    }

    /// The limits in force here, and whose they are.
    fn limits(&self) -> impl Iterator<Item = (u64, &Path)> {
        let file = match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        self.path
            .ancestors()
            .take_while(|dir| dir.starts_with(&self.mount))
            .filter_map(move |dir| Some((read_number(&dir.join(file))?, dir)))
            // v1 writes "none" as the largest number of whole pages.
            .filter(|(limit, _)| *limit < 1 << 60)
    }

    /// What this group and those above it leave to one more program; `None` without a limit.
    pub fn room(&self) -> Option<GroupRoom> {
        let (usage, cache) = match self.version {
            Version::V1 => ("memory.usage_in_bytes", "total_inactive_file"),
            Version::V2 => ("memory.current", "inactive_file"),
        };
        self.limits()
            .map(|(limit, dir)| {
                let used = read_number(&dir.join(usage)).unwrap_or(0);
                let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
                let droppable = entry_of(&stat, cache).unwrap_or(0);
                let left = limit.saturating_sub(used.saturating_sub(droppable));
                GroupRoom { limit, left }
            })
            .min_by_key(|room| room.left)
    }

    /// Who is in the group and in those below it.
    pub fn processes(&self) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        let mut open = vec![self.path.clone()];
        while let Some(dir) = open.pop() {
            let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            found.extend(text.lines().filter_map(|l| l.parse::<u32>().ok()));
            let below = fs::read_dir(&dir).into_iter().flatten().flatten();
            open.extend(below.map(|e| e.path()).filter(|p| p.is_dir()));
        }
        found
    }

    /// What the group is charged for.
    pub fn charged(&self) -> Option<Charged> {
        let (usage, prefix, cache) = match self.version {
            Version::V1 => ("memory.usage_in_bytes", "total_", "total_cache"),
            Version::V2 => ("memory.current", "", "file"),
        };
        let used = read_number(&self.path.join(usage))?;
        let stat = fs::read_to_string(self.path.join("memory.stat")).ok()?;
        let entry = |name: &str| entry_of(&stat, name).unwrap_or(0);
        let pages = entry(cache).saturating_sub(entry(&format!("{prefix}shmem")));
        // The kernel's lists of pages that it can drop have, beside those of files, memory that was freed lazily.
        let lists = ["inactive_file", "active_file"].map(|list| entry(&format!("{prefix}{list}")));
        let files = pages.max(lists.iter().sum());
        let of_files = |names: [&str; 2]| names.iter().map(|name| entry(name)).sum();
        Some(Charged {
            kept: used.saturating_sub(files),
            lazily_freed: files - pages,
            refaults: entry(&format!("{prefix}workingset_refault_file")),
            unwritten: match self.version {
                Version::V1 => of_files(["total_dirty", "total_writeback"]),
                Version::V2 => of_files(["file_dirty", "file_writeback"]),
            },
        })
    }

    /// The directory in which a child with a limit can be made.
    fn parent(&self) -> Result<PathBuf, Error> {
        if self.version == Version::V1 {
            return Ok(self.path.clone());
        }
        // A v2 group with processes in it can't hand its memory controller
        // down, unless it is the root; then a sibling has to do.
        let ancestors = self
            .path
            .ancestors()
            .take_while(|dir| dir.starts_with(&self.mount));
        for dir in ancestors {
            let control = dir.join("cgroup.subtree_control");
            let hands_down =
                || fs::read_to_string(&control).is_ok_and(|list| has_word(&list, "memory"));
            if hands_down() || fs::write(&control, "+memory").is_ok() {
                return Ok(dir.to_owned());
            }
        }
        Err(Error::NotDelegated(self.path.clone()))
    }
}

fn has_word(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|other| other == word)
}

/// What a group is charged for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Charged {
    /// Bytes, of all but pages of files and what was freed lazily (`MADV_FREE`).
    pub kept: u64,
    /// Bytes that were freed lazily and are still there.
    pub lazily_freed: u64,
    /// Of the pages of files, bytes that have to be written before they can be dropped.
    pub unwritten: u64,
    /// Pages of files that were read again, since the group was made.
    pub refaults: u64,
}

/// `mountinfo` and `groups` as in /proc/self; `has_memory` tells whether the
/// v2 tree mounted there controls memory.
fn own_in(mountinfo: &str, groups: &str, has_memory: impl Fn(&Path) -> bool) -> Option<Own> {
    for line in mountinfo.lines() {
        let Some((mount, file_system)) = line.split_once(" - ") else {
            continue;
        };
        let mut mount = mount.split(' ').skip(3);
        let (Some(root), Some(point)) = (mount.next(), mount.next()) else {
            continue;
        };
        let mut file_system = file_system.split(' ');
        let kind = file_system.next();
        let options = file_system.nth(1).unwrap_or("");
        let point = PathBuf::from(point);
        let version = match kind {
            Some("cgroup") if options.split(',').any(|o| o == "memory") => Version::V1,
            Some("cgroup2") if has_memory(&point) => Version::V2,
            _ => continue,
        };
        let path = groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let controllers = parts.next()?;
            let wanted = match version {
                Version::V1 => controllers.split(',').any(|c| c == "memory"),
                Version::V2 => controllers.is_empty(),
            };
            wanted.then(|| parts.next()).flatten()
        })?;
        // In a container the mount shows a part of the tree; the path may be
        // given from the tree's root or from the part's.
        let path = Path::new(path);
        let inside = path
            .strip_prefix(root)
            .or_else(|_| path.strip_prefix("/"))
            .unwrap_or(Path::new(""));
        let full = point.join(inside);
        let path = if full.is_dir() { full } else { point.clone() };
        return Some(Own {
            version,
            mount: point,
            path,
        });
    }
    None
}

/// A group of our own, removed on drop.
#[derive(Debug)]
pub struct Group {
    version: Version,
    path: PathBuf,
    _guard: Guard,
}

impl Group {
    /// `name` is made unique by the process id.
    pub fn create(name: &str, limits: &Limits) -> Result<Group, Error> {
        let own = Own::find()?;
        let path = own.parent()?.join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&path).map_err(io_error("create the group", &path))?;
        let mut guard = Guard::new();
        guard.push(Undo::RemoveGroup(path.clone()));
        let group = Group {
            version: own.version,
            path,
            _guard: guard,
        };
        group.limit(limits)?;
        Ok(group)
    }

    /// Another limit of memory, where swap may be used. The kernel makes room first; `EBUSY` where it can't (version 1).
    pub fn set_memory(&self, bytes: u64) -> Result<(), Error> {
        let file = match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        self.set(file, &bytes.to_string())
    }

    fn limit(&self, limits: &Limits) -> Result<(), Error> {
        let memory = limits.memory.to_string();
        self.set_memory(limits.memory)?;
        match self.version {
            Version::V1 => {
                // Memory and swap together; never below the former. Absent
                // where the kernel does not count swap.
                let none = limits.swap == Swap::None;
                if none && self.has("memory.memsw.limit_in_bytes") {
                    self.set("memory.memsw.limit_in_bytes", &memory)?;
                }
                let swappiness = if none { Some(0) } else { limits.swappiness };
                if let Some(value) = swappiness {
                    self.set("memory.swappiness", &value.to_string())?;
                }
            }
            Version::V2 => {
                if self.has("memory.swap.max") {
                    let swap = if limits.swap == Swap::None {
                        "0"
                    } else {
                        "max"
                    };
                    self.set("memory.swap.max", swap)?;
                }
            }
        }
        Ok(())
    }

    fn has(&self, file: &str) -> bool {
        self.path.join(file).exists()
    }

    fn set(&self, file: &str, value: &str) -> Result<(), Error> {
        let path = self.path.join(file);
        fs::write(&path, value).map_err(io_error("set", &path))
    }

    pub fn version(&self) -> Version {
        self.version
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// For `os::spawn_inside`.
    pub fn procs(&self) -> Result<OwnedFd, Error> {
        let path = self.path.join("cgroup.procs");
        fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .map(OwnedFd::from)
            .map_err(io_error("open", &path))
    }

    pub fn kill(&self) -> io::Result<()> {
        kill_all(&self.path)
    }

    /// Bytes of anonymous memory inside, now.
    pub fn anonymous(&self) -> u64 {
        self.stat("total_rss", "anon")
    }

    /// Faults in here that the kernel had to read for.
    pub fn major_faults(&self) -> u64 {
        self.stat("total_pgmajfault", "pgmajfault")
    }

    fn stat(&self, v1: &str, v2: &str) -> u64 {
        let text = fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default();
        let name = match self.version {
            Version::V1 => v1,
            Version::V2 => v2,
        };
        entry_of(&text, name).unwrap_or(0)
    }

    pub fn usage(&self) -> Usage {
        let number = |file: &str| read_number(&self.path.join(file));
        let entry = |file: &str, key: &str| {
            let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
            entry_of(&text, key).unwrap_or(0)
        };
        match self.version {
            Version::V1 => Usage {
                bytes: number("memory.usage_in_bytes").unwrap_or(0),
                peak: number("memory.max_usage_in_bytes"),
                limit_hits: number("memory.failcnt").unwrap_or(0),
                oom_kills: entry("memory.oom_control", "oom_kill"),
            },
            Version::V2 => Usage {
                bytes: number("memory.current").unwrap_or(0),
                peak: number("memory.peak"),
                limit_hits: entry("memory.events", "max"),
                oom_kills: entry("memory.events", "oom_kill"),
            },
        }
    }
}

fn entry_of(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok()).flatten()
    })
}

/// `None` for "max" and for what is not there.
fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
30 23 0:26 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
31 23 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
    const V2: &str =
        "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";

    #[test]
    fn finds_v1() {
        let own = own_in(V1, "4:memory:/\n1:cpu:/elsewhere\n0::/", |_| false).unwrap();
        assert_eq!(own.version, Version::V1);
        assert_eq!(own.mount, Path::new("/sys/fs/cgroup/memory"));
    }

    #[test]
    fn finds_v2_only_with_memory() {
        let groups = "0::/user.slice/x";
        let own = own_in(V2, groups, |_| true).unwrap();
        assert_eq!(own.version, Version::V2);
        assert_eq!(own_in(V2, groups, |_| false), None);
        assert_eq!(own_in("", groups, |_| true), None);
    }

    #[test]
    fn the_smallest_limit_above_holds() {
        let mount = std::env::temp_dir().join(format!("limits-{}", std::process::id()));
        let path = mount.join("job/step/task");
        fs::create_dir_all(&path).unwrap();
        let own = Own {
            version: Version::V1,
            mount: mount.clone(),
            path,
        };
        let write = |dir: &str, limit: u64| {
            let file = mount.join(dir).join("memory.limit_in_bytes");
            fs::write(file, limit.to_string()).unwrap();
        };
        for dir in ["", "job", "job/step", "job/step/task"] {
            write(dir, 9223372036854771712);
        }
        assert_eq!(own.limiting(), None);
        write("job", 5000);
        write("job/step", 4000);
        let limiting = || own.limiting().map(|(group, limit)| (group.path, limit));
        assert_eq!(limiting(), Some((mount.join("job/step"), 4000)));
        // Of two that are the same the outer one holds for more.
        write("job", 4000);
        assert_eq!(limiting(), Some((mount.join("job"), 4000)));
        // It is asked anew each time.
        write("job/step/task", 3000);
        assert_eq!(limiting(), Some((mount.join("job/step/task"), 3000)));
        fs::remove_dir_all(&mount).unwrap();
    }

    #[test]
    fn hybrid_takes_the_tree_that_has_memory() {
        let both = format!("{V2}\n{V1}");
        let own = own_in(&both, "4:memory:/\n0::/", |_| false).unwrap();
        assert_eq!(own.version, Version::V1);
    }

    #[test]
    fn entries() {
        let text = "low 0\nmax 12\noom 3\noom_kill 1\n";
        assert_eq!(entry_of(text, "max"), Some(12));
        assert_eq!(entry_of(text, "oom_kill"), Some(1));
        assert_eq!(entry_of(text, "kill"), None);
    }
}
