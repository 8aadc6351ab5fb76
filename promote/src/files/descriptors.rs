//! The descriptors of a process, without asking their file systems anything: some answer when they
//! like.

use std::fs;
use std::io;
use std::path::PathBuf;

use super::mounts::{parse_mounts, Mount};

/// Descriptors of a process that are looked at.
const MOST_FDS: usize = 1 << 14;

/// Of a process, as /proc tells of it.
pub struct Descriptor {
    pub number: String,
    pub ino: u64,
    /// None: one that the kernel has made for itself, as for memory files.
    pub mount: Option<Mount>,
}

impl Descriptor {
    pub fn path(&self, pid: u32) -> PathBuf {
        format!("/proc/{pid}/fd/{}", self.number).into()
    }
}

pub fn descriptors(pid: u32) -> io::Result<Vec<Descriptor>> {
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
