//! `hugeswap run`.
//!
//! Two processes: the *front*, which the shell knows, passes signals on and ends with the
//! program's status; and the *supervisor*, which owns the control page and the swap devices,
//! divides the limit among the managed processes and takes back what dead ones leave. The
//! supervisor outlives the front when the program leaves daemons behind. If the front is killed,
//! the supervisor kills the program; if the supervisor is killed, the kernel does.
//!
//! It uses what the engine shares with it (the control page, the connection, what a core file says)
//! and `host`. It may not touch a program's memory, nor know of `bench` or `cli`.
#![deny(unsafe_code)]
// These end the command with a panic where nothing can be written: `hugeswap_host::out` has what stands for them.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[macro_use]
extern crate hugeswap_host;

mod arbiter;
mod core_file;
mod devices;
mod environment;
mod failure;
mod family;
mod fault_file;
mod front;
mod groups;
mod idle_latency;
mod inject;
mod inside;
mod left_behind;
mod life;
mod object;
mod orphans;
mod outside;
mod owners;
mod processes;
mod program;
mod report;
mod signals;
mod stats_file;
mod supervisor;
mod sys;
mod tasks;
mod unmanaged;
mod words;
mod zero_copy;

pub mod run_args;

pub use devices::absolute;
pub use failure::{Failure, EXIT_CANNOT_RUN, EXIT_NOT_FOUND, EXIT_OURS, EXIT_USAGE};
pub use family::descendants;
pub use program::{check_library, preload_library};
pub use signals::had_no_output;
pub use tasks::check as check_tasks;

use std::process::ExitCode;

use crate::run_args::RunArgs;

pub fn run(args: RunArgs) -> ExitCode {
    match front::run(&args) {
        Ok(code) => ExitCode::from(code),
        Err(f) => {
            errln!("hugeswap: {}", f.message);
            ExitCode::from(f.code)
        }
    }
}
