//! The program's directory of threads in `/proc`, without ours.
//!
//! Some programs look there whether they have one thread before they enter a sandbox (Chromium's zygote: the
//! number of links of `/proc/self/task`), others stop or count all that they find. So what the C library's
//! `stat` and `readdir` say of this one directory leaves the engine's threads out. The file `status` does not.
//!
//! As in `calls`, nothing is held here, and a signal may leave any of it.

use crate::frame::to_c;
use crate::sandbox;
use core::ffi::CStr;
use hugeswap::engine::{self, Engine};
use hugeswap::sys::syscall::raw;
use hugeswap::sys::thread;

const EMPTY: &CStr = c"";
/// What `stat` says of files in `/proc`: nothing there has a size, and this is the size of a block.
const BLOCK: i64 = 1024;
/// The directory itself, its parent's name for it, and one thread: more links than that are more threads.
const LINKS_OF_ONE: u64 = 3;

fn stat_at(dir: i32, path: *const u8, flags: i32, to: *mut libc::stat) -> i64 {
    let args = [
        dir as usize,
        path as usize,
        to as usize,
        flags as usize,
        0,
        0,
    ];
    // SAFETY: the caller's call, or one into memory of ours.
    unsafe { raw(libc::SYS_newfstatat, args) }
}

fn stat_of(dir: i32, path: &CStr) -> Option<libc::stat> {
    // SAFETY: all-zero is a valid structure, which the call fills.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH;
    (stat_at(dir, path.as_ptr().cast(), flags, &mut found) == 0).then_some(found)
}

/// Under a filter of the program's nothing is looked at: it may not know the calls that this takes.
fn engine() -> Option<&'static Engine> {
    engine::get().filter(|_| !sandbox::is_there())
}

fn may_be_proc(s: &libc::stat) -> bool {
    s.st_mode & libc::S_IFMT == libc::S_IFDIR && s.st_size == 0 && s.st_blksize == BLOCK
}

/// Whether a path leads to the directory by its words: `self/task`, or the process's own number.
fn names_tasks(path: &[u8]) -> bool {
    let mut words = path.rsplit(|&b| b == b'/').filter(|w| !w.is_empty());
    if words.next() != Some(b"task") {
        return false;
    }
    let Some(process) = words.next() else {
        return false;
    };
    let number = core::str::from_utf8(process)
        .ok()
        .and_then(|w| w.parse().ok());
    process == b"self" || number == Some(thread::getpid())
}

/// Whether this is what `/proc/self/task` leads to.
fn is_tasks(s: &libc::stat) -> bool {
    stat_of(libc::AT_FDCWD, c"/proc/self/task")
        .is_some_and(|own| (own.st_dev, own.st_ino) == (s.st_dev, s.st_ino))
}

/// Takes the engine's threads out of what the kernel said of a path.
fn without_ours(e: &Engine, path: *const u8, s: &mut libc::stat) {
    if !may_be_proc(s) || s.st_nlink <= LINKS_OF_ONE {
        return;
    }
    // SAFETY: a C string, which the kernel has just read.
    let by_name = !path.is_null() && names_tasks(unsafe { CStr::from_ptr(path.cast()) }.to_bytes());
    if by_name || is_tasks(s) {
        s.st_nlink = s
            .st_nlink
            .saturating_sub(e.own_threads() as u64)
            .max(LINKS_OF_ONE);
    }
}

extern "C-unwind" fn fstatat(dir: i32, path: *const u8, to: *mut libc::stat, flags: i32) -> i64 {
    let result = stat_at(dir, path, flags, to);
    if result == 0 {
        if let Some(e) = engine() {
            // SAFETY: the kernel has just written to it.
            without_ours(e, path, unsafe { &mut *to });
        }
    }
    to_c(result)
}

extern "C-unwind" fn stat(path: *const u8, to: *mut libc::stat) -> i64 {
    fstatat(libc::AT_FDCWD, path, to, 0)
}

extern "C-unwind" fn lstat(path: *const u8, to: *mut libc::stat) -> i64 {
    fstatat(libc::AT_FDCWD, path, to, libc::AT_SYMLINK_NOFOLLOW)
}

extern "C-unwind" fn fstat(fd: i32, to: *mut libc::stat) -> i64 {
    // The number of the working directory is no descriptor here.
    if fd < 0 {
        return to_c(-i64::from(libc::EBADF));
    }
    fstatat(fd, EMPTY.as_ptr().cast(), to, libc::AT_EMPTY_PATH)
}

/// Of programs that were linked to a C library before 2.33. Another version of the structure there is not.
extern "C-unwind" fn fxstatat(
    version: i32,
    dir: i32,
    path: *const u8,
    to: *mut libc::stat,
    flags: i32,
) -> i64 {
    match version {
        0 | 1 => fstatat(dir, path, to, flags),
        _ => to_c(-i64::from(libc::EINVAL)),
    }
}

extern "C-unwind" fn xstat(version: i32, path: *const u8, to: *mut libc::stat) -> i64 {
    fxstatat(version, libc::AT_FDCWD, path, to, 0)
}

extern "C-unwind" fn getdents64(fd: i32, to: *mut u8, room: usize) -> i64 {
    let args = [fd as usize, to as usize, room, 0, 0, 0];
    // SAFETY: the call that the program asked for, with its arguments.
    let call = || unsafe { raw(libc::SYS_getdents64, args) };
    let result = call();
    let (Some(e), Ok(n)) = (engine(), usize::try_from(result)) else {
        return to_c(result);
    };
    let ours = |s: &libc::stat| may_be_proc(s) && is_tasks(s);
    if n == 0 || !stat_of(fd, EMPTY).is_some_and(|s| ours(&s)) {
        return to_c(result);
    }
    // SAFETY: the kernel has just written so much there.
    let kept = keep(unsafe { core::slice::from_raw_parts_mut(to, n) }, |tid| {
        !e.is_own_thread(tid)
    });
    match kept {
        // That would say that nothing follows.
        0 => to_c(call()),
        kept => kept as i64,
    }
}

/// Keeps those entries of a directory that are no numbers, or numbers that are wanted; returns the length.
fn keep(entries: &mut [u8], is_wanted: impl Fn(u32) -> bool) -> usize {
    let (mut from, mut to) = (0, 0);
    // `struct linux_dirent64`: its length at 16, its name from 19 on.
    while let Some(length) = entries.get(from + 16..from + 18) {
        let next = from + usize::from(u16::from_ne_bytes([length[0], length[1]]));
        let name = entries.get(from + 19..next).unwrap_or_default();
        let name = name.split(|&b| b == 0).next().unwrap_or_default();
        let number = core::str::from_utf8(name).ok().and_then(|n| n.parse().ok());
        if number.is_none_or(&is_wanted) {
            entries.copy_within(from..next.min(entries.len()), to);
            to += next - from;
        }
        from = next;
    }
    to
}

/// The functions of the C library, and what stands for them.
pub fn functions() -> [(&'static CStr, usize); 7] {
    [
        (c"fstatat", fstatat as *const () as usize),
        (c"stat", stat as *const () as usize),
        (c"lstat", lstat as *const () as usize),
        (c"fstat", fstat as *const () as usize),
        (c"__fxstatat", fxstatat as *const () as usize),
        (c"__xstat", xstat as *const () as usize),
        (c"getdents64", getdents64 as *const () as usize),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_directory() {
        let own = std::format!("/proc/{}/task/", std::process::id());
        for path in ["self/task/", "/proc/self/task", "/proc/self//task", &own] {
            assert!(names_tasks(path.as_bytes()), "{path}");
        }
        for path in ["", "/", "task", "/proc/1/task", "self/tasks", "self/task/1"] {
            assert!(!names_tasks(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn entries_are_left_out() {
        let entry = |name: &str| {
            let mut e = std::vec![0u8; (19 + name.len() + 1).next_multiple_of(8)];
            let n = e.len() as u16;
            e[16..18].copy_from_slice(&n.to_ne_bytes());
            e[19..19 + name.len()].copy_from_slice(name.as_bytes());
            e
        };
        let all = [".", "..", "7", "12", "8"].map(entry).concat();
        let wanted = [".", "..", "7", "8"].map(entry).concat();
        let mut left = all.clone();
        let n = keep(&mut left, |tid| tid != 12);
        assert_eq!(left[..n], wanted);
        assert_eq!(keep(&mut all.clone(), |_| true), all.len());
    }
}
