//! Compressed memory: what leaves the program and has not gone to a device.

use crate::support::{compile, Done, Run};

fn jumps(megabytes: &str, compress: &str) -> Done {
    let program = compile("jumps").display().to_string();
    Run::new(64, [program.as_str(), megabytes, "30000", "2", "0"])
        .option(format!("--compress={compress}"))
        .ok()
}

/// What fits needs no read.
#[test]
fn jumps_find_their_pages_in_memory() {
    let done = jumps("112", "70%");
    assert!(
        done.counter("zswpout") > 0 && done.counter("zswpin") > 0,
        "{done}"
    );
    assert!(done.counter("zswpin") > done.counter("pswpin"), "{done}");
}

#[test]
fn what_is_too_much_goes_on_to_swap() {
    let done = jumps("192", "20%");
    assert!(done.counter("zswpwb") > 0, "{done}");
    assert!(done.counter("pswpin") > 0, "{done}");
    let (pool, share) = (done.counter("peak_zswap_pool_bytes"), (64 << 20) / 5);
    assert!(pool < share + (8 << 20), "{pool}: {done}");
}

#[test]
fn off_means_none() {
    let done = jumps("112", "off");
    assert_eq!(done.counter("zswpout"), 0, "{done}");
}

#[test]
fn forked_moved_and_dropped() {
    let program = compile("compressed").display().to_string();
    for compress in ["auto", "25%", "60%"] {
        let run = Run::new(64, [program.as_str(), "128"]);
        let run = run.option(format!("--compress={compress}"));
        let done = run.ok();
        assert_eq!(done.stdout, "ok\n", "{compress}: {done}");
        assert!(done.counter("zswpout") > 0, "{compress}: {done}");
    }
}

#[test]
fn a_share_is_checked() {
    for bad in ["91%", "x", "-1%", "40"] {
        let done = Run::new(64, ["true"])
            .option(format!("--compress={bad}"))
            .go();
        assert_eq!(done.code(), Some(2), "{bad}: {done}");
        assert!(done.stderr.contains("as in 40%"), "{bad}: {done}");
    }
}
