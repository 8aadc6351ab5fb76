//! Faults of the swap device and of the kernel, end to end: what a program under `hugeswap run`
//! sees of them. The faults come from `HUGESWAP_INJECT`; docs/testing.md describes it.
//!
//! A C program (check.c) fills 160 MiB under a limit of 64 MiB, rewrites and reads it in several
//! orders, and compares every word.

mod support;

use support::{Dir, Mount, Run};

const EXIT_BUS: i32 = 128 + libc::SIGBUS;

#[test]
fn short_transfers_and_passing_errors_lose_nothing() {
    for env in [&[][..], &[("HUGESWAP_NO_IO_URING", "1")][..]] {
        for inject in ["short=every:3,seed=1", "short=every:1,seed=7"] {
            let run = Run {
                inject,
                env,
                ..Run::default()
            };
            let ended = run.run();
            ended.all_right().swapped();
            assert_eq!(ended.counter("swap_read_errors"), 0, "{inject}");
            assert_eq!(ended.counter("swap_write_errors"), 0, "{inject}");
        }
    }
}

#[test]
fn late_and_reordered_completions_lose_nothing() {
    for inject in ["delay=1,seed=1", "delay=6,reorder,seed=3"] {
        let run = Run {
            inject,
            ..Run::default()
        };
        run.run().all_right().swapped();
    }
    let ram = Run {
        inject: "delay=4,reorder,seed=5",
        swap: Some("ram".as_ref()),
        ..Run::default()
    };
    ram.run().all_right().swapped();
}

#[test]
fn failed_writes_keep_their_pages_in_memory() {
    // With 64 MiB a folio is sealed and written in parts, with 256 at once.
    for (inject, memory, megabytes) in [
        ("write-eio=nth:3", "64M", 160),
        ("write-eio=every:7", "64M", 160),
        ("write-eio=every:2", "64M", 160),
        ("write-eio=every:7", "256M", 400),
    ] {
        let run = Run {
            inject,
            memory,
            megabytes,
            ..Run::default()
        };
        let ended = run.run();
        ended.all_right().swapped();
        assert!(ended.counter("swap_write_errors") > 0, "{inject}");
        assert_eq!(ended.said("warning: a write to swap failed"), 1, "{inject}");
    }
}

/// No write ever succeeds: the program goes on as if there were no limit, and the device is not
/// hammered.
#[test]
fn a_device_that_takes_no_write_does_not_stop_the_program() {
    let ended = Run {
        inject: "write-eio=every:1",
        ..Run::default()
    }
    .run();
    ended.all_right();
    assert_eq!(ended.counter("pswpout"), 0);
    let failed = ended.counter("swap_write_errors");
    assert!((1..2000).contains(&failed), "{failed}");
    assert_eq!(ended.said("warning: a write to swap failed"), 1);
}

/// A read of many pages that failed is repeated page by page; where every page can be read then,
/// nothing is lost.
#[test]
fn a_passing_read_error_loses_nothing() {
    let ended = Run {
        inject: "read-eio=nth:5",
        ..Run::default()
    }
    .run();
    ended.all_right().swapped();
    assert_eq!(ended.counter("swap_read_errors"), 1);
}

/// One page in about 8 MiB of the device can't be read: that page is lost and no other, it stays
/// lost, and the counter says what the program saw.
#[test]
fn an_unreadable_page_is_lost_alone_and_stays_lost() {
    for env in [&[][..], &[("HUGESWAP_NO_IO_URING", "1")][..]] {
        let ended = Run {
            inject: "bad-page=every:2000",
            env,
            ..Run::default()
        }
        .run();
        let lost = ended.lost();
        ended.swapped();
        assert_eq!(ended.counter("pages_poisoned"), lost);
        // 160 MiB pass over these pages several times; each is lost once, and then not used again.
        assert!((1..400).contains(&lost), "{lost}");
        assert_eq!(ended.said("warning: a page could not be read back"), 1);
    }
}

#[test]
fn scattered_read_errors_lose_single_pages() {
    let ended = Run {
        inject: "read-eio=every:50",
        ..Run::default()
    }
    .run();
    let lost = ended.lost();
    assert_eq!(ended.counter("pages_poisoned"), lost);
    assert!(lost > 0);
}

/// MADV_DONTNEED takes the poison away; the page can be used again.
#[test]
fn a_lost_page_can_be_replaced() {
    let ended = Run {
        inject: "bad-page=every:2000",
        mode: "replace",
        ..Run::default()
    }
    .run();
    let lost = ended.lost();
    assert!(lost > 0);
    assert_eq!(ended.counter("pages_poisoned"), lost);
}

/// Threads that wait for the same page all get SIGBUS; mremap moves the loss along; a child
/// finds it too.
#[test]
fn a_lost_page_is_lost_for_everybody() {
    for mode in ["threads", "remap", "fork"] {
        let ended = Run {
            inject: "bad-page=every:1500",
            mode,
            ..Run::default()
        }
        .run();
        let lost = ended.lost();
        assert!(lost > 0);
        assert_eq!(ended.counter("pages_poisoned"), lost, "{mode}");
    }
}

#[test]
fn a_program_without_a_handler_dies_of_sigbus() {
    let ended = Run {
        inject: "bad-page=every:600",
        mode: "die",
        ..Run::default()
    }
    .run();
    assert_eq!(ended.code(), EXIT_BUS, "{}", ended.stderr());
    assert!(ended.counter("pages_poisoned") > 0);
    assert_eq!(ended.said("warning: a page could not be read back"), 1);
}

/// What fits neither into the limit nor into swap stays in memory, and not much more.
#[test]
fn full_swap_lets_the_program_go_on() {
    let ended = Run {
        inject: "no-space-after=64M",
        ..Run::default()
    }
    .run();
    ended.all_right().swapped();
    assert!(ended.counter("swap_full") > 0);
    assert_eq!(ended.said("warning: swap is full"), 1);
    let peak = ended.counter("peak_resident_bytes");
    // 160 MiB of data, of which 64 are in swap; the rest of the bound is staging.
    assert!(peak < 152 << 20, "{} MiB were resident", peak >> 20);
}

/// A real file system with less room than the file promises.
#[test]
fn a_full_file_system_lets_the_program_go_on() {
    let disk = Mount::ext4(96);
    let ended = Run {
        swap: Some(disk.at()),
        options: &["--swap-size", "512M"],
        ..Run::default()
    }
    .run();
    ended.all_right();
    assert!(ended.counter("pswpout") > 0);
    assert!(ended.counter("swap_full") > 0, "{}", ended.stderr());
    assert_eq!(ended.said("warning: swap is full"), 1);
}

#[test]
fn swap_that_takes_nothing_at_all() {
    let ended = Run {
        inject: "no-space-after=0",
        ..Run::default()
    }
    .run();
    ended.all_right();
    assert_eq!(ended.counter("pswpout"), 0);
    assert_eq!(ended.said("warning: swap is full"), 1);
}

#[test]
fn strict_ends_the_program_when_swap_is_full() {
    let ended = Run {
        inject: "no-space-after=64M",
        options: &["--strict"],
        ..Run::default()
    }
    .run();
    assert_eq!(ended.code(), 137, "{}", ended.stderr());
    assert_eq!(ended.said("--strict was given: ending the program"), 1);
}

#[test]
fn everything_at_once() {
    let ended = Run {
        inject: "short=every:4,write-eio=every:9,bad-page=every:3000,delay=3,reorder,seed=11,\
                 no-space-after=128M",
        rounds: 3,
        ..Run::default()
    }
    .run();
    assert_eq!(ended.counter("pages_poisoned"), ended.lost());
}

#[test]
fn without_io_uring_all_is_right() {
    let ended = Run {
        env: &[("HUGESWAP_NO_IO_URING", "1")],
        ..Run::default()
    }
    .run();
    ended.all_right().swapped();
}

/// Before Linux 6.8 pages leave by copying; that this ends with the first direct I/O is said.
#[test]
fn without_moves_pages_are_copied() {
    let no_move = &[("HUGESWAP_NO_MOVE", "1")][..];
    let ended = Run {
        env: no_move,
        ..Run::default()
    }
    .run();
    ended.all_right().swapped();
    assert_eq!(ended.said("warning: this kernel can't move pages"), 1);
    let strict = Run {
        env: no_move,
        options: &["--strict"],
        ..Run::default()
    }
    .run();
    assert_eq!(strict.code(), 125);
    assert_eq!(strict.stderr().lines().count(), 1, "{}", strict.stderr());
}

#[test]
fn mistakes_in_the_variable_are_one_line() {
    let dir = Dir::new();
    let ended = Run {
        inject: "read-oops=nth:3",
        swap: Some(&dir.0),
        ..Run::default()
    }
    .run();
    assert_eq!(ended.code(), 2);
    let line = ended.stderr();
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.contains("HUGESWAP_INJECT: 'read-oops'"), "{line}");
}
