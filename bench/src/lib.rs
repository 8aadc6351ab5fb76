//! `hugeswap bench TEST`: one subcommand per test.
//!
//! Tests that swap a program out and in are workloads of one table
//! ([`workload`]) and share [`swap_test`]. A test of another kind has a module
//! with its own arguments and `run`, one variant here and one line in [`run`].
//!
//! It runs `hugeswap run` as a command, like anybody, and uses `host` to set contestants up and take
//! them down. Of the engine it uses what is measured by itself: devices, slots, copying. It may not
//! know of `supervise` or `cli`.
#![deny(unsafe_code)]
// These end the command with a panic where nothing can be written: `hugeswap_host::out` has what stands for them.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[macro_use]
extern crate hugeswap_host;

pub mod all;
pub mod allocator;
pub mod arena;
pub mod build;
pub mod copy;
pub mod error;
pub mod findings;
pub mod fio;
pub mod html;
pub mod latency;
pub mod machine;
pub mod markdown;
pub mod pages;
pub mod panel;
pub mod part;
pub mod pattern;
pub mod plot;
pub mod policies;
pub mod programs;
pub mod report;
pub mod swap_args;
pub mod swap_run;
pub mod swap_test;
pub mod watch;
pub mod worker;
pub mod workload;

use std::process::ExitCode;

use clap::Subcommand;

use copy::{anon_cow_seq, huge_copy};
use swap_args::SwapArgs;

#[derive(clap::Args, Debug)]
#[command(subcommand_required = true, arg_required_else_help = false)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub test: Test,
}

#[derive(Subcommand, Debug)]
pub enum Test {
    /// Write a large range from begin to end, several rounds, and verify it
    SwapWSeq(SwapArgs),
    /// The same in several threads, each with a part of its own
    SwapWSeqMt(SwapArgs),
    /// Write pages at random, and verify them
    SwapWRand(SwapArgs),
    /// Read and verify pages at random
    SwapRRand(SwapArgs),
    /// Read and write pages at random, some much more often than others
    SwapZipf(SwapArgs),
    /// Read and write every so many pages, with several strides, up and down
    SwapStride(SwapArgs),
    /// Walk through memory, then jump, then stay in a hot part; another one each round
    SwapPhases(SwapArgs),
    /// Time single reads of pages that are swapped out
    FaultLatency(SwapArgs),
    /// The kernel's THP swap allocator test, against our swap-slot allocator
    ThpSwapAllocator(crate::allocator::Args),
    All(all::AllArgs),
    Programs(panel::PanelArgs),
    Build(build::BuildArgs),
    Policies(policies::PoliciesArgs),
    /// Copy and clear huge pages in several orders, under cache pressure
    HugeCopy(huge_copy::Args),
    /// Copy-on-write of a populated range by forked children
    AnonCowSeq(anon_cow_seq::Args),
}

pub fn run(args: BenchArgs) -> ExitCode {
    match args.test {
        Test::SwapWSeq(args) => swap_test::run(&workload::SWAP_W_SEQ, &args),
        Test::SwapWSeqMt(args) => swap_test::run(&workload::SWAP_W_SEQ_MT, &args),
        Test::SwapWRand(args) => swap_test::run(&workload::SWAP_W_RAND, &args),
        Test::SwapRRand(args) => swap_test::run(&workload::SWAP_R_RAND, &args),
        Test::SwapZipf(args) => swap_test::run(&workload::SWAP_ZIPF, &args),
        Test::SwapStride(args) => swap_test::run(&workload::SWAP_STRIDE, &args),
        Test::SwapPhases(args) => swap_test::run(&workload::SWAP_PHASES, &args),
        Test::FaultLatency(args) => swap_test::run(&workload::FAULT_LATENCY, &args),
        Test::ThpSwapAllocator(args) => match crate::allocator::run(args) {
            Ok(code) => code,
            Err(message) => one_line(Err(message)),
        },
        Test::All(args) => all::run(&args),
        Test::Programs(args) => panel::run(&args),
        Test::Build(args) => build::run(&args),
        Test::Policies(args) => one_line(policies::run(&args)),
        Test::HugeCopy(args) => one_line(huge_copy::run(args)),
        Test::AnonCowSeq(args) => one_line(anon_cow_seq::run(args)),
    }
}

fn one_line(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            errln!("hugeswap: {message}");
            ExitCode::FAILURE
        }
    }
}
