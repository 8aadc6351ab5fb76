//! System calls on memory that is swapped out.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::{compile, Dir, Run};

fn run(what: &str) {
    let program = compile("syscalls");
    let dir = Dir::new("files");
    let line = [
        program.to_str().unwrap(),
        what,
        dir.path().to_str().unwrap(),
    ];
    let done = Run::new(64, line).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}

macro_rules! cases {
    ($($name:ident,)*) => {$(
        #[test]
        fn $name() {
            run(stringify!($name));
        }
    )*};
}

cases! {
    plain,
    direct,
    vectors,
    pipes,
    sockets,
    spliced,
    locks,
    futexes,
    results,
    stacks,
}

/// What random sequences and real programs found, see c/exact.c: the same with and without us.
fn exact(what: &str) {
    let program = compile("exact");
    let plain = std::process::Command::new(&program)
        .arg(what)
        .output()
        .unwrap();
    assert_eq!(plain.stdout, b"ok\n", "{plain:?}");
    let done = Run::new(64, [program.to_str().unwrap(), what]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}

macro_rules! exact_cases {
    ($($name:ident,)*) => {$(
        #[test]
        fn $name() {
            exact(stringify!($name));
        }
    )*};
}

exact_cases! {
    partly_locked,
    everything_locked,
    heap,
    clones,
    mutexes,
    looks_at_all,
    hinted_while_unmapped,
    mapped_behind_the_break,
    what_is_mapped,
}

/// Where memory lies, and who has it: c/addresses.c.
#[test]
fn addresses() {
    let program = compile("addresses");
    for what in [
        "noreplace",
        "again",
        "no_more",
        "locked_heap",
        "terabytes",
        "far_up",
        "engines_own",
    ] {
        let done = Run::new(64, [program.to_str().unwrap(), what]).ok();
        assert_eq!(done.stdout, "ok\n", "{what}: {done}");
    }
}

/// Where a mapping hints at the end of one that is managed, it is managed too.
#[test]
fn hints_behind_what_is_managed() {
    let program = compile("addresses");
    let done = Run::new(64, [program.to_str().unwrap(), "one_behind_the_other"]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    assert_eq!(done.counter("unmanaged_bytes"), 0, "{done}");
}

/// The run's guard sees what it must, and is not seen: c/guard.c.
#[test]
fn guard() {
    let program = compile("guard");
    for what in ["storm", "listener", "old_calls"] {
        let done = Run::new(64, [program.to_str().unwrap(), what]).ok();
        assert_eq!(done.stdout, "ok\n", "{what}: {done}");
        done.has_swapped();
    }
}

/// Memory that pkey_mprotect opens is managed as that which mprotect opens.
#[test]
fn protection_keys() {
    let done = Run::new(64, [compile("keys")]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}

/// mremap takes along what was said of the memory, see c/remaps.c.
#[test]
fn remaps() {
    let program = compile("remaps");
    for what in [
        "wiped",
        "not_for_children",
        "guarded",
        "keyed",
        "pinned",
        "phases",
        "pieces",
        "longer",
        "several",
        "shared",
        "cut",
        "kept",
        "attached",
        "not_there",
        "watched",
        "grown_over",
        "side_by_side",
        "advised",
        "hole_behind",
        "mirrored",
    ] {
        let done = Run::new(64, [program.to_str().unwrap(), what]).ok();
        assert_eq!(done.stdout, "ok\n", "{what}: {done}");
        done.has_swapped();
    }
}

/// Memory for code that is made while the program runs, where calls reach it.
#[test]
fn code_within_reach() {
    let done = Run::new(64, [compile("reach")]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}

/// Go's runtime takes what it has given back for zeros, unless it is told not to.
#[test]
fn memory_of_go() {
    let program = compile("go_like");
    for (given, has) in [
        (None, "madvdontneed=0"),
        (Some("gctrace=0"), "gctrace=0,madvdontneed=0"),
        (Some("madvdontneed=1"), "madvdontneed=1"),
    ] {
        // What is not managed is above the limit.
        let mut run = Run::new(64, [&program]).above(256);
        if let Some(given) = given {
            run = run.env("GODEBUG", given);
        }
        let done = run.ok();
        assert_eq!(done.stdout, format!("{has}\nok\n"), "{done}");
        match has {
            // Nothing of it can be managed.
            "madvdontneed=1" => assert_eq!(done.counter("pswpout"), 0, "{done}"),
            _ => _ = done.has_swapped(),
        }
    }
    // Another program of the run starts it, and says something else, or nothing.
    let name = program.display();
    let script = format!("{name}; echo $?; GODEBUG=a=1 {name}; exec env -u GODEBUG {name}");
    let done = Run::new(64, ["sh", "-c", &script]).above(256).ok();
    let told = "madvdontneed=0\nok\n0\na=1,madvdontneed=0\nok\nmadvdontneed=0\nok\n";
    assert_eq!(done.stdout, told, "{done}");
    done.has_swapped();
    // It is what runs a script.
    let dir = Dir::new("go-script");
    let script = dir.join("script");
    fs::write(&script, format!("#!{name}\n")).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let sh = [OsStr::new("sh"), OsStr::new("-c"), script.as_os_str()];
    for run in [Run::new(64, [&script]), Run::new(64, sh)] {
        let done = run.above(256).ok();
        assert_eq!(done.stdout, "madvdontneed=0\nok\n", "{done}");
        done.has_swapped();
    }
    // This one says to leave it as it is.
    let script = format!("GODEBUG=madvdontneed=1 {name}; echo $?");
    let done = Run::new(64, ["sh", "-c", &script]).above(256).ok();
    assert_eq!(done.stdout, "madvdontneed=1\nok\n0\n", "{done}");
    assert_eq!(done.counter("pswpout"), 0, "{done}");
}

/// What the kernel refuses, or does in part, is the same with us, and so is every page after it.
#[test]
fn asked_and_answered() {
    let program = compile("asks");
    let plain = std::process::Command::new(&program).output().unwrap();
    assert!(plain.status.success(), "{plain:?}");
    let done = Run::new(64, [program]).ok();
    let native = String::from_utf8(plain.stdout).unwrap();
    for (ours, without) in done.stdout.lines().zip(native.lines()) {
        assert_eq!(ours, without);
    }
    assert_eq!(done.stdout.len(), native.len());
    done.has_swapped();
}

/// The kernel allows one userfaultfd for each mapping.
#[test]
fn a_userfaultfd_of_its_own() {
    let program = compile("own_uffd");
    let plain = std::process::Command::new(&program).output().unwrap();
    assert_eq!(plain.stdout, b"ok\n", "{plain:?}");
    let done = Run::new(64, [program]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}
