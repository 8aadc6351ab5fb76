//! What all tests of `hugeswap run` use.

mod build;
mod dir;
mod run;
mod slow_disk;

pub use build::{compile, compile_with, hugeswap, library};
pub use dir::{Dir, Mount};
pub use run::{Done, Run, Running};
pub use slow_disk::SlowDisk;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hugeswap_host::os;

/// What a run may take from its group above its limit.
pub const ABOVE: u64 = 64 << 20;

/// The machine is one: tests that make groups, mounts and memory pressure run one at a time, also
/// those of other test programs. Held until dropped.
pub fn machine() -> File {
    assert!(
        os::is_root(),
        "this test needs root: run the tests with sudo"
    );
    let path = std::env::temp_dir().join("hugeswap-tests.lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    lock(&file);
    file
}

/// Until all who have it open have closed it.
#[allow(unsafe_code)]
pub fn lock(file: &File) {
    use std::os::fd::AsRawFd;
    // SAFETY: no memory is passed.
    let r = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
    assert_eq!(r, 0, "flock: {}", std::io::Error::last_os_error());
}

/// Longer variants are asked for.
pub fn long() -> bool {
    std::env::var_os("HUGESWAP_LONG_TESTS").is_some_and(|v| v != "0")
}

/// What has not ended by then hangs. Machines are shared: what takes seconds may take a minute.
pub fn patience() -> Duration {
    Duration::from_secs(if long() { 3600 } else { 300 })
}

/// Waits until `done`; fails where it hangs.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience();
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[allow(unsafe_code)]
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: no memory is passed.
    let r = unsafe { libc::kill(pid, signal) };
    assert_eq!(r, 0, "kill {pid}: {}", std::io::Error::last_os_error());
}

/// The children of a process, of all its threads.
pub fn children(pid: i32) -> Vec<i32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    tasks
        .flatten()
        .filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok())
        .flat_map(|text| {
            text.split_whitespace()
                .filter_map(|w| w.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Open files of any process below `dir`, deleted ones included, and mappings of such.
pub fn users_of(dir: &Path) -> Vec<String> {
    let needle = dir.to_str().unwrap();
    let mut found = Vec::new();
    for p in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(fds) = std::fs::read_dir(p.path().join("fd")) else {
            continue;
        };
        for fd in fds.flatten() {
            let target = std::fs::read_link(fd.path()).unwrap_or_default();
            if target.to_string_lossy().starts_with(needle) {
                found.push(format!("{} -> {}", fd.path().display(), target.display()));
            }
        }
    }
    found
}

pub fn mounts() -> String {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    // Another test's may come and go meanwhile (`Mount`).
    let ours = |line: &&str| !line.contains("/mounted ");
    mounts.lines().filter(ours).collect::<Vec<_>>().join("\n")
}

/// The first of the names that is a program, as the shell finds it.
pub fn program(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    names.iter().find_map(|name| {
        if name.starts_with('/') {
            return Path::new(name).is_file().then(|| PathBuf::from(name));
        }
        std::env::split_paths(&path)
            .map(|d| d.join(name))
            .find(|f| f.is_file())
    })
}

/// A program that a test can't do without.
pub fn need(names: &[&str]) -> PathBuf {
    program(names).unwrap_or_else(|| {
        panic!(
            "this test needs {}: './test' installs what is missing",
            names.join(" or ")
        )
    })
}
