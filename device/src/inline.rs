//! Completions waiting to be reaped, in a ring of fixed size.

use super::{Completion, QueueFull};

/// At most `depth` finished requests. Allocated once.
pub(super) struct Finished {
    ring: Box<[Completion]>,
    first: usize,
    len: usize,
}

impl Finished {
    pub(super) fn new(depth: u32) -> Self {
        let none = Completion {
            tag: 0,
            result: Ok(()),
        };
        Self {
            ring: vec![none; depth.max(1) as usize].into_boxed_slice(),
            first: 0,
            len: 0,
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.len as u32
    }

    pub(super) fn is_full(&self) -> bool {
        self.len == self.ring.len()
    }

    pub(super) fn push(&mut self, completion: Completion) -> Result<(), QueueFull> {
        if self.is_full() {
            return Err(QueueFull);
        }
        let at = (self.first + self.len) % self.ring.len();
        if let Some(place) = self.ring.get_mut(at) {
            *place = completion;
            self.len += 1;
        }
        Ok(())
    }

    pub(super) fn pop(&mut self) -> Option<Completion> {
        if self.len == 0 {
            return None;
        }
        let completion = self.ring.get(self.first).copied();
        self.first = (self.first + 1) % self.ring.len();
        self.len -= 1;
        completion
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_and_refuses_when_full() {
        let mut finished = Finished::new(2);
        for round in 0..5 {
            for tag in [round, round + 1] {
                assert_eq!(
                    finished.push(Completion {
                        tag,
                        result: Ok(())
                    }),
                    Ok(())
                );
            }
            assert_eq!(
                finished.push(Completion {
                    tag: 9,
                    result: Ok(())
                }),
                Err(QueueFull)
            );
            assert_eq!(finished.pop().map(|c| c.tag), Some(round));
            assert_eq!(finished.pop().map(|c| c.tag), Some(round + 1));
            assert_eq!(finished.pop(), None);
        }
    }
}
