//! One line on standard error that says what is being done, where that is a
//! terminal.

use std::io::{IsTerminal, Write};
use std::time::Instant;

pub struct Progress {
    /// What stands there now; empty if nothing does.
    shown: String,
    terminal: bool,
    start: Instant,
}

impl Progress {
    pub fn new() -> Progress {
        Progress {
            shown: String::new(),
            terminal: std::io::stderr().is_terminal(),
            start: Instant::now(),
        }
    }

    pub fn show(&mut self, text: &str) {
        if self.terminal {
            let seconds = self.start.elapsed().as_secs();
            let line = format!("{text}, {seconds} s");
            if line != self.shown {
                // A terminal that is gone is no reason to stop measuring.
                let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
                self.shown = line;
            }
        }
    }

    /// Before anything else is printed.
    pub fn clear(&mut self) {
        if !std::mem::take(&mut self.shown).is_empty() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Default for Progress {
    fn default() -> Progress {
        Progress::new()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
