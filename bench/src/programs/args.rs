//! What the command line says.

use clap::builder::PossibleValuesParser;
use clap::ValueEnum;

use super::list;
use crate::swap_args::share_of_compressed;
use hugeswap_host::size::Size;
use hugeswap_host::swap_spec::{self, SwapSpec};

/// What is run, and how often.
#[derive(clap::Args, Debug, Clone)]
pub struct ProgramsArgs {
    /// Which to run [default: all that are installed]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = names())]
    pub program: Vec<String>,

    /// About what each needs
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    pub size: Size,

    /// The limit, as a share of what the program is seen to need
    #[arg(long, value_name = "X", default_value_t = 0.5, value_parser = share)]
    pub share: f64,

    /// Where to swap: a directory or a block device [default: a directory on a disk]
    #[arg(long, value_name = "SPEC", value_parser = swap_spec::parser())]
    pub swap: Option<SwapSpec>,

    /// The kernel's swap to compare with [default: all that this machine has]
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    pub against: Vec<Kernel>,

    /// Measure hugeswap with this 'run --compress' too: 'off', or a share of the limit as in 40%
    #[arg(long, value_name = "SHARE", value_parser = share_of_compressed)]
    pub compress: Option<String>,

    /// How often each side is measured, in turn; medians are shown
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,

    /// When a run is ended that takes too long [default: 12 times as long as without a limit, 120 at least]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: Option<u64>,

    /// Leave the comparison out: run with no limit and under hugeswap
    #[arg(long)]
    pub no_kernel: bool,

    /// Install what is missing: packages with apt-get, Python's modules with pip in ~/.cache/hugeswap
    #[arg(long)]
    pub install: bool,
}

fn names() -> PossibleValuesParser {
    let values = list::ALL
        .iter()
        .map(|p| clap::builder::PossibleValue::new(p.name).help(p.about));
    PossibleValuesParser::new(values)
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.05..=1.0).contains(&share) => Ok(share),
        _ => Err(format!(
            "'{text}' is not between 0.05 and 1: give a number as 0.5"
        )),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kernel {
    /// A swap file, or the device
    File,
    /// Compressed memory of two fifths of the limit, which the group has less; what does not fit goes to a swap file
    Zram,
    /// A swap file with compressed memory before it, charged to the group (version 2)
    Zswap,
}
