//! The swap benchmark's kernel side on a small size, and that it leaves
//! nothing behind however it ends. Needs root, and says so.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hugeswap_host::{kernel_swap, os, swap_spec};

/// Swap is one for the whole machine: one test at a time. The kernel shares its swap out among all that
/// is on, and another one going off takes room from ours: with swap of others there is nothing to be
/// measured. That of a test beside this one goes off soon.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    assert!(
        os::is_root(),
        "this test needs root: run the tests with sudo"
    );
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let swaps = || fs::read_to_string("/proc/swaps").unwrap();
    let end = Instant::now() + Duration::from_secs(120);
    while swaps().lines().count() > 1 {
        assert!(
            Instant::now() < end,
            "this test needs the kernel's swap off; on is:\n{}",
            swaps()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    one
}

/// A directory on a disk, removed if it is empty.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let disk = swap_spec::default_directory().expect("this test needs a directory on a disk");
        let path = disk.join(format!("hugeswap-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Dir(path)
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(&self.0).unwrap().next().is_none()
    }

    fn swap_is_on(&self) -> bool {
        let prefix = self.0.to_str().unwrap();
        kernel_swap::active()
            .unwrap()
            .iter()
            .any(|swap| swap.path.starts_with(prefix))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // Fails if something was left behind: that is for the test to say.
        let _ = fs::remove_dir(&self.0);
    }
}

fn bench(dir: &Dir, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hugeswap"));
    command.args(["bench", "swap-w-seq", "--only", "kernel", "--memory", "32M"]);
    command.arg("--swap").arg(&dir.0).args(more);
    command
}

#[test]
fn measures_the_kernel() {
    let _one = alone();
    let dir = Dir::new("bench");
    let output = bench(
        &dir,
        &["--processes", "2", "--rounds", "2", "--runs", "1", "--json"],
    )
    .output()
    .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output:?}");
    assert!(
        text.contains("swap-w-seq: 2 processes, 64M over 32M of memory, 2 rounds"),
        "{text}"
    );
    assert!(text.contains("swap file"), "{text}");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let run = &document["contestants"][0]["runs"][0];
    assert_eq!(run["rounds"].as_array().unwrap().len(), 4);
    assert!(run["swap_out_rate"].as_f64().unwrap() > 0.0, "{run}");
    assert!(run["peak_bytes"].as_u64().unwrap() <= 32 << 20, "{run}");
    assert!(dir.is_empty());
}

#[test]
fn leaves_nothing_when_killed() {
    let _one = alone();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
        let dir = Dir::new("killed");
        let mut child = bench(&dir, &["--rounds", "100000", "--runs", "1"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for("swap to be on", || dir.swap_is_on());
        std::thread::sleep(Duration::from_millis(100));
        let pid = child.id().to_string();
        let kill = Command::new("kill")
            .args([format!("-{signal}"), pid])
            .status()
            .unwrap();
        assert!(kill.success());
        let status = child.wait().unwrap();
        if signal != libc::SIGKILL {
            assert_eq!(status.code(), Some(130), "signal {signal}");
            assert!(!dir.swap_is_on() && dir.is_empty(), "signal {signal}");
        }
        // After a kill somebody else takes it down, a moment later.
        wait_for("everything to be taken down", || {
            !dir.swap_is_on() && dir.is_empty()
        });
        wait_for("the group to be gone", || !groups().contains(&child.id()));
    }
}

fn programs(dir: &Dir, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hugeswap"));
    command.args(["bench", "programs", "--program", "python", "--size", "256M"]);
    command.arg("--swap").arg(&dir.0).args(more);
    command
}

#[test]
fn a_program_on_all_sides() {
    let _one = alone();
    let dir = Dir::new("programs");
    let html = std::env::temp_dir().join(format!("hugeswap-programs-{}.html", std::process::id()));
    let output = programs(&dir, &["--runs", "1"])
        .args(["--json", "--html"])
        .arg(&html)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let page = fs::read_to_string(&html).unwrap();
    fs::remove_file(&html).unwrap();
    assert!(
        page.contains("<svg") && page.contains("python, swap file"),
        "{page}"
    );
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = &document["programs"][0];
    let sides = row["sides"].as_array().unwrap();
    assert_eq!(sides[2]["name"], "swap file");
    for side in &sides[1..] {
        assert_eq!(side["end"], "done", "{row}");
        assert!(
            side["runs"][0]["major_faults"].as_u64().unwrap() > 0,
            "{row}"
        );
    }
    let of_disk = sides[2..].iter().filter(|side| side["device"] == "disk");
    let least = of_disk
        .map(|side| side["times"].as_f64().unwrap())
        .fold(f64::MAX, f64::min);
    assert_eq!(row["times"].as_f64(), Some(least), "{row}");
    let means = document["means"].as_array().unwrap();
    assert_eq!(means.last().unwrap()["against"], "the best on disk");
    // zram's group has less, and what it took is told.
    if let Some(zram) = sides.iter().find(|side| side["device"] == "memory") {
        let run = &zram["runs"][0];
        assert!(run["zram_bytes"].as_u64().unwrap() > 0, "{run}");
        assert!(
            run["peak_bytes"].as_u64() < row["limit_bytes"].as_u64(),
            "{row}"
        );
    }
    assert!(dir.is_empty() && !dir.swap_is_on());
}

#[test]
fn interrupted_programs_leave_nothing() {
    let _one = alone();
    for signal in [libc::SIGINT, libc::SIGKILL] {
        let dir = Dir::new("interrupted-programs");
        let mut child = programs(&dir, &["--runs", "1000", "--against", "file"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for("swap to be on", || dir.swap_is_on());
        let kill = Command::new("kill")
            .args([format!("-{signal}"), child.id().to_string()])
            .status()
            .unwrap();
        assert!(kill.success());
        let status = child.wait().unwrap();
        if signal == libc::SIGINT {
            assert_eq!(status.code(), Some(130));
            assert!(!dir.swap_is_on() && dir.is_empty());
        }
        // After a kill somebody else takes it down, a moment later.
        wait_for("everything to be taken down", || {
            !dir.swap_is_on() && dir.is_empty()
        });
        wait_for("the group to be gone", || !groups().contains(&child.id()));
    }
}

/// Of a report that takes hours, what was measured before Ctrl-C is kept.
#[test]
fn an_interrupted_report_has_what_was_measured() {
    let _one = alone();
    let dir = Dir::new("interrupted");
    let mut child = Command::new(env!("CARGO_BIN_EXE_hugeswap"))
        .args(["bench", "all", "--quick", "--memory", "64M"])
        .args(["--only", "swap-w-seq", "--only", "swap-w-rand", "--swap"])
        .arg(&dir.0)
        .arg("--json")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    lines
        .find(|line| line.as_ref().unwrap().starts_with("swap-w-seq: "))
        .unwrap()
        .unwrap();
    let pid = child.id().to_string();
    let kill = Command::new("kill").args(["-INT", &pid]).status().unwrap();
    assert!(kill.success());
    lines.for_each(drop);
    let mut report = Vec::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut report)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    let tests = report["tests"].as_array().unwrap();
    assert!((1..4).contains(&tests.len()), "{report}");
    assert_eq!(report["failures"][0], "not all was measured: interrupted");
    assert!(dir.is_empty() && !dir.swap_is_on());
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Process ids in the names of the benchmark's groups that exist.
fn groups() -> Vec<u32> {
    let own = hugeswap_host::cgroup::Own::find().unwrap();
    own.path
        .ancestors()
        .take_while(|dir| dir.starts_with("/sys/fs/cgroup"))
        .filter_map(|dir| fs::read_dir(dir).ok())
        .flatten()
        .flatten()
        .filter_map(|entry| {
            entry
                .file_name()
                .to_str()?
                .strip_prefix("hugeswap-bench-")?
                .parse()
                .ok()
        })
        .collect()
}
