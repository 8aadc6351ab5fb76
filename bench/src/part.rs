//! A thread's part of the memory: every page carries its number and how often it was written.
//!
//! What a page holds is a function of these two and of how far it is to be compressible.

use std::array;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::latency::Latency;
use super::pattern::{Pages, Random};

pub const PAGE_WORDS: usize = 512;
const PAGE: usize = 4096;

/// What pages hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Contents {
    /// Each word is one more than the word before.
    Counting,
    /// One line of 64 bytes in `ratio`, evenly spread, is random numbers, of which a codec saves nothing. The others
    /// are zeros.
    Compressible { ratio: f64 },
}

/// Words of a line of 64 bytes.
const LINE: usize = 8;

impl Contents {
    /// Calls `each` with every word and what it holds.
    #[inline]
    fn zip<W>(self, first: u64, words: impl Iterator<Item = W>, mut each: impl FnMut(W, u64)) {
        match self {
            Contents::Counting => words
                .zip(first..)
                .for_each(|(word, value)| each(word, value)),
            Contents::Compressible { ratio } => {
                let random_before = |line: usize| (line as f64 / ratio) as usize;
                let is_random: [bool; PAGE_WORDS / LINE] =
                    array::from_fn(|line| random_before(line + 1) > random_before(line));
                for (i, (word, value)) in words.zip(first..).enumerate() {
                    match is_random[i / LINE] {
                        true => each(word, scattered(value)),
                        false => each(word, 0),
                    }
                }
            }
        }
    }
}

/// Another number for each number, without any order (SplitMix64, by S. Vigna).
fn scattered(n: u64) -> u64 {
    let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

pub struct Part<'m> {
    contents: Contents,
    words: &'m mut [u64],
    /// Number of the first page among all of the process.
    first: u64,
    /// Of each page, how often it was written.
    generations: Vec<u16>,
}

/// What a round did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Done {
    pub accesses: u64,
    /// Words that did not hold what was written there last.
    pub errors: u64,
    pub latency: Latency,
    /// The sum of what is in `latency`.
    pub waited: Duration,
}

impl<'m> Part<'m> {
    /// `words` are zero, and whole pages.
    pub fn new(words: &'m mut [u64], first: u64, contents: Contents) -> Part<'m> {
        let generations = vec![0; words.len() / PAGE_WORDS];
        Part {
            contents,
            words,
            first,
            generations,
        }
    }

    pub fn pages(&self) -> u64 {
        self.generations.len() as u64
    }

    fn page(&mut self, page: u64) -> (&mut [u64], u64, &mut u16) {
        let at = page as usize;
        (
            &mut self.words[at * PAGE_WORDS..(at + 1) * PAGE_WORDS],
            (self.first + page) * PAGE_WORDS as u64,
            &mut self.generations[at],
        )
    }

    /// Writes every page, once, and does not read.
    pub fn populate(&mut self) -> Done {
        let contents = self.contents;
        for page in 0..self.pages() {
            let (words, number, generation) = self.page(page);
            *generation = 1;
            write(words, first_word(number, 1), contents);
        }
        Done {
            accesses: self.pages(),
            ..Done::default()
        }
    }

    /// Verifies each page, and writes `writes` of a hundred.
    pub fn go(&mut self, pages: Pages, writes: u8, seed: u64) -> Done {
        let contents = self.contents;
        let mut chance = Random::new(seed);
        let mut done = Done::default();
        for page in pages {
            let (words, number, generation) = self.page(page);
            done.accesses += 1;
            done.errors += wrong(words, first_word(number, *generation), contents);
            if writes == 100 || writes > 0 && chance.below(100) < u64::from(writes) {
                *generation = generation.wrapping_add(1);
                write(words, first_word(number, *generation), contents);
            }
        }
        done
    }

    /// Times one read of each page that is not mapped, and verifies the page. Ends after
    /// `accesses` of them.
    pub fn time(&mut self, pages: Pages, accesses: u64) -> io::Result<Done> {
        let contents = self.contents;
        let pagemap = File::open("/proc/self/pagemap")?;
        let mut done = Done::default();
        for page in pages {
            if done.accesses == accesses {
                break;
            }
            let (words, number, generation) = self.page(page);
            if is_mapped(&pagemap, words)? {
                continue;
            }
            let start = Instant::now();
            // The address goes through the box, or the read could be done before the clock's.
            std::hint::black_box(std::hint::black_box(&*words)[0]);
            let took = start.elapsed();
            done.latency.record(took);
            done.waited += took;
            done.accesses += 1;
            done.errors += wrong(words, first_word(number, *generation), contents);
        }
        Ok(done)
    }
}

/// Pages that are in the kernel's swap cache or in our staging are not: touching them is a fault.
fn is_mapped(pagemap: &File, words: &[u64]) -> io::Result<bool> {
    const PRESENT: u32 = 63;
    let mut entry = [0; 8];
    let number = words.as_ptr() as usize / PAGE;
    pagemap.read_exact_at(&mut entry, number as u64 * 8)?;
    Ok(u64::from_ne_bytes(entry) >> PRESENT & 1 != 0)
}

fn first_word(number: u64, generation: u16) -> u64 {
    number ^ u64::from(generation) << 48
}

fn write(words: &mut [u64], first: u64, contents: Contents) {
    contents.zip(first, words.iter_mut(), |word, value| *word = value);
}

fn wrong(words: &[u64], first: u64, contents: Contents) -> u64 {
    let mut unequal = 0;
    contents.zip(first, words.iter(), |word, value| {
        unequal += u64::from(*word != value);
    });
    unequal
}

#[cfg(test)]
mod tests {
    use super::super::pattern::Pattern;
    use super::super::workload::ALL;
    use super::*;

    fn pages(pattern: Pattern, n: u64, accesses: u64, round: u64) -> Pages {
        Pages::new(pattern.legs(n, accesses, round), n, round)
    }

    #[test]
    fn every_workload_verifies_itself() {
        for workload in ALL {
            let mut words = vec![0; 40 * PAGE_WORDS];
            let mut part = Part::new(&mut words, 7, Contents::Counting);
            assert_eq!(part.populate().accesses, 40);
            for round in 1..4 {
                let done = part.go(
                    pages(workload.pattern, 40, 300, round),
                    workload.writes,
                    round,
                );
                assert_eq!((done.accesses, done.errors), (300, 0), "{}", workload.name);
            }
            for page in 0..40 {
                part.words[page * PAGE_WORDS + 17] ^= 1;
            }
            let done = part.go(pages(workload.pattern, 40, 100, 5), workload.writes, 5);
            assert!(done.errors > 0, "{}", workload.name);
        }
    }

    #[test]
    fn an_old_page_and_a_neighbour_show() {
        let mut words = vec![0; 4 * PAGE_WORDS];
        let mut part = Part::new(&mut words, 0, Contents::Counting);
        part.populate();
        let old = part.words[..PAGE_WORDS].to_vec();
        let walk = |part: &mut Part| part.go(pages(Pattern::Sequential, 4, 4, 1), 100, 1).errors;
        assert_eq!(walk(&mut part), 0);
        part.words[..PAGE_WORDS].copy_from_slice(&old);
        assert_eq!(walk(&mut part), PAGE_WORDS as u64);
        let neighbour = part.words[PAGE_WORDS..2 * PAGE_WORDS].to_vec();
        part.words[..PAGE_WORDS].copy_from_slice(&neighbour);
        assert_eq!(walk(&mut part), PAGE_WORDS as u64);
    }

    /// A third of the bytes is left by a codec that drops the zeros, and no other page would pass for this one.
    #[test]
    fn compressible_contents() {
        let contents = Contents::Compressible { ratio: 3.0 };
        let mut words = vec![0; 4 * PAGE_WORDS];
        let mut part = Part::new(&mut words, 0, contents);
        part.populate();
        let lines = part.words[..PAGE_WORDS].chunks(LINE);
        let random = lines.clone().filter(|line| line.iter().all(|w| *w != 0));
        assert_eq!(random.count(), PAGE_WORDS / LINE / 3);
        let zero = lines.filter(|line| line.iter().all(|w| *w == 0));
        assert_eq!(zero.count(), PAGE_WORDS / LINE - PAGE_WORDS / LINE / 3);
        let walk = |part: &mut Part| part.go(pages(Pattern::Sequential, 4, 4, 1), 100, 1).errors;
        assert_eq!(walk(&mut part), 0);
        let neighbour = part.words[PAGE_WORDS..2 * PAGE_WORDS].to_vec();
        part.words[..PAGE_WORDS].copy_from_slice(&neighbour);
        assert!(walk(&mut part) > 100);
        let all = Contents::Compressible { ratio: 1.0 };
        write(&mut words[..PAGE_WORDS], 1, all);
        assert!(words[..PAGE_WORDS].iter().all(|w| *w != 0));
    }

    #[test]
    fn mapped_pages_are_not_timed() {
        let mut words = vec![0; 8 * PAGE_WORDS];
        let mut part = Part::new(&mut words, 0, Contents::Counting);
        part.populate();
        let done = part.time(pages(Pattern::Sequential, 8, 8, 1), 8).unwrap();
        assert_eq!((done.accesses, done.errors), (0, 0));
    }
}
