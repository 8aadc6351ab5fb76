//! The `hugeswap` command: parse, validate, run.
//!
//! A library with a one-line `main.rs`, so that the integration tests reach
//! the parts that set up and take down things in the kernel.
#![deny(unsafe_code)]

pub mod bench;
pub mod bench_allocator;
pub mod bench_copy;
pub mod cgroup;
pub mod cli;
pub mod doctor;
pub mod kernel_swap;
pub mod os;
pub mod promote;
pub mod run;
pub mod run_args;
pub mod size;
pub mod swap_spec;
pub mod swapoff;
pub mod undo;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use cli::{Cli, Command};

/// Exit status of a command line that can't be understood.
const USAGE: u8 = 2;

/// Parses the command line and runs what it asks for.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(err) => return usage(&err),
    };
    match cli.command {
        Command::Run(args) => run::run(args),
        Command::Swapoff(args) => swapoff::swapoff(&args),
        Command::Swapon(args) => swapoff::swapon(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Promote(args) => promote::run(&args),
        Command::Bench(args) => bench::run(args),
        Command::BenchWorker(args) => bench::worker::run(&args),
        Command::BenchGraph(args) => bench::programs::graph::run(&args),
        Command::Janitor => undo::janitor(),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "hugeswap", &mut script);
            print(&script)
        }
        Command::Man { subcommand } => man(subcommand.as_deref()),
    }
}

/// Help and version go to standard output as they are; an error becomes one
/// line, because that is what ends up in a log.
fn usage(err: &clap::Error) -> ExitCode {
    if !err.use_stderr() {
        // Nothing sensible can be done where even this can't be printed.
        let _ = err.print();
        return ExitCode::SUCCESS;
    }
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    eprintln!("{}", cli::one_line(err, &args));
    ExitCode::from(USAGE)
}

fn man(subcommand: Option<&str>) -> ExitCode {
    let mut command = Cli::command();
    command.build();
    let page = match subcommand {
        None => command,
        Some(name) => match command.find_subcommand(name) {
            Some(sub) => sub.clone(),
            None => {
                eprintln!("hugeswap: there is no subcommand '{name}'; see 'hugeswap --help'");
                return ExitCode::from(USAGE);
            }
        },
    };
    let mut text = Vec::new();
    match clap_mangen::Man::new(page).render(&mut text) {
        Ok(()) => print(&text),
        Err(err) => {
            eprintln!("hugeswap: can't make the manual page: {err}");
            ExitCode::FAILURE
        }
    }
}

/// `hugeswap man | head` is no error.
fn print(text: &[u8]) -> ExitCode {
    match std::io::stdout().write_all(text) {
        Err(err) if err.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("hugeswap: can't write to standard output: {err}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
