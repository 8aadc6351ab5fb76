//! How much of what left comes back at a fault: by what the program does, what it says, and what
//! `--swapin` says. docs/swap-in.md.

use std::process::{Command, Output};

use crate::support::{compile, hugeswap, wait_for, Dir, Done, Run, Running};

/// What has left is out: nothing stays in its place.
fn hints(advice: &str, action: &str, swapin: &str) -> Done {
    let run = hinted(advice, action, swapin);
    good(run.env("HUGESWAP_LAZYFREE", "0"))
}

fn hinted(advice: &str, action: &str, swapin: &str) -> Run {
    let program = compile("hints");
    let run = Run::new(64, [program.to_str().unwrap(), advice, action]);
    run.option(format!("--swapin={swapin}"))
}

fn good(run: Run) -> Done {
    let done = run.ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done.has_swapped();
    done
}

/// Reads of more than one page.
fn larger_reads(done: &Done) -> u64 {
    (1..10)
        .map(|order| done.counter(&format!("hugepages-{}kB/swpin", 4 << order)))
        .sum()
}

#[test]
fn walks_and_jumps_are_told_apart() {
    let walk = hints("none", "walk", "auto");
    assert!(walk.counter("hugepages-2048kB/swpin") > 32, "{walk}");
    assert!(walk.counter("swap_ra_hit") > 16, "{walk}");
    let jump = hints("none", "jump", "auto");
    let pages = jump.counter("hugepages-4kB/swpin");
    assert!(pages > 500 && larger_reads(&jump) < pages / 10, "{jump}");
    // On their second chance huge pages give what is touched, and the rest leaves.
    assert!(jump.counter("writeback_copied") > 16, "{jump}");
}

/// What a walk finds there in part comes with all of the rest; ahead of it, where memory was free in time.
#[test]
fn walks_fill_up_what_is_half_there() {
    let done = hints("none", "patches", "auto");
    assert!(done.counter("thp_collapse_alloc") > 8, "{done}");
}

/// What is jumped about in and fits into memory comes altogether, and is huge again.
#[test]
fn a_working_set_that_fits_becomes_whole() {
    let hot = hints("none", "hot", "auto");
    assert!(hot.counter("thp_collapse_alloc") > 8, "{hot}");
    assert!(hot.counter("pgmajfault") < 4000, "{hot}");
    // What does not fit is tried, and left.
    let jump = hints("none", "jump", "auto");
    assert!(jump.counter("thp_collapse_alloc") < 200, "{jump}");
}

/// Neither page by page nor all that lies between.
#[test]
fn strides_are_read_ahead() {
    for (what, least) in [("stride", 300), ("rows", 16)] {
        let done = hints("none", what, "auto");
        assert!(done.counter("stride_ra_hit") > least, "{done}");
        // The eight passes together bring in less than what they pass over once. Where a read
        // takes long, a few ranges come whole: the guess that all that is used may fit.
        assert!(done.counter("pswpin") < 96 * 256, "{done}");
        let never = hints("random", what, "auto");
        assert_eq!(larger_reads(&never), 0, "{never}");
    }
}

/// More pages of a range are wanted at a time than fit into a buffer.
#[test]
fn narrow_strides_are_read_ahead() {
    let done = hints("none", "narrow", "auto");
    assert!(done.counter("stride_ra_hit") > 100, "{done}");
}

/// So many ranges are read ahead at a time, and what is asked for beyond that is left.
#[test]
fn more_is_asked_for_than_is_kept_ready() {
    let program = compile("hints");
    let done = Run::new(128, [program.to_str().unwrap(), "none", "ask"]).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    assert!(done.counter("swap_ra") >= 32, "{done}");
}

#[test]
fn swapin_never() {
    let walk = hints("huge", "walk", "never");
    assert!(walk.counter("hugepages-4kB/swpin") > 10_000, "{walk}");
    assert_eq!(larger_reads(&walk), 0, "{walk}");
    assert_eq!(walk.counter("thp_swpin"), 0, "{walk}");
}

#[test]
fn swapin_always() {
    let visit = hints("random", "visit", "always");
    assert!(visit.counter("thp_swpin") >= 4, "{visit}");
    assert_eq!(visit.counter("hugepages-4kB/swpin"), 0, "{visit}");
}

#[test]
fn swapin_madvise() {
    let unsaid = hints("none", "walk", "madvise");
    assert_eq!(unsaid.counter("thp_swpin"), 0, "{unsaid}");
    let said = hints("huge", "visit", "madvise");
    assert!(said.counter("thp_swpin") >= 4, "{said}");
}

#[test]
fn what_the_program_says() {
    let random = hints("random", "walk", "auto");
    assert_eq!(larger_reads(&random), 0, "{random}");
    let sequential = hints("sequential", "visit", "auto");
    assert!(sequential.counter("thp_swpin") >= 4, "{sequential}");
    // Neither a huge page when it is touched first, nor when it comes back.
    let base = hints("nohuge", "walk", "auto");
    assert_eq!(base.counter("thp_swpin"), 0, "{base}");
    assert!(base.counter("anon_fault_alloc") >= 96 << 8, "{base}");
    assert!(base.counter("hugepages-256kB/swpin") > 16, "{base}");
}

#[test]
fn what_will_be_needed_is_there() {
    let done = hints("none", "will-need", "auto");
    assert!(done.counter("swap_ra") >= 4, "{done}");
    assert!(done.counter("swap_ra_hit") >= 4, "{done}");
}

#[test]
fn what_is_cold_leaves_first() {
    hints("none", "cold", "auto");
}

/// A folio that was taken apart once does not do the same to those that pass through its frame.
#[test]
fn what_is_walked_stays_huge() {
    hints("none", "stay", "auto");
}

/// Where what has left stays in its place a walk passes over it, and goes on behind it as it came.
#[test]
fn walks_pass_over_what_stays() {
    let done = good(hinted("none", "stay", "auto").env("HUGESWAP_LAZYFREE", "100M"));
    assert!(done.counter("pglazyfree") > 1000, "{done}");
    assert!(done.counter("hugepages-4kB/swpin") < 10, "{done}");
}

/// `hugeswap set`, of a run that is going on.
fn set(pid: i32, settings: &[&str]) -> Output {
    let mut command = Command::new(hugeswap());
    command.arg("set").arg(pid.to_string()).args(settings);
    command.output().unwrap()
}

fn now(run: &Running, counters: &[&str]) -> u64 {
    let stats = run.read_stats();
    let of = |name: &&str| stats.as_ref()?["counters"][*name].as_u64();
    counters.iter().filter_map(of).sum()
}

/// Until so many pages more have come in, by faults that began after this was called or just before.
fn go_on(run: &Running) {
    for _ in 0..2 {
        let before = now(run, &["pswpin"]);
        wait_for("pages that come in", || {
            now(run, &["pswpin"]) > before + 500
        });
    }
}

#[test]
fn swapin_changes_while_a_run_goes_on() {
    let dir = Dir::new("set");
    let end = dir.join("end");
    let program = compile("swapoff");
    let mut run = Run::new(
        64,
        [program.to_str().unwrap(), "192", end.to_str().unwrap()],
    )
    .start();
    run.wait_for_output("ready");
    let larger: Vec<String> = (1..10)
        .map(|order| format!("hugepages-{}kB/swpin", 4 << order))
        .collect();
    let larger: Vec<&str> = larger.iter().map(String::as_str).collect();
    wait_for("reads of many pages", || now(&run, &larger) > 0);
    // By the command's own number, and by a program's.
    for (pid, mode) in [(run.front(), "never"), (run.program(), "never")] {
        let out = set(pid, &[&format!("swapin={mode}")]);
        assert!(out.status.success(), "{out:?}");
        let shown = set(pid, &[]);
        assert_eq!(
            String::from_utf8_lossy(&shown.stdout),
            format!("swapin={mode}\n")
        );
    }
    go_on(&run);
    let before = now(&run, &larger);
    go_on(&run);
    assert_eq!(now(&run, &larger), before, "pages come one by one now");
    let out = set(run.front(), &["swapin=always"]);
    assert!(out.status.success(), "{out:?}");
    wait_for("reads of many pages", || now(&run, &larger) > before);
    for (pid, setting, code, why) in [
        (run.front(), "swapin=sometimes", 2, "none of auto"),
        (run.front(), "memory=1G", 2, "can't be changed"),
        (1, "swapin=never", 1, "belongs to no run"),
    ] {
        let out = set(pid, &[setting]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{out:?}");
        assert!(said.contains(why) && said.lines().count() == 1, "{said}");
    }
    std::fs::write(&end, "").unwrap();
    let done = run.finish();
    assert!(
        done.status.success() && done.stdout == "ready\nok\n",
        "{done}"
    );
}
