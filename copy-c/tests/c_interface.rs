//! Compiles `c_interface.c` against the header and the static library, and
//! runs it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The static library that cargo built beside this test.
fn library() -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    let deps = deps.parent().unwrap();
    let mut found: Vec<PathBuf> = std::fs::read_dir(deps)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("libhugeswap_copy") && name.ends_with(".a")
        })
        .collect();
    found.sort_by_key(|path| path.metadata().unwrap().modified().unwrap());
    found.pop().expect("no static library beside the test")
}

#[test]
#[cfg_attr(miri, ignore = "Miri runs no C")]
fn a_c_program_copies_and_clears() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("c_interface");
    let built = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"])
        .arg(here.join("../include"))
        .arg(here.join("tests/c_interface.c"))
        .arg(library())
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program)
        .output()
        .expect("the C compiler runs");
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{errors}");

    let ran = Command::new(&program).output().unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{errors}");
    assert_eq!(ran.stdout, b"ok\n");
}
