//! Who lives and who is dead, whose swap is whose: see c/lives.c.

use std::fs;
use std::process::{Command, Stdio};

use crate::support::{compile, kill, wait_for, Dir, Done, Run};

fn run(what: &str, options: &[&str]) -> Done {
    let program = compile("lives");
    let dir = Dir::new("lives");
    let line = [program.as_os_str(), what.as_ref(), dir.path().as_os_str()];
    let mut run = Run::new(64, line).above(192).seconds(120);
    for o in options {
        run = run.option(o);
    }
    let done = run.ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    assert_eq!(done.stderr, "", "{done}");
    done
}

/// Two processes that are both number 1 as they see themselves.
#[test]
fn in_name_spaces_of_their_own() {
    run("name_spaces", &[]).has_swapped();
}

#[test]
fn a_child_whose_parent_is_killed_at_clone() {
    run("killed_at_clone", &[]).has_swapped();
}

#[test]
fn children_in_an_empty_root_without_rights() {
    run("empty_root", &[]).has_swapped();
}

#[test]
fn numbers_of_descriptors_are_the_programs() {
    run("numbers", &[]).has_swapped();
}

/// Swap in use is bounded by what is there, though there is always somebody who borrows.
#[test]
fn loans_end_while_others_borrow() {
    let done = run("overlapping", &["--swap-size", "320M"]);
    assert_eq!(done.counter("swap_full"), 0, "{done}");
    done.has_swapped();
}

/// The end of a run kills its own processes, and not those that have the numbers by which these know
/// themselves.
#[test]
fn nobody_else_is_killed() {
    let hog = compile("hog");
    let mut bystander = Command::new("sleep")
        .arg("1000")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let line = format!(
        "echo {} >/proc/sys/kernel/ns_last_pid; {} 96 wait & wait",
        bystander.id() - 1,
        hog.display()
    );
    let mut run = Run::new(64, ["unshare", "-pf", "sh", "-c", &line]).start();
    run.wait_for_output("ready");
    kill(run.front(), libc::SIGKILL);
    let group = run.group.path().to_owned();
    wait_for("everybody to end", 20, || {
        fs::read_to_string(group.join("cgroup.procs"))
            .unwrap()
            .trim()
            .is_empty()
    });
    run.finish();
    assert!(bystander.try_wait().unwrap().is_none(), "it was killed");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

/// Nobody goes on without the supervisor.
#[test]
fn the_supervisor_of_several_is_killed() {
    let hog = compile("hog");
    let line = format!("{0} 48 wait & {0} 48 wait & wait", hog.display());
    let mut run = Run::new(96, ["sh", "-c", &line]).start();
    run.wait_for_output("ready\nready\n");
    let group = run.group.path().to_owned();
    kill(run.supervisor(), libc::SIGKILL);
    wait_for("everybody to end", 20, || {
        fs::read_to_string(group.join("cgroup.procs"))
            .unwrap()
            .trim()
            .is_empty()
    });
    let done = run.finish();
    assert_eq!(done.code(), Some(125), "{done}");
    assert!(done.stderr.contains("supervisor"), "{done}");
}
