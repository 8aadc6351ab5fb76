//! Huge pages that are shared since a fork, and written to.

use crate::core_dumps::{memory, mix, Setting};
use crate::support::{compile, hugeswap, library, Dir, Done, Run};
use std::os::unix::process::CommandExt;
use std::process::Command;

const MEGABYTES: usize = 64;

fn run(memory: u64, how: &str, more: &[&str]) -> Done {
    let program = compile("shared").display().to_string();
    let megabytes = MEGABYTES.to_string();
    let mut args = vec![program.as_str(), how, &megabytes];
    args.extend(more);
    let done = Run::new(memory, args).ok();
    assert_eq!(done.stdout, "ok\n", "{how}: {done}");
    done
}

/// Whole folios are copied where a walk goes through them. How many depends on who is first.
#[test]
fn walks_take_whole_folios() {
    for how in ["up", "down"] {
        let done = run(1024, how, &[]);
        assert!(done.counter("thp_cow") > 0, "{how}: {done}");
    }
}

#[test]
fn jumps_are_left_to_the_kernel() {
    for how in ["jump", "apart", "alone"] {
        let done = run(1024, how, &[]);
        assert_eq!(done.counter("thp_cow"), 0, "{how}: {done}");
    }
}

#[test]
fn beside_threads_that_read_and_change_mappings() {
    run(1024, "threads", &[]);
}

#[test]
fn beside_a_device_that_reads_and_writes() {
    let dir = Dir::new("shared");
    let file = dir.join("file").display().to_string();
    run(1024, "direct", &[&file]);
}

#[test]
fn where_memory_is_short() {
    for how in ["up", "down", "jump", "threads"] {
        let done = run(96, how, &[]);
        assert!(
            done.counter("pswpout") + done.counter("zswpout") > 0,
            "{how}: {done}"
        );
    }
}

/// Who dies between two steps of a copy leaves a core file that has what was there.
#[test]
fn a_core_file_has_what_was_being_copied() {
    let program = compile("shared");
    for folios in [2, 5, 9, 14, 23, 30] {
        let dir = Dir::new("shared-core");
        let line = format!(
            "ulimit -c unlimited; cd {}; exec {} die {MEGABYTES} {folios}",
            dir.path().display(),
            program.display()
        );
        let run = Run::new(1024, ["sh", "-c", &line]).start_with(|| {
            (
                Setting::set("core_pattern", "core.%p"),
                Setting::set("core_uses_pid", "0"),
            )
        });
        let done = run.finish();
        let said = done.stdout.lines().find(|l| l.starts_with("program"));
        let said = said.unwrap_or_else(|| panic!("nothing said: {done}"));
        let words: Vec<&str> = said.split(' ').collect();
        let at = u64::from_str_radix(words[2], 16).unwrap();
        let core = dir.join(format!("core.{}", words[1]));
        let bytes = memory(&core, at, MEGABYTES << 20);
        for (w, word) in bytes.chunks_exact(8).enumerate() {
            let word = u64::from_ne_bytes(word.try_into().unwrap());
            let before = mix(w as u64 * 8 + 1);
            assert!(
                word == before || word == before.wrapping_add(1),
                "{folios} folios: word {w} is {word:x}, was {before:x}: {done}"
            );
        }
    }
}

/// A child is under the filters of its parent, and so is its engine.
#[test]
fn under_a_filter_that_kills_who_moves_mappings() {
    let done = run(1024, "filter", &[]);
    assert_eq!(done.counter("thp_cow"), 0, "{done}");
}

/// What is not copied goes back, also where the kernel moves no mapping any more.
#[test]
fn with_as_many_mappings_as_there_may_be() {
    let done = run(1024, "maps", &[]);
    assert!(done.counter("thp_cow_fallback") > 0, "{done}");
}

/// Without the right to serve faults of system calls these write to what is in memory, as before a fork.
#[test]
fn system_calls_write_without_rights() {
    const NOBODY: u32 = 65534;
    let dir = Dir::new("shared-nobody");
    for (from, name) in [
        (hugeswap().to_owned(), "hugeswap"),
        (library(), "libhugeswap_preload.so"),
        (compile("shared"), "shared"),
    ] {
        std::fs::copy(from, dir.join(name)).unwrap();
    }
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).unwrap();
    let mut command = Command::new(dir.join("hugeswap"));
    command.args(["run", "--user-mode-only", "--memory", "512M", "--swap"]);
    command.args(["ram", "--"]).arg(dir.join("shared"));
    command.args(["calls", &MEGABYTES.to_string()]);
    let done = command.current_dir("/").uid(NOBODY).gid(NOBODY).output();
    let done = done.unwrap();
    assert!(done.status.success() && done.stdout == b"ok\n", "{done:?}");
}
