//! Folios that are read ahead of their faults.

use super::transfer::{Read, To, DEPTH};
use super::Handler;
use crate::mm::Pmd;
use crate::policy::intake::Stride;
use crate::swap_cache::{Ahead, Bytes, Plan, FRAMES};

/// Folios read ahead and not yet wanted, at most.
const AHEAD_MAX: usize = 32;
const _: () = assert!(AHEAD_MAX < FRAMES);
/// Times that MADV_WILLNEED waits for memory.
const WILL_NEED_WAITS: usize = 16;
/// Ranges in which what can be read ahead is looked for.
const AHEAD_LOOK: i32 = 64;

/// Folios read ahead and not yet wanted, oldest first.
pub struct AheadQueue {
    items: [Pmd; AHEAD_MAX],
    len: usize,
}

impl AheadQueue {
    pub fn new() -> AheadQueue {
        AheadQueue {
            items: [Pmd(0); AHEAD_MAX],
            len: 0,
        }
    }
    pub fn len(&self) -> usize {
        self.len
    }
    pub fn push(&mut self, p: Pmd) {
        debug_assert!(self.len < AHEAD_MAX);
        self.items[self.len] = p;
        self.len += 1;
    }
    pub fn pop(&mut self) -> Option<Pmd> {
        let first = *self.items[..self.len].first()?;
        self.items.copy_within(1..self.len, 0);
        self.len -= 1;
        Some(first)
    }
    pub fn has(&self, p: Pmd) -> bool {
        self.items[..self.len].contains(&p)
    }
    pub fn remove(&mut self, p: Pmd) {
        if let Some(i) = self.items[..self.len].iter().position(|&x| x == p) {
            self.items.copy_within(i + 1..self.len, i);
            self.len -= 1;
        }
    }
}

impl Handler<'_> {
    /// Begins to read the next folios of a walk, as far as frames are at hand.
    pub(super) fn read_ahead(&mut self, pmd: Pmd, step: i32, mut window: usize, why: Ahead) {
        for k in 1..=AHEAD_LOOK {
            if window == 0 || self.is_full_ahead() {
                return;
            }
            let Some(n) = (pmd.0 as i64 + (step * k) as i64).try_into().ok() else {
                return;
            };
            let next = Pmd(n);
            let Some(r) = self.cache.ranges.get(next) else {
                return;
            };
            if r.lock().is_all_there() {
                continue;
            }
            window -= 1;
            if !self.begin_ahead(next, why) {
                return;
            }
        }
    }

    /// Begins to read what a stride comes to in other ranges than the one it is in.
    pub(super) fn read_stride(&mut self, stride: Stride, pmd: Pmd, page: usize) {
        let mut last = pmd;
        for next in stride.ranges(pmd, page) {
            if next == last {
                continue;
            }
            last = next;
            let set = stride.pages_of(pmd, page, next);
            let plan = self.cache.begin_set_ahead(next, set, &mut self.buffers);
            if let Some(Plan::Fill {
                buffer,
                pages,
                entry,
            }) = plan
            {
                self.submit(Read {
                    pmd: next,
                    to: To::Buffer(buffer),
                    pages,
                    entry,
                    page: 0,
                    start_ns: 0,
                });
            }
        }
    }

    /// MADV_WILLNEED: begins to read what of these ranges is in swap, as far as there is room or can
    /// be made in a moment.
    pub fn will_need(&mut self, ranges: impl Iterator<Item = Pmd>) {
        let mut stalled = false;
        let mut waits = WILL_NEED_WAITS;
        for pmd in ranges {
            // What was asked for before and not touched keeps its place.
            if self.is_full_ahead() {
                break;
            }
            while !self.begin_ahead(pmd, Ahead::Said) {
                if waits == 0 {
                    self.end_stall(stalled);
                    return self.io.kick();
                }
                waits -= 1;
                self.wait_for_memory(&mut stalled);
            }
        }
        self.end_stall(stalled);
        self.io.kick();
    }

    /// Begins to read the range, if that makes sense; false if there is no frame for it.
    fn begin_ahead(&mut self, pmd: Pmd, why: Ahead) -> bool {
        let range = self.cache.ranges.get(pmd);
        if !range.is_some_and(|r| self.cache.may_read_ahead(r, why)) {
            return true;
        }
        // Never the last frames: faults come first.
        if self.cache.frames.ready() <= 2 {
            match self.cache.prepare_ready() {
                Some(f) => self.cache.frames.put_ready(f, Bytes::Zeros),
                None => return false,
            }
        }
        let mut frame = self.cache.frames.take_ready(Bytes::Old);
        if let Some(Plan::ReadWhole {
            frame: fr,
            pages,
            entry,
        }) = self.cache.begin_ahead(pmd, &mut frame)
        {
            self.ahead.push(pmd);
            self.submit(Read {
                pmd,
                to: To::Frame(fr),
                pages,
                entry,
                page: 0,
                start_ns: 0,
            });
        }
        if let Some((f, bytes)) = frame {
            self.cache.frames.put_ready(f, bytes);
        }
        true
    }

    fn is_full_ahead(&self) -> bool {
        self.ahead.len() >= AHEAD_MAX || self.io.in_flight() >= DEPTH / 2
    }

    pub(super) fn drop_oldest_ahead(&mut self) -> bool {
        for _ in 0..self.ahead.len() {
            let Some(p) = self.ahead.pop() else { break };
            let Some(r) = self.cache.ranges.get(p) else {
                continue;
            };
            let mut g = r.lock();
            if self.cache.drop_ahead(&mut g) {
                return true;
            }
            if g.is_ahead() {
                // Still being read: it keeps its place in the queue.
                self.ahead.push(p);
            }
        }
        false
    }
}
