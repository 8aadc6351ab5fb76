//! The arguments of `hugeswap run`.

use std::ffi::OsString;
use std::path::PathBuf;

use hugeswap_control::{link, Compress, CompressCodec, SwapIn};

use crate::groups;

use hugeswap_host::size::Size;
use hugeswap_host::swap_spec::{self, SwapSpec, Where};

#[derive(clap::Args, Debug, Clone)]
#[command(after_help = "\
The exit status is the program's; 128 + N where signal N ended it.

  hugeswap run --memory 512M --swap /var/tmp -- python3 sort.py")]
pub struct RunArgs {
    /// Memory that the run may occupy, as in 512M or 1.5G [default: what the memory group leaves, or half of what is available]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Option<Size>,

    /// Where the rest goes: a directory, a file, a block device, or 'ram'; may be repeated, each with a size and a
    /// priority of its own, as in /mnt/fast,size=10G,priority=1; 'none': compressed memory alone [default: a
    /// directory on a disk]
    #[arg(long, value_name = "SPEC", value_parser = swap_spec::place_parser())]
    pub swap: Vec<Where>,

    /// Use a block device that holds data of no known kind: the data is lost
    #[arg(long)]
    pub overwrite: bool,

    /// Most that may be swapped out, over all of --swap [default: four times the memory; less where a disk would not keep 20 % and 10G free]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub swap_size: Option<Size>,

    /// How much of a huge page comes back at a fault; docs/swap-in.md says more
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    pub swapin: SwapInArg,

    /// How much of the memory may hold compressed pages, which need no read when they are wanted again: off,
    /// auto (what it is worth), or a share as in 40% [default: auto; with --swap ram off]
    #[arg(long, value_name = "SHARE", value_parser = compress)]
    pub compress: Option<Compress>,

    /// What compressed memory is compressed with
    #[arg(long, value_enum, default_value_t, value_name = "CODEC")]
    pub compress_codec: CodecArg,

    /// How long idle processors may take to wake while the run waits for many pages: off, microseconds (as root), or
    /// auto: none in a virtual machine of up to eight
    #[arg(long, value_name = "US", value_parser = cpu_latency, default_value = "auto")]
    pub cpu_latency: CpuLatency,

    /// Let processes that together need more than there is all go on at a time, however little each gets done
    #[arg(long)]
    pub no_turns: bool,

    /// Leave what goes to swap readable for who has the disk; it is checked all the same
    #[arg(long)]
    pub no_encrypt: bool,

    /// Make the program and its children a group of this name, with a limit and counters of its own (docs/cli.md). Where
    /// this is given to a program of a run, the group is within that run, and --memory is for the group
    #[arg(long, value_name = "NAME", value_parser = group_name)]
    pub group: Option<String>,

    /// Write counters to this file as JSON, every second and at the end; a pipe, or /dev/stdout (-), gets a
    /// line each time
    #[arg(long, value_name = "FILE")]
    pub stats_json: Option<PathBuf>,

    /// Write down every fault there, for `hugeswap bench policies --trace FILE`
    #[arg(long, value_name = "FILE")]
    pub record_faults: Option<PathBuf>,

    /// End the run with a message instead of going above the limit: when swap is full, or a program of it
    /// can't be managed
    #[arg(long)]
    pub strict: bool,

    /// Say on standard error what is chosen and how it went
    #[arg(long, short)]
    pub verbose: bool,

    /// Go without the right to serve faults of system calls: they fail on swapped memory
    #[arg(long)]
    pub user_mode_only: bool,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

impl RunArgs {
    /// What leaves the program stays in memory.
    pub fn swaps_nowhere(&self) -> bool {
        self.swap.contains(&Where::Nowhere)
    }

    pub fn compress(&self) -> Compress {
        let is_memory = |place: &Where| matches!(place, Where::Place(p) if p.spec == SwapSpec::Ram);
        match self.compress {
            Some(share) => share,
            // There a read is a copy.
            None if !self.swap.is_empty() && self.swap.iter().all(is_memory) => Compress::Off,
            None => Compress::Auto,
        }
    }
}

pub fn compress(text: &str) -> Result<Compress, String> {
    let share = text.strip_suffix('%').and_then(|n| n.parse().ok());
    match (text, share) {
        ("off", _) => Ok(Compress::Off),
        ("auto", _) => Ok(Compress::Auto),
        (_, Some(0)) => Ok(Compress::Off),
        (_, Some(n)) if n <= 90 => Ok(Compress::Percent(n)),
        _ => Err("give off, auto, or a share of the memory up to 90%, as in 40%".into()),
    }
}

fn group_name(text: &str) -> Result<String, String> {
    match groups::is_name(text) && link::group_name(text).is_some() {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "a name has 1 to {} bytes and no slash",
            link::MOST_NAME
        )),
    }
}

/// See `idle_latency`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuLatency {
    Auto,
    Off,
    Microseconds(u32),
}

pub fn cpu_latency(text: &str) -> Result<CpuLatency, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(CpuLatency::Auto),
        ("off", _) => Ok(CpuLatency::Off),
        (_, Ok(n)) => Ok(CpuLatency::Microseconds(n)),
        _ => Err("give auto, off, or microseconds, as in 10".into()),
    }
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwapInArg {
    /// What the program's accesses and madvise suggest
    #[default]
    Auto,
    /// All of it
    Always,
    /// All of it where the program said MADV_HUGEPAGE, else base pages
    Madvise,
    /// Base pages
    Never,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CodecArg {
    /// By what comes of either for the program's pages
    #[default]
    Auto,
    /// Quick
    Lz4,
    /// Smaller
    Zstd,
}

impl From<CodecArg> for CompressCodec {
    fn from(arg: CodecArg) -> CompressCodec {
        match arg {
            CodecArg::Auto => CompressCodec::Auto,
            CodecArg::Lz4 => CompressCodec::Lz4,
            CodecArg::Zstd => CompressCodec::Zstd,
        }
    }
}

impl From<SwapInArg> for SwapIn {
    fn from(arg: SwapInArg) -> SwapIn {
        match arg {
            SwapInArg::Auto => SwapIn::Auto,
            SwapInArg::Always => SwapIn::Always,
            SwapInArg::Madvise => SwapIn::Madvise,
            SwapInArg::Never => SwapIn::Never,
        }
    }
}

impl From<SwapIn> for SwapInArg {
    fn from(mode: SwapIn) -> SwapInArg {
        match mode {
            SwapIn::Auto => SwapInArg::Auto,
            SwapIn::Always => SwapInArg::Always,
            SwapIn::Madvise => SwapInArg::Madvise,
            SwapIn::Never => SwapInArg::Never,
        }
    }
}
