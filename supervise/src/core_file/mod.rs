//! Core files of managed processes.
//!
//! The kernel leaves out of them what is in swap (`hugeswap_vma::dump`). When a process is found dead, and
//! before what it had in swap is given back, its core file is looked for and completed, by a thread for
//! each. `kernel.core_pattern` says what it is called, as far as that can be known from outside; that it
//! is this process's, a key in its memory says.

mod elf;
mod fill;
mod pattern;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Acquire;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hugeswap_control::Proc;
use hugeswap_seal::{Mode, Unwrap};
use hugeswap_vma::dump::{Tables, Unreadable};

use super::devices::Opened;
use super::life::Id;
use super::processes::Member;
use super::sys;
use elf::CoreFile;
use fill::Opener;
use pattern::Pattern;

/// How often it is looked in which directories the processes are.
const LOOK: Duration = Duration::from_millis(200);
/// Directories that are remembered.
const DIRECTORIES: usize = 64;

pub struct Cores {
    mode: Mode,
    /// Rung when a core file is complete.
    bell: Arc<OwnedFd>,
    verbose: bool,
    /// Where processes of the run were seen, the last one last.
    directories: Vec<PathBuf>,
    /// Images whose directory was asked for.
    seen: HashSet<Id>,
    next_look: Instant,
    /// Images whose core file is being completed.
    jobs: HashMap<Id, JoinHandle<()>>,
    /// Processes that had pages in swap, and of which no core file was found.
    without: HashSet<u32>,
    /// Files that were written before are of no interest; in seconds.
    began: i64,
}

impl Cores {
    pub fn new(mode: Mode, bell: Arc<OwnedFd>, verbose: bool) -> Cores {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Cores {
            mode,
            bell,
            verbose,
            directories: std::env::current_dir().into_iter().collect(),
            seen: HashSet::new(),
            next_look: Instant::now(),
            jobs: HashMap::new(),
            without: HashSet::new(),
            // The clock of a file system may be a little behind.
            began: now.map_or(0, |d| d.as_secs() as i64 - 2),
        }
    }

    /// Remembers in which directories the processes are: a core file goes there, and once a process is
    /// dead nobody knows.
    pub fn look_around<'m>(&mut self, present: impl Iterator<Item = (Id, &'m Member)>) {
        let all = Instant::now() >= self.next_look;
        if all {
            self.next_look = Instant::now() + LOOK;
        }
        let before = std::mem::take(&mut self.seen);
        for (id, m) in present.filter(|(_, m)| m.pid != 0) {
            self.seen.insert(id);
            if !all && before.contains(&id) {
                continue;
            }
            let Ok(directory) = std::fs::read_link(format!("/proc/{}/cwd", m.pid)) else {
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

    /// Whether a dead process's core file is still being completed: its swap must stay, and what it
    /// borrows. To be asked until it is not.
    pub fn is_busy(&mut self, id: Id, m: &Member, borrows: bool, devices: &[Opened]) -> bool {
        let job = match self.jobs.remove(&id) {
            Some(job) if job.is_finished() => {
                let _ = job.join();
                None
            }
            Some(job) => Some(job),
            None => self.start(m.pid, m.page(), borrows, devices),
        };
        let busy = job.is_some();
        self.jobs.extend(job.map(|job| (id, job)));
        busy
    }

    pub fn any_busy(&self) -> bool {
        !self.jobs.is_empty()
    }

    fn start(
        &mut self,
        pid: u32,
        p: &Proc,
        borrows: bool,
        devices: &[Opened],
    ) -> Option<JoinHandle<()>> {
        let (signpost, key) = (p.signpost.load(Acquire), p.dump_key.load(Acquire));
        let touched = p.stats.pgscan.get() > 0 || p.stats.thp_cow.get() > 0;
        if key == 0 || !(touched || borrows) {
            return None;
        }
        let Some((path, core)) = self.find(pid, signpost, key) else {
            self.without.insert(pid);
            return None;
        };
        let unwrap = p.handed_keys();
        let open = |d: &Opened| d.fd.as_fd().try_clone_to_owned().map(File::from);
        let devices: Vec<File> = devices.iter().map(open).collect::<Result<_, _>>().ok()?;
        let (mode, bell, verbose) = (self.mode, Arc::clone(&self.bell), self.verbose);
        let job = move || {
            if let Some(line) = complete(&core, signpost, key, (mode, unwrap), &devices, verbose) {
                errln!("hugeswap: {line} ({}, process {pid})", path.display());
            }
            sys::set_event(&bell);
        };
        std::thread::Builder::new().spawn(job).ok()
    }

    /// The core file of a process. One that is cut is none: of what was resident nobody could tell what is
    /// missing, and it would grow beyond what the limit allows.
    fn find(&self, pid: u32, signpost: u64, key: u64) -> Option<(PathBuf, CoreFile)> {
        let Pattern::File(names) = Pattern::now(pid) else {
            return None;
        };
        let found = names.find(&self.directories);
        let new = |path: &PathBuf| CoreFile::written(path).is_some_and(|t| t >= self.began);
        found.into_iter().rev().filter(new).find_map(|path| {
            let core = CoreFile::open(&path).ok().filter(|c| !c.is_cut())?;
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
    (mode, unwrap): (Mode, Unwrap),
    devices: &[File],
    verbose: bool,
) -> Option<String> {
    let done = Tables::find(core, signpost, key).and_then(|tables| {
        let opener = Opener::new(&tables, mode, unwrap);
        fill::fill(core, &tables, opener, devices)
    });
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
