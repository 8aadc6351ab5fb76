//! What leaves memory, and how much of swap it takes.

use crate::support::{compile, kill, long, Done, Run};

fn zeros(megabytes: &str, rounds: u32, seed: u32, part: &[&str]) -> Run {
    let program = compile("zeros").display().to_string();
    let mut line = vec![program, megabytes.into()];
    line.extend([rounds.to_string(), seed.to_string()]);
    line.extend(part.iter().map(ToString::to_string));
    Run::new(64, line)
}

fn ok(run: Run) -> Done {
    let done = run.ok();
    assert_eq!(done.stdout.lines().last(), Some("ok"), "{done}");
    done.has_swapped();
    done
}

/// What was advised free is not written to swap, and what was written after that is kept.
#[test]
fn what_is_free_is_not_written() {
    let program = compile("freed");
    let done = Run::new(64, [program.to_str().unwrap(), "40", "48"]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    // Not half of what would have to leave without the advice.
    assert!(done.counter("pswpout") < 12 << 8, "{done}");
    // What is in swap is dropped there.
    let done = ok(Run::new(64, [program.to_str().unwrap(), "160", "48"]));
    assert!(done.counter("pswpin") < 32 << 8, "{done}");
}

/// Pages of zeros leave without a write, and read as zeros again.
#[test]
fn zeros_are_not_written() {
    let done = ok(zeros("192", 0, 1, &["zero"]));
    let pages = 192 << 8;
    let zero = done.counter("swpout_zero");
    assert!(zero > 2 * (pages - (64 << 8)), "{done}");
    // What was written before it was cleared, and nothing more.
    assert!(done.counter("pswpout") < 2 * pages, "{done}");
}

#[test]
fn zeros_among_data() {
    let rounds = if long() { 3000 } else { 20 };
    for seed in [1, 2] {
        let done = ok(zeros("160", rounds, seed, &[]));
        assert!(done.counter("swpout_zero") > 0, "{done}");
    }
}

/// A program that uses a little of each 2 MiB needs swap for what it uses; and when it has let go
/// of all of it, none.
#[test]
fn few_pages_of_each_huge_page() {
    for (megabytes, pages) in [("4096", 1), ("1024", 8)] {
        let program = compile("sparse").display().to_string();
        let pages_text = pages.to_string();
        let mut run = Run::new(64, [program.as_str(), megabytes, &pages_text, "1"])
            .option("--swap-size=64M")
            .start();
        run.wait_for_output("unmapped");
        let mut left = u64::MAX;
        // Statistics are written once a second; a busy machine takes longer.
        for _ in 0..300 {
            std::thread::sleep(std::time::Duration::from_millis(100));
            let stats = run.read_stats().unwrap_or_default();
            left = stats["counters"]["swapped_bytes"].as_u64().unwrap_or(left);
            if left == 0 {
                break;
            }
        }
        kill(run.program(), libc::SIGUSR1);
        let done = run.finish();
        assert_eq!(done.stdout.lines().last(), Some("ok"), "{done}");
        done.has_swapped();
        assert_eq!(left, 0, "swap that nobody uses is not given back: {done}");
        assert_eq!(done.counter("swap_full"), 0, "{done}");
        let touched = megabytes.parse::<u64>().unwrap() / 2 * pages * 4096;
        let most = done.counter("peak_swapped_bytes");
        // And a little for what is lent to the child and changed meanwhile.
        assert!(
            most <= touched + touched / 8,
            "{most} for {touched} bytes: {done}"
        );
        // The folios that came while there was room; later first touches bring few pages of zeros.
        assert!(done.counter("swpout_zero") > 30_000, "{done}");
    }
}

/// What is only read is written once; and of a folio that changed in a few places, these.
#[test]
fn unchanged_folios_are_not_written_again() {
    let pages = 160 << 8;
    for changes in ["0", "2"] {
        let program = compile("walk").display().to_string();
        let done = ok(Run::new(64, [program.as_str(), "160", "8", changes]));
        // Eight rounds over 160 MiB in 64 MiB: as good as all of it leaves eight times.
        assert!(done.counter("pgsteal") > 6 * pages, "{done}");
        assert!(done.counter("pswpout") < 2 * pages, "{done}");
        assert!(done.counter("swap_clean") > 4 * pages, "{done}");
    }
    // Memory in place of a disk takes a write in no more time than two checksums.
    let program = compile("walk").display().to_string();
    let done = ok(Run::new(64, [program.as_str(), "160", "3", "0"])
        .swap("ram")
        .above(320));
    assert!(done.counter("swap_clean") < pages, "{done}");
}

/// Who goes through a table by its columns wants one page of each row, and gets little else once that was seen: all of it fits then.
#[test]
fn what_is_used_here_and_there_gets_no_folios() {
    let program = compile("columns").display().to_string();
    let run = |step: &str, value: &str| {
        let args = [program.as_str(), "192", step, "20", value];
        let done = Run::new(64, args).ok();
        assert_eq!(done.stdout, "ok\n", "{done}");
        done
    };
    for (step, value) in [("16", "0"), ("16", "1"), ("5", "0"), ("5", "1")] {
        let done = run(step, value);
        // 96 ranges; each would get one in each of twenty rounds, and leave as many times.
        assert!(done.counter("thp_fault_alloc") < 4 * 96, "{done}");
        assert!(done.counter("pgsteal") < 6 * (192 << 8), "{done}");
    }
    // Here half of the pages are too many for that.
    run("2", "0");
    run("2", "1");
}

/// What left at different times lies in another order in swap, and comes back in few requests.
#[test]
fn what_left_in_pieces_is_gathered() {
    let program = compile("gathered").display().to_string();
    let plain: &[(&str, &str)] = &[];
    let short = [("HUGESWAP_INJECT", "short=every:3,delay=4,reorder,seed=5")];
    for (env, option) in [(plain, ""), (plain, "--no-encrypt"), (&short, "")] {
        let mut run = Run::new(64, [program.as_str(), "160", "8000", "3"]);
        for (name, value) in env {
            run = run.env(name, value);
        }
        if !option.is_empty() {
            run = run.option(option);
        }
        let done = ok(run);
        assert!(done.counter("swpin_gathered") > 20, "{done}");
        assert_eq!(done.counter("swap_corrupt"), 0, "{done}");
        assert_eq!(done.counter("swap_read_errors"), 0, "{done}");
    }
}

fn writing(rounds: u32, what: &str, inject: &str) -> Done {
    let program = compile("writing").display().to_string();
    // What has left is out: nothing stays in its place, to be read without a fault.
    let mut run =
        Run::new(64, [program, rounds.to_string(), what.into()]).env("HUGESWAP_LAZYFREE", "0");
    if !inject.is_empty() {
        run = run.env("HUGESWAP_INJECT", inject);
    }
    let done = run.ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    assert!(done.counter("writeback_copied") > 16, "{done}");
    done
}

/// Who touches a page that is being written gets that page; the others leave, and its slot stays true.
#[test]
fn what_is_touched_while_it_is_written_comes_back_alone() {
    let done = writing(400, "read", "");
    let pages = 24 << 9;
    assert!(done.counter("pgsteal") > 4 * pages, "{done}");
    assert!(done.counter("pswpout") < 3 * pages / 2, "{done}");
}

#[test]
fn what_is_changed_while_it_is_written_is_written_again() {
    let rounds = if long() { 20_000 } else { 400 };
    for inject in ["", "delay=3,reorder,short=every:3", "write-eio=every:40"] {
        writing(rounds, "write", inject);
    }
}
