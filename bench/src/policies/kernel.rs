//! What the kernel would do, nearly: an active and an inactive list with accessed bits, refault distance
//! (mm/workingset.c), and reading ahead by address, by as much as its last reading was worth
//! (`swap_vma_readahead` in mm/swap_state.c). Pages, not folios; all in one area; without the multi-generational lists.

use std::collections::VecDeque;

use super::tally::{Costs, Tally};

/// Pages that are read ahead at most, with the one that is wanted: `vm.page-cluster` is 3.
const AHEAD_MAX: u32 = 8;
/// What a fault costs beside the read; one that finds its page in the swap cache, and a first touch.
pub const MAJOR_US: f64 = 6.0;
const MINOR_US: f64 = 1.0;

#[derive(Clone, Copy, Default)]
struct Page {
    resident: bool,
    /// The program has it; else it was read ahead and waits in the swap cache.
    mapped: bool,
    accessed: bool,
    active: bool,
    dirty: bool,
    swapped: bool,
    /// Of its entry on a list.
    stamp: u32,
    /// Pages evicted and activated when it was evicted.
    shadow: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum List {
    Inactive,
    Active,
}

pub struct Kernel {
    pages: Vec<Page>,
    capacity: usize,
    used: usize,
    /// Inactive, active.
    lists: [VecDeque<(u32, u32)>; 2],
    len: [usize; 2],
    /// Evictions and activations: time, for refault distance.
    age: u64,
    /// The last page that was read or found in the swap cache; how much was read ahead last, and how many pages
    /// of that were touched.
    last: u32,
    window: u32,
    hits: u32,
    costs: Costs,
    pub tally: Tally,
}

impl Kernel {
    pub fn new(pages: usize, capacity: usize, costs: Costs) -> Kernel {
        Kernel {
            pages: vec![Page::default(); pages],
            capacity,
            used: 0,
            lists: Default::default(),
            len: [0; 2],
            age: 0,
            last: 0,
            window: 0,
            hits: 0,
            costs,
            tally: Tally::default(),
        }
    }

    pub fn touch(&mut self, page: usize, write: bool) {
        let p = &mut self.pages[page];
        if !p.resident {
            match p.swapped {
                true => self.swap_in(page),
                false => {
                    self.tally.micros += MINOR_US;
                    self.enter(page);
                }
            }
        } else if !p.mapped {
            self.hits += 1;
            self.last = page as u32;
            self.tally.soft += 1;
            self.tally.micros += MINOR_US;
        }
        let p = &mut self.pages[page];
        p.mapped = true;
        p.accessed = true;
        p.dirty |= write;
    }

    pub fn give_back(&mut self, first: usize, count: usize) {
        for page in first..first + count {
            let p = &mut self.pages[page];
            if p.resident {
                self.used -= 1;
                self.len[usize::from(p.active)] -= 1;
            }
            self.pages[page] = Page {
                stamp: self.pages[page].stamp.wrapping_add(1),
                ..Page::default()
            };
        }
    }

    fn swap_in(&mut self, page: usize) {
        let window = self.next_window(page as u32);
        let first = match window {
            1 => page,
            // Onwards where the last was just before or behind, else around it.
            n if page as u32 == self.last.wrapping_add(1) => {
                page.min(self.pages.len() - n as usize)
            }
            n if page as u32 == self.last.wrapping_sub(1) => (page + 1).saturating_sub(n as usize),
            n => page.saturating_sub((n as usize - 1) / 2),
        };
        self.last = page as u32;
        self.tally.reads += 1;
        self.tally.micros += MAJOR_US + self.costs.read;
        let end = (first + window as usize).min(self.pages.len());
        // The one that is wanted first, for others may have to leave for those beside it.
        let beside = (first..end).filter(|&other| other != page);
        for other in std::iter::once(page).chain(beside) {
            let p = &self.pages[other];
            if p.resident || !p.swapped {
                continue;
            }
            if other != page {
                self.tally.micros += self.costs.page;
            }
            self.tally.pages_in += 1;
            self.enter(other);
        }
    }

    /// By how many of the pages read ahead were touched; half as much as the last time at least.
    fn next_window(&mut self, page: u32) -> u32 {
        let hits = std::mem::take(&mut self.hits);
        let near = page == self.last.wrapping_add(1) || page == self.last.wrapping_sub(1);
        let wanted = match hits {
            0 if !near => 1,
            hits => (hits + 2).next_power_of_two().max(4),
        };
        self.window = wanted.min(AHEAD_MAX).max(self.window / 2);
        self.window
    }

    fn enter(&mut self, page: usize) {
        while self.used >= self.capacity {
            self.evict_one();
        }
        self.used += 1;
        let active_len = self.len[1] as u64;
        let age = self.age;
        let p = &mut self.pages[page];
        // Read back before as much was evicted as is active: it would not have left had it been there.
        let soon = p.shadow.take().is_some_and(|at| age - at <= active_len);
        p.resident = true;
        p.mapped = false;
        p.accessed = false;
        self.push(
            page,
            match soon {
                true => List::Active,
                false => List::Inactive,
            },
        );
    }

    fn push(&mut self, page: usize, list: List) {
        let p = &mut self.pages[page];
        let active = list == List::Active;
        p.active = active;
        p.stamp = p.stamp.wrapping_add(1);
        self.lists[list as usize].push_back((page as u32, p.stamp));
        self.len[list as usize] += 1;
        self.age += u64::from(active);
    }

    fn pop(&mut self, list: List) -> Option<usize> {
        while let Some((page, stamp)) = self.lists[list as usize].pop_front() {
            let p = &self.pages[page as usize];
            if p.resident && p.stamp == stamp {
                self.len[list as usize] -= 1;
                return Some(page as usize);
            }
        }
        None
    }

    fn evict_one(&mut self) {
        // Below a gibibyte both lists are to be as long.
        while self.len[1] > self.len[0] {
            let Some(page) = self.pop(List::Active) else {
                break;
            };
            self.pages[page].accessed = false;
            self.push(page, List::Inactive);
        }
        let Some(page) = self.pop(List::Inactive) else {
            return;
        };
        let p = &mut self.pages[page];
        if std::mem::take(&mut p.accessed) {
            return self.push(page, List::Active);
        }
        p.resident = false;
        self.age += 1;
        p.shadow = Some(self.age);
        self.used -= 1;
        self.tally.evicted += 1;
        if std::mem::take(&mut p.dirty) {
            p.swapped = true;
            self.tally.written += 1;
            self.tally.micros += self.costs.write;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jumps(kernel: &mut Kernel, pages: usize, times: usize, mut x: u64) {
        for _ in 0..times {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
            kernel.touch((x >> 33) as usize % pages, false);
        }
    }

    #[test]
    fn walks_are_read_ahead_and_jumps_are_not() {
        let pages = 8_000;
        let mut kernel = Kernel::new(pages, pages / 2, Costs::DISK);
        (0..pages).for_each(|page| kernel.touch(page, true));
        assert_eq!((kernel.tally.reads, kernel.used), (0, pages / 2));
        (0..pages).for_each(|page| kernel.touch(page, false));
        let walk = kernel.tally;
        assert!(walk.reads < pages as u64 / 6, "{walk:?}");
        jumps(&mut kernel, pages, 10_000, 3);
        let (reads, pages_in) = (
            kernel.tally.reads - walk.reads,
            kernel.tally.pages_in - walk.pages_in,
        );
        assert!((4_000..6_500).contains(&reads), "{reads}");
        assert!(pages_in < reads * 5 / 4, "{reads} {pages_in}");
    }

    #[test]
    fn what_is_used_again_and_again_stays() {
        let pages = 8_000;
        let mut kernel = Kernel::new(pages, pages / 2, Costs::DISK);
        (0..pages).for_each(|page| kernel.touch(page, true));
        for round in 0..20 {
            jumps(&mut kernel, pages / 8, 4_000, round);
            let cold = pages / 8 + round as usize * 300;
            (cold..cold + 300).for_each(|page| kernel.touch(page, false));
        }
        let before = kernel.tally.reads;
        jumps(&mut kernel, pages / 8, 4_000, 99);
        assert!(
            kernel.tally.reads - before < 40,
            "{}",
            kernel.tally.reads - before
        );
    }

    #[test]
    fn what_is_given_back_is_neither_written_nor_read() {
        let mut kernel = Kernel::new(1_000, 100, Costs::DISK);
        for _ in 0..10 {
            (0..100).for_each(|page| kernel.touch(page, true));
            kernel.give_back(0, 100);
        }
        assert_eq!((kernel.tally.reads, kernel.tally.written), (0, 0));
        assert_eq!((kernel.used, kernel.len), (0, [0; 2]));
    }
}
