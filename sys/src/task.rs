//! The threads of this process, as the kernel lists them. No memory is allocated here.

use super::syscall::{syscall, Errno};
use super::{fd, thread};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Reads the beginning of a file, or of a directory's entries.
fn read_start<'b>(path: &core::ffi::CStr, nr: i64, room: &'b mut [u8]) -> Result<&'b [u8], Errno> {
    let fd = fd::open(path)?;
    // SAFETY: the buffer is valid for its length.
    let n = unsafe { syscall(nr, [fd as usize, room.as_mut_ptr() as usize, room.len()]) };
    fd::close(fd);
    let n = n?;
    Ok(&room[..n])
}

fn number(text: &[u8]) -> Option<u32> {
    core::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// How the process's first thread stands: `/proc/self/stat`, kept open. Who opened it at each look would have a descriptor
/// for a moment, and with it the one number that the program's limit may leave for what is about to come.
pub struct FirstThread(Result<i32, Errno>);

impl FirstThread {
    /// Where there is no /proc it seems to live for ever.
    pub fn open() -> FirstThread {
        FirstThread(fd::open(c"/proc/self/stat"))
    }

    /// None while it lives.
    pub fn ended(&self) -> Option<Ended> {
        let fd = self.0.ok()?;
        let mut room = [0; 1024];
        // SAFETY: the buffer is valid for its length.
        let n = unsafe {
            let (to, len) = (room.as_mut_ptr() as usize, room.len());
            syscall(libc::SYS_pread64, [fd as usize, to, len, 0])
        };
        let text = &room[..n.ok()?];
        Ended::of(text, STRICT.load(Relaxed))
    }

    pub fn close(self) {
        self.0.into_iter().for_each(fd::close);
    }
}

/// A first thread that has ended.
#[derive(PartialEq, Eq, Debug)]
pub struct Ended {
    /// As `waitpid` would say it.
    pub status: i32,
    /// How many threads the process has, this one and the kernel's for its rings among them.
    pub threads: usize,
}

impl Ended {
    /// `stat` is as in /proc.
    fn of(stat: &[u8], strict: bool) -> Option<Ended> {
        // The name in parentheses may hold anything. The state is the first word after it, the number of threads
        // the 18th, the status the 50th.
        let after = stat.iter().rposition(|&b| b == b')')? + 1;
        let mut words = stat[after..].split(|&b| b == b' ').skip(1);
        if words.next() != Some(b"Z") {
            return None;
        }
        let threads = number(words.nth(16)?)? as usize;
        let status = number(words.nth(31)?)? as i32;
        Some(Ended {
            status: as_strict_mode(status, strict),
            threads,
        })
    }
}

/// Whether a filter of ours stands for the strict mode of seccomp.
static STRICT: AtomicBool = AtomicBool::new(false);

/// From now on a thread that a filter ended counts as killed: the strict mode ends threads by SIGKILL,
/// a filter by SIGSYS.
pub fn ends_by_filter_are_kills() {
    STRICT.store(true, Relaxed);
}

fn as_strict_mode(status: i32, strict: bool) -> i32 {
    if strict && status & 0x7f == libc::SIGSYS {
        libc::SIGKILL
    } else {
        status
    }
}

/// How many threads there are of each kind.
pub struct Threads {
    /// Where that cannot be known, or there are very many, it is as if there were many.
    pub of_program: usize,
    /// The engine's, and those that the kernel made to carry out its requests.
    pub of_engine: usize,
}

/// Counts the threads; `ours` are the engine's.
pub fn count(ours: &[u32]) -> Threads {
    // Not by their numbers: /proc may be another pid namespace's.
    let alive = |&&tid: &&u32| tid != 0 && is_alive(tid);
    let ours = ours.iter().filter(alive).count();
    let mut room = [0; 8192];
    let Ok(entries) = read_start(c"/proc/self/task", libc::SYS_getdents64, &mut room) else {
        return Threads {
            of_program: usize::MAX,
            of_engine: ours,
        };
    };
    // `struct linux_dirent64`: its length at 16, its name from 19 on.
    let mut at = 0;
    let (mut all, mut kernels) = (0usize, 0usize);
    while let Some(length) = entries.get(at + 16..at + 18) {
        let next = at + u16::from_ne_bytes([length[0], length[1]]) as usize;
        let name = entries[at + 19..next].split(|&b| b == 0).next();
        at = next;
        let Some(tid) = name.and_then(number) else {
            continue;
        };
        match kind(tid) {
            Kind::Thread => all += 1,
            Kind::Kernels => kernels += 1,
            Kind::Ended => {}
        }
    }
    Threads {
        of_program: all.saturating_sub(ours),
        of_engine: ours + kernels,
    }
}

/// `f` of the path of a thread's file in /proc. The name has four letters.
fn with_path<R>(
    tid: u32,
    name: &[u8; 4],
    f: impl FnOnce(&core::ffi::CStr) -> Result<R, Errno>,
) -> Result<R, Errno> {
    let mut path = *b"/proc/self/task/0000000000/name\0";
    path[27..31].copy_from_slice(name);
    let mut rest = tid;
    for digit in path[16..26].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    // The kernel takes no zeros in front.
    let zeros = path[16..26].iter().take_while(|&&b| b == b'0').count();
    path.copy_within(16 + zeros.., 16);
    f(core::ffi::CStr::from_bytes_until_nul(&path).map_err(|_| Errno::EINVAL)?)
}

/// The calling thread, which has a root of its own, goes below that of another thread of the process.
pub fn enter_root_of(tid: u32) -> Result<(), Errno> {
    let root = with_path(tid, b"root", fd::open)?;
    // SAFETY: the paths end with a zero byte.
    let made = unsafe {
        let made = syscall(libc::SYS_fchdir, [root as usize])
            .and_then(|_| syscall(libc::SYS_chroot, [c".".as_ptr() as usize]));
        let _ = syscall(libc::SYS_chdir, [c"/".as_ptr() as usize]);
        made
    };
    fd::close(root);
    made.map(|_| ())
}

enum Kind {
    /// The program's or ours.
    Thread,
    /// One that carries out requests of a ring.
    Kernels,
    Ended,
}

/// A thread that is gone by now counts: it may have made another before, which the list does not have.
fn kind(tid: u32) -> Kind {
    let mut room = [0; 256];
    let Ok(text) = with_path(tid, b"stat", |path| {
        read_start(path, libc::SYS_read, &mut room)
    }) else {
        return Kind::Thread;
    };
    let name = text.iter().position(|&b| b == b'(').map(|i| &text[i + 1..]);
    let state = text
        .iter()
        .rposition(|&b| b == b')')
        .and_then(|i| text.get(i + 2));
    // The first thread stays as a zombie; the others do not, but for a debugger.
    if state == Some(&b'Z') {
        Kind::Ended
    } else if name.is_some_and(|n| n.starts_with(b"iou-")) {
        Kind::Kernels
    } else {
        Kind::Thread
    }
}

/// Ends the whole process as its first thread ended.
pub fn end_as(status: i32) -> ! {
    let signal = status & 0x7f;
    if signal != 0 {
        let default = [0usize; 4];
        let all_clear = 0u64;
        // SAFETY: the structures outlive the calls. Nobody is left whom the signal's action concerns.
        unsafe {
            let _ = syscall(
                libc::SYS_rt_sigaction,
                [signal as usize, default.as_ptr() as usize, 0, 8],
            );
            thread::restore_signals(all_clear);
            let _ = syscall(libc::SYS_kill, [thread::getpid() as usize, signal as usize]);
        }
        thread::exit_group(128 + signal);
    }
    thread::exit_group(status >> 8 & 0xff)
}

/// Whether the thread of that number is there.
pub fn is_alive(tid: u32) -> bool {
    // SAFETY: no pointers; signal 0 is none.
    let r = unsafe {
        syscall(
            libc::SYS_tgkill,
            [thread::getpid() as usize, tid as usize, 0],
        )
    };
    r != Err(Errno::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_read_from_stat_lines() {
        let mut words: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        let line = |words: &[String]| format!("7 (a) Z b) {}\n", words.join(" "));
        assert_eq!(Ended::of(line(&words).as_bytes(), false), None);
        words[0] = "Z".into();
        let (status, threads) = (52, 20);
        let ended = Ended::of(line(&words).as_bytes(), false);
        assert_eq!(ended, Some(Ended { status, threads }));
        assert_eq!(Ended::of(b"7 (a) Z 1 2", false), None);
        assert_eq!(Ended::of(b"", false), None);
    }

    #[test]
    fn strict_mode_kills() {
        assert_eq!(as_strict_mode(libc::SIGSYS, true), libc::SIGKILL);
        assert_eq!(as_strict_mode(libc::SIGSYS, false), libc::SIGSYS);
        assert_eq!(as_strict_mode(libc::SIGSYS << 8, true), libc::SIGSYS << 8);
    }

    #[test]
    fn this_process() {
        let first = FirstThread::open();
        assert_eq!((first.ended(), first.ended()), (None, None));
        first.close();
        let me = thread::gettid();
        assert!(is_alive(me));
        // Tests run on several threads, which come and go.
        let all = count(&[]).of_program;
        assert!((1..1000).contains(&all), "{all}");
        let with_one = count(&[me, 0]);
        assert!(with_one.of_program < 1000);
        assert!((1..1000).contains(&with_one.of_engine));
        assert!(matches!(kind(me), Kind::Thread));
        assert!(matches!(kind(u32::MAX), Kind::Thread), "gone");
    }
}
