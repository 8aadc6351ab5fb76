//! `run --group` in a run: the program takes this process's place, as a group of that run.

use std::os::unix::process::CommandExt;
use std::process::Command;

use hugeswap_control::link::{self, Address, Descriptors, Door, Reply, Request, Secret, ENV};
use hugeswap_host::size::Size;
use hugeswap_host::sizing::LEAST_MEMORY;
use hugeswap_sys::{fd, Errno};

use super::failure::{Failure, EXIT_CANNOT_RUN, EXIT_USAGE};
use super::{environment, groups, program, signals, tasks};
use crate::run_args::{CpuLatency, RunArgs, SwapInArg};

/// The address of the run that this process belongs to.
pub fn address() -> Option<String> {
    let text = std::env::var(ENV).ok()?;
    let (address, _) = Door::split(text.as_bytes());
    Some(String::from_utf8_lossy(address).into_owned())
}

/// Does not return where it works.
pub fn run(args: &RunArgs, group: &str, address: &str) -> Failure {
    start(args, group, address).err().unwrap_or_else(|| {
        // Nobody comes here: what took our place has not come back.
        Failure::ours("no program")
    })
}

fn start(args: &RunArgs, group: &str, address: &str) -> Result<(), Failure> {
    check(args)?;
    let path = program::find(&args.program[0])?;
    program::check_manageable(&path)?;
    let bytes = args.memory.map_or(groups::UNLIMITED, Size::bytes);
    let secret = ask(address, group, bytes).map_err(|e| Failure::ours(refusal(e, group)))?;
    let address = Address::with_secret(address, secret);
    let address = address.ok_or_else(|| Failure::ours(format!("{ENV} can't be understood")))?;
    signals::outgrow_limits();
    let mut command = Command::new(&path);
    command.arg0(&args.program[0]).args(&args.program[1..]);
    environment::give(&mut command, &[(ENV, address.to_string().as_ref())]);
    signals::give_back(&mut command);
    let e = command.exec();
    Err(match tasks::is_refusal(&e) {
        true => tasks::refused(e),
        false => Failure {
            code: EXIT_CANNOT_RUN,
            message: format!("'{}' can't be run: {e}", path.display()),
        },
    })
}

/// The group's secret.
fn ask(address: &str, group: &str, bytes: u64) -> Result<Secret, Errno> {
    let name = link::group_name(group).ok_or(Errno::EINVAL)?;
    let to = Address::parse(address.as_bytes()).ok_or(Errno::EINVAL)?;
    let secret = to.secret;
    let hello = Request::Group {
        secret,
        bytes,
        name,
    };
    let link = to.greet(hello, -1)?;
    let answer = Reply::receive(link, &mut Descriptors::default());
    fd::close(link);
    match answer? {
        Reply::Group { secret } => Ok(secret),
        Reply::Refused(e) => Err(e),
        Reply::Welcome { .. } | Reply::Place(_) => Err(Errno::EINVAL),
    }
}

fn refusal(e: Errno, group: &str) -> String {
    match e.0 {
        libc::EUSERS => {
            format!("the run has as many groups as it can have: there is no room for '{group}'")
        }
        libc::ELOOP => format!("'{group}' would be within too many groups"),
        libc::ECONNREFUSED | libc::ENOENT => {
            "the run around this can't be reached from here".to_owned()
        }
        _ => format!(
            "the run around this does not take a group: {}",
            std::io::Error::from_raw_os_error(e.0)
        ),
    }
}

/// What is for a whole run can't be had for a part of it.
fn check(args: &RunArgs) -> Result<(), Failure> {
    let usage = |message: String| Failure {
        code: EXIT_USAGE,
        message,
    };
    let of_run = [
        ("--swap", !args.swap.is_empty()),
        ("--swap-size", args.swap_size.is_some()),
        ("--overwrite", args.overwrite),
        ("--swapin", args.swapin != SwapInArg::default()),
        ("--compress", args.compress.is_some()),
        ("--cpu-latency", args.cpu_latency != CpuLatency::Auto),
        ("--no-turns", args.no_turns),
        ("--no-encrypt", args.no_encrypt),
        ("--stats-json", args.stats_json.is_some()),
        ("--record-faults", args.record_faults.is_some()),
        ("--strict", args.strict),
    ];
    if let Some((option, _)) = of_run.iter().find(|(_, given)| *given) {
        return Err(usage(format!(
            "{option} is for a whole run: give it to the 'hugeswap run' that this group is within"
        )));
    }
    let little = args.memory.filter(|m| m.bytes() < LEAST_MEMORY);
    little.map_or(Ok(()), |m| {
        Err(usage(format!(
            "--memory {} is too little for a group: give {} or more",
            m.exact(),
            Size::from_bytes(LEAST_MEMORY)
        )))
    })
}
