//! One run of `hugeswap run` in a group of its own.

use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hugeswap_host::cgroup::{Group, Limits, Swap};
use hugeswap_host::os;
use serde_json::Value;

use super::{children, hugeswap, machine, patience, wait_for, Dir, ABOVE};

const MIB: u64 = 1 << 20;

/// What is to be run. Memory in MiB.
pub struct Run {
    memory: u64,
    above: u64,
    options: Vec<OsString>,
    /// Nothing is compressed where it is not asked for, so that what a test has swapped out is on its device.
    compress: bool,
    swap: Option<OsString>,
    program: Vec<OsString>,
    envs: Vec<(String, OsString)>,
    stdin: Option<File>,
    inside: Option<PathBuf>,
}

impl Run {
    pub fn new<S: AsRef<OsStr>>(memory: u64, program: impl IntoIterator<Item = S>) -> Run {
        Run {
            memory,
            above: ABOVE / MIB,
            options: Vec::new(),
            compress: false,
            swap: None,
            program: program.into_iter().map(|s| s.as_ref().into()).collect(),
            envs: Vec::new(),
            stdin: None,
            inside: None,
        }
    }

    pub fn option(mut self, option: impl AsRef<OsStr>) -> Run {
        self.options.push(option.as_ref().into());
        self
    }

    /// With compressed memory as `run` has it by itself.
    pub fn usual(mut self) -> Run {
        self.compress = true;
        self
    }

    pub fn swap(mut self, spec: impl AsRef<OsStr>) -> Run {
        self.swap = Some(spec.as_ref().into());
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Run {
        self.envs.push((name.into(), value.as_ref().into()));
        self
    }

    pub fn stdin(mut self, file: File) -> Run {
        self.stdin = Some(file);
        self
    }

    /// What the group has above the limit, where the limit is meant to be passed.
    pub fn above(mut self, megabytes: u64) -> Run {
        self.above = megabytes;
        self
    }

    /// Where it is started.
    pub fn inside(mut self, directory: &std::path::Path) -> Run {
        self.inside = Some(directory.into());
        self
    }

    pub fn start(self) -> Running {
        self.start_with(|| ())
    }

    /// Changes something of the machine, which is changed back (by dropping it) at the end.
    pub fn start_with<T: 'static>(self, change: impl FnOnce() -> T) -> Running {
        let command = hugeswap();
        let machine = machine();
        let changed: Box<dyn Any> = Box::new(change());
        let dir = Dir::new("run");
        let swap_dir = dir.join("swap");
        fs::create_dir(&swap_dir).unwrap();
        let stats = dir.join("stats.json");
        static N: AtomicU32 = AtomicU32::new(0);
        let group = Group::create(
            &format!("hugeswap-test-run{}", N.fetch_add(1, Ordering::Relaxed)),
            &Limits {
                memory: (self.memory + self.above) * MIB,
                swap: Swap::None,
                swappiness: None,
            },
        )
        .unwrap_or_else(|e| panic!("{e}"));
        let mut c = Command::new(command);
        c.args(["run", "--memory"]).arg(format!("{}M", self.memory));
        c.arg("--swap")
            .arg(self.swap.as_deref().unwrap_or(swap_dir.as_os_str()));
        let has_size = |o: &OsString| o.to_string_lossy().starts_with("--swap-size");
        let own_place = self.swap.as_ref().is_none_or(|s| {
            let text = s.to_string_lossy();
            text.starts_with('/') && !text.contains(",size=")
        });
        if own_place && !self.options.iter().any(has_size) {
            // Whatever room the tests' disk has.
            c.arg("--swap-size=8G");
        }
        let compress = |o: &OsString| o.to_string_lossy().starts_with("--compress=");
        let alone = self.swap.as_ref().is_some_and(|s| s == "none");
        if !(self.compress || alone || self.options.iter().any(compress)) {
            c.arg("--compress=off");
        }
        c.arg("--stats-json").arg(&stats);
        c.args(&self.options).arg("--").args(&self.program);
        c.envs(self.envs.iter().map(|(k, v)| (k, v)));
        c.stdin(self.stdin.map_or_else(Stdio::null, Stdio::from));
        c.stdout(File::create(dir.join("stdout")).unwrap());
        c.stderr(File::create(dir.join("stderr")).unwrap());
        if let Some(directory) = &self.inside {
            c.current_dir(directory);
        }
        os::spawn_inside(&mut c, group.procs().unwrap());
        // Whoever runs the tests in the background, or under nohup, has these ignored.
        // SAFETY: only signal is called, which may be between fork and exec.
        unsafe {
            c.pre_exec(|| {
                for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                Ok(())
            });
        }
        let child = c.spawn().unwrap();
        Running {
            line: format!("{c:?}"),
            child,
            group,
            deadline: Instant::now() + patience(),
            stats,
            swap_dir,
            dir,
            peak: (0, None),
            left_alone: false,
            _changed: changed,
            _machine: machine,
        }
    }

    /// Runs it to its end.
    pub fn go(self) -> Done {
        self.start().finish()
    }

    /// Runs it to its end, which must be a good one.
    pub fn ok(self) -> Done {
        let done = self.go();
        assert!(done.status.success(), "{done}");
        assert_eq!(done.oom_kills, 0, "{done}");
        done
    }
}

pub struct Running {
    line: String,
    pub child: Child,
    pub group: Group,
    deadline: Instant,
    stats: PathBuf,
    pub swap_dir: PathBuf,
    pub dir: Dir,
    /// The most memory that was managed, and the share of it then.
    peak: (u64, Option<f64>),
    left_alone: bool,
    /// Dropped before the machine is let go.
    _changed: Box<dyn Any>,
    _machine: File,
}

impl Running {
    pub fn front(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn supervisor(&self) -> i32 {
        children(self.front())[0]
    }

    pub fn program(&self) -> i32 {
        children(self.supervisor())[0]
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.join(name)).unwrap_or_default()).into_owned()
    }

    /// Waits until the command has ended; what its program has left may go on.
    pub fn wait_for_front(&mut self) {
        while self.child.try_wait().unwrap().is_none() {
            self.check_time();
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the program has written this.
    pub fn wait_for_output(&mut self, what: &str) {
        self.wait_for_text("stdout", what);
    }

    pub fn wait_for_stderr(&mut self, what: &str) {
        self.wait_for_text("stderr", what);
    }

    fn wait_for_text(&mut self, stream: &str, what: &str) {
        while !self.text(stream).contains(what) {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!(
                    "{}: ended ({status}) before '{what}': {}{}",
                    self.line,
                    self.text("stdout"),
                    self.text("stderr")
                );
            }
            self.check_time();
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn read_stats(&self) -> Option<Value> {
        serde_json::from_slice(&fs::read(&self.stats).ok()?).ok()
    }

    fn look_at_stats(&mut self) {
        let Some(v) = self.read_stats() else { return };
        let managed = v["counters"]["managed_bytes"].as_u64().unwrap_or(0);
        if managed >= self.peak.0 && managed > 0 {
            self.peak = (managed, v["managed_share"].as_f64());
        }
    }

    fn processes(&self) -> String {
        fs::read_to_string(self.group.path().join("cgroup.procs")).unwrap_or_default()
    }

    pub fn check_time(&mut self) {
        if Instant::now() < self.deadline {
            return;
        }
        let mut where_they_are = String::new();
        for pid in self.processes().split_whitespace() {
            for task in fs::read_dir(format!("/proc/{pid}/task"))
                .into_iter()
                .flatten()
                .flatten()
            {
                let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
                where_they_are += &format!(
                    "  {pid} {} {}: {}\n",
                    task.file_name().to_string_lossy(),
                    read("comm").trim(),
                    read("stack").lines().take(4).collect::<Vec<_>>().join(" ")
                );
            }
        }
        let _ = self.group.kill();
        let _ = self.child.wait();
        panic!(
            "{}: too slow or stuck\n{where_they_are}{}{}\n{:?}",
            self.line,
            self.text("stdout"),
            self.text("stderr"),
            self.read_stats()
        );
    }

    /// What the program leaves running is meant to be there at the end.
    pub fn leave_alone(mut self) -> Running {
        self.left_alone = true;
        self
    }

    /// Waits for the end, and that nothing is left behind.
    pub fn finish(mut self) -> Done {
        let mut next_look = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            self.check_time();
            if Instant::now() >= next_look {
                next_look = Instant::now() + Duration::from_millis(200);
                self.look_at_stats();
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let stats = self.read_stats();
        let usage = self.group.usage();
        let done = Done {
            stdout: self.text("stdout"),
            stderr: self.text("stderr"),
            stats,
            peak_share: self.peak.1,
            oom_kills: usage.oom_kills,
            group_peak: usage.peak,
            status,
            line: std::mem::take(&mut self.line),
        };
        if !self.left_alone {
            wait_for(
                &format!("every process to end: {} {done}", self.processes()),
                || self.processes().trim().is_empty(),
            );
            assert_eq!(
                fs::read_dir(&self.swap_dir).unwrap().count(),
                0,
                "left in the swap directory: {done}"
            );
        }
        done
    }
}

/// How it went.
#[derive(Debug)]
pub struct Done {
    line: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub stats: Option<Value>,
    /// `managed_share` when the most was managed, of runs of more than a second.
    pub peak_share: Option<f64>,
    pub oom_kills: u64,
    pub group_peak: Option<u64>,
}

impl Done {
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    pub fn counter(&self, name: &str) -> u64 {
        let stats = self
            .stats
            .as_ref()
            .unwrap_or_else(|| panic!("no statistics: {self}"));
        stats["counters"][name]
            .as_u64()
            .unwrap_or_else(|| panic!("no counter {name}: {self}"))
    }

    /// It has swapped, and nothing went wrong doing so.
    pub fn has_swapped(&self) -> &Done {
        let out = self.counter("pswpout") + self.counter("zswpout");
        assert!(out > 0, "nothing was swapped: {self}");
        for bad in ["pages_poisoned", "swap_read_errors", "swap_write_errors"] {
            assert_eq!(self.counter(bad), 0, "{bad}: {self}");
        }
        self
    }

    /// Nearly all of the program's memory was managed when it had most.
    pub fn is_managed(&self) -> &Done {
        match self.peak_share {
            Some(share) => assert!(share >= 0.95, "only {share:.3} is managed: {self}"),
            // It ended before the first statistics.
            None => {
                self.has_swapped();
            }
        }
        self
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cut = |s: &str| s.chars().take(4000).collect::<String>();
        write!(
            f,
            "\n{}\n{}; {} killed for memory; peak {:?}\nstdout: {}\nstderr: {}\nstatistics: {}",
            self.line,
            self.status,
            self.oom_kills,
            self.group_peak.map(|b| b / MIB),
            cut(&self.stdout),
            cut(&self.stderr),
            self.stats.as_ref().unwrap_or(&Value::Null)
        )
    }
}
