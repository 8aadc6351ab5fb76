//! The program that is measured: the same in every case. It prints one JSON
//! object per round.

use std::fs;
use std::hint::black_box;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::latency::Latency;
use super::part::{Contents, Done, Part, PAGE_WORDS};
use super::pattern::{Pages, Pattern};
use super::workload::{self, Workload};
use hugeswap_host::os::{self, Words};
use hugeswap_host::size::Size;

#[derive(clap::Args, Debug, Clone)]
pub struct WorkerArgs {
    /// The workload's name
    pub workload: String,

    /// Bytes per process
    #[arg(long)]
    pub size: Size,

    #[arg(long)]
    pub rounds: u64,

    /// Accesses of each thread in a round
    #[arg(long)]
    pub accesses: u64,

    #[arg(long)]
    pub threads: u32,

    /// Threads that only compute
    #[arg(long)]
    pub busy: u32,

    /// In place of the workload's
    #[arg(long)]
    pub writes: Option<u8>,

    #[arg(long)]
    pub theta: Option<f64>,

    /// In place of words that count on
    #[arg(long)]
    pub compressible: Option<f64>,

    /// More than one: start that many workers and wait for them
    #[arg(long)]
    pub processes: u32,

    /// Which of several this is: it begins a round with each byte of standard input, and ends with that
    #[arg(long)]
    pub index: Option<u32>,
}

/// One round of one worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    pub worker: u32,
    /// From 0, which fills the memory.
    pub round: u64,
    pub accesses: u64,
    pub bytes: u64,
    /// When it began, by a clock that all processes share.
    pub begin: f64,
    /// Of the slowest thread.
    pub seconds: f64,
    pub errors: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    /// Bytes of the range in memory at the end of the round, and those of them
    /// in huge pages.
    pub resident: u64,
    pub huge: u64,
    /// Of accesses that were timed by themselves.
    pub latency: Latency,
}

pub fn run(args: &WorkerArgs) -> ExitCode {
    let Some(mut workload) = workload::by_name(&args.workload) else {
        errln!("hugeswap: there is no workload '{}'", args.workload);
        return ExitCode::FAILURE;
    };
    workload.writes = args.writes.unwrap_or(workload.writes);
    if let (Pattern::Zipf { theta }, Some(given)) = (&mut workload.pattern, args.theta) {
        *theta = given;
    }
    let result = if args.processes > 1 {
        spawn(args)
    } else {
        work(&workload, args)
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(err) => {
            errln!("hugeswap: worker of {}: {err}", args.workload);
            ExitCode::FAILURE
        }
    }
}

impl WorkerArgs {
    /// The words that make these arguments again.
    pub fn words(&self) -> Vec<String> {
        let mut words = vec!["bench-worker".to_owned(), self.workload.clone()];
        let mut option = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                words.extend([format!("--{name}"), value]);
            }
        };
        option("size", Some(self.size.bytes().to_string()));
        option("rounds", Some(self.rounds.to_string()));
        option("accesses", Some(self.accesses.to_string()));
        option("threads", Some(self.threads.to_string()));
        option("busy", Some(self.busy.to_string()));
        option("writes", self.writes.map(|n| n.to_string()));
        option("theta", self.theta.map(|n| n.to_string()));
        option("compressible", self.compressible.map(|n| n.to_string()));
        option("processes", Some(self.processes.to_string()));
        option("index", self.index.map(|n| n.to_string()));
        words
    }
}

/// All workers begin each round at the same moment, and keep their memory until the last of them is done:
/// else on few processors one would have it after the other. True if all went well.
fn spawn(args: &WorkerArgs) -> io::Result<bool> {
    let program = std::env::current_exe()?;
    let mut children: Vec<Child> = Vec::new();
    for index in 0..args.processes {
        let one = WorkerArgs {
            processes: 1,
            index: Some(index),
            ..args.clone()
        };
        let child = Command::new(&program)
            .args(one.words())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        children.push(child);
    }
    let mut well = rounds(&mut children, args.rounds)?;
    for child in &mut children {
        drop(child.stdin.take());
    }
    for child in &mut children {
        well &= child.wait()?.success();
    }
    Ok(well)
}

/// False if one of the workers has ended early.
fn rounds(children: &mut [Child], rounds: u64) -> io::Result<bool> {
    let reports = children.iter_mut().filter_map(|c| c.stdout.take());
    let mut reports: Vec<_> = reports.map(BufReader::new).collect();
    for _ in 0..rounds {
        for go in children.iter().filter_map(|c| c.stdin.as_ref()) {
            if let Err(err) = { go }.write_all(b"\n") {
                return (err.kind() == io::ErrorKind::BrokenPipe)
                    .then_some(false)
                    .ok_or(err);
            }
        }
        for report in &mut reports {
            let mut line = String::new();
            if report.read_line(&mut line)? == 0 {
                return Ok(false);
            }
            io::stdout().write_all(line.as_bytes())?;
        }
    }
    Ok(true)
}

/// Which worker, thread and round this is: what is drawn at random depends on all three.
fn seed(worker: u32, thread: usize, round: u64) -> u64 {
    u64::from(worker) << 48 | (thread as u64) << 32 | round
}

fn work(workload: &Workload, args: &WorkerArgs) -> io::Result<bool> {
    let mut words = Words::map(args.size.bytes())?;
    let range = words.range();
    let worker = args.index.unwrap_or(0);
    let contents = match args.compressible {
        Some(ratio) => Contents::Compressible { ratio },
        None => Contents::Counting,
    };
    let part_pages = words.as_mut_slice().len() / PAGE_WORDS / args.threads as usize;
    let mut parts: Vec<Part> = words
        .as_mut_slice()
        .chunks_exact_mut(part_pages * PAGE_WORDS)
        .zip(0..u64::from(args.threads))
        .map(|(words, thread)| Part::new(words, thread * part_pages as u64, contents))
        .collect();
    let _busy = Busy::start(args.busy);
    let mut well = true;
    for round in 0..args.rounds {
        if args.index.is_some() {
            io::stdin().read_exact(&mut [0])?;
        }
        let begin = os::now();
        let before = os::faults();
        let (done, took) = one_round(workload, &mut parts, args.accesses, worker, round)?;
        let after = os::faults();
        let (resident, huge) = residence(range)?;
        well &= done.errors == 0;
        let report = Round {
            worker,
            round,
            accesses: done.accesses,
            bytes: done.accesses * PAGE_WORDS as u64 * 8,
            begin,
            seconds: took.as_secs_f64(),
            errors: done.errors,
            minor_faults: after.0 - before.0,
            major_faults: after.1 - before.1,
            resident,
            huge,
            latency: done.latency,
        };
        // One write per line: lines of several workers don't mix.
        let mut line = serde_json::to_string(&report)?;
        line.push('\n');
        io::stdout().write_all(line.as_bytes())?;
    }
    if args.index.is_some() {
        io::stdin().read_to_end(&mut Vec::new())?;
    }
    Ok(well)
}

/// Threads that compute until this is dropped.
struct Busy {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    fn start(threads: u32) -> Busy {
        let stop = Arc::new(AtomicBool::new(false));
        let compute = |stop: Arc<AtomicBool>| {
            let mut n = 0u64;
            while !stop.load(Relaxed) {
                n = black_box(n.wrapping_mul(6364136223846793005).wrapping_add(1));
            }
        };
        let threads = (0..threads)
            .map(|_| {
                let stop = stop.clone();
                std::thread::spawn(move || compute(stop))
            })
            .collect();
        Busy { stop, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// All threads, from the moment when all are ready to the end of the last.
fn one_round(
    workload: &Workload,
    parts: &mut [Part],
    accesses: u64,
    worker: u32,
    round: u64,
) -> io::Result<(Done, Duration)> {
    let ready = Barrier::new(parts.len());
    let one = |thread: usize, part: &mut Part| -> io::Result<(Done, Instant, Instant)> {
        let seed = seed(worker, thread, round);
        // Timed accesses are only those that fault: of others there may be any number.
        let drawn = if workload.timed {
            accesses * SKIPPED
        } else {
            accesses
        };
        let legs = workload.pattern.legs(part.pages(), drawn, round);
        let pages = Pages::new(legs, part.pages(), seed);
        ready.wait();
        let start = Instant::now();
        let done = if round == 0 {
            part.populate()
        } else if workload.timed {
            part.time(pages, accesses)?
        } else {
            part.go(pages, workload.writes, seed)
        };
        let end = if workload.timed && round > 0 {
            start + done.waited
        } else {
            Instant::now()
        };
        Ok((done, start, end))
    };
    let Some((first, others)) = parts.split_first_mut() else {
        return Ok(Default::default());
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (1..)
            .zip(others)
            .map(|(thread, part)| scope.spawn(move || one(thread, part)))
            .collect();
        let mut results = vec![one(0, first)];
        for thread in threads {
            let died = |_| Err(io::Error::other("a thread died"));
            results.push(thread.join().unwrap_or_else(died));
        }
        results
    });
    summed(results)
}

/// What all threads have done, and the time from the first one's start to the last one's end.
fn summed(results: Vec<io::Result<(Done, Instant, Instant)>>) -> io::Result<(Done, Duration)> {
    let mut sum = Done::default();
    let mut times: Option<(Instant, Instant)> = None;
    for result in results {
        let (done, start, end) = result?;
        sum.accesses += done.accesses;
        sum.errors += done.errors;
        sum.latency.merge(&done.latency);
        times = Some(match times {
            None => (start, end),
            Some((first, last)) => (first.min(start), last.max(end)),
        });
    }
    let took = times.map_or(Duration::ZERO, |(start, end)| end - start);
    Ok((sum, took))
}

/// Accesses that may be drawn for each that is timed.
const SKIPPED: u64 = 64;

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
