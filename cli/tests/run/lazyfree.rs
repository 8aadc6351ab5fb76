//! What has left stays in memory where the run's group has some to spare.

use std::process::Command;

use hugeswap_host::os;

use crate::support::{compile, Dir, Done, Run};

/// So many jumps through 112 MiB in 64, from several threads, in a group with so much above that. Where
/// something is asserted of what comes of it there are many: a busy machine is slow to fill the group.
fn jumps(steps: u64, above: u64) -> Run {
    let (program, steps) = (compile("jumps").display().to_string(), steps.to_string());
    Run::new(64, [program.as_str(), "112", steps.as_str(), "2", "0"])
        .above(above)
        .option("--compress=off")
}

fn right(done: Done) -> Done {
    assert!(done.status.success(), "{done}");
    assert_eq!(done.oom_kills, 0, "{done}");
    done.has_swapped();
    done
}

fn stayed(done: &Done) {
    assert!(done.counter("lazyfree_reuse") > 100, "{done}");
    assert!(done.counter("pglazyfree") > 1000, "{done}");
}

#[test]
fn a_group_with_room() {
    let dir = Dir::new("lazyfree");
    stayed(&right(jumps(240_000, 64).swap(dir.path()).go()));
}

/// As a batch job's shell, or a container's first process.
#[test]
fn a_group_with_a_small_process_of_others() {
    let dir = Dir::new("lazyfree");
    let run = jumps(240_000, 64).swap(dir.path()).start().leave_alone();
    let mut other = Command::new("sleep");
    os::spawn_inside(other.arg("1000"), run.group.procs().unwrap());
    let mut other = other.spawn().unwrap();
    let done = run.finish();
    // The group has ended it.
    other.wait().unwrap();
    stayed(&right(done));
}

#[test]
fn nothing_to_spare() {
    let dir = Dir::new("lazyfree");
    let run = jumps(30_000, 64).swap(dir.path());
    let done = right(run.env("HUGESWAP_LAZYFREE", "0").go());
    assert_eq!(done.counter("pglazyfree"), 0, "{done}");
}

/// More is kept than there is room for: the kernel takes it back, nothing is wrong, and nobody is killed.
#[test]
fn more_than_there_is() {
    let dir = Dir::new("lazyfree");
    let run = jumps(240_000, 24).swap(dir.path());
    let done = right(run.env("HUGESWAP_LAZYFREE", "100M").go());
    assert!(done.counter("lazyfree_reuse") > 100, "{done}");
    // One fault finds others that are gone near it.
    assert!(done.counter("lazyfree_lost") > 10, "{done}");
}
