//! Processes and signals, for the front and the supervisor.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Effective user and group.
pub fn ids() -> (u32, u32) {
    // SAFETY: no arguments, no failure.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Which side of a fork this is.
pub enum Side {
    Parent { child: i32 },
    Child,
}

/// Forks. Only before this process has other threads.
pub fn fork() -> io::Result<Side> {
    // SAFETY: single-threaded, so the child may do anything.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Side::Child),
        child => Ok(Side::Parent { child }),
    }
}

pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: the array takes two descriptors; on success they are ours alone.
    unsafe {
        if libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// What this process was told to do on the signals of the terminal, before it ignored them: the
/// program gets that back (nohup, for one, ignores some).
static BEFORE: [std::sync::atomic::AtomicUsize; IGNORED.len()] =
    [const { std::sync::atomic::AtomicUsize::new(libc::SIG_DFL) }; IGNORED.len()];

/// Leaves the terminal's signals to the program.
pub fn ignore_terminal() {
    for (s, before) in IGNORED.into_iter().zip(&BEFORE) {
        // SAFETY: no handler is set.
        let old = unsafe { libc::signal(s, libc::SIG_IGN) };
        before.store(old, std::sync::atomic::Ordering::Relaxed);
    }
}

/// The program is killed when the supervisor is.
pub fn kill_with_me(command: &mut Command) {
    let before = std::array::from_fn::<_, { IGNORED.len() }, _>(|i| {
        BEFORE[i].load(std::sync::atomic::Ordering::Relaxed)
    });
    // SAFETY: prctl and getppid are safe after fork.
    let supervisor = std::process::id() as i32;
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() != supervisor {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            for (s, action) in IGNORED.into_iter().zip(before) {
                libc::signal(s, action);
            }
            Ok(())
        });
    }
}

pub fn kill(pid: i32, signal: i32) {
    // SAFETY: no memory is passed.
    unsafe { libc::kill(pid, signal) };
}

/// When the process started, in clock ticks; none if it is gone. A zombie is gone, unless only its
/// first thread has ended.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Field 3, the state, and on: the name before it may hold anything.
    let words: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let threads: u32 = words.get(17)?.parse().ok()?;
    match *words.first()? {
        "X" => None,
        "Z" if threads <= 1 => None,
        _ => words.get(19)?.parse().ok(),
    }
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Exited(u8),
    Killed(i32),
}

impl Status {
    /// As the shell reports it.
    pub fn code(self) -> u8 {
        match self {
            Status::Exited(c) => c,
            Status::Killed(s) => 128 + s as u8,
        }
    }
}

/// How a child ended, and whether the kernel made a core dump of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub status: Status,
    pub core: bool,
}

/// Waits for the child to end.
pub fn wait(pid: i32) -> io::Result<Ended> {
    let mut status = 0;
    loop {
        // SAFETY: the status outlives the call.
        if unsafe { libc::waitpid(pid, &mut status, 0) } == pid {
            return Ok(if libc::WIFSIGNALED(status) {
                Ended {
                    status: Status::Killed(libc::WTERMSIG(status)),
                    core: libc::WCOREDUMP(status),
                }
            } else {
                Ended {
                    status: Status::Exited(libc::WEXITSTATUS(status) as u8),
                    core: false,
                }
            });
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
}

/// Signals for the program that are sent to the front alone.
pub const FORWARDED: [i32; 8] = [
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGALRM,
    libc::SIGPIPE,
];
/// Signals that the terminal sends to the whole group: the program has them too.
pub const IGNORED: [i32; 2] = [libc::SIGINT, libc::SIGQUIT];

static PROGRAM: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(0);

extern "C" fn forward(signal: i32) {
    let pid = PROGRAM.load(std::sync::atomic::Ordering::Relaxed);
    if pid > 0 {
        kill(pid, signal);
    }
}

/// From now on signals sent to this process reach the program.
pub fn forward_signals(program: i32) {
    PROGRAM.store(program, std::sync::atomic::Ordering::Relaxed);
    for s in FORWARDED {
        // SAFETY: the handler only calls kill.
        unsafe { libc::signal(s, forward as extern "C" fn(i32) as libc::sighandler_t) };
    }
}

pub fn ignore_signals(signals: &[i32]) {
    for &s in signals {
        // SAFETY: no handler is set.
        unsafe { libc::signal(s, libc::SIG_IGN) };
    }
}

/// Ends this process with the signal, so that the shell sees what the program died of.
pub fn die_of(signal: i32) {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure outlives the call; the default action is set before the signal.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Lets go of the caller's standard streams, so that pipes end when the program ends.
pub fn detach_streams(fds: &[i32]) {
    // SAFETY: the path is a C string; the numbers are the standard streams.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if null >= 0 {
            for &fd in fds {
                libc::dup2(null, fd);
            }
            libc::close(null);
        }
    }
}

/// Ends at once, without running anything that was inherited from the front.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(code) }
}
