//! One contiguous transfer and how it goes on after the kernel has answered.
//!
//! Pure: shared by the io_uring queue and the synchronous one, and the place where tests inject
//! what a kernel may answer.

use super::{IoError, Op};
use hugeswap_mm::PAGE_SIZE;

/// Attempts in a row without a single new byte before a transfer is given up.
pub const MAX_IDLE_ATTEMPTS: u16 = 512;

/// What to do after an answer of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Every byte is transferred.
    Done,
    /// A part is transferred: issue [`Piece::rest`].
    Short,
    /// A passing error: issue [`Piece::rest`] again.
    Retry,
    /// Given up.
    Fail(IoError),
}

/// A contiguous part of a request.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    op: Op,
    offset: u64,
    addr: *mut u8,
    len: u32,
    /// Bytes known to be transferred from the start.
    done: u32,
    idle: u16,
}

// SAFETY: a piece only carries the address; it is used under the contract of `Queue::submit`.
#[allow(unsafe_code)]
unsafe impl Send for Piece {}

/// The range to hand to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub offset: u64,
    pub addr: *mut u8,
    pub len: u32,
}

impl Piece {
    pub const NONE: Self = Self {
        op: Op::Read,
        offset: 0,
        addr: std::ptr::null_mut(),
        len: 0,
        done: 0,
        idle: 0,
    };

    pub fn new(op: Op, offset: u64, addr: *mut u8, len: u32) -> Self {
        Self {
            op,
            offset,
            addr,
            len,
            done: 0,
            idle: 0,
        }
    }

    /// Where the next attempt starts. Direct I/O wants aligned ranges, so a transfer that stopped
    /// inside a page repeats that page.
    fn restart(&self) -> u32 {
        self.done - self.done % PAGE_SIZE as u32
    }

    /// What is still to be transferred; never empty before [`Step::Done`].
    pub fn rest(&self) -> Range {
        let from = self.restart();
        Range {
            offset: self.offset + u64::from(from),
            addr: self.addr.wrapping_add(from as usize),
            len: self.len - from,
        }
    }

    /// Takes the kernel's answer to an attempt at [`rest`](Self::rest): bytes, or a negative
    /// errno.
    pub fn advance(&mut self, answer: i32) -> Step {
        if answer < 0 {
            let errno = answer.wrapping_neg();
            return match errno {
                // ECANCELED: io_uring gave the work back because the submitting thread ended.
                // ENOMEM: the kernel was short of memory for its own structures.
                libc::EINTR | libc::EAGAIN | libc::ECANCELED | libc::ENOMEM => {
                    self.without_progress(Step::Retry, IoError::from_errno(errno))
                }
                _ => Step::Fail(IoError::from_errno(errno)),
            };
        }
        let answer = answer.unsigned_abs();
        if answer == 0 {
            return match self.op {
                Op::Read => Step::Fail(IoError::UnexpectedEnd),
                Op::Write => self.without_progress(Step::Short, IoError::Stalled),
            };
        }
        let Some(done) = self
            .restart()
            .checked_add(answer)
            .filter(|done| *done <= self.len)
        else {
            // More bytes than asked for: nothing the kernel says about this can be trusted.
            return Step::Fail(IoError::Io);
        };
        if done == self.len {
            self.done = done;
            return Step::Done;
        }
        if done <= self.done {
            return self.without_progress(Step::Short, IoError::Stalled);
        }
        self.done = done;
        self.idle = 0;
        Step::Short
    }

    fn without_progress(&mut self, go_on: Step, give_up: IoError) -> Step {
        self.idle += 1;
        if self.idle > MAX_IDLE_ATTEMPTS {
            Step::Fail(give_up)
        } else {
            go_on
        }
    }
}

/// An answer a test puts in the place of the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The kernel's own.
    Real,
    /// Only this many bytes are transferred.
    Short(u32),
    /// Nothing is transferred; this errno comes back.
    Errno(i32),
}

/// A source of answers for tests; asked once for each attempt. Must not allocate.
pub trait Inject: Send + Sync {
    fn answer(&self, op: Op, offset: u64, len: u32) -> Answer;
}

/// How an attempt with an injected answer is carried out: really transfer `len` bytes (whole
/// pages, perhaps none), then pretend `answer`, if any, instead of the count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    pub len: u32,
    pub answer: Option<i32>,
}

impl Attempt {
    pub const REAL: Self = Self {
        len: u32::MAX,
        answer: None,
    };

    pub fn plan(answer: Answer, len: u32) -> Self {
        match answer {
            Answer::Short(n) if n < len => {
                // A count that ends inside a page leaves that page untouched: code that goes on
                // behind it instead of repeating it loses data and is found out.
                let whole = n - n % PAGE_SIZE as u32;
                Self {
                    len: whole,
                    answer: i32::try_from(n).ok(),
                }
            }
            Answer::Errno(errno) => Self {
                len: 0,
                answer: Some(-errno),
            },
            _ => Self { len, answer: None },
        }
    }

    /// What the transfer is told, given what the kernel said to the real part.
    pub fn result(&self, real: i32) -> i32 {
        match self.answer {
            // A real failure beats a pretended success.
            Some(answer) if real >= 0 || answer < 0 => answer,
            _ => real,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(op: Op) -> Piece {
        Piece::new(
            op,
            1 << 20,
            std::ptr::without_provenance_mut(1 << 30),
            16384,
        )
    }

    #[test]
    fn short_transfer_goes_on_at_the_page_it_stopped_in() {
        let mut read = piece(Op::Read);
        assert_eq!(read.advance(5000), Step::Short);
        let rest = read.rest();
        assert_eq!((rest.offset, rest.len), ((1 << 20) + 4096, 12288));
        assert_eq!(rest.addr.addr(), (1 << 30) + 4096);
        assert_eq!(read.advance(12288), Step::Done);
    }

    #[test]
    fn end_of_file_is_an_error_for_a_read() {
        assert_eq!(
            piece(Op::Read).advance(0),
            Step::Fail(IoError::UnexpectedEnd)
        );
        assert_eq!(piece(Op::Write).advance(0), Step::Short);
    }

    #[test]
    fn more_than_asked_is_an_error() {
        assert_eq!(piece(Op::Read).advance(16385), Step::Fail(IoError::Io));
    }

    #[test]
    fn no_progress_ends() {
        for (answer, error) in [
            (0, IoError::Stalled),
            (100, IoError::Stalled),
            (-libc::EAGAIN, IoError::Other(libc::EAGAIN)),
            (-libc::EINTR, IoError::Other(libc::EINTR)),
        ] {
            let mut write = piece(Op::Write);
            let mut attempts = 0;
            let end = loop {
                attempts += 1;
                match write.advance(answer) {
                    Step::Short | Step::Retry => assert!(attempts < 10_000),
                    end => break end,
                }
            };
            assert_eq!(end, Step::Fail(error));
        }
    }

    #[test]
    fn errors_have_meanings() {
        for (errno, error) in [
            (libc::EIO, IoError::Io),
            (libc::ENOSPC, IoError::NoSpace),
            (libc::EBADF, IoError::Gone),
            (libc::EFAULT, IoError::Other(libc::EFAULT)),
        ] {
            assert_eq!(piece(Op::Write).advance(-errno), Step::Fail(error));
        }
        assert!(matches!(piece(Op::Read).advance(i32::MIN), Step::Fail(_)));
    }
}
