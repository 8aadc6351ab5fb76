//! fork, exec and their relatives with memory that is swapped out.

use crate::support::{compile, kill, long, wait_for, Dir, Done, Run, Running};

fn run(what: &str) -> Done {
    let program = compile("processes");
    // Both sides of a fork have memory of their own above the limit: their page tables.
    let done = Run::new(64, [program.to_str().unwrap(), what]).ok();
    assert!(done.stdout.ends_with("ok\n"), "{done}");
    assert_eq!(done.stderr, "", "{done}");
    done
}

/// The environment that it gives has nothing of ours, and that is said.
#[test]
fn exec_from_swap() {
    let program = compile("processes");
    let done = Run::new(64, [program.to_str().unwrap(), "exec_from_swap"]).ok();
    assert_eq!(done.stdout, "exec ok\n", "{done}");
    assert!(done.stderr.contains("'/bin/sh'"), "{done}");
    assert_eq!(done.stderr.lines().count(), 1, "{done}");
    done.has_swapped();
}

macro_rules! cases {
    ($($name:ident,)*) => {$(
        #[test]
        fn $name() {
            run(stringify!($name)).has_swapped();
        }
    )*};
}

cases! {
    both_sides,
    grandchildren,
    siblings,
    parent_changes,
    threads,
    spawning,
    exec_self,
    many,
    killed_children,
    ended_while_it_forks,
    generations,
}

/// Descriptors, threads, memory of the parent's: see c/processes.c. When it has dropped its memory
/// no slot is in use.
#[test]
fn nothing_is_left_of_children() {
    let program = compile("processes");
    let forks = if long() { "10000" } else { "250" };
    let mut run = Run::new(64, [program.to_str().unwrap(), "leaks"])
        .env("FORKS", forks)
        .start();
    run.wait_for_output("dropped");
    wait_for("swap to be empty", || {
        let stats = run.read_stats();
        stats.is_some_and(|s| s["counters"]["swapped_bytes"].as_u64() == Some(0))
    });
    kill(run.program(), libc::SIGTERM);
    let done = run.finish();
    assert_eq!(done.signal(), Some(libc::SIGTERM), "{done}");
    assert!(done.counter("pswpout") > 0, "{done}");
}

/// The command ends with the program; the child goes on, managed, and ends by itself.
fn goes_on(what: &str, says: &str) {
    let program = compile("processes");
    let mut run = Run::new(64, [program.to_str().unwrap(), what])
        .start()
        .leave_alone();
    run.wait_for_front();
    let done = after_its_program(run, says);
    assert!(done.status.success(), "{done}");
}

/// What goes on when the program of the command line has ended says this, and is the last to end.
fn after_its_program(run: Running, says: &str) -> Done {
    let (out, group) = (run.dir.join("stdout"), run.group.path().to_owned());
    wait_for(&format!("'{says}'"), || {
        std::fs::read_to_string(&out).unwrap().contains(says)
    });
    wait_for("the supervisor to end", || {
        std::fs::read_to_string(group.join("cgroup.procs"))
            .unwrap()
            .trim()
            .is_empty()
    });
    let done = run.finish();
    assert_eq!(done.oom_kills, 0, "{done}");
    done
}

#[test]
fn orphans_go_on() {
    goes_on("orphan", "orphan ok");
}

#[test]
fn daemons_go_on() {
    goes_on("as_daemon", "daemon ok");
}

/// The program ends, or is killed, while the loader is still busy with what it has started: nobody else is there
/// to tell of it. A library that is a pipe holds the loader up.
#[test]
fn who_is_just_starting_is_managed() {
    let script = "import os, sys
how, pipe, *program = sys.argv[1:]
env = {**os.environ, 'LD_PRELOAD': os.environ['LD_PRELOAD'] + ':' + pipe}
if how == 'fork':
    if os.fork() == 0:
        os.execve(program[0], program, env)
else:
    os.posix_spawn(program[0], program, env)
if how == 'killed':
    os.kill(os.getpid(), 9)
os._exit(0)";
    let hog = compile("hog");
    for how in ["fork", "spawn", "killed"] {
        let dir = Dir::new("starting");
        let pipe = dir.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let (pipe, hog) = (pipe.to_str().unwrap(), hog.to_str().unwrap());
        let program = ["python3", "-c", script, how, pipe, hog, "256"];
        let mut run = Run::new(64, program).start().leave_alone();
        run.wait_for_front();
        drop(std::fs::File::options().write(true).open(pipe).unwrap());
        let done = after_its_program(run, "ok");
        assert!(!done.stderr.contains("unmanaged"), "{how}: {done}");
    }
}

#[test]
fn chains_of_shells() {
    let hog = compile("hog");
    let hog = hog.display();
    let line =
        format!("sh -c 'sh -c \"{hog} 96\"; {hog} 96' && exec sh -c '{hog} 96 | cat; {hog} 96'");
    let done = Run::new(64, ["sh", "-c", &line]).ok();
    assert_eq!(done.stdout, "ok\n".repeat(4), "{done}");
    done.has_swapped();
}

/// The limit is one for all of them.
#[test]
fn several_at_a_time() {
    let hog = compile("hog");
    let line = format!("for i in 1 2 3 4; do {} 64 & done; wait", hog.display());
    let done = Run::new(96, ["sh", "-c", &line]).ok();
    assert_eq!(done.stdout, "ok\n".repeat(4), "{done}");
    done.has_swapped();
}

/// Each waits now and then, and all get done.
#[test]
fn several_by_turns() {
    let hog = compile("hog");
    let line = format!("for i in 1 2 3 4; do {} 64 & done; wait", hog.display());
    let done = Run::new(96, ["sh", "-c", &line])
        .env("HUGESWAP_INJECT", "turns")
        .ok();
    assert_eq!(done.stdout, "ok\n".repeat(4), "{done}");
    assert!(done.counter("turn_wait") > 0, "{done}");
    assert!(done.counter("turn_wait_ns") > 0, "{done}");
    done.has_swapped();
}

/// More processes, one after the other, than the supervisor has entries.
#[test]
fn hundreds_in_turn() {
    let done = Run::new(
        64,
        [
            "sh",
            "-c",
            "for i in $(seq 300); do /bin/true || exit 1; done; echo ok",
        ],
    )
    .ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
}

/// Its engine's threads do not stand in the way.
#[test]
fn a_mount_namespace_is_entered() {
    let program = compile("namespaces");
    let dir = Dir::new("names");
    let done = Run::new(64, [program.as_os_str(), dir.path().as_os_str()]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
}

/// Namespaces for processes of one thread only: the engine's threads end for the time of the call.
#[test]
fn user_and_time_namespaces_are_entered() {
    let program = compile("one_thread");
    let plain = std::process::Command::new(&program).output().unwrap();
    assert_eq!(plain.stdout, b"ok\n", "{plain:?}");
    let done = Run::new(64, [program]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}

/// No thread of the engine's keeps rights that the program has given up.
#[test]
fn rights_are_given_up() {
    let program = compile("rights");
    let plain = std::process::Command::new(&program).output().unwrap();
    assert_eq!(plain.stdout, b"ok\n", "{plain:?}");
    let done = Run::new(64, [program]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}

/// Forks in a network and user namespace, without /proc, in a domain of Landlock's: a child is found all the
/// same.
#[test]
fn children_that_cannot_find_the_supervisor() {
    let program = compile("apart");
    let plain = std::process::Command::new(&program).output().unwrap();
    assert_eq!(plain.stdout, b"ok\n", "{plain:?}");
    let done = Run::new(64, [program]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}

/// Calls that wait for a userfaultfd of the program's own hold up nobody else.
#[test]
fn calls_that_wait_for_the_program() {
    let program = compile("waiting_calls");
    let plain = std::process::Command::new(&program).output().unwrap();
    assert_eq!(plain.stdout, b"ok\n", "{plain:?}");
    let done = Run::new(64, [program]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
}

/// Who looks whether it has one thread, as sandboxes do (Chromium's zygote), finds its own and not ours.
#[test]
fn its_own_threads_only_are_listed() {
    let program = compile("tasks");
    let plain = std::process::Command::new(&program).output().unwrap();
    assert_eq!(plain.stdout, b"ok\n", "{plain:?}");
    let done = Run::new(64, [program]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
}
