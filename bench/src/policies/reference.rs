//! What user space can't do, to compare with: CLOCK and LRU see every touch, OPT the future too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::rule::{Counts, Policy};

/// Second chance by the bit that the processor sets: Corbató (1968).
pub struct Clock {
    capacity: usize,
    resident: Vec<bool>,
    used_bit: Vec<bool>,
    queue: VecDeque<u32>,
    counts: Counts,
}

impl Clock {
    pub fn new(pages: usize, capacity: usize) -> Clock {
        Clock {
            capacity,
            resident: vec![false; pages],
            used_bit: vec![false; pages],
            queue: VecDeque::new(),
            counts: Counts::default(),
        }
    }
}

impl Policy for Clock {
    fn touch(&mut self, page: usize) {
        if self.resident[page] {
            self.used_bit[page] = true;
            return;
        }
        self.counts.misses += 1;
        while self.queue.len() >= self.capacity {
            let Some(first) = self.queue.pop_front() else {
                break;
            };
            if std::mem::take(&mut self.used_bit[first as usize]) {
                self.queue.push_back(first);
            } else {
                self.resident[first as usize] = false;
                self.counts.evictions += 1;
            }
        }
        self.resident[page] = true;
        self.queue.push_back(page as u32);
    }

    fn counts(&mut self) -> &mut Counts {
        &mut self.counts
    }
}

/// The one that was touched longest ago leaves.
pub struct Lru {
    capacity: usize,
    last: Vec<u64>,
    by_time: BTreeMap<u64, u32>,
    now: u64,
    counts: Counts,
}

impl Lru {
    pub fn new(pages: usize, capacity: usize) -> Lru {
        Lru {
            capacity,
            last: vec![0; pages],
            by_time: BTreeMap::new(),
            now: 0,
            counts: Counts::default(),
        }
    }
}

impl Policy for Lru {
    fn touch(&mut self, page: usize) {
        self.now += 1;
        let last = std::mem::replace(&mut self.last[page], self.now);
        if self.by_time.remove(&last).is_none() {
            self.counts.misses += 1;
            if self.by_time.len() >= self.capacity {
                if let Some((_, gone)) = self.by_time.pop_first() {
                    self.last[gone as usize] = 0;
                    self.counts.evictions += 1;
                }
            }
        }
        self.by_time.insert(self.now, page as u32);
    }

    fn counts(&mut self) -> &mut Counts {
        &mut self.counts
    }
}

/// The one that is wanted last leaves: Belady (1966). No policy misses less.
pub struct Opt {
    capacity: usize,
    /// For each access of the trace, when the same page comes next.
    next_use: Vec<u32>,
    at: usize,
    /// Of a resident page, its entry in `by_next`.
    resident: Vec<Option<u32>>,
    by_next: BTreeSet<(u32, u32)>,
    counts: Counts,
}

const NEVER: u32 = u32::MAX;

impl Opt {
    /// It must be handed the same trace then.
    pub fn new(trace: &[u32], pages: usize, capacity: usize) -> Opt {
        let mut next_use = vec![NEVER; trace.len()];
        let mut seen = vec![NEVER; pages];
        for (at, page) in trace.iter().enumerate().rev() {
            next_use[at] = std::mem::replace(&mut seen[*page as usize], at as u32);
        }
        Opt {
            capacity,
            next_use,
            at: 0,
            resident: vec![None; pages],
            by_next: BTreeSet::new(),
            counts: Counts::default(),
        }
    }
}

impl Policy for Opt {
    fn touch(&mut self, page: usize) {
        let next = self.next_use[self.at];
        self.at += 1;
        match self.resident[page] {
            Some(was) => {
                self.by_next.remove(&(was, page as u32));
            }
            None => {
                self.counts.misses += 1;
                if self.by_next.len() >= self.capacity {
                    if let Some((_, gone)) = self.by_next.pop_last() {
                        self.resident[gone as usize] = None;
                        self.counts.evictions += 1;
                    }
                }
            }
        }
        self.resident[page] = Some(next);
        self.by_next.insert((next, page as u32));
    }

    fn counts(&mut self) -> &mut Counts {
        &mut self.counts
    }
}
