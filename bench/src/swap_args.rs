//! The arguments of the swap tests, and the plan they make.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::worker::WorkerArgs;
use super::workload::Workload;
use hugeswap_host::kernel_swap::{mthp_switches, Backing};
use hugeswap_host::size::{Size, MIB};
use hugeswap_host::sizing::LEAST_MEMORY;
use hugeswap_host::swap_spec::{self, SpecError, SwapSpec, Target, Where};

#[derive(clap::Args, Debug, Clone)]
pub struct SwapArgs {
    /// How many processes share the work and the memory
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub processes: u32,

    /// Threads of each process, every one with a part of its own [default: 1; swap-w-seq-mt 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,

    /// Threads of each process that only compute, beside the others
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=256))]
    pub busy: u32,

    /// Rounds; the first fills the memory, the others are the test
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: u64,

    /// Accesses to pages in a round, of all processes and threads [default: by the test]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub accesses: Option<u64>,

    /// Of 100 accesses, those that write [default: by the test]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub writes: Option<u8>,

    /// How uneven swap-zipf is, between 0 and 1
    #[arg(long, value_name = "X", value_parser = theta)]
    pub theta: Option<f64>,

    /// Pages of which a codec leaves one part in RATIO [default: words that count on]
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub compressible: Option<f64>,

    /// Measure hugeswap with this 'run --compress': auto, off, or a share of the limit as in 40% [default: off; auto
    /// with '--swap none']
    #[arg(long, value_name = "SHARE", value_parser = share_of_compressed)]
    pub compress: Option<String>,

    /// Data in all, divided among the processes [default: twice --memory]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,

    /// Memory in all
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    pub memory: Size,

    /// Where to swap: a directory, a file, a block device, 'ram', or 'none' for compressed memory alone; hugeswap alone
    /// can have several [default: a directory on a disk]
    #[arg(long, value_name = "SPEC", value_parser = swap_spec::spec_parser())]
    pub swap: Vec<Where<SwapSpec>>,

    /// Compare with the kernel's own swap, or with hugeswap without encryption; 'kernel' takes what fits --swap
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    pub against: Vec<Against>,

    /// Count everything toward --memory: the kernel's side has so much less as zram or zswap takes, and hugeswap keeps
    /// 16M for what it does not count
    #[arg(long)]
    pub same_total: bool,

    /// Measure one side only
    #[arg(long, value_enum, value_name = "SIDE")]
    pub only: Option<Side>,

    /// How often each side is measured, in turn; medians are shown
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,

    /// Print every figure of every run as JSON; the table goes to standard error then
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Against {
    /// A swap file for a directory, zram for 'ram' and 'none'
    Kernel,
    /// A swap file in the same directory, with 'none' in the one that is used by default
    File,
    /// Compressed memory, lz4
    Zram,
    /// The same with every multi-size huge page on
    ZramMthp,
    /// A swap file in the same directory, with compressed memory before it
    Zswap,
    /// A loop device on tmpfs
    Loop,
    /// hugeswap again, with 'run --no-encrypt': what encryption costs
    Unencrypted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Side {
    Hugeswap,
    Kernel,
}

fn theta(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(theta) if theta > 0.0 && theta < 1.0 => Ok(theta),
        _ => Err(format!(
            "'{text}' is not between 0 and 1: give a number as 0.99"
        )),
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(ratio) if (1.0..=64.0).contains(&ratio) => Ok(ratio),
        _ => Err(format!(
            "'{text}' is not between 1 and 64: give a number as 3"
        )),
    }
}

/// A value of `run --compress`.
pub fn share_of_compressed(text: &str) -> Result<String, String> {
    let share = text.strip_suffix('%').and_then(|n| n.parse().ok());
    match (text, share) {
        ("off" | "auto", _) | (_, Some(1..=90)) => Ok(text.to_owned()),
        _ => Err("give off, auto, or a share of the limit up to 90%, as in 40%".into()),
    }
}

/// What hugeswap's `--memory` does not count of a group that holds everything: cached files, and what is in flight.
pub const MARGIN: u64 = 16 * MIB;

/// What a test's memory is the limit of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Total {
    /// Resident pages. hugeswap's code and tables come on top, and what zram takes.
    Beside,
    /// Everything.
    Same,
}

/// Checked arguments.
#[derive(Clone, Debug)]
pub struct Plan {
    pub workload: Workload,
    pub processes: u32,
    pub threads: u32,
    pub busy: u32,
    pub rounds: u64,
    /// Of each thread in a round.
    pub accesses: u64,
    pub writes: Option<u8>,
    pub theta: Option<f64>,
    pub compressible: Option<f64>,
    /// As `run --compress` has it.
    pub compress: String,
    pub total: Total,
    /// Per process.
    pub share: Size,
    pub memory: Size,
    /// None where hugeswap has compressed memory alone.
    pub swap: Vec<SwapSpec>,
    pub contestants: Vec<Contestant>,
    pub runs: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contestant {
    /// No limit and no swap.
    Unlimited,
    Hugeswap,
    /// As hugeswap, with `run --no-encrypt`.
    Unencrypted,
    Kernel(Backing),
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contestant::Unlimited => f.write_str("no limit"),
            Contestant::Hugeswap => f.write_str("hugeswap"),
            Contestant::Unencrypted => f.write_str("not encrypted"),
            Contestant::Kernel(backing) => backing.fmt(f),
        }
    }
}

#[derive(Debug)]
pub enum PlanError {
    Spec(SpecError),
    /// Less than a huge page for each process or thread.
    SizeTooSmall {
        size: Size,
        processes: u32,
        threads: u32,
    },
    /// What hugeswap was to be compared with.
    NoDirectory(&'static str),
    /// The kernel's swap has one.
    SeveralPlaces,
    /// Another place besides 'none'.
    NowhereAndSomewhere,
    /// Nothing could leave.
    NothingToSwapTo,
    /// Below this `run` refuses, or not even the worker's code and page tables fit.
    MemoryTooSmall {
        memory: Size,
        least: u64,
    },
}

/// Of the kernel's side alone.
const LEAST_KERNEL: u64 = 16 * MIB;
const PAGE: u64 = 4096;

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::Spec(err) => err.fmt(f),
            PlanError::SizeTooSmall {
                size,
                processes,
                threads: 1,
            } => write!(
                f,
                "--size {size} leaves less than 2 MiB for each of {processes} processes: give more"
            ),
            PlanError::SizeTooSmall {
                size,
                processes,
                threads,
            } => write!(
                f,
                "--size {size} leaves less than 2 MiB for each of {threads} threads in each of \
                 {processes} processes: give more"
            ),
            PlanError::NoDirectory(against) => write!(
                f,
                "--against {against} needs a directory: say which with --swap DIRECTORY"
            ),
            PlanError::SeveralPlaces => write!(
                f,
                "several --swap are for hugeswap alone: leave --against out, or give one place for both sides"
            ),
            PlanError::NowhereAndSomewhere => write!(
                f,
                "'--swap none' is for compressed memory alone: leave the other --swap out"
            ),
            PlanError::NothingToSwapTo => write!(
                f,
                "'--swap none' with '--compress off' leaves no place to swap to: leave one of them out"
            ),
            PlanError::MemoryTooSmall { memory, least } => write!(
                f,
                "--memory {memory} is too little to run anything: give {} or more",
                Size::from_bytes(*least)
            ),
        }
    }
}

impl From<SpecError> for PlanError {
    fn from(err: SpecError) -> PlanError {
        PlanError::Spec(err)
    }
}

impl SwapArgs {
    /// What is used where nothing else is given.
    pub fn plain(memory: Size, swap: SwapSpec, against: Against) -> SwapArgs {
        SwapArgs {
            processes: 1,
            threads: None,
            busy: 0,
            rounds: 3,
            accesses: None,
            writes: None,
            theta: None,
            compressible: None,
            compress: None,
            size: None,
            memory,
            same_total: false,
            swap: vec![Where::Place(swap)],
            against: vec![against],
            only: None,
            runs: 3,
            json: false,
        }
    }

    pub fn plan(&self, workload: &Workload) -> Result<Plan, PlanError> {
        let least = match self.only {
            Some(Side::Kernel) => LEAST_KERNEL,
            _ => LEAST_MEMORY,
        };
        let total = match self.same_total {
            true => Total::Same,
            false => Total::Beside,
        };
        let least = match total {
            Total::Same => least + MARGIN,
            Total::Beside => least,
        };
        if self.memory.bytes() < least {
            let memory = self.memory;
            return Err(PlanError::MemoryTooSmall { memory, least });
        }
        let size = match self.size {
            Some(size) => size,
            None => Size::new(self.memory.bytes().saturating_mul(2)).unwrap_or(self.memory),
        };
        let threads = self.threads.unwrap_or(workload.threads);
        // Whole huge pages for each thread.
        let step = 2 * MIB * u64::from(threads);
        let share = size.bytes() / u64::from(self.processes) / step * step;
        let share = Size::new(share).ok_or(PlanError::SizeTooSmall {
            size,
            processes: self.processes,
            threads,
        })?;
        let swap = places(&self.swap)?;
        let contestants = contestants(&swap, &self.against, self.only)?;
        let compress = match (&self.compress, swap.is_empty()) {
            (Some(share), true) if share == "off" => return Err(PlanError::NothingToSwapTo),
            (Some(share), _) => share.as_str(),
            (None, true) => "auto",
            (None, false) => "off",
        };
        let workers = u64::from(self.processes) * u64::from(threads);
        let pages = share.bytes() / u64::from(threads) / PAGE;
        let accesses = match self.accesses {
            Some(all) => all.div_ceil(workers),
            None => workload.pattern.default_accesses(pages),
        };
        Ok(Plan {
            workload: *workload,
            processes: self.processes,
            threads,
            busy: self.busy,
            rounds: self.rounds,
            accesses,
            writes: self.writes,
            theta: self.theta,
            compressible: self.compressible,
            compress: compress.to_owned(),
            total,
            share,
            memory: self.memory,
            swap,
            contestants,
            runs: self.runs,
        })
    }
}

/// Where hugeswap swaps to: no place at all with `none`.
fn places(given: &[Where<SwapSpec>]) -> Result<Vec<SwapSpec>, PlanError> {
    if given.is_empty() {
        return Ok(vec![SwapSpec::Path(swap_spec::default_directory()?)]);
    }
    let places = given.iter().filter_map(|place| match place {
        Where::Nowhere => None,
        Where::Place(spec) => Some(spec.clone()),
    });
    let places: Vec<SwapSpec> = places.collect();
    match places.len() {
        n if n == given.len() => Ok(places),
        0 => Ok(places),
        _ => Err(PlanError::NowhereAndSomewhere),
    }
}

/// Who is measured, hugeswap first, which swaps to these places.
pub fn contestants(
    swap: &[SwapSpec],
    against: &[Against],
    only: Option<Side>,
) -> Result<Vec<Contestant>, PlanError> {
    let targets: Vec<Target> = swap
        .iter()
        .map(SwapSpec::resolve)
        .collect::<Result<_, _>>()?;
    let mut contestants = Vec::new();
    if only != Some(Side::Kernel) {
        contestants.push(Contestant::Hugeswap);
    }
    if only != Some(Side::Hugeswap) {
        let default = [Against::Kernel];
        let against = match (against, only) {
            ([], Some(Side::Kernel)) => &default,
            _ => against,
        };
        for against in against {
            for contestant in rivals(*against, &targets)? {
                if !contestants.contains(&contestant) {
                    contestants.push(contestant);
                }
            }
        }
    }
    Ok(contestants)
}

/// Who hugeswap is compared with.
fn rivals(against: Against, targets: &[Target]) -> Result<Vec<Contestant>, PlanError> {
    if against == Against::Unencrypted {
        return Ok(vec![Contestant::Unencrypted]);
    }
    let backings = match targets {
        // zram is what stands against compressed memory alone, and what needs a directory takes the usual one.
        [] if against == Against::Kernel => backings(against, &Target::Ram)?,
        [] => backings(against, &Target::Directory(swap_spec::default_directory()?))?,
        [target] => backings(against, target)?,
        _ => return Err(PlanError::SeveralPlaces),
    };
    Ok(backings.into_iter().map(Contestant::Kernel).collect())
}

/// What the kernel swaps to.
fn backings(against: Against, target: &Target) -> Result<Vec<Backing>, PlanError> {
    let zram = Backing::Zram { every_size: false };
    let zram_mthp = Backing::Zram { every_size: true };
    Ok(match (against, target) {
        (Against::Unencrypted, _) => Vec::new(),
        (Against::Zram, _) => vec![zram],
        (Against::ZramMthp, _) => vec![zram_mthp],
        (Against::Loop, _) => vec![Backing::Loop],
        // On a kernel without these sizes it would be the same once more.
        (Against::Kernel, Target::Ram) if mthp_switches().is_empty() => vec![zram],
        (Against::Kernel, Target::Ram) => vec![zram, zram_mthp],
        (Against::File, Target::Ram) => return Err(PlanError::NoDirectory("file")),
        (Against::Zswap, Target::Ram | Target::BlockDevice(_)) => {
            return Err(PlanError::NoDirectory("zswap"))
        }
        (Against::Zswap, Target::Directory(dir)) => vec![Backing::Zswap(dir.clone())],
        (Against::Zswap, Target::File(file)) => vec![Backing::Zswap(parent(file))],
        (_, Target::Directory(dir)) => vec![Backing::File(dir.clone())],
        (_, Target::File(file)) => vec![Backing::File(parent(file))],
        (_, Target::BlockDevice(path)) => vec![Backing::BlockDevice(path.clone())],
    })
}

fn parent(file: &Path) -> PathBuf {
    let parent = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
}

impl Plan {
    pub fn worker(&self) -> WorkerArgs {
        WorkerArgs {
            workload: self.workload.name.to_owned(),
            size: self.share,
            rounds: self.rounds,
            accesses: self.accesses,
            threads: self.threads,
            busy: self.busy,
            writes: self.writes,
            theta: self.theta,
            compressible: self.compressible,
            processes: self.processes,
            index: None,
        }
    }

    /// Where hugeswap swaps to, for people.
    pub fn places(&self) -> String {
        if self.swap.is_empty() {
            return swap_spec::NOWHERE.to_owned();
        }
        let places: Vec<String> = self.swap.iter().map(ToString::to_string).collect();
        places.join(" and ")
    }

    /// Data of all processes.
    pub fn data(&self) -> Size {
        // Can't overflow: it is at most the size that was given.
        Size::new(self.share.bytes() * u64::from(self.processes)).unwrap_or(self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::super::workload;
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SwapArgs,
    }

    fn plan(line: &str) -> Result<Plan, PlanError> {
        let words = std::iter::once("x").chain(line.split_whitespace());
        Line::parse_from(words).args.plan(&workload::SWAP_W_SEQ)
    }

    #[test]
    fn defaults() {
        let plan = plan("--swap /").unwrap();
        assert_eq!(plan.data().to_string(), "1G");
        assert_eq!(plan.contestants, [Contestant::Hugeswap]);
    }

    #[test]
    fn the_kernel_side_fits_the_swap() {
        let names = |line: &str| {
            let plan = plan(line).unwrap();
            plan.contestants
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            names("--swap / --against kernel"),
            ["hugeswap", "swap file"]
        );
        assert_eq!(
            names("--swap / --against kernel,file"),
            ["hugeswap", "swap file"]
        );
        assert_eq!(
            names("--swap / --against kernel,zswap"),
            ["hugeswap", "swap file", "zswap"]
        );
        assert_eq!(
            names("--swap ram --against kernel,loop"),
            [
                "hugeswap",
                "zram lz4",
                "zram lz4, all mTHP",
                "loop on tmpfs"
            ]
        );
        assert_eq!(names("--swap / --only kernel"), ["swap file"]);
        assert_eq!(names("--swap / --swap /tmp"), ["hugeswap"]);
        assert_eq!(
            names("--swap / --swap /tmp --against kernel --only hugeswap"),
            ["hugeswap"]
        );
        assert_eq!(
            names("--swap / --only hugeswap --against kernel"),
            ["hugeswap"]
        );
        assert_eq!(
            names("--swap none --against kernel,zram"),
            ["hugeswap", "zram lz4", "zram lz4, all mTHP"]
        );
        assert_eq!(
            names("--swap / --swap /tmp --against unencrypted"),
            ["hugeswap", "not encrypted"]
        );
    }

    #[test]
    fn refused() {
        let message = |line: &str| plan(line).unwrap_err().to_string();
        assert!(message("--swap ram --against file").contains("--swap DIRECTORY"));
        assert!(message("--swap / --size 8M --processes 5").contains("5 processes"));
        assert!(message("--swap / --size 8M --threads 5").contains("5 threads"));
        assert!(message("--swap ram --against zswap").contains("--swap DIRECTORY"));
        assert!(message("--swap / --memory 1M").contains("48M"));
        assert!(message("--swap / --memory 1M --same-total").contains("64M"));
        assert!(message("--swap /nowhere/at/all").contains("mkdir"));
        assert!(message("--swap none --swap /").contains("leave the other"));
        assert!(message("--swap none --compress off").contains("no place"));
        for line in ["--against kernel", "--against zram", "--only kernel"] {
            let message = message(&format!("--swap / --swap /tmp {line}"));
            assert!(message.contains("several --swap"), "{message}");
        }
    }

    #[test]
    fn compressed_memory_alone_is_on() {
        let compress = |line: &str| plan(line).unwrap().compress;
        assert_eq!(compress("--swap none"), "auto");
        assert_eq!(compress("--swap none --compress 40%"), "40%");
        assert_eq!(compress("--swap /"), "off");
        assert_eq!(plan("--swap none").unwrap().places(), "none");
    }

    #[test]
    fn data_is_divided() {
        let plan = plan("--swap / --size 64M --processes 3").unwrap();
        assert_eq!(plan.share.to_string(), "20M");
        assert_eq!(plan.accesses, 5120);
        assert_eq!(plan.data().to_string(), "60M");
    }
}
