//! The swap devices of a run.

use std::cmp::Reverse;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use hugeswap_control::{self as control, Compress, MAX_DEVICES, SEGMENT_BYTES};
use hugeswap_device::file::{FileDevice, Options};
use hugeswap_device::Device;
use hugeswap_mm::PMD_SIZE;
use hugeswap_sys::probe::{self, Limit};

use super::failure::Failure;
use super::signals;
use crate::run_args::RunArgs;
use hugeswap_host::in_use::wait_until_free;
use hugeswap_host::os;
use hugeswap_host::size::Size;
use hugeswap_host::sizing;
use hugeswap_host::swap_spec::{default_directory, Place, SwapSpec, Target, Where};

/// The devices of a run, the one that is used first first.
pub struct Places {
    pub devices: Vec<Opened>,
    /// What may go to those together that share it.
    pub total: Total,
}

/// The most that may be swapped out to the devices that share it, wherever there is room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Total {
    /// As the user gave it: so many bytes of the devices are used.
    Given(u64),
    /// As it was chosen here: so many bytes are in swap. Several processes take a little more of the disk than
    /// what they have there.
    Chosen(u64),
    /// Each device has a size of its own.
    None,
}

impl Total {
    pub fn bytes(self) -> u64 {
        match self {
            Total::Given(bytes) | Total::Chosen(bytes) => bytes,
            Total::None => u64::MAX,
        }
    }

    /// What a device is made for.
    fn device(self) -> u64 {
        match self {
            Total::Given(bytes) => bytes,
            Total::Chosen(bytes) => bytes.saturating_mul(2),
            Total::None => u64::MAX,
        }
    }
}

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
    /// It is under the total of all.
    pub shares: bool,
    pub kind: Kind,
    /// Devices of one rank are used in turn, a lower one before a higher one.
    pub rank: u32,
    pub description: String,
    /// What `hugeswap swapoff` calls it: 'ram', or the absolute path that --swap named.
    pub name: String,
    /// What its size follows from, if it was chosen here.
    pub why: Option<String>,
    /// The length that a file had before, if it was made longer: it gets it back.
    shorter: Option<u64>,
}

impl Opened {
    /// The file is as long as it was before; nobody uses it any more.
    pub fn give_length_back(&self) {
        if let Some((len, fd)) = self.shorter.zip(self.fd.try_clone().ok()) {
            // It is only longer than it was if this fails.
            let _ = File::from(fd).set_len(len);
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.give_length_back();
    }
}

/// A device of which at least one segment can be used.
fn whole_segments(bytes: u64) -> u64 {
    bytes / SEGMENT_BYTES * SEGMENT_BYTES
}

/// A place, and what is known of it before anything is opened.
struct Wanted {
    place: Place,
    target: Target,
    /// The most that can go there.
    room: u64,
    /// Where that is too little: why.
    lacks: String,
    /// Nothing was said of its size.
    is_free: bool,
    /// What its room follows from, if that was chosen here.
    why: Option<String>,
}

/// The places that were given, or the one that is taken where none was, the first to be used first.
fn places_of(args: &RunArgs) -> Result<Vec<Place>, Failure> {
    let place = |w: &Where| match w {
        Where::Nowhere => None,
        Where::Place(place) => Some(place.clone()),
    };
    let mut places: Vec<Place> = args.swap.iter().filter_map(place).collect();
    if places.is_empty() {
        let dir = default_directory().map_err(|e| Failure::ours(e.to_string()))?;
        places.push(Place::plain(SwapSpec::Path(dir)));
    }
    if places.len() > MAX_DEVICES {
        return Err(Failure::usage(format!(
            "{} swap devices were given; {MAX_DEVICES} are possible",
            places.len()
        )));
    }
    let sizes = places
        .iter()
        .filter_map(|p| p.size.map(|s| ("size=", s.bytes())));
    let sizes = sizes.chain(args.swap_size.map(|s| ("--swap-size", s.bytes())));
    if let Some((what, _)) = { sizes }.find(|&(_, bytes)| whole_segments(bytes) == 0) {
        return Err(Failure::usage(format!(
            "{what} is less than {}, the piece in which swap is handed out: give more",
            Size::from_bytes(SEGMENT_BYTES)
        )));
    }
    if let Some(twice) = named_twice(&places) {
        return Err(Failure::usage(format!(
            "'{twice}' is given twice with --swap: name each place once"
        )));
    }
    places.sort_by_key(order);
    Ok(places)
}

/// `memory`: what the run has of it.
pub fn open_all(args: &RunArgs, memory: u64) -> Result<Places, Failure> {
    if args.swaps_nowhere() {
        return nowhere(args);
    }
    let places = places_of(args)?;
    let ranks = ranks(&places);
    let mut wanted = Vec::new();
    for place in &places {
        let target = place
            .spec
            .find()
            .map_err(|e| Failure::ours(e.to_string()))?;
        wanted.push(look(args, memory, place.clone(), target)?);
    }
    for i in 0..wanted.len() {
        let neighbours = wanted.iter().filter(|w| shares_disk(w, &wanted[i])).count();
        wanted[i].room /= neighbours.max(1) as u64;
        if whole_segments(wanted[i].room) == 0 {
            return Err(Failure::ours(wanted[i].lacks.clone()));
        }
    }
    let shares = |w: &&Wanted| args.swap_size.is_some() || w.is_free && !is_block(&w.target);
    let total = match args.swap_size {
        Some(size) => Total::Given(size.bytes()),
        None if wanted.iter().any(|w| shares(&w)) => Total::Chosen(sizing::swap_for(memory)),
        None => Total::None,
    };
    let mut devices = Vec::new();
    for (w, rank) in wanted.iter().zip(ranks) {
        let shares = shares(&w);
        let most = if shares { total.device() } else { u64::MAX };
        let is_given = args.swap_size.is_some() && wanted.len() == 1 || w.place.size.is_some();
        let mut device = open(args, w, whole_segments(w.room.min(most)), is_given)?;
        device.why.clone_from(&w.why);
        device.shares = shares;
        device.rank = rank;
        devices.push(device);
    }
    Ok(Places { devices, total })
}

/// The highest priority first; of equals those that were given one.
fn order(place: &Place) -> impl Ord {
    let priority = place.priority.unwrap_or(0);
    (Reverse(priority), place.priority.is_none())
}

/// Places that were given the same priority have one rank, and all others one of their own.
fn ranks(sorted: &[Place]) -> Vec<u32> {
    let mut ranks = Vec::new();
    for (i, place) in sorted.iter().enumerate() {
        let before = i
            .checked_sub(1)
            .map(|before| (&sorted[before], ranks[before]));
        ranks.push(match before {
            None => 0,
            Some((p, rank)) if p.priority.is_some() && p.priority == place.priority => rank,
            Some((_, rank)) => rank + 1,
        });
    }
    ranks
}

/// No device: what leaves the program stays in compressed memory.
fn nowhere(args: &RunArgs) -> Result<Places, Failure> {
    let says = |message: &str| Err(Failure::usage(message.to_owned()));
    if args.swap.len() > 1 {
        return says("'none' is given beside other places with --swap: give it alone");
    }
    if args.swap_size.is_some() {
        return says(
            "--swap-size says how much goes to --swap, which is 'none': leave one of them out",
        );
    }
    if args.compress() == Compress::Off {
        return says(
            "with --swap none and --compress off nothing can leave memory: leave one of them out",
        );
    }
    Ok(Places {
        devices: Vec::new(),
        total: Total::None,
    })
}

/// The devices in words, as they go on after 'swap'.
pub fn describe(devices: &[Opened], total: Total) -> String {
    if devices.is_empty() {
        return "none, what leaves stays in compressed memory".into();
    }
    let each = devices.iter().map(|d| {
        let why = d.why.iter().map(|why| format!(" ({why})"));
        let most = if d.shares { total.bytes() } else { u64::MAX };
        let size = Size::from_bytes(d.max_bytes.min(most));
        format!("{} up to {size}{}", d.description, why.collect::<String>())
    });
    format!("on {}", each.collect::<Vec<_>>().join(", "))
}

/// The same place under whatever names.
fn named_twice(places: &[Place]) -> Option<&SwapSpec> {
    let name = |place: &Place| match &place.spec {
        SwapSpec::Ram => RAM.to_owned(),
        SwapSpec::Path(path) => absolute(path),
    };
    let is_there = |i: usize| places[..i].iter().any(|p| name(p) == name(&places[i]));
    let at = (1..places.len()).find(|&i| is_there(i));
    at.map(|i| &places[i].spec)
}

/// The directory of a file, or the directory itself.
fn directory(path: &Path) -> &Path {
    if path.is_dir() {
        return path;
    }
    match path.parent().filter(|d| is_dir_or_here(d)) {
        Some(dir) if dir.as_os_str().is_empty() => Path::new("."),
        Some(dir) => dir,
        None => path,
    }
}

/// Two directories or files on one file system share its room, where no size says otherwise.
fn shares_disk(a: &Wanted, b: &Wanted) -> bool {
    let device = |w: &Wanted| match &w.target {
        Target::Directory(p) | Target::File(p) if w.place.size.is_none() => {
            std::fs::metadata(directory(p)).ok().map(|m| m.dev())
        }
        _ => None,
    };
    device(a).is_some() && device(a) == device(b)
}

fn look(args: &RunArgs, memory: u64, place: Place, target: Target) -> Result<Wanted, Failure> {
    let own = place.size.map(|s| s.bytes());
    let is_free = own.is_none() && args.swap_size.is_none();
    let mut why = None;
    let (room, lacks) = match &target {
        Target::Ram => {
            let half = os::available_memory().unwrap_or(1 << 30) / 2;
            let room = match is_free {
                true => half.max(SEGMENT_BYTES),
                false => u64::MAX,
            };
            // A file of memory; the engines map it, so only ours is its limit.
            within(
                probe::limit(Limit::FileSize).ok().flatten(),
                room,
                String::new(),
            )
        }
        Target::BlockDevice(path) => {
            let bytes = FileDevice::bytes_of(path).map_err(|e| Failure::ours(e.to_string()))?;
            (bytes, format!("'{}' is too small for swap", path.display()))
        }
        Target::Directory(path) | Target::File(path) => {
            let space = os::space(directory(path)).unwrap_or(os::Space {
                total: u64::MAX,
                free: u64::MAX,
            });
            let chosen = is_free.then(|| sizing::swap_file(memory, space.total, space.free));
            why = chosen.map(|c| c.why);
            let room = is_free.then(|| sizing::disk_room(space.total, space.free));
            file_room(path, space.free, own, room)
        }
    };
    if let Some(own) = own.filter(|&own| whole_segments(own) > room) {
        return Err(Failure::ours(format!(
            "there is no room for {} of swap at '{}': {} are possible there",
            Size::from_bytes(own),
            place.spec,
            Size::from_bytes(room)
        )));
    }
    Ok(Wanted {
        room: own.unwrap_or(room),
        place,
        target,
        lacks,
        is_free,
        why,
    })
}

/// What may go to a file, and what to say if it is too little.
fn file_room(path: &Path, free: u64, own: Option<u64>, chosen: Option<u64>) -> (u64, String) {
    let (path, has) = (path.display(), Size::from_bytes(free));
    // What the disk has, less a tenth that is left to others; or what was asked for.
    let most = free - own.map_or(free / 10, |_| 0);
    let so = match chosen {
        Some(_) if most >= SEGMENT_BYTES => {
            ", and without --swap-size the disk keeps a fifth and 10G free; give --swap-size, or another place \
             with --swap"
        }
        _ => "; name another place with --swap, or '--swap none' for compressed memory alone",
    };
    let lacks = format!("there is no room for swap at '{path}': {has} are free{so}");
    within(signals::largest_file(), chosen.unwrap_or(most), lacks)
}

/// No file becomes larger than the limit.
fn within(limit: Option<u64>, room: u64, lacks: String) -> (u64, String) {
    match limit {
        Some(largest) if largest < SEGMENT_BYTES => (
            largest,
            format!(
                "'ulimit -f' allows files of {} only, and swap needs {} at least: run 'ulimit -f unlimited' \
                 first, or give a block device with --swap",
                Size::from_bytes(largest),
                Size::from_bytes(SEGMENT_BYTES)
            ),
        ),
        Some(largest) => (room.min(largest), lacks),
        None => (room, lacks),
    }
}

fn is_block(target: &Target) -> bool {
    matches!(target, Target::BlockDevice(_))
}

fn open(args: &RunArgs, wanted: &Wanted, max: u64, filled: bool) -> Result<Opened, Failure> {
    match &wanted.target {
        Target::Ram => open_ram(max, filled),
        Target::Directory(p) | Target::File(p) => {
            let opened = open_file(p, max)?;
            if matches!(os::is_memory_backed(directory(p)), Ok(true)) {
                errln!(
                    "hugeswap: warning: '{}' is memory: swapping out to it frees nothing",
                    p.display()
                );
            }
            Ok(opened)
        }
        Target::BlockDevice(p) => open_block(args, p, max),
    }
}

fn is_dir_or_here(p: &Path) -> bool {
    p.as_os_str().is_empty() || p.is_dir()
}

fn open_file(path: &Path, max: u64) -> Result<Opened, Failure> {
    let options = Options::new(max);
    let device = wait_until_free(|| FileDevice::open(path, &options));
    let device = device.map_err(|e| Failure::ours(e.to_string()))?;
    let (fd, file) = two(&device)?;
    let had = file.metadata().map_or(0, |m| m.len());
    // A file that was made for swap keeps its size.
    let max = match whole_segments(had) {
        0 => max,
        own => max.min(own),
    };
    if had < max {
        // At its full length from the start, as a hole; processes reserve what they use.
        file.set_len(max).map_err(|e| {
            Failure::ours(format!(
                "can't make a swap file of {} at '{}': {e}; give a smaller --swap-size",
                Size::from_bytes(max),
                path.display()
            ))
        })?;
    }
    Ok(Opened {
        description: device.describe(),
        name: absolute(path),
        fd,
        max_bytes: max,
        shares: false,
        rank: 0,
        kind: Kind::File,
        why: None,
        shorter: (had < max).then_some(had),
    })
}

fn two(device: &FileDevice) -> Result<(OwnedFd, File), Failure> {
    let one = || device.as_fd().try_clone_to_owned();
    let both = one().and_then(|a| one().map(|b| (a, File::from(b))));
    both.map_err(|e| Failure::ours(format!("can't keep the swap file open: {e}")))
}

fn open_block(args: &RunArgs, path: &Path, max: u64) -> Result<Opened, Failure> {
    let options = Options {
        overwrite: args.overwrite,
        ..Options::new(max)
    };
    let device = wait_until_free(|| FileDevice::open(path, &options));
    let device = device.map_err(|e| Failure::ours(e.to_string()))?;
    let (fd, _) = two(&device)?;
    Ok(Opened {
        description: device.describe(),
        name: absolute(path),
        fd,
        max_bytes: whole_segments(max.min(device.capacity())),
        shares: false,
        rank: 0,
        kind: Kind::File,
        why: None,
        shorter: None,
    })
}

/// Memory in place of a disk. With a size of its own it is filled here, so that it counts for whoever
/// started hugeswap and not for the program; without, it comes as it is used.
fn open_ram(max: u64, filled: bool) -> Result<Opened, Failure> {
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
        description: RAM.to_owned(),
        name: RAM.to_owned(),
        fd: OwnedFd::from(file),
        max_bytes: max,
        shares: false,
        rank: 0,
        kind: if filled { Kind::FilledRam } else { Kind::Ram },
        why: None,
        shorter: None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_one_given_priority_are_used_in_turn() {
        let ranked = |priorities: &[Option<i16>]| {
            let place = |&priority: &Option<i16>| Place {
                priority,
                ..Place::plain(SwapSpec::Ram)
            };
            let mut places: Vec<Place> = priorities.iter().map(place).collect();
            places.sort_by_key(order);
            let sorted: Vec<_> = places.iter().map(|p| p.priority).collect();
            (sorted, ranks(&places))
        };
        let none = || (vec![None, None], vec![0, 1]);
        assert_eq!(ranked(&[None, None]), none());
        let (five, zero) = (Some(5), Some(0));
        assert_eq!(ranked(&[zero, five, five]).1, [0, 0, 1]);
        let (sorted, ranks) = ranked(&[None, zero, Some(-1), zero, five]);
        assert_eq!(sorted, [five, zero, zero, None, Some(-1)]);
        assert_eq!(ranks, [0, 1, 1, 2, 3]);
    }
}
