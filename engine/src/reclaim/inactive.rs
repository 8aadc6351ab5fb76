//! What has been taken out of the program and waits for a touch.

use crate::swap_cache::{Taken, FRAMES};

/// What is on its second chance, oldest first.
pub(super) struct Inactive {
    items: [Taken; INACTIVE_MAX],
    head: usize,
    len: usize,
}

/// The other frames are for transfers.
const INACTIVE_MAX: usize = FRAMES - 64;

impl Inactive {
    pub(super) fn new() -> Inactive {
        Inactive {
            items: [Taken::NOTHING; INACTIVE_MAX],
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

    pub(super) fn push(&mut self, p: Taken) {
        debug_assert!(self.len < INACTIVE_MAX);
        self.items[(self.head + self.len) % INACTIVE_MAX] = p;
        self.len += 1;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Taken> + '_ {
        (0..self.len).map(|i| self.items[(self.head + i) % INACTIVE_MAX])
    }

    pub(super) fn pop(&mut self) -> Option<Taken> {
        self.len = self.len.checked_sub(1)?;
        let p = self.items[self.head];
        self.head = (self.head + 1) % INACTIVE_MAX;
        Some(p)
    }
}
