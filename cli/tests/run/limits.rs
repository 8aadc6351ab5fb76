//! What a program does to itself, the same with and without us: limits, filters of system calls,
//! addresses that are not there, threads that end one by one.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::support::{compile, Done, Run};

/// Runs the program without us, then on 64 MiB; it ends in the same way and says `ok`.
fn both(program: &str, args: &[&str], above: u64) -> Done {
    let program = compile(program);
    let plain = Command::new(&program).args(args).output().unwrap();
    assert_eq!(plain.stdout, b"ok\n", "{plain:?}");
    let line = [&[program.to_str().unwrap()], args].concat();
    let done = Run::new(64, line).above(above).go();
    assert_eq!(done.stdout, "ok\n", "{done}");
    assert_eq!(done.code(), plain.status.code(), "{done}");
    assert_eq!(done.signal(), plain.status.signal(), "{done}");
    assert_eq!(done.oom_kills, 0, "{done}");
    done
}

macro_rules! cases {
    ($program:literal: $($name:ident,)*) => {$(
        #[test]
        fn $name() {
            both($program, &[stringify!($name)], 64).has_swapped();
        }
    )*};
}

cases! {
    "limits":
    few_descriptors,
    no_descriptors,
    all_descriptors,
    few_processes,
    small_stacks,
    less_data,
    fewer_addresses,
}

/// Swap can't be written any more: the memory stays, and everything in it.
#[test]
fn small_files() {
    let done = both("limits", &["small_files"], 128);
    // It is as if the disk were full.
    assert!(done.counter("swap_full") > 0, "{done}");
    assert_eq!(done.counter("swap_write_errors"), 0, "{done}");
    assert!(done.stderr.contains("swap is full"), "{done}");
}

/// Settings of the machine, as they were when this is dropped.
struct Overcommit([(&'static str, String); 3]);

impl Overcommit {
    /// Not at all, and with so many KiB that nobody else on the machine comes to the end of them.
    fn never(kilobytes: u64) -> Overcommit {
        // Of the last two the one that is set takes the other's place.
        let names = ["overcommit_memory", "overcommit_ratio", "overcommit_kbytes"];
        let before = names.map(|name| (name, fs::read_to_string(Self::path(name)).unwrap()));
        let guard = Overcommit(before);
        fs::write(Self::path("overcommit_kbytes"), kilobytes.to_string()).unwrap();
        fs::write(Self::path("overcommit_memory"), "2").unwrap();
        guard
    }

    fn path(name: &str) -> String {
        format!("/proc/sys/vm/{name}")
    }
}

impl Drop for Overcommit {
    fn drop(&mut self) {
        let [memory, share, absolute] = &self.0;
        // The one of these that is not in use is 0, and setting it would end the other.
        let how_much = if absolute.1.trim() == "0" {
            share
        } else {
            absolute
        };
        for (name, was) in [memory, how_much] {
            let _ = fs::write(Self::path(name), was);
        }
    }
}

/// Where memory is not overcommitted the same calls fail in the same way.
#[test]
fn no_overcommit() {
    let _set = Overcommit::never(1 << 30);
    both("limits", &["no_overcommit"], 64).has_swapped();
}

/// What the engine may need of writable addresses is a small part of such a limit, in the program and
/// its children.
#[test]
fn little_data() {
    let hog = compile("hog");
    let line = format!(
        "ulimit -d 1000000 && {} 160 && exec sh -c '{} 160'",
        hog.display(),
        hog.display()
    );
    let done = Run::new(64, ["sh", "-c", &line]).ok();
    assert_eq!(done.stdout, "ok\nok\n", "{done}");
    done.has_swapped();
}

/// Each thread costs the kernel some 30 KiB of memory of its own.
#[test]
fn many_threads() {
    both("limits", &["many_threads"], 256).has_swapped();
}

#[test]
fn bad_addresses() {
    both("bad", &[], 64).has_swapped();
}

cases! {
    "sandbox":
    touches_only,
    maps_too,
    plain_program,
    starts_nothing,
    plain_without_descriptors,
    plain_of_two,
    plain_with_signals,
    no_mappings,
    one_of_two,
    asks_only,
    for_all_threads,
    killed_thread,
    one_by_one,
    of_vfork_child,
    refused,
}

cases! {
    "all_locked":
    guards_go_from_all,
    who_waits_behind_guards,
    all_that_comes,
    all_that_comes_refused,
    all_refused,
    guards_in_all,
    odd_stretches,
    sealed_beyond,
    dropped_before_sealed,
    keys_stay_locked,
}

/// Descriptors are the program's: hooks have none in its table.
#[test]
fn numbers_of_descriptors_are_the_programs() {
    both("numbers_taken", &[], 64).has_swapped();
}

/// The engine's threads refuse a filter for all; the program is told so.
#[test]
fn for_all_of_two() {
    let program = compile("sandbox");
    let line = [program.to_str().unwrap(), "for_all_of_two"];
    let done = Run::new(64, line).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}
