//! `--record-faults`, and what `bench policies` makes of it.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{compile, hugeswap, Dir, Run};

/// How many faults each process had, the one with most of them first.
fn replay(file: &Path) -> Vec<u64> {
    let mut command = Command::new(hugeswap());
    command.args(["bench", "policies", "--json", "--trace"]);
    let output = command.arg(file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let each = all.as_array().unwrap().iter();
    each.map(|trace| trace["touches"].as_u64().unwrap())
        .collect()
}

/// All that were counted but those of the last moment.
#[test]
fn faults_of_several_threads() {
    let dir = Dir::new("recorded");
    let file = dir.join("faults");
    let program = compile("jumps").display().to_string();
    let done = Run::new(
        64,
        [&program, "96", "20000", "2", "0"].map(|w| w.to_string()),
    )
    .option("--record-faults")
    .option(&file)
    .ok();
    let served = done.counter("pgmajfault") + done.counter("pgminfault");
    let found = replay(&file);
    assert_eq!(found.len(), 1, "{found:?}");
    // All of the memory was touched first at some time, and each page of it is told.
    assert!(found[0] > 96 << 8, "{found:?}");
    // A fault that waits for a transfer is counted once and may come again.
    assert!(found[0] >= served / 10 * 8, "{found:?} of {served}: {done}");
    assert!(
        found[0] <= served / 10 * 15,
        "{found:?} of {served}: {done}"
    );
}

/// Each process has a number of its own, and records go on while the engine's threads come and go.
#[test]
fn faults_of_several_processes() {
    let dir = Dir::new("recorded");
    let file = dir.join("faults");
    let done = Run::new(64, [compile("one_thread")])
        .option("--record-faults")
        .option(&file)
        .ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    let found = replay(&file);
    assert!(found.len() > 2, "{found:?}");
}

#[test]
fn what_is_no_plain_file_is_refused() {
    let dir = Dir::new("recorded");
    for (file, says) in [
        (Path::new("/dev/null").to_owned(), "not a plain file"),
        (dir.path().to_owned(), "Is a directory"),
        (dir.join("no/such/place"), "No such file"),
    ] {
        let done = Run::new(64, ["true"])
            .option("--record-faults")
            .option(&file)
            .go();
        assert_eq!(done.code(), Some(125), "{done}");
        assert!(done.stderr.contains(says), "{done}");
        assert_eq!(done.stderr.lines().count(), 1, "{done}");
    }
}
