//! Which pages a program touches: made up by a pattern, or read from a file.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use crate::pattern::{Pages, Pattern, Step};

/// Of 2 MiB.
pub const RANGE_PAGES: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Name {
    /// Begin to end, again and again
    Scan,
    /// Pages with equal chances
    Random,
    /// Zipfian pages, 0.99
    Zipf,
    /// Zipfian pages, and a scan through everything now and then
    ZipfScan,
    /// A hot quarter, and scans through everything
    HotScan,
    /// Two fifths of the data are hot, and others each round
    Shift,
    /// The same, walked through from begin to end, five times
    WalkShift,
    /// Strides, up and down
    Stride,
    /// A walk, random pages, another hot set each round
    Phases,
}

/// What a program does with its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Touch {
        page: u32,
        thread: u16,
        write: bool,
    },
    /// Pages that are given back: they are zeros when they are touched again.
    Free {
        first: u32,
        count: u32,
    },
}

/// The first `warm` events fill memory and do not count.
pub struct Trace {
    pub name: String,
    pub events: Vec<Event>,
    pub warm: usize,
    pub pages: usize,
}

/// How files begin: of traces, and of faults that a run has recorded.
const MAGIC: &str = "hugeswap-trace 1 ";
const FAULTS: &str = "hugeswap-faults 1\n";
/// Of all recorded faults, a process that has less than this part is left out.
const PART: usize = 50;
/// More pages than that are not believed: 1 TiB. And no address is beyond this page.
const PAGES_MAX: usize = 1 << 28;
const PAGE_LAST: u64 = 1 << 52;

impl Trace {
    /// Everything is written once, and read after that.
    pub fn of(name: Name, pages: u64, rounds: u64) -> Trace {
        let hot_quarter = |round| {
            let legs = Pattern::Phases.legs(pages, 8 * pages, 0);
            Pages::new(legs[2..].to_vec(), pages, round)
        };
        let mut touches: Vec<u32> = (0..pages as u32).collect();
        for round in 0..rounds {
            let mut go = |pattern: Pattern| {
                let legs = pattern.legs(pages, 2 * pages, round);
                touches.extend(Pages::new(legs, pages, round).map(|p| p as u32));
            };
            let zipf = Pattern::Zipf { theta: 0.99 };
            match name {
                Name::Scan => go(Pattern::Sequential),
                Name::Random => go(Pattern::Uniform),
                Name::Zipf => go(zipf),
                Name::ZipfScan if round % 4 == 3 => go(Pattern::Sequential),
                Name::ZipfScan => go(zipf),
                Name::HotScan => {
                    touches.extend(hot_quarter(round).map(|p| p as u32));
                    touches.extend(0..pages as u32);
                }
                Name::Shift => {
                    let len = pages * 2 / 5;
                    let hot = Step::Uniform {
                        first: round % 3 * (pages - len) / 2,
                        len,
                    };
                    let legs = vec![(hot, 2 * pages)];
                    touches.extend(Pages::new(legs, pages, round).map(|p| p as u32));
                }
                Name::WalkShift => {
                    let len = pages as u32 * 2 / 5;
                    let first = (round % 3) as u32 * (pages as u32 - len) / 2;
                    for _ in 0..5 {
                        touches.extend(first..first + len);
                    }
                }
                Name::Stride => go(Pattern::Stride),
                Name::Phases => go(Pattern::Phases),
            }
        }
        let touch = |(at, page)| Event::Touch {
            page,
            thread: 0,
            write: at < pages as usize,
        };
        Trace {
            name: clap::ValueEnum::to_possible_value(&name)
                .map_or_else(String::new, |v| v.get_name().to_owned()),
            events: touches.into_iter().enumerate().map(touch).collect(),
            warm: pages as usize,
            pages: pages as usize,
        }
    }

    /// What is in a file: a trace as docs/traces.md describes it or recorded faults, compressed or not, or text with one page
    /// number in each line. Of recorded faults each process that had many is a trace of its own.
    pub fn read(file: &Path) -> Result<Vec<Trace>, String> {
        let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
        let bytes = content(file).map_err(|e| fail(&e))?;
        let name = file
            .file_name()
            .unwrap_or(file.as_os_str())
            .to_string_lossy();
        let name = name.trim_end_matches(".zst").trim_end_matches(".trace");
        let trace = |name: String, (events, pages)| Trace {
            name,
            events,
            warm: 0,
            pages,
        };
        let all = if let Some(rest) = bytes.strip_prefix(FAULTS.as_bytes()) {
            let found = recorded(rest).map_err(|e| fail(&e))?;
            let each = found.into_iter();
            each.map(|(id, found)| trace(format!("{name}, process {id}"), found))
                .collect()
        } else if let Some(rest) = bytes.strip_prefix(MAGIC.as_bytes()) {
            vec![trace(name.to_owned(), packed(rest).map_err(|e| fail(&e))?)]
        } else {
            let found = text(&bytes).map_err(|(line, e)| fail(&format!("{line}: {e}")))?;
            vec![trace(name.to_owned(), found)]
        };
        match all.iter().all(|trace: &Trace| trace.pages == 0) {
            true => Err(fail(&"no page numbers")),
            false => Ok(all),
        }
    }

    pub fn touches(&self) -> u64 {
        let counted = &self.events[self.warm..];
        let is_touch = |e: &&Event| matches!(e, Event::Touch { .. });
        counted.iter().filter(is_touch).count() as u64
    }

    /// As numbers, for rules that know neither threads nor what is given back: a page that was has another
    /// number when it is touched again.
    pub fn numbers(&self) -> Numbers {
        let mut renamed = HashMap::new();
        let mut pages = self.pages as u32;
        let mut numbers = Vec::with_capacity(self.events.len());
        let mut warm = 0;
        for (at, event) in self.events.iter().enumerate() {
            if at == self.warm {
                warm = numbers.len();
            }
            match *event {
                Event::Touch { page, .. } => {
                    let number = renamed.entry(page).or_insert(Some(page));
                    numbers.push(*number.get_or_insert_with(|| {
                        pages += 1;
                        pages - 1
                    }));
                }
                Event::Free { first, count } => {
                    let freed = first..first.saturating_add(count).min(self.pages as u32);
                    for page in freed {
                        if let Some(number) = renamed.get_mut(&page) {
                            *number = None;
                        }
                    }
                }
            }
        }
        Numbers {
            touches: numbers,
            warm,
            pages: pages as usize,
        }
    }

    /// The most pages that it has at a time.
    pub fn need(&self) -> usize {
        let mut live = vec![false; self.pages];
        let (mut now, mut most) = (0_usize, 0);
        for event in &self.events {
            match *event {
                Event::Touch { page, .. } => {
                    now += usize::from(!std::mem::replace(&mut live[page as usize], true));
                    most = most.max(now);
                }
                Event::Free { first, count } => {
                    for page in &mut live[first as usize..(first + count) as usize] {
                        now -= usize::from(std::mem::take(page));
                    }
                }
            }
        }
        most
    }
}

/// A trace as numbers of pages, or of ranges; the first `warm` do not count.
#[derive(Clone)]
pub struct Numbers {
    pub touches: Vec<u32>,
    pub warm: usize,
    /// All numbers are below this.
    pub pages: usize,
}

impl Numbers {
    /// In ranges. Touches of one range that follow each other are one: what is resident stays so meanwhile.
    pub fn in_ranges(&self) -> Numbers {
        let of = |part: &[u32]| {
            let mut ranges: Vec<u32> = part.iter().map(|p| p / RANGE_PAGES as u32).collect();
            ranges.dedup();
            ranges
        };
        let (before, rest) = self.touches.split_at(self.warm);
        let mut touches = of(before);
        let warm = touches.len();
        touches.extend(of(rest));
        Numbers {
            touches,
            warm,
            pages: self.pages.div_ceil(RANGE_PAGES),
        }
    }
}

/// Events, and how many pages there are.
type Found = (Vec<Event>, usize);

fn content(file: &Path) -> io::Result<Vec<u8>> {
    let mut input = BufReader::new(File::open(file)?);
    let compressed = input.fill_buf()?.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
    let mut bytes = Vec::new();
    match compressed {
        true => zstd::Decoder::new(input)?.read_to_end(&mut bytes)?,
        false => input.read_to_end(&mut bytes)?,
    };
    Ok(bytes)
}

fn text(bytes: &[u8]) -> Result<Found, (usize, String)> {
    let mut events = Vec::new();
    let mut pages = 0;
    for (i, line) in bytes.lines().enumerate() {
        let line = line.map_err(|e| (i + 1, e.to_string()))?;
        let page: u32 = line
            .trim()
            .parse()
            .ok()
            .filter(|p| (*p as usize) < PAGES_MAX)
            .ok_or_else(|| (i + 1, format!("'{line}' is not a page number")))?;
        pages = pages.max(page as usize + 1);
        events.push(Event::Touch {
            page,
            thread: 0,
            write: false,
        });
    }
    Ok((events, pages))
}

/// What follows the magic: the number of pages, a new line, and records.
fn packed(bytes: &[u8]) -> io::Result<Found> {
    let mut input = bytes;
    let mut line = String::new();
    input.by_ref().take(20).read_line(&mut line)?;
    let pages: usize = line
        .trim_end()
        .parse()
        .ok()
        .filter(|pages| *pages <= PAGES_MAX)
        .ok_or_else(|| wrong("no number of pages in its first line"))?;
    let mut events = Vec::new();
    records(input, pages as u64, |event| {
        events.push(match event {
            Record::Touch(page, thread, write) => Event::Touch {
                page: page as u32,
                thread: thread.min(u64::from(u16::MAX)) as u16,
                write,
            },
            Record::Free(first, count) => Event::Free {
                first: first as u32,
                count: count.min(pages as u64 - first) as u32,
            },
        })
    })
    .map_err(wrong)?;
    Ok((events, pages))
}

/// As it is written: page and thread have any numbers.
enum Record {
    Touch(u64, u64, bool),
    Free(u64, u64),
}

/// Goes through records of pages below `pages`.
fn records(mut input: &[u8], pages: u64, mut each: impl FnMut(Record)) -> Result<(), &'static str> {
    const CUT: &str = "a record is cut off";
    let (mut at, mut thread) = (0_u64, 0);
    while !input.is_empty() {
        let record = number(&mut input).ok_or(CUT)?;
        let n = record >> 2;
        let page = at.wrapping_add(n >> 1 ^ (n & 1).wrapping_neg());
        if record & 3 == 2 {
            thread = n;
            continue;
        }
        if page >= pages {
            return Err("a page beyond the number of pages");
        }
        if record & 3 == 3 {
            each(Record::Free(page, number(&mut input).ok_or(CUT)?));
            continue;
        }
        at = page;
        each(Record::Touch(page, thread, record & 3 == 1));
    }
    Ok(())
}

/// Blocks of the processes of a run: whose, how many bytes, and records of addresses. Of a block that is not
/// complete, because the run was ended meanwhile, nothing is taken.
fn recorded(mut input: &[u8]) -> io::Result<Vec<(u64, Found)>> {
    let mut of = BTreeMap::<u64, Vec<(u64, u64, bool)>>::new();
    while !input.is_empty() {
        let head = number(&mut input).zip(number(&mut input));
        let Some((id, block)) = head.and_then(|(id, len)| Some((id, input.get(..len as usize)?)))
        else {
            break;
        };
        input = &input[block.len()..];
        let faults = of.entry(id).or_default();
        records(block, PAGE_LAST, |record| {
            if let Record::Touch(page, thread, write) = record {
                faults.push((page, thread, write));
            }
        })
        .map_err(wrong)?;
    }
    let all: usize = of.values().map(Vec::len).sum();
    let mut of: Vec<_> = of
        .into_iter()
        .filter(|(_, f)| f.len() * PART >= all)
        .collect();
    of.sort_by_key(|(_, faults)| std::cmp::Reverse(faults.len()));
    Ok(of
        .into_iter()
        .map(|(id, faults)| (id, dense(&faults)))
        .collect())
}

/// Numbers ranges and threads anew, as docs/traces.md says. The first fault on a page counts as a write: later writes to a
/// page that is resident make no fault, and a page that is never written to would be zeros in the replay, which are never read.
fn dense(faults: &[(u64, u64, bool)]) -> Found {
    let ranges: BTreeSet<u64> = faults
        .iter()
        .map(|(page, ..)| page / RANGE_PAGES as u64)
        .collect();
    let mut numbers = HashMap::new();
    let (mut next, mut last) = (0, None);
    for range in ranges {
        next += u32::from(last.is_some_and(|last| last + 1 != range));
        numbers.insert(range, next);
        (next, last) = (next + 1, Some(range));
    }
    let mut threads = HashMap::new();
    let mut known_pages = HashSet::new();
    let event = |&(page, thread, write): &(u64, u64, bool)| {
        let known = threads.len() as u16;
        let range = numbers[&(page / RANGE_PAGES as u64)];
        Event::Touch {
            page: range * RANGE_PAGES as u32 + (page % RANGE_PAGES as u64) as u32,
            thread: *threads.entry(thread).or_insert(known),
            write: known_pages.insert(page) || write,
        }
    };
    (
        faults.iter().map(event).collect(),
        next as usize * RANGE_PAGES,
    )
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// An unsigned LEB128 number.
fn number(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = input.split_first()?;
        *input = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn file(name: &str, bytes: &[u8]) -> std::path::PathBuf {
        let name = format!("hugeswap-{}-{name}", std::process::id());
        let file = std::env::temp_dir().join(name);
        fs::write(&file, bytes).unwrap();
        file
    }

    fn read_all(name: &str, bytes: &[u8]) -> Result<Vec<Trace>, String> {
        let file = file(name, bytes);
        let traces = Trace::read(&file);
        fs::remove_file(&file).unwrap();
        traces
    }

    fn read(name: &str, bytes: &[u8]) -> Result<Trace, String> {
        read_all(name, bytes).map(|mut all| all.remove(0))
    }

    #[test]
    fn text_has_a_page_in_each_line() {
        let trace = read("text", b"0\n513\n 514\n0\n").unwrap();
        assert_eq!((trace.pages, trace.touches()), (515, 4));
        assert_eq!(trace.numbers().in_ranges().touches, [0, 1, 0]);
        assert!(read("text", b"0\nx\n").is_err_and(|e| e.contains(": 2: 'x'")));
        assert!(read("text", b"").is_err());
    }

    /// Page 1000 written, 999 read by thread 3, both given back, 1000 touched again.
    const PACKED: &[u8] = b"hugeswap-trace 1 1024\n\xc1\x3e\x0e\x04\x03\x02\x08";
    const EVENTS: [Event; 4] = [
        touch(1000, 0, true),
        touch(999, 3, false),
        Event::Free {
            first: 999,
            count: 2,
        },
        touch(1000, 3, false),
    ];
    const fn touch(page: u32, thread: u16, write: bool) -> Event {
        Event::Touch {
            page,
            thread,
            write,
        }
    }

    #[test]
    fn records_are_read_compressed_or_not() {
        let plain = read("plain", PACKED).unwrap();
        assert_eq!((plain.pages, &plain.events[..]), (1024, &EVENTS[..]));
        let packed = zstd::encode_all(PACKED, 3).unwrap();
        assert_eq!(read("packed.trace.zst", &packed).unwrap().events, EVENTS);
        // What is given back is another page when it is touched again.
        let numbers = plain.numbers();
        assert_eq!(
            (&numbers.touches[..], numbers.pages),
            (&[1000, 999, 1024][..], 1025)
        );
        assert_eq!(plain.need(), 2);
    }

    /// Two blocks of process 4, by threads 3 and 5, and one of process 9; the last is not complete.
    #[test]
    fn recorded_faults_are_a_trace_for_each_process() {
        let bytes = b"hugeswap-faults 1\n\x04\x05\x0e\xc1\x3e\x04\x00\x09\x02\x0a\x00\x04\x03\x16\xc0\x7e\x04\x09\x00";
        let all = read_all("faults", bytes).unwrap();
        assert_eq!(all.len(), 2);
        assert!(all[0].name.ends_with("process 4"), "{}", all[0].name);
        // Page 1000 of range 1; 999 twice; and 2024 of range 3, which is not beside it.
        let expected = [
            touch(488, 0, true),
            touch(487, 0, true),
            touch(487, 0, false),
            touch(1024 + 488, 1, true),
        ];
        assert_eq!(
            (&all[0].events[..], all[0].pages),
            (&expected[..], 3 * RANGE_PAGES)
        );
        assert_eq!(all[1].events, [touch(0, 0, true)]);
    }

    #[test]
    fn what_is_no_trace_is_told() {
        for (bytes, what) in [
            (&PACKED[..PACKED.len() - 2], "cut off"),
            (b"hugeswap-trace 1 9\n\xc1\x3e", "beyond"),
            (b"hugeswap-trace 1 many\n", "first line"),
            (b"hugeswap-trace 1 99999999999\n", "first line"),
            (b"\x28\xb5\x2f\xfd nothing", ""),
        ] {
            let told = read("wrong", bytes).err().unwrap_or_default();
            assert!(!told.is_empty() && told.contains(what), "{told}");
        }
    }
}
