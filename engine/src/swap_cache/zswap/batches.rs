//! Pages of one range on their way to compressed memory, a few at a time: by the reclaim thread, and by the handler
//! where that waits for memory. The kernel's direct reclaim has who waits for memory work for it, too.

use super::Handles;
use crate::mm::{PageMask, PMD_NR};
use crate::sync::Mutex;
use crate::sys::futex::{self, Scope};
use crate::zpool::Handle;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// Pages that are taken at a time. Who has them is waited for: with Zstandard they take up to 80 us.
pub(super) const BATCH: usize = 4;
/// How often is looked whether the last batches have ended, before sleeping.
const LOOKS: u32 = 2000;
const AT_MOST_MS: u64 = 2;

/// What came of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Tally {
    pub stored: PageMask,
    /// Those that did not become small.
    pub poor: usize,
    /// What the others take, and how many of them by Zstandard.
    pub bytes: usize,
    pub small: u64,
    /// Processor time, near enough.
    pub ns: u64,
}

impl Tally {
    fn add(&mut self, more: &Tally) {
        self.stored = self.stored.or(more.stored);
        self.poor += more.poor;
        self.bytes += more.bytes;
        self.small += more.small;
        self.ns += more.ns;
    }
}

/// What came of a batch, and its objects, in the order of their pages.
#[derive(Default)]
pub(super) struct Made {
    pub tally: Tally,
    pub handles: [Option<Handle>; BATCH],
}

/// `W` says what is to be done with each page.
struct Job<W> {
    what: Option<W>,
    left: PageMask,
    tally: Tally,
    handles: Handles,
    /// The reclaim thread sleeps until the last batch has ended.
    sleeps: bool,
}

pub(super) struct Batches<W> {
    job: Mutex<Job<W>>,
    /// Batches that somebody has. It changes with the lock.
    under_way: AtomicU32,
}

impl<W: Copy> Batches<W> {
    pub fn new() -> Batches<W> {
        Batches {
            job: Mutex::new(Job {
                what: None,
                left: PageMask::EMPTY,
                tally: Tally::default(),
                handles: [None; PMD_NR],
                sleeps: false,
            }),
            under_way: AtomicU32::new(0),
        }
    }

    /// Has `work` done for all pages, by whoever helps as well. `call`: somebody may. For the reclaim thread alone.
    pub fn all(
        &self,
        what: W,
        pages: PageMask,
        handles: &mut Handles,
        call: impl FnOnce(),
        mut work: impl FnMut(&W, PageMask) -> Made,
    ) -> Tally {
        {
            let mut job = self.job.lock();
            job.what = Some(what);
            job.left = pages;
            job.tally = Tally::default();
        }
        if pages.count() > BATCH {
            call();
        }
        while self.one(&mut work) {}
        self.wait_for_others();
        let job = self.job.lock();
        for page in job.tally.stored.runs().flatten() {
            handles[page] = job.handles[page];
        }
        job.tally
    }

    /// Does `work` for a batch; false where there is none.
    pub fn one(&self, mut work: impl FnMut(&W, PageMask) -> Made) -> bool {
        let Some((what, pages)) = self.take() else {
            return false;
        };
        let made = work(&what, pages);
        self.put(pages, &made);
        true
    }

    fn take(&self) -> Option<(W, PageMask)> {
        let mut job = self.job.lock();
        let what = job.what.filter(|_| !job.left.is_empty())?;
        let pages = job.left.first(BATCH);
        job.left = job.left.minus(pages);
        self.under_way.fetch_add(1, Relaxed);
        Some((what, pages))
    }

    fn put(&self, pages: PageMask, made: &Made) {
        let mut job = self.job.lock();
        for (page, handle) in pages.runs().flatten().zip(made.handles) {
            job.handles[page] = handle;
        }
        job.tally.add(&made.tally);
        // All that was done is seen by who sees this.
        let is_last = self.under_way.fetch_sub(1, Release) == 1 && job.left.is_empty();
        let wakes = is_last && job.sleeps;
        drop(job);
        if wakes {
            futex::wake(&self.under_way, 1, Scope::Process);
        }
    }

    /// No batch is left to be taken.
    fn wait_for_others(&self) {
        for _ in 0..LOOKS {
            if self.under_way.load(Acquire) == 0 {
                return;
            }
            core::hint::spin_loop();
        }
        self.job.lock().sleeps = true;
        loop {
            match self.under_way.load(Acquire) {
                0 => break,
                n => futex::wait(&self.under_way, n, Some(AT_MOST_MS), Scope::Process),
            };
        }
        self.job.lock().sleeps = false;
    }

    /// In a forked child. Nothing was under way.
    pub fn reset_lock(&self) {
        self.job.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;

    /// One page in five becomes small, and says by its bytes which it was.
    fn work(round: &usize, pages: PageMask) -> Made {
        let mut made = Made::default();
        for page in pages.runs().flatten() {
            match (page + round) % 5 {
                0 => {
                    made.tally.stored.insert(page);
                    made.tally.bytes += page;
                }
                _ => made.tally.poor += 1,
            }
        }
        made
    }

    #[test]
    fn each_page_is_done_once_whoever_helps() {
        let (batches, ends) = (Batches::new(), AtomicBool::new(false));
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    while !ends.load(Acquire) {
                        batches.one(work);
                    }
                });
            }
            for round in 0..3000 {
                let pages = PageMask::of(round % 97..PMD_NR - round % 89);
                let tally = batches.all(round, pages, &mut [None; PMD_NR], || {}, work);
                let alone = work(&round, pages);
                assert_eq!(tally, alone.tally, "{round}");
            }
            ends.store(true, Release);
        });
    }

    #[test]
    fn who_is_slow_is_waited_for() {
        let (batches, is_taken) = (Batches::new(), AtomicBool::new(false));
        let pages = PageMask::of(0..BATCH + 1);
        std::thread::scope(|s| {
            s.spawn(|| {
                let slow = |_: &usize, pages| {
                    is_taken.store(true, Release);
                    std::thread::sleep(std::time::Duration::from_millis(5));
                    work(&0, pages)
                };
                while !batches.one(slow) {}
            });
            let quick = |_: &usize, pages| {
                while !is_taken.load(Acquire) {
                    std::thread::yield_now();
                }
                work(&0, pages)
            };
            let tally = batches.all(0, pages, &mut [None; PMD_NR], || {}, quick);
            assert_eq!(tally, work(&0, pages).tally);
        });
        assert!(!batches.one(work), "there is nothing left");
    }

    #[test]
    fn help_is_called_for_where_there_is_more_than_a_batch() {
        let batches = Batches::new();
        for (n, expected) in [(1, 0), (BATCH, 0), (BATCH + 1, 1)] {
            let mut calls = 0;
            let call = || calls += 1;
            batches.all(0, PageMask::of(7..7 + n), &mut [None; PMD_NR], call, work);
            assert_eq!(calls, expected, "{n}");
        }
        let none = batches.all(0, PageMask::EMPTY, &mut [None; PMD_NR], || {}, work);
        assert_eq!(none, Tally::default());
    }
}
