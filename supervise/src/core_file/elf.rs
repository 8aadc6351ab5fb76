//! A core file as the memory of a dead process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use hugeswap_mm::PAGE_SIZE;
use hugeswap_vma::dump::Memory;

use hugeswap_host::os;

const PAGE: u64 = PAGE_SIZE as u64;
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SECTION_HEADER: usize = 64;
const ET_CORE: u16 = 4;
const PT_LOAD: u32 = 1;
/// The number of program headers is in the first section header.
const PN_XNUM: u16 = 0xffff;
/// More segments than these are not believed.
const MOST: u32 = 1 << 20;

/// Neighbouring pages of the process that the file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    at: u64,
    bytes: u64,
    offset: u64,
}

pub struct CoreFile {
    file: File,
    bytes: u64,
    /// In the order of their addresses.
    segments: Vec<Segment>,
    /// The file system says which pages are holes.
    says_holes: bool,
}

/// Pages that are in the file, but hold nothing there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    pub at: u64,
    pub bytes: u64,
    offset: u64,
}

impl Hole {
    /// Each page by itself.
    pub fn pages(&self) -> impl Iterator<Item = Hole> {
        let whole = *self;
        (0..whole.bytes / PAGE).map(move |i| Hole {
            at: whole.at + i * PAGE,
            bytes: PAGE,
            offset: whole.offset + i * PAGE,
        })
    }
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from(u16_at(b, at)) | u32::from(u16_at(b, at + 2)) << 16
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u32_at(b, at + 4)) << 32
}

fn is_no_core() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is no core file")
}

impl CoreFile {
    /// Opens a core file, to be read and completed.
    pub fn open(path: &Path) -> io::Result<CoreFile> {
        // The kernel does not follow links there either. Nor must a pipe make us wait.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)?;
        CoreFile::of(file)
    }

    fn of(file: File) -> io::Result<CoreFile> {
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(is_no_core());
        }
        let bytes = meta.len();
        let segments = segments(&file)?;
        // Where a page is less than a block of the file system, it can be in one that is no hole.
        let says_holes = meta.blksize() <= PAGE && os::next_hole(&file, 0)? < bytes;
        Ok(CoreFile {
            file,
            bytes,
            segments,
            says_holes,
        })
    }

    /// Whether the kernel stopped before the end. It ends a whole file with a byte where the last pages
    /// are holes.
    pub fn is_cut(&self) -> bool {
        let end = |s: &Segment| s.offset.saturating_add(s.bytes);
        self.segments.iter().any(|s| end(s) > self.bytes)
    }

    /// When it was written last, in seconds.
    pub fn written(path: &Path) -> Option<i64> {
        let meta = std::fs::symlink_metadata(path).ok()?;
        meta.is_file().then_some(meta.mtime())
    }

    /// The segment that has the address, and how far into it that is.
    fn segment(&self, at: u64) -> Option<(Segment, u64)> {
        let after = self.segments.partition_point(|s| s.at <= at);
        let s = *self.segments.get(after.checked_sub(1)?)?;
        let into = at - s.at;
        (into < s.bytes).then_some((s, into))
    }

    /// Holes among pages of the process; and how many of the pages the file does not have.
    pub fn holes(&self, at: u64, bytes: u64) -> io::Result<(Vec<Hole>, u64)> {
        let mut holes = Vec::new();
        let mut missing = 0;
        let end = at.saturating_add(bytes);
        let mut at = at;
        while at < end {
            let place = self.segment(at).and_then(|(s, into)| {
                let offset = s.offset.checked_add(into)?;
                let room = self.bytes.checked_sub(offset)? / PAGE * PAGE;
                let n = (s.bytes - into).min(end - at).min(room);
                (n >= PAGE).then_some((offset, n))
            });
            let Some((offset, n)) = place else {
                missing += 1;
                at = at.saturating_add(PAGE);
                continue;
            };
            self.holes_between(offset, offset + n, |from, to| {
                holes.push(Hole {
                    at: at + (from - offset),
                    bytes: to - from,
                    offset: from,
                });
            })?;
            at += n;
        }
        Ok((holes, missing))
    }

    fn holes_between(&self, from: u64, end: u64, mut f: impl FnMut(u64, u64)) -> io::Result<()> {
        let mut at = from;
        if self.says_holes {
            while at < end {
                let data = os::next_data(&self.file, at)?.map_or(end, |d| d.min(end));
                // In whole pages: what is not aligned is not the kernel's.
                let hole_end = data / PAGE * PAGE;
                if hole_end > at {
                    f(at, hole_end);
                }
                at = match data < end {
                    true => os::next_hole(&self.file, data)?.next_multiple_of(PAGE),
                    false => end,
                };
            }
            return Ok(());
        }
        let mut page = [0; PAGE_SIZE];
        while at < end {
            self.file.read_exact_at(&mut page, at)?;
            if page.iter().all(|&b| b == 0) {
                f(at, at + PAGE);
            }
            at += PAGE;
        }
        Ok(())
    }

    /// Puts the first of these bytes into the hole, as many as it has.
    pub fn fill(&self, hole: &Hole, bytes: &[u8]) -> io::Result<()> {
        let n = bytes.len().min(hole.bytes as usize);
        self.file.write_all_at(&bytes[..n], hole.offset)
    }
}

impl Memory for CoreFile {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        let (mut at, mut into) = (at, into);
        while !into.is_empty() {
            let Some((s, skip)) = self.segment(at) else {
                return false;
            };
            let n = (s.bytes - skip).min(into.len() as u64) as usize;
            let (now, rest) = into.split_at_mut(n);
            let Some(offset) = s.offset.checked_add(skip) else {
                return false;
            };
            if self.file.read_exact_at(now, offset).is_err() {
                return false;
            }
            into = rest;
            let Some(next) = at.checked_add(n as u64) else {
                return into.is_empty();
            };
            at = next;
        }
        true
    }
}

/// The segments that the file has bytes of.
fn segments(file: &File) -> io::Result<Vec<Segment>> {
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, 0)?;
    // 64 bits, least byte first.
    if header[..6] != *b"\x7fELF\x02\x01" || u16_at(&header, 16) != ET_CORE {
        return Err(is_no_core());
    }
    if usize::from(u16_at(&header, 54)) != PROGRAM_HEADER {
        return Err(is_no_core());
    }
    let count = match u16_at(&header, 56) {
        PN_XNUM => {
            let mut section = [0; SECTION_HEADER];
            file.read_exact_at(&mut section, u64_at(&header, 40))?;
            u32_at(&section, 44)
        }
        n => u32::from(n),
    };
    if count > MOST {
        return Err(is_no_core());
    }
    let mut table = vec![0; count as usize * PROGRAM_HEADER];
    file.read_exact_at(&mut table, u64_at(&header, 32))?;
    let mut all: Vec<Segment> = table
        .chunks_exact(PROGRAM_HEADER)
        .filter(|h| u32_at(h, 0) == PT_LOAD)
        .map(|h| Segment {
            at: u64_at(h, 16),
            bytes: u64_at(h, 32),
            offset: u64_at(h, 8),
        })
        .filter(|s| s.bytes > 0 && [s.at, s.bytes, s.offset].iter().all(|w| w % PAGE == 0))
        .collect();
    all.sort_by_key(|s| s.at);
    let disjoint = |w: &[Segment]| {
        w[0].at
            .checked_add(w[0].bytes)
            .is_some_and(|e| e <= w[1].at)
    };
    if !all.windows(2).all(disjoint) {
        return Err(is_no_core());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn file(name: &str, content: &[u8]) -> (PathBuf, File) {
        let name = format!("hugeswap-elf-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, content).unwrap();
        let f = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        (path, f)
    }

    /// Header and program headers of these segments.
    fn head(segments: &[(u64, u64, u64)]) -> Vec<u8> {
        let mut b = vec![0; HEADER + segments.len() * PROGRAM_HEADER];
        b[..6].copy_from_slice(b"\x7fELF\x02\x01");
        b[16] = ET_CORE as u8;
        b[32] = HEADER as u8;
        b[54] = PROGRAM_HEADER as u8;
        b[56] = segments.len() as u8;
        for (i, (at, bytes, offset)) in segments.iter().enumerate() {
            let h = HEADER + i * PROGRAM_HEADER;
            b[h] = PT_LOAD as u8;
            for (field, word) in [(8, offset), (16, at), (32, bytes)] {
                b[h + field..h + field + 8].copy_from_slice(&word.to_le_bytes());
            }
        }
        b
    }

    fn core(name: &str, content: &[u8]) -> io::Result<CoreFile> {
        let (path, f) = file(name, content);
        let core = CoreFile::of(f);
        std::fs::remove_file(path).unwrap();
        core
    }

    #[test]
    fn reads_go_by_the_segments() {
        // Two that touch, and one that the file has not all of.
        let mut b = head(&[
            (0x10000, 4096, 8192),
            (0x11000, 4096, 4096),
            (0x20000, 8192, 12288),
        ]);
        b.resize(4096, 0);
        b.extend([7; 4096]);
        b.extend([8; 4096]);
        b.extend([9; 4096]);
        let c = core("reads", &b).unwrap();
        assert!(c.is_cut());
        let mut two = [0; 2];
        assert!(c.read(0x10fff, &mut two));
        assert_eq!(two, [8, 7]);
        assert!(c.read(0x20ffe, &mut two) && two == [9, 9]);
        for at in [0x20fff, 0x11fff, 0xffff, u64::MAX] {
            assert!(!c.read(at, &mut two), "{at:x}");
        }
        assert_eq!(c.holes(0x20000, 8192).unwrap(), (vec![], 1));
        assert_eq!(c.holes(u64::MAX - 8191, 8192).unwrap(), (vec![], 2));
    }

    #[test]
    fn only_holes_are_filled() {
        for says_holes in [true, false] {
            let mut b = head(&[(0x10000, 5 * 4096, 4096)]);
            b.resize(4096, 0);
            let (path, f) = file(&format!("holes-{says_holes}"), &b);
            f.write_all_at(&[5; 4096], 2 * 4096).unwrap();
            f.set_len(6 * 4096).unwrap();
            let mut c = CoreFile::of(f).unwrap();
            assert!(c.says_holes);
            c.says_holes = says_holes;
            assert!(!c.is_cut());
            let (holes, missing) = c.holes(0x10000, 5 * 4096).unwrap();
            let pages: u64 = holes.iter().map(|h| h.bytes / PAGE).sum();
            assert_eq!((pages, missing), (4, 0));
            assert!(holes.iter().all(|h| h.at != 0x11000));
            c.fill(&holes[0], &[1; 4096]).unwrap();
            let mut got = [0; 4096 + 1];
            assert!(c.read(holes[0].at, &mut got));
            assert_eq!(got[..4096], [1; 4096]);
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn what_is_no_core_is_refused() {
        assert!(core("empty", b"").is_err());
        assert!(core("text", &[b'x'; 5000]).is_err());
        let good = head(&[(4096, 4096, 4096)]);
        assert!(core("good", &good).is_ok());
        assert!(core("short", &good[..100]).is_err());
        // Segments over each other, and at the end of all addresses.
        for second in [(8192, 4096, 0), (u64::MAX - 4095, 8192, 0)] {
            let bad = head(&[(4096, 8192, 4096), second, second]);
            assert!(core("over", &bad).is_err());
        }
        let mut many = good.clone();
        many[56..58].copy_from_slice(&PN_XNUM.to_le_bytes());
        many[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(core("many", &many).is_err());
        for i in 0..good.len() {
            for v in [0, 1, 0x7f, 0xff] {
                let mut b = good.clone();
                b[i] = v;
                if let Ok(c) = core("any", &b) {
                    let mut page = [0; 4096];
                    let _ = c.read(4096, &mut page);
                    let _ = c.holes(4096, 4096);
                }
            }
        }
    }
}
