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

/// How the first thread ended, as `waitpid` would say it; None while it lives.
pub fn first_ended() -> Option<i32> {
    let mut room = [0; 1024];
    let text = read_start(c"/proc/self/stat", libc::SYS_read, &mut room).ok()?;
    // The name in parentheses may hold anything. The state is the first word after it, the status
    // the 50th.
    let after = text.iter().rposition(|&b| b == b')')? + 1;
    let mut words = text[after..].split(|&b| b == b' ').skip(1);
    if words.next() != Some(b"Z") {
        return None;
    }
    number(words.nth(48)?).map(|n| as_strict_mode(n as i32, STRICT.load(Relaxed)))
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
    fn strict_mode_kills() {
        assert_eq!(as_strict_mode(libc::SIGSYS, true), libc::SIGKILL);
        assert_eq!(as_strict_mode(libc::SIGSYS, false), libc::SIGSYS);
        assert_eq!(as_strict_mode(libc::SIGSYS << 8, true), libc::SIGSYS << 8);
    }

    #[test]
    fn this_process() {
        assert_eq!(first_ended(), None);
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
