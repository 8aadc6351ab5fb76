//! Processes and threads, of which a run needs some beside the program's own. `ulimit -u` and the
//! control group may refuse them.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::thread;

use hugeswap_sys::probe::{self, Limit};

use super::failure::Failure;
use super::sys;

/// The supervisor with its seven threads, and a program with the two of its engine.
const LEAST: usize = 11;
/// Nothing is done in a thread that is only tried.
const SMALL_STACK: usize = 64 << 10;

/// What refuses them, and what mends it.
pub struct Scarce {
    pub found: String,
    pub mend: String,
}

impl From<Scarce> for Failure {
    fn from(s: Scarce) -> Failure {
        Failure::ours(format!(
            "a run needs {LEAST} more processes and threads, and they are not to be had: {}: {}",
            s.found, s.mend
        ))
    }
}

/// Tries it, in a process of its own. Only before this process has other threads.
pub fn check() -> Result<(), Scarce> {
    let why = || (!can_have(LEAST - 1)).then(String::new);
    match sys::ask_child(why) {
        Ok(Ok(())) => Ok(()),
        _ => Err(scarce()),
    }
}

/// They end with the process.
fn can_have(threads: usize) -> bool {
    let waits = || loop {
        thread::park();
    };
    (0..threads).all(|_| {
        let thread = thread::Builder::new().stack_size(SMALL_STACK);
        thread.spawn(waits).is_ok()
    })
}

/// A thread of the supervisor's.
pub fn start(job: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().spawn(job).map(drop)
}

/// A process or a thread could not be started, for whatever reason.
pub fn refused(e: io::Error) -> Failure {
    match is_refusal(&e) {
        true => scarce().into(),
        false => Failure::ours(format!("can't start: {e}")),
    }
}

/// Whether it was for want of tasks.
pub fn is_refusal(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EAGAIN)
}

fn scarce() -> Scarce {
    let of_user = probe::limit(Limit::Tasks).ok().flatten();
    let of_group = fs::read_to_string("/proc/self/cgroup")
        .ok()
        .and_then(|groups| tightest(&groups));
    let of_group = of_group.filter(|group| group.left() < LEAST as u64);
    match (of_group, of_user) {
        (Some(group), _) => Scarce {
            found: format!(
                "pids.max of the control group {} is {}, and {} of them are in use",
                group.path.display(),
                group.most,
                group.now
            ),
            mend: "raise it".to_owned(),
        },
        (None, Some(most)) => Scarce {
            found: format!("'ulimit -u' allows this user {most} in all"),
            mend: "run 'ulimit -u unlimited' first".to_owned(),
        },
        (None, None) => Scarce {
            found: "the machine has no more".to_owned(),
            mend: "raise kernel.threads-max and kernel.pid_max with sysctl".to_owned(),
        },
    }
}

/// A control group that limits tasks.
struct Group {
    path: PathBuf,
    most: u64,
    now: u64,
}

impl Group {
    fn at(path: PathBuf) -> Option<Group> {
        let number = |name: &str| {
            fs::read_to_string(path.join(name))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        Some(Group {
            most: number("pids.max")?,
            now: number("pids.current").unwrap_or(0),
            path,
        })
    }

    fn left(&self) -> u64 {
        self.most.saturating_sub(self.now)
    }
}

/// Of the groups that `groups` names, as in /proc/self, and those above them: the one that leaves least.
fn tightest(groups: &str) -> Option<Group> {
    let all = groups.lines().filter_map(directory).flat_map(|dir| {
        let above: Vec<PathBuf> = dir.ancestors().map(PathBuf::from).collect();
        above.into_iter().filter_map(Group::at)
    });
    all.min_by_key(Group::left)
}

/// Where the tree that counts tasks is mounted as a rule.
fn directory(line: &str) -> Option<PathBuf> {
    let mut parts = line.splitn(3, ':').skip(1);
    let mount = match parts.next()? {
        "" => "/sys/fs/cgroup",
        list if list.split(',').any(|c| c == "pids") => "/sys/fs/cgroup/pids",
        _ => return None,
    };
    Some(PathBuf::from(mount).join(parts.next()?.trim_start_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_count_tasks() {
        let dir = |line: &str| directory(line);
        assert_eq!(dir("8:pids:/a/b"), Some("/sys/fs/cgroup/pids/a/b".into()));
        assert_eq!(dir("0::/a"), Some("/sys/fs/cgroup/a".into()));
        assert_eq!(dir("4:memory:/a"), None);
    }

    #[test]
    fn only_what_is_refused_is_scarce() {
        let message = |code| refused(io::Error::from_raw_os_error(code)).message;
        assert!(message(libc::ENOMEM).starts_with("can't start"));
        assert!(message(libc::EAGAIN).contains("processes and threads"));
    }
}
