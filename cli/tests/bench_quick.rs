//! Every benchmark at a small size, under hugeswap only: that it runs, verifies and reports.

use std::process::{Command, Output};

fn bench(line: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hugeswap"))
        .arg("bench")
        .args(line)
        .output()
        .unwrap()
}

/// Runs it with `--json`, and returns what it prints.
fn document(line: &[&str]) -> serde_json::Value {
    let output = bench(&[line, &["--json"]].concat());
    assert!(output.status.success(), "{line:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

const SMALL: [&str; 8] = [
    "--swap",
    "ram",
    "--memory",
    "64M",
    "--runs",
    "1",
    "--accesses",
    "8000",
];

/// The traces that are in the repository, through the policy that ships.
#[test]
fn traces_of_real_programs() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/traces");
    let names = std::fs::read_dir(folder)
        .unwrap()
        .map(|f| f.unwrap().path());
    let traces: Vec<_> = names
        .filter(|name| name.extension().is_some_and(|e| e == "zst"))
        .map(|name| name.to_str().unwrap().to_owned())
        .collect();
    let line = ["bench", "policies", "--json", "--trace"];
    let output = Command::new(env!("CARGO_BIN_EXE_hugeswap"))
        .args(line)
        .args(&traces)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = all.as_array().unwrap();
    assert!(all.len() == traces.len() && all.len() >= 8, "{}", all.len());
    for trace in all {
        let row = |i: usize, what: &str| trace["rows"][i][what].as_f64().unwrap();
        // The optimum by page is the least that can come in; and nobody waits for nothing.
        assert!(row(0, "pages_in") >= row(3, "pages_in"), "{trace}");
        assert!(row(0, "micros") > 0.0 && row(1, "micros") > 0.0, "{trace}");
    }
}

/// What the compiler makes is the same on every side, or the benchmark fails.
#[test]
fn a_build_that_swaps() {
    let line = [
        "build",
        "--files",
        "4",
        "--jobs",
        "4",
        "--lines",
        "20000",
        "--memory",
        "96M",
        "--first",
        "32M",
        "--no-kernel",
        "--runs",
        "1",
    ];
    let document = document(&line);
    assert_eq!(document["test"], "build");
    let sides = document["contestants"].as_array().unwrap();
    let names: Vec<_> = sides.iter().map(|side| &side["name"]).collect();
    assert_eq!(names, ["no limit", "hugeswap"]);
    for side in sides {
        let run = &side["runs"][0];
        assert!(run["seen"]["user"].as_f64().unwrap() > 0.0, "{run}");
    }
    let counters = &sides[1]["runs"][0]["stats"]["counters"];
    let out = counters["device_write_bytes"].as_u64().unwrap();
    assert!(
        out > 32 << 20,
        "the first device did not overflow: {counters}"
    );
}

#[test]
fn jumps_beside_threads_that_compute() {
    let mut line = vec!["swap-r-rand", "--threads", "2", "--busy", "2"];
    line.extend(SMALL);
    let document = document(&line);
    assert_eq!(document["busy_threads"], 2);
    let rounds = &document["contestants"][0]["runs"][0]["rounds"];
    let rounds = rounds.as_array().unwrap();
    assert_eq!(rounds.len(), 3);
    assert!(
        rounds.iter().all(|round| round["errors"] == 0),
        "{rounds:?}"
    );
}

/// As many processes as the reference has, each with little memory: there is swap enough for all of them. And its columns.
#[test]
fn sixteen_processes() {
    let line = [
        "swap-w-seq",
        "--processes",
        "16",
        "--rounds",
        "3",
        "--runs",
        "1",
        "--memory",
        "128M",
        "--size",
        "256M",
        "--swap",
        "ram",
    ];
    let document = document(&line);
    let run = &document["contestants"][0]["runs"][0];
    assert_eq!(run["rounds"].as_array().unwrap().len(), 16 * 3, "{run}");
    let output = bench(&line);
    let text = String::from_utf8(output.stdout).unwrap();
    for column in ["swap-in, GB/s", "swap-out, GB/s", "huge pages kept"] {
        assert!(text.contains(column), "{column}: {text}");
    }
}

/// Places of the same priority are used in turn: both in one run.
#[test]
fn two_places() {
    let here = std::env::temp_dir().join(format!("hugeswap-places-{}", std::process::id()));
    let places = ["a", "b"].map(|name| here.join(name));
    for place in &places {
        std::fs::create_dir_all(place).unwrap();
    }
    let [a, b] = places.each_ref().map(|place| place.to_str().unwrap());
    let line = [
        "swap-w-seq",
        "--rounds",
        "2",
        "--runs",
        "1",
        "--memory",
        "64M",
        "--size",
        "192M",
        "--swap",
        a,
        "--swap",
        b,
    ];
    let document = document(&line);
    assert_eq!(document["swap"], format!("{a} and {b}"));
    let run = &document["contestants"][0]["runs"][0];
    assert!(run["swap_out_rate"].as_f64().unwrap() > 0.0, "{run}");
    std::fs::remove_dir_all(here).unwrap();
}

#[test]
fn every_swap_test() {
    for (name, threads) in [
        ("swap-w-seq", 1),
        ("swap-w-seq-mt", 2),
        ("swap-w-rand", 1),
        ("swap-r-rand", 1),
        ("swap-zipf", 1),
        ("swap-stride", 1),
        ("swap-phases", 1),
        ("fault-latency", 1),
    ] {
        let mut line = vec![name];
        line.extend(SMALL);
        let document = document(&line);
        assert_eq!(document["test"], name);
        assert_eq!(document["threads"], threads);
        assert_eq!(document["accesses"], 8000);
        let run = &document["contestants"][0]["runs"][0];
        let rounds = run["rounds"].as_array().unwrap();
        assert_eq!(rounds.len(), 3, "{name}");
        for round in rounds {
            assert_eq!(round["errors"], 0, "{name}");
        }
        assert_eq!(
            rounds[0]["accesses"], 32768,
            "the first round fills all pages"
        );
        assert!(run["access_rate"].as_f64().unwrap() > 0.0, "{name}");
        // Also fails where the program was not managed: then nothing was measured.
        assert!(run["swap_out_rate"].as_f64().unwrap() > 0.0, "{name}");
        let latency = &run["latency"];
        if name == "fault-latency" {
            let at = |key: &str| latency[key].as_f64().unwrap();
            assert!(at("p50") > 0.0 && at("p50") <= at("p99") && at("p99") <= at("max"));
            assert!(!run["latency_curve"].as_array().unwrap().is_empty());
        } else {
            assert!(latency.is_null(), "{name}");
        }
    }
}

#[test]
fn several_processes_with_threads() {
    let mut line = vec![
        "swap-zipf",
        "--processes",
        "2",
        "--threads",
        "2",
        "--writes",
        "100",
        "--against",
        "unencrypted",
    ];
    line.extend(SMALL);
    let document = document(&line);
    for (i, name) in ["hugeswap", "not encrypted"].into_iter().enumerate() {
        let side = &document["contestants"][i];
        assert_eq!(side["name"], name);
        let run = &side["runs"][0];
        assert_eq!(run["rounds"].as_array().unwrap().len(), 6);
        assert!(run["swap_out_rate"].as_f64().unwrap() > 0.0);
        let able = is_x86_feature_detected!("aes") && is_x86_feature_detected!("avx");
        assert_eq!(run["stats"]["encrypted"], i == 0 && able);
    }
    assert_eq!(document["writes_percent"], 100);
    assert_eq!(document["compress"], "off");
}

#[test]
fn real_programs_under_hugeswap() {
    // Both are wherever this project is built; one has input that is made for it, and several processes. Neither reads
    // so much of files that reads in flight fill a group of this size (docs/internals/limit.md).
    let line = [
        "programs",
        "--program",
        "python,gcc",
        "--size",
        "256M",
        "--share",
        "0.6",
        "--no-kernel",
        "--runs",
        "2",
    ];
    let document = document(&line);
    assert_eq!(document["test"], "programs");
    assert_eq!(document["share"], 0.6);
    assert_eq!(document["left_out"], serde_json::json!([]));
    let rows = document["programs"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| &row["program"]).collect();
    assert_eq!(names, ["python", "gcc"]);
    for row in rows {
        let at = |key: &str| row[key].as_u64().unwrap();
        assert!(at("need_bytes") > 192 << 20, "{row}");
        assert!(at("limit_bytes") < at("need_bytes") * 2 / 3, "{row}");
        let sides = row["sides"].as_array().unwrap();
        let names: Vec<_> = sides.iter().map(|side| &side["name"]).collect();
        assert_eq!(names, ["no limit", "hugeswap"]);
        for side in sides {
            assert_eq!(side["end"], "done", "{row}");
            assert_eq!(side["runs"].as_array().unwrap().len(), 2, "{row}");
        }
        for run in sides[1]["runs"].as_array().unwrap() {
            // Also fails where the program was not managed: then nothing was measured.
            assert!(run["stats"]["counters"]["pswpout"].as_u64().unwrap() > 0);
            assert!(run["major_faults"].as_u64().unwrap() > 0, "{run}");
            assert!(
                run["peak_bytes"].as_u64().unwrap() <= at("limit_bytes"),
                "{run}"
            );
        }
    }
}

/// Offline, and without the right to install anything, it says what there is to do.
#[test]
fn programs_that_are_not_installed() {
    let output = Command::new(env!("CARGO_BIN_EXE_hugeswap"))
        .args(["bench", "programs", "--program", "redis", "--no-kernel"])
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "hugeswap: there is nothing to measure: redis: needs the package redis-server \
         (--install installs what is missing)\n"
    );
}

#[test]
fn wrong_arguments() {
    for (line, wanted) in [
        (
            &["swap-zipf", "--theta", "1"][..],
            "--theta: '1' is not between 0 and 1",
        ),
        (
            &["swap-zipf", "--writes", "101"],
            "--writes: 101 is not in 0..=100",
        ),
        (
            &["swap-stride", "--threads", "0"],
            "--threads: 0 is not in 1..=256",
        ),
        (&["programs", "--program", "emacs"], "emacs"),
        (&["programs", "--size", "16M"], "16M"),
        (&["programs", "--share", "1.5"], "not between 0.05 and 1"),
        (&["programs", "--swap", "ram"], "give a directory"),
        (
            &[
                "swap-w-seq",
                "--swap",
                "/",
                "--swap",
                "/tmp",
                "--against",
                "kernel",
            ],
            "several --swap are for hugeswap alone",
        ),
        (&["all", "--only", "nothing"], "there is no test 'nothing'"),
        (&["all", "--swap", "ram"], "give a directory"),
        (&["all", "--memory", "16M"], "give 48M or more"),
        (&["policies", "--unit", "bit"], "bit"),
    ] {
        let output = bench(line);
        assert_eq!(output.status.code(), Some(2), "{line:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(wanted), "{line:?}: {text}");
    }
}

/// Where no memory group can be made, as without root or in a container, hugeswap keeps the limit alone: it is
/// said, and the kernel's swap is not measured so.
#[test]
fn without_a_memory_group() {
    let own = hugeswap_host::cgroup::Own::find().unwrap();
    let bench = |more: &[&str]| {
        // In a mount namespace of its own the groups can't be written.
        let script = "mount --make-rprivate / && mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]);
        command.arg(&own.path).arg(env!("CARGO_BIN_EXE_hugeswap"));
        command.arg("bench").args(more).output().unwrap()
    };
    let mut line = vec!["swap-w-rand", "--processes", "2"];
    line.extend(SMALL);
    let output = bench(&line);
    let (said, table) = (text(&output.stderr), text(&output.stdout));
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("without a memory group"), "{said}");
    assert!(
        table.contains("rounds, 1000 pages/s") && !table.contains("peak of the group"),
        "{table}"
    );
    line.extend(["--against", "zram"]);
    let output = bench(&line);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
