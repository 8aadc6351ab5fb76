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
