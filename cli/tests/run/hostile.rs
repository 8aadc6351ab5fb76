//! A process of the run that takes what its engine has and says what no engine says: another one has its memory,
//! its forks and its end all the same.

use crate::support::{compile, Done, Run};

fn attacked_by(what: &str) -> Done {
    let program = compile("hostile");
    let layout = hugeswap_control::LAYOUT.to_string();
    let arguments = [program.to_str().unwrap(), what, &layout];
    let done = Run::new(64, arguments).ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    done
}

#[test]
fn places_without_end_and_no_answer_read() {
    attacked_by("asks");
}

/// A connection that another process has made does not become that process's.
#[test]
fn who_comes_as_another_is_not_let_in() {
    attacked_by("comes as another");
}

#[test]
fn a_pipe_for_a_userfaultfd() {
    attacked_by("faults");
}

#[test]
fn doors_by_which_nobody_comes() {
    attacked_by("doors");
}

/// What it writes in its page is its own loss; and it can't fill the log, nor write orders to a terminal.
#[test]
fn a_page_that_is_scribbled_over() {
    let done = attacked_by("scribbles");
    assert!(done.stderr.lines().count() < 300, "{done}");
    let order = |c: char| c.is_control() && c != '\n';
    assert!(!done.stderr.contains(order), "{done}");
}
