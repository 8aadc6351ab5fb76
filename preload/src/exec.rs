//! Before another program takes the place of this one: whether hugeswap will be in it. Where it will not, the
//! supervisor is told, for such a program says nothing itself, and may be gone before anybody looks.
//!
//! As in `calls`, nothing is held here, and a signal may leave any of it. The process may be a child of
//! `vfork` that has its parent's memory, and a small stack.

use core::ffi::CStr;
use core::fmt::Write;
use core::sync::atomic::{AtomicPtr, Ordering::*};

use hugeswap::control::link::{self, Door};
use hugeswap::control::{self, Unmanaged};
use hugeswap::sys::syscall::{raw, syscall};
use hugeswap::sys::{fd, mem, thread, Errno};

use crate::frame::to_c;
use crate::{alone, arch, sandbox};

const EMPTY: &CStr = c"";
const PRELOAD: &[u8] = b"LD_PRELOAD=";
const ADDRESS: &[u8] = b"HUGESWAP_RUN=";
/// The kernel looks at so much of a file to see what it is.
const HEAD: usize = 256;
/// Interpreters of interpreters, as far as the kernel goes.
const DEPTH: usize = 5;
/// The kernel takes no more strings.
const MOST_STRINGS: usize = 1 << 20;

/// This library's own file, as the loader was told of it.
static LIBRARY: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// Before the functions of the C library become ours.
pub fn set_up() {
    // SAFETY: the structure outlives the call; the name in it is the loader's, as long as the library is there.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        if libc::dladdr(set_up as *const _, &mut info) != 0 {
            LIBRARY.store(info.dli_fname.cast_mut().cast(), Release);
        }
    }
}

/// That file's name, once it is known.
fn library() -> Option<&'static [u8]> {
    let name = LIBRARY.load(Acquire);
    // SAFETY: a C string of the loader's, which stays as long as the library is there.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name.cast()) }.to_bytes())
}

extern "C-unwind" fn execve(path: *const u8, argv: usize, envp: usize) -> i64 {
    let (said, carries) = look(libc::AT_FDCWD, path, 0, envp);
    // SAFETY: the call that the program asked for, with its arguments. It returns only if it fails.
    let call = |envp: usize| unsafe { raw(libc::SYS_execve, [path as usize, argv, envp, 0, 0, 0]) };
    let result = with_way(&said, carries, envp, call);
    take_back(said);
    to_c(result)
}

extern "C-unwind" fn execveat(
    dir: i32,
    path: *const u8,
    argv: usize,
    envp: usize,
    flags: i32,
) -> i64 {
    let args = |envp: usize| [dir as usize, path as usize, argv, envp, flags as usize, 0];
    let (said, carries) = look(dir, path, flags, envp);
    // SAFETY: as above.
    let call = |envp: usize| unsafe { raw(libc::SYS_execveat, args(envp)) };
    let result = with_way(&said, carries, envp, call);
    take_back(said);
    to_c(result)
}

extern "C-unwind" fn fexecve(file: i32, argv: usize, envp: usize) -> i64 {
    if file < 0 || argv == 0 || envp == 0 {
        return to_c(-i64::from(libc::EINVAL));
    }
    execveat(file, EMPTY.as_ptr().cast(), argv, envp, libc::AT_EMPTY_PATH)
}

/// Makes the call, and sees to it that hugeswap will be in the next program: a program that may be unable to find the
/// supervisor is started with a socket whose other end the supervisor has, and a library of the program's own is
/// preloaded beside this one, not in its place.
fn with_way(
    said: &Option<control::Said>,
    carries: Carries,
    envp: usize,
    call: impl Fn(usize) -> i64,
) -> i64 {
    let is_ours = said.is_none() && hugeswap::engine::get().is_some() && !sandbox::is_there();
    let needs = Needs {
        library: is_ours && carries == Carries::Address,
        door: is_ours && alone::may_be_apart() && knows_itself(),
    };
    match needs.library || needs.door {
        true => with_copy(needs, envp, call),
        false => call(envp),
    }
}

/// What the next program's environment is to have that it has not.
#[derive(Clone, Copy)]
struct Needs {
    library: bool,
    door: bool,
}

/// Whether `/proc` has this process by the number that it has for itself. Where it has not, a sandbox is being built
/// (Chromium's), which is not to have threads of ours in it.
fn knows_itself() -> bool {
    let mut number = [0u8; 16];
    let args = [
        c"/proc/self".as_ptr() as usize,
        number.as_mut_ptr() as usize,
        number.len(),
    ];
    // SAFETY: a C string, and memory of ours of that length.
    let read = unsafe { syscall(libc::SYS_readlink, args) };
    let text = read
        .ok()
        .and_then(|n| core::str::from_utf8(&number[..n]).ok());
    text.and_then(|t| t.parse().ok()) == Some(thread::getpid())
}

/// Strings of an environment that is copied, at most; and bytes of the run's address, and of a list of libraries. They
/// are on the stack, which may be a small one.
const MOST_COPIED: usize = 1000;
const ROOM: usize = 400;
const ROOM_FOR_LIST: usize = 1000;

#[inline(never)]
fn with_copy(needs: Needs, envp: usize, call: impl Fn(usize) -> i64) -> i64 {
    let (mut strings, mut text) = ([0usize; MOST_COPIED + 1], Text::<ROOM>::new());
    let mut list = Text::<ROOM_FOR_LIST>::new();
    let Some(places) = copy_environment(envp, &mut strings, &mut text) else {
        return call(envp);
    };
    if let Some(at) = places.preload.filter(|_| needs.library) {
        if add_library(strings[at], &mut list).is_none() {
            return call(envp);
        }
        strings[at] = list.bytes.as_ptr() as usize;
    }
    let socket = match needs.door {
        true => make_door(&mut text),
        false => None,
    };
    if socket.is_some() {
        strings[places.address] = text.bytes.as_ptr() as usize;
    }
    let result = call(strings.as_ptr() as usize);
    if let Some(socket) = socket {
        fd::close(socket);
    }
    result
}

/// Writes the list of libraries again, with this one at its head.
fn add_library(theirs: usize, list: &mut Text<ROOM_FOR_LIST>) -> Option<()> {
    // SAFETY: a C string of the environment, of which the kernel will read all.
    let theirs = unsafe { CStr::from_ptr(theirs as *const _) }.to_bytes();
    for part in [PRELOAD, library()?, b":", theirs.strip_prefix(PRELOAD)?] {
        list.add(part).ok()?;
    }
    list.end().then_some(())
}

/// Where in an environment these strings are.
#[derive(Clone, Copy)]
struct Places {
    address: usize,
    preload: Option<usize>,
}

/// Copies the list, and the run's address without a door.
fn copy_environment(
    envp: usize,
    strings: &mut [usize; MOST_COPIED + 1],
    text: &mut Text<ROOM>,
) -> Option<Places> {
    let (mut address, mut preload) = (None, None);
    for (i, to) in strings.iter_mut().enumerate() {
        *to = string_of(envp, i)?;
        if *to == 0 {
            let at = address?;
            // SAFETY: a C string, of which the kernel will read all.
            let address = unsafe { CStr::from_ptr(strings[at] as *const _) }.to_bytes();
            let (address, _) = Door::split(address);
            text.add(address).ok()?;
            return Some(Places {
                address: at,
                preload,
            });
        }
        if address.is_none() && begins_with(*to, ADDRESS) {
            address = Some(i);
        }
        // The loader takes the last.
        if begins_with(*to, PRELOAD) {
            preload = Some(i);
        }
    }
    None
}

/// Two sockets, of which the supervisor gets one, and the next program the other, which is returned.
fn make_door(text: &mut Text<ROOM>) -> Option<i32> {
    let [kept, handed] = link::pair().ok()?;
    let given = Door::of(handed).and_then(|door| {
        // SAFETY: the thread's errno; the entry of a hook.
        let r = unsafe {
            let errno = *libc::__errno_location();
            let r = arch::hugeswap_entry_door(handed, door.inode);
            *libc::__errno_location() = errno;
            r
        };
        if r == 0 {
            Door::of(kept)
        } else {
            Err(Errno::EINVAL)
        }
    });
    fd::close(handed);
    let stays = |door: Door| {
        // SAFETY: no pointers.
        let open = unsafe { syscall(libc::SYS_fcntl, [kept as usize, libc::F_SETFD as usize, 0]) };
        open.is_ok() && door.write(text).is_ok() && text.end()
    };
    if given.is_ok_and(stays) {
        return Some(kept);
    }
    fd::close(kept);
    None
}

/// A C string that is being written.
struct Text<const ROOM: usize> {
    bytes: [u8; ROOM],
    len: usize,
}

impl<const ROOM: usize> Text<ROOM> {
    fn new() -> Self {
        Text {
            bytes: [0; ROOM],
            len: 0,
        }
    }

    fn add(&mut self, bytes: &[u8]) -> core::fmt::Result {
        let to = self.bytes.get_mut(self.len..self.len + bytes.len());
        to.ok_or(core::fmt::Error)?.copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }

    /// There is room for the zero.
    fn end(&self) -> bool {
        self.len < ROOM
    }
}

impl<const ROOM: usize> Write for Text<ROOM> {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        self.add(s.as_bytes())
    }
}

/// The program goes on as it was.
fn take_back(said: Option<control::Said>) {
    if let Some(said) = said {
        control::take_back(said);
    }
}

/// The functions of the C library, and what stands for them.
pub fn functions() -> [(&'static CStr, usize); 3] {
    [
        (c"execve", execve as *const () as usize),
        (c"execveat", execveat as *const () as usize),
        (c"fexecve", fexecve as *const () as usize),
    ]
}

/// Tells the supervisor if hugeswap will not be in that program, and says what its environment has. Under a filter of
/// the program's nothing is looked at: it may not know the calls that this takes.
fn look(dir: i32, path: *const u8, flags: i32, envp: usize) -> (Option<control::Said>, Carries) {
    let nothing = (None, Carries::Everything);
    if hugeswap::engine::get().is_none() || sandbox::is_there() {
        return nothing;
    }
    let Some(file) = File::open(dir, path, flags) else {
        return nothing;
    };
    let carries = carries(envp);
    let why = file
        .judge(0)
        .or_else(|| (carries == Carries::TooLittle).then_some(Unmanaged::NotLoaded));
    let said = why.and_then(|why| {
        // SAFETY: a C string, which the kernel has just read.
        let path = unsafe { CStr::from_ptr(path.cast()) };
        control::say_unmanaged(thread::getpid(), why, path.to_bytes())
    });
    (said, carries)
}

/// A program's file.
struct File {
    fd: i32,
    is_ours: bool,
}

impl Drop for File {
    fn drop(&mut self) {
        if self.is_ours {
            fd::close(self.fd);
        }
    }
}

impl File {
    /// None where it can't be opened: the kernel says why, or runs what it lets nobody read.
    fn open(dir: i32, path: *const u8, flags: i32) -> Option<File> {
        let how = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        let args = [dir as usize, path as usize, how as usize];
        // SAFETY: the kernel looks whether the path can be read.
        match unsafe { syscall(libc::SYS_openat, args) } {
            Ok(fd) => Some(File {
                fd: fd as i32,
                is_ours: true,
            }),
            Err(_) if flags & libc::AT_EMPTY_PATH != 0 && dir >= 0 => Some(File {
                fd: dir,
                is_ours: false,
            }),
            Err(_) => None,
        }
    }

    fn read(&self, at: usize, to: &mut [u8]) -> usize {
        let args = [self.fd as usize, to.as_mut_ptr() as usize, to.len(), at];
        // SAFETY: memory of ours, of that length.
        unsafe { syscall(libc::SYS_pread64, args) }.unwrap_or(0)
    }

    /// Why hugeswap will not be in it, as far as the file tells. An interpreter of a script gains no rights.
    fn judge(&self, depth: usize) -> Option<Unmanaged> {
        // SAFETY: all-zero is a valid structure, which the call fills.
        let mut s: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: the structure outlives the call.
        unsafe { syscall(libc::SYS_fstat, [self.fd as usize, &raw mut s as usize]) }.ok()?;
        if s.st_mode & libc::S_IFMT != libc::S_IFREG || s.st_mode & 0o111 == 0 {
            return None;
        }
        let mut head = [0u8; HEAD];
        let n = self.read(0, &mut head);
        match kind(&head[..n]) {
            Kind::Script(from, to) if depth < DEPTH => {
                // It ends in a zero: the word ends before the buffer does.
                head[to.min(HEAD - 1)] = 0;
                File::open(libc::AT_FDCWD, head[from..].as_ptr(), 0)?.judge(depth + 1)
            }
            Kind::Narrow => Some(Unmanaged::Narrow),
            Kind::Elf if gains_rights(&s) => Some(Unmanaged::GainsRights),
            Kind::Elf if !self.has_interpreter(&head) => Some(Unmanaged::Static),
            _ => None,
        }
    }

    /// Whether a 64-bit ELF file of this beginning names a loader.
    fn has_interpreter(&self, head: &[u8; HEAD]) -> bool {
        const PT_INTERP: u32 = 3;
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| head[at + i])) as usize;
        let half = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
        let (at, size, n) = (word(32), half(54), half(56));
        (0..n).any(|i| {
            let mut kind = [0u8; 4];
            let read = at.checked_add(i * size).map(|at| self.read(at, &mut kind));
            read == Some(4) && u32::from_le_bytes(kind) == PT_INTERP
        })
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// Its interpreter's name is there in the beginning.
    Script(usize, usize),
    /// ELF of 32 bits.
    Narrow,
    Elf,
    Other,
}

fn kind(head: &[u8]) -> Kind {
    if head.starts_with(b"\x7fELF\x01") {
        return Kind::Narrow;
    }
    if head.starts_with(b"\x7fELF\x02\x01") && head.len() >= 64 {
        return Kind::Elf;
    }
    if !head.starts_with(b"#!") {
        return Kind::Other;
    }
    let is_blank = |b: &u8| matches!(b, b' ' | b'\t');
    let from = 2 + head[2..].iter().take_while(|b| is_blank(b)).count();
    let ends = |b: &u8| is_blank(b) || matches!(b, b'\n' | 0);
    match head[from..].iter().position(ends) {
        Some(len @ 1..) => Kind::Script(from, from + len),
        _ => Kind::Other,
    }
}

/// The loader ignores what is to be preloaded.
fn gains_rights(s: &libc::stat) -> bool {
    // SAFETY: no memory is passed.
    let id = |nr: i64| unsafe { syscall(nr, []) }.map_or(u32::MAX, |n| n as u32);
    let user = s.st_mode & libc::S_ISUID != 0 && s.st_uid != id(libc::SYS_geteuid);
    let groups = libc::S_ISGID | libc::S_IXGRP;
    let group = s.st_mode & groups == groups && s.st_gid != id(libc::SYS_getegid);
    // SAFETY: no memory is passed.
    let may_not = || unsafe {
        let get = libc::PR_GET_NO_NEW_PRIVS as usize;
        syscall(libc::SYS_prctl, [get, 0, 0, 0, 0]) == Ok(1)
    };
    (user || group) && !may_not()
}

/// What an environment has of what the loader, and the library, need to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Carries {
    Everything,
    /// The run's address, and other libraries to preload in place of this one.
    Address,
    TooLittle,
}

/// One that can't be read is for the kernel to refuse.
fn carries(envp: usize) -> Carries {
    let (mut library, mut others, mut address) = (false, false, false);
    if envp == 0 {
        return Carries::TooLittle;
    }
    for i in 0..MOST_STRINGS {
        let Some(string) = string_of(envp, i) else {
            return Carries::Everything;
        };
        if string == 0 {
            break;
        }
        address |= begins_with(string, ADDRESS);
        if begins_with(string, PRELOAD) {
            let list = string + PRELOAD.len();
            library |= names_library(list);
            others |= !begins_with(list, b"\0");
        }
        if library && address {
            return Carries::Everything;
        }
    }
    match address && others {
        true => Carries::Address,
        false => Carries::TooLittle,
    }
}

/// A string of an environment; the last is 0. None if the list can't be read.
fn string_of(envp: usize, i: usize) -> Option<usize> {
    let mut string = [0u8; 8];
    // SAFETY: memory of ours, of that length.
    unsafe { mem::copy_from_program(envp + 8 * i, string.as_mut_ptr(), 8) }.ok()?;
    Some(usize::from_ne_bytes(string))
}

fn begins_with(string: usize, word: &[u8]) -> bool {
    let mut begin = [0u8; 16];
    let begin = &mut begin[..word.len()];
    // SAFETY: memory of ours, of that length.
    unsafe { mem::copy_from_program(string, begin.as_mut_ptr(), begin.len()) }.is_ok()
        && begin == word
}

/// Whether the library is in a list of files that can be read: it has been found to begin there.
fn names_library(list: usize) -> bool {
    let Some(own) = library() else {
        return true;
    };
    // SAFETY: a C string of the environment, of which the kernel will read all.
    let list = unsafe { CStr::from_ptr(list as *const _) }.to_bytes();
    list.split(|&b| b == b':' || b == b' ')
        .any(|file| file == own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;
    use std::{format, fs, vec};

    #[test]
    fn kinds_of_files() {
        assert_eq!(kind(b"#! /bin/sh -e\n"), Kind::Script(3, 10));
        assert_eq!(kind(b"#!/bin/sh\n"), Kind::Script(2, 9));
        for other in [&b"#!\n"[..], b"#! ", b"#!/without/end", b"", b"echo"] {
            assert_eq!(kind(other), Kind::Other);
        }
        assert_eq!(kind(b"\x7fELF\x01\x01"), Kind::Narrow);
    }

    #[test]
    fn programs_are_judged_by_their_files() {
        let judge = |path: &[u8]| {
            let path = CString::new(path).unwrap();
            File::open(libc::AT_FDCWD, path.as_ptr().cast(), 0).and_then(|f| f.judge(0))
        };
        assert_eq!(judge(b"/bin/sh"), None);
        assert_eq!(judge(b"/nowhere"), None);
        assert_eq!(judge(b"/"), None);
        let path = std::env::temp_dir().join(format!("hugeswap-exec-{}", std::process::id()));
        let script = path.with_extension("script");
        let mut fixed = vec![0u8; 64];
        fixed[..6].copy_from_slice(b"\x7fELF\x02\x01");
        fs::write(&path, fixed).unwrap();
        fs::write(&script, format!("#!{} -x\n", path.display())).unwrap();
        // Nothing that could be run.
        assert_eq!(judge(path.as_os_str().as_bytes()), None);
        for p in [&path, &script] {
            fs::set_permissions(p, fs::Permissions::from_mode(0o755)).unwrap();
            let why = judge(p.as_os_str().as_bytes());
            assert_eq!(why, Some(Unmanaged::Static), "{p:?}");
        }
        fs::remove_file(path).unwrap();
        fs::remove_file(script).unwrap();
    }

    fn environment(list: &[&str]) -> (vec::Vec<CString>, vec::Vec<usize>) {
        let own: vec::Vec<CString> = list.iter().map(|s| CString::new(*s).unwrap()).collect();
        let mut all: vec::Vec<usize> = own.iter().map(|s| s.as_ptr() as usize).collect();
        all.push(0);
        (own, all)
    }

    #[test]
    fn environments() {
        let of = |list: &[&str]| {
            let (_own, all) = environment(list);
            carries(all.as_ptr() as usize)
        };
        let address = "HUGESWAP_RUN=key";
        for too_little in [
            &[][..],
            &[address],
            &["LD_PRELOAD=/x.so"],
            &["LD_PRELOAD=", address],
        ] {
            set_up();
            assert_eq!(of(too_little), Carries::TooLittle, "{too_little:?}");
        }
        assert_eq!(of(&["A=b", "LD_PRELOAD=/x.so", address]), Carries::Address);
        let own = core::str::from_utf8(library().unwrap()).unwrap();
        let with = format!("LD_PRELOAD=/x.so:{}", own);
        assert_eq!(of(&["A=b", &with, address]), Carries::Everything);
        assert_eq!(carries(0), Carries::TooLittle);
        assert_eq!(carries(8), Carries::Everything);
    }

    /// The environment that is left is as it was but for these.
    #[test]
    fn a_library_of_the_programs_own_is_preloaded_beside() {
        set_up();
        let own = core::str::from_utf8(library().unwrap()).unwrap();
        let (_own, all) = environment(&["A=b", "LD_PRELOAD=/x.so:/y.so", "HUGESWAP_RUN=key"]);
        let needs = Needs {
            library: true,
            door: false,
        };
        with_copy(needs, all.as_ptr() as usize, |envp| {
            let string = |i: usize| {
                // SAFETY: what was copied, of as many strings, and C strings.
                let at = unsafe { *(envp as *const usize).add(i) };
                (at != 0).then(|| unsafe { CStr::from_ptr(at as *const _) }.to_str().unwrap())
            };
            let list = format!("LD_PRELOAD={}:/x.so:/y.so", own);
            assert_eq!(string(0), Some("A=b"));
            assert_eq!(string(1), Some(list.as_str()));
            assert_eq!([string(2), string(3)], [Some("HUGESWAP_RUN=key"), None]);
            0
        });
    }

    /// What does not fit is passed on as it is.
    #[test]
    fn a_list_that_is_too_long_stays() {
        set_up();
        let long = format!("LD_PRELOAD=/{}", "x".repeat(ROOM_FOR_LIST));
        let (_own, all) = environment(&[&long, "HUGESWAP_RUN=key"]);
        let needs = Needs {
            library: true,
            door: false,
        };
        let before = all.as_ptr() as usize;
        with_copy(needs, before, |envp| {
            assert_eq!(envp, before);
            0
        });
    }
}
