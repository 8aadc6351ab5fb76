//! What `./test` does about a test that hangs: tools/watch.sh.

use std::process::Command;

#[test]
fn what_hangs_is_ended_and_said() {
    let watch = concat!(env!("CARGO_MANIFEST_DIR"), "/../tools/watch.sh");
    let hung = std::env::temp_dir().join(format!("hugeswap-hung-{}", std::process::id()));
    let output = Command::new(watch)
        .args(["sh", "-c", "echo begun; sleep 600; echo \"ended: $?\""])
        .env("HUGESWAP_TEST_SECONDS", "2")
        .env("HUGESWAP_TEST_HUNG", &hung)
        .output()
        .unwrap();
    let said = std::fs::read_to_string(&hung).unwrap();
    let _ = std::fs::remove_file(&hung);
    // The program goes on when what it has started was killed.
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"begun\nended: 137\n", "{output:?}");
    for what in ["nothing has come for 2 s", ": sleep 600", "nanosleep"] {
        assert!(said.contains(what), "{what}: {said}");
    }
}

/// Nor does it add anything to what works.
#[test]
fn what_ends_is_left_alone() {
    let watch = concat!(env!("CARGO_MANIFEST_DIR"), "/../tools/watch.sh");
    let output = Command::new(watch)
        .args(["sh", "-c", "echo said; exit 7"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert!(
        output.stdout == b"said\n" && output.stderr.is_empty(),
        "{output:?}"
    );
}
