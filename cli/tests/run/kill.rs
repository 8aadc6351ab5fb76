//! `kill -9` of anybody leaves no file, no process, no mount, no group.

use std::fs;

use crate::support::{compile, kill, mounts, users_of, wait_for, Done, Run, Running};

fn started() -> Running {
    let hog = compile("hog");
    let mut run = Run::new(64, [hog.as_os_str(), "128".as_ref(), "wait".as_ref()]).start();
    run.wait_for_output("ready");
    wait_for("the first statistics", || run.read_stats().is_some());
    assert!(
        !users_of(&run.swap_dir).is_empty(),
        "the swap file is open somewhere"
    );
    run
}

/// Kills one of them; everything has to go.
fn kill_one(who: fn(&Running) -> i32) -> Done {
    let before = mounts();
    let run = started();
    let (swap_dir, group) = (run.swap_dir.clone(), run.group.path().to_owned());
    kill(who(&run), libc::SIGKILL);
    wait_for("everybody to end", || {
        fs::read_to_string(group.join("cgroup.procs"))
            .unwrap()
            .trim()
            .is_empty()
    });
    assert_eq!(users_of(&swap_dir), [""; 0]);
    assert_eq!(run.dir.list(), ["stats.json", "stderr", "stdout", "swap"]);
    assert_eq!(mounts(), before);
    let done = run.finish();
    assert!(!group.exists());
    done
}

#[test]
fn the_program() {
    let done = kill_one(Running::program);
    assert_eq!(done.signal(), Some(libc::SIGKILL), "{done}");
    // The last periodic state, completed at the end.
    assert!(done.counter("pswpout") > 0, "{done}");
    assert_eq!(
        done.stats.as_ref().unwrap()["ended"]["signal"].as_i64(),
        Some(9),
        "{done}"
    );
}

/// Killed while pages are compressed and come back.
#[test]
fn the_program_in_compressed_memory() {
    let jumps = compile("jumps").display().to_string();
    let for_ever = [jumps.as_str(), "96", "1000000000000", "2", "0"];
    let run = Run::new(64, for_ever).swap("none").start();
    wait_for("compressed memory", || {
        let stats = run.read_stats();
        stats.is_some_and(|s| s["counters"]["zswpin"].as_u64() > Some(0))
    });
    let program = run.program();
    kill(program, libc::SIGKILL);
    let done = run.finish();
    assert_eq!(done.signal(), Some(libc::SIGKILL), "{done}");
    assert_eq!(done.stderr, "", "{done}");
}

#[test]
fn the_front() {
    let done = kill_one(Running::front);
    assert_eq!(done.signal(), Some(libc::SIGKILL), "{done}");
}

#[test]
fn the_supervisor() {
    let done = kill_one(Running::supervisor);
    assert_eq!(done.code(), Some(125), "{done}");
    assert_eq!(done.stderr.lines().count(), 1, "{done}");
    assert!(done.stderr.contains("supervisor"), "{done}");
}

#[test]
fn all_at_once() {
    let run = started();
    let swap_dir = run.swap_dir.clone();
    run.group.kill().unwrap();
    wait_for("everybody to end", || users_of(&swap_dir).is_empty());
    let done = run.finish();
    assert_eq!(done.signal(), Some(libc::SIGKILL), "{done}");
}

/// A program with managed children that wait: all of them go with the front.
#[test]
fn the_front_of_several() {
    let hog = compile("hog");
    let line = format!(
        "{0} 48 wait & {0} 48 wait & {0} 48 wait & echo started; wait",
        hog.display()
    );
    let mut run = Run::new(96, ["sh", "-c", &line]).start();
    run.wait_for_output("ready\nready\nready\n");
    let (swap_dir, group) = (run.swap_dir.clone(), run.group.path().to_owned());
    kill(run.front(), libc::SIGKILL);
    wait_for("everybody to end", || {
        fs::read_to_string(group.join("cgroup.procs"))
            .unwrap()
            .trim()
            .is_empty()
    });
    assert_eq!(users_of(&swap_dir), [""; 0]);
    run.finish();
}
