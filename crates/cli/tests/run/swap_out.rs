//! What leaves memory, and how much of swap it takes.

use crate::support::{compile, long, Done, Run};

fn zeros(megabytes: &str, rounds: u32, seed: u32, part: &[&str]) -> Run {
    let program = compile("zeros").display().to_string();
    let mut line = vec![program, megabytes.into()];
    line.extend([rounds.to_string(), seed.to_string()]);
    line.extend(part.iter().map(ToString::to_string));
    Run::new(64, line).seconds(if long() { 1500 } else { 120 })
}

fn ok(run: Run) -> Done {
    let done = run.ok();
    assert_eq!(done.stdout.lines().last(), Some("ok"), "{done}");
    done.has_swapped();
    done
}

/// Pages of zeros leave without a write, and read as zeros again.
#[test]
fn zeros_are_not_written() {
    let done = ok(zeros("192", 0, 1, &["zero"]));
    let pages = 192 << 8;
    let zero = done.counter("swpout_zero");
    assert!(zero > 2 * (pages - (64 << 8)), "{done}");
    // What was written before it was cleared, and nothing more.
    assert!(done.counter("pswpout") < 2 * pages, "{done}");
}

#[test]
fn zeros_among_data() {
    let rounds = if long() { 3000 } else { 20 };
    for seed in [1, 2] {
        let done = ok(zeros("160", rounds, seed, &[]));
        assert!(done.counter("swpout_zero") > 0, "{done}");
    }
}
