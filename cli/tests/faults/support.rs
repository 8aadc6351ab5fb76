//! Runs the checking program under `hugeswap run` with faults.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use hugeswap_host::swap_spec;

/// The command, with the library that it preloads beside it: cargo builds no cdylib of another
/// package for a test.
fn hugeswap() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let command = PathBuf::from(env!("CARGO_BIN_EXE_hugeswap"));
        let dir = command.parent().unwrap();
        let profile = match dir.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            name => name,
        };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "hugeswap-preload"]);
        cargo.args(["--profile", profile, "--target-dir"]);
        cargo.arg(dir.parent().unwrap());
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        succeed(&mut cargo);
        command
    })
}

fn check_program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("faults-check");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/check.c");
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-Wall", "-Wextra", "-pthread", "-o"]);
        succeed(cc.arg(&out).arg(source));
        out
    })
}

pub fn succeed(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
}

/// A directory on a disk, removed with what is in it.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new() -> Dir {
        static N: AtomicU32 = AtomicU32::new(0);
        let disk = swap_spec::default_directory().expect("this test needs a directory on a disk");
        let n = N.fetch_add(1, Ordering::Relaxed);
        let path = disk.join(format!("hugeswap-faults-{}-{n}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A small file system in a file, unmounted on drop.
pub struct Mount {
    at: PathBuf,
    _dir: Dir,
}

impl Mount {
    pub fn ext4(megabytes: u64) -> Mount {
        assert!(
            hugeswap_host::os::is_root(),
            "this test mounts a file system and needs root: run the tests with sudo"
        );
        let dir = Dir::new();
        let (image, at) = (dir.0.join("image"), dir.0.join("mounted"));
        fs::File::create(&image)
            .and_then(|file| file.set_len(megabytes << 20))
            .unwrap();
        fs::create_dir(&at).unwrap();
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap());
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.env("PATH", path).args(["-q", "-m", "0"]);
        succeed(mkfs.arg(&image));
        let mut mount = Command::new("mount");
        succeed(mount.args(["-o", "loop"]).arg(&image).arg(&at));
        Mount { at, _dir: dir }
    }

    pub fn at(&self) -> &Path {
        &self.at
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // The last process of a run may end a little later than the command.
        for _ in 0..50 {
            let done = Command::new("umount").arg(&self.at).output();
            if done.is_ok_and(|output| output.status.success()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        eprintln!("{} is still mounted", self.at.display());
    }
}

/// One run of the checking program.
pub struct Run<'a> {
    /// `HUGESWAP_INJECT`.
    pub inject: &'a str,
    /// Further variables.
    pub env: &'a [(&'a str, &'a str)],
    /// Further options of `run`.
    pub options: &'a [&'a str],
    /// `--swap`, in place of a directory of the test's own.
    pub swap: Option<&'a Path>,
    pub mode: &'a str,
    pub memory: &'a str,
    pub megabytes: u32,
    pub rounds: u32,
}

impl Default for Run<'_> {
    fn default() -> Self {
        Run {
            inject: "",
            env: &[],
            options: &[],
            swap: None,
            mode: "count",
            memory: "64M",
            megabytes: 160,
            rounds: 2,
        }
    }
}

pub struct Ended {
    pub output: Output,
    counters: serde_json::Value,
}

impl Run<'_> {
    pub fn run(&self) -> Ended {
        let dir = Dir::new();
        let stats = dir.0.join("stats.json");
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", "300"]).arg(hugeswap());
        command.args(["run", "--memory", self.memory, "--compress=off", "--swap"]);
        command.arg(self.swap.unwrap_or(&dir.0));
        command.arg("--stats-json").arg(&stats).args(self.options);
        command.arg("--").arg(check_program());
        command.args([self.megabytes.to_string(), self.rounds.to_string()]);
        command.arg(self.mode);
        command.env("HUGESWAP_INJECT", self.inject);
        command.envs(self.env.iter().copied());
        let output = command.output().unwrap();
        let counters = fs::read(&stats)
            .ok()
            .and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok())
            .map(|value| value["counters"].clone())
            .unwrap_or_default();
        Ended { output, counters }
    }
}

impl Ended {
    pub fn counter(&self, name: &str) -> u64 {
        self.counters[name]
            .as_u64()
            .unwrap_or_else(|| panic!("no counter {name}: {}", self.stderr()))
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// How often a line of standard error has the text.
    pub fn said(&self, text: &str) -> usize {
        self.stderr().matches(text).count()
    }

    /// The exit status as a shell sees it.
    pub fn code(&self) -> i32 {
        let status = self.output.status;
        status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
    }

    /// Every byte was right that was not lost; returns how many pages were.
    pub fn lost(&self) -> u64 {
        let out = String::from_utf8_lossy(&self.output.stdout);
        let lost = out
            .trim()
            .strip_prefix("lost=")
            .and_then(|rest| rest.strip_suffix(" wrong=0"));
        assert!(
            self.code() == 0 && lost.is_some(),
            "status {}: {out}{}",
            self.code(),
            self.stderr()
        );
        lost.and_then(|n| n.parse().ok()).unwrap()
    }

    /// Nothing was lost, nothing was wrong, and swap was used.
    pub fn all_right(&self) -> &Ended {
        assert_eq!(self.lost(), 0, "{}", self.stderr());
        assert_eq!(self.counter("pages_poisoned"), 0);
        self
    }

    /// As much went through swap as the limit demands.
    pub fn swapped(&self) -> &Ended {
        assert!(self.counter("pswpout") > 16384, "{}", self.stderr());
        assert!(self.counter("pswpin") > 16384, "{}", self.stderr());
        self
    }
}
