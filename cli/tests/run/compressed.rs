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
    for (compress, codec) in [("auto", "auto"), ("25%", "lz4"), ("60%", "zstd")] {
        let run = Run::new(64, [program.as_str(), "128", "8"]);
        let run = run.option(format!("--compress={compress}"));
        let run = run.option(format!("--compress-codec={codec}"));
        let done = run.ok();
        assert_eq!(done.stdout, "ok\n", "{compress}: {done}");
        assert!(done.counter("zswpout") > 0, "{compress}: {done}");
        let small = done.counter("zswpout_zstd");
        assert!(
            codec == "auto" || (codec == "zstd") == (small > 0),
            "{done}"
        );
    }
}

fn alone(memory: u64, program: &[&str]) -> Run {
    Run::new(memory, program).swap("none")
}

fn went_nowhere(done: &Done) {
    for counter in ["swap_full", "pswpout", "device_write_bytes", "zswpwb"] {
        assert_eq!(done.counter(counter), 0, "{counter}: {done}");
    }
}

#[test]
fn without_a_device_what_compresses_fits() {
    let program = compile("jumps").display().to_string();
    let done = alone(64, &[&program, "96", "30000", "2", "0"])
        .option("--strict")
        .ok();
    went_nowhere(&done);
    assert!(done.counter("zswpin") > 0, "{done}");
    assert_eq!(done.counter("zswap_reject_compress_poor"), 0, "{done}");
}

/// What does not compress is there as it is. A child has a copy of all.
#[test]
fn without_a_device_forked_moved_and_dropped() {
    let program = compile("compressed").display().to_string();
    // Parent and child share the limit, and each counts its own pool.
    let done = alone(200, &[&program, "96", "8"]).option("--strict").ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    went_nowhere(&done);
    assert!(done.counter("zswpout") > 0, "{done}");
}

/// Compressed memory is nearly full when every second page of it goes.
#[test]
fn without_a_device_places_are_used_again() {
    let program = compile("brim").display().to_string();
    let done = alone(64, &[&program, "106", "40"]).option("--strict").ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    went_nowhere(&done);
}

#[test]
fn without_a_device_there_is_an_end() {
    let program = compile("hog").display().to_string();
    let hog = [program.as_str(), "224"];
    let done = alone(64, &hog).above(320).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    assert!(done.counter("swap_full") > 0, "{done}");
    let says = |done: &Done| done.stderr.contains("compressed memory is full");
    assert!(says(&done), "{done}");
    let done = alone(64, &hog).above(320).option("--strict").go();
    assert_eq!((done.code(), &*done.stdout), (Some(137), ""), "{done}");
    assert!(says(&done), "{done}");
}

#[test]
fn no_device_goes_with_nothing_that_needs_one() {
    for (option, why) in [
        ("--swap=ram", "alone"),
        ("--swap-size=1G", "--swap-size"),
        ("--compress=off", "--compress off"),
    ] {
        let done = alone(64, &["true"]).option(option).go();
        assert_eq!(done.code(), Some(2), "{option}: {done}");
        assert!(done.stderr.contains(why), "{option}: {done}");
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
