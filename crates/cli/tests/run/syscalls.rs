//! System calls on memory that is swapped out.

use crate::support::{compile, Dir, Run};

fn run(what: &str) {
    let program = compile("syscalls");
    let dir = Dir::new("files");
    let line = [
        program.to_str().unwrap(),
        what,
        dir.path().to_str().unwrap(),
    ];
    let done = Run::new(64, line).seconds(60).ok();
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
    let done = Run::new(64, [program.to_str().unwrap(), what])
        .seconds(60)
        .ok();
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
}

/// The kernel allows one userfaultfd for each mapping.
#[test]
fn a_userfaultfd_of_its_own() {
    let program = compile("own_uffd");
    let plain = std::process::Command::new(&program).output().unwrap();
    assert_eq!(plain.stdout, b"ok\n", "{plain:?}");
    let done = Run::new(64, [program]).seconds(60).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
}
