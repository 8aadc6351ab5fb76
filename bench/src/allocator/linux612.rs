//! A model of the plain allocator of Linux 6.12, to show what ours adds: one device; clusters are scanned
//! for an aligned run in the kernel's order of attempts, and a folio without one falls back.

use hugeswap_mm::{PMD_ORDER, SWAPFILE_CLUSTER};
use std::collections::VecDeque;

/// Sizes of folios: `1 << order` pages, 4 KiB to 2 MiB.
pub const ORDERS: usize = PMD_ORDER as usize + 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// Something was freed in it since it was last looked through.
    Nonfull,
    Frag,
    Full,
}

#[derive(Clone, Debug)]
struct Cluster {
    state: State,
    /// Of the first folio put in since it was empty.
    order: u8,
    used: [bool; SWAPFILE_CLUSTER],
    /// Slots in use, the header among them.
    count: usize,
}

/// Clusters by their number.
type List = VecDeque<usize>;

#[derive(Debug)]
pub struct Linux612 {
    clusters: Vec<Cluster>,
    header: bool,
    free: List,
    nonfull: [List; ORDERS],
    frag: [List; ORDERS],
    /// By order: where to go on.
    next: [Option<(usize, usize)>; ORDERS],
}

impl Linux612 {
    pub fn new(clusters: usize) -> Linux612 {
        let cluster = Cluster {
            state: State::Free,
            order: 0,
            used: [false; SWAPFILE_CLUSTER],
            count: 0,
        };
        Linux612 {
            clusters: vec![cluster; clusters],
            header: false,
            free: (0..clusters).collect(),
            nonfull: Default::default(),
            frag: Default::default(),
            next: [None; ORDERS],
        }
    }

    /// The first slot is never handed out; its cluster serves base pages first.
    pub fn mark_header(&mut self) {
        self.header = true;
        self.clusters[0].used[0] = true;
        self.clusters[0].count = 1;
        self.put(0, State::Nonfull);
    }

    fn list(&mut self, state: State, order: u8) -> Option<&mut List> {
        match state {
            State::Free => Some(&mut self.free),
            State::Nonfull => Some(&mut self.nonfull[order as usize]),
            State::Frag => Some(&mut self.frag[order as usize]),
            State::Full => None,
        }
    }

    /// To the tail of another list.
    fn put(&mut self, idx: usize, state: State) {
        let (was, order) = (self.clusters[idx].state, self.clusters[idx].order);
        self.unlink(idx, was, order);
        self.clusters[idx].state = state;
        if let Some(list) = self.list(state, order) {
            list.push_back(idx);
        }
    }

    fn unlink(&mut self, idx: usize, state: State, order: u8) {
        if let Some(list) = self.list(state, order) {
            if let Some(at) = list.iter().position(|&other| other == idx) {
                list.remove(at);
            }
        }
    }

    /// The first slot of an aligned run: where it went last, a free cluster, those of this order, and for base
    /// pages any.
    pub fn alloc(&mut self, order: u8) -> Option<u64> {
        let o = order as usize;
        if let Some((idx, from)) = self.next[o] {
            if let Some(slot) = self.scan(idx, from, order) {
                return Some(slot);
            }
        }
        if let Some(&idx) = self.free.front() {
            return self.scan(idx, 0, order);
        }
        if order < PMD_ORDER {
            while let Some(&idx) = self.nonfull[o].front() {
                // To the tail of frag before the scan, so that the loop ends.
                self.put(idx, State::Frag);
                if let Some(slot) = self.scan(idx, 0, order) {
                    return Some(slot);
                }
            }
            for _ in 0..self.frag[o].len() {
                let Some(&idx) = self.frag[o].front() else {
                    break;
                };
                self.put(idx, State::Frag);
                if let Some(slot) = self.scan(idx, 0, order) {
                    return Some(slot);
                }
            }
        }
        if order == 0 {
            let others = (1..ORDERS).flat_map(|other| [&self.frag[other], &self.nonfull[other]]);
            let idx = others.filter_map(|list| list.front().copied()).next()?;
            return self.scan(idx, 0, order);
        }
        None
    }

    /// Steps upward from `from` by the folio's length, without wrapping round.
    fn scan(&mut self, idx: usize, from: usize, order: u8) -> Option<u64> {
        let nr = 1usize << order;
        let cluster = &self.clusters[idx];
        let free = |at: &usize| !cluster.used[*at..*at + nr].contains(&true);
        let mut places = (from..=SWAPFILE_CLUSTER - nr).step_by(nr);
        let found = places.find(free).filter(|_| cluster.state != State::Full);
        let Some(offset) = found else {
            self.next[order as usize] = None;
            return None;
        };
        self.take(idx, offset, order);
        let next = offset + nr;
        let goes_on = next < SWAPFILE_CLUSTER && self.clusters[idx].count < SWAPFILE_CLUSTER;
        self.next[order as usize] = goes_on.then_some((idx, next));
        Some((idx * SWAPFILE_CLUSTER + offset) as u64)
    }

    fn take(&mut self, idx: usize, start: usize, order: u8) {
        let nr = 1usize << order;
        let cluster = &mut self.clusters[idx];
        cluster.used[start..start + nr].fill(true);
        cluster.count += nr;
        let full = cluster.count == SWAPFILE_CLUSTER;
        let was_free = cluster.state == State::Free;
        if was_free {
            self.unlink(idx, State::Free, 0);
            // On no list until it is put.
            let cluster = &mut self.clusters[idx];
            (cluster.state, cluster.order) = (State::Full, order);
        }
        if full {
            self.put(idx, State::Full);
        } else if was_free {
            self.put(idx, State::Nonfull);
        }
    }

    pub fn free(&mut self, slot: u64, nr: usize) {
        let (idx, start) = (
            slot as usize / SWAPFILE_CLUSTER,
            slot as usize % SWAPFILE_CLUSTER,
        );
        let header = usize::from(self.header && idx == 0);
        let cluster = &mut self.clusters[idx];
        cluster.used[start..start + nr].fill(false);
        cluster.count -= nr;
        let (was, order, left) = (cluster.state, cluster.order, cluster.count - header);
        if left == 0 && header > 0 && (was, order) == (State::Nonfull, 0) {
            // It is where it belongs.
        } else if left == 0 {
            self.unlink(idx, was, order);
            let cluster = &mut self.clusters[idx];
            (cluster.state, cluster.order) = (State::Full, 0);
            let to = if header == 0 {
                State::Free
            } else {
                State::Nonfull
            };
            self.put(idx, to);
        } else if was != State::Nonfull {
            self.put(idx, State::Nonfull);
        }
    }
}
