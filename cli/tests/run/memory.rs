//! What programs do with their memory, against a shadow of it: see difftest.

use std::process::Command;

use hugeswap_host::cgroup::{Group, Limits, Swap};

use crate::support::{compile, hugeswap, long, machine, Dir, Done, Run};

/// Random sequences on more data than the limit; what fails is shrunk and told.
#[derive(Default)]
struct Sequences<'a> {
    seed: u64,
    count: u64,
    /// Kinds of operations to leave out.
    without: &'a str,
    options: &'a [&'a str],
    envs: &'a [(&'a str, &'a str)],
    /// The run has a group of its own, with so many MiB more than its limit.
    above: Option<u64>,
}

/// MiB that the run may have resident.
const LIMIT: u64 = 64;
/// MiB of data in such a group, where their shadow has to fit as well; elsewhere there are 640.
const DATA_IN_GROUP: u64 = 256;

impl Sequences<'_> {
    /// Gives the run's counters.
    fn run(&self) -> serde_json::Value {
        let _machine = machine();
        let dir = Dir::new("sequences");
        let command = hugeswap();
        let stats = dir.join("stats.json");
        let mut c = Command::new(command.with_file_name("hugeswap-difftest"));
        c.args(["--seed", &self.seed.to_string(), "--dir"])
            .arg(dir.path());
        if !self.without.is_empty() {
            c.args(["--without", self.without]);
        }
        if long() {
            c.args(["--minutes", "20"]);
        } else {
            c.args(["--sequences", &self.count.to_string()]);
        }
        let group = self.above.map(|above| {
            c.args(["--data", &DATA_IN_GROUP.to_string()]);
            let limits = Limits {
                memory: (LIMIT + above) << 20,
                swap: Swap::None,
                swappiness: None,
            };
            Group::create("hugeswap-test-sequences", &limits).unwrap()
        });
        if !self.options.is_empty() {
            c.arg("--");
            if let Some(group) = &group {
                c.args(["sh", "-c", r#"echo $$ >"$0" && exec "$@""#]);
                c.arg(group.path().join("cgroup.procs"));
            }
            c.arg(command).args(["run", "--memory"]);
            c.arg(format!("{LIMIT}M"));
            c.args(["--swap-size", "2G", "--stats-json"]);
            c.arg(&stats).args(self.options).arg("--");
        }
        let output = c.envs(self.envs.iter().copied()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{c:?}\n{said}");
        let killed = group.map(|g| g.usage().oom_kills);
        assert_eq!(killed.unwrap_or(0), 0, "{c:?}");
        let counters = std::fs::read(&stats).map_or_else(
            |_| serde_json::Value::Null,
            |text| {
                let stats: serde_json::Value = serde_json::from_slice(&text).unwrap();
                stats["counters"].clone()
            },
        );
        let count = |name: &str| counters[name].as_u64().unwrap_or(0);
        let swapped = count("pswpin") + count("zswpin") > 1000;
        let is_set = |&(name, _): &(&str, &str)| name == "HUGESWAP_NO_MOVE";
        let no_move = self.envs.iter().any(is_set);
        let may = !self.options.is_empty() && (!no_move || !self.without.is_empty());
        assert_eq!(swapped, may, "whether it swapped: {c:?}");
        counters
    }
}

fn sequences(seed: u64, count: u64, options: &[&str], envs: &[(&str, &str)]) {
    let sequences = Sequences {
        seed,
        count,
        options,
        envs,
        ..Sequences::default()
    };
    sequences.run();
}

/// The test itself is right: the same sequences without us.
#[test]
fn sequences_unmanaged() {
    sequences(1, 300, &[], &[]);
}

#[test]
fn sequences_on_disk() {
    sequences(1000, 400, &["--swap", "/var/tmp"], &[]);
}

#[test]
fn sequences_on_ram() {
    sequences(2_000_000, 1200, &["--swap", "ram"], &[]);
}

#[test]
fn sequences_with_faults() {
    let faults = "write-eio=every:60,short=every:5,delay=3,reorder,seed=9";
    sequences(
        3_000_000,
        200,
        &["--swap", "/var/tmp", "--compress", "off"],
        &[("HUGESWAP_INJECT", faults)],
    );
}

/// Faults wait for their process's turn, while threads are in calls, fork, and get signals.
#[test]
fn sequences_by_turns() {
    sequences(
        5_000_000,
        100,
        &["--swap", "/var/tmp"],
        &[("HUGESWAP_INJECT", "turns")],
    );
}

#[test]
fn sequences_without_io_uring() {
    sequences(
        4_000_000,
        100,
        &["--swap", "/var/tmp", "--compress", "off"],
        &[("HUGESWAP_NO_IO_URING", "1")],
    );
}

/// As before Linux 6.8: pages leave by copying (see `swap_cache::Victim`).
#[test]
fn sequences_without_move() {
    let sequences = Sequences {
        seed: 5_000_000,
        count: 200,
        without: "direct,uring,splice,vm-readv",
        options: &["--swap", "/var/tmp", "--compress", "off"],
        envs: &[("HUGESWAP_NO_MOVE", "1")],
        ..Sequences::default()
    };
    sequences.run();
}

/// The same with operations that pin pages: nothing leaves once one of them was seen, and the program
/// goes on above its limit with everything right.
#[test]
fn sequences_without_move_that_pin() {
    sequences(
        6_000_000,
        50,
        &["--swap", "/var/tmp", "--compress", "off"],
        &[("HUGESWAP_NO_MOVE", "1")],
    );
}

/// What has left stays in a group that has some memory to spare and is full for it, and the kernel takes it back. (Direct I/O is left out for a fault of Linux's: docs/testing.md.)
#[test]
fn sequences_in_a_full_group() {
    let sequences = Sequences {
        seed: 7_000_000,
        count: 300,
        without: "direct,uring",
        options: &["--swap", "/var/tmp"],
        above: Some(64),
        ..Sequences::default()
    };
    let counters = sequences.run();
    let count = |name: &str| counters[name].as_u64().unwrap_or(0);
    let stayed = count("pglazyfree") > 0 && count("lazyfree_reuse") > 0;
    assert!(stayed, "{counters}");
}

/// Small mappings that share 2 MiB with others, and come and go.
#[test]
fn neighbours() {
    let neighbours = compile("neighbours");
    let seconds = if long() { "120" } else { "5" };
    let done = Run::new(64, [neighbours.to_str().unwrap(), seconds]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}

#[test]
fn eight_threads_over_three_times_the_limit() {
    let threads = compile("threads");
    let seconds = if long() { "120" } else { "6" };
    let done = Run::new(64, [threads.to_str().unwrap(), "192", seconds]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}

/// One thread that jumps: the handler comes to its CPU, where there is more than one and nobody else wants them.
#[test]
fn jumps_of_one_thread() {
    let jumps = compile("jumps");
    let done = Run::new(64, [jumps.to_str().unwrap(), "128", "20000", "1", "0"]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
    if std::thread::available_parallelism().is_ok_and(|n| n.get() > 1) {
        let found = done.counter("fault_colocated") + done.counter("fault_crowded");
        assert!(found > 0, "{done}");
    }
}

/// Idle processors are kept awake meanwhile, where that is wanted and allowed.
#[test]
fn jumps_keep_processors_awake() {
    let jumps = compile("jumps");
    let held = |latency: &str| {
        // Memory as a device: reads are many on any machine.
        let done = Run::new(64, [jumps.to_str().unwrap(), "128", "200000", "1", "0"])
            .swap("ram")
            .above(192)
            .option(format!("--cpu-latency={latency}"))
            .ok();
        assert_eq!(done.stdout, "ok\n", "{done}");
        done.stats.unwrap()["cpu_latency_held_ms"].as_u64().unwrap()
    };
    let device = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/cpu_dma_latency");
    assert_eq!(held("off"), 0);
    assert_eq!(held("0") > 0, device.is_ok());
    let wrong = Run::new(64, ["true"]).option("--cpu-latency=soon").go();
    assert_eq!(wrong.code(), Some(2), "{wrong}");
    assert!(
        wrong.stderr.contains("auto, off, or microseconds"),
        "{wrong}"
    );
}

/// Several threads that jump, and all CPUs busy with other things.
#[test]
fn jumps_on_a_busy_machine() {
    let jumps = compile("jumps");
    for threads in ["1", "3"] {
        let done = Run::new(64, [jumps.to_str().unwrap(), "96", "3000", threads, "4"]).ok();
        assert_eq!(done.stdout, "ok\n", "{done}");
        done.has_swapped();
        // SAFETY: no pointers.
        if unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) } <= 4 {
            assert!(done.counter("fault_crowded") > 0, "{done}");
        }
    }
}

/// Reserved first, opened later; see c/reserved.c.
fn reserved(how: &str) {
    reserved_as(how).is_managed();
}

fn reserved_as(how: &str) -> Done {
    let program = compile("reserved");
    let done = Run::new(64, [program.to_str().unwrap(), how]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
    done
}

#[test]
fn reserved_before_us() {
    reserved("early");
}

#[test]
fn reserved_where_it_must_be_free() {
    reserved("there");
}

#[test]
fn reserved_before_us_with_pages_in_it() {
    reserved("filled");
}

/// What was said of it before us holds.
#[test]
fn reserved_before_us_with_advice() {
    reserved_as("wiped");
    reserved_as("guarded");
}

/// Nothing of ours lies where a child may come back to, swap in memory neither.
#[test]
fn addresses_given_back_before_a_fork() {
    let program = compile("reserved");
    let done = Run::new(64, [program.to_str().unwrap(), "given_back"])
        .swap("ram")
        .option("--swap-size=512M")
        .above(1024)
        .ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}
