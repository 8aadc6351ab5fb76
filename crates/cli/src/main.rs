//! The `hugeswap` command.

mod bench_copy;

use bench_copy::{anon_cow_seq, huge_copy};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "hugeswap", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Benchmarks
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Subcommand)]
enum Bench {
    HugeCopy(huge_copy::Args),
    AnonCowSeq(anon_cow_seq::Args),
}

fn main() -> std::process::ExitCode {
    let done = match Cli::parse().command {
        Command::Bench(Bench::HugeCopy(args)) => huge_copy::run(args),
        Command::Bench(Bench::AnonCowSeq(args)) => anon_cow_seq::run(args),
    };
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("hugeswap: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}
