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

/// How many threads of the program there are: all but `ours` and the kernel's own for io_uring. Where
/// that cannot be known, or there are very many, it is as if there were many.
pub fn others(ours: &[u32]) -> usize {
    let mut room = [0; 8192];
    let Ok(entries) = read_start(c"/proc/self/task", libc::SYS_getdents64, &mut room) else {
        return usize::MAX;
    };
    // `struct linux_dirent64`: its length at 16, its name from 19 on.
    let mut at = 0;
    let mut n = 0;
    while let Some(length) = entries.get(at + 16..at + 18) {
        let next = at + u16::from_ne_bytes([length[0], length[1]]) as usize;
        let name = entries[at + 19..next].split(|&b| b == 0).next();
        at = next;
        let Some(tid) = name.and_then(number) else {
            continue;
        };
        n += is_programs(tid) as usize;
    }
    // Not by their numbers: /proc may be another pid name space's.
    let alive = |&&tid: &&u32| tid != 0 && is_alive(tid);
    n.saturating_sub(ours.iter().filter(alive).count())
}

/// Whether it is one or ours, or may be: a thread that is gone by now may have made another before, which
/// the list does not have.
fn is_programs(tid: u32) -> bool {
    let mut path = *b"/proc/self/task/0000000000/stat\0";
    let mut rest = tid;
    for digit in path[16..26].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    // The kernel takes no zeros in front.
    let zeros = path[16..26].iter().take_while(|&&b| b == b'0').count();
    path.copy_within(16 + zeros.., 16);
    let Ok(path) = core::ffi::CStr::from_bytes_until_nul(&path) else {
        return true;
    };
    let mut room = [0; 256];
    let Ok(text) = read_start(path, libc::SYS_read, &mut room) else {
        return true;
    };
    let name = text.iter().position(|&b| b == b'(').map(|i| &text[i + 1..]);
    let state = text
        .iter()
        .rposition(|&b| b == b')')
        .and_then(|i| text.get(i + 2));
    // The first thread stays as a zombie; the others do not, but for a debugger.
    let has_ended = state == Some(&b'Z');
    !has_ended && !name.is_some_and(|n| n.starts_with(b"iou-"))
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
        let all = others(&[]);
        // Tests run on several threads, which come and go.
        assert!((1..1000).contains(&all), "{all}");
        assert!(others(&[me, 0]) < 1000);
        assert!(is_programs(me));
        assert!(is_programs(u32::MAX), "gone");
    }
}
