//! The command as the shell knows it: what it was started with, signals, stops, the first process of a
//! container.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::support::{children, compile, hugeswap, kill, machine, wait_for, Dir, Run};

/// Runs a program with and without us, after a change to what it is started with.
fn both(change: fn()) -> [Option<i32>; 2] {
    let program = compile("started");
    let _machine = machine();
    let mut managed = Command::new(hugeswap());
    managed.args(["run", "--memory", "64M", "--swap", "ram", "--"]);
    managed.arg(&program);
    [Command::new(&program), managed].map(|mut c| {
        // SAFETY: the changes only make system calls.
        unsafe {
            c.pre_exec(move || {
                change();
                Ok(())
            })
        };
        let mut child = c.stdin(Stdio::null()).spawn().unwrap();
        child.wait().unwrap().code()
    })
}

#[test]
fn closed_streams_stay_closed() {
    // SAFETY: no memory is passed.
    let [plain, managed] = both(|| unsafe {
        libc::close(0);
        libc::close(1);
        libc::close(2);
    });
    assert_eq!((plain, managed), (Some(0), Some(0)));
    // SAFETY: no memory is passed.
    let [plain, managed] = both(|| unsafe {
        libc::close(1);
    });
    assert_eq!((plain, managed), (Some(5), Some(5)));
}

#[test]
fn masks_and_actions_are_inherited() {
    // SAFETY: the set outlives the calls.
    let [plain, managed] = both(|| unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut set, libc::SIGUSR1);
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
    });
    assert_eq!(
        (plain, managed),
        (Some(7 | 8 | 32 | 64), Some(7 | 8 | 32 | 64))
    );
}

#[test]
fn a_signal_to_the_group_comes_once() {
    let script = "trap 'echo got' USR1; trap 'echo end; exit 4' USR2; kill -USR1 0; echo ready; \
                  while :; do sleep 0.02; done";
    let mut run = Run::new(64, ["sh", "-c", script]).start();
    run.wait_for_output("ready");
    // The front takes this after what it had before.
    kill(run.front(), libc::SIGUSR2);
    let done = run.finish();
    assert_eq!(done.stdout, "got\nready\nend\n", "{done}");
    assert_eq!(done.code(), Some(4), "{done}");
}

/// `kill %1` of a shell goes to the group, from a process that is not of it.
#[test]
fn a_signal_from_the_shell_comes_once() {
    let script =
        "n=0; trap 'n=$((n+1)); echo got $n' TERM; trap 'echo end; exit 4' USR2; echo ready; \
                  while :; do sleep 0.02; done";
    let mut run = Run::new(64, ["sh", "-c", script]).start();
    run.wait_for_output("ready");
    for n in 1..=5 {
        // The test is its parent.
        kill(-run.front(), libc::SIGTERM);
        run.wait_for_output(&format!("got {n}\n"));
    }
    kill(run.front(), libc::SIGUSR2);
    let done = run.finish();
    assert_eq!(done.stdout.matches("got").count(), 5, "{done}");
    assert_eq!(done.code(), Some(4), "{done}");
}

/// Signals that the program may have a meaning for, and what `sigqueue` sends along.
#[test]
fn signals_that_mean_something_to_the_program() {
    let mut run = Run::new(64, [compile("signals")]).start();
    run.wait_for_output("ready");
    let (first, last) = (libc::SIGRTMIN(), libc::SIGRTMAX());
    use libc::{SIGIO, SIGPROF, SIGPWR, SIGURG, SIGVTALRM, SIGXCPU};
    for signal in [
        SIGXCPU,
        SIGVTALRM,
        SIGPROF,
        SIGIO,
        SIGPWR,
        SIGURG,
        first,
        first + 3,
        last,
    ] {
        kill(run.front(), signal);
        run.wait_for_output(&format!("\n{signal}\n"));
    }
    for signal in [libc::SIGUSR1, first] {
        let value = libc::sigval {
            sival_ptr: 42 as *mut libc::c_void,
        };
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { libc::sigqueue(run.front(), signal, value) }, 0);
        run.wait_for_output(&format!("\n{signal}: 42 from {}\n", std::process::id()));
    }
    kill(run.front(), libc::SIGTERM);
    let done = run.finish();
    assert_eq!(done.code(), Some(0), "{done}");
}

#[test]
fn the_environment_is_what_it_was() {
    let program = compile("environment");
    let _machine = machine();
    let said = |through: &[&str]| {
        let mut command = Command::new(&program);
        let done = command.args(through).arg(&program).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    let hugeswap = hugeswap().to_str().unwrap();
    let managed = said(&[hugeswap, "run", "--memory", "64M", "--swap", "ram", "--"]);
    assert_eq!(managed, said(&[]));
    assert!(
        managed.contains("A=first\nno value\nA=second\n=odd\n"),
        "{managed}"
    );
}

/// Who follows all threads of a program is not given the engine's.
#[test]
fn a_tracer_sees_the_programs_threads() {
    let program = compile("traced");
    let program = program.to_str().unwrap();
    let done = Run::new(64, [program, program]).ok();
    assert_eq!(done.stdout, "1 forks, 0 clones, 2 ends\n", "{done}");
    done.has_swapped();
}

#[test]
fn sigint_and_sigquit_to_the_front_alone() {
    for (signal, name) in [(libc::SIGINT, "INT"), (libc::SIGQUIT, "QUIT")] {
        let script = format!("trap 'exit 7' {name}; echo ready; while :; do sleep 0.02; done");
        let mut run = Run::new(64, ["sh", "-c", &script]).start();
        run.wait_for_output("ready");
        kill(run.front(), signal);
        let done = run.finish();
        assert_eq!(done.code(), Some(7), "{done}");
    }
}

/// What waitpid says of a child that stops or goes on; 0 while nothing has changed.
fn change_of(pid: i32) -> i32 {
    let mut status = 0;
    let how = libc::WUNTRACED | libc::WCONTINUED | libc::WNOHANG;
    // SAFETY: the status outlives the call.
    match unsafe { libc::waitpid(pid, &mut status, how) } {
        0 => 0,
        r => {
            assert_eq!(r, pid);
            status
        }
    }
}

fn wait_for_change(pid: i32, what: &str) -> i32 {
    let mut status = 0;
    wait_for(what, || {
        status = change_of(pid);
        status != 0
    });
    status
}

#[test]
fn the_shell_sees_the_program_stop_and_go_on() {
    let script =
        "trap 'exit 5' USR2; echo ready; kill -STOP $$; echo on; while :; do sleep 0.02; done";
    let mut run = Run::new(64, ["sh", "-c", script]).start();
    run.wait_for_output("ready");
    let front = run.front();
    let status = wait_for_change(front, "the stop");
    assert!(
        libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGSTOP,
        "{status:x}"
    );
    // By somebody who knows the program.
    kill(run.program(), libc::SIGCONT);
    let status = wait_for_change(front, "the program to go on");
    assert!(libc::WIFCONTINUED(status), "{status:x}");
    run.wait_for_output("on");
    // By the shell, to the group.
    kill(run.program(), libc::SIGSTOP);
    let status = wait_for_change(front, "another stop");
    assert!(libc::WIFSTOPPED(status), "{status:x}");
    kill(-front, libc::SIGCONT);
    let status = wait_for_change(front, "the group to go on");
    assert!(libc::WIFCONTINUED(status), "{status:x}");
    kill(front, libc::SIGUSR2);
    let done = run.finish();
    assert_eq!(done.code(), Some(5), "{done}");
}

/// A program stops its whole group, and who started the run lets go on only the process that it knows.
#[test]
fn a_stopped_group_goes_on_by_its_front() {
    let script =
        "trap 'exit 5' USR2; echo ready; kill -STOP 0; echo on; while :; do sleep 0.02; done";
    let mut run = Run::new(64, ["sh", "-c", script]).start();
    run.wait_for_output("ready");
    let front = run.front();
    let status = wait_for_change(front, "the stop");
    assert!(libc::WIFSTOPPED(status), "{status:x}");
    kill(front, libc::SIGCONT);
    run.wait_for_output("on");
    let status = wait_for_change(front, "the front to go on");
    assert!(libc::WIFCONTINUED(status), "{status:x}");
    kill(front, libc::SIGUSR2);
    let done = run.finish();
    assert_eq!(done.code(), Some(5), "{done}");
}

/// Of two signals to the group, one right behind the other, the second takes the first away where it still waits.
#[test]
fn what_comes_last_holds() {
    let hog = compile("hog");
    let mut run = Run::new(64, [hog.to_str().unwrap(), "1", "wait"]).start();
    run.wait_for_output("ready");
    let (front, program) = (run.front(), run.program());
    let is_stopped = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.trim().starts_with('T')
    };
    for n in 0..200 {
        let stops = n % 2 == 0;
        let both = [libc::SIGCONT, libc::SIGTSTP];
        kill(-front, both[usize::from(!stops)]);
        // The front has perhaps begun to ask for the first when the second comes.
        for _ in 0..n * 50 {
            std::hint::spin_loop();
        }
        kill(-front, both[usize::from(stops)]);
        wait_for(&format!("signal {n} to hold"), || {
            is_stopped(program) == stops && is_stopped(front) == stops
        });
    }
    kill(-front, libc::SIGTERM);
    assert_eq!(run.finish().signal(), Some(libc::SIGTERM));
}

#[test]
fn a_program_that_does_not_stop_is_not_seen_to() {
    let script = "trap '' TSTP; trap 'exit 5' USR2; echo ready; while :; do sleep 0.02; done";
    let mut run = Run::new(64, ["sh", "-c", script]).start();
    run.wait_for_output("ready");
    let front = run.front();
    kill(-front, libc::SIGTSTP);
    kill(front, libc::SIGUSR2);
    let mut status = 0;
    wait_for("the end", || {
        status = change_of(front);
        status != 0
    });
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 5,
        "{status:x}"
    );
    drop(run.leave_alone());
}

/// It takes leave of processes that nobody else waits for, and hands signals on.
#[test]
fn first_process_of_a_container() {
    let script = "(sh -c 'sleep 0.01 & echo $!' >/dev/null; true); trap 'exit 6' INT; n=1; \
                  while [ $n != 0 ]; do n=$(grep -h '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l); done; \
                  echo ready; while :; do sleep 0.02; done";
    let _machine = machine();
    // A shell can't trap what was ignored when it began, as in a job in the background.
    let mut child = Command::new("env")
        .args([
            "--default-signal=INT",
            "unshare",
            "-p",
            "-f",
            "--mount-proc",
        ])
        .arg(hugeswap())
        .args([
            "run", "--memory", "64M", "--swap", "ram", "--", "sh", "-c", script,
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0u8; 6];
    std::io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut line).unwrap();
    assert_eq!(&line, b"ready\n");
    kill(children(child.id() as i32)[0], libc::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(6));
}

/// Runs are jobs of an interactive shell, on a terminal.
#[test]
fn jobs_of_a_shell() {
    let _machine = machine();
    let dir = Dir::new("terminal");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/terminal.py");
    let mut python = Command::new("/usr/bin/python3");
    python.args([script, hugeswap().to_str().unwrap()]);
    let output = python.arg(dir.path()).output().unwrap();
    assert_eq!(output.stdout, b"ok\n", "{output:?}");
}
