//! The program that is measured: the same in every case. It prints one JSON
//! object per round.

use std::fs;
use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::workload::{self, Workload};
use crate::os::{self, Words};
use crate::size::Size;

#[derive(clap::Args, Debug)]
pub struct WorkerArgs {
    /// The workload's name
    pub workload: String,

    /// Bytes per process
    #[arg(long)]
    pub size: Size,

    #[arg(long, default_value_t = 3)]
    pub rounds: u64,

    /// More than one: start that many workers and wait for them
    #[arg(long, default_value_t = 1)]
    pub processes: u32,

    /// Which of several this is; it starts when its standard input ends
    #[arg(long)]
    pub index: Option<u32>,
}

/// One round of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    pub worker: u32,
    /// From 0.
    pub round: u64,
    pub bytes: u64,
    pub seconds: f64,
    pub errors: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    /// Bytes of the range in memory at the end of the round, and those of them
    /// in huge pages.
    pub resident: u64,
    pub huge: u64,
}

pub fn run(args: &WorkerArgs) -> ExitCode {
    let Some(workload) = workload::by_name(&args.workload) else {
        eprintln!("hugeswap: there is no workload '{}'", args.workload);
        return ExitCode::FAILURE;
    };
    let result = if args.processes > 1 {
        spawn(args)
    } else {
        work(workload, args)
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(err) => {
            eprintln!("hugeswap: worker of {}: {err}", args.workload);
            ExitCode::FAILURE
        }
    }
}

/// Starts all workers at the same moment: each waits for the end of its
/// standard input. True if all went well.
fn spawn(args: &WorkerArgs) -> io::Result<bool> {
    let program = std::env::current_exe()?;
    let mut children: Vec<Child> = Vec::new();
    for index in 0..args.processes {
        let child = Command::new(&program)
            .args(["bench-worker", &args.workload])
            .args(["--size", &args.size.bytes().to_string()])
            .args(["--rounds", &args.rounds.to_string()])
            .args(["--index", &index.to_string()])
            .stdin(Stdio::piped())
            .spawn()?;
        children.push(child);
    }
    for child in &mut children {
        drop(child.stdin.take());
    }
    let mut well = true;
    for child in &mut children {
        well &= child.wait()?.success();
    }
    Ok(well)
}

fn work(workload: &Workload, args: &WorkerArgs) -> io::Result<bool> {
    let mut words = Words::map(args.size.bytes())?;
    if args.index.is_some() {
        io::stdin().read_to_end(&mut Vec::new())?;
    }
    let mut well = true;
    for round in 0..args.rounds {
        let before = os::faults();
        let start = Instant::now();
        let done = (workload.round)(words.as_mut_slice(), round);
        let seconds = start.elapsed().as_secs_f64();
        let after = os::faults();
        let (resident, huge) = residence(words.range())?;
        well &= done.errors == 0;
        let report = Round {
            worker: args.index.unwrap_or(0),
            round,
            bytes: done.bytes,
            seconds,
            errors: done.errors,
            minor_faults: after.0 - before.0,
            major_faults: after.1 - before.1,
            resident,
            huge,
        };
        // One write per line: lines of several workers don't mix.
        let mut line = serde_json::to_string(&report)?;
        line.push('\n');
        io::stdout().write_all(line.as_bytes())?;
    }
    Ok(well)
}

/// Bytes resident, and resident in huge pages, of the mappings in `range`.
fn residence(range: (u64, u64)) -> io::Result<(u64, u64)> {
    Ok(residence_in(
        &fs::read_to_string("/proc/self/smaps")?,
        range,
    ))
}

fn residence_in(smaps: &str, (start, end): (u64, u64)) -> (u64, u64) {
    let mut inside = false;
    let (mut resident, mut huge) = (0, 0);
    for line in smaps.lines() {
        let Some((first, rest)) = line.split_once(' ') else {
            continue;
        };
        if let Some((from, to)) = first.split_once('-') {
            if let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16))
            {
                inside = from < end && to > start;
                continue;
            }
        }
        let sum = match first {
            "Rss:" => &mut resident,
            "AnonHugePages:" => &mut huge,
            _ => continue,
        };
        if inside {
            let kilobytes = rest.trim().trim_end_matches(" kB").parse().unwrap_or(0);
            *sum += kilobytes * 1024u64;
        }
    }
    (resident, huge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residence_of_the_range_only() {
        let smaps = "\
1000-3000 rw-p 00000000 00:00 0 [heap]
Rss:  8 kB
AnonHugePages:  4 kB
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Rss:  4096 kB
AnonHugePages:  2048 kB
7f0000400000-7f0000600000 rw-p 00000000 00:00 0
Rss:  2048 kB
AnonHugePages:  2048 kB
VmFlags: rd wr";
        let range = (0x7f00_0000_0000, 0x7f00_0060_0000);
        assert_eq!(residence_in(smaps, range), (6 << 20, 4 << 20));
    }
}
