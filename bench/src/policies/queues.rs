//! What user space can do. The program's touches of resident memory can't be seen; only what is
//! not mapped faults. So ranges pass through staging on their way out, and a touch there (a soft
//! hit: a fault and a move, no read) is all that tells hot from cold.

use std::collections::VecDeque;

use super::rule::{Counts, Policy};

/// Which ranges go where. The plain second chance uses `young` alone.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Ranges on the lists to one in staging; 0 for no staging at all.
    pub ratio: usize,
    /// In staging at most, 0 for any number.
    pub most: usize,
    /// None: one list. Else ranges that have proved themselves are on a list of their own.
    pub split: Option<Split>,
}

#[derive(Clone, Copy, Debug)]
pub struct Split {
    /// Victims come from the young as long as these have more than this part of the memory.
    pub young_part: f64,
    /// A range that comes back is old at once if not more pages than this left between.
    pub refault: Refault,
    /// Of the others that come in, one of so many is old at once by chance; 0 for none.
    pub stays: u64,
    /// Only what a walk brings in is young; what a jump brings in is old at once.
    pub walks: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Refault {
    Never,
    /// As much as is on the list of the old (Linux, mm/workingset.c).
    Active,
    /// This part of the memory.
    Part(f64),
    /// The same, as long as what the old lose for it comes back less often than what the young
    /// lose: else it is only a walk through more than fits, and promoting gains nothing.
    Worth(f64),
}

/// How many of what was evicted came back; the last few count.
#[derive(Clone, Copy, Default)]
struct Regret {
    evicted: f64,
    came_back: f64,
}

impl Regret {
    fn evict(&mut self) {
        self.evicted = self.evicted * REGRET_KEEPS + 1.0;
        self.came_back *= REGRET_KEEPS;
    }
    fn part(&self) -> f64 {
        self.came_back / self.evicted.max(1.0)
    }
}

const REGRET_KEEPS: f64 = 15.0 / 16.0;

#[derive(Default)]
struct Group {
    resident: Pages,
    staged: Pages,
    /// On a list. A range with pages in staging may be on one too.
    listed: bool,
    old: bool,
    /// Of its last stay in staging.
    stamp: u64,
    /// Pages evicted so far when it was; 0 if it never was.
    evicted_at: u64,
}

/// A set of up to 512 pages.
#[derive(Clone, Copy, Default, PartialEq)]
struct Pages([u64; 8]);

impl Pages {
    fn has(&self, page: usize) -> bool {
        self.0[page / 64] >> (page % 64) & 1 != 0
    }
    fn add(&mut self, page: usize) {
        self.0[page / 64] |= 1 << (page % 64);
    }
    fn remove(&mut self, page: usize) {
        self.0[page / 64] &= !(1 << (page % 64));
    }
    fn count(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }
    fn is_empty(&self) -> bool {
        self.0 == [0; 8]
    }
    fn take(&mut self) -> Pages {
        std::mem::take(self)
    }
    fn join(&mut self, other: Pages) {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a |= b;
        }
    }
}

/// The places that missed last. A miss near one of them goes on with a walk.
struct Walks {
    heads: VecDeque<usize>,
    near: usize,
}

const HEADS: usize = 16;

impl Walks {
    fn new(near: usize) -> Walks {
        Walks {
            heads: VecDeque::with_capacity(HEADS),
            near,
        }
    }

    fn goes_on(&mut self, at: usize) -> bool {
        let found = self.heads.iter().position(|h| h.abs_diff(at) <= self.near);
        if found.is_some() || self.heads.len() == HEADS {
            self.heads.remove(found.unwrap_or(0));
        }
        self.heads.push_back(at);
        found.is_some()
    }
}

pub struct Queues {
    config: Config,
    /// Pages.
    capacity: usize,
    used: usize,
    group_pages: usize,
    groups: Vec<Group>,
    young: VecDeque<u32>,
    old: VecDeque<u32>,
    young_pages: usize,
    old_pages: usize,
    staging: VecDeque<(u32, u64)>,
    stamps: u64,
    evictions: u64,
    arrivals: u64,
    walks: Walks,
    /// Of the young and of the old.
    regret: [Regret; 2],
    pub counts: Counts,
}

impl Queues {
    /// `pages` numbered pages in ranges of `group_pages` (at most 512), of which `capacity` fit.
    pub fn new(config: Config, pages: usize, group_pages: usize, capacity: usize) -> Queues {
        Queues {
            config,
            capacity,
            used: 0,
            group_pages,
            groups: (0..pages.div_ceil(group_pages))
                .map(|_| Group::default())
                .collect(),
            young: VecDeque::new(),
            old: VecDeque::new(),
            young_pages: 0,
            old_pages: 0,
            staging: VecDeque::new(),
            stamps: 0,
            evictions: 0,
            arrivals: 0,
            walks: Walks::new(if group_pages == 1 { 1 } else { 64 }),
            regret: [Regret::default(); 2],
            counts: Counts::default(),
        }
    }

    fn push(&mut self, number: usize, old: bool) {
        let group = &mut self.groups[number];
        if group.listed {
            return;
        }
        group.listed = true;
        group.old = old;
        let pages = group.resident.count();
        if old {
            self.old.push_back(number as u32);
            self.old_pages += pages;
        } else {
            self.young.push_back(number as u32);
            self.young_pages += pages;
        }
    }

    fn counted(&mut self, old: bool) -> &mut usize {
        if old {
            &mut self.old_pages
        } else {
            &mut self.young_pages
        }
    }

    /// Is a range old at once that comes in after a read?
    fn arrives_old(&mut self, number: usize, walk: bool) -> bool {
        let Some(split) = self.config.split else {
            return false;
        };
        if split.walks && (!walk || self.evictions == 0) {
            return true;
        }
        self.arrivals += 1;
        let before = self.groups[number].evicted_at;
        let near = match split.refault {
            Refault::Never => -1.0,
            Refault::Active => self.old_pages as f64,
            Refault::Part(part) | Refault::Worth(part) => part * self.capacity as f64,
        };
        let refault = before > 0 && ((self.evictions - before) as f64) <= near;
        if refault {
            self.regret[usize::from(self.groups[number].old)].came_back += 1.0;
        }
        let worth = match split.refault {
            Refault::Worth(_) => self.regret[1].part() < 0.5 * self.regret[0].part(),
            _ => true,
        };
        refault && worth || split.stays > 0 && self.arrivals % split.stays == 0
    }

    fn make_room(&mut self, pages: usize) {
        while self.used + pages > self.capacity {
            self.stage_some();
            let Some((number, stamp)) = self.staging.pop_front() else {
                return;
            };
            let group = &mut self.groups[number as usize];
            if group.stamp != stamp {
                continue;
            }
            let gone = group.staged.take().count();
            if gone > 0 {
                group.stamp = 0;
                self.used -= gone;
                self.evictions += gone as u64;
                group.evicted_at = self.evictions;
                self.regret[usize::from(group.old)].evict();
                self.counts.evictions += gone as u64;
            }
        }
    }

    /// Fills staging from the lists, as `Reclaim::deactivate_some` does.
    fn stage_some(&mut self) {
        let mut looked = self.young.len() + self.old.len();
        let want = match self.config.ratio {
            0 => 1,
            ratio => (looked / ratio).max(2),
        };
        let want = match self.config.most {
            0 => want,
            most => want.min(most),
        };
        while self.staging.len() < want && looked > 0 {
            looked -= 1;
            let from_old = match self.config.split {
                None => false,
                Some(split) => {
                    self.young_pages as f64 <= split.young_part * self.capacity as f64
                        && !self.old.is_empty()
                        || self.young.is_empty()
                }
            };
            let list = if from_old {
                &mut self.old
            } else {
                &mut self.young
            };
            let Some(number) = list.pop_front() else {
                return;
            };
            let group = &mut self.groups[number as usize];
            group.listed = false;
            let pages = group.resident.count();
            *self.counted(from_old) -= pages;
            let group = &mut self.groups[number as usize];
            if group.stamp != 0 {
                // Still on its way out since the last time: it stays on the list.
                self.push(number as usize, from_old);
                continue;
            }
            group.staged = group.resident.take();
            self.stamps += 1;
            group.stamp = self.stamps;
            self.staging.push_back((number, self.stamps));
            self.counts.staged += 1;
        }
    }
}

impl Policy for Queues {
    fn touch(&mut self, page: usize) {
        let (number, page) = (page / self.group_pages, page % self.group_pages);
        let group = &mut self.groups[number];
        if group.resident.has(page) {
            return;
        }
        if group.staged.has(page) {
            self.counts.soft += 1;
            let before = group.resident.count();
            if self.group_pages == 1 {
                let all = group.staged.take();
                group.resident.join(all);
            } else {
                group.staged.remove(page);
                group.resident.add(page);
            }
            if group.staged.is_empty() {
                group.stamp = 0;
            }
            let more = group.resident.count() - before;
            if group.listed {
                let old = group.old;
                *self.counted(old) += more;
            }
            self.push(number, self.config.split.is_some());
            return;
        }
        self.counts.misses += 1;
        let walk = self.walks.goes_on(number * self.group_pages + page);
        self.make_room(1);
        self.used += 1;
        self.groups[number].resident.add(page);
        if self.groups[number].listed {
            let old = self.groups[number].old;
            *self.counted(old) += 1;
        } else {
            let old = self.arrives_old(number, walk);
            self.push(number, old);
        }
    }

    fn counts(&mut self) -> &mut Counts {
        &mut self.counts
    }
}
