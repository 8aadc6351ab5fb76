//! The program runs as it would without us: streams, signals, status, environment, descriptors.

use std::fs::{self, File};
use std::process::Command;

use crate::support::{compile, compile_with, hugeswap, kill, machine, Dir, Run};

#[test]
fn exit_status() {
    for code in [0, 1, 42, 126, 255] {
        let done = Run::new(64, ["sh", "-c", &format!("exit {code}")]).go();
        assert_eq!(done.code(), Some(code), "{done}");
        assert_eq!(done.stderr, "", "{done}");
    }
}

#[test]
fn death_by_signal() {
    for signal in [
        libc::SIGSEGV,
        libc::SIGKILL,
        libc::SIGTERM,
        libc::SIGINT,
        libc::SIGPIPE,
    ] {
        let done = Run::new(64, ["sh", "-c", &format!("kill -{signal} $$")]).go();
        assert_eq!(done.signal(), Some(signal), "{done}");
    }
}

#[test]
fn sigterm_reaches_the_program() {
    for (signal, name) in [
        (libc::SIGTERM, "TERM"),
        (libc::SIGHUP, "HUP"),
        (libc::SIGUSR1, "USR1"),
    ] {
        let script =
            format!("trap 'echo got; exit 7' {name}; echo ready; while :; do sleep 0.02; done");
        let mut run = Run::new(64, ["sh", "-c", &script]).start();
        run.wait_for_output("ready");
        kill(run.front(), signal);
        let done = run.finish();
        assert_eq!(done.stdout, "ready\ngot\n", "{done}");
        assert_eq!(done.code(), Some(7), "{done}");
    }
    let mut run = Run::new(64, ["sh", "-c", "echo ready; exec sleep 100"]).start();
    run.wait_for_output("ready");
    kill(run.front(), libc::SIGTERM);
    let done = run.finish();
    assert_eq!(done.signal(), Some(libc::SIGTERM), "{done}");
}

/// As the terminal does it: to the whole group. The run is in a process group of its own.
#[test]
fn ctrl_c_goes_to_the_group() {
    let loops = "echo ready; while :; do sleep 0.02; done";
    let mut run = Run::new(
        64,
        ["sh", "-c", &format!("trap 'echo got; exit 3' INT; {loops}")],
    )
    .start();
    run.wait_for_output("ready");
    kill(-run.front(), libc::SIGINT);
    let done = run.finish();
    assert_eq!(done.stdout, "ready\ngot\n", "{done}");
    assert_eq!(done.code(), Some(3), "the program decides: {done}");

    let mut run = Run::new(64, ["sh", "-c", "echo ready; exec sleep 100"]).start();
    run.wait_for_output("ready");
    kill(-run.front(), libc::SIGINT);
    let done = run.finish();
    assert_eq!(done.signal(), Some(libc::SIGINT), "{done}");
}

#[test]
fn ignored_signals_stay_ignored() {
    let count = "grep SigIgn /proc/self/status";
    let _machine = machine();
    let ignoring = |line: &str| {
        let script = format!("trap '' HUP USR2; {line}");
        let o = Command::new("sh").args(["-c", &script]).output().unwrap();
        let text = String::from_utf8(o.stdout).unwrap();
        let mask = u64::from_str_radix(text.split_whitespace().last().unwrap(), 16).unwrap();
        // Signals 32 and 33 are the C library's own business.
        mask & !(3 << 31)
    };
    let plain = ignoring(count);
    let managed = ignoring(&format!(
        "{} run --memory 64M --swap ram -- {count}",
        hugeswap().display()
    ));
    assert_eq!(managed, plain, "nohup would not work");
}

#[test]
fn standard_streams() {
    let dir = Dir::new("in");
    let text: String = (0..20_000).map(|i| format!("line {i}\n")).collect();
    fs::write(dir.join("in"), &text).unwrap();
    let done = Run::new(64, ["sh", "-c", "cat; echo problem >&2"])
        .stdin(File::open(dir.join("in")).unwrap())
        .ok();
    assert!(done.stdout == text, "standard input comes through");
    assert_eq!(done.stderr, "problem\n");
}

/// Runs a line of the shell in which `hs` is the command; fails if it takes long.
fn shell(line: &str) -> String {
    let _machine = machine();
    let hs = format!("{} run --memory 64M --swap ram --", hugeswap().display());
    let output = Command::new("timeout")
        .args([
            "-k",
            "1",
            "30",
            "bash",
            "-c",
            &line.replace("hs ", &format!("{hs} ")),
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    assert!(output.stderr.is_empty(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn pipelines_end() {
    assert_eq!(shell("hs yes | head -1"), "y\n");
    assert_eq!(shell("hs yes | head -1; echo ${PIPESTATUS[0]}"), "y\n141\n");
    assert_eq!(shell("hs echo hi | cat"), "hi\n");
    assert_eq!(shell("echo hi | hs cat | hs cat"), "hi\n");
    // A reader of standard error sees its end too.
    assert_eq!(shell("{ hs sh -c 'echo hi >&2'; } 2>&1 | cat"), "hi\n");
    // Somebody who waits for the end of the output, while a child lives on.
    assert_eq!(shell("x=$(hs echo hi); echo $x"), "hi\n");
}

#[test]
fn environment_and_place() {
    let library = compile_with("user_library", "user_library.so", &["-shared", "-fPIC"]);
    let done = Run::new(64, ["sh", "-c", "echo X=$X; pwd; exec true"])
        .env("X", "a b")
        .env("LD_PRELOAD", &library)
        .ok();
    let here = std::env::current_dir().unwrap();
    let lines: Vec<_> = done.stdout.lines().collect();
    // The command itself, the shell, and what it becomes.
    let wanted = [
        "user library",
        "user library",
        "X=a b",
        here.to_str().unwrap(),
        "user library",
    ];
    assert_eq!(lines, wanted, "{done}");
    // A program that is given no environment runs too.
    let done = Run::new(64, ["env", "-i", "/bin/echo", "hi"]).ok();
    assert_eq!(done.stdout, "hi\n");
}

/// Warnings are not worth waiting for: the program goes on, and who reads first its output and then its errors gets both.
#[test]
fn standard_error_that_nobody_reads() {
    use std::io::Read;
    let program = compile("full_error");
    let dir = Dir::new("errors");
    let mut run = Command::new(hugeswap())
        .args(["run", "--memory", "64M", "--swap-size", "64M", "--swap"])
        .arg(dir.path())
        .args(["--", program.to_str().unwrap()])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let (mut said, mut errors) = (String::new(), String::new());
    let mut out = run.stdout.take().unwrap();
    out.read_to_string(&mut said).unwrap();
    let mut err = run.stderr.take().unwrap();
    err.read_to_string(&mut errors).unwrap();
    let status = run.wait().unwrap();
    assert!(status.success() && said == "ok\n", "{status} {said}");
    let warning = errors.trim_start_matches('x');
    assert!(warning.contains("swap is full"), "{warning}");
}

/// The same where the kernel writes one at a time, and that one waits for its pages.
#[test]
fn standard_error_that_the_program_writes() {
    let program = compile("full_error");
    let dir = Dir::new("errors_file");
    let log = File::create(dir.join("log")).unwrap();
    let status = Command::new(hugeswap())
        .args(["run", "--memory", "64M", "--swap-size", "96M", "--swap"])
        .arg(dir.path())
        .args(["--", program.to_str().unwrap(), "writes"])
        .stderr(log)
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

/// A preloaded library's functions are the program's, and not for threads of the engine's.
#[test]
fn a_clock_of_its_own() {
    let clock = compile_with("own_clock", "own_clock.so", &["-shared", "-fPIC"]);
    let hog = compile("hog");
    let line = [hog.to_str().unwrap(), "160"];
    for memory in [64, 96] {
        let done = Run::new(memory, line).env("LD_PRELOAD", &clock).ok();
        assert_eq!(done.stdout, "ok\n", "{done}");
        done.has_swapped();
    }
    // It comes before ours.
    let script = format!(
        "LD_PRELOAD={}:$LD_PRELOAD {} 160",
        clock.display(),
        hog.display()
    );
    let done = Run::new(64, ["sh", "-c", &script]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}

/// What others have laid over the C library, or before it, is not for threads of the engine's either.
#[test]
fn functions_laid_over_the_c_librarys() {
    let library = compile_with("laid_over", "laid_over.so", &["-shared", "-fPIC"]);
    let hog = compile("hog");
    let script = format!(
        "LD_PRELOAD=$LD_PRELOAD:{} {} 160",
        library.display(),
        hog.display()
    );
    for option in ["--no-encrypt", "--compress=30%"] {
        let run = Run::new(64, ["sh", "-c", &script]).option(option);
        let done = run.ok();
        assert_eq!(done.stdout, "ok\n", "{done}");
        done.has_swapped();
    }
}

#[test]
fn a_break_that_is_laid_over_in_mid_run() {
    let program = compile("break_laid_over");
    let done = Run::new(64, [program.to_str().unwrap()]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}

/// What is in swap has no marks that say whether it was written.
#[test]
fn marks_of_written_pages() {
    let program = compile("marks");
    let done = Run::new(64, [program.to_str().unwrap()]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
}

/// A thread with deadlines may not start others that have them, too.
#[test]
fn a_program_with_deadlines() {
    let program = compile("deadlines");
    let done = Run::new(64, [program.to_str().unwrap(), "echo", "hi"]).ok();
    assert_eq!(done.stdout, "hi\n", "{done}");
}

#[test]
fn arguments() {
    let done = Run::new(64, ["cat", "/proc/self/cmdline"]).ok();
    assert_eq!(done.stdout, "cat\0/proc/self/cmdline\0");
    let done = Run::new(64, ["printf", "%s.", "--memory", "", "a b", "--"]).ok();
    assert_eq!(done.stdout, "--memory..a b.--.");
}

#[test]
fn no_stray_descriptors() {
    let line = ["sh", "-c", "ls /proc/self/fd; exec ls /proc/self/fd"];
    let dir = Dir::new("fds");
    let plain = {
        let _machine = machine();
        Command::new(line[0])
            .args(&line[1..])
            .stdin(std::process::Stdio::null())
            .stdout(File::create(dir.join("out")).unwrap())
            .status()
            .unwrap();
        fs::read_to_string(dir.join("out")).unwrap()
    };
    let done = Run::new(64, line).ok();
    assert_eq!(done.stdout, plain);
    // Neither in one that has swapped, nor in its children.
    let done = Run::new(64, [compile("descriptors")]).ok();
    done.has_swapped();
    assert_eq!(done.stdout, "ok\n", "{done}");
}

#[test]
fn limits_of_the_user_hold() {
    let done = Run::new(64, ["sh", "-c", "ulimit -n; umask; nice"]).ok();
    let _machine = machine();
    let plain = Command::new("sh")
        .args(["-c", "ulimit -n; umask; nice"])
        .output()
        .unwrap();
    assert_eq!(done.stdout, String::from_utf8(plain.stdout).unwrap());
}
