//! `hugeswap promote` on a machine with two memory nodes, and `hugeswap run` on an old kernel: a
//! stock Debian kernel under QEMU with software emulation, where node 1 has memory and no
//! processor. The guest runs the real binary; `init.sh` there runs the
//! scenarios and says how each went.
//!
//! `./test` fetches the kernels to `target/guest`.

mod guest;

use guest::Guest;

/// The newest kernel, with an event for reads.
const READS: &str = "linux-image-6.12-cloud-amd64";
/// Debian 12's own, 6.1: without it and with the classic lists of pages, and without UFFDIO_MOVE.
const ACTIVATIONS: &str = "linux-image-cloud-amd64";

#[test]
fn promotes_what_is_read_again() {
    Guest::new(READS).run(&["reads"]).passed(&[
        "off-nothing-moves",
        "read-once-stays",
        "hot-is-promoted",
        "nothing-read-from-disk",
        "contents-are-the-same",
        "clean-stop",
        "counters",
        "looking-leaves-no-marks",
        "rights-are-few",
        "once-promotes",
        "once-ends-well",
    ]);
}

#[test]
fn promotes_no_more_than_the_rate_limit() {
    Guest::new(READS).run(&["rate"]).passed(&[
        "rate-is-promoted",
        "rate-limit-holds",
        "rate-all-was-migrated",
        "rate-limited-is-counted",
    ]);
}

#[test]
fn promotes_by_the_kernels_tiers_and_says_what_is_wrong() {
    Guest::new(READS).run(&["tiers", "errors"]).passed(&[
        "tiers-promote",
        "tiers-are-found",
        "no-such-node",
        "no-permission",
        "root-without-rights",
        "no-trace-events",
    ]);
}

#[test]
fn promotes_on_other_file_systems() {
    Guest::new(READS).run(&["files"]).passed(&[
        "xfs-is-promoted",
        "btrfs-is-promoted",
        "deleted-is-promoted",
        "survives-changes",
        "container-is-promoted",
        "path-is-promoted",
        "others-are-not",
    ]);
}

#[test]
fn moves_little_of_a_hot_set_too_large() {
    Guest::new(READS).run(&["thrash"]).passed(&[
        "promotes-demote",
        "promotes-kernel",
        "bounded-demote",
        "bounded-kernel",
    ]);
}

#[test]
fn promotes_to_the_node_nearest_to_the_readers() {
    let names = ["socket-0-is-promoted-there", "socket-1-is-promoted-there"];
    Guest::new(READS)
        .two_sockets()
        .run(&["sockets"])
        .passed(&names);
}

#[test]
fn promotes_what_is_hottest() {
    Guest::new(READS)
        .run(&["heat"])
        .passed(&["heat-comes-first", "heat-scan-gets-the-rest"]);
}

#[test]
fn promotes_what_is_small() {
    let names = ["small-ext4", "small-xfs", "small-btrfs"];
    Guest::new(READS).run(&["small"]).passed(&names);
}

#[test]
fn promotes_with_a_small_budget() {
    let names = ["budget-is-promoted", "budget-is-said", "budget-clean-stop"];
    Guest::new(READS).run(&["budget"]).passed(&names);
}

#[test]
fn promotes_what_is_on_tmpfs() {
    let guest = Guest::new(READS).with_the_hosts_clock();
    guest.run(&["tmpfs"]).passed(&[
        "tmpfs-off-nothing-moves",
        "tmpfs-read-once-stays",
        "tmpfs-is-promoted",
        "tmpfs-contents-are-the-same",
        "tmpfs-probe-left-behind",
        "tmpfs-huge-is-huge",
        "tmpfs-probe-taken-away",
        "tmpfs-huge-is-promoted",
        "tmpfs-huge-contents",
        "tmpfs-probe-is-gone",
        "no-types-is-said",
        "no-types-goes-on",
    ]);
}

const MANY: [&str; 6] = [
    "many-are-there",
    "many-read-once-stays",
    "many-is-promoted",
    "many-few-are-watched",
    "many-contents-are-the-same",
    "many-clean-stop",
];

/// What watching costs does not grow with the processors that do nothing.
#[test]
fn promotes_on_a_machine_with_many_processors() {
    Guest::new(READS).cpus(32).run(&["many"]).passed(&MANY);
}

/// Long, for they are emulated in turns.
#[test]
#[ignore = "long: ./test --long"]
fn promotes_on_a_machine_with_128_processors() {
    Guest::new(READS).cpus(128).run(&["many"]).passed(&MANY);
}

#[test]
fn a_kernel_without_the_event_for_reads() {
    // This kernel does not start by a clock that counts instructions.
    let guest = Guest::new(ACTIVATIONS).with_the_hosts_clock();
    guest.run(&["activations"]).passed(&[
        "watches-activations",
        "read-once-stays",
        "looking-leaves-no-marks",
        "hot-is-promoted",
        "tmpfs-is-promoted",
    ]);
}

/// Pages leave by copying there.
#[test]
fn a_kernel_that_does_not_move_pages() {
    let names = [
        "run-is-right",
        "run-encrypts",
        "run-swaps",
        "run-keeps-its-limit",
    ];
    Guest::new(ACTIVATIONS)
        .with_the_hosts_clock()
        .run(&["run"])
        .passed(&names);
}

/// The limit is the group's, or one above it; the machine has groups of version 2.
#[test]
fn limits_of_memory_groups_of_version_2() {
    let names = [
        "doctor-names-the-group-above",
        "above-is-met",
        "above-kills-nobody",
        "above-is-said",
        "contained-is-met",
        "contained-kills-nobody",
        "contained-is-said",
        "small-group-is-met",
        "small-group-kills-nobody",
        "small-group-of-many-is-met",
        "small-group-of-many-kills-nobody",
        "too-small-is-refused",
        "groups-are-empty",
    ];
    Guest::new(READS)
        .with_the_hosts_clock()
        .run(&["groups"])
        .passed(&names);
}

/// A reader whose hot set is 1.5 times the room on node 0, with promotion off and on.
#[test]
#[ignore = "long: ./test --long"]
fn throughput_under_a_hot_set_too_large() {
    let scenarios = ["throughput"];
    Guest::new(READS).cpus(1).run(&scenarios).passed(&[
        "alive-default",
        "promotes-default",
        "bounded-default",
        "alive-demote",
        "promotes-demote",
        "bounded-demote",
        "throughput-default",
        "throughput-demote",
    ]);
}
