//! One worker's run: what it is to do, and how it ended.

use crate::args::Args;
use crate::plan::Rng;
use crate::worker::{FINDINGS, KEEP, TRACE};
use std::os::unix::fs::PermissionsExt;
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
        // Also for children that go on as somebody else.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777))?;
        Ok(Dir(path))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
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
    if args.disturb {
        line.push("--disturb".into());
    }
    let mut child = Command::new(&line[0])
        .args(&line[1..])
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(dir.0.join("stderr"))?)
        .process_group(0)
        .spawn()?;
    let disturber = args.disturb.then(|| Disturber::new(child.id(), batch.seed));
    let ended = wait(&mut child, Duration::from_secs(args.timeout), disturber);
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
fn wait(
    child: &mut Child,
    limit: Duration,
    mut disturber: Option<Disturber>,
) -> Result<ExitStatus, String> {
    let start = Instant::now();
    loop {
        if let Some(d) = &mut disturber {
            d.once();
        }
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

fn read(p: &Path) -> String {
    std::fs::read_to_string(p).unwrap_or_default()
}

/// The processes of a group, as their directories in /proc, and the parent of each.
fn group(group: u32) -> Vec<(PathBuf, u32)> {
    let mut out = Vec::new();
    for p in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let stat = read(&p.path().join("stat"));
        let rest = stat.rsplit_once(')').map_or("", |s| s.1);
        let number = |n| rest.split_ascii_whitespace().nth(n)?.parse::<u32>().ok();
        if let (Some(parent), true) = (number(1), number(2) == Some(group)) {
            out.push((p.path(), parent));
        }
    }
    out
}

/// Stops a process of the run now and then, whichever it is, and kills a child of the worker's.
struct Disturber {
    front: u32,
    rng: Rng,
    stopped: Option<String>,
    wait: usize,
}

fn signal(signal: &str, pid: &str) {
    let _ = Command::new("kill")
        .args([signal, pid])
        .stderr(Stdio::null())
        .status();
}

/// Nobody is left standing: the run would wait for it.
impl Drop for Disturber {
    fn drop(&mut self) {
        if let Some(pid) = self.stopped.take() {
            signal("-CONT", &pid);
        }
    }
}

impl Disturber {
    fn new(front: u32, seed: u64) -> Disturber {
        Disturber {
            front,
            rng: Rng::new(seed, u64::MAX),
            stopped: None,
            wait: 20,
        }
    }

    /// Every 10 ms.
    fn once(&mut self) {
        if self.wait > 0 {
            self.wait -= 1;
            return;
        }
        self.wait = self.rng.below(20);
        if let Some(pid) = self.stopped.take() {
            return signal("-CONT", &pid);
        }
        let all = group(self.front);
        if all.is_empty() {
            return;
        }
        let pid_of = |i: usize| {
            let name = all[i].0.file_name().unwrap_or_default();
            name.to_string_lossy().into_owned()
        };
        let i = self.rng.below(all.len());
        let pid = pid_of(i);
        let is_worker = |i: usize| {
            let words = read(&all[i].0.join("cmdline"));
            words
                .split('\0')
                .next()
                .is_some_and(|w| w.ends_with("hugeswap-difftest"))
        };
        // A worker's child, by the worker's own or its grandparents: never the first worker.
        let parent = all[i].1.to_string();
        let is_child = is_worker(i) && (0..all.len()).any(|k| is_worker(k) && pid_of(k) == parent);
        if is_child && self.rng.one_in(4) {
            return signal("-KILL", &pid);
        }
        signal("-STOP", &pid);
        self.stopped = Some(pid);
    }
}

/// Where the threads of a process group are.
fn stacks(front: u32) -> String {
    let mut out = String::new();
    for (p, _) in group(front) {
        for t in std::fs::read_dir(p.join("task"))
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
