//! Reading `/proc/self/maps` without the C library's streams.

use crate::window::Extents;
use hugeswap::engine::{Engine, Stretch};
use hugeswap::sys::maps::MapsFile;
use hugeswap::sys::{fd, syscall, Errno};

/// One line of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: usize,
    pub end: usize,
    pub prot: i32,
    pub private: bool,
    /// No file, and no name but one that the program gave it (PR_SET_VMA_ANON_NAME).
    pub anonymous: bool,
}

pub fn parse(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (s, e) = words.next()?.split_once('-')?;
    let perms = words.next()?.as_bytes();
    let bit = |i: usize, c: u8, p: i32| if perms.get(i) == Some(&c) { p } else { 0 };
    let inode = words.nth(2)?;
    Some(Mapping {
        start: usize::from_str_radix(s, 16).ok()?,
        end: usize::from_str_radix(e, 16).ok()?,
        prot: bit(0, b'r', libc::PROT_READ)
            | bit(1, b'w', libc::PROT_WRITE)
            | bit(2, b'x', libc::PROT_EXEC),
        private: perms.get(3) == Some(&b'p'),
        anonymous: inode == "0" && words.next().is_none_or(|name| name.starts_with("[anon:")),
    })
}

/// The text of `/proc/self/smaps`, as `all_alone`.
pub fn details() -> Result<String, Errno> {
    let text = read_file(c"/proc/thread-self/smaps")?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn read_file(path: &core::ffi::CStr) -> Result<Vec<u8>, Errno> {
    let fd = fd::open(path)?;
    let mut text = Vec::with_capacity(16384);
    let mut buf = [0u8; 4096];
    let result = loop {
        // SAFETY: the buffer is valid for its length.
        let n = unsafe {
            syscall(
                libc::SYS_read,
                [fd as usize, buf.as_mut_ptr() as usize, buf.len()],
            )
        };
        match n {
            Ok(0) => break Ok(text),
            Ok(n) => text.extend_from_slice(&buf[..n]),
            Err(e) => break Err(e),
        }
    };
    fd::close(fd);
    result
}

/// Every mapping of this process, read with a descriptor of this thread's table: for a program of one thread. Others
/// would see it there, or close it, or get another number than the lowest that is free.
pub fn all_alone() -> Result<Vec<Mapping>, Errno> {
    read_file(c"/proc/thread-self/maps").map(|text| parse_all(&text))
}

/// Every mapping of this process. The engine reads them, which has a table of its own.
pub fn all(e: &Engine, bell: usize) -> Result<Vec<Mapping>, Errno> {
    with_room(|text| e.read_maps(bell, text))
}

/// Every mapping of the process whose file it is.
pub fn of(file: MapsFile) -> Result<Vec<Mapping>, Errno> {
    with_room(|text| file.read(text))
}

fn with_room(read: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<Mapping>, Errno> {
    let mut text = vec![0; 64 << 10];
    loop {
        let n = read(&mut text)?;
        if n < text.len() {
            return Ok(parse_all(&text[..n]));
        }
        text.resize(2 * n, 0);
    }
}

fn parse_all(text: &[u8]) -> Vec<Mapping> {
    String::from_utf8_lossy(text)
        .lines()
        .filter_map(parse)
        .collect()
}

/// What of the stretches no mapping is at.
pub fn missing(stretches: impl Iterator<Item = Stretch>, mappings: &[Mapping]) -> Vec<Stretch> {
    let mut rest = Extents::new();
    for (from, to) in stretches {
        rest.insert(from, to);
    }
    for m in mappings {
        rest.remove(m.start, m.end);
    }
    rest.iter().collect()
}

/// Where nothing is mapped. A call that fails late may have unmapped what it was to replace.
pub fn holes(e: &Engine, bell: usize, (start, end): Stretch) -> Vec<Stretch> {
    let args = [start, end - start, libc::MS_ASYNC as usize];
    // SAFETY: anonymous memory has nothing to be written; what is shared is written anyhow.
    if unsafe { syscall(libc::SYS_msync, args) } != Err(Errno::ENOMEM) {
        return vec![];
    }
    // Where it can't be had nothing is known to be gone.
    all(e, bell).map_or(vec![], |all| missing([(start, end)].into_iter(), &all))
}

/// The protection of the mapping that holds `addr`.
pub fn protection(e: &Engine, bell: usize, addr: usize) -> Result<i32, Errno> {
    let mut all = all(e, bell)?.into_iter();
    all.find(|m| m.start <= addr && addr < m.end)
        .map(|m| m.prot)
        .ok_or(Errno::EFAULT)
}

/// Whether this process has one thread only.
pub fn is_single_threaded() -> bool {
    let stat = read_file(c"/proc/self/stat").unwrap_or_default();
    let text = String::from_utf8_lossy(&stat);
    // The name in parentheses may hold anything; the 18th word after it is the thread count.
    text.rsplit_once(')')
        .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(17)?.parse::<u32>().ok())
        == Some(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let m = parse("7f00-8f00 rw-p 00000000 00:00 0 ").unwrap();
        assert_eq!((m.start, m.end, m.prot), (0x7f00, 0x8f00, 3));
        assert!(m.private && m.anonymous);
        assert!(
            parse("7f00-8f00 rw-p 00000000 00:00 0   [anon: glibc: malloc]")
                .unwrap()
                .anonymous
        );
        assert!(
            !parse("7f00-8f00 rw-p 00000000 00:00 0   [heap]")
                .unwrap()
                .anonymous
        );
        assert!(
            !parse("7f00-8f00 r-xs 00000000 08:00 55 /bin/x")
                .unwrap()
                .private
        );
        assert!(parse("").is_none());
        assert!(!all_alone().unwrap().is_empty());
    }
}
