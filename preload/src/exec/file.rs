//! What a program's file tells: whether hugeswap will be in it, and whether it is Go's.

use core::ffi::CStr;
use hugeswap::control::{go, is_loader, Unmanaged};
use hugeswap::sys::fd;
use hugeswap::sys::syscall::syscall;

/// The kernel looks at so much of a file to see what it is.
const HEAD: usize = 256;
/// Interpreters of interpreters, as far as the kernel goes.
const DEPTH: usize = 5;
/// So much of a part with notes is looked at: the linkers put Go's among the first.
const NOTES: usize = 512;

/// What a file says of the program in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    /// Hugeswap will not be in it.
    Unmanaged(Unmanaged),
    /// It is Go's: see `crate::go`.
    Go,
    /// Any other, or nothing that can be run.
    Other,
}

/// A program's file.
pub struct File {
    fd: i32,
    is_ours: bool,
    is_loader: bool,
}

impl Drop for File {
    fn drop(&mut self) {
        if self.is_ours {
            fd::close(self.fd);
        }
    }
}

impl File {
    /// None where it can't be opened, or is no file: the kernel says why, or runs what it lets nobody read.
    pub fn open(dir: i32, path: *const u8, flags: i32) -> Option<File> {
        // To open a FIFO lets go who waits for a reader.
        // SAFETY: all-zero is a valid structure, which the call fills.
        let mut s: libc::stat = unsafe { core::mem::zeroed() };
        let args = [dir as usize, path as usize, &raw mut s as usize, 0];
        // SAFETY: the kernel looks whether the path can be read; the structure outlives the call.
        let asked = unsafe { syscall(libc::SYS_newfstatat, args) };
        if asked.is_ok() && s.st_mode & libc::S_IFMT != libc::S_IFREG {
            return None;
        }
        let how = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        let args = [dir as usize, path as usize, how as usize];
        // SAFETY: the kernel looks whether the path can be read.
        match unsafe { syscall(libc::SYS_openat, args) } {
            Ok(fd) => Some(File {
                fd: fd as i32,
                is_ours: true,
                // SAFETY: a C string, which the kernel has just read.
                is_loader: is_loader(unsafe { CStr::from_ptr(path.cast()) }.to_bytes()),
            }),
            Err(_) if flags & libc::AT_EMPTY_PATH != 0 && dir >= 0 => Some(File {
                fd: dir,
                is_ours: false,
                is_loader: false,
            }),
            Err(_) => None,
        }
    }

    fn read(&self, at: usize, to: &mut [u8]) -> usize {
        let args = [self.fd as usize, to.as_mut_ptr() as usize, to.len(), at];
        // SAFETY: memory of ours, of that length.
        unsafe { syscall(libc::SYS_pread64, args) }.unwrap_or(0)
    }

    /// What it is, as far as the file tells; of a script, what its interpreter is. An interpreter gains no rights.
    pub fn judge(&self) -> Program {
        self.judge_at(0).unwrap_or(Program::Other)
    }

    fn judge_at(&self, depth: usize) -> Option<Program> {
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
                File::open(libc::AT_FDCWD, head[from..].as_ptr(), 0)?.judge_at(depth + 1)
            }
            // It runs no program as a rule: `ldd` asks it which libraries it would load.
            Kind::Narrow if self.is_loader => None,
            Kind::Narrow => Some(Program::Unmanaged(Unmanaged::Narrow)),
            Kind::Elf if gains_rights(&s) => Some(Program::Unmanaged(Unmanaged::GainsRights)),
            Kind::Elf => Some(self.judge_elf(&head)),
            _ => None,
        }
    }

    /// A 64-bit ELF file of this beginning.
    fn judge_elf(&self, head: &[u8; HEAD]) -> Program {
        let (mut names_loader, mut is_go) = (false, false);
        for part in self.parts(head) {
            match part.kind {
                libc::PT_INTERP => names_loader = true,
                libc::PT_NOTE => is_go |= self.has_go_note(&part),
                _ => {}
            }
        }
        match (names_loader || self.is_loader, is_go) {
            (false, _) => Program::Unmanaged(Unmanaged::Static),
            (true, true) => Program::Go,
            (true, false) => Program::Other,
        }
    }

    fn has_go_note(&self, part: &Part) -> bool {
        let mut notes = [0u8; NOTES];
        let n = self.read(part.at, &mut notes[..part.len.min(NOTES)]);
        go::has_note(&notes[..n])
    }

    /// What the headers of a 64-bit ELF file of this beginning say, as far as they can be read.
    fn parts<'f>(&'f self, head: &'f [u8; HEAD]) -> impl Iterator<Item = Part> + 'f {
        let half = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
        let (at, size, n) = (word(head, 32), half(54), half(56));
        (0..n).filter_map(move |i| {
            let mut header = [0u8; size_of::<libc::Elf64_Phdr>()];
            let read = self.read(at.checked_add(i * size)?, &mut header);
            (read == header.len()).then(|| Part {
                kind: word(&header, 0) as u32,
                at: word(&header, 8),
                len: word(&header, 32),
            })
        })
    }
}

/// A part of an ELF file, as its header says.
struct Part {
    kind: u32,
    at: usize,
    len: usize,
}

fn word(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i])) as usize
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

    /// With a loader's name, and a note behind the headers.
    fn elf(is_go: bool) -> vec::Vec<u8> {
        let name: &[u8] = if is_go { b"Go\0\0" } else { b"GNU\0" };
        let note = [&[4u32, 8, 4].map(u32::to_le_bytes).concat(), name, &[7; 8]].concat();
        let mut file = vec![0u8; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32..40].copy_from_slice(&64u64.to_le_bytes());
        file[54..58].copy_from_slice(&[56, 0, 2, 0]);
        for (kind, at, len) in [(libc::PT_INTERP, 0, 0), (libc::PT_NOTE, 176, note.len())] {
            let mut header = [0u8; 56];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&u64::to_le_bytes(at));
            header[32..40].copy_from_slice(&(len as u64).to_le_bytes());
            file.extend(header);
        }
        [file, note].concat()
    }

    #[test]
    fn programs_are_judged_by_their_files() {
        let judge = |path: &[u8]| {
            let path = CString::new(path).unwrap();
            File::open(libc::AT_FDCWD, path.as_ptr().cast(), 0).map(|f| f.judge())
        };
        assert_eq!(judge(b"/bin/sh"), Some(Program::Other));
        assert_eq!(judge(b"/nowhere"), None);
        assert_eq!(judge(b"/"), None);
        // A writer that waits would be let go of.
        let fifo = std::env::temp_dir().join(format!("hugeswap-fifo-{}", std::process::id()));
        let name = CString::new(fifo.as_os_str().as_bytes()).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o755) }, 0);
        assert_eq!(judge(fifo.as_os_str().as_bytes()), None);
        fs::remove_file(fifo).unwrap();
        let path = std::env::temp_dir().join(format!("hugeswap-exec-{}", std::process::id()));
        let script = path.with_extension("script");
        let mut fixed = vec![0u8; 64];
        fixed[..6].copy_from_slice(b"\x7fELF\x02\x01");
        fs::write(&path, fixed).unwrap();
        fs::write(&script, format!("#!{} -x\n", path.display())).unwrap();
        // Nothing that could be run.
        assert_eq!(judge(path.as_os_str().as_bytes()), Some(Program::Other));
        for p in [&path, &script] {
            fs::set_permissions(p, fs::Permissions::from_mode(0o755)).unwrap();
            let judged = judge(p.as_os_str().as_bytes());
            let is_static = Program::Unmanaged(Unmanaged::Static);
            assert_eq!(judged, Some(is_static), "{p:?}");
        }
        fs::write(&path, elf(true)).unwrap();
        for p in [&path, &script] {
            assert_eq!(judge(p.as_os_str().as_bytes()), Some(Program::Go), "{p:?}");
        }
        fs::write(&path, elf(false)).unwrap();
        assert_eq!(judge(path.as_os_str().as_bytes()), Some(Program::Other));
        fs::remove_file(path).unwrap();
        fs::remove_file(script).unwrap();
    }
}
