//! Where a file's pages are, and moving them.
//!
//! `move_pages` acts on what is in a page table. So a part of the file is
//! mapped, the pages that `mincore` finds in the page cache are entered into
//! our page table, asked for, moved, and unmapped again. Nothing is read from a disk, unless a page leaves the
//! cache between the two steps: such reads show as major faults and are
//! counted. The pages' marks of age stay as they were (`sys::Mapping`).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use serde::Serialize;

use crate::page::BLOCK_PAGES;
pub use crate::sys::Mapped;
use crate::sys::{self, Mapping};

/// Why folios stayed where they were; in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Failed {
    /// Locked, under writeback, or held by somebody.
    pub busy: u64,
    /// The node had no memory for it.
    pub no_memory: u64,
    /// Truncated, or evicted meanwhile.
    pub gone: u64,
    /// Mapped by others, and we may not move such.
    pub not_permitted: u64,
    pub other: u64,
}

impl Failed {
    fn count(&mut self, status: i32, pages: u64) {
        *match -status {
            libc::EBUSY | libc::EAGAIN => &mut self.busy,
            libc::ENOMEM => &mut self.no_memory,
            libc::ENOENT | libc::EFAULT => &mut self.gone,
            libc::EACCES | libc::EPERM => &mut self.not_permitted,
            _ => &mut self.other,
        } += pages;
    }

    pub fn add(&mut self, other: Failed) {
        self.busy += other.busy;
        self.no_memory += other.no_memory;
        self.gone += other.gone;
        self.not_permitted += other.not_permitted;
        self.other += other.other;
    }

    pub fn sum(&self) -> u64 {
        self.busy + self.no_memory + self.gone + self.not_permitted + self.other
    }
}

/// A folio that `move_pages` takes as a whole, named by a page of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folio {
    /// Page of the window.
    pub page: usize,
    pub pages: u64,
}

/// Pages of those folios that are marked.
pub fn sum_where(folios: &[Folio], which: &[bool]) -> u64 {
    folios
        .iter()
        .zip(which)
        .filter(|(_, &which)| which)
        .map(|(folio, _)| folio.pages)
        .sum()
}

/// A part of a file.
pub struct Window {
    mapping: Mapping,
    pages: usize,
    /// Reads from a disk that looking has caused: pages evicted meanwhile.
    pub disk_reads: u64,
}

impl Window {
    /// `first` counts pages of the file.
    pub fn open(file: BorrowedFd, first: u64, pages: usize) -> io::Result<Window> {
        Ok(Window {
            mapping: Mapping::new(file, first, pages)?,
            pages,
            disk_reads: 0,
        })
    }

    /// The nodes of the pages in `wanted` that are in the page cache.
    pub fn nodes(&mut self, wanted: &[Range<usize>]) -> io::Result<Vec<(usize, u32)>> {
        let resident = self.mapping.resident()?;
        let pages: Vec<usize> = wanted
            .iter()
            .flat_map(|range| range.start..range.end.min(self.pages))
            .filter(|&page| resident[page] & 1 != 0)
            .collect();
        if pages.is_empty() {
            return Ok(Vec::new());
        }
        let before = sys::major_faults();
        // One page of each 64 KiB: the kernel enters its neighbours too. Then
        // those that it has left out. What can't be entered (truncated,
        // unreadable) has no node; that is all that there is to know.
        let mut seldom = pages.clone();
        seldom.dedup_by_key(|page| *page / BLOCK_PAGES as usize);
        self.mapping.enter(&seldom)?;
        let mut nodes = self.mapping.nodes(&pages)?;
        let missed: Vec<usize> = (0..pages.len()).filter(|&at| nodes[at] < 0).collect();
        if !missed.is_empty() {
            let again: Vec<usize> = missed.iter().map(|&at| pages[at]).collect();
            self.mapping.enter(&again)?;
            for (at, node) in missed.into_iter().zip(self.mapping.nodes(&again)?) {
                nodes[at] = node;
            }
        }
        self.disk_reads += sys::major_faults() - before;
        Ok(pages
            .into_iter()
            .zip(nodes)
            .filter_map(|(page, node)| Some((page, u32::try_from(node).ok()?)))
            .collect())
    }

    /// Moves folios; gives for each whether it is on `to` now.
    pub fn migrate(
        &self,
        folios: &[Folio],
        to: u32,
        mapped: Mapped,
    ) -> io::Result<(Vec<bool>, Failed)> {
        let mut failed = Failed::default();
        let pages: Vec<usize> = folios.iter().map(|folio| folio.page).collect();
        let status = match self.mapping.migrate(&pages, to as i32, mapped) {
            Ok(status) => status,
            // None of them was there any more.
            Err(err) if err.raw_os_error() == Some(libc::ENOENT) => {
                vec![-libc::ENOENT; pages.len()]
            }
            Err(err) if err.raw_os_error() == Some(libc::ENOMEM) => {
                vec![-libc::ENOMEM; pages.len()]
            }
            Err(err) => return Err(err),
        };
        // The status is that of an attempt; where the page is, only asking tells.
        let nodes = self.mapping.nodes(&pages)?;
        let mut moved = Vec::with_capacity(folios.len());
        for ((folio, &status), node) in folios.iter().zip(&status).zip(nodes) {
            let there = node == to as i32;
            moved.push(there);
            if !there {
                let cause = match (status < 0, node < 0) {
                    (_, true) => node,
                    (true, _) => status,
                    // Said to be there, and is elsewhere.
                    _ => -libc::EBUSY,
                };
                failed.count(cause, folio.pages);
            }
        }
        Ok((moved, failed))
    }
}

const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;
const ACTIVE: u64 = 1 << 6;
/// Flags read at once.
const CHUNK: u64 = 64;

/// The kernel's view of page frames. Needs root; without it every page is
/// taken for a folio of its own, which `move_pages` bears.
pub struct Frames {
    pagemap: File,
    flags: File,
    chunk: (u64, [u64; CHUNK as usize]),
}

impl Frames {
    pub fn open() -> io::Result<Frames> {
        Ok(Frames {
            pagemap: File::open("/proc/self/pagemap")?,
            flags: File::open("/proc/kpageflags")?,
            chunk: (u64::MAX, [0; CHUNK as usize]),
        })
    }

    /// What was read of the flags is not true for long.
    fn forget(&mut self) {
        self.chunk.0 = u64::MAX;
    }

    fn flags(&mut self, pfn: u64) -> u64 {
        let start = pfn / CHUNK * CHUNK;
        if self.chunk.0 != start {
            let mut bytes = [0; CHUNK as usize * 8];
            // A frame that can't be read has no flags: a folio of one page.
            let got = self.flags.read_at(&mut bytes, start * 8).unwrap_or(0);
            for (index, word) in bytes.chunks_exact(8).enumerate() {
                let known = (index + 1) * 8 <= got;
                self.chunk.1[index] = match word.try_into() {
                    Ok(word) if known => u64::from_ne_bytes(word),
                    _ => 0,
                };
            }
            self.chunk.0 = start;
        }
        self.chunk.1[(pfn - start) as usize]
    }

    /// The frame of each page of a window, where it is mapped.
    pub fn pfns(&self, window: &Window, pages: &[usize]) -> Vec<Option<u64>> {
        let mut bytes = vec![0; window.pages * 8];
        let offset = window.mapping.vpn(0) * 8;
        let got = self.pagemap.read_at(&mut bytes, offset).unwrap_or(0);
        pages
            .iter()
            .map(|&page| {
                let word = bytes[..got].get(page * 8..page * 8 + 8)?;
                let entry = u64::from_ne_bytes(word.try_into().ok()?);
                let pfn = entry & ((1 << 55) - 1);
                (entry >> 63 == 1 && pfn != 0).then_some(pfn)
            })
            .collect()
    }

    /// The folios that `pages` (ascending) are in, each once.
    pub fn folios(&mut self, window: &Window, pages: &[usize]) -> Vec<Folio> {
        self.forget();
        let pfns = self.pfns(window, pages);
        let mut folios = Vec::new();
        // Frames of the folio that was met last.
        let mut last = 0..0;
        for (&page, pfn) in pages.iter().zip(pfns) {
            let Some(pfn) = pfn else {
                folios.push(Folio { page, pages: 1 });
                continue;
            };
            if last.contains(&pfn) {
                continue;
            }
            let mut head = pfn;
            while self.flags(head) & TAIL != 0 && head > 0 {
                head -= 1;
            }
            let mut end = head + 1;
            if self.flags(head) & HEAD != 0 {
                while self.flags(end) & TAIL != 0 {
                    end += 1;
                }
            }
            last = head..end.max(pfn + 1);
            folios.push(Folio {
                page,
                pages: last.end - last.start,
            });
        }
        folios
    }

    /// Which frames are on the kernel's active list.
    pub fn active(&mut self, pfns: &[u64]) -> Vec<bool> {
        self.forget();
        pfns.iter()
            .map(|&pfn| self.flags(pfn) & ACTIVE != 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    fn file(name: &str, pages: usize) -> (std::path::PathBuf, File) {
        let path =
            std::env::temp_dir().join(format!("hugeswap-place-{name}-{}", std::process::id()));
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        file.write_all(&vec![7; pages * 4096]).unwrap();
        (path, file)
    }

    #[test]
    fn cached_pages_have_a_node_and_others_none() {
        let (path, file) = file("nodes", 64);
        let mut window = Window::open(file.as_fd(), 0, 512).unwrap();
        let nodes = window.nodes(&[0..16, 32..48, 100..120]).unwrap();
        let pages: Vec<usize> = nodes.iter().map(|&(page, _)| page).collect();
        let wanted: Vec<usize> = (0..16).chain(32..48).collect();
        assert_eq!(pages, wanted);
        let known = crate::tiers::nodes().unwrap();
        assert!(nodes.iter().all(|(_, node)| known.contains(node)));
        assert_eq!(window.disk_reads, 0);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_that_shrinks_is_no_signal() {
        let (path, file) = file("shrinks", 64);
        let mut window = Window::open(file.as_fd(), 0, 64).unwrap();
        let all = [0..32, 32..64];
        assert_eq!(window.nodes(&all).unwrap().len(), 64);
        file.set_len(4096).unwrap();
        let folios: Vec<Folio> = (0..64).map(|page| Folio { page, pages: 1 }).collect();
        let node = crate::tiers::nodes().unwrap()[0];
        let (moved, failed) = window.migrate(&folios, node, Mapped::ByUsAlone).unwrap();
        // The page that is left may have been in a large folio, which is
        // split now, and unmapped by that.
        assert!(moved[1..].iter().all(|&moved| !moved));
        assert_eq!(failed.gone + u64::from(moved[0]), 64);
        assert_eq!(window.nodes(&all).unwrap().len(), 1);
        std::fs::remove_file(path).unwrap();
    }
}
