//! Who lives and who is dead, whose swap is whose: see c/lives.c.

#![allow(unsafe_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{compile, hugeswap, kill, library, machine, wait_for};
use crate::support::{Dir, Done, Run, SlowDisk};

fn run(what: &str, options: &[&str]) -> Done {
    let program = compile("lives");
    let dir = Dir::new("lives");
    let line = [program.as_os_str(), what.as_ref(), dir.path().as_os_str()];
    let mut run = Run::new(64, line).above(192);
    for o in options {
        run = run.option(o);
    }
    let done = run.ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    assert_eq!(done.stderr, "", "{done}");
    done
}

/// A program that is started in other namespaces is managed like one that was forked there.
#[test]
fn programs_in_other_network_and_user_namespaces() {
    let hog = compile("hog");
    let hog = hog.display();
    for line in [
        format!("exec unshare -Urn {hog} 128"),
        // By fork and exec from there, and from what was started so.
        format!("exec unshare -Urn sh -c '{hog} 128 && sh -c \"{hog} 96 && {hog} 96\"'"),
        format!("exec unshare -Urnmpf --mount-proc sh -c '{hog} 128 && {hog} 96'"),
    ] {
        let done = Run::new(64, ["sh", "-c", &line]).ok();
        assert!(done.stdout.lines().all(|l| l == "ok"), "{done}");
        assert_eq!(done.stderr, "", "{done}");
        done.has_swapped();
    }
}

/// What it takes to find the supervisor from there is not left to the program, nor lost when exec fails.
#[test]
fn no_descriptor_is_left_by_an_exec_elsewhere() {
    let script = "import os\n\
        before = os.listdir('/proc/self/fd')\n\
        for _ in range(20):\n\
        \ttry: os.execv('/nowhere', ['x'])\n\
        \texcept FileNotFoundError: pass\n\
        assert os.listdir('/proc/self/fd') == before\n\
        os.execv('/bin/ls', ['ls', '/proc/self/fd'])";
    let line = ["unshare", "-Urn", "python3", "-c", script];
    let mut plain = Command::new(line[0]);
    let plain = plain.args(&line[1..]).stdin(Stdio::null());
    let plain = plain.output().unwrap();
    assert!(plain.status.success(), "{plain:?}");
    let done = Run::new(64, line).ok();
    assert_eq!(done.stdout.as_bytes(), plain.stdout, "{done}");
}

/// Two processes that are both number 1 as they see themselves.
#[test]
fn in_namespaces_of_their_own() {
    run("namespaces", &[]).has_swapped();
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

/// Says that something was reached, or waits until the program has said so.
fn tell(dir: &Dir, name: &str) {
    fs::write(dir.join(name), "").unwrap();
}

fn wait_until(dir: &Dir, name: &str) {
    let path = dir.join(name);
    wait_for(name, || path.exists());
}

/// A process ends while writes of its are on their way. They arrive when another has filled swap, and harm
/// nobody; nor do they keep more from anybody than what they may reach.
fn overtaken(what: &str) {
    let disk = SlowDisk::new();
    let dir = Dir::new("lives");
    let program = compile("lives");
    let line = [program.as_os_str(), what.as_ref(), dir.path().as_os_str()];
    let run = Run::new(64, line).above(192);
    let run = run.swap(disk.file()).option("--swap-size=160M").start();
    wait_until(&dir, "writes");
    disk.hold(true);
    wait_for("a write that is held", || disk.held() > 0);
    tell(&dir, "caught");
    wait_until(&dir, "gone");
    assert!(disk.held() > 0);
    disk.hold(false);
    tell(&dir, "go");
    wait_until(&dir, "filled");
    assert_eq!(disk.over(), 0, "written over what is on its way");
    disk.release();
    tell(&dir, "carried out");
    let done = run.finish();
    assert!(done.status.success(), "{done}");
    assert_eq!((&*done.stdout, &*done.stderr), ("ok\n", ""), "{done}");
    assert_eq!(done.counter("swap_full"), 0, "{done}");
    done.has_swapped();
}

#[test]
fn writes_in_flight_outlive_a_process_that_is_killed() {
    overtaken("in_flight_at_kill");
}

#[test]
fn writes_in_flight_outlive_an_exec() {
    overtaken("in_flight_at_exec");
}

#[test]
fn children_that_share_the_memory_of_a_parent_that_is_killed() {
    run("shares_memory", &[]).has_swapped();
}

/// Before Linux 6.6 no page can be marked as lost.
#[test]
fn the_same_without_poison() {
    let program = compile("lives");
    let dir = Dir::new("lives");
    let line = [
        program.as_os_str(),
        "shares_memory".as_ref(),
        dir.path().as_os_str(),
    ];
    let run = Run::new(64, line).above(192);
    let done = run.env("HUGESWAP_NO_POISON", "1").ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}

#[test]
fn nobody_can_write_the_control_page() {
    run("control_page", &[]);
}

fn set_descriptors(pid: i32, n: u64) -> u64 {
    let (mut new, mut old) = ([n, u64::MAX], [0; 2]);
    // SAFETY: structures of two words, which outlive the calls.
    let r = unsafe {
        libc::prlimit(
            pid,
            libc::RLIMIT_NOFILE,
            std::ptr::null(),
            old.as_mut_ptr().cast(),
        );
        new[1] = old[1];
        libc::prlimit(
            pid,
            libc::RLIMIT_NOFILE,
            new.as_ptr().cast(),
            std::ptr::null_mut(),
        )
    };
    assert_eq!(r, 0, "{}", std::io::Error::last_os_error());
    old[0]
}

/// Who lives is not taken for dead, and who comes waits.
#[test]
fn a_supervisor_without_descriptors() {
    let dir = Dir::new("lives");
    let program = compile("lives");
    let line = [
        program.as_os_str(),
        "keeps".as_ref(),
        dir.path().as_os_str(),
    ];
    let run = Run::new(64, line).above(192).start();
    wait_until(&dir, "filled");
    let supervisor = run.supervisor();
    let is_open = |n: &u64| fs::symlink_metadata(format!("/proc/{supervisor}/fd/{n}")).is_ok();
    let used = (0..).take_while(is_open).count() as u64;
    let before = set_descriptors(supervisor, used);
    tell(&dir, "go");
    // Several of its looks.
    std::thread::sleep(Duration::from_secs(1));
    set_descriptors(supervisor, before);
    let done = run.finish();
    assert!(done.status.success(), "{done}");
    assert_eq!(done.stdout, "ok\n", "{done}");
    let expected = |l: &str| l.contains("can't write the statistics");
    assert!(done.stderr.lines().all(expected), "{done}");
    done.has_swapped();
}

/// A program that wants swap stands still until the supervisor goes on, and stays within its limit.
#[test]
fn a_supervisor_that_is_stopped() {
    let dir = Dir::new("lives");
    let program = compile("lives");
    let line = [
        program.as_os_str(),
        "wants".as_ref(),
        dir.path().as_os_str(),
    ];
    let run = Run::new(64, line).start();
    wait_until(&dir, "began");
    let supervisor = run.supervisor();
    kill(supervisor, libc::SIGSTOP);
    tell(&dir, "go");
    std::thread::sleep(Duration::from_secs(1));
    kill(supervisor, libc::SIGCONT);
    let done = run.finish();
    assert!(done.status.success(), "{done}");
    assert_eq!((&*done.stdout, &*done.stderr), ("ok\n", ""), "{done}");
    assert!(done.counter("peak_resident_bytes") < 80 << 20, "{done}");
    done.has_swapped();
}

/// If it does not go on the run ends, and says why.
#[test]
#[ignore = "long: ./test --long"]
fn a_supervisor_that_stays_stopped() {
    let hog = compile("hog");
    let mut run = Run::new(64, [hog.as_os_str(), "48".as_ref(), "wait".as_ref()]).start();
    run.wait_for_output("ready");
    kill(run.supervisor(), libc::SIGSTOP);
    let done = run.finish();
    assert_eq!(done.code(), Some(125), "{done}");
    assert!(done.stderr.contains("the supervisor was stopped"), "{done}");
}

/// Time in which the front did not run either does not count: as when all of a run is frozen.
#[test]
#[ignore = "long: ./test --long"]
fn a_run_that_stands_still() {
    let dir = Dir::new("lives");
    let program = compile("lives");
    let line = [
        program.as_os_str(),
        "wants".as_ref(),
        dir.path().as_os_str(),
    ];
    let run = Run::new(64, line).start();
    wait_until(&dir, "began");
    let (front, supervisor) = (run.front(), run.supervisor());
    kill(supervisor, libc::SIGSTOP);
    // It is seen.
    std::thread::sleep(Duration::from_secs(1));
    kill(front, libc::SIGSTOP);
    tell(&dir, "go");
    std::thread::sleep(Duration::from_secs(33));
    kill(front, libc::SIGCONT);
    std::thread::sleep(Duration::from_secs(1));
    kill(supervisor, libc::SIGCONT);
    let done = run.finish();
    assert!(done.status.success(), "{done}");
    assert_eq!((&*done.stdout, &*done.stderr), ("ok\n", ""), "{done}");
}

/// An ordinary user's run, where /proc shows nothing of processes that may not be looked at.
#[test]
fn where_proc_hides_processes() {
    let _machine = machine();
    let dir = Dir::new("hidden");
    for from in [hugeswap().to_owned(), library(), compile("lives")] {
        // The program has a longer name.
        let name = from.file_name().unwrap().to_str().unwrap();
        let to = dir.join(name.trim_start_matches("run-"));
        fs::copy(&from, &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let script = "set -e; mount --make-rprivate /; cp -a /dev/userfaultfd uffd; chmod 666 uffd
         mount --bind uffd /dev/userfaultfd; mount -t proc -o hidepid=invisible proc /proc
         exec setpriv --reuid 65534 --regid 65534 --clear-groups \
             ./hugeswap run --memory 64M --swap . -- ./lives hidden .";
    let out = Command::new("unshare")
        .args(["-m", "timeout", "-s", "KILL", "90", "sh", "-c", script])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.success() && text == "ok\n",
        "{}: {text}",
        out.status
    );
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
    wait_for("everybody to end", || {
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
    wait_for("everybody to end", || {
        fs::read_to_string(group.join("cgroup.procs"))
            .unwrap()
            .trim()
            .is_empty()
    });
    let done = run.finish();
    assert_eq!(done.code(), Some(125), "{done}");
    assert!(done.stderr.contains("supervisor"), "{done}");
}
