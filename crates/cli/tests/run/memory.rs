//! What programs do with their memory, against a shadow of it.

use std::process::Command;

use crate::support::{compile, long, machine, Dir, Run};

/// `without`: what is left out, see c/maps.c.
fn sequences(first: u32, count: u32, without: &[&str], options: &[(&str, &str)]) {
    let maps = compile("maps");
    let dir = Dir::new("shadow");
    let shadow = dir.join("shadow");
    let (first, count) = (first.to_string(), count.to_string());
    let mut line = vec![
        maps.to_str().unwrap(),
        shadow.to_str().unwrap(),
        &first,
        &count,
    ];
    line.extend(without);
    let mut run = Run::new(64, line).seconds(if long() { 1500 } else { 120 });
    for (name, value) in options {
        run = run.env(name, value);
    }
    let done = run.ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}

/// The test itself is right: the same sequences without us.
#[test]
fn sequences_without_swap() {
    let _machine = machine();
    let dir = Dir::new("shadow");
    let output = Command::new("timeout")
        .args(["-k", "1", "60"])
        .arg(compile("maps"))
        .arg(dir.join("shadow"))
        .args(["1", "300"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn sequences_1() {
    sequences(1, if long() { 10_000 } else { 160 }, &["fork"], &[]);
}

#[test]
fn sequences_with_forks() {
    sequences(1_000_000, if long() { 10_000 } else { 160 }, &[], &[]);
}

#[test]
fn sequences_of_plain_mappings() {
    let without = ["fork", "remap", "protect", "advise", "over", "brk"];
    sequences(5_000_000, 160, &without, &[]);
}

#[test]
fn sequences_on_ram() {
    let maps = compile("maps");
    let dir = Dir::new("shadow");
    let shadow = dir.join("shadow");
    let line = [
        maps.to_str().unwrap(),
        shadow.to_str().unwrap(),
        "2000000",
        "100",
        "fork",
    ];
    let done = Run::new(64, line)
        .swap("ram")
        .option("--swap-size=256M")
        .above(384)
        .ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
}

/// As before Linux 6.8: nothing can leave memory (see `swap_cache::Victim`), the program is told
/// so, and goes on above its limit with everything right.
#[test]
fn sequences_without_move() {
    let maps = compile("maps");
    let dir = Dir::new("shadow");
    let shadow = dir.join("shadow");
    let line = [
        maps.to_str().unwrap(),
        shadow.to_str().unwrap(),
        "3000000",
        "60",
        "fork",
    ];
    let done = Run::new(64, line)
        .env("HUGESWAP_NO_MOVE", "1")
        .above(384)
        .ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    assert!(done.stderr.contains("can't move pages"), "{done}");
}

#[test]
fn sequences_without_io_uring() {
    sequences(4_000_000, 60, &["fork"], &[("HUGESWAP_NO_IO_URING", "1")]);
}

/// Small mappings that share 2 MiB with others, and come and go.
#[test]
fn neighbours() {
    let neighbours = compile("neighbours");
    let seconds = if long() { "120" } else { "5" };
    let done = Run::new(64, [neighbours.to_str().unwrap(), seconds])
        .seconds(300)
        .ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}

#[test]
fn eight_threads_over_three_times_the_limit() {
    let threads = compile("threads");
    let seconds = if long() { "120" } else { "6" };
    let done = Run::new(64, [threads.to_str().unwrap(), "192", seconds])
        .seconds(300)
        .ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}

/// One thread that jumps: the handler comes to its CPU, where there is more than one.
#[test]
fn jumps_of_one_thread() {
    let jumps = compile("jumps");
    let done = Run::new(64, [jumps.to_str().unwrap(), "128", "20000", "1", "0"]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
    if std::thread::available_parallelism().is_ok_and(|n| n.get() > 1) {
        assert!(done.counter("fault_near") > 0, "{done}");
    }
}

/// Several threads that jump, and all CPUs busy with other things.
#[test]
fn jumps_on_a_busy_machine() {
    let jumps = compile("jumps");
    for threads in ["1", "3"] {
        let done = Run::new(64, [jumps.to_str().unwrap(), "96", "3000", threads, "4"]).ok();
        assert_eq!(done.stdout, "ok\n", "{done}");
        done.has_swapped();
    }
}
