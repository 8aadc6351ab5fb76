//! The command line, of the driver and of its workers.

use clap::Parser;
use std::path::PathBuf;

#[derive(Parser, Clone, Debug)]
#[command(version, about = "Random memory operations against a shadow model")]
pub struct Args {
    /// Everything follows from it
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many sequences to run
    #[arg(long, default_value_t = 1000)]
    pub sequences: u64,
    /// Sequences in one process, which starts with no memory
    #[arg(long, default_value_t = 50)]
    pub batch: u64,
    /// Run until so many minutes have passed, with one seed after the other
    #[arg(long, value_name = "MINUTES")]
    pub minutes: Option<u64>,
    /// The most memory that is mapped at a time, in MiB
    #[arg(long, default_value_t = 640)]
    pub data: usize,
    /// Kinds of operations to leave out, with commas between them
    #[arg(long, value_delimiter = ',')]
    pub without: Vec<String>,
    /// Only these kinds of operations
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Stop processes of the run for moments, hugeswap's own too, and kill children
    #[arg(long)]
    pub disturb: bool,
    /// Report a failure as it is
    #[arg(long)]
    pub no_shrink: bool,
    /// Seconds after which a batch counts as stuck
    #[arg(long, default_value_t = 120)]
    pub timeout: u64,
    /// Where shadow and scratch files are put
    #[arg(long, default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// What a worker is told by the driver
    #[arg(long, hide = true)]
    pub worker: Option<PathBuf>,
    /// What runs the worker, for instance: hugeswap run --memory 64M --
    #[arg(last = true)]
    pub under: Vec<String>,
}
