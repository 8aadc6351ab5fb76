//! Tells the program which commit it was built from, for the benchmarks' report.

use std::process::Command;

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // From an archive there is no commit to tell.
    if let Some(commit) = git(&["describe", "--always", "--dirty", "--abbrev=10"]) {
        println!("cargo:rustc-env=HUGESWAP_COMMIT={commit}");
    }
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
}
