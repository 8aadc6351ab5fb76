//! How processes and threads begin and end: what the kernel reads and writes then, see
//! c/kernel_writes.c, and calls of ours that are left in the middle, see c/endings.c.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::support::{compile, compile_with, Done, Run};

/// The same with and without us.
fn both(name: &str, what: &str) -> Done {
    let program = compile(name);
    let plain = Command::new(&program).arg(what).output().unwrap();
    assert_eq!(plain.stdout, b"ok\n", "{plain:?}");
    let done = Run::new(64, [program.to_str().unwrap(), what]).go();
    assert_eq!(done.stdout, "ok\n", "{done}");
    assert_eq!(done.status.into_raw(), plain.status.into_raw(), "{done}");
    done
}

macro_rules! cases {
    ($program:literal, $($name:ident,)*) => {$(
        #[test]
        fn $name() {
            both($program, stringify!($name));
        }
    )*};
}

cases! {
    "kernel_writes",
    words_of_clone,
    words_of_clone3,
    cleared_words,
    robust_lists,
    rseq_area,
}

cases! {
    "endings",
    in_handlers,
    cancelled,
    jumps,
    jumps_without_masks,
    first_thread,
    one_by_one_without_descriptors,
    strict,
    strict_and_more,
}

// Threads that the C library does not know, and that are the program's.
cases! {
    "own_tls",
    drops,
    moves,
    maps,
}

// Children that the C library does not know.
cases! {
    "by_number",
    bytes_stay,
    filtered,
}

/// It stops all threads, the engine's too, and then reads memory: so the program is left alone.
#[test]
fn leaks_are_looked_for() {
    let program = compile_with("walk", "walk-leak", &["-fsanitize=leak", "-pthread"]);
    let done = Run::new(64, [program.to_str().unwrap(), "8", "1", "0"])
        .env("LSAN_OPTIONS", "exitcode=0")
        .ok();
    assert!(done.stderr.contains("LeakSanitizer"), "{done}");
}
