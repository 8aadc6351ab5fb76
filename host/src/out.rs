//! What the command says on standard output and standard error.
//!
//! The standard library's `println!` panics where nothing can be written. Here a reader that went
//! away, as `head` does, ends the command quietly, and a full disk is an error of its own. A
//! benchmark takes down what it has set up first: its next look at [`Interrupt`] says stop.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::aside;
use crate::undo::Interrupt;

/// The exit status of a program that SIGPIPE ended, as a shell reports it.
const PIPE_CLOSED: u8 = 128 + 13;
const FAILED: u8 = 1;

/// The status that the command ends with because its output failed; 0 while it works.
static ENDS_WITH: AtomicU8 = AtomicU8::new(0);

/// Standard output was closed when the command began. The standard library puts /dev/null there, which takes all.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Standard output is for JSON, and what people read goes to standard error.
static JSON_ONLY: AtomicBool = AtomicBool::new(false);

/// As `print!`.
#[macro_export]
macro_rules! out {
    ($($arg:tt)*) => { $crate::out::write(format_args!($($arg)*)) };
}

/// As `println!`.
#[macro_export]
macro_rules! outln {
    () => { $crate::out::write(format_args!("\n")) };
    ($($arg:tt)*) => { $crate::out::write(format_args!("{}\n", format_args!($($arg)*))) };
}

/// As `eprintln!`, but nothing happens where it can't be said.
#[macro_export]
macro_rules! errln {
    () => { $crate::out::write_error(format_args!("\n")) };
    ($($arg:tt)*) => { $crate::out::write_error(format_args!("{}\n", format_args!($($arg)*))) };
}

pub fn write(text: Arguments<'_>) {
    match JSON_ONLY.load(Ordering::Relaxed) {
        true => write_error(text),
        false => bytes(text.to_string().as_bytes()),
    }
}

/// For `--json` of commands that show tables as they go: these go to standard error from now on.
pub fn json_only(yes: bool) {
    JSON_ONLY.store(yes, Ordering::Relaxed);
}

/// What is written to standard output fails from now on, if it was closed when the command began.
pub fn was_closed(yes: bool) {
    CLOSED.store(yes, Ordering::Relaxed);
}

/// What `--json` prints.
pub fn json(document: &impl serde::Serialize) -> Result<(), String> {
    let text = serde_json::to_string_pretty(document).map_err(|err| err.to_string())?;
    bytes(format!("{text}\n").as_bytes());
    Ok(())
}

pub fn bytes(text: &[u8]) {
    if ENDS_WITH.load(Ordering::Relaxed) != 0 {
        return;
    }
    printed(io::stdout().write_all(text));
}

/// Something was written to standard output by other means, or could not be.
pub fn printed(how: io::Result<()>) {
    let how = match CLOSED.load(Ordering::Relaxed) {
        true => Err(io::Error::from_raw_os_error(libc::EBADF)),
        false => how,
    };
    if let Err(err) = how.and_then(|()| io::stdout().flush()) {
        failed(&err);
    }
}

pub fn write_error(text: Arguments<'_>) {
    let text = text.to_string();
    if !aside::say(text.as_bytes()) {
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

fn failed(err: &io::Error) {
    let status = if err.kind() == io::ErrorKind::BrokenPipe {
        PIPE_CLOSED
    } else {
        errln!("hugeswap: can't write to standard output: {err}");
        FAILED
    };
    ENDS_WITH.store(status, Ordering::Relaxed);
    // Whoever watches for Ctrl-C has something to take down.
    if !Interrupt::stop_all() {
        process::exit(status.into());
    }
}

/// The status to end with instead of the command's own, if its output failed.
pub fn failure() -> Option<u8> {
    Some(ENDS_WITH.load(Ordering::Relaxed)).filter(|&s| s != 0)
}
