//! Folios that were read ahead of their faults.

use crate::mm::Pmd;

/// At a time.
pub const AHEAD_MAX: usize = 32;

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
