//! What a program sets for its thread or its process is nothing to hooks and the engine's threads: c/own_state.c.

use crate::support::{compile, Run};

fn same(what: &str) {
    let program = compile("own_state");
    let plain = std::process::Command::new(&program)
        .arg(what)
        .output()
        .unwrap();
    assert_eq!(plain.stdout, b"ok\n", "{plain:?}");
    let done = Run::new(64, [program.to_str().unwrap(), what]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    assert_eq!(done.stderr, "", "{done}");
    done.has_swapped();
}

macro_rules! cases {
    ($($name:ident,)*) => {$(
        #[test]
        fn $name() {
            same(stringify!($name));
        }
    )*};
}

cases! {
    float_exceptions,
    single_steps,
    alignment,
    no_counter,
    no_new_code,
    protections,
    heap_by_number,
    calls_dispatched,
}
