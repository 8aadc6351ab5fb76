//! Core files of managed processes.
//!
//! The kernel leaves out of them what is in swap (`hugeswap::dump`). When a process is found dead, and
//! before what it had in swap is given back, its core file is looked for and completed, by a thread for
//! each. `kernel.core_pattern` says what it is called, as far as that can be known from outside; that it
//! is this process's, a key in its memory says.

mod elf;
mod fill;
mod pattern;

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hugeswap::control::{Control, Proc, LIVE, MAX_PROCS};
use hugeswap::dump::{Tables, Unreadable};

use super::devices::Opened;
use elf::CoreFile;
use pattern::Pattern;

/// How often it is looked in which directories the processes are.
const LOOK: Duration = Duration::from_millis(200);
/// Directories that are remembered.
const DIRECTORIES: usize = 64;

pub struct Cores {
    control: &'static Control,
    verbose: bool,
    /// Where processes of the run were seen, the last one last.
    directories: Vec<PathBuf>,
    /// The process of each entry whose directory was asked for.
    seen: Vec<u32>,
    next_look: Instant,
    /// Of each entry whose core file is being completed.
    jobs: Vec<Option<JoinHandle<()>>>,
    /// Processes that had pages in swap, and of which no core file was found.
    without: HashSet<u32>,
    /// Files that were written before are of no interest; in seconds.
    began: i64,
}

impl Cores {
    pub fn new(control: &'static Control, verbose: bool) -> Cores {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Cores {
            control,
            verbose,
            directories: std::env::current_dir().into_iter().collect(),
            seen: vec![0; MAX_PROCS],
            next_look: Instant::now(),
            jobs: (0..MAX_PROCS).map(|_| None).collect(),
            without: HashSet::new(),
            // The clock of a file system may be a little behind.
            began: now.map_or(0, |d| d.as_secs() as i64 - 2),
        }
    }

    /// Remembers in which directories the processes are: a core file goes there, and once a process is
    /// dead nobody knows.
    pub fn look_around(&mut self) {
        let all = Instant::now() >= self.next_look;
        if all {
            self.next_look = Instant::now() + LOOK;
        }
        for (p, seen) in self.control.procs.iter().zip(&mut self.seen) {
            let pid = p.pid.load(Relaxed);
            if p.state.load(Acquire) != LIVE || (!all && *seen == pid) {
                continue;
            }
            *seen = pid;
            let Ok(directory) = std::fs::read_link(format!("/proc/{pid}/cwd")) else {
                continue;
            };
            if self.directories.last() != Some(&directory) {
                self.directories.retain(|d| *d != directory);
                self.directories.push(directory);
            }
        }
        let more = self.directories.len().saturating_sub(DIRECTORIES);
        self.directories.drain(..more);
    }

    /// Whether a dead process's core file is still being completed: its entry must stay, and with it
    /// its swap. To be asked until it is not.
    pub fn is_busy(&mut self, entry: usize, p: &Proc, devices: &[Opened]) -> bool {
        let job = self.jobs[entry].take();
        let job = match job {
            Some(job) if job.is_finished() => {
                let _ = job.join();
                None
            }
            Some(job) => Some(job),
            None => self.start(p, devices),
        };
        self.jobs[entry] = job;
        self.jobs[entry].is_some()
    }

    pub fn any_busy(&self) -> bool {
        self.jobs.iter().any(Option::is_some)
    }

    fn start(&mut self, p: &Proc, devices: &[Opened]) -> Option<JoinHandle<()>> {
        let (signpost, key) = (p.signpost.load(Acquire), p.dump_key.load(Acquire));
        let borrows = p.lenders.iter().any(|l| l.load(Relaxed) != 0);
        if key == 0 || (p.stats.pgscan.get() == 0 && !borrows) {
            return None;
        }
        let pid = p.pid.load(Relaxed);
        let Some((path, core)) = self.find(pid, signpost, key) else {
            self.without.insert(pid);
            return None;
        };
        let open = |d: &Opened| d.fd.as_fd().try_clone_to_owned().map(File::from);
        let devices: Vec<File> = devices.iter().map(open).collect::<Result<_, _>>().ok()?;
        let (control, verbose) = (self.control, self.verbose);
        let job = move || {
            if let Some(line) = complete(&core, signpost, key, &devices, verbose) {
                control.log(&format!("{line} ({}, process {pid})", path.display()));
            }
            control.call();
        };
        std::thread::Builder::new().spawn(job).ok()
    }

    /// The core file of a process. One of which the tables can't be read is taken for its core if nothing
    /// says otherwise.
    fn find(&self, pid: u32, signpost: u64, key: u64) -> Option<(PathBuf, CoreFile)> {
        let Pattern::File(names) = Pattern::now(pid) else {
            return None;
        };
        let found = names.find(&self.directories);
        let new = |path: &PathBuf| CoreFile::written(path).is_some_and(|t| t >= self.began);
        found.into_iter().rev().filter(new).find_map(|path| {
            let core = CoreFile::open(&path).ok()?;
            match Tables::find(&core, signpost, key) {
                Ok(_) => Some((path, core)),
                Err(_) => None,
            }
        })
    }

    /// What there is to be said of the core of a process that is known to have left one.
    pub fn explain(&self, pid: u32) -> Option<String> {
        if !self.without.contains(&pid) {
            return None;
        }
        Some(match Pattern::now(pid) {
            Pattern::Sent => "warning: pages that were in swap are zeros in the core dump: with a \
                 program or socket in kernel.core_pattern they can't be put there. Set it to the \
                 name of a file"
                .into(),
            _ => "warning: pages that were in swap are zeros in the core dump: no core file was \
                 found that has all of the process's private memory (see core(5): RLIMIT_CORE, \
                 coredump_filter)"
                .to_owned(),
        })
    }
}

/// Completes a core file, and says what there is to say of it.
fn complete(
    core: &CoreFile,
    signpost: u64,
    key: u64,
    devices: &[File],
    verbose: bool,
) -> Option<String> {
    let done =
        Tables::find(core, signpost, key).and_then(|tables| fill::fill(core, &tables, devices));
    match done {
        Ok(filled) if filled.missing > 0 => Some(format!(
            "warning: {} pages that were in swap are zeros in the core file: {}",
            filled.missing,
            filled.why.unwrap_or_default()
        )),
        Ok(filled) => verbose.then(|| format!("core file: {} pages came from swap", filled.pages)),
        Err(Unreadable::Cut | Unreadable::Foreign) => {
            Some("warning: pages that were in swap are zeros in the core file, which is cut".into())
        }
    }
}
