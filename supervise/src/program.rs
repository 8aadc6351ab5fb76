//! Finding the program, and saying why it could not be managed before it is started.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use hugeswap_control::{go, is_loader};

use super::failure::{Failure, EXIT_CANNOT_RUN, EXIT_NOT_FOUND};

/// The file that `name` stands for, as execvp finds it.
pub fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    let not_found = || Failure {
        code: EXIT_NOT_FOUND,
        message: format!("program '{}' was not found", name.to_string_lossy()),
    };
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        if !path.exists() {
            return Err(not_found());
        }
        return check_executable(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let mut denied = None;
    for dir in std::env::split_paths(&path) {
        let file = dir.join(name);
        if file.is_file() {
            match check_executable(file) {
                Ok(f) => return Ok(f),
                Err(e) => denied = Some(e),
            }
        }
    }
    Err(denied.unwrap_or_else(not_found))
}

fn cannot(path: &Path, why: &str) -> Failure {
    Failure {
        code: EXIT_CANNOT_RUN,
        message: format!("'{}' {why}", path.display()),
    }
}

fn check_executable(path: PathBuf) -> Result<PathBuf, Failure> {
    let meta = fs::metadata(&path).map_err(|e| cannot(&path, &format!("can't be run: {e}")))?;
    if meta.is_dir() {
        return Err(cannot(&path, "is a directory"));
    }
    if meta.permissions().mode() & 0o111 == 0 {
        return Err(cannot(&path, "is not executable: 'chmod +x' it"));
    }
    Ok(path)
}

/// The first bytes, with headers and notes; none of what is executable but not readable: exec works, so let it.
fn read_head(file: &Path) -> Vec<u8> {
    let mut head = vec![0u8; 8192];
    let n = File::open(file).and_then(|mut f| f.read(&mut head));
    head.truncate(n.unwrap_or(0));
    head
}

/// Scripts whose interpreter is a script, as far as they are followed.
const SCRIPTS: usize = 3;

/// Refuses what a preloaded library cannot reach: it would run, but unmanaged, above the limit.
pub fn check_manageable(path: &Path) -> Result<(), Failure> {
    let mut file = path.to_path_buf();
    for _ in 0..=SCRIPTS {
        let meta = fs::metadata(&file).map_err(|e| cannot(&file, &format!("can't be run: {e}")))?;
        check_ids(&file, meta.mode(), meta.uid(), meta.gid())?;
        match kind(&read_head(&file)) {
            Kind::Dynamic { interpreter, .. } => {
                if interpreter.windows(4).any(|w| w == b"musl") {
                    return Err(cannot(
                        &file,
                        "uses the musl C library, which hugeswap does not know: it needs glibc 2.34 or later",
                    ));
                }
                return Ok(());
            }
            Kind::Narrow => {
                return Err(cannot(
                    &file,
                    "is a 32-bit program, into which hugeswap cannot be preloaded: use a 64-bit build",
                ))
            }
            Kind::Static if is_loader(file.as_os_str().as_bytes()) => return Ok(()),
            Kind::Static => {
                return Err(cannot(
                    &file,
                    "is statically linked, so hugeswap cannot be preloaded into it: use a dynamically linked build",
                ))
            }
            Kind::Script { interpreter } => file = interpreter,
            Kind::Unknown => return Ok(()),
        }
    }
    Ok(())
}

/// The loader ignores preloading where a program gains rights.
fn check_ids(path: &Path, mode: u32, uid: u32, gid: u32) -> Result<(), Failure> {
    let (me, my_group) = super::sys::ids();
    let gains = mode & 0o4000 != 0 && uid != me || mode & 0o2000 != 0 && gid != my_group;
    if gains {
        return Err(cannot(
            path,
            "is setuid or setgid, so the loader ignores hugeswap: run it as the user it changes to",
        ));
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Dynamic {
        interpreter: Vec<u8>,
        /// Go's linker made it.
        go: bool,
    },
    Static,
    /// ELF of 32 bits.
    Narrow,
    Script {
        interpreter: PathBuf,
    },
    Unknown,
}

fn kind(head: &[u8]) -> Kind {
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&b| b == b'\n').next().unwrap_or_default();
        let mut words = line
            .split(|b| b.is_ascii_whitespace())
            .filter(|w| !w.is_empty());
        let Some(first) = words.next() else {
            return Kind::Unknown;
        };
        let mut interpreter = PathBuf::from(OsString::from_vec(first.to_vec()));
        if interpreter.file_name() == Some(OsStr::new("env")) {
            // What env will look for.
            if let Some(found) = words
                .find(|w| !w.starts_with(b"-") && !w.contains(&b'='))
                .and_then(|w| find(OsStr::from_bytes(w)).ok())
            {
                interpreter = found;
            }
        }
        return Kind::Script { interpreter };
    }
    elf_kind(head).unwrap_or(Kind::Unknown)
}

/// Of a 64-bit little-endian ELF file: whether it names an interpreter.
fn elf_kind(head: &[u8]) -> Option<Kind> {
    let u16_at = |o: usize| Some(u16::from_le_bytes(head.get(o..o + 2)?.try_into().ok()?));
    let u32_at = |o: usize| Some(u32::from_le_bytes(head.get(o..o + 4)?.try_into().ok()?));
    let u64_at = |o: usize| Some(u64::from_le_bytes(head.get(o..o + 8)?.try_into().ok()?));
    if head.get(..5)? == b"\x7fELF\x01" {
        return Some(Kind::Narrow);
    }
    if head.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (phoff, phentsize, phnum) = (
        u64_at(32)? as usize,
        u16_at(54)? as usize,
        u16_at(56)? as usize,
    );
    const PT_INTERP: u32 = 3;
    const PT_NOTE: u32 = 4;
    let part = |at: usize| {
        let (offset, size) = (u64_at(at + 8)? as usize, u64_at(at + 32)? as usize);
        head.get(offset..offset.checked_add(size)?)
    };
    let (mut interpreter, mut go) = (None, false);
    for i in 0..phnum {
        let at = phoff.checked_add(i * phentsize)?;
        match u32_at(at)? {
            PT_INTERP => interpreter = Some(part(at).unwrap_or(b"").to_vec()),
            PT_NOTE => go |= part(at).is_some_and(go::has_note),
            _ => {}
        }
    }
    Some(match interpreter {
        Some(interpreter) => Kind::Dynamic { interpreter, go },
        None => Kind::Static,
    })
}

/// What `GODEBUG` is to tell the program, if that is not what it tells already.
pub fn go_debug(path: &Path, given: Option<OsString>) -> Option<OsString> {
    let given = given.unwrap_or_default();
    let told = go::told(given.as_bytes()).filter(|_| is_go(path, SCRIPTS))?;
    Some(OsString::from_vec(told.concat()))
}

/// Of a script it is the interpreter that counts.
fn is_go(path: &Path, scripts: usize) -> bool {
    match kind(&read_head(path)) {
        Kind::Dynamic { go, .. } => go,
        Kind::Script { interpreter } => scripts > 0 && is_go(&interpreter, scripts - 1),
        Kind::Static | Kind::Narrow | Kind::Unknown => false,
    }
}

const LIBRARY: &str = "libhugeswap_preload.so";

/// The library to preload: beside the command, or where it is installed.
pub fn preload_library() -> Result<PathBuf, Failure> {
    let library = find_library()?;
    // The loader takes LD_PRELOAD apart there, and expands what follows a dollar.
    let cuts = |b: &u8| b.is_ascii_whitespace() || matches!(b, b':' | b'$');
    if library.as_os_str().as_bytes().iter().any(cuts) {
        return Err(Failure::ours(format!(
            "the loader can't preload '{}', because of a space, colon or dollar in its path: \
             put a link to it in a directory without one, and name that in HUGESWAP_PRELOAD",
            library.display()
        )));
    }
    Ok(library)
}

/// Has a process of its own load it: where the loader can't, it only says so and runs programs without.
/// Only before this process has other threads.
pub fn check_library(library: &Path) -> Result<(), Failure> {
    let load = || {
        // It is no program of a run that loads it.
        std::env::remove_var(hugeswap_control::link::ENV);
        super::sys::load(library)
    };
    let ours = |why: String| {
        Failure::ours(format!(
            "the loader can't load '{}': {why}; install it again, or build it for this machine",
            library.display()
        ))
    };
    super::sys::ask_child(load)
        .map_err(|e| match super::tasks::is_refusal(&e) {
            true => super::tasks::refused(e),
            false => ours(e.to_string()),
        })?
        .map_err(ours)
}

fn find_library() -> Result<PathBuf, Failure> {
    if let Some(p) = std::env::var_os("HUGESWAP_PRELOAD") {
        let p = PathBuf::from(p);
        return if p.is_file() {
            // The program may start in another directory.
            std::path::absolute(&p).map_err(|e| Failure::ours(format!("'{}': {e}", p.display())))
        } else {
            Err(Failure::ours(format!(
                "HUGESWAP_PRELOAD names '{}', which is not there",
                p.display()
            )))
        };
    }
    let exe = std::env::current_exe()
        .map_err(|e| Failure::ours(format!("can't find my own file: {e}")))?;
    let dir = exe.parent().unwrap_or(Path::new("/"));
    let places = [
        dir.join(LIBRARY),
        dir.join("../lib/hugeswap").join(LIBRARY),
        dir.join("..").join(LIBRARY),
    ];
    for p in &places {
        if let Ok(p) = p.canonicalize() {
            return Ok(p);
        }
    }
    Err(Failure::ours(format!(
        "{LIBRARY} is not beside '{}': build the whole workspace ('cargo build --release --workspace'), or name the library in HUGESWAP_PRELOAD",
        exe.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_files() {
        let me = fs::read("/proc/self/exe").unwrap();
        assert!(matches!(kind(&me[..4096]), Kind::Dynamic { .. }));
        assert_eq!(
            kind(b"#! /bin/sh -e\necho"),
            Kind::Script {
                interpreter: "/bin/sh".into()
            }
        );
        assert!(matches!(
            kind(b"#!/usr/bin/env -S X=1 sh\n"),
            Kind::Script { interpreter } if interpreter.ends_with("sh")
        ));
        assert_eq!(kind(b""), Kind::Unknown);
        let mut fixed = vec![0u8; 64];
        fixed[..6].copy_from_slice(b"\x7fELF\x02\x01");
        assert_eq!(kind(&fixed), Kind::Static);
        fixed[4] = 1;
        assert_eq!(kind(&fixed), Kind::Narrow);
    }

    #[test]
    fn programs_are_found_as_the_shell_does() {
        assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
        assert_eq!(
            find(OsStr::new("no-such-program")).unwrap_err().code,
            EXIT_NOT_FOUND
        );
        assert_eq!(find(OsStr::new("/")).unwrap_err().code, EXIT_CANNOT_RUN);
        assert_eq!(
            find(OsStr::new("/etc/passwd")).unwrap_err().code,
            EXIT_CANNOT_RUN
        );
    }
}
