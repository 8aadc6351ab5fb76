//! `--stats-json`.

use hugeswap_control::stats::NAMES;
use serde_json::Value;

use crate::support::{compile, hugeswap, kill, machine, wait_for, Dir, Run};

fn is_complete(stats: &Value) {
    for (name, meaning) in NAMES {
        assert!(
            stats["counters"][name].is_u64(),
            "{name} ({meaning}): {stats}"
        );
    }
    for name in ["count", "p50", "p99", "max"] {
        assert!(stats["fault_latency_ns"][name].is_u64(), "{name}: {stats}");
    }
    assert_eq!(stats["memory_limit_bytes"].as_u64(), Some(64 << 20));
    assert!(stats.get("managed_share").is_some());
}

/// The names that the documentation promises.
#[test]
fn names() {
    let known: Vec<_> = NAMES.iter().map(|(n, _)| *n).collect();
    for name in [
        "pswpin",
        "pswpout",
        "thp_swpin",
        "thp_swpin_fallback",
        "thp_swpout",
        "thp_swpout_fallback",
        "pgmajfault",
        "swap_full",
        "swap_read_errors",
        "swap_write_errors",
        "pages_poisoned",
        "device_read_bytes",
        "device_write_bytes",
        "resident_bytes",
        "peak_resident_bytes",
        "managed_bytes",
        "unmanaged_bytes",
        "swapped_bytes",
    ] {
        assert!(known.contains(&name), "{name}");
    }
    assert!(NAMES.iter().all(|(_, meaning)| !meaning.trim().is_empty()));
}

#[test]
fn counts_what_happened() {
    let hog = compile("hog");
    let done = Run::new(64, [hog.to_str().unwrap(), "160"]).ok();
    let stats = done.stats.as_ref().unwrap();
    is_complete(stats);
    assert_eq!(stats["ended"]["exit_status"].as_i64(), Some(0), "{done}");
    let bytes = |name| done.counter(name);
    let need = (160 - 64) << 20;
    assert!(bytes("pswpout") * 4096 >= need, "{done}");
    assert!(bytes("pswpin") * 4096 >= need, "{done}");
    assert!(bytes("device_write_bytes") >= need, "{done}");
    assert!(bytes("device_read_bytes") >= need, "{done}");
    assert!(bytes("thp_swpout") > 0 && bytes("thp_swpin") > 0, "{done}");
    // Tables and buffers of the engine's own are charged when they are first used, whatever is free.
    assert!(bytes("peak_resident_bytes") <= 66 << 20, "{done}");
    assert!(
        stats["fault_latency_ns"]["count"].as_u64() > Some(0),
        "{done}"
    );
}

#[test]
fn without_pressure_nothing_is_swapped() {
    let hog = compile("hog");
    let done = Run::new(96, [hog.to_str().unwrap(), "32"]).ok();
    for name in ["pswpout", "pswpin", "swap_full", "allocstall"] {
        assert_eq!(done.counter(name), 0, "{name}: {done}");
    }
}

/// Written every second while the program runs, and whole after its death.
#[test]
fn survives_kill_9() {
    let hog = compile("hog");
    let mut run = Run::new(64, [hog.to_str().unwrap(), "128", "wait"]).start();
    run.wait_for_output("ready");
    // What is in swap at the time is counted now and then.
    wait_for("statistics of what is in swap", || {
        run.read_stats()
            .is_some_and(|s| s["counters"]["swapped_bytes"].as_u64() >= Some(48 << 20))
    });
    let running = run.read_stats().unwrap();
    is_complete(&running);
    assert!(running["ended"].is_null(), "{running}");
    assert!(running["managed_share"].as_f64() >= Some(0.95), "{running}");
    kill(run.program(), libc::SIGKILL);
    let done = run.finish();
    let stats = done.stats.as_ref().unwrap();
    is_complete(stats);
    assert_eq!(stats["ended"]["signal"].as_i64(), Some(9), "{done}");
    assert!(
        stats["counters"]["pswpout"].as_u64() >= running["counters"]["pswpout"].as_u64(),
        "{done}"
    );
}

/// `hugeswap run --stats-json FILE` by a shell line in a directory of its own; what the line says.
fn by_shell(line: &str) -> String {
    let _machine = machine();
    let dir = Dir::new("stats");
    let run = format!(
        "{} run --memory 64M --swap ram --stats-json",
        hugeswap().display()
    );
    let output = std::process::Command::new("timeout")
        .args(["-k", "1", "60", "sh", "-c", &line.replace("RUN", &run)])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The last of what was written one to a line.
fn last(lines: &str) -> Value {
    serde_json::from_str(lines.lines().last().unwrap()).unwrap()
}

#[test]
fn to_a_pipe_with_a_name() {
    let said = by_shell("mkfifo f; cat f & RUN f -- sleep 1; wait");
    is_complete(&last(&said));
    // The writer's look must not be the reader's end.
    let said = by_shell("mkfifo f; RUN f -- sleep 2 & cat f; wait");
    is_complete(&last(&said));
}

/// Nobody ever reads it: the run goes on, and ends by what it is sent.
#[test]
fn to_a_pipe_that_nobody_reads() {
    let said = by_shell("mkfifo f; (RUN f -- sleep 60; echo $?) 2>/dev/null & sleep 0.5; kill -TERM $(cat /proc/$!/task/*/children); wait");
    assert_eq!(said, "143\n");
}

#[test]
fn to_descriptors() {
    is_complete(&last(&by_shell("RUN /dev/stdout -- true")));
    is_complete(&last(&by_shell("RUN /dev/fd/7 -- true 7>&1")));
    is_complete(&last(&by_shell("RUN /dev/stdout -- true | cat")));
    // The program's output is not written over.
    let said = by_shell("RUN /dev/stdout -- echo hello >file; cat file");
    assert!(said.contains("hello\n"), "{said}");
    is_complete(&last(&said.replace("hello\n", "")));
}

#[test]
fn through_links() {
    let said = by_shell(
        "mkdir real; echo old >real/file; chmod 640 real/file; ln -s real/file link; RUN link -- true
         [ -h link ] && stat -c %a real/file && ls -A real && ln -s later new && RUN new -- true && [ -h new ]
         tr -d '\\n' <later",
    );
    let (head, json) = said.split_once('{').unwrap();
    assert_eq!(head, "640\nfile\n");
    let stats: Value = serde_json::from_str(&format!("{{{json}")).unwrap();
    is_complete(&stats);
    assert_eq!(stats["schema"].as_u64(), Some(1));
    assert_eq!(stats["command"].as_array().unwrap().len(), 1, "{stats}");
    assert!(
        stats["pid"].as_u64() > Some(1) && stats["unix_time"].as_f64() > Some(1e9),
        "{stats}"
    );
}
