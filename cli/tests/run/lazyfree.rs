//! What has left stays in memory where the run's group has some to spare.

use crate::support::{compile, Dir, Done, Run};

/// So many jumps through 112 MiB in 64, from several threads, in a group with so much above that. Where
/// something is asserted of what comes of it there are many: a busy machine is slow to fill the group.
fn jumps(steps: u64, above: u64, environment: &[(&str, &str)]) -> Done {
    let (program, dir) = (compile("jumps").display().to_string(), Dir::new("lazyfree"));
    let steps = steps.to_string();
    let mut run = Run::new(64, [program.as_str(), "112", steps.as_str(), "2", "0"])
        .swap(dir.path())
        .above(above)
        .option("--compress=off");
    for (name, value) in environment {
        run = run.env(name, value);
    }
    let done = run.ok();
    assert_eq!(done.oom_kills, 0, "{done}");
    done.has_swapped();
    done
}

#[test]
fn a_group_with_room() {
    let done = jumps(240_000, 64, &[]);
    assert!(done.counter("lazyfree_reuse") > 100, "{done}");
    assert!(done.counter("pglazyfree") > 1000, "{done}");
}

#[test]
fn nothing_to_spare() {
    let done = jumps(30_000, 64, &[("HUGESWAP_LAZYFREE", "0")]);
    assert_eq!(done.counter("pglazyfree"), 0, "{done}");
}

/// More is kept than there is room for: the kernel takes it back, nothing is wrong, and nobody is killed.
#[test]
fn more_than_there_is() {
    let done = jumps(240_000, 24, &[("HUGESWAP_LAZYFREE", "100M")]);
    assert!(done.counter("lazyfree_reuse") > 100, "{done}");
    // One fault finds others that are gone near it.
    assert!(done.counter("lazyfree_lost") > 10, "{done}");
}
