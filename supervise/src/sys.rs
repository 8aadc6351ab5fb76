//! Processes and signals, for the front and the supervisor.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use hugeswap_sys::Errno;

/// Effective user and group.
pub fn ids() -> (u32, u32) {
    // SAFETY: no arguments, no failure.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// What the kernel has just made for us, and is nobody else's.
pub fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: just made for us, and nobody else's.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub fn errno(e: &io::Error) -> Errno {
    Errno(e.raw_os_error().unwrap_or(libc::EIO))
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

/// A process as the kernel knows it, whatever becomes of its number.
pub struct Process(OwnedFd);

impl Process {
    /// A child that nobody has waited for yet.
    pub fn of_child(pid: i32) -> io::Result<Process> {
        // SAFETY: no memory is passed; on success the descriptor is ours alone.
        unsafe {
            match libc::syscall(libc::SYS_pidfd_open, pid, 0) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(Process(OwnedFd::from_raw_fd(fd as i32))),
            }
        }
    }

    /// Who made this connection, and its number here. Where that cannot be found out, nothing.
    pub fn of_peer(socket: &OwnedFd) -> (u32, Option<Process>) {
        const SO_PEERPIDFD: i32 = 77;
        let mut who = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        let mut fd = -1i32;
        // SAFETY: each value is as long as said.
        let ask = |what: i32, value: *mut libc::c_void, len: usize| unsafe {
            let mut len = len as libc::socklen_t;
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, what, value, &mut len) == 0
        };
        if !ask(libc::SO_PEERCRED, (&raw mut who).cast(), size_of_val(&who)) {
            return (0, None);
        }
        if ask(SO_PEERPIDFD, (&raw mut fd).cast(), size_of_val(&fd)) && fd >= 0 {
            // SAFETY: just made for us.
            return (
                who.pid as u32,
                Some(Process(unsafe { OwnedFd::from_raw_fd(fd) })),
            );
        }
        // Before Linux 6.5: as long as the connection is open the number is that process's.
        let process = Process::of_child(who.pid)
            .ok()
            .filter(|_| who.pid > 0 && !is_hung_up(socket));
        (who.pid as u32, process)
    }

    /// This one, for a process that it starts: it may be gone by the time that it is sent a signal, and
    /// its number another's.
    pub fn myself() -> io::Result<Process> {
        Process::of_child(std::process::id() as i32)
    }

    pub fn kill(&self) {
        self.send(libc::SIGKILL);
    }

    /// All of its threads have ended.
    pub fn is_dead(&self) -> bool {
        let mut fd = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure, which outlives the call; it does not wait.
        unsafe { libc::poll(&raw mut fd, 1, 0) };
        fd.revents & libc::POLLIN != 0
    }

    /// If it has stopped.
    pub fn go_on(&self) {
        self.send(libc::SIGCONT);
    }

    pub fn send(&self, signal: i32) {
        let none = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: no memory is passed.
        unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.0.as_raw_fd(),
                signal,
                none,
                0,
            )
        };
    }

    pub fn as_fd(&self) -> &OwnedFd {
        &self.0
    }
}

/// Whether the other side of a connection is gone.
pub fn is_hung_up(socket: &OwnedFd) -> bool {
    let mut fd = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: 0,
        revents: 0,
    };
    // SAFETY: one structure, which outlives the call; it does not wait.
    unsafe { libc::poll(&raw mut fd, 1, 0) };
    fd.revents & libc::POLLHUP != 0
}

/// Waits for many descriptors at once.
pub struct Poller(OwnedFd);

impl Poller {
    pub fn new() -> io::Result<Poller> {
        // SAFETY: no memory is passed; on success the descriptor is ours alone.
        match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: just made for us.
            fd => Ok(Poller(unsafe { OwnedFd::from_raw_fd(fd) })),
        }
    }

    fn control(&self, op: i32, fd: &OwnedFd, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: token,
        };
        // SAFETY: the event outlives the call.
        match unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd.as_raw_fd(), &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub fn add(&self, fd: &OwnedFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token)
    }

    pub fn remove(&self, fd: &OwnedFd) {
        // It is there, or closing it will do.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0);
    }

    /// The tokens of what is ready, at most after so many milliseconds.
    pub fn wait(&self, ms: i32) -> Vec<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: the array outlives the call.
        let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), 64, ms) };
        events[..n.max(0) as usize].iter().map(|e| e.u64).collect()
    }
}

pub fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: no memory is passed.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub fn is_nonblocking(fd: &OwnedFd) -> bool {
    // SAFETY: no memory is passed.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) & libc::O_NONBLOCK != 0 }
}

pub fn set_blocking(file: &std::fs::File) -> io::Result<()> {
    // SAFETY: no memory is passed.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A counter that can be waited for with a [`Poller`].
pub fn event() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed; on success the descriptor is ours alone.
    match unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: just made for us.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// Makes an event ready.
pub fn set_event(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: an event reads one word.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// An event is ready no more.
pub fn clear_event(fd: &OwnedFd) {
    let mut n = 0u64;
    // SAFETY: an event writes one word.
    unsafe { libc::read(fd.as_raw_fd(), (&raw mut n).cast(), 8) };
}

/// As many descriptors as this process may have; what it had before.
pub fn raise_descriptors() -> libc::rlimit {
    raise(libc::RLIMIT_NOFILE)
}

/// Whether so many more descriptors can be had.
pub fn has_descriptors(n: usize, like: &OwnedFd) -> bool {
    let held: Vec<_> = (0..n).map_while(|_| like.try_clone().ok()).collect();
    held.len() == n
}

/// Files, memory files too, as large as this process may make them; what it had before.
pub fn raise_file_size() -> libc::rlimit {
    let none = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    let before = raise(libc::RLIMIT_FSIZE);
    // SAFETY: the structure outlives the call. Without the right it is refused.
    unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &none) };
    before
}

fn raise(resource: libc::__rlimit_resource_t) -> libc::rlimit {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the structure outlives the calls.
    unsafe {
        if libc::getrlimit(resource, &mut limit) == 0 {
            let raised = libc::rlimit {
                rlim_cur: limit.rlim_max,
                ..limit
            };
            libc::setrlimit(resource, &raised);
        }
    }
    limit
}

/// What a child process found wrong, in its own words. Only before this process has other threads.
pub fn ask_child(what: impl FnOnce() -> Option<String>) -> io::Result<Result<(), String>> {
    use std::io::{Read, Write};
    const FINE: &str = "fine";
    let (from, to) = pipe()?;
    match fork()? {
        Side::Child => {
            let said = what().unwrap_or_else(|| FINE.to_owned());
            let _ = std::fs::File::from(to).write_all(said.as_bytes());
            exit_now(0)
        }
        Side::Parent { child } => {
            drop(to);
            let mut said = String::new();
            let _ = std::fs::File::from(from).read_to_string(&mut said);
            // Nothing to wait for where whoever started us ignores ended children.
            let _ = wait_for(child, 0);
            Ok(match &*said {
                FINE => Ok(()),
                "" => Err("it is damaged, and the process that loaded it died".to_owned()),
                _ => Err(said),
            })
        }
    }
}

/// Loads a library; what the loader says if it can't.
pub fn load(library: &std::path::Path) -> Option<String> {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(library.as_os_str().as_bytes()) else {
        return Some("not a path".to_owned());
    };
    // SAFETY: the path is a C string; what the library does at its start is ours. The message is a C
    // string until the next call.
    unsafe {
        if !libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL).is_null() {
            return None;
        }
        let why = libc::dlerror();
        if why.is_null() {
            return Some("no reason is given".to_owned());
        }
        Some(std::ffi::CStr::from_ptr(why).to_string_lossy().into_owned())
    }
}

pub fn kill(pid: i32, signal: i32) {
    // SAFETY: no memory is passed.
    unsafe { libc::kill(pid, signal) };
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

/// What became of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Ended(Ended),
    /// By this signal.
    Stopped(i32),
    GoesOn,
}

/// Waits for the child to end, or to stop or go on if that is asked for too.
fn wait_for(pid: i32, flags: i32) -> io::Result<Change> {
    let mut status = 0;
    loop {
        // SAFETY: the status outlives the call.
        if unsafe { libc::waitpid(pid, &mut status, flags) } == pid {
            let ended = |status, core| Change::Ended(Ended { status, core });
            return Ok(if libc::WIFSIGNALED(status) {
                let signal = Status::Killed(libc::WTERMSIG(status));
                ended(signal, libc::WCOREDUMP(status))
            } else if libc::WIFSTOPPED(status) {
                Change::Stopped(libc::WSTOPSIG(status))
            } else if libc::WIFCONTINUED(status) {
                Change::GoesOn
            } else {
                ended(Status::Exited(libc::WEXITSTATUS(status) as u8), false)
            });
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
}

/// Waits for the child to end, stop or go on.
pub fn wait_change(pid: i32) -> io::Result<Change> {
    wait_for(pid, libc::WUNTRACED | libc::WCONTINUED)
}

/// Waits for the child to end.
pub fn wait(pid: i32) -> io::Result<()> {
    wait_for(pid, 0).map(drop)
}

/// Whether a child is stopped. Nobody else waits for its stops.
pub fn is_stopped(pid: i32) -> bool {
    let how = libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the structure outlives the call, and all-zero is a valid one.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_PID, pid as u32, &mut info, how) == 0 && info.si_pid() == pid
    }
}

/// Whether a process is stopped, or that can't be found out.
pub fn may_be_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    let state = stat.as_ref().ok().and_then(|s| s.rsplit_once(") "));
    state.is_none_or(|(_, rest)| rest.starts_with(['T', 't']))
}

/// Waits until one of the descriptors has something to read, or its other end is gone, or so long; says
/// which.
pub fn wait_readable<const N: usize>(
    fds: [Option<BorrowedFd<'_>>; N],
    most: Option<Duration>,
) -> [bool; N] {
    let mut polled = fds.map(|fd| libc::pollfd {
        // A negative one is passed over.
        fd: fd.map_or(-1, |fd| fd.as_raw_fd()),
        events: libc::POLLIN,
        revents: 0,
    });
    let ms = most.map_or(-1, |m| m.as_millis().min(i32::MAX as u128) as i32 + 1);
    // SAFETY: the array outlives the call.
    unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, ms) };
    polled.map(|p| p.revents != 0)
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

/// Processor time that a process has had, by its number here.
pub fn cpu_time(pid: u32) -> Option<std::time::Duration> {
    let mut clock = 0;
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let pid = libc::pid_t::try_from(pid).ok().filter(|&pid| pid > 0)?;
    // SAFETY: both outlive the calls.
    let known = unsafe {
        libc::clock_getcpuclockid(pid, &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut ts) == 0
    };
    // A library that was loaded before us may have its own idea of time.
    let seconds = u64::try_from(ts.tv_sec).ok().filter(|_| known)?;
    Some(std::time::Duration::new(seconds, ts.tv_nsec as u32))
}

/// Ends at once, without running anything that was inherited from the front.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(code) }
}
