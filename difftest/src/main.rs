//! Random sequences of memory operations, compared byte for byte with a shadow model in a file.
//!
//! It uses none of the other rooms, and may not: what it checks it knows from outside, as a program does.
//!
//!     hugeswap-difftest --sequences 2000 -- hugeswap run --memory 64M --swap ram --
//!
//! The words after `--` are put before the worker's command line; without them it runs unmanaged,
//! which shows that the test itself is right. Everything follows from `--seed`. A failure is
//! shrunk: the operations that it does not need are left out.
#![deny(unsafe_code)]

mod args;
mod batch;
mod drive;
mod plan;
mod shrink;
mod worker;

use args::Args;
use clap::Parser;

fn main() {
    let args = Args::parse();
    let code = match &args.worker {
        Some(dir) => worker::run(&args, dir),
        None => drive::run(&args),
    };
    std::process::exit(code);
}
