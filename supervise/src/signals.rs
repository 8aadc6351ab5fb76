//! Signals between the user, the front and the program.
//!
//! A signal to the front alone is meant for the program, and handed on. A signal to the whole
//! group (by the terminal, or by `kill(0)`) the program has already. To tell one from the other, front
//! and supervisor, which is of the group too, block these signals: what the supervisor has pending was
//! sent to both. That may also be somebody who sends to each `hugeswap` that there is (`pkill`): so from
//! outside the group only what terminals send to groups counts as sent to it, and what the shell sends that
//! started the run (`kill %1`). From anybody else SIGTERM twice is better than not at all.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Signals for the program. SIGKILL and SIGSTOP can't be handed on, the others mean the process that they are sent
/// to, and SIGXFSZ may be one of ours (`outgrow_limits`).
fn for_program() -> impl Iterator<Item = i32> {
    let real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
    FOR_PROGRAM.into_iter().chain(real_time)
}

/// Those with a name.
const FOR_PROGRAM: [i32; 19] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGWINCH,
    libc::SIGURG,
    libc::SIGXCPU,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
];

/// What this process was started with and the Rust runtime changes before `main`: the program gets it
/// back.
struct Inherited {
    /// The standard streams that were closed, a bit to each.
    closed: AtomicU32,
    mask: AtomicU64,
    sigpipe: AtomicUsize,
    sigchld: AtomicUsize,
    sigxfsz: AtomicUsize,
    /// The largest files, soft and hard.
    file_size: [AtomicU64; 2],
    /// The most descriptors, soft and hard.
    descriptors: [AtomicU64; 2],
}

static INHERITED: Inherited = Inherited {
    closed: AtomicU32::new(0),
    mask: AtomicU64::new(0),
    sigpipe: AtomicUsize::new(libc::SIG_DFL),
    sigchld: AtomicUsize::new(libc::SIG_DFL),
    sigxfsz: AtomicUsize::new(libc::SIG_DFL),
    file_size: [const { AtomicU64::new(libc::RLIM_INFINITY) }; 2],
    descriptors: [const { AtomicU64::new(libc::RLIM_INFINITY) }; 2],
};

fn note_limit(at: &[AtomicU64; 2], limit: libc::rlimit) {
    at[0].store(limit.rlim_cur, Relaxed);
    at[1].store(limit.rlim_max, Relaxed);
}

fn noted_limit(at: &[AtomicU64; 2]) -> libc::rlimit {
    libc::rlimit {
        rlim_cur: at[0].load(Relaxed),
        rlim_max: at[1].load(Relaxed),
    }
}

#[used]
#[link_section = ".init_array"]
static BEFORE_MAIN: extern "C" fn() = note_inherited;

extern "C" fn note_inherited() {
    // SAFETY: the structures outlive the calls; nothing is changed.
    unsafe {
        for fd in 0..3 {
            if libc::fcntl(fd, libc::F_GETFD) == -1 {
                INHERITED.closed.fetch_or(1 << fd, Relaxed);
            }
        }
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
        let bits = (1..=64).filter(|&s| libc::sigismember(&mask, s) == 1);
        let bits = bits.fold(0u64, |all, s| all | 1 << (s - 1));
        INHERITED.mask.store(bits, Relaxed);
        let action = |signal: i32| {
            let mut old: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut old);
            old.sa_sigaction
        };
        INHERITED.sigpipe.store(action(libc::SIGPIPE), Relaxed);
        INHERITED.sigchld.store(action(libc::SIGCHLD), Relaxed);
        INHERITED.sigxfsz.store(action(libc::SIGXFSZ), Relaxed);
    }
}

fn set(signals: impl IntoIterator<Item = i32>) -> libc::sigset_t {
    // SAFETY: a plain structure, which the calls fill.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for s in signals {
            libc::sigaddset(&mut set, s);
        }
        set
    }
}

/// The program starts as this process did: signal mask and actions, closed streams.
pub fn give_back(command: &mut Command) {
    let mask = INHERITED.mask.load(Relaxed);
    let mask = set((1..=64).filter(move |s| mask >> (s - 1) & 1 != 0));
    let closed = INHERITED.closed.load(Relaxed);
    let actions = [
        (libc::SIGPIPE, INHERITED.sigpipe.load(Relaxed)),
        (libc::SIGCHLD, INHERITED.sigchld.load(Relaxed)),
        (libc::SIGXFSZ, INHERITED.sigxfsz.load(Relaxed)),
    ];
    let limits = [
        (libc::RLIMIT_FSIZE, noted_limit(&INHERITED.file_size)),
        (libc::RLIMIT_NOFILE, noted_limit(&INHERITED.descriptors)),
    ];
    // SAFETY: the closure makes system calls only, on memory of its own.
    unsafe {
        command.pre_exec(move || {
            for (signal, action) in actions {
                libc::signal(signal, action);
            }
            for (resource, limit) in &limits {
                libc::setrlimit(*resource, limit);
            }
            libc::sigprocmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
            for fd in (0..3).filter(|fd| closed >> fd & 1 != 0) {
                libc::close(fd);
            }
            Ok(())
        });
    }
}

/// Whether standard output was closed when this process began.
pub fn had_no_output() -> bool {
    INHERITED.closed.load(Relaxed) & 1 << 1 != 0
}

/// In front and supervisor: a limit of the size of files is an error where it is met, and no signal; what
/// is theirs may be larger than what the program's may be. And they may have as many descriptors as they are allowed.
pub fn outgrow_limits() {
    note_limit(&INHERITED.file_size, super::sys::raise_file_size());
    note_limit(&INHERITED.descriptors, super::sys::raise_descriptors());
    // SAFETY: no memory is passed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// The largest file that the program may write.
pub fn largest_file() -> Option<u64> {
    Some(INHERITED.file_size[0].load(Relaxed)).filter(|&n| n != libc::RLIM_INFINITY)
}

/// A signal that came.
pub struct Came {
    pub signal: i32,
    /// By the terminal, or by a process of this number.
    pub by_kernel: bool,
    pub sender: i32,
    /// What `sigqueue` has sent with it, and the sender's user.
    queued: Option<(u64, u32)>,
    /// One that undoes it came later.
    pub is_over: bool,
    /// The supervisor has it from the front alone.
    pub is_passed_on: bool,
}

/// What stops a process, and waits while it is blocked.
const STOPS: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// What terminals send to groups, and shells.
const OF_GROUPS: [i32; 7] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGWINCH,
];

impl Came {
    /// Of signals to stop and to go on the later one holds.
    pub fn is_undone_by(&self, later: i32) -> bool {
        let stops = |s: i32| STOPS.contains(&s);
        match self.signal {
            libc::SIGCONT => stops(later),
            s => stops(s) && later == libc::SIGCONT,
        }
    }

    /// Hands it on.
    pub fn send_to(&self, pid: i32) {
        let Some((value, uid)) = self.queued else {
            return super::sys::kill(pid, self.signal);
        };
        /// As far as the kernel reads of it (`siginfo_t`, `_rt`).
        #[repr(C)]
        struct Queued {
            signal: i32,
            errno: i32,
            code: i32,
            gap: i32,
            pid: i32,
            uid: u32,
            value: u64,
            rest: [u64; 12],
        }
        let info = Queued {
            signal: self.signal,
            errno: 0,
            code: libc::SI_QUEUE,
            gap: 0,
            pid: self.sender,
            uid,
            value,
            rest: [0; 12],
        };
        const { assert!(size_of::<Queued>() == size_of::<libc::siginfo_t>()) };
        // SAFETY: the structure outlives the call.
        unsafe { libc::syscall(libc::SYS_rt_sigqueueinfo, pid, self.signal, &info) };
    }

    /// The supervisor has it too: whether that means that the program has.
    pub fn is_for_group(&self) -> bool {
        self.by_kernel
            || OF_GROUPS.contains(&self.signal)
            || is_of_group(self.sender)
            || is_shell(self.sender)
    }
}

/// Whether a process has started this one, or leads the session.
fn is_shell(pid: i32) -> bool {
    // SAFETY: no memory is passed.
    pid > 0 && unsafe { pid == libc::getppid() || pid == libc::getsid(0) }
}

/// Whether a process is of this one's group.
fn is_of_group(pid: i32) -> bool {
    // SAFETY: no memory is passed.
    unsafe { pid > 0 && libc::getpgid(pid) == libc::getpgrp() }
}

/// In front and supervisor, which inherits it: from now on these signals wait until they are taken.
/// Returns where the front hears of them.
pub fn block() -> io::Result<OwnedFd> {
    let all = set(for_program().chain([libc::SIGCHLD]));
    // SAFETY: the structures outlive the calls; a new descriptor is ours alone.
    unsafe {
        // Ended children wait to be asked for.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::sigprocmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
        let fd = libc::signalfd(-1, &all, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// The next signal that waits.
pub fn next(fd: &OwnedFd) -> Option<Came> {
    use std::os::fd::AsRawFd;
    const SI_KERNEL: i32 = 0x80;
    // SAFETY: a plain structure, which the call fills as far as it says.
    unsafe {
        let mut info: libc::signalfd_siginfo = std::mem::zeroed();
        let size = size_of_val(&info);
        let n = libc::read(fd.as_raw_fd(), (&raw mut info).cast(), size);
        (n == size as isize).then_some(Came {
            signal: info.ssi_signo as i32,
            by_kernel: info.ssi_code == SI_KERNEL,
            sender: info.ssi_pid as i32,
            queued: (info.ssi_code == libc::SI_QUEUE).then_some((info.ssi_ptr, info.ssi_uid)),
            is_over: false,
            is_passed_on: false,
        })
    }
}

/// Waits until whoever is sending a signal to this process's group has sent it to all of it. The kernel
/// holds the list of processes for that time, and this call changes it.
pub fn settle() {
    // SAFETY: no memory is passed; nothing changes, also where it is refused.
    unsafe { libc::setpgid(0, libc::getpgrp()) };
}

/// In the supervisor: takes the signal, if it waits.
pub fn take(signal: i32) -> bool {
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structures outlive the call.
    unsafe { libc::sigtimedwait(&set([signal]), std::ptr::null_mut(), &now) == signal }
}

/// In the supervisor, before there is a program: it has missed what waits now, so that counts as sent to
/// the front alone.
pub fn forget_early() {
    for signal in for_program() {
        take(signal);
    }
}

/// In the supervisor: whether a signal to stop waits. All of the group has it then.
pub fn stop_waits() -> bool {
    // SAFETY: a plain structure, which the call fills.
    unsafe {
        let mut waiting: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&mut waiting);
        STOPS.iter().any(|&s| libc::sigismember(&waiting, s) == 1)
    }
}

/// In the supervisor: nobody asks for a signal to stop that waits.
pub fn forget_stops() {
    for signal in STOPS {
        take(signal);
    }
}

/// Stops this process with a signal that has stopped the program, if that `is_stopped` still. It is asked when the
/// signal waits here already: one to go on that is sent to both from then on takes it away.
pub fn stop_with(signal: i32, is_stopped: impl Fn() -> bool) {
    if signal == libc::SIGSTOP {
        // It never waits.
        if is_stopped() {
            suffer(signal);
        }
        return;
    }
    // SAFETY: no memory is passed; the signal is blocked.
    unsafe { libc::raise(signal) };
    settle();
    match is_stopped() {
        true => have(signal),
        false => _ = take(signal),
    }
}

/// Lets this process have the signal as it has by default: it stops, or ends.
fn suffer(signal: i32) {
    // SAFETY: no memory is passed; the default action is set before the signal.
    unsafe {
        let old = libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
        have(signal);
        libc::signal(signal, old);
    }
}

/// Lets this process have a signal that waits, as it is by default.
fn have(signal: i32) {
    let one = set([signal]);
    // SAFETY: the structures outlive the calls; the default action is set before the signal is let in.
    unsafe {
        let old = libc::signal(signal, libc::SIG_DFL);
        libc::sigprocmask(libc::SIG_UNBLOCK, &one, std::ptr::null_mut());
        libc::sigprocmask(libc::SIG_BLOCK, &one, std::ptr::null_mut());
        libc::signal(signal, old);
    }
}

/// Ends this process with the signal, so that the shell sees what the program died of.
pub fn die_of(signal: i32) {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure outlives the call.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
    suffer(signal);
}

/// As the first process of a container: takes leave of ended processes that nobody else waits for, but
/// of `supervisor`.
pub fn reap_others(supervisor: i32) {
    // SAFETY: the structures outlive the calls.
    unsafe {
        if libc::getpid() != 1 {
            return;
        }
        loop {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            if libc::waitid(libc::P_ALL, 0, &mut info, how) == -1 {
                return;
            }
            let pid = info.si_pid();
            if pid == 0 || pid == supervisor {
                return;
            }
            libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG);
        }
    }
}
