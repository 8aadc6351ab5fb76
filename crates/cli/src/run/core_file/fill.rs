//! Putting pages that were in swap into a core file.

use std::fs::File;
use std::os::unix::fs::FileExt;

use hugeswap::dump::{Memory, Source, Tables, Unreadable};
use hugeswap::mm::{PAGE_SIZE, PMD_SIZE};

use super::elf::{CoreFile, Hole};

/// How it went.
#[derive(Debug, Default)]
pub struct Filled {
    pub pages: u64,
    /// Pages that could not be put there.
    pub missing: u64,
    /// Why not, of the first of them.
    pub why: Option<String>,
}

impl Filled {
    fn miss(&mut self, pages: u64, why: impl FnOnce() -> String) {
        self.missing += pages;
        if pages > 0 && self.why.is_none() {
            self.why = Some(why());
        }
    }
}

/// 2 MiB, aligned as direct I/O wants it.
struct Buffer {
    memory: Vec<u8>,
    from: usize,
}

impl Buffer {
    fn new() -> Buffer {
        let memory = vec![0; PMD_SIZE + PAGE_SIZE];
        let from = memory.as_ptr().align_offset(PAGE_SIZE) % PAGE_SIZE;
        Buffer { memory, from }
    }

    fn first(&mut self, bytes: usize) -> &mut [u8] {
        &mut self.memory[self.from..self.from + bytes.min(PMD_SIZE)]
    }
}

/// Completes a core file. `devices` by their numbers.
pub fn fill(
    core: &CoreFile,
    tables: &Tables<'_, CoreFile>,
    devices: &[File],
) -> Result<Filled, Unreadable> {
    let mut filled = Filled::default();
    let mut buffer = Buffer::new();
    tables.for_each(|pmd, pages, source| {
        let at = pmd.page_addr(pages.start) as u64;
        let bytes = (pages.len() * PAGE_SIZE) as u64;
        let holes = match core.holes(at, bytes) {
            Ok((holes, missing)) => {
                filled.miss(missing, || {
                    "the file does not have all of the memory".into()
                });
                holes
            }
            Err(e) => return filled.miss(pages.len() as u64, || e.to_string()),
        };
        for hole in holes {
            let source = Part {
                source: &source,
                skip: hole.at - at,
            };
            one(core, &hole, source, devices, &mut buffer, &mut filled);
        }
    })?;
    Ok(filled)
}

/// A source from so many bytes on.
struct Part<'s> {
    source: &'s Source,
    skip: u64,
}

impl Part<'_> {
    fn read(&self, core: &CoreFile, devices: &[File], into: &mut [u8]) -> Result<(), String> {
        match self.source {
            Source::Memory(at) => match core.read(at.saturating_add(self.skip), into) {
                true => Ok(()),
                false => Err("the file is cut".into()),
            },
            Source::Slot(entry) => {
                let device = devices
                    .get(entry.device().index())
                    .ok_or("no such device")?;
                device
                    .read_exact_at(into, entry.byte_offset() + self.skip)
                    .map_err(|e| e.to_string())
            }
        }
    }
}

fn one(
    core: &CoreFile,
    hole: &Hole,
    source: Part<'_>,
    devices: &[File],
    buffer: &mut Buffer,
    filled: &mut Filled,
) {
    let into = buffer.first(hole.bytes as usize);
    let pages = (into.len() / PAGE_SIZE) as u64;
    let done = source.read(core, devices, into);
    match done.and_then(|()| core.fill(hole, into).map_err(|e| e.to_string())) {
        Ok(()) => filled.pages += pages,
        Err(_) if pages > 1 => {
            // All of it that can be had.
            for page in hole.pages() {
                let part = Part {
                    source: source.source,
                    skip: source.skip + (page.at - hole.at),
                };
                one(core, &page, part, devices, buffer, filled);
            }
        }
        Err(e) => filled.miss(1, || e),
    }
}
