//! The swap devices of a run.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use hugeswap::control::{self, MAX_DEVICES, SEGMENT_BYTES};
use hugeswap::device::file::{FileDevice, Options};
use hugeswap::device::Device;
use hugeswap::mm::PMD_SIZE;

use super::Failure;
use crate::os;
use crate::run_args::RunArgs;
use crate::size::Size;
use crate::swap_spec::{default_directory, SwapSpec, Target};

/// What kind of device a process opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    File = control::FILE,
    Ram = control::RAM,
    /// Memory that was filled here, on the supervisor's account: discarding must keep it.
    FilledRam = control::FILLED_RAM,
}

/// An open device, made at its full length.
pub struct Opened {
    pub fd: OwnedFd,
    pub max_bytes: u64,
    pub kind: Kind,
    pub description: String,
    /// What `hugeswap swapoff` calls it: 'ram', or the absolute path that --swap named.
    pub name: String,
}

/// A device of which at least one segment can be used.
fn whole_segments(bytes: u64) -> u64 {
    bytes / SEGMENT_BYTES * SEGMENT_BYTES
}

pub fn open_all(args: &RunArgs) -> Result<Vec<Opened>, Failure> {
    let specs = if args.swap.is_empty() {
        let dir = default_directory().map_err(|e| Failure::ours(e.to_string()))?;
        vec![SwapSpec::Path(dir)]
    } else {
        args.swap.clone()
    };
    if specs.len() > MAX_DEVICES {
        return Err(Failure::ours(format!(
            "{} swap devices were given; {MAX_DEVICES} are possible",
            specs.len()
        )));
    }
    let mut left = args.swap_size.map(|s| s.bytes());
    if left.is_some_and(|l| whole_segments(l) == 0) {
        return Err(Failure::ours(format!(
            "--swap-size is less than {}, the piece in which swap is handed out: give more",
            Size::from_bytes(SEGMENT_BYTES)
        )));
    }
    if let Some(twice) = named_twice(&specs) {
        return Err(Failure::ours(format!(
            "'{twice}' is given twice with --swap: name each place once"
        )));
    }
    let mut opened = Vec::new();
    for spec in &specs {
        let d = open(spec, left, args.swap_size.is_some())?;
        if let Some(l) = &mut left {
            *l = l.saturating_sub(d.max_bytes);
        }
        if d.max_bytes > 0 {
            opened.push(d);
        }
    }
    Ok(opened)
}

/// The same place under whatever names.
fn named_twice(specs: &[SwapSpec]) -> Option<&SwapSpec> {
    let place = |spec: &SwapSpec| match spec {
        SwapSpec::Ram => RAM.to_owned(),
        SwapSpec::Path(path) => absolute(path),
    };
    let at = (1..specs.len()).find(|&i| specs[..i].iter().any(|s| place(s) == place(&specs[i])));
    at.map(|i| &specs[i])
}

fn open(spec: &SwapSpec, left: Option<u64>, filled: bool) -> Result<Opened, Failure> {
    let target = match spec {
        // A file that is not there yet will be made; below /dev it would be a mistyped device, in memory.
        SwapSpec::Path(p)
            if !p.exists()
                && p.parent().is_some_and(is_dir_or_here)
                && p.parent() != Some(Path::new("/dev")) =>
        {
            Target::File(p.clone())
        }
        s => s.resolve().map_err(|e| Failure::ours(e.to_string()))?,
    };
    match target {
        Target::Ram => open_ram(left, filled),
        Target::Directory(p) | Target::File(p) => {
            let dir = if p.is_dir() {
                &p
            } else {
                p.parent().filter(|d| is_dir_or_here(d)).unwrap_or(&p)
            };
            let dir = if dir.as_os_str().is_empty() {
                Path::new(".")
            } else {
                dir
            };
            let free = os::free_bytes(dir).unwrap_or(u64::MAX);
            // What the disk has, less a tenth that is left to others, or what was asked for.
            let room = free - free / 10;
            let max = left.map_or(room, |l| l.min(room));
            let opened = open_file(&p, whole_segments(max), free)?;
            if matches!(os::is_memory_backed(dir), Ok(true)) {
                eprintln!(
                    "hugeswap: warning: '{}' is memory: swapping out to it frees nothing",
                    p.display()
                );
            }
            Ok(opened)
        }
        Target::BlockDevice(p) => open_block(&p, left),
    }
}

fn is_dir_or_here(p: &Path) -> bool {
    p.as_os_str().is_empty() || p.is_dir()
}

fn open_file(path: &Path, max: u64, free: u64) -> Result<Opened, Failure> {
    if max == 0 {
        return Err(Failure::ours(format!(
            "there is no room for swap at '{}': {} are free; name another place with --swap",
            path.display(),
            Size::from_bytes(free)
        )));
    }
    let device =
        FileDevice::open(path, &Options::new(max)).map_err(|e| Failure::ours(e.to_string()))?;
    let fd = device
        .as_fd()
        .try_clone_to_owned()
        .map_err(|e| Failure::ours(format!("can't keep the swap file open: {e}")))?;
    // At its full length from the start, as a hole; processes reserve what they use.
    File::from(
        fd.try_clone()
            .map_err(|e| Failure::ours(format!("can't keep the swap file open: {e}")))?,
    )
    .set_len(max)
    .map_err(|e| {
        Failure::ours(format!(
            "can't make a swap file of {} at '{}': {e}; give a smaller --swap-size",
            Size::from_bytes(max),
            path.display()
        ))
    })?;
    Ok(Opened {
        description: device.describe(),
        name: absolute(path),
        fd,
        max_bytes: max,
        kind: Kind::File,
    })
}

fn open_block(path: &Path, left: Option<u64>) -> Result<Opened, Failure> {
    let device = FileDevice::open(path, &Options::new(left.unwrap_or(u64::MAX)))
        .map_err(|e| Failure::ours(e.to_string()))?;
    let max = whole_segments(device.max_bytes().min(device.capacity()));
    if max == 0 {
        return Err(Failure::ours(format!(
            "'{}' is too small for swap",
            path.display()
        )));
    }
    Ok(Opened {
        description: device.describe(),
        name: absolute(path),
        fd: device
            .as_fd()
            .try_clone_to_owned()
            .map_err(|e| Failure::ours(format!("can't keep the device open: {e}")))?,
        max_bytes: max,
        kind: Kind::File,
    })
}

/// Memory in place of a disk. With a size it is filled here, so that it counts for whoever
/// started hugeswap and not for the program; without, it comes as it is used.
fn open_ram(left: Option<u64>, filled: bool) -> Result<Opened, Failure> {
    let max = match left {
        Some(l) => l,
        None => os::available_memory().unwrap_or(1 << 30) / 2,
    };
    let max = whole_segments(max).max(SEGMENT_BYTES);
    let file = os::memory_file("hugeswap-ram")
        .map_err(|e| Failure::ours(format!("can't make memory for swap: {e}")))?;
    file.set_len(max)
        .map_err(|e| Failure::ours(format!("can't make memory for swap: {e}")))?;
    if filled {
        os::allocate(&file, max).map_err(|e| {
            Failure::ours(format!(
                "{} of memory for swap are not to be had ({e}): give a smaller --swap-size",
                Size::from_bytes(max)
            ))
        })?;
    }
    Ok(Opened {
        description: format!("ram ({})", Size::from_bytes(max)),
        name: RAM.to_owned(),
        fd: OwnedFd::from(file),
        max_bytes: max,
        kind: if filled { Kind::FilledRam } else { Kind::Ram },
    })
}

/// The name of memory as a device.
pub const RAM: &str = "ram";

/// A path as others can compare it.
pub fn absolute(path: &Path) -> String {
    let path = path.canonicalize().or_else(|_| std::path::absolute(path));
    path.map_or_else(|_| String::new(), |p| p.display().to_string())
}

/// Nobody needs anything that the device holds, not even memory that was to be kept.
pub fn empty(d: &Opened) {
    let _ = os::punch_hole(d.fd.as_fd(), 0, d.max_bytes);
}

/// Nobody needs what the clusters hold.
pub fn give_back(d: &Opened, clusters: Range<usize>) {
    if d.kind == Kind::FilledRam {
        return;
    }
    let bytes = |clusters: usize| (clusters * PMD_SIZE) as u64;
    let _ = os::punch_hole(d.fd.as_fd(), bytes(clusters.start), bytes(clusters.len()));
}
