//! The `hugeswap` command: parse, validate, run.
//!
//! It may use every other room, and nobody uses it. What it has of its own is the command line, the
//! manual, and the small commands: `doctor`, `promote`, `set`, `swapoff` and `swapon`.
#![deny(unsafe_code)]
// These end the command with a panic where nothing can be written: `hugeswap_host::out` has what stands for them.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[macro_use]
extern crate hugeswap_host;

pub mod cli;
pub mod doctor;
mod going_on;
pub mod man;
pub mod promote;
pub mod set;
pub mod swapoff;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command, USAGE};
use hugeswap_host::{out, undo};

/// Parses the command line and runs what it asks for.
pub fn main() -> ExitCode {
    out::was_closed(hugeswap_supervise::had_no_output());
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(err) => return usage(&err),
    };
    let status = match cli.command {
        Command::Run(args) => hugeswap_supervise::run(args),
        Command::Swapoff(args) => swapoff::swapoff(&args),
        Command::Swapon(args) => swapoff::swapon(&args),
        Command::Set(args) => set::set(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Promote(args) => promote::run(&args),
        Command::Bench(args) => hugeswap_bench::run(args),
        Command::BenchWorker(args) => hugeswap_bench::worker::run(&args),
        Command::TrialProgram { what } => doctor::trial::program(what.is_some()),
        Command::Janitor => undo::janitor(),
        Command::Completions { shell } => man::completions(shell),
        Command::Man { subcommand } => man::page(&subcommand),
    };
    out::failure().map_or(status, ExitCode::from)
}

/// Help and version go to standard output as they are; an error becomes one
/// line, because that is what ends up in a log.
fn usage(err: &clap::Error) -> ExitCode {
    if !err.use_stderr() {
        out::printed(err.print());
        return out::failure().map_or(ExitCode::SUCCESS, ExitCode::from);
    }
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    errln!("{}", cli::one_line(err, &args));
    ExitCode::from(USAGE)
}
