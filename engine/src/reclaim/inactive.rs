//! Ranges that have been taken out of the program and wait for a touch.

use crate::mm::Pmd;
use crate::swap_cache::FRAMES;

/// Ranges on their second chance, oldest first.
pub(super) struct Inactive {
    items: [Pmd; INACTIVE_MAX],
    head: usize,
    len: usize,
}

/// The other frames are for transfers.
const INACTIVE_MAX: usize = FRAMES - 64;

impl Inactive {
    pub(super) fn new() -> Inactive {
        Inactive {
            items: [Pmd(0); INACTIVE_MAX],
            head: 0,
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_full(&self) -> bool {
        self.len >= INACTIVE_MAX
    }

    pub(super) fn push(&mut self, p: Pmd) {
        debug_assert!(self.len < INACTIVE_MAX);
        self.items[(self.head + self.len) % INACTIVE_MAX] = p;
        self.len += 1;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Pmd> + '_ {
        (0..self.len).map(|i| self.items[(self.head + i) % INACTIVE_MAX])
    }

    pub(super) fn pop(&mut self) -> Option<Pmd> {
        self.len = self.len.checked_sub(1)?;
        let p = self.items[self.head];
        self.head = (self.head + 1) % INACTIVE_MAX;
        Some(p)
    }
}
