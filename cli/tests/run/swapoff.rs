//! Swap devices that are swapped off and on while a program uses them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output, Stdio};

use crate::support::{compile, hugeswap, kill, wait_for, Dir, Run, Running};

fn command(run: &Running, args: &[&str]) -> Command {
    let mut c = Command::new(hugeswap());
    c.args(&args[..1]).arg("--pid").arg(run.front().to_string());
    c.args(&args[1..]);
    c
}

fn ask(run: &Running, args: &[&str]) -> Output {
    command(run, args).output().unwrap()
}

fn ok(run: &Running, args: &[&str]) -> String {
    let out = ask(run, args);
    assert!(out.status.success(), "{args:?}: {out:?}");
    String::from_utf8(out.stdout).unwrap()
}

fn refused(run: &Running, args: &[&str], why: &str) {
    let out = ask(run, args);
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{args:?}: {out:?}");
    assert!(said.contains(why) && said.lines().count() == 1, "{said}");
}

fn state(run: &Running, device: usize) -> String {
    let table: serde_json::Value = serde_json::from_str(&ok(run, &["swapon", "--json"])).unwrap();
    table[device]["state"].as_str().unwrap().to_owned()
}

/// What the files of a run's devices occupy on their disk, in the order of the devices.
fn occupied(run: &Running, dirs: [&str; 2]) -> [u64; 2] {
    dirs.map(|dir| {
        let fds = fs::read_dir(format!("/proc/{}/fd", run.supervisor())).unwrap();
        let of_dir = |p: &std::path::Path| {
            fs::read_link(p).is_ok_and(|to| to.to_string_lossy().starts_with(dir))
        };
        let file = fds.flatten().map(|e| e.path()).find(|p| of_dir(p)).unwrap();
        fs::metadata(file).unwrap().blocks() * 512
    })
}

/// A program with 192 MiB in 64, and two devices.
fn start(env: &[(&str, &str)], end: &std::path::Path, second: &Dir, how: &[&str]) -> Running {
    let program = compile("swapoff");
    let arguments = [program.to_str().unwrap(), "192", end.to_str().unwrap()];
    let mut run = Run::new(64, arguments.iter().chain(how));
    for (name, value) in env {
        run = run.env(name, value);
    }
    let second = format!("--swap={}", second.path().display());
    let mut run = run.option(second).start();
    run.wait_for_output("ready");
    run
}

/// What is asked of a run and can't be written is an error; who reads no further is none.
#[test]
fn output_that_fails() {
    let second = Dir::new("second");
    let end = second.join("end");
    let run = start(&[], &end, &second, &[]);
    let front = run.front().to_string();
    for args in [
        &["swapon", "--pid", &front][..],
        &["swapon", "--json", "--pid", &front],
        &["set", &front],
    ] {
        let to = |out: Stdio| {
            let mut command = Command::new(hugeswap());
            command.args(args).stdout(out).stderr(Stdio::piped());
            let output = command.output().unwrap();
            (
                output.status.code(),
                String::from_utf8(output.stderr).unwrap(),
            )
        };
        let full = fs::File::create("/dev/full").unwrap();
        let (status, said) = to(full.into());
        assert!(
            said.contains("can't write to standard output"),
            "{args:?}: {said}"
        );
        assert_eq!(status, Some(1), "{args:?}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(to(writer.into()), (Some(141), String::new()), "{args:?}");
    }
    fs::write(&end, "").unwrap();
    assert!(run.finish().status.success());
}

#[test]
fn a_device_is_emptied_under_its_users() {
    let plain: &[(&str, &str)] = &[];
    for env in [
        plain,
        &[("HUGESWAP_NO_IO_URING", "1")],
        &[("HUGESWAP_NO_MOVE", "1")],
        &[("HUGESWAP_INJECT", "short=every:3,delay=4,reorder,seed=5")],
    ] {
        let second = Dir::new("second");
        let end = second.join("end");
        let run = start(env, &end, &second, &[]);
        let dirs = [
            run.swap_dir.to_str().unwrap(),
            second.path().to_str().unwrap(),
        ];
        for device in [0, 1, 0] {
            ok(&run, &["swapoff", dirs[device]]);
            assert_eq!(state(&run, device), "off");
            let bytes = occupied(&run, dirs);
            assert_eq!(bytes[device], 0, "{env:?}");
            assert!(bytes[1 - device] > 0, "{env:?}");
            refused(&run, &["swapoff", dirs[device]], "off already");
            refused(&run, &["swapoff", dirs[1 - device]], "the only device");
            ok(&run, &["swapon", dirs[device]]);
            assert_eq!(state(&run, device), "on");
        }
        fs::write(&end, "").unwrap();
        let done = run.finish();
        assert!(
            done.status.success() && done.stdout == "ready\nok\n",
            "{done}"
        );
        assert_eq!(done.oom_kills, 0, "{done}");
        assert!(done.counter("swapoff_pages") > 0, "{done}");
        for none in ["swap_full", "pages_poisoned", "swap_read_errors"] {
            assert_eq!(done.counter(none), 0, "{done}");
        }
    }
}

/// Places that were given one priority are used in turn, others one after the other.
#[test]
fn places_of_one_priority_share_the_load() {
    let (first, second) = (Dir::new("first"), Dir::new("second"));
    let end = second.join("end");
    let program = compile("swapoff");
    for (priority, alike) in [("priority=1", true), ("size=1G", false)] {
        let place = |dir: &Dir| format!("{},{priority}", dir.path().display());
        let arguments = [program.to_str().unwrap(), "192", end.to_str().unwrap()];
        let run = Run::new(64, arguments).swap(place(&first));
        let mut run = run.option(format!("--swap={}", place(&second))).start();
        run.wait_for_output("ready");
        let dirs = [&first, &second].map(|dir| dir.path().to_str().unwrap());
        let [one, two] = occupied(&run, dirs);
        fs::write(&end, "").unwrap();
        let done = run.finish();
        assert_eq!(done.stdout, "ready\nok\n", "{done}");
        fs::remove_file(&end).unwrap();
        // Each is given room by 32 MiB.
        let near = one.abs_diff(two) <= 64 << 20 && two >= 32 << 20;
        assert_eq!(alike, near, "{one} and {two}");
        assert!(alike || two == 0, "{two}");
    }
}

/// Pages go on from compressed memory to a device that is swapped off meanwhile, and come back from there.
#[test]
fn a_device_is_emptied_behind_compressed_memory() {
    let second = Dir::new("second");
    let jumps = compile("jumps").display().to_string();
    let for_ever = [jumps.as_str(), "192", "1000000000000", "2", "0"];
    let mut run = Run::new(64, for_ever)
        .option("--compress=20%")
        .option(format!("--swap={}", second.path().display()))
        .start();
    wait_for("pages to go on to a device", || {
        let stats = run.read_stats();
        stats.is_some_and(|s| s["counters"]["zswpwb"].as_u64() > Some(0))
    });
    let dirs = [run.swap_dir.clone(), second.path().to_owned()];
    for device in [0, 1] {
        let dir = dirs[device].to_str().unwrap();
        ok(&run, &["swapoff", dir]);
        assert_eq!(state(&run, device), "off");
        ok(&run, &["swapon", dir]);
    }
    // It verifies all that it reads.
    assert!(run.child.try_wait().unwrap().is_none());
    kill(run.program(), libc::SIGKILL);
    let done = run.finish();
    assert_eq!(done.signal(), Some(libc::SIGKILL), "{done}");
    assert!(done.counter("swapoff_pages") > 0, "{done}");
    for none in ["swap_full", "pages_poisoned", "swap_corrupt"] {
        assert_eq!(done.counter(none), 0, "{done}");
    }
}

/// Pages that can't be read from the device are lost one by one, and what is beside them is moved.
#[test]
fn a_device_that_fails_is_emptied_of_the_rest() {
    let second = Dir::new("second");
    let end = second.join("end");
    let bad = [("HUGESWAP_INJECT", "bad-page=every:1500")];
    let run = start(&bad, &end, &second, &["lost"]);
    ok(&run, &["swapoff", "1"]);
    let lost = || run.read_stats()?["counters"]["pages_poisoned"].as_u64();
    wait_for("pages that are lost", || lost() > Some(0));
    fs::write(&end, "").unwrap();
    let done = run.finish();
    // Of the second device, which has such pages too, more may be lost.
    let all = done.counter("pages_poisoned");
    assert!((10..64).contains(&all), "{done}");
    assert_eq!(done.stdout, format!("ready\nlost {all}\n"), "{done}");
}

/// The program stands still, so nothing can be moved; whoever does not want to wait has the device
/// as it was.
#[test]
fn an_interrupted_swapoff_leaves_the_device_on() {
    let second = Dir::new("second");
    let end = second.join("end");
    let run = start(&[], &end, &second, &[]);
    let stopped: Vec<i32> = fs::read_to_string(run.group.path().join("cgroup.procs"))
        .unwrap()
        .lines()
        .map(|pid| pid.parse().unwrap())
        .filter(|&pid| pid != run.front() && pid != run.supervisor())
        .collect();
    stopped.iter().for_each(|&pid| kill(pid, libc::SIGSTOP));
    let mut asked = command(&run, &["swapoff", "1"]);
    let mut asked = asked.stderr(Stdio::null()).spawn().unwrap();
    wait_for("the device to leave", || state(&run, 0) == "leaving");
    kill(asked.id() as i32, libc::SIGINT);
    assert_eq!(asked.wait().unwrap().code(), Some(1));
    assert_eq!(state(&run, 0), "on");
    stopped.iter().for_each(|&pid| kill(pid, libc::SIGCONT));
    refused(&run, &["swapoff", "/no/such/device"], "has no device");
    refused(&run, &["swapoff", "3"], "has no device");
    fs::write(&end, "").unwrap();
    let done = run.finish();
    assert!(
        done.status.success() && done.stdout == "ready\nok\n",
        "{done}"
    );
}

#[test]
fn a_process_of_no_run() {
    let mut c = Command::new(hugeswap());
    c.args(["swapoff", "--pid"])
        .arg(std::process::id().to_string());
    let out = c.arg("1").output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("belongs to no run"), "{said}");
}

/// Who waits for a stopped program is told so, and how it goes on.
#[test]
fn a_stopped_program_is_named() {
    let second = Dir::new("second");
    let end = second.join("end");
    let run = start(&[], &end, &second, &[]);
    kill(run.program(), libc::SIGSTOP);
    let mut swapoff = command(&run, &["swapoff", "1"]);
    let mut swapoff = swapoff.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = [0u8; 160];
    let n = std::io::Read::read(swapoff.stderr.as_mut().unwrap(), &mut said).unwrap();
    let said = String::from_utf8_lossy(&said[..n]).into_owned();
    assert!(
        said.contains(&format!("kill -CONT {}", run.program())),
        "{said}"
    );
    kill(run.program(), libc::SIGCONT);
    assert!(swapoff.wait().unwrap().success());
    fs::write(&end, "").unwrap();
    let done = run.finish();
    assert!(
        done.status.success() && done.stdout == "ready\nok\n",
        "{done}"
    );
}
