//! Building what the tests run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The command, with the library that it preloads beside it. Cargo builds the command for these
/// tests, but no cdylib of another package: that is done here, once.
pub fn hugeswap() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let command = PathBuf::from(env!("CARGO_BIN_EXE_hugeswap"));
        let profile_dir = command.parent().unwrap();
        let profile = match profile_dir.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            name => name,
        };
        let output = Command::new(env!("CARGO"))
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
            .args(["build", "--quiet", "--profile", profile, "--target-dir"])
            .arg(profile_dir.parent().unwrap())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(library().is_file(), "{} is not there", library().display());
        command
    })
}

pub fn library() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_hugeswap")).with_file_name("libhugeswap_preload.so")
}

/// Compiles `c/NAME.c`, once.
pub fn compile(name: &str) -> PathBuf {
    compile_with(name, name, &["-pthread"])
}

pub fn compile_with(name: &str, target: &str, flags: &[&str]) -> PathBuf {
    static ONE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let mut done = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("run-{target}"));
    if done.contains(&out) {
        return out;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/run/c/{name}.c"));
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-o"])
        .arg(&out)
        .arg(&source)
        .args(flags)
        .output()
        .expect("these tests need a C compiler: './test' installs one");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    done.push(out.clone());
    out
}
