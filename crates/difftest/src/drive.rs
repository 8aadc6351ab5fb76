//! Runs workers, one batch of sequences after the other, until one finds something.

use crate::plan::mix;
use crate::shrink;
use crate::worker::{FINDINGS, KEEP, TRACE};
use crate::Args;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// One worker's run and how it ended.
pub struct Outcome {
    pub failure: Option<String>,
    /// Operations in the order in which they were begun.
    pub trace: Vec<u64>,
}

/// What a worker is to do.
#[derive(Clone)]
pub struct Batch {
    pub seed: u64,
    pub sequences: u64,
}

/// A directory of a worker's own, gone when dropped.
struct Dir(PathBuf);

impl Dir {
    fn new(args: &Args) -> std::io::Result<Dir> {
        let path = args
            .dir
            .join(format!("hugeswap-difftest-{}", std::process::id()));
        // What a killed run of the same number left behind is not ours.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path)?;
        Ok(Dir(path))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the whole; the exit status.
pub fn run(args: &Args) -> i32 {
    let start = Instant::now();
    let mut done = 0;
    println!(
        "hugeswap-difftest: seed {}, {} MiB of data at most, under '{}'",
        args.seed,
        args.data,
        args.under.join(" ")
    );
    for k in 0.. {
        let over = match args.minutes {
            Some(m) => start.elapsed() >= Duration::from_secs(60 * m),
            None => done >= args.sequences,
        };
        if over {
            break;
        }
        let sequences = match args.minutes {
            Some(_) => args.batch,
            None => args.batch.min(args.sequences - done),
        };
        let batch = Batch {
            // The first batch has the seed itself, so that a failure's line repeats it.
            seed: if k == 0 {
                args.seed
            } else {
                mix(args.seed ^ mix(k))
            },
            sequences,
        };
        let out = match one(args, &batch, None) {
            Ok(out) => out,
            Err(e) => {
                eprintln!("hugeswap-difftest: {e}");
                return 125;
            }
        };
        if let Some(failure) = out.failure {
            println!("seed {} ({} sequences): {failure}", batch.seed, sequences);
            if !args.no_shrink {
                shrink::report(args, &batch, &out.trace);
            }
            return 1;
        }
        done += sequences;
    }
    println!(
        "{done} sequences in {:.0} s, no difference",
        start.elapsed().as_secs_f64()
    );
    0
}

/// Runs one worker; with `keep`, only these of its operations.
pub fn one(args: &Args, batch: &Batch, keep: Option<&[u64]>) -> std::io::Result<Outcome> {
    let dir = Dir::new(args)?;
    if let Some(keep) = keep {
        let bytes: Vec<u8> = keep.iter().flat_map(|id| id.to_ne_bytes()).collect();
        std::fs::write(dir.0.join(KEEP), bytes)?;
    }
    let mut line: Vec<std::ffi::OsString> = args.under.iter().map(Into::into).collect();
    line.push(std::env::current_exe()?.into());
    line.push("--worker".into());
    line.push(dir.0.clone().into());
    for (name, value) in [
        ("--seed", batch.seed),
        ("--sequences", batch.sequences),
        ("--data", args.data as u64),
    ] {
        line.push(name.into());
        line.push(value.to_string().into());
    }
    for (name, list) in [("--without", &args.without), ("--only", &args.only)] {
        if !list.is_empty() {
            line.push(name.into());
            line.push(list.join(",").into());
        }
    }
    let mut child = Command::new(&line[0])
        .args(&line[1..])
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(dir.0.join("stderr"))?)
        .process_group(0)
        .spawn()?;
    let ended = wait(&mut child, Duration::from_secs(args.timeout));
    let text = |name: &str| std::fs::read_to_string(dir.0.join(name)).unwrap_or_default();
    let failure = match ended {
        Ok(status) => describe(status, &text(FINDINGS), &text("stderr")),
        Err(stacks) => Some(format!(
            "stuck for {} s\n{stacks}{}",
            args.timeout,
            text("stderr")
        )),
    };
    let trace = std::fs::read(dir.0.join(TRACE)).unwrap_or_default();
    let trace = trace
        .chunks_exact(8)
        .map(|b| u64::from_ne_bytes(b.try_into().unwrap_or_default()))
        .collect();
    Ok(Outcome { failure, trace })
}

fn describe(status: ExitStatus, findings: &str, stderr: &str) -> Option<String> {
    if status.success() && findings.is_empty() {
        return None;
    }
    let how = match status.signal() {
        Some(s) => format!("signal {s}"),
        None => format!("status {}", status.code().unwrap_or(-1)),
    };
    Some(format!("{how}\n{findings}{stderr}"))
}

/// Waits; if it takes too long, says where everybody is, and ends them.
fn wait(child: &mut Child, limit: Duration) -> Result<ExitStatus, String> {
    let start = Instant::now();
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Ok(status);
        }
        if start.elapsed() > limit {
            let stacks = stacks(child.id());
            let group = format!("-{}", child.id());
            let _ = Command::new("kill").args(["-9", "--", &group]).status();
            let _ = child.wait();
            return Err(stacks);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Where the threads of a process group are.
fn stacks(group: u32) -> String {
    let mut out = String::new();
    let read = |p: &Path| std::fs::read_to_string(p).unwrap_or_default();
    for p in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let stat = read(&p.path().join("stat"));
        let in_group = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(2)?.parse::<u32>().ok());
        if in_group != Some(group) {
            continue;
        }
        for t in std::fs::read_dir(p.path().join("task"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let stack = read(&t.path().join("stack"));
            let top: Vec<&str> = stack.lines().take(5).collect();
            out += &format!("  {} {}\n", t.path().display(), top.join(" "));
        }
    }
    out
}
