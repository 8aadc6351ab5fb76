//! Whether there is no more memory for what leaves and has no device to go to. Pure.
//!
//! How much may be compressed follows from the process's limit, and the supervisor may raise that: the limit of a process
//! that has just begun is what others have given up so far. So memory is full only when the supervisor says that the
//! process has all that it can have, or when more was promised and does not come.
//!
//! | state | event | next | told |
//! |---|---|---|---|
//! | Content | no room | Asked | `Ask` |
//! | Asked | no room, and no answer | Asked | `Wait` |
//! | Asked | no room, more is to come, the limit has changed | Asked, from now | `Wait` |
//! | Asked | no room, more is to come since less than `PATIENCE_NS` | Asked | `Wait` |
//! | Asked | no room, more is to come, but does not | InVain | `Full` |
//! | Asked | no room, it has all, and more than when it asked | Content | `Wait` |
//! | Asked | no room, it has all | Content | `Full` |
//! | Asked | room | Content | |
//! | InVain | no room, the same limit | InVain | `Full` |
//! | InVain | no room, another limit | Asked | `Ask` |
//! | InVain | room | InVain | |

use crate::control::{More, MoreAsked};

/// So long others may take to give up anything at all: they may be unable to.
const PATIENCE_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Content,
    Asked {
        /// The limit when it asked, and when it was last seen to have changed.
        first: i64,
        limit: i64,
        since_ns: u64,
    },
    InVain {
        limit: i64,
    },
}

/// What is to be done where there is no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The supervisor is to be asked this.
    Ask(MoreAsked),
    /// It is soon known, or there is room already.
    Wait,
    Full,
}

pub struct MoreMemory {
    state: State,
    question: MoreAsked,
}

impl Default for MoreMemory {
    fn default() -> MoreMemory {
        MoreMemory {
            state: State::Content,
            question: MoreAsked::FIRST,
        }
    }
}

impl MoreMemory {
    /// The last question.
    pub fn question(&self) -> MoreAsked {
        self.question
    }

    /// There is no room, the limit is `limit` pages, and `answer` was given to the last question.
    pub fn no_room(&mut self, limit: i64, answer: Option<More>, now_ns: u64) -> Step {
        let (state, step) = match (self.state, answer) {
            (State::InVain { limit: then }, _) if then == limit => (self.state, Step::Full),
            (State::Content | State::InVain { .. }, _) => {
                self.question = self.question.next();
                (asked(limit, limit, now_ns), Step::Ask(self.question))
            }
            (State::Asked { .. }, None) => (self.state, Step::Wait),
            (
                State::Asked {
                    first, limit: then, ..
                },
                Some(More::ToCome),
            ) if then != limit => (asked(first, limit, now_ns), Step::Wait),
            (State::Asked { since_ns, .. }, Some(More::ToCome)) => {
                match now_ns.saturating_sub(since_ns) < PATIENCE_NS {
                    true => (self.state, Step::Wait),
                    false => (State::InVain { limit }, Step::Full),
                }
            }
            (State::Asked { first, .. }, Some(More::HasAll)) => {
                let step = if limit > first {
                    Step::Wait
                } else {
                    Step::Full
                };
                (State::Content, step)
            }
        };
        self.state = state;
        step
    }

    /// There is room. Says whether a question was open that need not be answered any more.
    pub fn has_room(&mut self) -> bool {
        let was_open = matches!(self.state, State::Asked { .. });
        if was_open {
            self.state = State::Content;
        }
        was_open
    }
}

fn asked(first: i64, limit: i64, since_ns: u64) -> State {
    State::Asked {
        first,
        limit,
        since_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn asked_at(limit: i64) -> MoreMemory {
        let mut m = MoreMemory::default();
        let before = m.question();
        let step = m.no_room(limit, None, 0);
        assert_eq!(step, Step::Ask(m.question()));
        assert_ne!(m.question(), before);
        m
    }

    #[test]
    fn it_is_full_when_the_supervisor_says_so_and_asked_anew_later() {
        let mut m = asked_at(100);
        assert_eq!(m.no_room(100, None, 9000 * MS), Step::Wait);
        assert_eq!(m.no_room(100, Some(More::HasAll), 9000 * MS), Step::Full);
        assert!(matches!(m.no_room(100, None, 9001 * MS), Step::Ask(_)));
    }

    #[test]
    fn a_limit_that_was_raised_is_tried() {
        let mut m = asked_at(100);
        assert_eq!(m.no_room(120, Some(More::HasAll), MS), Step::Wait);
        assert!(matches!(m.no_room(120, None, 2 * MS), Step::Ask(_)));
        assert_eq!(m.no_room(120, Some(More::HasAll), 3 * MS), Step::Full);
    }

    #[test]
    fn it_waits_as_long_as_the_limit_grows() {
        let mut m = asked_at(100);
        let to_come = Some(More::ToCome);
        for i in 1..50 {
            assert_eq!(m.no_room(100 + i, to_come, i as u64 * 900 * MS), Step::Wait);
        }
        assert_eq!(m.no_room(149, to_come, 45_000 * MS), Step::Wait);
        assert_eq!(m.no_room(149, to_come, 45_100 * MS), Step::Full);
    }

    #[test]
    fn what_was_promised_and_did_not_come_is_not_waited_for_again() {
        let mut m = asked_at(100);
        let to_come = Some(More::ToCome);
        assert_eq!(m.no_room(100, to_come, 999 * MS), Step::Wait);
        assert_eq!(m.no_room(100, to_come, 1000 * MS), Step::Full);
        assert!(!m.has_room());
        assert_eq!(m.no_room(100, to_come, 1001 * MS), Step::Full);
        assert!(matches!(m.no_room(101, to_come, 1002 * MS), Step::Ask(_)));
    }

    #[test]
    fn room_ends_the_question() {
        let mut m = asked_at(100);
        assert!(m.has_room());
        assert!(!m.has_room());
        assert!(matches!(m.no_room(100, None, MS), Step::Ask(_)));
    }
}
