//! The process that the user started.

use std::io::Read;

use super::sys::{self, Side, Status};
use super::{program, supervisor, Failure};
use crate::os;
use crate::run_args::RunArgs;
use crate::size::Size;

/// Less than this cannot hold the engine's own buffers and a few huge pages.
const LEAST: u64 = 64 << 20;

/// Everything that can go wrong before the program runs is found out here, in one process.
pub fn run(args: &RunArgs) -> Result<u8, Failure> {
    let memory = limit(args)?;
    let name = &args.program[0];
    let path = program::find(name)?;
    program::check_manageable(&path)?;
    let library = program::preload_library()?;
    check_kernel(args)?;

    let (status_in, status_out) =
        sys::pipe().map_err(|e| Failure::ours(format!("no pipe: {e}")))?;
    let (alive_in, alive_out) = sys::pipe().map_err(|e| Failure::ours(format!("no pipe: {e}")))?;
    sys::ignore_terminal();
    match sys::fork().map_err(|e| Failure::ours(format!("can't start: {e}")))? {
        Side::Child => {
            drop(status_in);
            drop(alive_out);
            let plan = supervisor::Plan {
                args,
                memory,
                path,
                library,
            };
            let code = supervisor::run(plan, status_out, alive_in);
            sys::exit_now(code)
        }
        Side::Parent { child } => {
            drop(status_out);
            drop(alive_in);
            // Kept open as long as this process lives: its end tells the supervisor.
            let _alive = alive_out;
            follow(status_in, child)
        }
    }
}

fn limit(args: &RunArgs) -> Result<u64, Failure> {
    let memory = match args.memory {
        Some(s) => s.bytes(),
        None => os::available_memory().unwrap_or(2 << 30) / 2,
    };
    if memory < LEAST {
        return Err(Failure {
            code: super::EXIT_USAGE,
            message: format!(
                "--memory {} is too little: hugeswap itself needs some of it; give {} or more",
                Size::from_bytes(memory),
                Size::from_bytes(LEAST)
            ),
        });
    }
    Ok(memory)
}

/// Without userfaultfd nothing works; say so before anything is set up.
fn check_kernel(args: &RunArgs) -> Result<(), Failure> {
    use hugeswap::sys::uffd::{Source, Uffd};
    match Uffd::open(0, true) {
        Ok((u, source)) => {
            u.close();
            if source == Source::UserModeOnly && !args.user_mode_only {
                return Err(Failure::ours(
                    "this user may not serve page faults of system calls, so programs would fail with EFAULT: \
                     run 'hugeswap doctor' for the one command that allows it, or give --user-mode-only and accept that",
                ));
            }
            Ok(())
        }
        Err(e) => Err(Failure::ours(format!(
            "userfaultfd is not available ({e}): 'hugeswap doctor' says what is missing"
        ))),
    }
}

/// Reads what the supervisor reports: the program's number, then how it ended and whether the
/// supervisor stays for daemons.
fn follow(status: std::os::fd::OwnedFd, supervisor: i32) -> Result<u8, Failure> {
    let mut pipe = std::fs::File::from(status);
    let mut word = || -> Option<i32> {
        let mut b = [0u8; 4];
        pipe.read_exact(&mut b).ok()?;
        Some(i32::from_ne_bytes(b))
    };
    if let Some(pid) = word() {
        if pid > 0 {
            sys::forward_signals(pid);
        }
    }
    let (kind, value, stays) = (word(), word(), word());
    if stays == Some(0) {
        // When we are gone nothing of the run is left.
        let _ = sys::wait(supervisor);
    }
    match (kind, value) {
        (Some(0), Some(code)) => Ok(code as u8),
        (Some(1), Some(signal)) => {
            let s = Status::Killed(signal);
            sys::die_of(signal);
            Ok(s.code())
        }
        _ => {
            let _ = sys::wait(supervisor);
            Err(Failure::ours(
                "the supervisor was killed, and the program with it",
            ))
        }
    }
}
