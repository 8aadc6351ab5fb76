//! What supervisor and front tell each other.

use std::fs::File;
use std::io::{Read, Write};

use super::sys::Status;

/// From the supervisor to the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The program runs, as this process.
    Started(i32),
    /// The program was stopped by this signal.
    Stopped(i32),
    /// Whether the signal that the front asked for was sent to the group.
    OfGroup(bool),
    Ended {
        /// The program's.
        status: Status,
        /// The supervisor stays for the sake of others.
        stays: bool,
    },
}

impl News {
    /// The program ended, or was never there, and nobody else is left.
    pub fn ended_alone(code: u8) -> News {
        News::Ended {
            status: Status::Exited(code),
            stays: false,
        }
    }

    fn to_words(self) -> [i32; 3] {
        match self {
            News::Started(pid) => [0, pid, 0],
            News::Stopped(signal) => [1, signal, 0],
            News::OfGroup(yes) => [2, yes.into(), 0],
            News::Ended { status, stays } => match status {
                Status::Exited(code) => [3, code.into(), stays.into()],
                Status::Killed(signal) => [4, signal, stays.into()],
            },
        }
    }

    fn from_words([kind, value, stays]: [i32; 3]) -> Option<News> {
        let ended = |status| News::Ended {
            status,
            stays: stays != 0,
        };
        Some(match kind {
            0 => News::Started(value),
            1 => News::Stopped(value),
            2 => News::OfGroup(value != 0),
            3 => ended(Status::Exited(value as u8)),
            4 => ended(Status::Killed(value)),
            _ => return None,
        })
    }

    /// If the front is gone there is nobody to tell. Threads may tell at once: a pipe takes so little as
    /// a whole.
    pub fn tell(self, to: &File) {
        let bytes: Vec<u8> = self
            .to_words()
            .iter()
            .flat_map(|w| w.to_ne_bytes())
            .collect();
        // By the descriptor as it is: there may be none left for another.
        let mut to = to;
        let _ = to.write_all(&bytes);
    }

    /// None when the supervisor is gone.
    pub fn hear(from: &mut File) -> Option<News> {
        let mut bytes = [0u8; 12];
        from.read_exact(&mut bytes).ok()?;
        let word = |i: usize| i32::from_ne_bytes([0, 1, 2, 3].map(|k| bytes[4 * i + k]));
        News::from_words([word(0), word(1), word(2)])
    }
}

/// From the front to the supervisor, a byte each: it asks for a signal, or goes on after a stop.
pub const GOES_ON: u8 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_arrive_as_they_were_told() {
        for news in [
            News::Started(17),
            News::Stopped(libc::SIGTSTP),
            News::OfGroup(true),
            News::OfGroup(false),
            News::Ended {
                status: Status::Exited(3),
                stays: false,
            },
            News::Ended {
                status: Status::Killed(9),
                stays: true,
            },
        ] {
            assert_eq!(News::from_words(news.to_words()), Some(news));
        }
    }
}
