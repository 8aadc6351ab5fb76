//! Putting pages that were in swap into a core file.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use hugeswap_mm::{SwapEntry, PAGE_SIZE, PMD_SIZE};
use hugeswap_seal::{self as seal, Key, Mode, Nonce, Tag, Unwrap};
use hugeswap_vma::dump::{Memory, Source, Tables, Unreadable};
use hugeswap_zpool as zpool;

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

/// Opens what a dead process has sealed.
pub struct Opener<'t> {
    tables: &'t Tables<'t, CoreFile>,
    mode: Mode,
    unwrap: Unwrap,
    /// By generation, as far as they were needed.
    keys: BTreeMap<usize, Option<Key>>,
}

impl<'t> Opener<'t> {
    pub fn new(tables: &'t Tables<'t, CoreFile>, mode: Mode, unwrap: Unwrap) -> Opener<'t> {
        Opener {
            tables,
            mode,
            unwrap,
            keys: BTreeMap::new(),
        }
    }

    /// Opens pages that were read from slot `first` on.
    fn open(
        &mut self,
        bytes: &mut [u8],
        first: SwapEntry,
        sealed: &[(Nonce, Tag)],
    ) -> Result<(), String> {
        let pages = bytes.chunks_exact_mut(PAGE_SIZE);
        for (i, (page, (nonce, tag))) in pages.zip(sealed).enumerate() {
            let page = page.try_into().map_err(|_| "no whole page")?;
            let generation = nonce.generation();
            let (tables, unwrap) = (self.tables, self.unwrap);
            let known = self.keys.entry(generation);
            let key = known.or_insert_with(|| tables.key(unwrap, generation));
            let key = key.as_ref().ok_or("its key is not known")?;
            let at = first.checked_add(i as u64).ok_or("no such slot")?;
            seal::open(self.mode, key, at, *nonce, tag, page)
                .map_err(|_| "swap does not have what was written there")?;
        }
        Ok(())
    }
}

/// Completes a core file. `devices` by their numbers.
pub fn fill(
    core: &CoreFile,
    tables: &Tables<'_, CoreFile>,
    mut opener: Opener<'_>,
    devices: &[File],
) -> Result<Filled, Unreadable> {
    let mut filled = Filled::default();
    let mut buffer = Buffer::new();
    let mut decoder = zpool::Decoder::new().map_err(|_| Unreadable::Cut)?;
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
            let mut from = From {
                core,
                opener: &mut opener,
                decoder: &mut decoder,
                devices,
            };
            one(&mut from, &hole, source, &mut buffer, &mut filled);
        }
    })?;
    Ok(filled)
}

/// What pages come from.
struct From<'f, 't> {
    core: &'f CoreFile,
    opener: &'f mut Opener<'t>,
    decoder: &'f mut zpool::Decoder,
    devices: &'f [File],
}

/// A source from so many bytes on.
struct Part<'s> {
    source: &'s Source,
    skip: u64,
}

impl Part<'_> {
    fn read(&self, from: &mut From<'_, '_>, into: &mut [u8]) -> Result<(), String> {
        match self.source {
            Source::Memory(at) => match from.core.read(at.saturating_add(self.skip), into) {
                true => Ok(()),
                false => Err("the file is cut".into()),
            },
            Source::Object(at, bytes) => {
                let into = into.try_into().map_err(|_| "no whole page")?;
                let mut object = [0; zpool::OBJECT_MAX];
                let object = &mut object[..*bytes];
                if *at == 0 || !from.core.read(*at, object) {
                    return Err("the file is cut".into());
                }
                zpool::open_object(object, into, from.decoder)
                    .map_err(|_| "compressed memory does not have what was stored there")?;
                Ok(())
            }
            Source::Slot(entry, sealed) => {
                let device = from
                    .devices
                    .get(entry.device().index())
                    .ok_or("no such device")?;
                device
                    .read_exact_at(into, entry.byte_offset() + self.skip)
                    .map_err(|e| e.to_string())?;
                let skip = self.skip / PAGE_SIZE as u64;
                let first = entry.checked_add(skip).ok_or("no such slot")?;
                let sealed = sealed.get(skip as usize..).unwrap_or_default();
                if sealed.len() * PAGE_SIZE < into.len() {
                    return Err("no such slot".into());
                }
                from.opener.open(into, first, sealed)
            }
        }
    }
}

fn one(
    from: &mut From<'_, '_>,
    hole: &Hole,
    source: Part<'_>,
    buffer: &mut Buffer,
    filled: &mut Filled,
) {
    let into = buffer.first(hole.bytes as usize);
    let pages = (into.len() / PAGE_SIZE) as u64;
    let done = source.read(from, into);
    match done.and_then(|()| from.core.fill(hole, into).map_err(|e| e.to_string())) {
        Ok(()) => filled.pages += pages,
        Err(_) if pages > 1 => {
            // All of it that can be had.
            for page in hole.pages() {
                let part = Part {
                    source: source.source,
                    skip: source.skip + (page.at - hole.at),
                };
                one(from, &page, part, buffer, filled);
            }
        }
        Err(e) => filled.miss(1, || e),
    }
}
