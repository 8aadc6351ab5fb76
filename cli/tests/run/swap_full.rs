//! Swap that is full: the program goes on above its limit, or is ended where that is asked for.

use std::fs;

use crate::support::{compile, Done, Mount, Run};

fn hog(megabytes: &str) -> [String; 2] {
    [compile("hog").display().to_string(), megabytes.into()]
}

fn went_on_above(done: &Done) {
    assert_eq!(done.stdout, "ok\n", "{done}");
    assert!(done.counter("swap_full") > 0, "{done}");
    assert!(done.counter("pswpout") > 0, "{done}");
    let warning = done.stderr.lines().filter(|l| l.contains("full")).count();
    assert!(
        (1..=3).contains(&warning),
        "a warning, but not a flood: {done}"
    );
}

#[test]
fn size_reached() {
    let run = Run::new(64, hog("224")).above(320);
    went_on_above(&run.option("--swap-size=64M").ok());
    let run = Run::new(64, hog("224")).above(320).swap("ram");
    went_on_above(&run.option("--swap-size=64M").ok());
}

/// It tells of the run, so it is not said by each of its processes.
#[test]
fn said_once_of_several_processes() {
    let line = format!("for i in 1 2 3 4; do {} & done; wait", hog("96").join(" "));
    let done = Run::new(64, ["sh", "-c", &line])
        .above(416)
        .option("--swap-size=64M")
        .ok();
    let warnings = done.stderr.lines().filter(|l| l.contains("full")).count();
    assert_eq!(warnings, 1, "{done}");
    assert!(done.counter("swap_full") > 1, "{done}");
}

/// It is full when all of it is used, and not when some processes have more than they use.
#[test]
fn many_processes_in_little_swap() {
    let jumps = compile("jumps");
    let line = format!(
        "for i in $(seq 20); do {} 8 4000 1 0 & done; wait",
        jumps.display()
    );
    let done = Run::new(64, ["sh", "-c", &line])
        .above(96)
        .option("--swap-size=320M")
        .ok();
    assert_eq!(done.counter("swap_full"), 0, "{done}");
    done.has_swapped();
}

#[test]
fn size_reached_strictly() {
    let done = Run::new(64, hog("224"))
        .above(320)
        .option("--swap-size=64M")
        .option("--strict")
        .go();
    assert_eq!(done.code(), Some(137), "{done}");
    assert_eq!(done.stdout, "", "{done}");
    assert!(
        done.stderr.lines().any(|l| l.contains("full")),
        "it is said why: {done}"
    );
    assert!(done.stats.is_some(), "{done}");
}

/// Enough is enough: nothing is said where the size just does.
#[test]
fn size_not_reached() {
    let done = Run::new(64, hog("128"))
        .option("--swap-size=192M")
        .option("--strict")
        .ok();
    assert_eq!(done.counter("swap_full"), 0, "{done}");
    assert_eq!(done.stderr, "", "{done}");
    done.has_swapped();
}

/// The disk is filled by somebody else while the program runs.
#[test]
fn disk_full() {
    let disk = Mount::ext4(200);
    let filler = disk.path().join("filler");
    let line = format!(
        "head -c 110M /dev/zero | tr '\\0' x > {}; exec {} 224",
        filler.display(),
        compile("hog").display()
    );
    let done = Run::new(64, ["sh", "-c", &line])
        .above(320)
        .swap(disk.path())
        .ok();
    went_on_above(&done);
    assert_eq!(done.counter("pages_poisoned"), 0, "{done}");
    fs::remove_file(filler).unwrap();
}

#[test]
fn disk_full_strictly() {
    let disk = Mount::ext4(200);
    let line = format!(
        "head -c 110M /dev/zero | tr '\\0' x > {}; exec {} 224",
        disk.path().join("filler").display(),
        compile("hog").display()
    );
    let done = Run::new(64, ["sh", "-c", &line])
        .above(320)
        .swap(disk.path())
        .option("--strict")
        .go();
    assert_eq!(done.code(), Some(137), "{done}");
    assert_eq!(done.stdout, "", "{done}");
}

/// Of the disk there is enough, but not for everybody.
#[test]
fn quota_reached() {
    // Each has its own: what a file that is gone had counts for a while.
    let run = |disk: &Mount| {
        Run::new(64, hog("224"))
            .above(320)
            .swap(disk.path())
            .option("--swap-size=300M")
    };
    let disk = Mount::with_quota(700, 100);
    let done = run(&disk).ok();
    went_on_above(&done);
    assert!(done.stderr.contains("quota"), "{done}");
    assert_eq!(done.counter("pages_poisoned"), 0, "{done}");
    let disk = Mount::with_quota(700, 100);
    let done = run(&disk).option("--strict").go();
    assert_eq!(done.code(), Some(137), "{done}");
    assert_eq!(done.stdout, "", "{done}");
}

/// Two devices: the second is used when the first is full.
#[test]
fn a_second_device_takes_over() {
    let first = Mount::ext4(80);
    let done = Run::new(64, hog("224"))
        .swap(first.path())
        .option("--swap")
        .option("ram")
        .option("--swap-size=256M")
        .above(320)
        .ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    assert_eq!(done.counter("swap_full"), 0, "{done}");
}
