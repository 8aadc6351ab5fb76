//! Where a contestant runs: a memory group with its limit, under `hugeswap run` or with the
//! kernel's swap on. All is taken down when it is dropped.
//!
//! What is bounded by hugeswap, or by nobody, can do without a group where none is to be had.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Once;
use std::time::Duration;

use super::error::{io_error, Error};
use super::swap_args::{Contestant, Total, MARGIN};
use hugeswap_host::cgroup::{self, Group, Limits, Swap, Usage};
use hugeswap_host::kernel_swap::{Backing, KernelSwap};
use hugeswap_host::os;
use hugeswap_host::size::{Size, MIB};
use hugeswap_host::swap_spec::{self, SwapSpec};
use hugeswap_host::undo::{Guard, Interrupt, Undo};

/// What hugeswap may use above the limit: its own code and tables.
const OVERHEAD: u64 = 64 * MIB;

/// By how much a group's limit is changed at least: each time the kernel reclaims on another processor.
const STEP: u64 = 256 << 10;

/// How long nothing may be printed between two looks.
const TICK: Duration = Duration::from_millis(5);

pub struct Arena {
    prefix: Vec<OsString>,
    stats: Option<PathBuf>,
    before: Option<(u64, u64)>,
    limit: u64,
    uncharged: Uncharged,
    /// The limit that the group has now.
    group_limit: Cell<u64>,
    peak: Cell<Option<u64>>,
    // The group goes before the swap, so that swapoff finds nothing in it.
    group: Option<Group>,
    swaps: Vec<KernelSwap>,
    _guard: Guard,
}

/// What a contestant gets.
pub struct Grant<'a> {
    /// Bytes that the memory group may have.
    pub group: u64,
    /// Whether it can do without a group where none is to be had.
    pub or_none: bool,
    pub uncharged: Uncharged,
    pub side: Side<'a>,
}

/// Memory that the kernel's swap takes and no group is charged for: zram's, and zswap's with control groups of version 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Uncharged {
    /// It comes on top of the group's limit.
    OnTop,
    /// The group has so much less, from one look to the next.
    TakenOff,
}

pub enum Side<'a> {
    Plain,
    /// Under `hugeswap run`, with these options.
    Hugeswap(Options<'a>),
    /// Each with its size; the last is used first.
    Kernel(Vec<(&'a Backing, u64)>),
}

/// Of `hugeswap run`.
pub struct Options<'a> {
    pub memory: Size,
    /// All are used in turn; compressed memory alone where there is none.
    pub swap: &'a [SwapSpec],
    pub room: u64,
    /// Used before `swap`: memory of this size, which the group has more.
    pub first: Option<Size>,
    /// As `--compress` has it.
    pub compress: Option<&'a str>,
    pub encryption: Encryption,
}

/// Whether what goes to swap is encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encryption {
    On,
    Off,
}

impl Arena {
    /// For so many programs with so much `data` in all, of which `memory` may be resident.
    pub fn set_up(
        contestant: &Contestant,
        memory: Size,
        (data, programs): (Size, u32),
        (swap, compress): (&[SwapSpec], &str),
        total: Total,
        stop: &Interrupt,
    ) -> Result<Arena, Error> {
        let room = room(data, programs);
        let grant = match contestant {
            Contestant::Unlimited => Grant::unlimited(),
            Contestant::Hugeswap | Contestant::Unencrypted => {
                // The memory that stands in for a device is charged to the group too, unlike
                // zram's, and is not what is measured.
                let device = if swap.contains(&SwapSpec::Ram) {
                    room
                } else {
                    0
                };
                let (group, memory) = match total {
                    Total::Beside => (memory.bytes() + OVERHEAD, memory),
                    Total::Same => (memory.bytes(), Size::from_bytes(memory.bytes() - MARGIN)),
                };
                Grant {
                    group: group + device,
                    or_none: true,
                    uncharged: Uncharged::OnTop,
                    side: Side::Hugeswap(Options {
                        memory,
                        swap,
                        room,
                        first: None,
                        compress: Some(compress),
                        encryption: match contestant {
                            Contestant::Unencrypted => Encryption::Off,
                            _ => Encryption::On,
                        },
                    }),
                }
            }
            Contestant::Kernel(backing) => Grant {
                group: memory.bytes(),
                or_none: false,
                uncharged: match total {
                    Total::Beside => Uncharged::OnTop,
                    Total::Same => Uncharged::TakenOff,
                },
                side: Side::Kernel(vec![(backing, room + 16 * MIB)]),
            },
        };
        Arena::open(&grant, stop)
    }

    pub fn open(grant: &Grant<'_>, stop: &Interrupt) -> Result<Arena, Error> {
        stop.check()?;
        let mut guard = Guard::new();
        let mut prefix = Vec::new();
        let mut stats = None;
        let mut swaps = Vec::new();
        let mut limits = Limits {
            memory: grant.group,
            swap: Swap::None,
            swappiness: None,
        };
        match &grant.side {
            Side::Plain => {}
            Side::Hugeswap(options) => {
                // A run that is still ending when everything has been taken down can't write it any more.
                let dir = stats_dir();
                fs::create_dir(&dir).map_err(io_error("make a directory for statistics"))?;
                guard.push(Undo::RemoveDir(dir.clone()));
                let file = dir.join("stats.json");
                prefix = hugeswap_run(options, &file)?;
                stats = Some(file);
            }
            Side::Kernel(backings) => {
                limits.swap = Swap::Unlimited;
                for (backing, bytes) in backings {
                    swaps.push(KernelSwap::set_up(backing, Size::from_bytes(*bytes), stop)?);
                }
            }
        }
        let group = match Group::create("hugeswap-bench", &limits) {
            Ok(group) => Some(group),
            Err(err) if grant.or_none => {
                say_without_group(&err);
                None
            }
            Err(err) => return Err(err.into()),
        };
        Ok(Arena {
            prefix,
            stats,
            before: swap_counters(),
            limit: limits.memory,
            uncharged: grant.uncharged,
            group_limit: Cell::new(limits.memory),
            peak: Cell::new(None),
            group,
            swaps,
            _guard: guard,
        })
    }

    /// `program`, to be started in here; arguments are added to it.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command, Error> {
        let mut command = match self.prefix.split_first() {
            None => Command::new(program),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        match &self.group {
            Some(group) => os::spawn_inside(&mut command, group.procs()?),
            None => {
                command.process_group(0);
                os::kill_with_me(&mut command);
            }
        }
        Ok(command)
    }

    /// Runs it to its end. `tick` gets what it has printed, many times a second; it ends the program
    /// with an error.
    pub fn run(
        &self,
        mut command: Command,
        stop: &Interrupt,
        tick: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(String, ExitStatus), Error> {
        let mut child = command.spawn().map_err(io_error("start the program"))?;
        let output = read_output(&mut child, stop, &mut |text| {
            self.take_off_uncharged();
            tick(text)
        });
        if output.is_err() {
            // Without this the wait below could last for ever.
            self.kill(&mut child)?;
        }
        let status = child.wait().map_err(io_error("wait for the program"))?;
        let output = output?;
        stop.check()?;
        Ok((output, status))
    }

    /// The program, and all that it has started.
    pub fn kill(&self, child: &mut Child) -> Result<(), Error> {
        let killed = match &self.group {
            Some(group) => group.kill(),
            None => os::kill_process_group(child),
        };
        killed.map_err(io_error("kill the program"))
    }

    /// Gives the group what the total leaves beside what its swap takes.
    fn take_off_uncharged(&self) {
        let (Uncharged::TakenOff, Some(group)) = (self.uncharged, &self.group) else {
            return;
        };
        let taken: u64 = self.swaps.iter().map(KernelSwap::uncharged).sum();
        let left = self.limit.saturating_sub(taken);
        // Where the kernel finds nothing to reclaim there is another look soon.
        if left.abs_diff(self.group_limit.get()) >= STEP && group.set_memory(left).is_ok() {
            self.group_limit.set(left);
        }
        let now = Some(group.usage().bytes + taken);
        self.peak.set(self.peak.get().max(now));
    }

    /// Of the group, with what was taken off; nothing without one.
    pub fn usage(&self) -> Usage {
        let usage = self.group.as_ref().map(Group::usage).unwrap_or_default();
        Usage {
            peak: self.peak.get().or(usage.peak),
            ..usage
        }
    }

    pub fn anonymous(&self) -> u64 {
        self.group.as_ref().map_or(0, Group::anonymous)
    }

    /// Faults that had to read: of the group, and those that hugeswap served.
    pub fn major_faults(&self) -> u64 {
        let ours = self.stats().and_then(|s| find_number(&s, "pgmajfault"));
        let groups = self.group.as_ref().map_or(0, Group::major_faults);
        groups + ours.unwrap_or(0)
    }

    /// The most that zram took beside the group.
    pub fn zram_peak(&self) -> Option<u64> {
        self.swaps.iter().find_map(KernelSwap::peak_memory)
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// What hugeswap counted itself. After the program's end.
    pub fn stats(&self) -> Option<serde_json::Value> {
        let file = self.stats.as_ref()?;
        serde_json::from_slice(&fs::read(file).ok()?).ok()
    }

    /// Pages swapped in and out since it was set up.
    pub fn swapped(&self) -> Option<(u64, u64)> {
        if self.stats.is_some() {
            let stats = self.stats()?;
            return find_number(&stats, "pswpin").zip(find_number(&stats, "pswpout"));
        }
        let (in0, out0) = self.before?;
        let (in1, out1) = swap_counters()?;
        Some((in1 - in0, out1 - out0))
    }
}

impl Grant<'_> {
    /// A group all the same: what it costs to be counted is not what is measured.
    pub fn unlimited() -> Self {
        Grant {
            group: os::available_memory().unwrap_or(u64::MAX >> 1),
            or_none: true,
            uncharged: Uncharged::OnTop,
            side: Side::Plain,
        }
    }
}

/// Once, however often it is measured.
fn say_without_group(err: &cgroup::Error) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        errln!(
            "hugeswap: without a memory group: {err}. --memory is kept by hugeswap alone, pages of files are \
             not bounded, and the peak is not measured"
        );
    });
}

/// One of its own for each arena: the janitor may still be after the one before.
fn stats_dir() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("hugeswap-bench-{}-{n}", std::process::id()))
}

fn hugeswap_run(options: &Options<'_>, stats: &Path) -> Result<Vec<OsString>, Error> {
    let program = std::env::current_exe().map_err(io_error("find this program"))?;
    let mut words: Vec<OsString> = vec![program.into(), "run".into()];
    words.extend(["--memory".into(), options.memory.bytes().to_string().into()]);
    if let Some(first) = options.first {
        words.extend([
            "--swap".into(),
            format!("ram,size={},priority=1", first.bytes()).into(),
        ]);
    }
    for swap in options.swap {
        let swap = match swap {
            SwapSpec::Ram => "ram".into(),
            SwapSpec::Path(path) => explicit(path).into_os_string(),
        };
        words.extend(["--swap".into(), swap]);
    }
    match options.swap {
        [] => words.extend(["--swap".into(), swap_spec::NOWHERE.into()]),
        _ => words.extend(["--swap-size".into(), options.room.to_string().into()]),
    }
    if let Some(share) = options.compress {
        words.extend(["--compress".into(), share.into()]);
    }
    if options.encryption == Encryption::Off {
        words.push("--no-encrypt".into());
    }
    words.extend(["--strict".into(), "--stats-json".into(), stats.into()]);
    words.push("--".into());
    Ok(words)
}

/// A directory called `ram` stays a directory.
fn explicit(path: &Path) -> PathBuf {
    if path.is_absolute() {
        path.to_owned()
    } else {
        Path::new(".").join(path)
    }
}

/// What each of several programs may have more of swap than it uses, for it is handed out in pieces.
const PIECES: u64 = 16 * MIB;

/// The same room that the kernel's swap gets.
fn room(data: Size, programs: u32) -> u64 {
    data.bytes() + data.bytes() / 4 + u64::from(programs.saturating_sub(1)) * PIECES
}

/// All that the program prints, or an error as soon as a signal comes.
fn read_output(
    child: &mut Child,
    stop: &Interrupt,
    tick: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<String, Error> {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    let Some(mut out): Option<ChildStdout> = child.stdout.take() else {
        return Err(Error::Report("no pipe".into()));
    };
    loop {
        let [readable, signal] = os::wait_readable([out.as_fd(), stop.as_fd()], TICK)
            .map_err(io_error("wait for the program"))?;
        if signal {
            stop.check()?;
        }
        if readable {
            match out.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => text.extend_from_slice(&buffer[..read]),
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(io_error("read from the program")(err)),
            }
        }
        tick(&text)?;
    }
    String::from_utf8(text).map_err(|err| Error::Report(err.to_string()))
}

/// pswpin and pswpout of the machine, in pages.
fn swap_counters() -> Option<(u64, u64)> {
    let vmstat = fs::read_to_string("/proc/vmstat").ok()?;
    let entry = |key: &str| {
        vmstat
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
    };
    Some((entry("pswpin")?, entry("pswpout")?))
}

/// The number called `key`, at whatever depth it is written.
fn find_number(value: &serde_json::Value, key: &str) -> Option<u64> {
    match value {
        serde_json::Value::Object(map) => map
            .get(key)
            .and_then(serde_json::Value::as_u64)
            .or_else(|| map.values().find_map(|value| find_number(value, key))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_at_any_depth() {
        let stats = serde_json::json!({"a": {"pswpin": 7}, "pswpout": 8});
        assert_eq!(find_number(&stats, "pswpin"), Some(7));
        assert_eq!(find_number(&stats, "pswpout"), Some(8));
        assert_eq!(find_number(&stats, "thp_swpin"), None);
    }

    #[test]
    fn a_directory_called_ram() {
        assert_eq!(explicit(Path::new("ram")), Path::new("./ram"));
        assert_eq!(explicit(Path::new("/ram")), Path::new("/ram"));
    }
}
